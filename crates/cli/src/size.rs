//! Sizes as people write and read them.
//!
//! Read: `16G` means 16 · 2³⁰, as in docker, systemd and `java -Xmx`; `16GB` means 16 · 10⁹ and
//! `16GiB` is 16 · 2³⁰ without a doubt. Written: decimal, as disks and model cards count.

use std::str::FromStr;

pub(crate) use machine::size::{bytes, counted};

/// A number of bytes given by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("`{text}` is not a size; write it like 16G, 16GiB, 16GB or 512M");
        let trimmed = text.trim();
        let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
        let unit = trimmed[digits.len()..].trim().to_ascii_lowercase();
        let number: f64 = digits.parse().map_err(|_| wrong())?;
        let (letter, decimal) = match unit.as_str() {
            "" | "b" => ("", false),
            unit => match unit.strip_suffix("ib") {
                Some(letter) => (letter, false),
                None => match unit.strip_suffix('b') {
                    Some(letter) => (letter, true),
                    None => (unit, false),
                },
            },
        };
        let power = match letter {
            "" => 0,
            "k" => 1,
            "m" => 2,
            "g" => 3,
            "t" => 4,
            _ => return Err(wrong()),
        };
        let base: f64 = if decimal { 1000.0 } else { 1024.0 };
        let bytes = number * base.powi(power);
        // 2^53 bytes are 9 petabytes; up to there a float counts every byte.
        if !(0.0..=9_007_199_254_740_992.0).contains(&bytes) {
            return Err(wrong());
        }
        Ok(Size(bytes as u64))
    }
}

/// `35.1 B`: parameters, as model names count them.
pub(crate) fn count(count: u64) -> String {
    machine::size::scaled(count, ["", " k", " M", " B", " T"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<u64>) {
        assert_eq!(text.parse::<Size>().ok().map(|size| size.0), expect, "{text}");
    }

    #[test]
    fn sizes_are_read() {
        check("0", Some(0));
        check("4096", Some(4096));
        check("64b", Some(64));
        check("16G", Some(16 << 30));
        check("16g", Some(16 << 30));
        check("16 GiB", Some(16 << 30));
        check("16GB", Some(16_000_000_000));
        check("1.5k", Some(1536));
        check("2T", Some(2 << 40));
        for text in ["", "G", "-1G", "16X", "16GG", "1e300", "nan", "inf", "16 G B"] {
            check(text, None);
        }
    }

    #[test]
    fn counts_are_written() {
        assert_eq!(count(35_107_651_456), "35.1 B");
    }
}
