//! The order in which requests are prepared: a few at a time, the smallest first.
//!
//! Templates and schemas take processor time in proportion to what a request holds, and must not take the cores from the
//! model. Large requests never have all slots, so that a small one waits for small ones only. A request that others
//! overtake counts half as large each time: however many smaller ones come, it is next after a few of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Requests that are prepared at once.
pub(crate) const PLACES: usize = 2;
/// Slots that are kept for small requests.
const KEPT_FOR_SMALL: usize = 1;

/// Requests that are prepared, and those that wait.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<TurnState>);

#[derive(Debug, Default)]
struct TurnState {
    running: usize,
    running_large: usize,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// Its size, halved each time that it was overtaken.
    rank: usize,
    is_large: bool,
    told: oneshot::Sender<Turn>,
}

/// A slot, free again when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    is_large: bool,
}

impl Turns {
    /// Waits for a turn of a request of so many bytes. Safe to cancel.
    pub(crate) async fn take(self: &Arc<Turns>, size: usize, is_large: bool) -> Option<Turn> {
        let (told, turn) = oneshot::channel();
        self.state().waiting.push(Waiting { rank: size, is_large, told });
        self.go_on();
        turn.await.ok()
    }

    /// Gives free slots to requests that wait.
    fn go_on(self: &Arc<Turns>) {
        while let Some((told, is_large)) = self.next() {
            // Back it comes from a request that was cancelled meanwhile, to the next.
            drop(told.send(Turn { turns: Arc::clone(self), is_large }));
        }
    }

    /// Takes a slot for the one that is next, if there are both.
    fn next(&self) -> Option<(oneshot::Sender<Turn>, bool)> {
        let mut state = self.state();
        state.waiting.retain(|one| !one.told.is_closed());
        if state.running >= PLACES {
            return None;
        }
        let takes_large = state.running_large < PLACES - KEPT_FOR_SMALL;
        let fits = |one: &Waiting| takes_large || !one.is_large;
        let fitting = state.waiting.iter().enumerate().filter(|(_, one)| fits(one));
        // Of equals the first is taken, which came earlier.
        let place = fitting.min_by_key(|(_, one)| one.rank)?.0;
        for overtaken in &mut state.waiting[..place] {
            overtaken.rank /= 2;
        }
        let one = state.waiting.remove(place);
        state.running += 1;
        state.running_large += usize::from(one.is_large);
        Some((one.told, one.is_large))
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.state();
            state.running -= 1;
            state.running_large -= usize::from(self.is_large);
        }
        self.turns.go_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    const LARGE: usize = 1000;

    /// A request that waits for a turn.
    struct Asked(Option<Pin<Box<dyn Future<Output = Option<Turn>>>>>);

    impl Asked {
        /// Its turn, when it has come.
        fn turn(&mut self) -> Option<Turn> {
            let future = self.0.as_mut()?;
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(turn) => {
                    self.0 = None;
                    turn
                }
                Poll::Pending => None,
            }
        }
    }

    fn ask(turns: &Arc<Turns>, size: usize) -> Asked {
        let turns = Arc::clone(turns);
        let mut asked = Asked(Some(Box::pin(async move { turns.take(size, size >= LARGE).await })));
        // A future does nothing before it is looked at; a turn that is there at once is for `now`.
        if let Some(turn) = asked.turn() {
            asked.0 = Some(Box::pin(async move { Some(turn) }));
        }
        asked
    }

    #[track_caller]
    fn now(turns: &Arc<Turns>, size: usize) -> Turn {
        ask(turns, size).turn().expect("a free place")
    }

    #[test]
    fn large_requests_leave_a_place_to_small_ones() {
        let turns = Arc::new(Turns::default());
        let first = now(&turns, LARGE);
        let mut waiting: Vec<Asked> = (0..6).map(|_| ask(&turns, LARGE)).collect();
        let small = now(&turns, 5);
        drop(small);
        assert!(waiting.iter_mut().all(|asked| asked.turn().is_none()));
        drop(first);
        let running: Vec<Turn> = waiting.iter_mut().filter_map(Asked::turn).collect();
        assert_eq!(running.len(), 1);
        drop(now(&turns, 5));
    }

    #[test]
    fn the_smallest_goes_first_and_of_equals_the_earlier() {
        let turns = Arc::new(Turns::default());
        let (_other, mut running) = (now(&turns, 1), now(&turns, 1));
        let mut waiting: Vec<Asked> = [900, 10, 20, 10].map(|size| ask(&turns, size)).into();
        for expect in [1, 3, 2, 0] {
            drop(running);
            let turns = waiting.iter_mut().enumerate();
            let mut next: Vec<(usize, Turn)> =
                turns.filter_map(|(index, asked)| Some((index, asked.turn()?))).collect();
            let (index, turn) = next.pop().expect("a turn");
            assert!(next.is_empty());
            assert_eq!(index, expect);
            running = turn;
        }
    }

    #[test]
    fn a_request_that_is_overtaken_goes_first_at_last() {
        let turns = Arc::new(Turns::default());
        let (_other, mut running) = (now(&turns, 1), now(&turns, 1));
        let mut patient = ask(&turns, 512);
        let mut overtaken = 0;
        let _turn = loop {
            let mut small = ask(&turns, 1);
            drop(running);
            if let Some(turn) = small.turn() {
                running = turn;
                overtaken += 1;
                assert!(overtaken < 20, "it waits for ever");
                continue;
            }
            break patient.turn().expect("one of the two");
        };
        // 512 is 1 after nine times, and equal to those that come later.
        assert_eq!(overtaken, 9);
    }

    #[test]
    fn a_cancelled_request_takes_no_place() {
        let turns = Arc::new(Turns::default());
        let (large, small) = (now(&turns, LARGE), now(&turns, 1));
        let gone = ask(&turns, 2);
        let mut next = ask(&turns, 3);
        drop(gone);
        drop(small);
        let turn = next.turn().expect("a turn");
        // Notified, and cancelled before it could take it.
        let told = ask(&turns, 1);
        drop(turn);
        drop(told);
        drop(large);
        let state = turns.state();
        assert_eq!((state.running, state.running_large, state.waiting.len()), (0, 0, 0));
    }
}
