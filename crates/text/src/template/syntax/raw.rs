//! Text between tags: where it may be written often, or into a value, its length is announced to the meter.
//!
//! The engine has no hook on the writing of text. A tag in the text is one, if it stands where no white space
//! next to it would have been trimmed.

/// Text this short is not announced: the limit of instructions bounds what it adds up to.
const UNANNOUNCED_BYTES: usize = 16;

/// What bounds a text on one side, and what it trims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edge {
    /// Start or end of the source.
    Outside,
    /// `{{` or `}}`.
    Expression,
    /// A block or a comment: it trims a line end after it, and spaces before it at the start of a line.
    Block,
    /// With `-`: all white space.
    Trims,
    /// With `+`: nothing.
    Keeps,
}

impl Edge {
    pub(super) fn at_start(tag: &str) -> Self {
        Self::new(tag, tag.as_bytes().get(2))
    }

    pub(super) fn at_end(tag: &str) -> Self {
        Self::new(tag, tag.len().checked_sub(3).and_then(|at| tag.as_bytes().get(at)))
    }

    fn new(tag: &str, control: Option<&u8>) -> Self {
        match control {
            Some(b'-') => Self::Trims,
            Some(b'+') => Self::Keeps,
            _ if tag.starts_with("{{") => Self::Expression,
            _ => Self::Block,
        }
    }
}

/// Writes a text, with its announcement where it needs one.
pub(super) fn write(text: &str, often: bool, before: Edge, after: Edge, output: &mut String) {
    let place = (often && text.len() > UNANNOUNCED_BYTES).then(|| place(text, before, after));
    match place.flatten() {
        Some(place) => {
            output.push_str(&text[..place]);
            announce(text.len(), output);
            output.push_str(&text[place..]);
        }
        None => output.push_str(text),
    }
}

fn announce(bytes: usize, output: &mut String) {
    output.push_str("{{");
    output.push_str(&bytes.to_string());
    output.push_str("|metered_text}}");
}

/// Where a tag changes nothing of a text; `None` where nothing of the text is written.
fn place(text: &str, before: Edge, after: Edge) -> Option<usize> {
    if let Some(place) = text.find(|character: char| !character.is_whitespace()) {
        return Some(place);
    }
    if before == Edge::Trims || after == Edge::Trims {
        return None;
    }
    let first = text.chars().next()?;
    let starts_line = first == '\n' || before == Edge::Outside;
    // What comes before the last line end is not trimmed from behind, but its first character may be from ahead.
    if let Some(place) = text.rfind('\n').filter(|&place| place > 0) {
        return Some(place);
    }
    if after == Edge::Block && starts_line { None } else { Some(first.len_utf8()) }
}

/// Writes a raw block, whose opening tag has `tag` bytes. `false` if it cannot be announced.
pub(super) fn write_block(block: &str, tag: usize, often: bool, output: &mut String) -> bool {
    if !often || block.len() <= tag + UNANNOUNCED_BYTES {
        output.push_str(block);
        return true;
    }
    let Some(place) = block[tag..].find(|character: char| !character.is_whitespace()) else {
        return false;
    };
    let place = tag + place;
    // The first thing that is not white space is the closing tag.
    if block[place..].starts_with("{%") && block[place..].matches("{%").count() == 1 {
        output.push_str(block);
        return block.len() <= tag + 4 * UNANNOUNCED_BYTES;
    }
    output.push_str(&block[..place]);
    output.push_str("{%+ endraw +%}");
    announce(block.len(), output);
    output.push_str("{%+ raw +%}");
    output.push_str(&block[place..]);
    true
}
