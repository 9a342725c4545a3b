//! What one render may make: text, values, and work. A template cannot use more than the context holds.
//!
//! A render has a thread of its own, and the meter is that thread's. Four things are limited:
//! - one value: a string, or the places of a list (`value_bytes`); a list with all that is in it, twice that;
//! - what is written, to the output and into captures together: twice that;
//! - the values that are alive at one time: twice that. Strings and lists are counted until nothing else holds
//!   them, which their reference counts show;
//! - work, in bytes read or made by operators, filters and methods: a multiple that grows with the messages.
//!
//! So a render holds at most 8 × `value_bytes`: half of it for captures, which grow by doubling and are copied
//! once, and the rest for values and the output. The conversation itself comes on top.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex};

use minijinja::{Error, ErrorKind, Value};

use crate::Error as TextError;

/// Bytes that any template may make, and a share for each token of the context. Tokens have 4 bytes of text; a run
/// of spaces may have 16 to 128.
const VALUE_BASE_BYTES: usize = 512 << 10;
const VALUE_BYTES_PER_TOKEN: usize = 32;
/// A conversation that is longer than the context must still be rendered, to be refused by its tokens: text has up to
/// two bytes for one as JSON, unless it is of control characters.
const VALUE_BYTES_PER_INPUT_BYTE: usize = 2;
/// What a render holds at most, in values: see the head.
const VALUES_HELD: usize = 8;
/// Work, as a multiple of `value_bytes`, and a share for each message and tool.
const WORK_BASE: usize = 64;
/// Values this short are not worth the counting: the limit of instructions bounds what they add up to.
const SMALL_BYTES: usize = 32;
/// Dead values are looked for when this much was made since.
const SWEEP_BYTES: usize = 128 << 10;

/// What a limit is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    Instructions,
    Output,
    Value,
    Alive,
    Work,
    Depth,
    Arguments,
    Source,
    BlockTokens,
}

/// A limit that a template went past, carried through the engine's own error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) measure: Measure,
    pub(super) most: usize,
}

impl Limit {
    pub(super) fn error(self, template: &str, line: Option<usize>) -> TextError {
        TextError::TemplateLimit { template: template.to_owned(), line, limit: self.to_string() }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most;
        let megabytes = most as f64 / 1e6;
        match self.measure {
            Measure::Instructions => write!(f, "takes more than {most} instructions"),
            Measure::Output => write!(f, "writes more than {megabytes:.1} MB of text"),
            Measure::Value => write!(f, "makes a value of more than {megabytes:.1} MB"),
            Measure::Alive => write!(f, "keeps more than {megabytes:.1} MB of values"),
            Measure::Work => write!(f, "reads and makes more than {megabytes:.1} MB of values"),
            Measure::Depth => write!(f, "nests values more than {most} deep"),
            Measure::Arguments => write!(f, "spreads more than {most} arguments"),
            Measure::Source => write!(f, "has more than {most} bytes"),
            Measure::BlockTokens => write!(f, "has a block of more than {most} words and signs"),
        }
    }
}

impl std::error::Error for Limit {}

impl From<Limit> for Error {
    fn from(limit: Limit) -> Self {
        Self::new(ErrorKind::InvalidOperation, "a limit of templates").with_source(limit)
    }
}

/// The items of lists that `containers` makes.
pub(super) type Items = Arc<Mutex<Vec<Value>>>;

/// Something that is counted until only the meter holds it.
enum Held {
    Text(Arc<str>),
    Items(Items),
    /// A map, by its own reference count and the bytes it was made with.
    Map(Arc<super::containers::Dict>, usize),
}

impl Held {
    fn is_dead(&self) -> bool {
        match self {
            Self::Text(text) => Arc::strong_count(text) == 1,
            Self::Items(items) => Arc::strong_count(items) == 1,
            Self::Map(map, _) => Arc::strong_count(map) == 1,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Items(items) => {
                items.lock().map_or(0, |items| items.capacity()) * VALUE_SLOT_BYTES
            }
            Self::Map(_, bytes) => *bytes,
        }
    }
}

/// Bytes of a value in a list.
pub(super) const VALUE_SLOT_BYTES: usize = size_of::<Value>();

/// The limits of one render, and what it has taken of them.
pub(super) struct Meter {
    value_bytes: usize,
    work_left: usize,
    work_bytes: usize,
    written: usize,
    held: Vec<Held>,
    held_bytes: usize,
    sweep_at: usize,
}

/// The most bytes of one value, for a context of so many tokens and an input of so many bytes.
fn most_value_bytes(context_tokens: usize, input_bytes: usize) -> usize {
    let of_context = context_tokens.saturating_mul(VALUE_BYTES_PER_TOKEN);
    let of_input = input_bytes.saturating_mul(VALUE_BYTES_PER_INPUT_BYTE);
    VALUE_BASE_BYTES.saturating_add(of_context).max(of_input)
}

/// The most that a render makes and holds at one time, in addition to its input.
pub(super) fn most_held_bytes(context_tokens: usize, input_bytes: usize) -> usize {
    most_value_bytes(context_tokens, input_bytes).saturating_mul(VALUES_HELD)
}

thread_local! {
    static METER: RefCell<Meter> = RefCell::new(Meter::new(0, 0, 0));
}

impl Meter {
    /// The limits for a context of so many tokens and an input of so many bytes and messages.
    pub(super) fn new(context_tokens: usize, input_bytes: usize, inputs: usize) -> Self {
        let value_bytes = most_value_bytes(context_tokens, input_bytes);
        let work_bytes = value_bytes.saturating_mul(WORK_BASE.saturating_add(inputs));
        Self {
            value_bytes,
            work_left: work_bytes,
            work_bytes,
            written: 0,
            held: Vec::new(),
            held_bytes: 0,
            sweep_at: SWEEP_BYTES,
        }
    }

    /// The most bytes that may be written.
    pub(super) fn written_most(&self) -> usize {
        self.value_bytes.saturating_mul(2)
    }

    /// Makes this the thread's meter.
    pub(super) fn install(self) {
        METER.set(self);
    }

    fn work(&mut self, bytes: usize) -> Result<(), Limit> {
        match self.work_left.checked_sub(bytes) {
            Some(left) => {
                self.work_left = left;
                Ok(())
            }
            None => Err(Limit { measure: Measure::Work, most: self.work_bytes }),
        }
    }

    fn value(&mut self, bytes: usize) -> Result<(), Limit> {
        if bytes > self.value_bytes {
            return Err(Limit { measure: Measure::Value, most: self.value_bytes });
        }
        let most = self.value_bytes.saturating_mul(2);
        if self.held_bytes + bytes > most {
            self.sweep()?;
            if self.held_bytes + bytes > most {
                return Err(Limit { measure: Measure::Alive, most });
            }
        }
        self.work(bytes)
    }

    fn hold(&mut self, held: Held) -> Result<(), Limit> {
        self.held_bytes += held.bytes();
        self.held.push(held);
        if self.held_bytes > self.sweep_at { self.sweep() } else { Ok(()) }
    }

    /// Forgets what only the meter holds. Lists come after what is in them, so the newest are looked at first.
    fn sweep(&mut self) -> Result<(), Limit> {
        self.work(self.held.len() * size_of::<Held>())?;
        let mut bytes = 0;
        let mut kept = Vec::new();
        while let Some(held) = self.held.pop() {
            if !held.is_dead() {
                bytes += held.bytes();
                kept.push(held);
            }
        }
        kept.reverse();
        self.held = kept;
        self.held_bytes = bytes;
        self.sweep_at = 2 * bytes + SWEEP_BYTES;
        Ok(())
    }
}

fn with<T>(f: impl FnOnce(&mut Meter) -> Result<T, Limit>) -> Result<T, Error> {
    METER.with_borrow_mut(f).map_err(Error::from)
}

/// The most bytes of one value.
pub(super) fn value_bytes() -> usize {
    METER.with_borrow(|meter| meter.value_bytes)
}

/// The most bytes that walking one value touches: parts that it shares with others count as often as they are in it.
pub(super) fn walked_bytes() -> usize {
    value_bytes().saturating_mul(2)
}

/// The limit on one value, as an error.
pub(super) fn too_large() -> Error {
    Limit { measure: Measure::Value, most: value_bytes() }.into()
}

/// Requests to read or make so many bytes.
pub(super) fn work(bytes: usize) -> Result<(), Error> {
    with(|meter| meter.work(bytes))
}

/// Requests to make a value of so many bytes. To be called before it is made.
pub(super) fn value(bytes: usize) -> Result<(), Error> {
    if bytes <= SMALL_BYTES {
        return Ok(());
    }
    with(|meter| meter.value(bytes))
}

/// Counts text that is written, to the output or into a capture.
pub(super) fn write(bytes: usize) -> Result<(), Error> {
    with(|meter| {
        let most = meter.written_most();
        meter.written = meter.written.saturating_add(bytes);
        if meter.written > most {
            return Err(Limit { measure: Measure::Output, most });
        }
        Ok(())
    })
}

/// A string that was metered, as a value that is counted while it lives.
pub(super) fn text(text: String) -> Result<Value, Error> {
    if text.len() <= SMALL_BYTES {
        return Ok(Value::from(text));
    }
    let text: Arc<str> = text.into();
    with(|meter| meter.hold(Held::Text(text.clone())))?;
    Ok(Value::from(text))
}

/// Counts a string of the engine's making, unless something else holds it: then it was counted before, or is the
/// conversation's.
pub(super) fn hold_text(value: &Value) -> Result<(), Error> {
    if value.as_str().is_none_or(|text| text.len() <= SMALL_BYTES) {
        return Ok(());
    }
    match value.to_str() {
        // The value's own reference, and this one.
        Some(text) if Arc::strong_count(&text) == 2 => with(|meter| {
            meter.value(text.len())?;
            meter.hold(Held::Text(text))
        }),
        _ => Ok(()),
    }
}

/// Counts the items of a list.
pub(super) fn hold_items(items: &Items) -> Result<(), Error> {
    with(|meter| meter.hold(Held::Items(items.clone())))
}

/// Counts items that were appended to a list that is counted already.
pub(super) fn grow_items(bytes: usize) {
    METER.with_borrow_mut(|meter| meter.held_bytes += bytes);
}

/// Counts a map.
pub(super) fn hold_map(map: &Arc<super::containers::Dict>, bytes: usize) -> Result<(), Error> {
    with(|meter| meter.hold(Held::Map(map.clone(), bytes)))
}

/// A text that is refused once it is longer than a value may be.
#[derive(Debug)]
pub(super) struct Text {
    text: String,
    most: usize,
}

impl Text {
    pub(super) fn new() -> Self {
        Self { text: String::new(), most: value_bytes() }
    }

    pub(super) fn with_capacity(bytes: usize) -> Self {
        let most = value_bytes();
        Self { text: String::with_capacity(bytes.min(most)), most }
    }

    pub(super) fn push_str(&mut self, text: &str) -> Result<(), Error> {
        if text.len() > self.most - self.text.len() {
            return Err(Limit { measure: Measure::Value, most: self.most }.into());
        }
        self.text.push_str(text);
        Ok(())
    }

    pub(super) fn push(&mut self, character: char) -> Result<(), Error> {
        self.push_str(character.encode_utf8(&mut [0; 4]))
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }

    /// The text as a value that is counted while it lives.
    pub(super) fn into_value(self) -> Result<Value, Error> {
        value(self.text.len())?;
        text(self.text)
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push_str(text).map_err(|_| fmt::Error)
    }
}
