//! Reading a request's fields: `null` is absent, unknown fields are ignored, wrong types are named.
//!
//! Clients differ in what they send and none of them should see "invalid JSON" for a string where a
//! number belongs: each reader says the path of the field, what it wants and what it got.

use serde_json::{Map, Value};

use crate::error::ApiError;

pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// An object of a request and where it stands in it.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    path: String,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The whole request.
    pub(crate) fn of_body(body: &'a Value) -> Result<Fields<'a>> {
        match body {
            Value::Object(object) => Ok(Fields { path: String::new(), object }),
            other => Err(ApiError::bad_request(
                "invalid_json",
                format!("the body must be a JSON object, got {}", kind(other)),
            )),
        }
    }

    /// An object somewhere inside.
    pub(crate) fn of(value: &'a Value, path: impl Into<String>) -> Result<Fields<'a>> {
        let path = path.into();
        match value {
            Value::Object(object) => Ok(Fields { path, object }),
            other => Err(wrong(&path, "an object", other)),
        }
    }

    /// Where a field of this object stands.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A field, unless it is absent or `null`.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// An error about a field.
    pub(crate) fn error(&self, key: &str, message: impl Into<String>) -> ApiError {
        ApiError::field(self.path(key), message)
    }

    /// A field that must be there.
    pub(crate) fn required(&self, key: &str) -> Result<&'a Value> {
        self.get(key).ok_or_else(|| {
            let error = self.error(key, "is required");
            ApiError { code: "missing_required_parameter", ..error }
        })
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.read(key, "a string", Value::as_str)
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub(crate) fn array(&self, key: &str) -> Result<Option<&'a [Value]>> {
        self.read(key, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub(crate) fn map(&self, key: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.read(key, "an object", Value::as_object)
    }

    /// An object field, to read on.
    pub(crate) fn fields(&self, key: &str) -> Result<Option<Fields<'a>>> {
        self.get(key).map(|value| Fields::of(value, self.path(key))).transpose()
    }

    /// A finite number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f32>> {
        let number = self.read(key, "a number", Value::as_f64)?;
        match number {
            Some(number) if !(number as f32).is_finite() => {
                Err(self.error(key, format!("is out of range: {number:e}")))
            }
            number => Ok(number.map(|number| number as f32)),
        }
    }

    /// A whole number from 0 on. `4.0` counts as one: some clients have no integers.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let natural = || whole(value).filter(|&number| number >= 0.0).map(|number| number as u64);
        let count = value.as_u64().or_else(natural);
        match count.and_then(|count| usize::try_from(count).ok()) {
            Some(count) => Ok(Some(count)),
            None if value.is_number() => {
                Err(self.error(key, format!("expected a whole number from 0 on, got {value}")))
            }
            None => Err(wrong(&self.path(key), "a whole number", value)),
        }
    }

    /// Any whole number, as 64 bits: seeds may be negative.
    pub(crate) fn seed(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let signed = || value.as_i64().or_else(|| whole(value).map(|number| number as i64));
        match value.as_u64().or_else(|| signed().map(|seed| seed as u64)) {
            Some(seed) => Ok(Some(seed)),
            None => Err(wrong(&self.path(key), "a whole number of at most 64 bits", value)),
        }
    }

    /// A string, or a list of strings.
    pub(crate) fn strings(&self, key: &str) -> Result<Vec<String>> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(items)) => items
                .iter()
                .enumerate()
                .map(|(index, item)| match item {
                    Value::String(text) => Ok(text.clone()),
                    other => Err(wrong(&format!("{}[{index}]", self.path(key)), "a string", other)),
                })
                .collect(),
            Some(other) => Err(wrong(&self.path(key), "a string or a list of strings", other)),
        }
    }

    fn read<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(&self.path(key), wanted, value))
    }
}

/// A field of the wrong type.
pub(crate) fn wrong(path: &str, wanted: &str, got: &Value) -> ApiError {
    let error = ApiError::field(path, format!("expected {wanted}, got {}", kind(got)));
    ApiError { code: "invalid_type", ..error }
}

/// What a value is, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A whole number that is written as a float, as 4.0: some clients have no integers.
fn whole(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 9.0e15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T>, param: &str, message: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param));
        assert_eq!(error.message, message);
    }

    #[test]
    fn null_is_absent_and_types_are_named() {
        let body = json!({"a": null, "b": "x", "c": 1.5, "d": {"e": [1, "y"]}, "f": -3, "g": 4.0, "h": 1e300});
        let fields = Fields::of_body(&body).unwrap();
        assert_eq!(fields.string("a").unwrap(), None);
        assert_eq!(fields.string("missing").unwrap(), None);
        assert_eq!(fields.string("b").unwrap(), Some("x"));
        assert_eq!(fields.number("c").unwrap(), Some(1.5));
        assert_eq!(fields.count("g").unwrap(), Some(4));
        assert_eq!(fields.seed("f").unwrap(), Some(-3i64 as u64));
        refused(fields.number("b"), "b", "b: expected a number, got a string");
        refused(fields.count("c"), "c", "c: expected a whole number from 0 on, got 1.5");
        refused(fields.count("f"), "f", "f: expected a whole number from 0 on, got -3");
        refused(fields.number("h"), "h", "h: is out of range: 1e300");
        refused(fields.required("a"), "a", "a: is required");
        let inner = fields.fields("d").unwrap().unwrap();
        refused(inner.strings("e"), "d.e[0]", "d.e[0]: expected a string, got a number");
        assert_eq!(fields.strings("b").unwrap(), ["x"]);
        assert!(Fields::of_body(&json!([1])).unwrap_err().message.contains("got an array"));
    }
}
