//! Filters and tests that differ between minijinja and Jinja2, and how values print.
//!
//! Printing is Python's `str`: `True`, `None`, `1e+16`, `{'a': ['b', 1.0]}`, with Python's choice of
//! quotes. Tests follow Jinja2's definitions, where a string and a dict are sequences too and a boolean
//! is a number.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::json::{DEPTH_LIMIT, float_repr, tojson};
use super::meter::{self, Text};
use super::{containers, formatting, python};

/// Bytes that escaping makes of one, for HTML and JSON.
const ESCAPE_FACTOR: usize = 6;

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => shown(value)?.into_value(),
    });
    environment.add_filter("trim", trim);
    environment.add_filter("percent_format", formatting::percent_format);
    environment.add_filter("replace", replace);
    environment.add_filter("items", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        _ => containers::view(value, minijinja::filters::items(value)?),
    });
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.as_str() {
            Some(text) => meter::work(text.len()).map(|()| text.chars().count()),
            None if value.is_undefined() => Ok(0),
            None => minijinja::filters::length(value),
        });
    }
    environment.add_function("joiner", |separator: Option<Value>| match separator {
        Some(separator) if separator.as_object().is_some() => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("joiner takes a string, not {}", separator.kind()),
        )),
        separator => Ok(minijinja_contrib::globals::joiner(separator)),
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), String | Seq | Map | Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
    });
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.set_formatter(|output, state, value| match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            let text = python_str(value)?;
            meter::write(text.len())?;
            output.write_str(&text).map_err(Error::from)
        }
        _ => {
            let escapes = !matches!(state.auto_escape(), minijinja::AutoEscape::None);
            let bytes = value.as_str().map_or(0, str::len);
            meter::write(if escapes { bytes.saturating_mul(ESCAPE_FACTOR) } else { bytes })?;
            minijinja::escape_formatter(output, state, value)
        }
    });
}

fn trim(value: &Value, characters: Option<&str>) -> Result<Value, Error> {
    let text = python_text(value)?;
    let trimmed = python::strip(&text, characters, true, true);
    meter::value(trimmed.len())?;
    meter::text(trimmed.to_owned())
}

fn replace(value: &Value, from: &str, to: &str, count: Option<usize>) -> Result<Value, Error> {
    python::replace(&python_text(value)?, from, to, count)
}

/// Python's `str(value)`.
pub(super) fn python_str(value: &Value) -> Result<String, Error> {
    Ok(python_text(value)?.into_owned())
}

/// The same, without a copy of a string.
fn python_text(value: &Value) -> Result<Cow<'_, str>, Error> {
    Ok(match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(shown(value)?.into_string()),
    })
}

fn shown(value: &Value) -> Result<Text, Error> {
    let mut text = Text::new();
    write_repr(value, 0, &mut text)?;
    Ok(text)
}

/// A value as the engine joins it to text: containers as Python prints them, a float with all its digits.
pub(super) fn write_shown(value: &Value, text: &mut Text) -> Result<(), Error> {
    match value.as_str() {
        Some(string) => text.push_str(string),
        None if value.as_object().is_some() => write_repr(value, 0, text),
        None => write!(text, "{value}").map_err(|_| meter::too_large()),
    }
}

/// Python's `repr(value)`, except that an undefined value by itself is empty.
fn write_repr(value: &Value, depth: usize, text: &mut Text) -> Result<(), Error> {
    if depth > DEPTH_LIMIT {
        return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply to print"));
    }
    match value.kind() {
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), text)?,
        ValueKind::Number if !value.is_integer() => {
            text.push_str(&float_repr(f64::try_from(value.clone())?))?;
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            text.push(open)?;
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                if count > 0 {
                    text.push_str(", ")?;
                }
                write_repr(&item?, depth + 1, text)?;
                count += 1;
            }
            if value.is_tuple() && count == 1 {
                text.push(',')?;
            }
            text.push(close)?;
        }
        ValueKind::Map => {
            text.push('{')?;
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    text.push_str(", ")?;
                }
                write_repr(&key, depth + 1, text)?;
                text.push_str(": ")?;
                write_repr(&value.get_item(&key)?, depth + 1, text)?;
            }
            text.push('}')?;
        }
        ValueKind::Undefined if depth > 0 => text.push_str("Undefined")?,
        _ => write!(text, "{value}").map_err(|_| meter::too_large())?,
    }
    Ok(())
}

/// A string in quotes: double ones only when it holds single ones and no double.
fn write_string(string: &str, text: &mut Text) -> Result<(), Error> {
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.push(quote)?;
    for character in string.chars() {
        let code = u32::from(character);
        match character {
            '\n' => text.push_str("\\n")?,
            '\r' => text.push_str("\\r")?,
            '\t' => text.push_str("\\t")?,
            '\\' => text.push_str("\\\\")?,
            _ if character == quote => text.push_str(&format!("\\{quote}"))?,
            _ if is_printable(character) => text.push(character)?,
            _ if code < 0x100 => text.push_str(&format!("\\x{code:02x}"))?,
            _ if code < 0x1_0000 => text.push_str(&format!("\\u{code:04x}"))?,
            _ => text.push_str(&format!("\\U{code:08x}"))?,
        }
    }
    text.push(quote)
}

/// Python's `str.isprintable` by the table Rust keeps for `escape_debug`, which leaves a combining
/// mark alone only after another character.
fn is_printable(character: char) -> bool {
    character.is_ascii_graphic()
        || character == ' '
        || !['a', character].iter().collect::<String>().escape_debug().any(|escaped| escaped == '{')
}
