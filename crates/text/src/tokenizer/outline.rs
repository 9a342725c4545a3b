//! A tokenizer.json as far as it must be known before the `tokenizers` crate may read it.
//!
//! The vocabulary and its merges are counted as they go by and not kept, all else is kept whole. What is
//! kept has a limit on its values, on their depth and on repeated keys, since the crate copies it several
//! times, descends into it without counting, and takes sometimes the first and sometimes the last of two.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The most tokens, and one more than the largest id of one. Published vocabularies have up to 262,400.
pub(super) const MOST_TOKENS: u64 = 1 << 21;

/// The most values outside vocabulary, merges and added tokens. Published files have some hundreds.
const MOST_VALUES: usize = 1 << 15;

/// How deep these may lie in each other. Published files go seven deep.
const DEEPEST: usize = 24;

/// What is known of a file.
#[derive(Debug, Default)]
pub(super) struct Outline {
    /// `normalizer`, `pre_tokenizer`, `post_processor` and `decoder`, those that are there.
    pub(super) sections: Vec<(&'static str, Value)>,
    pub(super) model: ModelOutline,
    /// What the added tokens are called.
    pub(super) added: Vec<String>,
    /// Bytes of those that the normalizer goes over.
    pub(super) normalized_bytes: usize,
}

/// What is known of `model`.
#[derive(Debug, Default)]
pub(super) struct ModelOutline {
    /// All but `vocab` and `merges`.
    pub(super) rest: Map<String, Value>,
    /// The tokens of a vocabulary that is a list: those of Unigram become a tree.
    pub(super) pieces: Vec<String>,
    /// Bit `n`: byte `n` of what a merge appends lies inside a character.
    pub(super) inside_characters: u64,
}

/// The sections that are kept; `truncation` and `padding` are not used.
const SECTIONS: [&str; 4] = ["normalizer", "pre_tokenizer", "post_processor", "decoder"];

impl Outline {
    /// Reads the file, or says what is wrong with it and where.
    pub(super) fn read(json: &[u8]) -> Result<Outline, serde_json::Error> {
        let left = Cell::new(MOST_VALUES);
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let outline = FileVisitor { left: &left }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(outline)
    }
}

/// Each visitor reads where it stands.
macro_rules! seed {
    ($visitor:ty, $method:ident) => {
        impl<'de> DeserializeSeed<'de> for $visitor {
            type Value = <Self as Visitor<'de>>::Value;

            fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
                from.$method(self)
            }
        }
    };
}

struct FileVisitor<'a> {
    left: &'a Cell<usize>,
}
seed!(FileVisitor<'_>, deserialize_map);

impl<'de> Visitor<'de> for FileVisitor<'_> {
    type Value = Outline;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a tokenizer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Outline, A::Error> {
        let mut outline = Outline::default();
        let mut seen: Vec<String> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(de::Error::custom(format!("{} is there twice", shown(&key))));
            }
            let section = SECTIONS.iter().find(|&&section| section == key);
            if let Some(section) = section {
                let value = map.next_value_seed(Small { left: self.left, depth: 0 });
                outline.sections.push((section, value.map_err(|error| within(section, &error))?));
            } else if key == "model" {
                let model = map.next_value_seed(ModelVisitor { left: self.left });
                outline.model = model.map_err(|error| within("model", &error))?;
            } else if key == "added_tokens" {
                let added = map.next_value_seed(AddedVisitor);
                (outline.added, outline.normalized_bytes) =
                    added.map_err(|error| within("added_tokens", &error))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            // Sections that are not known are not read.
            if seen.len() < 64 {
                seen.push(key);
            }
        }
        if !seen.iter().any(|key| key == "model") {
            return Err(de::Error::missing_field("model"));
        }
        Ok(outline)
    }
}

struct ModelVisitor<'a> {
    left: &'a Cell<usize>,
}
seed!(ModelVisitor<'_>, deserialize_map);

impl<'de> Visitor<'de> for ModelVisitor<'_> {
    type Value = ModelOutline;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelOutline, A::Error> {
        let mut outline = ModelOutline::default();
        let (mut has_vocabulary, mut has_merges) = (false, false);
        while let Some(key) = map.next_key::<String>()? {
            let is_known = match key.as_str() {
                "vocab" => std::mem::replace(&mut has_vocabulary, true),
                "merges" => std::mem::replace(&mut has_merges, true),
                key => outline.rest.contains_key(key),
            };
            if is_known {
                return Err(de::Error::custom(format!("{} is there twice", shown(&key))));
            }
            match key.as_str() {
                "vocab" => {
                    let vocabulary = map.next_value_seed(VocabularyVisitor);
                    outline.pieces = vocabulary.map_err(|error| within("vocab", &error))?;
                }
                "merges" => {
                    let merges = map.next_value_seed(MergesVisitor);
                    outline.inside_characters = merges.map_err(|error| within("merges", &error))?;
                }
                _ => {
                    let value = map.next_value_seed(Small { left: self.left, depth: 0 })?;
                    outline.rest.insert(key, value);
                }
            }
        }
        Ok(outline)
    }
}

/// Tokens with their ids, or a list of tokens with their scores, of which it gives the tokens.
struct VocabularyVisitor;
seed!(VocabularyVisitor, deserialize_any);

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = Vec<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<String>, A::Error> {
        let mut count = 0;
        while let Some(token) = map.next_key::<String>()? {
            let id = map.next_value::<u64>();
            let id = id.map_err(|error| within(&format!("the id of {}", shown(&token)), &error))?;
            if id >= MOST_TOKENS {
                let message =
                    format!("{} has the id {id}, ids are below {MOST_TOKENS}", shown(&token));
                return Err(de::Error::custom(message));
            }
            count_one(&mut count, "tokens")?;
        }
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
        let (mut count, mut pieces) = (0, Vec::new());
        while let Some((piece, _score)) = list.next_element::<(String, f64)>()? {
            count_one(&mut count, "tokens")?;
            pieces.push(piece);
        }
        Ok(pieces)
    }
}

/// Counts merges, and gives where in what they append a prefix may not end.
struct MergesVisitor;
seed!(MergesVisitor, deserialize_seq);

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(IgnoredAny, String),
    Line(String),
}

impl<'de> Visitor<'de> for MergesVisitor {
    type Value = u64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<u64, A::Error> {
        let (mut count, mut inside) = (0, 0);
        while let Some(merge) = list.next_element::<Merge>()? {
            count_one(&mut count, "merges")?;
            let appended = match &merge {
                Merge::Pair(_, appended) => appended.as_str(),
                Merge::Line(line) => line.split(' ').nth(1).unwrap_or_default(),
            };
            if !appended.is_ascii() {
                let places =
                    (0..appended.len().min(64)).filter(|&at| !appended.is_char_boundary(at));
                inside |= places.fold(0, |bits: u64, at| bits | 1 << at);
            }
        }
        Ok(inside)
    }
}

/// The names of added tokens, and how many bytes of them are normalized.
struct AddedVisitor;
seed!(AddedVisitor, deserialize_seq);

#[derive(serde::Deserialize)]
struct Added {
    id: u64,
    content: String,
    normalized: Option<bool>,
}

impl<'de> Visitor<'de> for AddedVisitor {
    type Value = (Vec<String>, usize);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of added tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(Vec<String>, usize), A::Error> {
        let (mut count, mut names, mut normalized_bytes) = (0, Vec::new(), 0);
        while let Some(Added { id, content, normalized }) = list.next_element()? {
            count_one(&mut count, "tokens")?;
            if id >= MOST_TOKENS {
                let message =
                    format!("{} has the id {id}, ids are below {MOST_TOKENS}", shown(&content));
                return Err(de::Error::custom(message));
            }
            if normalized.unwrap_or(true) {
                normalized_bytes += content.len();
            }
            names.push(content);
        }
        Ok((names, normalized_bytes))
    }
}

/// Any value, as long as it is small.
#[derive(Clone, Copy)]
struct Small<'a> {
    left: &'a Cell<usize>,
    depth: usize,
}
seed!(Small<'_>, deserialize_any);

impl Small<'_> {
    /// Counts a value, and gives what counts those in it.
    fn inner<E: de::Error>(self) -> Result<Self, E> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(E::custom(format!("more than {MOST_VALUES} values")));
        };
        self.left.set(left);
        if self.depth == DEEPEST {
            return Err(E::custom(format!("values more than {DEEPEST} deep in each other")));
        }
        Ok(Small { depth: self.depth + 1, ..self })
    }
}

impl<'de> Visitor<'de> for Small<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.inner().map(|_| Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        self.inner().map(|_| value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.inner().map(|_| value.into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.inner().map(|_| value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        self.inner().map(|_| value.into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.inner().map(|_| value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(inner)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut values = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(inner)?;
            if values.contains_key(&key) {
                return Err(de::Error::custom(format!("{} is there twice", shown(&key))));
            }
            values.insert(key, value);
        }
        Ok(Value::Object(values))
    }
}

fn count_one<E: de::Error>(count: &mut u64, what: &str) -> Result<(), E> {
    *count += 1;
    if *count > MOST_TOKENS {
        return Err(E::custom(format!("more than {MOST_TOKENS} {what}")));
    }
    Ok(())
}

/// An error with the part it is in before it.
fn within<E: de::Error>(part: &str, error: &E) -> E {
    E::custom(format!("{part}: {error}"))
}

/// A name from the file for a message: short, and without control characters.
pub(super) fn shown(name: &str) -> String {
    const CHARACTERS: usize = 40;
    match name.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{:?}…", &name[..end]),
        None => format!("{name:?}"),
    }
}
