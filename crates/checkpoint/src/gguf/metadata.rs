//! What a GGUF file says about itself: keys and values, read and range-checked by the caller.
//!
//! Tools write the same key in different widths, so a value here has none: any integer serves where a whole number is
//! asked for. Texts need not be UTF-8. Arrays stay the bytes that they are in the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::input::{Fault, Input};
use crate::{Error, Result};

/// The longest key, and the longest string of an array: a token, a merge.
const KEY_LIMIT_BYTES: u64 = 64 << 10;

/// The longest string value. Chat templates have up to 30 KB.
const STRING_LIMIT_BYTES: u64 = 64 << 20;

/// The most elements of an array. Vocabularies have up to 262,144 tokens and half a million merges.
const ARRAY_LIMIT: u64 = 16 << 20;

/// The most tokens.
const TOKEN_LIMIT: u64 = 4 << 20;

/// The key that lists them.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// A whole number from an unsigned type.
    Unsigned(u64),
    /// A whole number from a signed type.
    Signed(i64),
    /// A number; one of 32 bits is its shortest decimal, so that 1e-5 is 1e-5.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Bytes of a text.
    Text(Vec<u8>),
    /// Numbers or truth values.
    Numbers(Numbers),
    /// Texts.
    Texts(Texts),
}

/// An array of numbers or truth values.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    kind: Kind,
    bytes: Vec<u8>,
}

/// An array of texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Texts {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<u32>,
}

/// The types of one number, by the file's ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

/// The ids of the types that are no numbers.
const STRING_ID: u32 = 8;
const ARRAY_ID: u32 = 9;

impl Kind {
    fn from_id(id: u32) -> Option<Kind> {
        Some(match id {
            0 => Kind::U8,
            1 => Kind::I8,
            2 => Kind::U16,
            3 => Kind::I16,
            4 => Kind::U32,
            5 => Kind::I32,
            6 => Kind::F32,
            7 => Kind::Bool,
            10 => Kind::U64,
            11 => Kind::I64,
            12 => Kind::F64,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
        }
    }

    /// The value of as many bytes as this type has.
    fn field(self, bytes: &[u8]) -> Field {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(word);
        match self {
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => Field::Unsigned(raw),
            Kind::I8 => Field::Signed(i64::from(raw as i8)),
            Kind::I16 => Field::Signed(i64::from(raw as i16)),
            Kind::I32 => Field::Signed(i64::from(raw as i32)),
            Kind::I64 => Field::Signed(raw as i64),
            Kind::F32 => Field::Float(decimal(f32::from_bits(raw as u32))),
            Kind::F64 => Field::Float(f64::from_bits(raw)),
            // Whatever is not zero is true, as in the C that reads these bytes elsewhere.
            Kind::Bool => Field::Bool(raw != 0),
        }
    }
}

/// The number that the shortest decimal of a float says.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

impl Numbers {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.bytes()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Field> + '_ {
        self.bytes.chunks_exact(self.kind.bytes()).map(|bytes| self.kind.field(bytes))
    }
}

impl Texts {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The text at `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(&self.bytes[start..end])
    }

    /// The texts.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

impl Field {
    /// A whole number that is not negative, of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Field::Unsigned(value) => Some(value),
            Field::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// A number, whole or not.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Field::Unsigned(value) => Some(value as f64),
            Field::Signed(value) => Some(value as f64),
            Field::Float(value) => Some(value),
            _ => None,
        }
    }

    /// A truth value; some tools write it as a number.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Field::Bool(value) => Some(value),
            Field::Unsigned(0) | Field::Signed(0) => Some(false),
            Field::Unsigned(1) | Field::Signed(1) => Some(true),
            _ => None,
        }
    }

    /// A text that is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Field::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value of a type, for an error message.
    fn shown(&self) -> String {
        match self {
            Field::Unsigned(value) => value.to_string(),
            Field::Signed(value) => value.to_string(),
            Field::Float(value) => value.to_string(),
            Field::Bool(value) => value.to_string(),
            Field::Text(bytes) => {
                let text: String = String::from_utf8_lossy(bytes).chars().take(60).collect();
                format!("{text:?}")
            }
            Field::Numbers(numbers) => format!("an array of {} numbers", numbers.len()),
            Field::Texts(texts) => format!("an array of {} texts", texts.len()),
        }
    }

    /// Reads a value, whose type comes first.
    fn read(input: &mut Input<'_>, key: &str) -> Result<Field, Fault> {
        let offset = input.position();
        let id = input.u32()?;
        if let Some(kind) = Kind::from_id(id) {
            return scalar(input, kind);
        }
        match id {
            STRING_ID => {
                let mut text = Vec::new();
                input.append_string(STRING_LIMIT_BYTES, &mut text)?;
                Ok(Field::Text(text))
            }
            ARRAY_ID => array(input, key),
            _ => Err(Input::fault(offset, format!("a value of type {id}, expected 0 to 12"))),
        }
    }
}

fn scalar(input: &mut Input<'_>, kind: Kind) -> Result<Field, Fault> {
    let mut bytes = Vec::new();
    input.append(kind.bytes() as u64, &mut bytes)?;
    Ok(kind.field(&bytes))
}

fn array(input: &mut Input<'_>, key: &str) -> Result<Field, Fault> {
    let offset = input.position();
    let id = input.u32()?;
    let count = input.u64()?;
    if let Some(kind) = Kind::from_id(id) {
        input.expect(count, kind.bytes() as u64, ARRAY_LIMIT, "elements of an array")?;
        let mut bytes = Vec::new();
        input.append(count * kind.bytes() as u64, &mut bytes)?;
        return Ok(Field::Numbers(Numbers { kind, bytes }));
    }
    match id {
        STRING_ID => {
            let most = if key == TOKENS { TOKEN_LIMIT } else { ARRAY_LIMIT };
            input.expect(count, 8, most, "strings of an array")?;
            let mut texts = Texts::default();
            texts.ends.reserve_exact(count as usize);
            for _ in 0..count {
                input.append_string(KEY_LIMIT_BYTES, &mut texts.bytes)?;
                // The header as a whole is shorter than 4 GiB.
                texts.ends.push(texts.bytes.len() as u32);
            }
            Ok(Field::Texts(texts))
        }
        ARRAY_ID => Err(Input::fault(offset, "an array of arrays, which GGUF does not have")),
        _ => {
            let detail = format!("an array of elements of type {id}, expected 0 to 12");
            Err(Input::fault(offset, detail))
        }
    }
}

/// The keys and values of a file.
#[derive(Clone, Debug)]
pub struct Metadata {
    path: PathBuf,
    fields: BTreeMap<String, Field>,
}

impl Metadata {
    pub(super) fn new(path: &Path) -> Metadata {
        Metadata { path: path.to_owned(), fields: BTreeMap::new() }
    }

    /// Reads one key and its value; says what it was about when that fails.
    pub(super) fn read_field(&mut self, input: &mut Input<'_>) -> Result<(), (String, Fault)> {
        let part = || format!("metadata field {}", self.fields.len());
        let offset = input.position();
        let key = input.name(KEY_LIMIT_BYTES).map_err(|fault| (part(), fault))?;
        let described = format!("metadata {key:?}");
        if key.is_empty() {
            return Err((part(), Input::fault(offset, "an empty key")));
        }
        if self.fields.contains_key(&key) {
            return Err((described, Input::fault(offset, "the key is there twice")));
        }
        let field = Field::read(input, &key).map_err(|fault| (described, fault))?;
        self.fields.insert(key, field);
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys and values, sorted by key.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = (&str, &Field)> {
        self.fields.iter().map(|(key, field)| (key.as_str(), field))
    }

    /// The value at `key`.
    pub fn get(&self, key: &str) -> Option<&Field> {
        self.fields.get(key)
    }

    /// The text at `key`, if it is one.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The whole number at `key`, an error if something else is there.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.find(key, "a whole number", Field::as_u64)
    }

    /// The number at `key`, an error if something else is there.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        let finite = |field: &Field| field.as_f64().filter(|value| value.is_finite());
        self.find(key, "a finite number", finite)
    }

    /// The truth value at `key`, an error if something else is there.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.find(key, "true or false", Field::as_bool)
    }

    /// A number for each of `layers` layers: one for all, or an array with one for each or more.
    pub fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u64>>> {
        let expected = "a whole number, or one for each layer";
        self.find(key, expected, |field| match field {
            Field::Numbers(numbers) if numbers.len() < layers => None,
            Field::Numbers(numbers) => numbers.iter().take(layers).map(|n| n.as_u64()).collect(),
            one => one.as_u64().map(|value| vec![value; layers]),
        })
    }

    /// A truth value for each of `layers` layers, if there is an array of them.
    pub fn bools_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(Field::Numbers(_)) = self.get(key) else { return Ok(None) };
        self.find(key, "true or false for each layer", |field| match field {
            Field::Numbers(numbers) if numbers.len() >= layers => {
                numbers.iter().take(layers).map(|value| value.as_bool()).collect()
            }
            _ => None,
        })
    }

    fn find<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&Field) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(field) = self.get(key) else { return Ok(None) };
        read(field).map(Some).ok_or_else(|| self.refuse(key, expected))
    }

    /// The error about what stands at `key`.
    pub(super) fn refuse(&self, key: &str, expected: &'static str) -> Error {
        let got = self.get(key).map_or_else(|| "nothing".to_owned(), Field::shown);
        Error::Config { path: self.path.clone(), key: key.to_owned(), expected, got }
    }
}
