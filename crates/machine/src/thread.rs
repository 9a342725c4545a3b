//! How the system treats a thread.

use crate::system;

/// Marks the calling thread as one that sleeps most of the time and does little when it is woken, so that it may run
/// at once, before a thread that computes has used up its time slice. Where that cannot be said, nothing changes.
pub fn wake_promptly() {
    system::wake_promptly();
}
