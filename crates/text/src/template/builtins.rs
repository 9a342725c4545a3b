//! The engine's filters, tests and functions, each metered before it makes or walks anything.
//!
//! All that the engine brings is replaced here or in `filters`, but for what cannot make or walk much. What Jinja2 does
//! not have and is lazy (`chain`, `zip`) is removed.

use std::fmt::Write as _;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};

use super::formatting::{ask as ask_format, printed_bytes};
use super::meter::{self, Limit, Measure, VALUE_SLOT_BYTES};
use super::operators::{add, compared};
use super::python::Arguments;
use super::{containers, filters::write_shown};

/// Values that one namespace may begin with.
const NAMESPACE_LIMIT: usize = 64;

/// What a filter takes in addition to the time to call it.
#[derive(Clone, Copy)]
enum Cost {
    /// No more than its arguments, which it returns or takes a number or item of.
    Nothing,
    /// Text of so many bytes for each byte of its arguments.
    Text(usize),
    /// Pieces of its text.
    Pieces,
    /// A list as long as its first argument.
    Items,
    /// The same, whose items are compared with each other.
    Order,
}

pub(super) fn register(environment: &mut Environment<'static>) {
    for name in ["chain", "zip", "tojson"] {
        environment.remove_filter(name);
    }
    let mut filter = |name: &'static str, filter: Value, cost: Cost| {
        environment.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            ask(cost, &arguments)?;
            containers::admit(filter.call(state, &arguments)?)
        });
    };
    for name in ["escape", "e"] {
        filter(name, Value::from_function(filters::escape), Cost::Text(6));
    }
    for name in ["default", "d"] {
        filter(name, Value::from_function(filters::default), Cost::Nothing);
    }
    filter("safe", Value::from_function(filters::safe), Cost::Text(1));
    filter("lower", Value::from_function(filters::lower), Cost::Text(3));
    filter("upper", Value::from_function(filters::upper), Cost::Text(3));
    filter("title", Value::from_function(filters::title), Cost::Text(3));
    filter("capitalize", Value::from_function(filters::capitalize), Cost::Text(3));
    filter("split", Value::from_function(filters::split), Cost::Pieces);
    filter("lines", Value::from_function(filters::lines), Cost::Pieces);
    filter("round", Value::from_function(filters::round), Cost::Text(1));
    filter("abs", Value::from_function(filters::abs), Cost::Text(1));
    filter("int", Value::from_function(filters::int), Cost::Text(1));
    filter("float", Value::from_function(filters::float), Cost::Text(1));
    filter("bool", Value::from_function(filters::bool), Cost::Nothing);
    filter("first", Value::from_function(filters::first), Cost::Nothing);
    filter("last", Value::from_function(filters::last), Cost::Items);
    filter("min", Value::from_function(filters::min), Cost::Order);
    filter("max", Value::from_function(filters::max), Cost::Order);
    filter("sort", Value::from_function(filters::sort), Cost::Order);
    filter("dictsort", Value::from_function(filters::dictsort), Cost::Order);
    filter("unique", Value::from_function(filters::unique), Cost::Order);
    filter("groupby", Value::from_function(filters::groupby), Cost::Order);
    filter("select", Value::from_function(filters::select), Cost::Items);
    filter("reject", Value::from_function(filters::reject), Cost::Items);
    filter("selectattr", Value::from_function(filters::selectattr), Cost::Items);
    filter("rejectattr", Value::from_function(filters::rejectattr), Cost::Items);
    filter("map", Value::from_function(filters::map), Cost::Items);

    environment.add_filter("attr", |value: &Value, key: &Value| {
        containers::key_size(key)?;
        value.get_item(key)
    });
    environment.add_filter("list", |value: &Value| containers::list(containers::items(value)?));
    environment.add_filter("reverse", reverse);
    environment.add_filter("pprint", pprint);
    environment.add_filter("join", join);
    environment.add_filter("sum", sum);
    environment.add_filter("indent", indent);
    environment.add_filter("format", format);
    environment.add_filter("batch", batches(Value::from_function(filters::batch)));
    environment.add_filter("slice", batches(Value::from_function(filters::slice)));
    register_tests(environment);

    environment.add_function("dict", dict);
    environment.add_function("namespace", namespace);
}

/// Reserves what a filter will take.
fn ask(cost: Cost, arguments: &[Value]) -> Result<(), Error> {
    let Some(first) = arguments.first() else { return Ok(()) };
    match cost {
        Cost::Nothing => Ok(()),
        Cost::Text(factor) => {
            let mut bytes = 0_usize;
            for argument in arguments {
                bytes = bytes.saturating_add(printed_bytes(argument)?);
            }
            meter::value(bytes.saturating_mul(factor))
        }
        Cost::Pieces => {
            let text = first.as_str().unwrap_or_default();
            let pieces = match arguments.get(1).and_then(Value::as_str) {
                Some(separator) => 1 + text.matches(separator).count(),
                None => 1 + text.split(char::is_whitespace).count(),
            };
            meter::value(text.len().saturating_add(pieces.saturating_mul(2 * VALUE_SLOT_BYTES)))
        }
        Cost::Items | Cost::Order => {
            for argument in &arguments[1..] {
                compared(argument)?;
            }
            let count = match first.as_str() {
                Some(text) => text.chars().count(),
                None => first.len().unwrap_or(0),
            };
            meter::value(count.saturating_mul(2 * VALUE_SLOT_BYTES))?;
            if matches!(cost, Cost::Order) {
                let bytes = containers::measure(first)?.bytes;
                meter::work(bytes.saturating_mul(count.max(2).ilog2() as usize + 1))?;
            }
            Ok(())
        }
    }
}

fn register_tests(environment: &mut Environment<'static>) {
    let mut test = |names: &[&'static str], test: Value| {
        for name in names {
            let test = test.clone();
            environment.add_test(
                *name,
                move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
                    let arguments = arguments.into_values();
                    arguments.iter().try_for_each(compared)?;
                    test.call(state, &arguments).map(|passed| passed.is_true())
                },
            );
        }
    };
    test(&["eq", "equalto", "=="], Value::from_function(tests::is_eq));
    test(&["ne", "!="], Value::from_function(tests::is_ne));
    test(&["lt", "lessthan", "<"], Value::from_function(tests::is_lt));
    test(&["le", "<="], Value::from_function(tests::is_le));
    test(&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt));
    test(&["ge", ">="], Value::from_function(tests::is_ge));
    test(&["in"], Value::from_function(tests::is_in));
    test(&["sameas"], Value::from_function(tests::is_sameas));
    test(&["startingwith"], Value::from_function(tests::is_startingwith));
    test(&["endingwith"], Value::from_function(tests::is_endingwith));
    test(&["lower"], Value::from_function(tests::is_lower));
    test(&["upper"], Value::from_function(tests::is_upper));
}

fn reverse(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        meter::value(text.len())?;
        return meter::text(text.chars().rev().collect());
    }
    let mut items = containers::items(value)?;
    items.reverse();
    containers::list(items)
}

fn pprint(value: &Value) -> Result<Value, Error> {
    containers::measure(value)?;
    let mut text = meter::Text::new();
    write!(text, "{value:#?}").map_err(|_| meter::too_large())?;
    text.into_value()
}

fn join(value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let rest = rest.into_values();
    let given = Arguments::new(&rest, &["d", "attribute"])?;
    let mut separator = meter::Text::new();
    if let Some(given) = given.present(0) {
        write_shown(given, &mut separator)?;
    }
    let separator = separator.into_string();
    let mut joined = meter::Text::new();
    for (index, item) in value.try_iter()?.checked().enumerate() {
        let item = attribute(item?, given.present(1))?;
        if index > 0 {
            joined.push_str(&separator)?;
        }
        write_shown(&item, &mut joined)?;
    }
    joined.into_value()
}

/// An item, or the attribute of it at a path such as `a.0.b`.
fn attribute(item: Value, path: Option<&Value>) -> Result<Value, Error> {
    let Some(path) = path.and_then(Value::as_str) else { return Ok(item) };
    let mut item = item;
    for part in path.split('.') {
        let found = match part.parse::<usize>() {
            Ok(index) => item.get_item_by_index(index),
            Err(_) => item.get_attr(part),
        };
        match found {
            Ok(found) => item = found,
            Err(_) => return Ok(Value::UNDEFINED),
        }
    }
    Ok(item)
}

fn sum(value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let rest = rest.into_values();
    let given = Arguments::new(&rest, &["attribute", "start"])?;
    let mut sum = given.present(1).cloned().unwrap_or_else(|| Value::from(0));
    for item in value.try_iter()?.checked() {
        let item = attribute(item?, given.present(0))?;
        if item.is_undefined() {
            continue;
        }
        if sum.is_number() && !item.is_number() && item.kind() != ValueKind::Bool {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("can only sum numbers, got {}", item.kind()),
            ));
        }
        sum = add(&sum, &item)?;
    }
    Ok(sum)
}

fn indent(state: &mut State, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let Some((value, rest)) = arguments.split_first() else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    let given = Arguments::new(rest, &["width", "first", "blank"])?;
    let width = given.present(0).map_or(Some(4), Value::as_usize).unwrap_or(0);
    let lines = value.as_str().map_or(1, |text| 1 + text.matches('\n').count());
    let indents = lines.saturating_mul(width.saturating_add(1)).saturating_add(width);
    meter::value(printed_bytes(value)?.saturating_add(indents))?;
    let indented = Value::from_function(filters::indent).call(state, &arguments)?;
    containers::admit(indented)
}

fn format(state: &mut State, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    if let Some((text, values)) = arguments.split_first() {
        ask_format(true, text.as_str().unwrap_or_default(), values)?;
    }
    let formatted = Value::from_function(filters::format).call(state, &arguments)?;
    containers::admit(formatted)
}

/// `batch` and `slice`: their count and what fills the last one up cost as well.
fn batches(
    filter: Value,
) -> impl Fn(&mut State, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static {
    move |state, arguments| {
        let arguments = arguments.into_values();
        ask(Cost::Items, &arguments)?;
        let count = arguments.get(1).and_then(Value::as_usize).unwrap_or(0);
        // A slice is a list, however short.
        meter::value(count.saturating_mul(4 * VALUE_SLOT_BYTES))?;
        containers::admit(filter.call(state, &arguments)?)
    }
}

fn dict(state: &mut State, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    for argument in arguments.iter() {
        containers::measure(argument)?;
        meter::value(argument.len().unwrap_or(0).saturating_mul(4 * VALUE_SLOT_BYTES))?;
    }
    let dict = Value::from_function(functions::dict).call(state, &arguments)?;
    let pairs = dict.as_object().and_then(|dict| dict.try_iter_pairs());
    containers::dict(pairs.into_iter().flatten().collect())
}

fn namespace(state: &mut State, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    for argument in arguments.iter() {
        containers::measure(argument)?;
        if argument.len().is_some_and(|count| count > NAMESPACE_LIMIT) {
            return Err(Limit { measure: Measure::Arguments, most: NAMESPACE_LIMIT }.into());
        }
    }
    Value::from_function(functions::namespace).call(state, &arguments)
}
