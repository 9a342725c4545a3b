//! Lists and dicts as templates make them: with the size of all that is in them, known without walking.
//!
//! A list of ten lists of ten lists … is small in memory and huge to print, compare or hash. So a container
//! keeps the bytes that walking it would touch and how deep it is, and one that is past a limit is not made.
//! What the engine itself makes (tuples, items of dicts, groups) is walked when it is measured.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::json::DEPTH_LIMIT;
use super::meter::{self, Items, Limit, Measure, VALUE_SLOT_BYTES};

/// Bytes that an entry of a dict takes in addition to its key and value, for its hash and its place in the order.
const ENTRY_BYTES: usize = 48;

/// What walking a value touches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) bytes: usize,
    /// Levels of containers; of a scalar, none.
    depth: usize,
}

impl Size {
    fn around(self, own_bytes: usize) -> Self {
        Self { bytes: self.bytes.saturating_add(own_bytes), depth: self.depth + 1 }
    }

    fn beside(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), depth: self.depth.max(other.depth) }
    }

    fn check(self) -> Result<Self, Error> {
        if self.depth > DEPTH_LIMIT {
            return Err(Limit { measure: Measure::Depth, most: DEPTH_LIMIT }.into());
        }
        if self.bytes > meter::walked_bytes() {
            return Err(meter::too_large());
        }
        Ok(self)
    }
}

/// A list, or a part of one. Lists that grow share their items: adding to the end of one that nothing was added to
/// yet copies nothing, so a loop of `list + [item]` takes linear time.
pub(super) struct List {
    items: Items,
    start: usize,
    end: usize,
    /// Of the items; for a part, an upper bound.
    size: Size,
}

fn locked(items: &Items) -> MutexGuard<'_, Vec<Value>> {
    items.lock().unwrap_or_else(PoisonError::into_inner)
}

impl List {
    fn new(items: Vec<Value>, size: Size) -> Self {
        let end = items.len();
        Self { items: Arc::new(Mutex::new(items)), start: 0, end, size }
    }

    fn len(&self) -> usize {
        self.end - self.start
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&locked(&self.items)[self.start..self.end]).finish()
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|&index| index < self.len())?;
        locked(&self.items).get(self.start + index).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.len())
    }
}

/// A dict that a template made, around the engine's own.
pub(super) struct Dict {
    map: Value,
    size: Size,
}

impl fmt::Debug for Dict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.map, f)
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.map.as_object()?.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.map.as_object()?.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.map.as_object().map_or(Enumerator::Empty, |map| map.enumerate())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.map.as_object()?.enumerator_len()
    }
}

/// How large a value is, if it is within the limits.
pub(super) fn measure(value: &Value) -> Result<Size, Error> {
    let mut walked = 0;
    let size = walk(value, 0, &mut walked)?;
    meter::work(walked)?;
    size.check()
}

/// Whether a value can change after it was measured, and hold itself.
fn changes(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        object.type_name().ends_with("::Namespace") || object.type_name().ends_with("::Loop")
    })
}

fn unheld() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a namespace or loop cannot be part of another value")
}

/// Looks at a value before a namespace holds it: a chain of those would be dropped link by link.
pub(super) fn held(value: &Value) -> Result<(), Error> {
    if changes(value) { Err(unheld()) } else { Ok(()) }
}

/// Items, keys or values of a dict: lazy if the dict cannot change.
pub(super) fn view(of: &Value, view: Value) -> Result<Value, Error> {
    if of.downcast_object_ref::<Dict>().is_some() { Ok(view) } else { admit(view) }
}

/// The size of a value, with the bytes walked to find it.
fn walk(value: &Value, depth: usize, walked: &mut usize) -> Result<Size, Error> {
    let leaf = |bytes: usize| Size { bytes: bytes + VALUE_SLOT_BYTES, depth: 0 };
    if let Some(text) = value.as_str() {
        return Ok(leaf(text.len()));
    }
    let Some(object) = value.as_object() else { return Ok(leaf(0)) };
    if let Some(list) = object.downcast_ref::<List>() {
        return Ok(list.size);
    }
    if let Some(dict) = object.downcast_ref::<Dict>() {
        return Ok(dict.size);
    }
    if object.repr() == ObjectRepr::Plain {
        return Ok(leaf(0));
    }
    if depth > 0 && changes(value) {
        return Err(unheld());
    }
    if depth > DEPTH_LIMIT {
        return Err(Limit { measure: Measure::Depth, most: DEPTH_LIMIT }.into());
    }
    let mut size = Size::default();
    let mut add = |item: &Value, own_bytes: usize| {
        let item = walk(item, depth + 1, walked)?;
        size = size.beside(item);
        size.bytes = size.bytes.saturating_add(own_bytes);
        *walked = walked.saturating_add(VALUE_SLOT_BYTES);
        if size.bytes.max(*walked) > meter::walked_bytes() {
            return Err(meter::too_large());
        }
        Ok(())
    };
    if object.repr() == ObjectRepr::Map {
        for (key, item) in object.try_iter_pairs().into_iter().flatten() {
            add(&key, ENTRY_BYTES)?;
            add(&item, 0)?;
        }
    } else {
        for item in value.try_iter()?.checked() {
            add(&item?, 0)?;
        }
    }
    Ok(size.around(VALUE_SLOT_BYTES))
}

fn size_of_items<'a>(items: impl IntoIterator<Item = &'a Value>) -> Result<Size, Error> {
    let (mut size, mut walked) = (Size::default(), 0);
    for item in items {
        size = size.beside(walk(item, 1, &mut walked)?);
    }
    meter::work(walked)?;
    size.around(VALUE_SLOT_BYTES).check()
}

/// A new list of items that were metered.
pub(super) fn list(items: Vec<Value>) -> Result<Value, Error> {
    let size = size_of_items(&items)?;
    new_list(items, size)
}

fn new_list(items: Vec<Value>, size: Size) -> Result<Value, Error> {
    let list = List::new(items, size);
    meter::hold_items(&list.items)?;
    Ok(Value::from_object(list))
}

/// A new dict.
pub(super) fn dict(pairs: Vec<(Value, Value)>) -> Result<Value, Error> {
    let entries = pairs.len() * (ENTRY_BYTES + 2 * VALUE_SLOT_BYTES);
    meter::value(entries)?;
    for (key, _) in &pairs {
        key_size(key)?;
    }
    let size = size_of_items(pairs.iter().flat_map(|(key, item)| [key, item]))?;
    let size = Size { bytes: size.bytes.saturating_add(pairs.len() * ENTRY_BYTES), ..size };
    let dict = Arc::new(Dict { map: Value::from_pairs(pairs), size: size.check()? });
    meter::hold_map(&dict, entries)?;
    Ok(Value::from_dyn_object(dict))
}

/// A tuple, which the engine knows by its own type.
pub(super) fn tuple(items: Vec<Value>) -> Result<Value, Error> {
    size_of_items(&items)?;
    Ok(Value::from(Tuple::from(items)))
}

/// Looks at a key before it is hashed.
pub(super) fn key_size(key: &Value) -> Result<(), Error> {
    if key.as_object().is_some() {
        measure(key)?;
    }
    Ok(())
}

/// The items of anything that can be iterated, metered before they are collected.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    let count = match value.as_str() {
        Some(text) => text.chars().count(),
        None => value.len().unwrap_or(0),
    };
    meter::value(count.saturating_mul(VALUE_SLOT_BYTES))?;
    if let Some(list) = value.downcast_object_ref::<List>() {
        return Ok(locked(&list.items)[list.start..list.end].to_vec());
    }
    let mut items = Vec::with_capacity(count);
    for item in value.try_iter()?.checked() {
        if items.len() * VALUE_SLOT_BYTES > meter::value_bytes() {
            return Err(meter::too_large());
        }
        items.push(item?);
    }
    Ok(items)
}

/// A value of the engine's making, measured and counted.
pub(super) fn admit(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => {
            meter::hold_text(&value)?;
            Ok(value)
        }
        ValueKind::Seq | ValueKind::Iterable if !value.is_tuple() => {
            if value.downcast_object_ref::<List>().is_some() {
                return Ok(value);
            }
            let mut items = items(&value)?;
            // Before the new strings in it are distinguished from others by their reference counts.
            drop(value);
            for item in &mut items {
                if item.downcast_object_ref::<Vec<Value>>().is_some() {
                    *item = admit(std::mem::take(item))?;
                }
                meter::hold_text(item)?;
            }
            list(items)
        }
        _ => Ok(value),
    }
}

/// `left + right` for lists.
pub(super) fn concatenation(left: &Value, right: &Value) -> Result<Value, Error> {
    let added = items(right)?;
    let added_size = size_of_items(&added)?;
    let Some(list) = left.downcast_object_ref::<List>() else {
        let mut all = items(left)?;
        meter::value((all.len() + added.len()) * VALUE_SLOT_BYTES)?;
        all.extend(added);
        return self::list(all);
    };
    let size = list.size.beside(added_size).check()?;
    let mut shared = locked(&list.items);
    if shared.len() != list.end {
        // Something else was added after this list's end.
        drop(shared);
        let mut all = items(left)?;
        all.extend(added);
        return new_list(all, size);
    }
    let before = shared.capacity();
    shared.extend(added);
    let end = shared.len();
    let grown_bytes = (shared.capacity() - before) * VALUE_SLOT_BYTES;
    drop(shared);
    meter::grow_items(grown_bytes);
    Ok(Value::from_object(List { items: list.items.clone(), start: list.start, end, size }))
}

/// The items `start..end` of a list, which share its memory if they are a good part of it.
pub(super) fn part(value: &Value, start: usize, end: usize) -> Result<Option<Value>, Error> {
    let Some(list) = value.downcast_object_ref::<List>() else { return Ok(None) };
    let end = list.start + end.min(list.len());
    let start = (list.start + start).min(end);
    let shared = locked(&list.items);
    if (end - start) * 2 < shared.len() {
        let items = shared[start..end].to_vec();
        drop(shared);
        meter::value(items.len() * VALUE_SLOT_BYTES)?;
        return self::list(items).map(Some);
    }
    let part = List { items: list.items.clone(), start, end, size: list.size };
    Ok(Some(Value::from_object(part)))
}

fn from_number(number: &serde_json::Number) -> Value {
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => Value::from(number),
        (None, Some(number)) => Value::from(number),
        (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// The bytes that [`from_json`] would report for a value.
pub(super) fn json_bytes(value: &Json) -> usize {
    let inner: usize = match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
        Json::String(text) => text.len(),
        Json::Array(array) => array.iter().map(json_bytes).sum(),
        Json::Object(object) => {
            let entry = |(key, item): (&String, &Json)| {
                key.len() + ENTRY_BYTES + VALUE_SLOT_BYTES + json_bytes(item)
            };
            object.iter().map(entry).sum()
        }
    };
    inner + VALUE_SLOT_BYTES
}

/// A value of the conversation, and its size. It is measured, but not limited.
pub(super) fn from_json(value: Json) -> (Value, Size) {
    let leaf =
        |value: Value, bytes: usize| (value, Size { bytes: bytes + VALUE_SLOT_BYTES, depth: 0 });
    match value {
        Json::Null => leaf(Value::from(()), 0),
        Json::Bool(flag) => leaf(Value::from(flag), 0),
        Json::Number(number) => leaf(from_number(&number), 0),
        Json::String(text) => {
            let bytes = text.len();
            leaf(Value::from(text), bytes)
        }
        Json::Array(array) => {
            let mut size = Size::default();
            let mut items = Vec::with_capacity(array.len());
            for item in array {
                let (item, item_size) = from_json(item);
                size = size.beside(item_size);
                items.push(item);
            }
            let size = size.around(VALUE_SLOT_BYTES);
            (Value::from_object(List::new(items, size)), size)
        }
        Json::Object(object) => {
            let mut size = Size::default();
            let pairs: Vec<(Value, Value)> = object
                .into_iter()
                .map(|(key, item)| {
                    let (item, item_size) = from_json(item);
                    size = size.beside(item_size);
                    size.bytes += key.len() + ENTRY_BYTES + VALUE_SLOT_BYTES;
                    (Value::from(key), item)
                })
                .collect();
            let size = size.around(VALUE_SLOT_BYTES);
            (Value::from_object(Dict { map: Value::from_pairs(pairs), size }), size)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_measured_before_it_is_converted_as_it_is_then() {
        for value in [
            json!(null),
            json!([]),
            json!({}),
            json!("text"),
            json!({"a": [1, 2.5, true, {"b": "c"}], "": {"d": null}}),
        ] {
            assert_eq!(json_bytes(&value), from_json(value.clone()).1.bytes, "{value}");
        }
    }
}
