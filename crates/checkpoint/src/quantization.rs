//! What config.json says about quantization: a default and exceptions by module path.
//!
//! Only ever used to warn: the shapes decide, because mixed-precision files
//! lie in their global bits.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

use format::Encoding;

/// How codes and scales become numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `w = scale · q + bias` with float scales.
    Affine,
    /// E2M1 codes, E8M0 scales, groups of 32.
    Mxfp4,
    /// E4M3 codes, E8M0 scales, groups of 32.
    Mxfp8,
    /// E2M1 codes, E4M3 scales, groups of 16.
    Nvfp4,
}

impl Mode {
    fn from_name(name: &str) -> Option<Mode> {
        Some(match name {
            "affine" => Mode::Affine,
            "mxfp4" => Mode::Mxfp4,
            "mxfp8" => Mode::Mxfp8,
            "nvfp4" => Mode::Nvfp4,
            _ => return None,
        })
    }

    /// What MLX uses when only the mode is given.
    fn defaults(self) -> Scheme {
        let (bits, group) = match self {
            Mode::Affine => (4, 64),
            Mode::Mxfp4 => (4, 32),
            Mode::Mxfp8 => (8, 32),
            Mode::Nvfp4 => (4, 16),
        };
        Scheme { bits, group, mode: self }
    }
}

/// Bits per weight, weights per scale, and what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Bits per weight.
    pub bits: u8,
    /// Weights per scale.
    pub group: usize,
    /// How they become numbers.
    pub mode: Mode,
}

impl Scheme {
    /// An encoding in the words of config.json; `None` for plain floats, and for blocks, which it has no words for.
    pub fn of(encoding: Encoding) -> Option<Scheme> {
        let mode = match encoding {
            Encoding::Dense(_) | Encoding::Block(_) => return None,
            Encoding::Affine { .. } => Mode::Affine,
            Encoding::Mxfp4 => Mode::Mxfp4,
            Encoding::Mxfp8 => Mode::Mxfp8,
            Encoding::Nvfp4 => Mode::Nvfp4,
        };
        Some(Scheme { bits: encoding.bits()? as u8, group: encoding.group()?, mode })
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            Mode::Affine => write!(formatter, "affine {}-bit group {}", self.bits, self.group),
            Mode::Mxfp4 => formatter.write_str("mxfp4"),
            Mode::Mxfp8 => formatter.write_str("mxfp8"),
            Mode::Nvfp4 => formatter.write_str("nvfp4"),
        }
    }
}

/// The `quantization` table of config.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// What holds where nothing else is said.
    pub default: Scheme,
    /// By module path without its `model.` and `language_model.` wrappers; `None`: left alone.
    overrides: HashMap<String, Option<Scheme>>,
}

impl Quantization {
    /// What HF's `quant_method: mxfp4` means: whatever has scales has these.
    pub(crate) fn mxfp4() -> Quantization {
        Quantization { default: Mode::Mxfp4.defaults(), overrides: HashMap::new() }
    }

    pub(crate) fn parse(table: &Map<String, Value>, path: &Path) -> Result<Quantization> {
        let default = scheme(table, "quantization", path)?;
        let mut overrides = HashMap::new();
        for (key, value) in table {
            let scheme = match value {
                Value::Object(own) => Some(scheme(own, key, path)?),
                Value::Bool(true) => Some(default),
                Value::Bool(false) => None,
                // `bits`, `group_size`, `mode` and whatever else a converter noted down.
                _ => continue,
            };
            overrides.insert(unwrapped(key).to_owned(), scheme);
        }
        Ok(Quantization { default, overrides })
    }

    /// What the table says of a module by name; `None` when only the default applies to it,
    /// `Some(None)` when it says the module is not quantized.
    ///
    /// The longest dotted suffix wins, because keys are often written for another prefix than the
    /// tensors have (`model.layers…` for `language_model.model.layers…`).
    pub fn exception(&self, path: &str) -> Option<Option<Scheme>> {
        let mut rest = unwrapped(path);
        loop {
            if let Some(scheme) = self.overrides.get(rest) {
                return Some(*scheme);
            }
            rest = rest.split_once('.')?.1;
        }
    }

    /// What the table says of a module; `None`: not quantized.
    pub fn scheme(&self, path: &str) -> Option<Scheme> {
        self.exception(path).unwrap_or(Some(self.default))
    }

    /// The number of exceptions.
    pub fn exception_count(&self) -> usize {
        self.overrides.len()
    }
}

/// A module path without the wrappers that differ between HF, mlx-lm and mlx-vlm files.
fn unwrapped(path: &str) -> &str {
    let mut rest = path;
    while let Some(inner) =
        rest.strip_prefix("model.").or_else(|| rest.strip_prefix("language_model."))
    {
        rest = inner;
    }
    rest
}

/// One table of `bits`, `group_size` and `mode`; whatever is missing is as MLX's
/// `nn.quantize` fills it in, from the mode and not from the file's default.
fn scheme(table: &Map<String, Value>, key: &str, path: &Path) -> Result<Scheme> {
    let refuse = |field: &str, expected, got: &Value| Error::Config {
        path: path.to_owned(),
        key: format!("{key}.{field}"),
        expected,
        got: got.to_string(),
    };
    let given = |field: &str| table.get(field).filter(|value| !value.is_null());
    let mode = match given("mode") {
        None => Mode::Affine,
        Some(value) => value
            .as_str()
            .and_then(Mode::from_name)
            .ok_or_else(|| refuse("mode", "affine, mxfp4, mxfp8 or nvfp4", value))?,
    };
    let mut scheme = mode.defaults();
    if let Some(value) = given("bits") {
        let bits = value.as_u64().filter(|bits| (1..=8).contains(bits));
        scheme.bits = bits.ok_or_else(|| refuse("bits", "1 to 8", value))? as u8;
    }
    if let Some(value) = given("group_size") {
        let group = value.as_u64().filter(|group| (1..=1 << 20).contains(group));
        scheme.group = group.ok_or_else(|| refuse("group_size", "a group size", value))? as usize;
    }
    Ok(scheme)
}
