//! Moments as RFC 3339 writes them, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Seconds since 1970.
pub(crate) fn unix_seconds(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Now, to the microsecond.
pub(crate) fn now_rfc3339() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(since.as_secs(), since.subsec_micros())
}

/// A moment, such as `2026-11-15T09:05:31.000125Z`; of what no calendar has, the last there is.
pub(crate) fn rfc3339(unix_seconds: u64, micros: u32) -> String {
    let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX);
    let moment = Timestamp::from_microsecond(
        seconds.saturating_mul(1_000_000).saturating_add(i64::from(micros)),
    );
    format!("{:.6}", moment.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_the_calendar_has_them() {
        #[track_caller]
        fn check(seconds: u64, micros: u32, expect: &str) {
            assert_eq!(rfc3339(seconds, micros), expect);
        }
        check(0, 0, "1970-01-01T00:00:00.000000Z");
        check(951_782_400, 0, "2000-02-29T00:00:00.000000Z");
        check(951_868_799, 999_999, "2000-02-29T23:59:59.999999Z");
        check(951_868_800, 0, "2000-03-01T00:00:00.000000Z");
        check(1_709_164_800, 0, "2024-02-29T00:00:00.000000Z");
        check(1_735_689_599, 0, "2024-12-31T23:59:59.000000Z");
        check(1_794_733_531, 125, "2026-11-15T09:05:31.000125Z");
        // No leap day in 2100.
        check(4_107_542_399, 0, "2100-02-28T23:59:59.000000Z");
        check(4_107_542_400, 0, "2100-03-01T00:00:00.000000Z");
    }
}
