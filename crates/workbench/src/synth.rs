//! Checkpoints of real shapes with random weights, to compare with other engines.
//!
//! The same seed gives the same model as an MLX folder (affine 4-bit, f16 scales and biases) and
//! as a GGUF file (Q4_1): every weight decodes to the same f32 in both. The experts of gpt-oss are mxfp4,
//! and it has no GGUF here. Draft heads of the same shapes are written for what they cost. A model can also be in no
//! file at all ([`made`]): its weights are made as they are read. Nothing here runs a model.

mod draw;
mod gguf;
mod heads;
mod made;
mod mlx;
mod parts;
mod router;
mod shape;
mod tensors;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use machine::disk::Disk;
use machine::size;

use heads::Head;
use shape::Shape;

pub use made::made;
pub use parts::Progress;
pub use router::Router;

/// Bits of a code.
const BITS: usize = 4;

/// Groups that MLX's affine mode knows.
const GROUPS: [usize; 3] = [32, 64, 128];

/// What to write.
#[derive(Clone, Debug)]
pub struct Request {
    shape: Shape,
    /// The first so many layers of the shape.
    layers: usize,
    /// A head for such a model, not the model.
    head: Option<Head>,
    values: Values,
    format: Format,
    /// A folder for MLX, a file for GGUF.
    out: PathBuf,
    /// Whether `out` may be replaced.
    pub force: bool,
    /// Threads that make values; by default one a core.
    pub threads: usize,
}

/// What decides the weights' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// The same seed gives the same weights.
    pub seed: u64,
    /// Weights that share a scale; a GGUF repeats it for each 32.
    pub group: usize,
    /// How evenly tokens choose among the experts.
    pub router: Router,
}

impl Default for Values {
    fn default() -> Values {
        Values { seed: 1, group: 32, router: Router::Uniform }
    }
}

/// The kind of checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A folder of safetensors in MLX's layout: affine 4-bit.
    Mlx,
    /// One GGUF file: Q4_1.
    Gguf,
}

/// The kind of draft head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthHeadKind {
    /// Into the folder of a model that is there, as one more file.
    Mtp,
    /// A folder of its own, in the format of z-lab.
    Dflash,
}

impl Request {
    /// Checks the names and numbers a user gives.
    pub fn new(
        like: &str,
        layers: Option<usize>,
        values: Values,
        format: Format,
        out: PathBuf,
    ) -> Result<Request, Error> {
        let shape = shape::find(like)?;
        let layers = layers.unwrap_or(shape.layers);
        if layers == 0 || layers > shape.layers {
            return Err(Error::Layers { name: shape.name, have: shape.layers, got: layers });
        }
        if !GROUPS.contains(&values.group) {
            return Err(Error::Group { got: values.group });
        }
        if !shape.hidden.is_multiple_of(values.group) {
            return Err(Error::GroupOf { name: shape.name, got: values.group });
        }
        if values.router == Router::Tuned && !shape.has_experts() {
            return Err(Error::NoRouter { name: shape.name });
        }
        if format == Format::Gguf
            && matches!(shape.family, shape::Family::GptOss | shape::Family::Gemma4)
        {
            return Err(Error::NoGguf { name: shape.name });
        }
        let threads = machine::cpu::core_count();
        Ok(Request { shape, layers, head: None, values, format, out, force: false, threads })
    }

    /// Selects a head of such a model instead of the model.
    pub fn set_head(&mut self, kind: SynthHeadKind) -> Result<(), Error> {
        let head = match kind {
            SynthHeadKind::Mtp => Head::mtp(&self.shape)?,
            SynthHeadKind::Dflash => Head::dflash(&self.shape)?,
        };
        self.head = Some(head);
        Ok(())
    }

    /// What is written, in words: `12 layers of qwen3.5-35b-a3b`.
    pub fn description(&self) -> String {
        let model = format!("{} of {}", size::counted(self.layers, "layer"), self.shape.name);
        match self.head {
            None => model,
            Some(head) => format!("{} for {model}", head.name()),
        }
    }

    /// Bytes the weights will take.
    pub fn weight_bytes(&self) -> u64 {
        let tensors = self.tensors();
        match self.format {
            Format::Mlx => mlx::weight_bytes(&tensors, self.values),
            Format::Gguf => gguf::weight_bytes(&tensors, self.values),
        }
    }

    fn tensors(&self) -> Vec<tensors::Tensor> {
        match self.head {
            None => tensors::tensors(&self.shape, self.layers, self.values),
            Some(head) => head.tensors(self),
        }
    }
}

/// Writes the checkpoint; refuses early what cannot succeed.
pub fn write(request: &Request, progress: Progress<'_>) -> Result<(), Error> {
    match request.head {
        None => refuse_existing(request)?,
        Some(head) => head.check(request)?,
    }
    refuse_full_disk(&request.out, request.weight_bytes())?;
    if let Some(head) = request.head {
        return head.write(request, progress);
    }
    let tensors = request.tensors();
    match request.format {
        Format::Mlx => mlx::write(request, &tensors, progress),
        Format::Gguf => gguf::write(request, &tensors, progress),
    }
}

fn refuse_existing(request: &Request) -> Result<(), Error> {
    let out = &request.out;
    let Ok(found) = fs::metadata(out) else { return Ok(()) };
    match request.format {
        Format::Gguf if found.is_dir() => return Err(Error::IsFolder { path: out.clone() }),
        Format::Mlx if !found.is_dir() => return Err(Error::IsFile { path: out.clone() }),
        Format::Gguf | Format::Mlx => {}
    }
    let empty = match found.is_dir() {
        // What an earlier attempt left behind is as good as nothing.
        true if out.join(mlx::UNFINISHED).exists() => true,
        true => fs::read_dir(out).map_err(|source| Error::io(out, source))?.next().is_none(),
        false => found.len() == 0,
    };
    if empty || request.force { Ok(()) } else { Err(Error::Exists { path: out.clone() }) }
}

fn refuse_full_disk(out: &Path, needed: u64) -> Result<(), Error> {
    let existing = out.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    // A relative path without folders has "" as its last ancestor.
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    match Disk::of(existing).ok().and_then(|disk| disk.free_bytes) {
        Some(free) if free < needed => {
            Err(Error::Space { path: existing.to_owned(), needed, free })
        }
        // Where the free space is not known, writing will show it.
        Some(_) | None => Ok(()),
    }
}

/// What can go wrong. [`Error::hint`] says what to do about it.
#[derive(Debug)]
pub enum Error {
    /// No shape has this name.
    UnknownShape {
        /// What was requested.
        name: String,
    },
    /// The shape has not so many layers.
    Layers {
        /// The shape.
        name: &'static str,
        /// Layers it has.
        have: usize,
        /// Layers that were requested.
        got: usize,
    },
    /// Groups of this size do not exist.
    Group {
        /// What was requested.
        got: usize,
    },
    /// Rows of the shape are no whole groups.
    GroupOf {
        /// The shape.
        name: &'static str,
        /// What was requested.
        got: usize,
    },
    /// GGUF cannot hold it.
    NoGguf {
        /// The shape, or the head.
        name: &'static str,
    },
    /// A tuned router of a model without experts.
    NoRouter {
        /// The shape.
        name: &'static str,
    },
    /// No such head was published for the shape.
    NoHead {
        /// The shape.
        name: &'static str,
        /// The head.
        head: &'static str,
    },
    /// A head for another model than the one in the folder.
    OtherModel {
        /// The folder.
        path: PathBuf,
        /// The shape.
        name: &'static str,
        /// What is in the folder.
        got: String,
    },
    /// Something is there already.
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// A GGUF cannot be a folder.
    IsFolder {
        /// Where.
        path: PathBuf,
    },
    /// An MLX checkpoint cannot be a file.
    IsFile {
        /// Where.
        path: PathBuf,
    },
    /// The disk is too full.
    Space {
        /// A folder on it.
        path: PathBuf,
        /// Bytes of the weights.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The callback for progress ended it.
    Interrupted,
    /// A file cannot be written.
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A model in memory is none.
    Made {
        /// Why not.
        source: Box<checkpoint::Error>,
    },
    /// A file of weights cannot be written.
    Weights {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Box<checkpoint::Error>,
    },
}

impl Error {
    fn io(path: &Path, source: io::Error) -> Error {
        Error::Io { path: path.to_owned(), source }
    }

    fn weights(path: &Path, source: checkpoint::Error) -> Error {
        Error::Weights { path: path.to_owned(), source: Box::new(source) }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::UnknownShape { .. } => {
                Some(format!("the shapes are {}", shape::names().join(", ")))
            }
            Error::Group { .. } => Some("the groups are 32, 64 and 128".to_owned()),
            Error::GroupOf { .. } => Some("--group 32 fits every shape".to_owned()),
            Error::NoRouter { .. } => Some("a tuned router is for models with experts".to_owned()),
            Error::NoGguf { .. } => Some("--format mlx writes it".to_owned()),
            Error::NoHead { .. } => {
                Some("--like qwen3.5-35b-a3b has both kinds of heads".to_owned())
            }
            Error::OtherModel { .. } => {
                Some("synth writes the model without --head, and then its head".to_owned())
            }
            Error::Exists { .. } => Some("--force replaces it".to_owned()),
            Error::IsFolder { path } => {
                let file = path.join("model.gguf");
                Some(format!("a GGUF is one file, such as {}", file.display()))
            }
            Error::IsFile { .. } => Some("an MLX checkpoint is a folder".to_owned()),
            Error::Space { .. } => Some("--layers N writes the first N layers only".to_owned()),
            Error::Layers { .. }
            | Error::Interrupted
            | Error::Made { .. }
            | Error::Io { .. }
            | Error::Weights { .. } => None,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::UnknownShape { name } => write!(formatter, "there is no shape `{name}`"),
            Error::Layers { name, have, got } => {
                write!(formatter, "{name} has 1 to {have} layers, not {got}")
            }
            Error::Group { got } => write!(formatter, "groups of {got} are not possible"),
            Error::GroupOf { name, got } => {
                write!(formatter, "rows of {name} are no whole groups of {got}")
            }
            Error::NoGguf { name } => write!(formatter, "{name} cannot be written as GGUF"),
            Error::NoRouter { name } => write!(formatter, "{name} has no router"),
            Error::NoHead { name, head } => write!(formatter, "there is no {head} of {name}"),
            Error::OtherModel { path, name, got } => {
                write!(formatter, "{} is no model like {name}: {got}", path.display())
            }
            Error::Exists { path } => write!(formatter, "{} is not empty", path.display()),
            Error::IsFolder { path } => write!(formatter, "{} is a folder", path.display()),
            Error::IsFile { path } => write!(formatter, "{} is a file", path.display()),
            Error::Space { path, needed, free } => write!(
                formatter,
                "the weights need {}, {} has {} free",
                size::bytes(*needed),
                path.display(),
                size::bytes(*free)
            ),
            Error::Interrupted => write!(formatter, "interrupted"),
            Error::Made { .. } => write!(formatter, "cannot make the model"),
            Error::Io { path, .. } | Error::Weights { path, .. } => {
                write!(formatter, "cannot write {}", path.display())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Made { source } | Error::Weights { source, .. } => Some(&**source),
            _ => None,
        }
    }
}
