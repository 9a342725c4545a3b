//! Ctrl-C while an answer comes: the first stops the answer, the second ends the program.
//!
//! While nothing is being answered (a model is loading), the first ends the program. At the prompt of a
//! conversation the terminal is in raw mode and Ctrl-C is a key like any other, so nothing here sees it.
//! `ctrlc` is the one dependency for this: neither std nor rustix can install a handler without `unsafe`.

use std::sync::atomic::{AtomicUsize, Ordering};

const IDLE: usize = 0;
const ANSWERING: usize = 1;
const STOPPING: usize = 2;

static STATE: AtomicUsize = AtomicUsize::new(IDLE);

/// Listens for Ctrl-C from now on.
pub(crate) fn listen() {
    let listening = ctrlc::set_handler(|| {
        if STATE.compare_exchange(ANSWERING, STOPPING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            std::process::exit(130);
        }
    });
    if let Err(error) = listening {
        tracing::debug!("Ctrl-C will end the program at once: {error}");
    }
}

/// An answer is being made as long as this lives.
pub(crate) struct Answering(());

impl Answering {
    /// Begins an answer.
    pub(crate) fn begin() -> Answering {
        STATE.store(ANSWERING, Ordering::SeqCst);
        Answering(())
    }

    /// Whether Ctrl-C came.
    pub(crate) fn is_stopped(&self) -> bool {
        STATE.load(Ordering::SeqCst) == STOPPING
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }
}
