//! The operators that `syntax` puts in the place of the engine's: they call the meter before they make anything.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::meter::{self, Limit, Measure};
use super::{containers, filters};

/// Arguments that `*list` and `**dict` may add to a call.
const SPREAD_LIMIT: usize = 1_000;

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter("metered_concat", concat);
    environment.add_filter("metered_add", add);
    environment.add_filter("metered_mul", mul);
    environment
        .add_filter("metered_compared", |value: &Value| compared(value).map(|()| value.clone()));
    environment.add_filter("metered_key", |value: &Value| {
        containers::key_size(value).map(|()| value.clone())
    });
    environment.add_filter("metered_held", |value: &Value| {
        containers::held(value).map(|()| value.clone())
    });
    environment.add_filter("metered_spread", spread);
    environment.add_filter("metered_text", |bytes: usize| meter::write(bytes).map(|()| ""));
    environment.add_function("metered_list", |items: Rest<Value>| containers::list(items.0));
    environment.add_function("metered_tuple", |items: Rest<Value>| containers::tuple(items.0));
    environment.add_function("metered_dict", |items: Rest<Value>| {
        let mut items = items.0.into_iter();
        let pairs = std::iter::from_fn(|| Some((items.next()?, items.next()?)));
        containers::dict(pairs.collect())
    });
}

/// Looks at a value before it is compared.
pub(super) fn compared(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => meter::work(text.len()),
        None if value.as_object().is_some() => meter::work(containers::measure(value)?.bytes),
        None => Ok(()),
    }
}

fn spread(value: &Value) -> Result<Value, Error> {
    if value.len().is_none_or(|count| count > SPREAD_LIMIT) && value.as_object().is_some() {
        return Err(Limit { measure: Measure::Arguments, most: SPREAD_LIMIT }.into());
    }
    Ok(value.clone())
}

fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    let length = |value: &Value| value.as_str().map_or(32, str::len);
    let bytes = length(left).saturating_add(length(right));
    meter::value(bytes)?;
    let mut text = meter::Text::with_capacity(bytes);
    for value in [left, right] {
        filters::write_shown(value, &mut text)?;
    }
    meter::text(text.into_string())
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub(super) fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        meter::value(left.len().saturating_add(right.len()))?;
        return meter::text([left, right].concat());
    }
    if is_list(left) && is_list(right) && left.is_tuple() == right.is_tuple() {
        if !left.is_tuple() {
            return containers::concatenation(left, right);
        }
        let mut items = containers::items(left)?;
        items.extend(containers::items(right)?);
        return containers::tuple(items);
    }
    arithmetic("+", left, right, i128::checked_add, |left, right| left + right)
}

fn mul(left: &Value, right: &Value) -> Result<Value, Error> {
    let is_repeated = |value: &Value| value.as_str().is_some() || is_list(value);
    let (repeated, count) = if is_repeated(left) {
        (left, right)
    } else if is_repeated(right) {
        (right, left)
    } else {
        return arithmetic("*", left, right, i128::checked_mul, |left, right| left * right);
    };
    let Some(count) = count.as_usize() else {
        let what = if repeated.as_str().is_some() { "strings" } else { "sequences" };
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("{what} can only be multiplied with integers"),
        ));
    };
    if let Some(text) = repeated.as_str() {
        meter::value(text.len().saturating_mul(count))?;
        return meter::text(text.repeat(count));
    }
    let items = containers::items(repeated)?;
    let length = items.len().saturating_mul(count);
    meter::value(length.saturating_mul(meter::VALUE_SLOT_BYTES))?;
    let repeated_items = items.iter().cycle().take(length).cloned().collect();
    if repeated.is_tuple() {
        containers::tuple(repeated_items)
    } else {
        containers::list(repeated_items)
    }
}

enum Number {
    Integer(i128),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Integer(value.is_true().into())),
        ValueKind::Number if value.is_integer() => {
            i128::try_from(value.clone()).ok().map(Number::Integer)
        }
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

/// An operator on numbers, with the engine's words where it fails.
fn arithmetic(
    sign: &str,
    left: &Value,
    right: &Value,
    integers: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let float = |number| match number {
        Number::Integer(integer) => integer as f64,
        Number::Float(float) => float,
    };
    match (number(left), number(right)) {
        (Some(Number::Integer(a)), Some(Number::Integer(b))) => match integers(a, b) {
            Some(result) => {
                Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
            }
            None => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("unable to calculate {left} {sign} {right}"),
            )),
        },
        (Some(a), Some(b)) => Ok(Value::from(floats(float(a), float(b)))),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!(
                "tried to use {sign} operator on unsupported types {} and {}",
                left.kind(),
                right.kind()
            ),
        )),
    }
}
