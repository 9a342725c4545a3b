//! Sizes as people read them: decimal, as disks and model cards count.

/// `17.2 GB`: a few digits and a decimal unit.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes, [" B", " kB", " MB", " GB", " TB"])
}

/// A number in the largest of its units, each a thousand times the one before, that leaves something before the point.
pub fn scaled(number: u64, units: [&str; 5]) -> String {
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
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
}
