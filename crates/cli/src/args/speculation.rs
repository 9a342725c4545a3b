//! Options of speculation: what drafts.

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

/// Heading of these options.
const HEADING: &str = "Speculation";

/// What `--dflash` means without a name.
pub(crate) const OWN_DFLASH: &str = "auto";

/// What may draft tokens that the model then verifies, several at once. Answers stay the same.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct SpeculationArgs {
    /// Speculative decoding; by default drafts by prompt lookup when that is measured to be faster
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = When::Auto,
          env = "MILLSTREAM_SPECULATION")]
    pub(crate) speculation: When,

    /// A smaller model with the same tokenizer that drafts
    #[arg(long, value_name = "MODEL", env = "MILLSTREAM_DRAFT_MODEL")]
    pub(crate) draft_model: Option<String>,

    /// Draft with the model's MTP head
    #[arg(
        long,
        env = "MILLSTREAM_MTP",
        value_parser = BoolishValueParser::new()
    )]
    pub(crate) mtp: bool,

    /// Draft blocks with a DFlash model; by default the one that was published for the model
    #[arg(long, value_name = "MODEL", env = "MILLSTREAM_DFLASH", num_args = 0..=1,
          default_missing_value = OWN_DFLASH)]
    pub(crate) dflash: Option<String>,
}

/// When to speculate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// Where it is faster.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl SpeculationArgs {
    /// Whether a source other than prompt lookup was requested.
    pub(crate) fn names_a_source(&self) -> bool {
        self.mtp || self.draft_model.is_some() || self.dflash.is_some()
    }
}
