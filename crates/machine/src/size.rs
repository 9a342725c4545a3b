//! Sizes as people read them: decimal, as disks and model cards count.

const UNITS: [&str; 5] = [" B", " kB", " MB", " GB", " TB"];

/// `17.2 GB`: a few digits and a decimal unit.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes, UNITS)
}

/// Two sizes with as many digits as it takes to distinguish them, if they differ.
pub fn apart(one: u64, other: u64) -> [String; 2] {
    let mut written = [bytes(one), bytes(other)];
    // Twelve digits of a terabyte are single bytes.
    let mut digits = 2..=12;
    while one != other
        && written[0] == written[1]
        && let Some(digits) = digits.next()
    {
        written = [one, other].map(|number| with_digits(number, UNITS, digits));
    }
    written
}

/// `1 layer`, `2 layers`: a count and what is counted.
pub fn counted(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// A number in the largest of its units, each a thousand times the one before, that leaves something before the point.
pub fn scaled(number: u64, units: [&str; 5]) -> String {
    with_digits(number, units, 1)
}

fn with_digits(number: u64, units: [&str; 5], digits: usize) -> String {
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit > 0 { digits } else { 0 };
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written() {
        for (number, expect) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (17_179_869_184, "17.2 GB"),
            (u64::MAX, "18446744.1 TB"),
        ] {
            assert_eq!(bytes(number), expect);
        }
    }

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!(["0 layers", "1 layer", "2 layers"], [0, 1, 2].map(|n| counted(n, "layer")));
    }

    #[test]
    fn sizes_that_differ_are_written_apart() {
        #[track_caller]
        fn check(one: u64, other: u64, expect: [&str; 2]) {
            assert_eq!(apart(one, other), expect);
        }
        check(2_000_000_000, 1_000_000_000, ["2.0 GB", "1.0 GB"]);
        check(2_800_000_000, 2_800_000_000, ["2.8 GB", "2.8 GB"]);
        check(2_819_000_000, 2_801_000_000, ["2.82 GB", "2.80 GB"]);
        check(2_800_000_001, 2_800_000_000, ["2.800000001 GB", "2.800000000 GB"]);
        check(999, 998, ["999 B", "998 B"]);
        check(999_951, 1_000_049, ["0.99995 MB", "1.00005 MB"]);
    }
}
