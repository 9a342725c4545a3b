//! Threads that each run a step of their own, over rows of their own, and meet where rows of all are worked on together.
//!
//! Most of a step is about one row at a time. With narrow weights a step on all threads is then mostly waiting for each
//! other, a hundred times; rows that stay with a thread from the first operation to the last have to wait for others only
//! where an expert is to be read once for all rows that want it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::pool::{Counter, PATIENCE};

/// Where threads wait for each other. What they share there has a room, or rather two, in turns: who is early prepares the
/// next one while others may still look at what lies in the last.
pub(crate) struct Meeting<R> {
    arrived: Counter,
    /// Times that all were there.
    times: Counter,
    /// Whether somebody has left, and whether in a panic.
    has_left: AtomicBool,
    is_broken: AtomicBool,
    rooms: [RwLock<R>; 2],
}

/// A thread's place in a meeting.
pub(crate) struct Seat<R> {
    meeting: Arc<Meeting<R>>,
    /// Which of the members.
    pub(crate) me: usize,
    pub(crate) members: usize,
    /// Rows of this member, of those before, and of all.
    pub(crate) rows: usize,
    pub(crate) first_row: usize,
    pub(crate) all_rows: usize,
    round: usize,
}

impl<R: Default> Default for Meeting<R> {
    fn default() -> Meeting<R> {
        Meeting {
            arrived: Counter::default(),
            times: Counter::default(),
            has_left: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            rooms: Default::default(),
        }
    }
}

impl<R> Meeting<R> {
    /// Places for members that have so many rows each.
    pub(crate) fn seats(
        meeting: &Arc<Meeting<R>>,
        rows: impl Iterator<Item = usize> + Clone,
    ) -> Vec<Seat<R>> {
        let (members, all_rows) = (rows.clone().count(), rows.clone().sum());
        meeting.has_left.store(false, Ordering::Relaxed);
        // Everybody waits more often than there are rounds, so none has the number of an earlier one.
        let round = meeting.times.0.load(Ordering::Acquire);
        let mut first_row = 0;
        let seat = |(me, rows): (usize, usize)| {
            first_row += rows;
            let first_row = first_row - rows;
            Seat { meeting: Arc::clone(meeting), me, members, rows, first_row, all_rows, round }
        };
        rows.enumerate().map(seat).collect()
    }

    /// Whether a member panicked: others may have waited for it in vain, and nobody may meet here again.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }
}

impl<R> Seat<R> {
    /// The room of the next round, to prepare it. Everybody takes as many rounds, and waits twice in each.
    pub(crate) fn next_room(&mut self) -> (usize, RwLockWriteGuard<'_, R>) {
        self.round += 1;
        let room = &self.meeting.rooms[self.round % 2];
        (self.round, room.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The room of this round, to look at what all have left there; until the next round.
    pub(crate) fn room(&self) -> RwLockReadGuard<'_, R> {
        self.meeting.rooms[self.round % 2].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that this member is there; it may do other things before it waits for all.
    pub(crate) fn arrive(&self) -> Arrival {
        let Meeting { arrived, times, .. } = &*self.meeting;
        let before = times.0.load(Ordering::Acquire);
        if arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            arrived.0.store(0, Ordering::Relaxed);
            times.0.store(before + 1, Ordering::Release);
        }
        Arrival(before)
    }

    /// Whether all members have arrived.
    pub(crate) fn are_all_there(&self, Arrival(before): &Arrival) -> bool {
        self.meeting.times.0.load(Ordering::Acquire) != *before
    }

    /// Returns when all members have arrived.
    pub(crate) fn wait(&self, Arrival(before): Arrival) {
        let Meeting { times, has_left, .. } = &*self.meeting;
        let mut spins = 0u32;
        while times.0.load(Ordering::Acquire) == before {
            // Who has left after the last meeting was at this one.
            let comes =
                !has_left.load(Ordering::Acquire) || times.0.load(Ordering::Acquire) != before;
            assert!(comes, "another thread has left the step before this operation");
            spins = spins.wrapping_add(1);
            if spins >= PATIENCE && spins.is_multiple_of(64) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Tells the others that this thread has left, when it is dropped.
    pub(crate) fn guard(&self) -> Guard<R> {
        Guard(Arc::clone(&self.meeting))
    }
}

/// See [`Seat::arrive`].
#[must_use]
pub(crate) struct Arrival(usize);

/// See [`Seat::guard`].
pub(crate) struct Guard<R>(Arc<Meeting<R>>);

impl<R> Drop for Guard<R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_broken.store(true, Ordering::Relaxed);
        }
        self.0.has_left.store(true, Ordering::Release);
    }
}

/// Tasks of a round: each member begins with a share of its own and helps others when it is done.
#[derive(Default)]
pub(crate) struct Shares(Vec<Counter>);

impl Shares {
    /// No task is taken.
    pub(crate) fn reset(&mut self, members: usize) {
        self.0.clear();
        self.0.resize_with(members, Counter::default);
    }

    /// Calls `f` for those of the tasks that fall to this member.
    pub(crate) fn work(&self, tasks: usize, me: usize, mut f: impl FnMut(usize)) {
        let members = self.0.len();
        for owner in (me..members).chain(0..me) {
            let (start, end) = (tasks * owner / members, tasks * (owner + 1) / members);
            loop {
                let task = start + self.0[owner].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                f(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// What lies in a room: the round it was prepared for, and a mark of each member.
    #[derive(Default)]
    struct Board {
        round: usize,
        marks: Vec<usize>,
        shares: Shares,
    }

    #[test]
    fn everybody_sees_what_all_have_left_and_every_task_is_done_once() {
        for members in [1, 2, 3, 5] {
            let meeting = Arc::new(Meeting::<Board>::default());
            for step in 0..20 {
                let done: Vec<AtomicUsize> = (0..7 * 50).map(|_| AtomicUsize::new(0)).collect();
                let done = &done;
                std::thread::scope(|scope| {
                    for mut seat in Meeting::seats(&meeting, (0..members).map(|me| me + 1)) {
                        scope.spawn(move || {
                            let (me, first) = (seat.me, seat.first_row);
                            assert_eq!(first, me * (me + 1) / 2);
                            assert_eq!(seat.all_rows, members * (members + 1) / 2);
                            for turn in 0..50 {
                                let (round, mut room) = seat.next_room();
                                if room.round != round {
                                    room.round = round;
                                    room.marks = vec![0; members];
                                    room.shares.reset(members);
                                }
                                room.marks[me] = 1 + step + turn + me;
                                drop(room);
                                seat.wait(seat.arrive());
                                let board = seat.room();
                                let want: Vec<usize> =
                                    (0..members).map(|me| 1 + step + turn + me).collect();
                                assert_eq!(board.marks, want);
                                board.shares.work(7, me, |task| {
                                    done[turn * 7 + task].fetch_add(1, Ordering::Relaxed);
                                });
                                seat.wait(seat.arrive());
                            }
                        });
                    }
                });
                assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn nobody_waits_for_who_panicked() {
        let meeting = Arc::new(Meeting::<()>::default());
        let mut seats = Meeting::seats(&meeting, [1usize, 1].into_iter());
        let (gone, waiting) = (seats.remove(1), seats.remove(0));
        let gone = std::thread::spawn(move || {
            let _guard = gone.guard();
            panic!("on purpose");
        });
        assert!(gone.join().is_err() && meeting.is_broken());
        let waiting = std::thread::spawn(move || waiting.wait(waiting.arrive()));
        assert!(waiting.join().is_err());
    }

    #[test]
    fn nobody_waits_for_who_has_left_and_all_may_leave_after_the_last_time() {
        let meeting = Arc::new(Meeting::<()>::default());
        for step in 0..200 {
            std::thread::scope(|scope| {
                for seat in Meeting::seats(&meeting, [1usize, 1].into_iter()) {
                    scope.spawn(move || {
                        let _guard = seat.guard();
                        (0..step % 3).for_each(|_| seat.wait(seat.arrive()));
                    });
                }
            });
        }
        let mut seats = Meeting::seats(&meeting, [1usize, 1].into_iter());
        drop(seats.remove(1).guard());
        let waiting = seats.remove(0);
        let waiting = std::thread::spawn(move || waiting.wait(waiting.arrive()));
        assert!(waiting.join().is_err());
    }
}
