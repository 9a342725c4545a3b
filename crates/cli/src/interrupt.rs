//! Ctrl-C while an answer comes: the first stops the answer, the second ends the program.
//!
//! While a model is loading, the first ends the program. At the prompt of a conversation the terminal is
//! in raw mode and Ctrl-C is a key like any other, so nothing here sees it; in the moments between, one
//! that was meant for an answer that has just ended is ignored.
//! `ctrlc` is the one dependency for this: neither std nor rustix can install a handler without `unsafe`.

use std::sync::atomic::{AtomicU8, Ordering};

/// Nothing to stop: Ctrl-C ends the program.
const IDLE: u8 = 0;
/// Between two answers of a conversation.
const BETWEEN: u8 = 1;
/// An answer is coming.
const ANSWERING: u8 = 2;
/// Ctrl-C came while an answer was.
const STOPPING: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Listens for Ctrl-C from now on.
pub(crate) fn listen() {
    let listening = ctrlc::set_handler(|| {
        let next = |state| match state {
            ANSWERING => Some(STOPPING),
            BETWEEN => Some(IDLE),
            _ => None,
        };
        if STATE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_err() {
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
        STATE.store(BETWEEN, Ordering::SeqCst);
    }
}
