//! `strftime_now`: today's date for templates that tell the model what day it is.
//!
//! Times are UTC unless the caller gives its own clock: a time zone needs a database, and a date in a
//! prompt does not deserve one. Directives of C's `strftime` in the C locale; unknown ones stay as
//! they are written, as glibc leaves them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: i64 = 86_400;
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The most bytes that one of a format can become: `%c` is a whole date.
pub(super) const LONGEST_BYTES: usize = 16;

/// Seconds since 1970, UTC.
pub(super) fn now_unix_s() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_secs()).unwrap_or_default()
}

/// A moment written by a `strftime` format.
pub(super) fn strftime(format: &str, unix_s: i64) -> String {
    let moment = Moment::new(unix_s);
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
        let Some(directive) = directive else {
            text.push_str(if unpadded { "%-" } else { "%" });
            break;
        };
        moment.write(&mut text, directive, unpadded);
    }
    text
}

struct Moment {
    year: i64,
    month: i64,       // 1..=12
    day: i64,         // 1..=31
    day_of_year: i64, // 1..=366
    weekday: i64,     // 0 is Sunday
    second_of_day: i64,
    unix_s: i64,
}

impl Moment {
    /// Days to a proleptic Gregorian date by eras of 400 years, which begin on 1 March
    /// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    fn new(unix_s: i64) -> Self {
        // Years beyond four digits serve no prompt and would overflow below.
        let unix_s = unix_s.clamp(-62_135_596_800, 253_402_300_799);
        let days = unix_s.div_euclid(SECONDS_PER_DAY);
        let shifted = days + 719_468; // days from 0000-03-01
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let day = day_from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let day_of_year = if month <= 2 {
            day_from_march - 306 + 1
        } else {
            day_from_march + 59 + i64::from(leap) + 1
        };
        Self {
            year,
            month,
            day,
            day_of_year,
            weekday: (days + 4).rem_euclid(7), // 1970-01-01 was a Thursday
            second_of_day: unix_s.rem_euclid(SECONDS_PER_DAY),
            unix_s,
        }
    }

    fn write(&self, text: &mut String, directive: char, unpadded: bool) {
        let hour = self.second_of_day / 3600;
        let hour_12 = if hour % 12 == 0 { 12 } else { hour % 12 };
        let month_name = MONTHS[(self.month - 1) as usize];
        let weekday_name = WEEKDAYS[self.weekday as usize];
        let mut number = |value: i64, width: usize| {
            let width = if unpadded { 1 } else { width };
            // Writing to a String does not fail.
            let _ = write!(text, "{value:0width$}");
        };
        match directive {
            'Y' => number(self.year, 1),
            'y' => number(self.year.rem_euclid(100), 2),
            'm' => number(self.month, 2),
            'd' => number(self.day, 2),
            'j' => number(self.day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number(hour_12, 2),
            'M' => number(self.second_of_day / 60 % 60, 2),
            'S' => number(self.second_of_day % 60, 2),
            'f' => number(0, 6),
            'w' => number(self.weekday, 1),
            'u' => number(if self.weekday == 0 { 7 } else { self.weekday }, 1),
            's' => number(self.unix_s, 1),
            'e' if unpadded => number(self.day, 1),
            'e' => {
                let _ = write!(text, "{:2}", self.day);
            }
            'B' => text.push_str(month_name),
            'b' | 'h' => text.push_str(&month_name[..3]),
            'A' => text.push_str(weekday_name),
            'a' => text.push_str(&weekday_name[..3]),
            'p' => text.push_str(if hour < 12 { "AM" } else { "PM" }),
            // A naive Python datetime has no zone and prints none.
            'Z' | 'z' => {}
            'F' => text.push_str(&strftime("%Y-%m-%d", self.unix_s)),
            'T' | 'X' => text.push_str(&strftime("%H:%M:%S", self.unix_s)),
            'R' => text.push_str(&strftime("%H:%M", self.unix_s)),
            'D' | 'x' => text.push_str(&strftime("%m/%d/%y", self.unix_s)),
            'c' => text.push_str(&strftime("%a %b %e %H:%M:%S %Y", self.unix_s)),
            'n' => text.push('\n'),
            't' => text.push('\t'),
            '%' => text.push('%'),
            other => {
                text.push_str(if unpadded { "%-" } else { "%" });
                text.push(other);
            }
        }
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
