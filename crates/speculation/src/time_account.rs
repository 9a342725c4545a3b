//! The guard: what speculation may lose, in seconds against plain decoding.
//!
//! Independent of every forecast but the cost of a plain pass. Time lost by a speculative round is drawn,
//! time won is paid in, and 1 % of all decode time is paid in as well. When it is overdrawn,
//! and the last 64 speculative rounds have lost, speculation pauses, twice as long each time until it has won again. So all of
//! it together is never slower than plain decoding by more than 1 % and the first credit.

use std::collections::VecDeque;

/// Share of decode time that may be lost by trying: 1 %, less what noise in the estimate of a plain pass
/// and overdrafts add.
const SHARE: f64 = 0.006;
/// Credit to begin with and the most that idle time pays in, in plain passes.
const CREDIT: f64 = 3.0;
/// The most that winning pays in: what a sudden change for the worse can cost.
const SAVINGS: f64 = 16.0;
/// A round never overdraws by more than this many plain passes.
const OVERDRAFT: f64 = 0.5;
/// Speculative rounds looked back on before a pause: bad luck after much winning is no reason.
const WINDOW: usize = 64;
/// Speculative rounds before the first pause: the first few say little.
const JUDGED: usize = 12;
const FIRST_PAUSE: u32 = 64;
const LONGEST_PAUSE: u32 = 4096;

/// The account.
pub(super) struct TimeAccount {
    /// Seconds; none before the first round.
    level: Option<f64>,
    /// What the last speculative rounds won, in seconds.
    recent: VecDeque<f64>,
    pause: u32,
    next_pause: u32,
    /// Seconds that a first try would risk and that could not be afforded so far.
    saving_for: f64,
    /// All decode seconds, drafting included.
    pub(super) seconds: f64,
    /// What plain decoding would have taken for the same tokens.
    pub(super) plain_seconds: f64,
    /// Seconds lost, less won, by rounds taken to learn.
    pub(super) trial_seconds: f64,
    pub(super) pauses: u64,
}

/// A round that is over.
pub(super) struct SettledRound {
    /// Seconds of a plain pass of this batch.
    pub(super) plain: f64,
    /// Seconds it took.
    pub(super) seconds: f64,
    /// Plain passes its tokens are worth.
    pub(super) worth: f64,
    pub(super) speculative: bool,
    pub(super) trial: bool,
}

impl Default for TimeAccount {
    fn default() -> Self {
        TimeAccount {
            level: None,
            recent: VecDeque::new(),
            pause: 0,
            next_pause: FIRST_PAUSE,
            saving_for: 0.0,
            seconds: 0.0,
            plain_seconds: 0.0,
            trial_seconds: 0.0,
            pauses: 0,
        }
    }
}

impl TimeAccount {
    /// Whether speculation has to wait; called once a round.
    pub(super) fn pausing(&mut self) -> bool {
        let pausing = self.pause > 0;
        self.pause = self.pause.saturating_sub(1);
        pausing
    }

    /// Whether a round may be risked that could lose `seconds`.
    pub(super) fn affords(&self, seconds: f64) -> bool {
        self.level.is_some_and(|level| level > seconds)
    }

    /// Idle time may pay in as much as this from now on, so that a dear first try can be afforded one day: what a
    /// draft model has to read before its first draft is the whole prompt.
    pub(super) fn save_for(&mut self, seconds: f64) {
        self.saving_for = seconds;
    }

    pub(super) fn settle(&mut self, round: &SettledRound) {
        let credit = CREDIT * round.plain;
        let level = self.level.unwrap_or(credit);
        let goal = credit.max(self.saving_for.min(SAVINGS * round.plain));
        let mut level = (level + SHARE * round.seconds).min(level.max(goal));
        self.seconds += round.seconds;
        if round.speculative {
            self.saving_for = 0.0;
            let won = round.worth * round.plain - round.seconds;
            self.plain_seconds += round.worth * round.plain;
            if round.trial {
                self.trial_seconds -= won;
            }
            level = (level + won).min(SAVINGS * round.plain);
            if level > 1.5 * credit {
                self.next_pause = FIRST_PAUSE;
            }
            self.recent.push_back(won);
            if self.recent.len() > WINDOW {
                self.recent.pop_front();
            }
            let overdrawn = level < 0.0;
            level = level.max(-OVERDRAFT * round.plain);
            let first = self.next_pause == FIRST_PAUSE;
            let judged = self.recent.len() >= if first { JUDGED } else { 1 };
            if overdrawn && judged && self.recent.iter().sum::<f64>() < 0.0 {
                self.recent.clear();
                self.pause = self.next_pause;
                self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
                self.pauses += 1;
            }
        } else {
            self.plain_seconds += round.seconds;
        }
        self.level = Some(level);
    }
}
