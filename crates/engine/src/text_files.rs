//! The text side of a checkpoint.

use checkpoint::Checkpoint;
use text::ModelText;

use crate::{Error, Result};

/// Reads what a checkpoint has between text and tokens.
pub fn open_text(checkpoint: &Checkpoint) -> Result<ModelText> {
    ModelText::open(|name| checkpoint.read_file(name).map_err(Error::from))
}
