//! config.json as one flat view: `text_config` first, then the top level.
//!
//! Multimodal checkpoints nest the text model's keys, text-only ones do not; asking here works for
//! both. `null` counts as absent. A key may be dotted: `rope_parameters.rope_theta`.
//! The image and audio halves are reached through [`Config::value`] like anything else.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{Error, Quantization, Result};

/// The file's name.
pub(crate) const CONFIG_NAME: &str = "config.json";

/// Larger than any published config.json (the largest list quantization per tensor, about 1 MB).
pub(crate) const CONFIG_LIMIT_BYTES: u64 = 4 << 20;

/// A parsed config.json.
#[derive(Clone, Debug)]
pub struct Config {
    path: PathBuf,
    root: Map<String, Value>,
    model_type: String,
    quantization: Option<Quantization>,
}

impl Config {
    /// Parses config.json; `path` is what errors name.
    pub fn parse(json: &[u8], path: &Path) -> Result<Config> {
        let root: Map<String, Value> = serde_json::from_slice(json)
            .map_err(|error| Error::Json { path: path.to_owned(), detail: error.to_string() })?;
        Config::from_root(root, path)
    }

    /// The same from a table.
    pub(crate) fn from_root(root: Map<String, Value>, path: &Path) -> Result<Config> {
        let quantization = parse_quantization(&root, path)?;
        let mut config =
            Config { path: path.to_owned(), root, model_type: String::new(), quantization };
        let name = config.root.get("model_type").and_then(Value::as_str);
        let Some(name) = name.or_else(|| config.str("model_type")) else {
            return Err(config.refuse("model_type", "a name"));
        };
        config.model_type = without_text(name).to_owned();
        Ok(config)
    }

    /// The architecture: the top-level `model_type` without a trailing `_text`.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// The text model's own `model_type`, also without `_text`; differs from the top-level one
    /// where a multimodal model wraps another family.
    pub fn text_model_type(&self) -> &str {
        self.str("model_type").map_or(&self.model_type, without_text)
    }

    /// What is at `key`, in `text_config` or else at the top level.
    pub fn value(&self, key: &str) -> Option<&Value> {
        let nested = self.root.get("text_config").and_then(Value::as_object);
        nested.and_then(|text| lookup(text, key)).or_else(|| lookup(&self.root, key))
    }

    /// A whole number that is not negative.
    pub fn usize(&self, key: &str) -> Option<usize> {
        let value = self.value(key)?;
        if let Some(number) = value.as_u64() {
            return usize::try_from(number).ok();
        }
        // Some converters write every number as a float; up to 2^53 that loses nothing.
        let number = value.as_f64()?;
        let whole = number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&number);
        whole.then_some(number as usize)
    }

    /// A number.
    pub fn f64(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64()
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.value(key)?.as_bool()
    }

    /// A string.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.value(key)?.as_str()
    }

    /// A list.
    pub fn list(&self, key: &str) -> Option<&[Value]> {
        self.value(key)?.as_array().map(Vec::as_slice)
    }

    /// A list of whole numbers; `None` if one of them is something else.
    pub fn usize_list(&self, key: &str) -> Option<Vec<usize>> {
        let whole = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.list(key)?.iter().map(whole).collect()
    }

    /// A list of strings; `None` if one of them is something else.
    pub fn str_list(&self, key: &str) -> Option<Vec<&str>> {
        self.list(key)?.iter().map(Value::as_str).collect()
    }

    /// [`Config::usize`], or an error that names the key and what stands there.
    pub fn require_usize(&self, key: &str) -> Result<usize> {
        self.usize(key).ok_or_else(|| self.refuse(key, "a whole number"))
    }

    /// [`Config::f64`], or an error that names the key and what stands there.
    pub fn require_f64(&self, key: &str) -> Result<f64> {
        self.f64(key).ok_or_else(|| self.refuse(key, "a number"))
    }

    /// [`Config::str`], or an error that names the key and what stands there.
    pub fn require_str(&self, key: &str) -> Result<&str> {
        self.str(key).ok_or_else(|| self.refuse(key, "a string"))
    }

    /// The tokens that end a text, from `eos_token_id` of both levels, in order of appearance.
    /// Often incomplete: [`crate::Checkpoint::eos_token_ids`] adds generation_config.json.
    pub fn eos_token_ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        let text = self.root.get("text_config").and_then(|text| text.get("eos_token_id"));
        for value in [text, self.root.get("eos_token_id")].into_iter().flatten() {
            add_token_ids(&mut ids, value);
        }
        ids
    }

    /// What config.json says about quantization, if it does so in MLX's words or is gpt-oss's own.
    pub fn quantization(&self) -> Option<&Quantization> {
        self.quantization.as_ref()
    }

    /// What errors name as the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file.
    pub fn root(&self) -> &Map<String, Value> {
        &self.root
    }

    fn refuse(&self, key: &str, expected: &'static str) -> Error {
        let got = self.value(key).map_or_else(|| "nothing".to_owned(), shorten);
        Error::Config { path: self.path.clone(), key: key.to_owned(), expected, got }
    }
}

/// Adds the ids of a number or a list of numbers.
pub(crate) fn add_token_ids(ids: &mut Vec<u32>, value: &Value) {
    let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    for id in values.iter().filter_map(Value::as_u64) {
        if let Ok(id) = u32::try_from(id)
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
}

fn lookup<'a>(table: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let mut parts = key.split('.');
    let mut value = table.get(parts.next()?)?;
    for part in parts {
        value = value.get(part)?;
    }
    (!value.is_null()).then_some(value)
}

fn parse_quantization(root: &Map<String, Value>, path: &Path) -> Result<Option<Quantization>> {
    let own = root.get("quantization").and_then(Value::as_object);
    // HF files have a table of the same name with other keys; `quant_method` tells them apart.
    let copy = root.get("quantization_config").and_then(Value::as_object);
    if own.is_none() && copy.and_then(|table| table.get("quant_method")) == Some(&"mxfp4".into()) {
        return Ok(Some(Quantization::mxfp4()));
    }
    let table = own.or(copy.filter(|table| !table.contains_key("quant_method")));
    table.map(|table| Quantization::parse(table, path)).transpose()
}

fn without_text(name: &str) -> &str {
    name.strip_suffix("_text").unwrap_or(name)
}

/// A value for an error message: a list of a thousand entries does not help.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= 60 {
        return text;
    }
    text.chars().take(57).chain("...".chars()).collect()
}
