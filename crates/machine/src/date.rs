//! Dates of the calendar, in UTC: a date needs a few divisions, not a library of time zones.

const SECONDS_PER_DAY: u64 = 86_400;

/// The day of a moment, such as `2026-11-15`.
pub fn of(unix_seconds: u64) -> String {
    let (year, month, day) = civil(unix_seconds / SECONDS_PER_DAY);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a day since 1970. Years begin in March here, so that the day a leap year adds
/// is the last.
fn civil(day: u64) -> (u64, u64, u64) {
    // Days since 1 March of year 0, which begins an era of 400 years.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Five months have 153 days, whichever five from March on.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_days() {
        for (unix_seconds, expect) in [
            (0, "1970-01-01"),
            (951_868_799, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_794_733_531, "2026-11-15"),
        ] {
            assert_eq!(of(unix_seconds), expect);
        }
    }

    #[test]
    fn days_follow_each_other() {
        let mut last = civil(0);
        for day in 1..200_000 {
            let next = civil(day);
            let (year, month, date) = last;
            let begins_month =
                next == (year, month + 1, 1) || next == (year + 1, 1, 1) && month == 12;
            assert!(
                next == (year, month, date + 1) || (begins_month && date >= 28),
                "{last:?} {next:?}"
            );
            assert!((1..=31).contains(&next.2) && (1..=12).contains(&next.1));
            last = next;
        }
        assert_eq!(last, (2517, 7, 31));
    }
}
