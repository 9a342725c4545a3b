//! Which prompts advance alongside the answers, and by how much.
//!
//! Several prompts share the rows of a step. From step to step the oldest and the one with the fewest tokens left
//! take turns to be first: a short prompt does not wait behind a long one, and a long one never starves.
//! It is plain arithmetic and knows nothing of memory. No choice made here changes a token.

use compute::memory::BLOCK;

/// How long a step may keep those that decode waiting.
const STEP_SECONDS: f64 = 0.5;

/// Weight of the last step in the average rate.
const NEWEST: f64 = 0.3;

/// A prompt that is not in yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt {
    /// Index of its request.
    pub(crate) index: usize,
    /// Its age: the least is the oldest.
    pub(crate) order: u64,
    /// Tokens that are in.
    pub(crate) position: usize,
    /// Tokens that are not.
    pub(crate) left: usize,
    /// Where it must stop for a checkpoint.
    pub(crate) stop: Option<usize>,
}

/// Which prompt goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Oldest,
    Shortest,
}

/// Index and rows of each prompt that advances, `room` rows in all. Chunks end at blocks, where they do not end at
/// the prompt's end or at a stop.
pub(crate) fn pack(prompts: &mut [Prompt], turn: Turn, mut room: usize) -> Vec<(usize, usize)> {
    match turn {
        Turn::Oldest => prompts.sort_by_key(|prompt| prompt.order),
        Turn::Shortest => prompts.sort_by_key(|prompt| (prompt.left, prompt.order)),
    }
    let mut parts = Vec::new();
    for prompt in prompts {
        let rows = rows(prompt, room);
        if rows > 0 {
            parts.push((prompt.index, rows));
            room -= rows;
        }
    }
    parts
}

/// Rows of the next chunk; none if there is room for less than the rest of a block.
fn rows(prompt: &Prompt, room: usize) -> usize {
    let position = prompt.position;
    let left = prompt.stop.map_or(prompt.left, |stop| prompt.left.min(stop - position));
    if left <= room {
        return left;
    }
    let end = (position + room) / BLOCK * BLOCK;
    end.saturating_sub(position)
}

/// How fast prompts are read, and which goes next.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Rows a second, a running average; none yet if 0.
    rate: f64,
    steps: u64,
}

impl Pace {
    /// Rows for prompts in the next step, `chunk` at most.
    pub(crate) fn room(&self, chunk: usize, somebody_decodes: bool) -> usize {
        let most = chunk.max(BLOCK);
        if !somebody_decodes {
            return most;
        }
        let rows = (self.rate * STEP_SECONDS) as usize / BLOCK * BLOCK;
        rows.clamp(BLOCK, most)
    }

    /// Takes turns.
    pub(crate) fn next_turn(&mut self) -> Turn {
        self.steps += 1;
        if self.steps % 2 == 1 { Turn::Oldest } else { Turn::Shortest }
    }

    /// Learns from a step that had so many rows of prompts.
    pub(crate) fn observe(&mut self, rows: usize, seconds: f64) {
        // A handful of rows shows how long a step takes, not how many more it could have had.
        if rows < BLOCK / 2 || seconds <= 0.0 {
            return;
        }
        let rate = rows as f64 / seconds;
        self.rate =
            if self.rate == 0.0 { rate } else { rate * NEWEST + self.rate * (1.0 - NEWEST) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts by (position, left, stop), the oldest first.
    #[track_caller]
    fn check(
        prompts: &[(usize, usize, Option<usize>)],
        turn: Turn,
        room: usize,
        expect: &[(usize, usize)],
    ) {
        let prompt = |(index, &(position, left, stop)): (usize, &(usize, usize, Option<usize>))| {
            Prompt { index, order: index as u64, position, left, stop }
        };
        let mut prompts: Vec<Prompt> = prompts.iter().enumerate().map(prompt).collect();
        assert_eq!(pack(&mut prompts, turn, room), expect);
    }

    #[test]
    fn prompts_share_a_step() {
        use Turn::{Oldest, Shortest};
        // One prompt: whole blocks, then the rest.
        check(&[(0, 1000, None)], Oldest, 512, &[(0, 512)]);
        check(&[(960, 40, None)], Oldest, 512, &[(0, 40)]);
        check(&[(30, 1000, None)], Oldest, 512, &[(0, 482)]);
        check(&[(30, 1000, None)], Oldest, 64, &[(0, 34)]);
        // Several, whole where they fit; what is less than the rest of a block waits.
        check(&[(0, 100, None), (0, 1000, None)], Oldest, 512, &[(0, 100), (1, 384)]);
        let three = [(0, 100, None), (0, 1000, None), (0, 20, None)];
        check(&three, Oldest, 512, &[(0, 100), (1, 384), (2, 20)]);
        let three = [(0, 100, None), (0, 1000, None), (0, 30, None)];
        check(&three, Oldest, 512, &[(0, 100), (1, 384)]);
        // The short ones first.
        check(&[(0, 5000, None), (0, 70, None)], Oldest, 512, &[(0, 512)]);
        check(&[(0, 5000, None), (0, 70, None)], Shortest, 512, &[(1, 70), (0, 384)]);
        check(&[(4900, 100, None), (0, 101, None)], Shortest, 64, &[(0, 28)]);
        // Equal ones by age.
        check(&[(64, 90, None), (0, 90, None)], Shortest, 64, &[(0, 64)]);
    }

    #[test]
    fn a_chunk_ends_at_a_stop() {
        check(&[(0, 1000, Some(333))], Turn::Oldest, 512, &[(0, 333)]);
        check(&[(333, 667, Some(768))], Turn::Oldest, 512, &[(0, 435)]);
        check(&[(333, 667, Some(999))], Turn::Oldest, 512, &[(0, 499)]);
        // What it does not take, others do.
        check(&[(0, 1000, Some(70)), (0, 900, None)], Turn::Oldest, 512, &[(0, 70), (1, 384)]);
    }

    #[test]
    fn the_first_request_advances() {
        for position in 0..200 {
            for left in 2..200 {
                let mut prompts = [Prompt { index: 0, order: 0, position, left, stop: None }];
                assert_eq!(pack(&mut prompts, Turn::Oldest, BLOCK).len(), 1);
            }
        }
    }

    #[test]
    fn prefill_steps_next_to_answers_are_short() {
        let mut pace = Pace::default();
        assert_eq!((pace.room(512, false), pace.room(16, false)), (512, 64));
        // Nothing is known yet.
        assert_eq!(pace.room(512, true), 64);
        pace.observe(512, 1.0);
        assert_eq!((pace.room(512, true), pace.room(512, false)), (256, 512));
        for _ in 0..100 {
            pace.observe(64, 4.0);
        }
        assert_eq!(pace.room(512, true), 64);
        for _ in 0..100 {
            pace.observe(512, 0.001);
            pace.observe(1, 1.0);
        }
        assert_eq!(pace.room(512, true), 512);
        assert_eq!([0; 3].map(|_| pace.next_turn()), [Turn::Oldest, Turn::Shortest, Turn::Oldest]);
    }
}
