//! Options of `millstream simulate`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

/// `millstream simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// A file that --record-routing wrote
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Print JSON
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// The size that is requested, in addition to --memory.
    #[command(flatten)]
    pub(crate) cache: super::ExpertCacheArgs,
    /// The same in experts.
    #[command(flatten)]
    pub(crate) slots: super::SlotsArgs,
}
