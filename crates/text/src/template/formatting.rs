//! `'…' % values`, `'…'|format(…)` and `'…'.format(…)`: the engine's own, with the length of the result metered
//! before it is made.

use minijinja::formatting::{FormatStyle, format as apply};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::filters::python_str;
use super::{containers, meter};

/// Bytes of the longest number, printed without a width: 1.8e308 has 309 digits.
const NUMBER_BYTES: usize = 400;
/// Bytes printed for one byte of a value: `\u{1}` for a control character in a string in a list.
const ESCAPE_FACTOR: usize = 6;

/// The most bytes a value takes when it is printed.
pub(super) fn printed_bytes(value: &Value) -> Result<usize, Error> {
    match value.as_str() {
        Some(text) => Ok(text.len()),
        None if value.as_object().is_some() => {
            Ok(containers::measure(value)?.bytes.saturating_mul(ESCAPE_FACTOR))
        }
        None => Ok(NUMBER_BYTES),
    }
}

/// Formats, if the result is within the limits.
pub(super) fn format(style: FormatStyle, text: &str, values: &[Value]) -> Result<Value, Error> {
    ask(matches!(style, FormatStyle::Printf), text, values)?;
    meter::text(apply(style, text, values)?)
}

/// Reserves the most bytes that formatting can make.
pub(super) fn ask(printf: bool, text: &str, values: &[Value]) -> Result<(), Error> {
    let (mut largest, mut sum) = (0_usize, 0_usize);
    let mut widths = 0_u64;
    for value in values {
        let bytes = printed_bytes(value)?;
        largest = largest.max(bytes);
        sum = sum.saturating_add(bytes);
        widths = widths.max(value.as_i64().map_or(0, i64::unsigned_abs));
    }
    let fields = Fields::of(text, printf);
    let width = fields.width.max(if fields.takes_widths { widths } else { 0 });
    let width = usize::try_from(width).unwrap_or(usize::MAX).saturating_mul(4);
    // Each positional value is printed once, a named one as often as it is used.
    let shown = if fields.named { largest.saturating_mul(fields.count) } else { sum };
    let padding = width.saturating_add(NUMBER_BYTES).saturating_mul(fields.count);
    meter::value(text.len().saturating_add(shown).saturating_add(padding))
}

/// What the fields of a format can use.
#[derive(Default)]
struct Fields {
    count: usize,
    /// The largest width or precision written in the format.
    width: u64,
    /// Whether widths may come from the values.
    takes_widths: bool,
    /// Whether a value may be printed more than once.
    named: bool,
}

impl Fields {
    fn of(text: &str, printf: bool) -> Self {
        let mut fields = Self { named: !printf, ..Self::default() };
        let open = if printf { '%' } else { '{' };
        for field in text.split(open).skip(1) {
            fields.count += 1;
            // In `str.format` a width may be a field of its own, within another.
            let spec = if printf {
                let spec = field.strip_prefix('(').map_or(field, |named| {
                    fields.named = true;
                    named.split_once(')').map_or(named, |(_, spec)| spec)
                });
                let part = |c: char| c.is_ascii_digit() || " #+-.*'".contains(c);
                let end = spec.find(|character| !part(character)).unwrap_or(spec.len());
                &spec[..end]
            } else {
                field.split_once('}').map_or(field, |(spec, _)| spec)
            };
            fields.takes_widths |= printf && spec.contains('*');
            for digits in spec.split(|c: char| !c.is_ascii_digit()) {
                if !digits.is_empty() {
                    fields.width = fields.width.max(digits.parse().unwrap_or(u64::MAX));
                }
            }
        }
        fields.takes_widths |= !printf && nested(text);
        fields
    }
}

fn nested(text: &str) -> bool {
    let mut open = false;
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' if open => return true,
            // Two of them print one.
            b'{' => open = bytes.next_if_eq(&b'{').is_none(),
            b'}' => open = false,
            _ => {}
        }
    }
    false
}

/// `'…' % operand`: a tuple gives several values, a dict named ones, anything else one.
pub(super) fn percent_format(text: &str, operand: &Value) -> Result<Value, Error> {
    let values: Vec<Value> =
        if operand.is_tuple() { operand.try_iter()?.collect() } else { vec![operand.clone()] };
    // Containers and floats print as Python prints them; numbers must stay numbers for `%d`.
    if text.contains("%(") || values.iter().all(is_scalar) {
        return format(FormatStyle::Printf, text, &values);
    }
    let shown = |value: &Value| {
        if is_scalar(value) { Ok(value.clone()) } else { python_str(value).map(Value::from) }
    };
    let values: Vec<Value> = values.iter().map(shown).collect::<Result<_, _>>()?;
    format(FormatStyle::Printf, text, &values)
}

fn is_scalar(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Number | ValueKind::Bool | ValueKind::None
    )
}
