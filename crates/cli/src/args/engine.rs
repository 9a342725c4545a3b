//! Options of the commands that load a model: where experts come from, how many, and what is kept.

use clap::{Args, ValueEnum};
use compute::memory::KvFormat;
use runtime::Streaming;

use crate::size::Size;

/// Heading of these options.
const HEADING: &str = "Engine";

/// How a model is loaded and run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct EngineArgs {
    /// Stream routed experts from disk
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = StreamExperts::Auto,
          env = "MILLSTREAM_STREAM_EXPERTS")]
    pub(crate) stream_experts: StreamExperts,

    /// Memory for experts.
    #[command(flatten)]
    pub(crate) cache: ExpertCacheArgs,

    /// Limit experts per token; changes answers
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_EXPERTS_PER_TOKEN",
          value_parser = super::at_least_one)]
    pub(crate) experts_per_token: Option<usize>,

    /// Format of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16, env = "MILLSTREAM_KV")]
    pub(crate) kv: Kv,
}

/// Memory for streamed experts, in bytes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct ExpertCacheArgs {
    /// Memory for experts that are read from the disk; by default what is left of --memory
    #[arg(long, value_name = "SIZE", env = "MILLSTREAM_EXPERT_CACHE",
          value_parser = super::some_memory)]
    pub(crate) expert_cache: Option<Size>,
}

/// Whether experts are read from the disk when they are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamExperts {
    /// If they do not fit into the memory.
    #[default]
    Auto,
    /// Even if they would fit.
    Always,
    /// Never: a model that does not fit is refused.
    Never,
}

impl From<StreamExperts> for Streaming {
    fn from(when: StreamExperts) -> Streaming {
        match when {
            StreamExperts::Auto => Streaming::Auto,
            StreamExperts::Always => Streaming::Always,
            StreamExperts::Never => Streaming::Never,
        }
    }
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kv {
    /// Two bytes a value.
    #[default]
    F16,
    /// Four bytes a value, for comparisons with other engines.
    F32,
}

impl From<Kv> for KvFormat {
    fn from(kv: Kv) -> KvFormat {
        match kv {
            Kv::F16 => KvFormat::F16,
            Kv::F32 => KvFormat::F32,
        }
    }
}
