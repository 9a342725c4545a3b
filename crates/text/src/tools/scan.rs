//! Looking for markers in text that is still arriving.
//!
//! A tail that may be the beginning of a marker is not decided on before more text has come, unless there
//! is no more. So what is found depends on the text alone, not on where it was cut.

/// Longest name, key or head that is waited for; what is longer is none.
pub(super) const NAME_LIMIT_BYTES: usize = 256;

/// Where the first of several markers stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// At this byte, the marker of this index.
    Found {
        /// Where it starts.
        at: usize,
        /// Which one.
        marker: usize,
    },
    /// Nowhere so far; up to this byte none can start any more.
    Missing {
        /// Bytes that are certain.
        safe: usize,
    },
}

/// The first marker in `text`, of two at one place the longer one.
pub(super) fn scan(text: &str, markers: &[&str], last: bool) -> Scan {
    let found = markers
        .iter()
        .enumerate()
        .filter_map(|(index, marker)| text.find(marker).map(|at| (at, index)))
        .min_by_key(|&(at, index)| (at, usize::MAX - markers[index].len()));
    let open = if last { text.len() } else { open_tail(text, markers) };
    match found {
        Some((at, marker)) if at < open || open == text.len() => Scan::Found { at, marker },
        _ => Scan::Missing { safe: open },
    }
}

/// Start of the longest tail that is a beginning, but not the whole, of a marker.
fn open_tail(text: &str, markers: &[&str]) -> usize {
    let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
    (text.len().saturating_sub(longest)..text.len())
        .filter(|&start| text.is_char_boundary(start))
        .find(|&start| {
            let tail = &text[start..];
            markers.iter().any(|marker| marker.len() > tail.len() && marker.starts_with(tail))
        })
        .unwrap_or(text.len())
}

/// Which of several texts comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The one of this index, after so many bytes of white space.
    Is {
        /// Which one.
        marker: usize,
        /// Bytes up to its end, the white space included.
        end: usize,
    },
    /// More text decides.
    Open,
    /// None of them.
    Other,
}

/// Looks for one of `markers` at the start of `text`, white space (and what else `skip` accepts) before it aside.
pub(super) fn next(text: &str, markers: &[&str], last: bool, skip: &[char]) -> Next {
    let visible = text.trim_start_matches(|c: char| c.is_whitespace() || skip.contains(&c));
    let start = text.len() - visible.len();
    let best = markers
        .iter()
        .enumerate()
        .filter(|(_, marker)| visible.starts_with(**marker))
        .max_by_key(|(_, marker)| marker.len());
    let longer = |than: usize| {
        !last
            && markers.iter().any(|marker| {
                marker.len() > than && marker.len() > visible.len() && marker.starts_with(visible)
            })
    };
    match best {
        Some((_, marker)) if longer(marker.len()) => Next::Open,
        Some((index, marker)) => Next::Is { marker: index, end: start + marker.len() },
        None if longer(0) => Next::Open,
        None => Next::Other,
    }
}

/// Where a short head, such as a name, ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// At this byte, with the marker of this index.
    Ends {
        /// Bytes of the head.
        at: usize,
        /// Which marker ends it.
        marker: usize,
    },
    /// More text decides.
    Open,
    /// It is too long to be one.
    Endless,
}

/// Looks for the end of a head of at most [`NAME_LIMIT_BYTES`].
pub(super) fn head(text: &str, markers: &[&str]) -> Head {
    match scan(text, markers, false) {
        Scan::Found { at, marker } if at <= NAME_LIMIT_BYTES => Head::Ends { at, marker },
        Scan::Found { .. } => Head::Endless,
        Scan::Missing { safe } if safe > NAME_LIMIT_BYTES => Head::Endless,
        Scan::Missing { .. } => Head::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_inside_another_waits_for_the_longer() {
        let markers = ["</p>", "\n</p>", "<a", "<ab"];
        let check =
            |text: &str, expect: Scan| assert_eq!(scan(text, &markers, false), expect, "{text:?}");
        check("x\n</p>", Scan::Found { at: 1, marker: 1 });
        check("x</p>", Scan::Found { at: 1, marker: 0 });
        check("x\n</", Scan::Missing { safe: 1 });
        check("x<a", Scan::Missing { safe: 1 });
        check("x<ac", Scan::Found { at: 1, marker: 2 });
        check("x<ab", Scan::Found { at: 1, marker: 3 });
        check("xyz", Scan::Missing { safe: 3 });
        assert_eq!(scan("x<a", &markers, true), Scan::Found { at: 1, marker: 2 });
        assert_eq!(scan("x\n<", &markers, true), Scan::Missing { safe: 3 });
    }

    #[test]
    fn what_comes_next() {
        let markers = ["<a>", "<b>"];
        assert_eq!(next(" \n<b>x", &markers, false, &[]), Next::Is { marker: 1, end: 5 });
        assert_eq!(next(" \n<", &markers, false, &[]), Next::Open);
        assert_eq!(next(" ", &markers, false, &[]), Next::Open);
        assert_eq!(next(" ", &markers, true, &[]), Next::Other);
        assert_eq!(next(" x", &markers, false, &[]), Next::Other);
        assert_eq!(next("}}<a>", &markers, false, &['}']), Next::Is { marker: 0, end: 5 });
    }
}
