//! Methods of Python's str, list and dict that templates call.
//!
//! Strings are sequences of characters, never of bytes. Methods that change a list or a dict
//! (`append`, `update`, `pop`) are missing on purpose: transformers renders in Jinja2's immutable
//! sandbox, where they fail too. What is not here goes to minijinja-contrib's `pycompat`.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::meter::VALUE_SLOT_BYTES;
use super::operators::compared;
use super::{containers, formatting, meter};

/// What `syntax` turns slices with a step into.
const SLICE_METHOD: &str = "python_slice";

type MethodResult = Result<Value, Error>;

/// The engine's callback for methods it does not know itself.
pub(super) fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> MethodResult {
    if method == SLICE_METHOD {
        return slice(value, &Arguments::new(arguments, &["start", "stop", "step"])?);
    }
    let known = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, arguments)?,
        ValueKind::Seq | ValueKind::Iterable => list_method(value, method, arguments)?,
        ValueKind::Map => dict_method(value, method, arguments)?,
        _ => None,
    };
    let result = match known {
        Some(result) => result,
        None => {
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)?
        }
    };
    match value.kind() {
        ValueKind::Map if ["items", "keys", "values"].contains(&method) => {
            containers::view(value, result)
        }
        // What a dict or a list holds is counted already.
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable => Ok(result),
        _ => containers::admit(result),
    }
}

/// Bytes that a change of case makes of one, at most: `ΐ` has two and becomes six.
const CASE_FACTOR: usize = 3;

/// Reserves a list of so many pieces of a text.
fn ask_pieces(text: &str, count: usize) -> Result<(), Error> {
    // A piece that is too long to lie in the value itself has a head of two words.
    let piece_bytes = VALUE_SLOT_BYTES + 2 * size_of::<usize>();
    meter::value(text.len().saturating_add(count.saturating_mul(piece_bytes)))
}

/// Arguments of a call, given by position or by name.
pub(super) struct Arguments {
    values: Vec<Option<Value>>,
}

impl Arguments {
    pub(super) fn new(arguments: &[Value], names: &[&'static str]) -> Result<Self, Error> {
        let (positional, named) = match arguments.split_last() {
            Some((last, rest)) if last.is_kwargs() => (rest, Some(Kwargs::try_from(last.clone())?)),
            _ => (arguments, None),
        };
        if positional.len() > names.len() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let mut values: Vec<Option<Value>> = positional.iter().cloned().map(Some).collect();
        values.resize(names.len(), None);
        if let Some(named) = named {
            for name in named.args() {
                let at = names.iter().position(|known| *known == name).ok_or_else(|| {
                    Error::new(ErrorKind::TooManyArguments, format!("unknown argument {name}"))
                })?;
                if values[at].is_some() {
                    return Err(invalid(format!("argument {name} is given twice")));
                }
                values[at] = Some(named.peek(name)?);
            }
        }
        Ok(Self { values })
    }

    /// An argument that was given and is not `none`.
    pub(super) fn present(&self, index: usize) -> Option<&Value> {
        self.values[index].as_ref().filter(|value| !value.is_none())
    }

    fn required(&self, index: usize) -> Result<&Value, Error> {
        self.values[index].as_ref().ok_or_else(|| Error::from(ErrorKind::MissingArgument))
    }

    fn text(&self, index: usize) -> Result<&str, Error> {
        string_of(self.required(index)?)
    }

    fn optional_text(&self, index: usize) -> Result<Option<&str>, Error> {
        self.present(index).map(string_of).transpose()
    }

    fn integer(&self, index: usize) -> Result<Option<i64>, Error> {
        self.present(index).map(|value| i64::try_from(value.clone())).transpose()
    }
}

fn string_of(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| invalid(format!("must be a string, not {}", value.kind())))
}

fn invalid(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Python's `str.isspace`: Rust's white space and the four ASCII separators.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn string_method(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let takes = |names: &[&'static str]| Arguments::new(arguments, names);
    meter::work(text.len())?;
    let value = match method {
        "strip" | "lstrip" | "rstrip" => {
            let given = takes(&["chars"])?;
            let characters = given.optional_text(0)?;
            Value::from(strip(text, characters, method != "rstrip", method != "lstrip"))
        }
        "removeprefix" => {
            let given = takes(&["prefix"])?;
            Value::from(text.strip_prefix(given.text(0)?).unwrap_or(text))
        }
        "removesuffix" => {
            let given = takes(&["suffix"])?;
            Value::from(text.strip_suffix(given.text(0)?).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let given = takes(&["sep"])?;
            let separator = non_empty(given.text(0)?)?;
            let from_end = method == "rpartition";
            let cut =
                if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
            let parts = match cut {
                Some((before, after)) => [before, separator, after],
                None if from_end => ["", "", text],
                None => [text, "", ""],
            };
            Value::from(Tuple::from(parts.map(Value::from).to_vec()))
        }
        "split" | "rsplit" => {
            let given = takes(&["sep", "maxsplit"])?;
            let limit = given.integer(1)?.and_then(|limit| usize::try_from(limit).ok());
            let limit = limit.unwrap_or(usize::MAX);
            let pieces = match given.optional_text(0)? {
                Some(separator) => 1 + text.matches(non_empty(separator)?).take(limit).count(),
                None => 1 + text.split(is_space).filter(|piece| !piece.is_empty()).count(),
            };
            ask_pieces(text, pieces)?;
            strings(match (given.optional_text(0)?, method) {
                (Some(separator), "split") => {
                    text.splitn(limit.saturating_add(1), non_empty(separator)?).collect()
                }
                (Some(separator), _) => {
                    let pieces = text.rsplitn(limit.saturating_add(1), non_empty(separator)?);
                    reversed(pieces.collect())
                }
                (None, "split") => split_space(text, limit),
                (None, _) => rsplit_space(text, limit),
            })
        }
        "splitlines" => {
            let given = takes(&["keepends"])?;
            ask_pieces(text, 1 + text.matches(is_line_end).count())?;
            strings(split_lines(text, given.present(0).is_some_and(Value::is_true)))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let given = takes(&["sub", "start", "end"])?;
            let needle = given.text(0)?;
            let (window, start) = window(text, given.integer(1)?, given.integer(2)?);
            if method == "count" {
                return Ok(Some(Value::from(window.matches(needle).count())));
            }
            let found =
                if method.starts_with('r') { window.rfind(needle) } else { window.find(needle) };
            match found {
                Some(byte) => Value::from(start + window[..byte].chars().count()),
                None if method.ends_with("index") => return Err(invalid("substring not found")),
                None => Value::from(-1),
            }
        }
        "startswith" | "endswith" => {
            let given = takes(&["prefix", "start", "end"])?;
            let (window, _) = window(text, given.integer(1)?, given.integer(2)?);
            let test = |affix: &str| {
                if method == "startswith" {
                    window.starts_with(affix)
                } else {
                    window.ends_with(affix)
                }
            };
            let affix = given.required(0)?;
            match affix.as_str() {
                Some(affix) => Value::from(test(affix)),
                None if affix.is_tuple() => {
                    let affixes: Vec<Value> = affix.try_iter()?.collect();
                    let mut any = false;
                    for affix in &affixes {
                        any |= test(string_of(affix)?);
                    }
                    Value::from(any)
                }
                None => return Err(invalid("must be a string or a tuple of strings")),
            }
        }
        "replace" => {
            let given = takes(&["old", "new", "count"])?;
            let (old, new) = (given.text(0)?, given.text(1)?);
            let count = given.integer(2)?.and_then(|count| usize::try_from(count).ok());
            return replace(text, old, new, count).map(Some);
        }
        "join" => {
            let given = takes(&["iterable"])?;
            let mut joined = meter::Text::new();
            for (index, item) in given.required(0)?.try_iter()?.checked().enumerate() {
                if index > 0 {
                    joined.push_str(text)?;
                }
                joined.push_str(string_of(&item?)?)?;
            }
            return joined.into_value().map(Some);
        }
        "title" | "casefold" | "swapcase" | "upper" | "lower" | "capitalize" => {
            takes(&[])?;
            meter::value(text.len().saturating_mul(CASE_FACTOR))?;
            Value::from(match method {
                "title" => title(text),
                "casefold" | "lower" => text.to_lowercase(),
                "swapcase" => text.chars().map(swap_case).collect(),
                "upper" => text.to_uppercase(),
                _ => capitalize(text),
            })
        }
        "format" => return formatting::format(FormatStyle::StrFormat, text, arguments).map(Some),
        "center" | "ljust" | "rjust" | "zfill" => {
            let given = takes(&["width", "fillchar"])?;
            let width = given.integer(0)?.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
            let fill = given.optional_text(1)?.and_then(|fill| fill.chars().next()).unwrap_or(' ');
            Value::from(pad(text, width, fill, method)?)
        }
        "isdecimal" => {
            Value::from(!text.is_empty() && text.chars().all(|character| character.is_numeric()))
        }
        "isspace" => Value::from(!text.is_empty() && text.chars().all(is_space)),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn list_method(list: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" | "count" => {
            let given = Arguments::new(arguments, &["value"])?;
            let wanted = given.required(0)?;
            compared(list)?;
            compared(wanted)?;
            if method == "count" {
                let mut count = 0;
                for item in list.try_iter()?.checked() {
                    count += usize::from(item? == *wanted);
                }
                return Ok(Some(Value::from(count)));
            }
            for (index, item) in list.try_iter()?.checked().enumerate() {
                if item? == *wanted {
                    return Ok(Some(Value::from(index)));
                }
            }
            Err(invalid("value is not in the list"))
        }
        "copy" => Ok(Some(list.clone())),
        _ => Ok(None),
    }
}

fn dict_method(dict: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "get" => {
            let given = Arguments::new(arguments, &["key", "default"])?;
            let key = given.values[0].as_ref();
            key.map_or(Ok(()), containers::key_size)?;
            let found = dict.as_object().zip(key).and_then(|(dict, key)| dict.get_value(key));
            let default = || given.present(1).cloned().unwrap_or_else(|| Value::from(()));
            Ok(Some(found.unwrap_or_else(default)))
        }
        "copy" => Ok(Some(dict.clone())),
        _ => Ok(None),
    }
}

/// `value[start:stop:step]` by Python's rules.
fn slice(value: &Value, bounds: &Arguments) -> MethodResult {
    let step = bounds.integer(2)?.unwrap_or(1);
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    if value.is_undefined() || value.is_none() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    let count = match (value.as_str(), value.kind()) {
        (Some(text), _) => text.chars().count(),
        (None, ValueKind::Seq | ValueKind::Iterable) => {
            value.len().map_or_else(|| Ok(containers::items(value)?.len()), Ok::<_, Error>)?
        }
        (None, other) => {
            return Err(invalid(format!("a value of type {other} cannot be sliced")));
        }
    };
    let count = count as i64;
    // Walking down, "before the first" is a place to stop at.
    let (lowest, highest) = if step > 0 { (0, count) } else { (-1, count - 1) };
    let clamp = |bound: i64| {
        (if bound < 0 { bound.saturating_add(count) } else { bound }).clamp(lowest, highest)
    };
    let first = if step > 0 { lowest } else { highest };
    let last = if step > 0 { highest } else { lowest };
    let start = bounds.integer(0)?.map_or(first, clamp);
    let stop = bounds.integer(1)?.map_or(last, clamp);
    if step == 1 {
        let (start, stop) = (start as usize, stop.max(start) as usize);
        if let Some(text) = value.as_str() {
            let byte_of = |nth: usize| text.char_indices().nth(nth).map_or(text.len(), |at| at.0);
            let text = &text[byte_of(start)..byte_of(stop)];
            meter::value(text.len())?;
            return meter::text(text.to_owned());
        }
        if let Some(part) = containers::part(value, start, stop)? {
            return Ok(part);
        }
    }
    let indices = std::iter::successors(Some(start), |at| at.checked_add(step))
        .take_while(|&at| if step > 0 { at < stop } else { at > stop })
        .filter_map(|at| usize::try_from(at).ok());
    if let Some(text) = value.as_str() {
        meter::value(text.len().saturating_mul(size_of::<char>()))?;
        let characters: Vec<char> = text.chars().collect();
        return meter::text(indices.filter_map(|at| characters.get(at)).collect());
    }
    let items = containers::items(value)?;
    let picked = indices.filter_map(|at| items.get(at).cloned()).collect();
    if value.is_tuple() { containers::tuple(picked) } else { containers::list(picked) }
}

/// `text` with `old` replaced by `new`, at most `count` times.
pub(super) fn replace(text: &str, old: &str, new: &str, count: Option<usize>) -> MethodResult {
    let count = text.matches(old).take(count.unwrap_or(usize::MAX)).count();
    meter::value(text.len().saturating_add(count.saturating_mul(new.len())))?;
    meter::text(text.replacen(old, new, count))
}

fn strings(pieces: Vec<&str>) -> Value {
    pieces.into_iter().map(Value::from).collect()
}

fn reversed(mut pieces: Vec<&str>) -> Vec<&str> {
    pieces.reverse();
    pieces
}

fn non_empty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() { Err(invalid("empty separator")) } else { Ok(separator) }
}

/// `text` without leading or trailing characters of a set, white space if none is given.
pub(super) fn strip<'text>(
    text: &'text str,
    characters: Option<&str>,
    start: bool,
    end: bool,
) -> &'text str {
    let strips = |character: char| match characters {
        Some(set) => set.contains(character),
        None => is_space(character),
    };
    let text = if start { text.trim_start_matches(strips) } else { text };
    if end { text.trim_end_matches(strips) } else { text }
}

/// Splits at runs of white space at most `limit` times; the last piece keeps its inner space.
fn split_space(text: &str, limit: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if pieces.len() == limit {
            pieces.push(rest);
            break;
        }
        let end = rest.find(is_space).unwrap_or(rest.len());
        pieces.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    pieces
}

fn rsplit_space(text: &str, limit: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if pieces.len() == limit {
            pieces.push(rest);
            break;
        }
        let start = rest
            .rfind(is_space)
            .map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
        pieces.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    reversed(pieces)
}

fn is_line_end(character: char) -> bool {
    matches!(character, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Lines by all of Python's line ends; `\r\n` is one.
fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let line_end = rest.find(is_line_end).unwrap_or(rest.len());
        let end_length = match &rest[line_end..] {
            tail if tail.starts_with("\r\n") => 2,
            tail => tail.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..line_end + if keep_ends { end_length } else { 0 }]);
        rest = &rest[line_end + end_length..];
    }
    lines
}

/// The characters `start..end` of a text by Python's rules for slices, and where they begin.
fn window(text: &str, start: Option<i64>, end: Option<i64>) -> (&str, usize) {
    if start.is_none() && end.is_none() {
        return (text, 0);
    }
    let count = text.chars().count();
    let clamp = |at: i64| {
        let at = if at < 0 { at.saturating_add(count as i64) } else { at };
        usize::try_from(at).unwrap_or(0).min(count)
    };
    let (start, end) = (clamp(start.unwrap_or(0)), clamp(end.unwrap_or(i64::MAX)));
    let byte_of =
        |character: usize| text.char_indices().nth(character).map_or(text.len(), |(byte, _)| byte);
    if start >= end { ("", start) } else { (&text[byte_of(start)..byte_of(end)], start) }
}

/// A capital after every character that is not a letter, as Python has it: `They'Re`.
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut after_letter = false;
    for character in text.chars() {
        if after_letter {
            titled.extend(character.to_lowercase());
        } else {
            titled.extend(character.to_uppercase());
        }
        after_letter = character.is_alphabetic();
    }
    titled
}

fn swap_case(character: char) -> char {
    let swapped = if character.is_uppercase() {
        character.to_lowercase().next()
    } else {
        character.to_uppercase().next()
    };
    swapped.unwrap_or(character)
}

fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(char::to_uppercase).into_iter().flatten();
    first.collect::<String>() + &characters.as_str().to_lowercase()
}

fn pad(text: &str, width: i64, fill: char, method: &str) -> Result<String, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    meter::value(text.len().saturating_add(width.saturating_mul(fill.len_utf8())))?;
    let missing = width.saturating_sub(text.chars().count());
    let fill_of = |count: usize, fill: char| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(match method {
        "ljust" => text.to_owned() + &fill_of(missing, fill),
        "rjust" => fill_of(missing, fill) + text,
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", fill_of(missing, '0'))
        }
        // CPython puts the odd space left when the width is odd too.
        _ => {
            let left = missing / 2 + (missing & width & 1);
            fill_of(left, fill) + text + &fill_of(missing - left, fill)
        }
    })
}
