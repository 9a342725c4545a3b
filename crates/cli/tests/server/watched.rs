//! A server whose memory is watched while requests want too much.

use std::time::{Duration, Instant};

use crate::group::Group;
use crate::http;
use crate::served::{Served, question};

/// The memory limit that the program gets.
pub(crate) const MEMORY_MIB: u64 = 500;
/// What the kernel has to grant in addition: page tables, file cache.
const ALLOWANCE_MIB: u64 = 64;
/// What a server may keep more of after hostile requests than after an ordinary one.
const KEPT_MIB: u64 = 32;
const PATIENCE: Duration = Duration::from_secs(60);
/// The most answers to one request, and their length in tests of many answers.
pub(crate) const ANSWERS: usize = 16;
pub(crate) const ANSWER_TOKENS: usize = 40;

/// A group in which a program is killed that takes more than its limit and a little for the kernel.
pub(crate) fn memory_group() -> Option<Group> {
    Group::new((MEMORY_MIB + ALLOWANCE_MIB) << 20)
}

/// A server in a control group, and what it holds after a request that fills the context.
pub(crate) struct Watched {
    // Before the group: that can only be removed when it is empty.
    pub(crate) served: Served,
    /// None where no group can be made: then the kernel ends nothing, and all else is looked at all the same.
    group: Option<Group>,
    usual_bytes: u64,
}

impl Watched {
    pub(crate) fn start() -> Watched {
        Watched::start_with(&[])
    }

    /// With these options in addition.
    pub(crate) fn start_with(options: &[&str]) -> Watched {
        let group = memory_group();
        let memory = format!("{MEMORY_MIB}M");
        let options = [&["--memory", memory.as_str()], options].concat();
        let served = match &group {
            Some(group) => Served::start_in(group, &options),
            None => Served::start(&options),
        };
        // 6,000 words and their answer, of 8,192 tokens.
        let mut full = question(&"word ".repeat(6000));
        full["max_tokens"] = 8.into();
        served.chat(&full);
        let usual_bytes = served.resident_bytes().0;
        Watched { served, group, usual_bytes }
    }

    /// What it holds after many ordinary answers as well: slots, pages and rows of a batch are planned, but become
    /// resident when they are first written.
    pub(crate) fn after_many_answers(mut self) -> Watched {
        let served = &self.served;
        std::thread::scope(|scope| {
            for index in 0..4 {
                let mut body = question(&format!("word{index} ").repeat(1500));
                body["n"] = ANSWERS.into();
                body["max_tokens"] = ANSWER_TOKENS.into();
                scope.spawn(move || served.chat(&body));
            }
        });
        self.usual_bytes = self.served.resident_bytes().0;
        self
    }

    /// Sends a body; the reply must be one of refusal or an answer.
    #[track_caller]
    pub(crate) fn send(&self, path: &str, body: &str, about: &str) -> u16 {
        let reply = self.served.send(&http::post(path, &[], body.as_bytes()));
        let status = reply.status;
        let text = reply.text();
        let short: String = text.chars().take(300).collect();
        assert!(matches!(status, 200 | 400 | 413 | 503), "{about}: {status} {short}");
        self.check_peak(about);
        status
    }

    #[track_caller]
    pub(crate) fn check_peak(&self, about: &str) {
        let peak = self.served.resident_bytes().1 >> 20;
        assert!(peak <= MEMORY_MIB, "{peak} MiB were resident of {MEMORY_MIB} after {about}");
        let kills = self.group.as_ref().map_or(0, Group::kills);
        assert_eq!(kills, 0, "killed for memory after {about}");
    }

    /// It still answers, and has released what it took.
    #[track_caller]
    pub(crate) fn check_returned(&self) {
        self.served.check_answers();
        let start = Instant::now();
        loop {
            let more = self.served.resident_bytes().0.saturating_sub(self.usual_bytes) >> 20;
            if more <= KEPT_MIB {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{more} MiB more than after an ordinary request");
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}
