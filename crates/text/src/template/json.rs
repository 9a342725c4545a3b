//! `tojson` as Python's `json.dumps`: spaced separators, insertion order, Python's floats, nothing
//! escaped for HTML. The arguments are those of the transformers library, in its order:
//! `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::containers;
use super::filters::python_str;
use super::meter::Text;

/// Deeper values are refused, as Python's recursion limit does; serde_json stops at 128.
pub(super) const DEPTH_LIMIT: usize = 500;
const INDENT_LIMIT: i64 = 64;

/// The filter.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine passes arguments of filters by value"
)]
pub(super) fn tojson(
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let mut positional = positional.0.into_iter();
    let mut argument = |name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = named.get(name)?;
        Ok(positional.next().or(named).filter(|value| !value.is_none()))
    };
    let ensure_ascii = argument("ensure_ascii")?;
    let indent = argument("indent")?;
    let separators = argument("separators")?;
    let sort_keys = argument("sort_keys")?;
    named.assert_all_used()?;

    let indent = match indent {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(i64::try_from(indent)?.clamp(0, INDENT_LIMIT) as usize),
        }),
    };
    let (item_separator, key_separator) = match separators {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => match containers::items(&pair)?.as_slice() {
            [item, key] => (python_str(item)?, python_str(key)?),
            _ => return Err(invalid("separators must be a pair")),
        },
    };
    let mut writer = Writer {
        ensure_ascii: ensure_ascii.is_some_and(|flag| flag.is_true()),
        sort_keys: sort_keys.is_some_and(|flag| flag.is_true()),
        indent,
        item_separator,
        key_separator,
        text: Text::new(),
    };
    writer.value(value, 0)?;
    writer.text.into_value()
}

struct Writer {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    text: Text,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_LIMIT {
            return Err(invalid("value is nested too deeply for tojson"));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[')?;
                let mut empty = true;
                for (index, item) in value.try_iter()?.checked().enumerate() {
                    self.separate(index, depth)?;
                    self.value(&item?, depth + 1)?;
                    empty = false;
                }
                self.close(']', empty, depth)
            }
            ValueKind::Map => {
                let mut keys = containers::items(value)?;
                if self.sort_keys {
                    for key in &keys {
                        containers::key_size(key)?;
                    }
                    keys.sort();
                }
                self.text.push('{')?;
                for (index, key) in keys.iter().enumerate() {
                    self.separate(index, depth)?;
                    self.key(key)?;
                    self.text.push_str(&self.key_separator)?;
                    self.value(&value.get_item(key)?, depth + 1)?;
                }
                self.close('}', keys.is_empty(), depth)
            }
            other => Err(invalid(format!("a value of type {other} is not JSON"))),
        }
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            return self.text.push_str(&value.to_string());
        }
        let number = f64::try_from(value.clone())?;
        self.text.push_str(&match number {
            _ if number.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "Infinity".to_owned(),
            f64::NEG_INFINITY => "-Infinity".to_owned(),
            _ => float_repr(number),
        })
    }

    /// Python turns keys that are not strings into strings.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.text.push('"')?;
                self.value(key, 0)?;
                self.text.push('"')
            }
            other => Err(invalid(format!("a key of type {other} is not JSON"))),
        }
    }

    fn separate(&mut self, index: usize, depth: usize) -> Result<(), Error> {
        if index > 0 {
            self.text.push_str(&self.item_separator)?;
        }
        self.line_break(depth + 1)
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) -> Result<(), Error> {
        if !empty {
            self.line_break(depth)?;
        }
        self.text.push(bracket)
    }

    fn line_break(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            self.text.push('\n')?;
            for _ in 0..depth {
                self.text.push_str(indent)?;
            }
        }
        Ok(())
    }

    fn string(&mut self, string: &str) -> Result<(), Error> {
        self.text.push('"')?;
        let mut written = 0;
        for (at, character) in string.char_indices() {
            let escape = match character {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                '\0'..='\u{1f}' => "",
                // With ensure_ascii, everything outside the printable ASCII characters.
                '\u{7f}'.. if self.ensure_ascii => "",
                _ => continue,
            };
            self.text.push_str(&string[written..at])?;
            if escape.is_empty() {
                self.escape(character)?;
            } else {
                self.text.push_str(escape)?;
            }
            written = at + character.len_utf8();
        }
        self.text.push_str(&string[written..])?;
        self.text.push('"')
    }

    fn escape(&mut self, character: char) -> Result<(), Error> {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.text.push_str(&format!("\\u{unit:04x}"))?;
        }
        Ok(())
    }
}

/// A finite float as Python's `repr` writes it: the shortest digits that read back the same, with an
/// exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // Rust's `{:e}` has the same shortest digits: "-1.2345e-7".
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

fn invalid(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

#[cfg(test)]
mod tests {
    use super::float_repr;

    #[track_caller]
    fn check(number: f64, expect: &str) {
        assert_eq!(float_repr(number), expect);
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        check(1.0, "1.0");
        check(-0.0, "-0.0");
        check(0.1 + 0.2, "0.30000000000000004");
        check(1e15, "1000000000000000.0");
        check(1e16, "1e+16");
        check(123_456_789_012_345_680.0, "1.2345678901234568e+17");
        check(0.0001, "0.0001");
        check(0.00001, "1e-05");
        check(-1.5e-7, "-1.5e-07");
        check(1.797_693_134_862_315_7e308, "1.7976931348623157e+308");
        check(5e-324, "5e-324");
        check(f64::NAN, "nan");
        check(f64::NEG_INFINITY, "-inf");
    }
}
