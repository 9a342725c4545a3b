//! A log of rounds: what was drafted, what that and the pass took, and what came of it.
//!
//! `bench --rounds` writes one, and the tests of the controller are driven by some. One line a round of a single
//! answer, its values separated by commas; times in microseconds and bytes in KiB, which is finer than either repeats.

use std::fmt;
use std::str::FromStr;

use super::SourceKind;

/// The names of the values, as a first line.
pub const HEADER: &str =
    "source,behind,draft_us,buckets,verified,accepted,pass_us,wanted_kib,missed_kib";

/// A round that is over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoggedRound {
    /// The source that drafted, if one did.
    pub source: Option<SourceKind>,
    /// Tokens it read before.
    pub behind: usize,
    /// Seconds of drafting.
    pub draft_seconds: f64,
    /// How sure it was of each drafted token, 0 to 7.
    pub buckets: Vec<u8>,
    /// Drafted tokens that were verified.
    pub verified: usize,
    /// Drafted tokens that were right.
    pub accepted: usize,
    /// Seconds of the pass.
    pub pass_seconds: f64,
    /// Bytes of the experts that the pass wanted; 0 if nothing is streamed.
    pub wanted_bytes: u64,
    /// Bytes of them that had to be read, by the row that wanted them first.
    pub missed_bytes: Vec<u64>,
}

impl LoggedRound {
    /// Rows of the pass.
    pub fn rows(&self) -> usize {
        1 + self.verified
    }
}

impl fmt::Display for LoggedRound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |seconds: f64| (seconds * 1e6).round();
        let buckets: String = self.buckets.iter().map(u8::to_string).collect();
        let missed: Vec<String> =
            self.missed_bytes.iter().map(|bytes| (bytes >> 10).to_string()).collect();
        write!(
            formatter,
            "{},{},{},{buckets},{},{},{},{},{}",
            self.source.map_or("", SourceKind::name),
            self.behind,
            micros(self.draft_seconds),
            self.verified,
            self.accepted,
            micros(self.pass_seconds),
            self.wanted_bytes >> 10,
            missed.join(" "),
        )
    }
}

impl FromStr for LoggedRound {
    type Err = String;

    fn from_str(line: &str) -> Result<LoggedRound, String> {
        let wrong = || format!("no round of a log: {line}");
        let values: Vec<&str> = line.split(',').collect();
        let &[source, behind, draft, buckets, verified, accepted, pass, wanted, missed] =
            &values[..]
        else {
            return Err(wrong());
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let source = match source {
            "" => None,
            said => Some(SourceKind::ALL.into_iter().find(|s| s.name() == said).ok_or_else(wrong)?),
        };
        let bucket = |digit: char| digit.to_digit(8).map(|digit| digit as u8).ok_or_else(wrong);
        let kib = |text: &str| number(text).map(|kib| kib << 10);
        Ok(LoggedRound {
            source,
            behind: number(behind)? as usize,
            draft_seconds: number(draft)? as f64 / 1e6,
            buckets: buckets.chars().map(bucket).collect::<Result<_, _>>()?,
            verified: number(verified)? as usize,
            accepted: number(accepted)? as usize,
            pass_seconds: number(pass)? as f64 / 1e6,
            wanted_bytes: kib(wanted)?,
            missed_bytes: missed.split_whitespace().map(kib).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_one_name() {
        for source in SourceKind::ALL {
            assert_eq!(serde_json::json!(source), source.name());
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let drafted = LoggedRound {
            source: Some(SourceKind::DraftModel),
            behind: 3,
            draft_seconds: 0.000_25,
            buckets: vec![7, 0, 4],
            verified: 2,
            accepted: 1,
            pass_seconds: 0.031,
            wanted_bytes: 4096,
            missed_bytes: vec![2048, 0, 1024],
        };
        let plain = LoggedRound { pass_seconds: 0.02, ..LoggedRound::default() };
        for round in [drafted, plain] {
            assert_eq!(round.to_string().parse(), Ok(round.clone()), "{round}");
            assert_eq!(round.to_string().split(',').count(), HEADER.split(',').count());
        }
        for wrong in [HEADER, "", "mtp,1,2,9,1,0,5,0,", "eagle,1,2,7,1,0,5,0,"] {
            assert!(wrong.parse::<LoggedRound>().is_err(), "{wrong}");
        }
    }
}
