//! `strftime_now`: today's date for templates that give the model the date.
//!
//! Times are UTC unless the caller gives its own clock: a time zone needs a database, and a date in a
//! prompt does not deserve one. Directives of C's `strftime` in the C locale, by `jiff`; where it writes
//! something else than Python's naive datetimes they are here. Unknown ones stay as they are written, as
//! glibc leaves them.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::Offset;

/// The most bytes that one of a format can become: `%c` is a whole date.
pub(super) const LONGEST_BYTES: usize = 16;

/// The first second of year 1: years before it serve no prompt.
const FIRST_S: i64 = -62_135_596_800;

/// Seconds since 1970, UTC.
pub(super) fn now_unix_s() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_secs()).unwrap_or_default()
}

/// A moment written by a `strftime` format.
pub(super) fn strftime(format: &str, unix_s: i64) -> String {
    let unix_s = unix_s.clamp(FIRST_S, Timestamp::MAX.as_second());
    let moment = Timestamp::from_second(unix_s).unwrap_or_default();
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = characters.next();
        // glibc's flag for "no padding": `%-d`.
        let unpadded = directive == Some('-');
        if unpadded {
            directive = characters.next();
        }
        let flag = if unpadded { "-" } else { "" };
        text.push_str(&match directive {
            Some(directive) => written(moment, directive, flag),
            None => format!("%{flag}"),
        });
    }
    text
}

/// What a directive becomes.
fn written(moment: Timestamp, directive: char, flag: &str) -> String {
    let year = Offset::UTC.to_datetime(moment).year();
    let as_jiff_does = |text: &str| {
        let written = strtime::format(text, moment);
        written.unwrap_or_else(|_| text.to_owned())
    };
    let as_of = |format: &str| strftime(format, moment.as_second());
    match directive {
        'm' | 'd' | 'e' | 'j' | 'H' | 'I' | 'M' | 'S' | 'w' | 'u' | 's' => {
            as_jiff_does(&format!("%{flag}{directive}"))
        }
        'B' | 'b' | 'h' | 'A' | 'a' | 'p' | 'T' | 'R' | 'n' | 't' | '%' => {
            as_jiff_does(&format!("%{directive}"))
        }
        // jiff pads the first and takes years around 2000 only for the second.
        'Y' => year.to_string(),
        'y' if flag.is_empty() => format!("{:02}", year % 100),
        'y' => (year % 100).to_string(),
        'f' => if flag.is_empty() { "000000" } else { "0" }.to_owned(),
        // A naive Python datetime has no zone and prints none.
        'Z' | 'z' => String::new(),
        'F' => as_of("%Y-%m-%d"),
        'X' => as_of("%T"),
        'D' | 'x' => as_of("%m/%d/%y"),
        'c' => as_of("%a %b %e %T %Y"),
        other => format!("%{flag}{other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[track_caller]
    fn check(unix_s: i64, format: &str, expect: &str) {
        assert_eq!(strftime(format, unix_s), expect);
    }

    #[test]
    fn dates_templates_ask_for() {
        check(1_794_700_800, "%d %B %Y", "15 November 2026");
        check(1_794_700_800, "%Y-%m-%d", "2026-11-15");
        check(1_794_700_800, "%A, %b %-d, %Y", "Sunday, Nov 15, 2026");
        check(951_782_400, "%F %j", "2000-02-29 060");
        check(951_868_800, "%F %j", "2000-03-01 061");
        check(1_735_603_200, "%F %j", "2024-12-31 366");
        check(0, "%c|%I %p|%e|%y", "Thu Jan  1 00:00:00 1970|12 AM| 1|70");
        check(-1, "%F %T", "1969-12-31 23:59:59");
    }

    #[test]
    fn oddities_do_not_panic() {
        check(0, "100%% %Q %-Q %", "100% %Q %-Q %");
        check(0, "%-", "%-");
        strftime("%c %F", i64::MAX);
        strftime("%c %F", i64::MIN);
    }
}
