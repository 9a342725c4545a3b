//! Writes the models of testdata/models, with the weights that each `weights.txt` describes.
//!
//! The rule of the bytes is in `testdata/README.md` and, as Python, in `testdata/seeded.py`. A digest in each
//! description says whether both agree.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use half::{bf16, f16};

/// The increment and finaliser of SplitMix64 (Steele, Lea, Flood 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One over the deviation of four sixteen-bit numbers' sum, 65536 / √3.
const BELL: f32 = 2.6428e-5;

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo runs this");
    let from = Path::new(&root).join("../../testdata/models");
    let to = PathBuf::from(env::var("OUT_DIR").expect("cargo runs this")).join("models");
    println!("cargo::rerun-if-changed={}", from.display());
    println!("cargo::rustc-env=GOLDEN_MODELS={}", to.display());
    if let Err(error) = write_models(&from, &to) {
        println!("cargo::error=cannot make the models of testdata: {error}");
    }
}

fn write_models(from: &Path, to: &Path) -> io::Result<()> {
    // Models that are gone must not stay.
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    for model in fs::read_dir(from)? {
        let model = model?;
        let folder = to.join(model.file_name());
        fs::create_dir_all(&folder)?;
        for file in fs::read_dir(model.path())? {
            let file = file?;
            if file.file_name() == "weights.txt" {
                let text = fs::read_to_string(file.path())?;
                let name = file.path().display().to_string();
                for weights in parse(&text).ok_or_else(|| bad(&name, "not understood"))? {
                    weights.write(&folder, &name)?;
                }
            } else {
                fs::copy(file.path(), folder.join(file.file_name()))?;
            }
        }
    }
    Ok(())
}

fn bad(name: &str, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {what}"))
}

/// One weight file.
struct Weights<'a> {
    seed: u64,
    file: &'a str,
    header_bytes: usize,
    metadata: Vec<(&'a str, &'a str)>,
    digest: u64,
    /// In the order of the file.
    names: Vec<&'a str>,
    tensors: BTreeMap<&'a str, Tensor<'a>>,
}

struct Tensor<'a> {
    dtype: &'a str,
    shape: Vec<usize>,
    rule: Rule<'a>,
}

enum Rule<'a> {
    /// Random bits.
    Words,
    /// Bytes from `low` on, so many of them; of either sign in their highest bit.
    Bytes { low: u8, choices: u64, signed: bool },
    /// Nearly normal.
    Normal { scale: f32, offset: f32 },
    /// Even; of either sign.
    Uniform { scale: f32, offset: f32, signed: bool },
    /// Another tensor's stored values, times a factor.
    Times { factor: f32, other: &'a str },
}

fn parse(text: &str) -> Option<Vec<Weights<'_>>> {
    let (mut seed, mut files) = (0, Vec::<Weights>::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["seed", number] => seed = number.parse().ok()?,
            ["file", file] => files.push(Weights {
                seed,
                file,
                header_bytes: 0,
                metadata: Vec::new(),
                digest: 0,
                names: Vec::new(),
                tensors: BTreeMap::new(),
            }),
            ["header", bytes] => files.last_mut()?.header_bytes = bytes.parse().ok()?,
            ["metadata", key, value] => files.last_mut()?.metadata.push((key, value)),
            ["digest", number] => {
                files.last_mut()?.digest = u64::from_str_radix(number, 16).ok()?;
            }
            ["tensor", name, dtype, shape, ref rule @ ..] => {
                let shape =
                    shape.split('x').map(|size| size.parse().ok()).collect::<Option<_>>()?;
                let file = files.last_mut()?;
                file.names.push(name);
                file.tensors.insert(name, Tensor { dtype, shape, rule: parse_rule(rule)? });
            }
            _ => return None,
        }
    }
    Some(files)
}

fn parse_rule<'a>(words: &[&'a str]) -> Option<Rule<'a>> {
    let number = |text: &str| text.parse::<f32>().ok();
    Some(match *words {
        ["words"] => Rule::Words,
        [kind @ ("bytes" | "signed-bytes"), low, choices] => Rule::Bytes {
            low: low.parse().ok()?,
            choices: choices.parse().ok()?,
            signed: kind == "signed-bytes",
        },
        ["normal", scale, offset] => {
            Rule::Normal { scale: number(scale)?, offset: number(offset)? }
        }
        [kind @ ("uniform" | "signed"), scale, offset] => Rule::Uniform {
            scale: number(scale)?,
            offset: number(offset)?,
            signed: kind == "signed",
        },
        ["times", factor, other] => Rule::Times { factor: number(factor)?, other },
        _ => return None,
    })
}

impl Weights<'_> {
    fn write(&self, folder: &Path, name: &str) -> io::Result<()> {
        let mut data = Vec::new();
        let mut header = String::from("{");
        let mut separate = "";
        if !self.metadata.is_empty() {
            let pairs = self.metadata.iter().map(|(key, value)| format!("\"{key}\":\"{value}\""));
            header += &format!("\"__metadata__\":{{{}}}", pairs.collect::<Vec<_>>().join(","));
            separate = ",";
        }
        for tensor in &self.names {
            let begin = data.len();
            let made = self.fill(tensor).ok_or_else(|| bad(name, &format!("{tensor}: no rule")))?;
            data.extend(made);
            let Tensor { dtype, shape, .. } = &self.tensors[tensor];
            let shape = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let end = data.len();
            let entry = format!(
                "{separate}\"{tensor}\":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{begin},{end}]}}"
            );
            header += &entry;
            separate = ",";
        }
        header.push('}');
        if header.len() > self.header_bytes {
            return Err(bad(name, "the header is too long"));
        }
        if digest(&data) != self.digest {
            return Err(bad(name, &format!("{}: the digest is another", self.file)));
        }
        // Data that begins at an odd place does so here too.
        let spaces = self.header_bytes - header.len();
        let _ = write!(header, "{:spaces$}", "");
        let mut bytes = (self.header_bytes as u64).to_le_bytes().to_vec();
        bytes.extend(header.into_bytes());
        bytes.extend(data);
        fs::write(folder.join(self.file), bytes)
    }

    /// The bytes of a tensor.
    fn fill(&self, name: &str) -> Option<Vec<u8>> {
        let Tensor { dtype, shape, rule } = self.tensors.get(name)?;
        let count: usize = shape.iter().product();
        let bytes = match *dtype {
            "F32" | "U32" => 4,
            "F16" | "BF16" => 2,
            "U8" => 1,
            _ => return None,
        };
        let key = Key::new(self.seed, name);
        let each = |value: &dyn Fn(u64) -> f32| {
            (0..count).map(|index| value(key.word(index))).collect::<Vec<f32>>()
        };
        let values = match *rule {
            Rule::Words => {
                let words = (0..(count * bytes).div_ceil(8)).map(|index| key.word(index));
                let mut made: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
                made.truncate(count * bytes);
                return Some(made);
            }
            Rule::Bytes { low, choices, signed } => {
                let byte = |word: u64| {
                    let sign = if signed { (word as u8 & 1) << 7 } else { 0 };
                    low + ((word >> 32) % choices) as u8 + sign
                };
                return Some((0..count * bytes).map(|index| byte(key.word(index))).collect());
            }
            Rule::Times { factor, other } => {
                let values = floats(&self.fill(other)?, self.tensors[other].dtype)?;
                values.into_iter().map(|value| factor * value).collect()
            }
            Rule::Normal { scale, offset } => each(&|word| offset + scale * bell(word)),
            Rule::Uniform { scale, offset, signed } => each(&|word| {
                let value = offset + scale * ((word >> 40) as f32 / (1_u32 << 24) as f32);
                if signed && word & 1 == 1 { -value } else { value }
            }),
        };
        stored(&values, dtype)
    }
}

fn bell(word: u64) -> f32 {
    let sum: i64 = (0..4).map(|lane| (word >> (16 * lane) & 0xffff) as i64).sum();
    (sum - 131_070) as f32 * BELL
}

/// f32 values as the bytes of a type.
fn stored(values: &[f32], dtype: &str) -> Option<Vec<u8>> {
    let values = values.iter().copied();
    Some(match dtype {
        "F32" => values.flat_map(f32::to_le_bytes).collect(),
        "F16" => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        "BF16" => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => return None,
    })
}

/// The values of such bytes.
fn floats(bytes: &[u8], dtype: &str) -> Option<Vec<f32>> {
    let halves = || bytes.as_chunks().0.iter().copied();
    Some(match dtype {
        "F32" => bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect(),
        "F16" => halves().map(|half| f16::from_le_bytes(half).to_f32()).collect(),
        "BF16" => halves().map(|half| bf16::from_le_bytes(half).to_f32()).collect(),
        _ => return None,
    })
}

/// A sum that no changed byte leaves as it is.
fn digest(data: &[u8]) -> u64 {
    let mut sum = 0_u64;
    for (index, chunk) in data.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let counter = (index as u64 + 1).wrapping_mul(GOLDEN);
        sum = sum.wrapping_add(mix(u64::from_le_bytes(word).wrapping_add(counter)));
    }
    sum
}

/// Where a tensor's counters start.
struct Key(u64);

impl Key {
    fn new(seed: u64, name: &str) -> Key {
        let start = mix(seed.wrapping_add(GOLDEN));
        Key(name.bytes().fold(start, |key, byte| mix(key ^ u64::from(byte))))
    }

    fn word(&self, index: usize) -> u64 {
        mix(self.0.wrapping_add((index as u64 + 1).wrapping_mul(GOLDEN)))
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
