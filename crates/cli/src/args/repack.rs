//! Options of `millstream repack`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

/// `millstream repack`.
#[derive(Debug, Args)]
pub(crate) struct RepackArgs {
    /// A folder, a name in the Hugging Face cache, or an alias
    pub(crate) model: String,
    /// Folder for the copy; by default one in the user's cache, from where it is used without asking
    #[arg(value_hint = clap::ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Write nothing: compare a copy that is there with the model, byte for byte
    #[arg(long, env = "MILLSTREAM_VERIFY", value_parser = BoolishValueParser::new())]
    pub(crate) verify: bool,
}
