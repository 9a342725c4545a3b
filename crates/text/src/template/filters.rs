//! Filters and tests that differ between minijinja and Jinja2, and how values print.
//!
//! Printing is Python's `str`: `True`, `None`, `1e+16`, `{'a': ['b', 1.0]}`, with Python's choice of
//! quotes. Tests follow Jinja2's definitions, where a string and a dict are sequences too and a boolean
//! is a number.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::json::{DEPTH_LIMIT, float_repr, tojson};
use super::python;

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python_str(value));
    environment.add_filter("trim", trim);
    environment.add_filter("percent_format", python::percent_format);
    environment.add_filter("replace", replace);
    environment.add_filter("items", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        _ => minijinja::filters::items(value),
    });
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.kind() {
            ValueKind::Undefined => Ok(0),
            _ => minijinja::filters::length(value),
        });
    }
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
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
            output.write_str(&python_str(value)?).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(output, state, value),
    });
}

fn trim(value: &Value, characters: Option<&str>) -> Result<String, Error> {
    Ok(python::strip(&python_str(value)?, characters, true, true).to_owned())
}

fn replace(value: &Value, from: &str, to: &str, count: Option<usize>) -> Result<String, Error> {
    let text = python_str(value)?;
    Ok(count.map_or_else(|| text.replace(from, to), |count| text.replacen(from, to, count)))
}

/// Python's `str(value)`.
pub(super) fn python_str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut text = String::new();
            write_repr(value, 0, &mut text)?;
            Ok(text)
        }
    }
}

/// Python's `repr(value)`, except that an undefined value by itself is empty.
fn write_repr(value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
    if depth > DEPTH_LIMIT {
        return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply to print"));
    }
    match value.kind() {
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), text),
        ValueKind::Number if !value.is_integer() => {
            text.push_str(&float_repr(f64::try_from(value.clone())?));
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            text.push(open);
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                write_repr(item, depth + 1, text)?;
            }
            if value.is_tuple() && items.len() == 1 {
                text.push(',');
            }
            text.push(close);
        }
        ValueKind::Map => {
            text.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                write_repr(&key, depth + 1, text)?;
                text.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, text)?;
            }
            text.push('}');
        }
        ValueKind::Undefined if depth > 0 => text.push_str("Undefined"),
        // Writing to a String does not fail.
        _ => {
            let _ = write!(text, "{value}");
        }
    }
    Ok(())
}

/// A string in quotes: double ones only when it holds single ones and no double.
fn write_string(string: &str, text: &mut String) {
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for character in string.chars() {
        let code = u32::from(character);
        let _ = match character {
            '\n' => write!(text, "\\n"),
            '\r' => write!(text, "\\r"),
            '\t' => write!(text, "\\t"),
            '\\' => write!(text, "\\\\"),
            _ if character == quote => write!(text, "\\{quote}"),
            _ if is_printable(character) => write!(text, "{character}"),
            _ if code < 0x100 => write!(text, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(text, "\\u{code:04x}"),
            _ => write!(text, "\\U{code:08x}"),
        };
    }
    text.push(quote);
}

/// Python's `str.isprintable` by the table Rust keeps for `escape_debug`, which leaves a combining
/// mark alone only after another character.
fn is_printable(character: char) -> bool {
    character.is_ascii_graphic()
        || character == ' '
        || !['a', character].iter().collect::<String>().escape_debug().any(|escaped| escaped == '{')
}
