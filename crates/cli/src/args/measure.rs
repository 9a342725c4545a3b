//! Options of the commands that measure: logits, bench, perplexity, synth.

use std::path::PathBuf;

use clap::builder::{
    BoolishValueParser, PossibleValuesParser, RangedU64ValueParser, TypedValueParser,
};
use clap::{Args, ValueEnum};
use machine::cpu::Isa;

/// Heading of the options that commands which measure have in common.
const MEASURING: &str = "Measuring";

/// How a measured model runs.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = MEASURING)]
pub(crate) struct MeasuringArgs {
    /// Instruction set of the kernels; by default the best that works
    #[arg(long, value_name = "NAME", env = "MILLSTREAM_ISA", value_parser = isa_parser())]
    pub(crate) isa: Option<Isa>,
    /// How many experts are kept.
    #[command(flatten)]
    pub(crate) slots: SlotsArgs,
    /// What is written down.
    #[command(flatten)]
    pub(crate) record: RecordArgs,
}

/// Memory for experts, counted in experts.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = MEASURING)]
pub(crate) struct SlotsArgs {
    /// The same as --expert-cache as a number of experts, of all layers together
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_EXPERT_SLOTS",
          value_parser = super::at_least_one, conflicts_with = "expert_cache")]
    pub(crate) expert_slots: Option<usize>,
}

/// What is written down of a run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = MEASURING)]
pub(crate) struct RecordArgs {
    /// Write which experts are wanted to a file, for `millstream simulate`
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_RECORD_ROUTING",
          value_hint = clap::ValueHint::FilePath)]
    pub(crate) record_routing: Option<PathBuf>,
}

/// `millstream logits`.
#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// A folder, a name in the Hugging Face cache, or an alias
    pub(crate) model: String,
    /// Token ids of the prompt, separated by spaces or commas
    #[arg(
        long,
        value_name = "IDS",
        env = "MILLSTREAM_TOKENS",
        required_unless_present = "tokens_file"
    )]
    pub(crate) tokens: Option<String>,
    /// File with the token ids, separated by white space or commas
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_TOKENS_FILE", conflicts_with = "tokens",
          value_hint = clap::ValueHint::FilePath)]
    pub(crate) tokens_file: Option<PathBuf>,
    /// File for `logits`: f32, [tokens, vocabulary]
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_OUT", value_hint = clap::ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    /// Also write `tokens`: i64, this many tokens generated greedily, not ending at the end token
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_GREEDY")]
    pub(crate) greedy: Option<usize>,
    /// How it is measured.
    #[command(flatten)]
    pub(crate) measuring: MeasuringArgs,
    /// How the model is loaded.
    #[command(flatten)]
    pub(crate) engine: super::EngineArgs,
}

/// `millstream bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// A folder, a name in the Hugging Face cache, or an alias
    #[arg(default_value = crate::builtin::DEFAULT)]
    pub(crate) model: String,
    /// Measure a model of this shape instead, such as qwen3.5-35b-a3b: `synth` by its defaults, but in no file
    ///
    /// Its weights are made where they are used, so only memory has to hold it.
    #[arg(long, value_name = "SHAPE", env = "MILLSTREAM_SYNTHETIC", conflicts_with = "model")]
    pub(crate) synthetic: Option<String>,
    /// Number of layers; by default all
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_LAYERS", requires = "synthetic",
          value_parser = super::at_least_one)]
    pub(crate) layers: Option<usize>,
    /// Prompt lengths to measure, separated by commas
    #[arg(long, value_name = "COUNTS", env = "MILLSTREAM_PROMPT_TOKENS", value_delimiter = ',',
          default_value = "128,512", value_parser = super::at_least_one)]
    pub(crate) prompt_tokens: Vec<usize>,
    /// Tokens to generate after each prompt
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_GEN_TOKENS", default_value_t = 64)]
    pub(crate) gen_tokens: usize,
    /// Measure each this many times, every time with other tokens, and keep the best
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_REPEAT", default_value = "3",
          value_parser = super::at_least_one)]
    pub(crate) repeat: usize,
    /// Decode this many times with drafts and as often without, in turns, and compare
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_PAIRS", value_parser = super::at_least_one,
          conflicts_with_all = ["trace", "csv", "repeat"])]
    pub(crate) pairs: Option<usize>,
    /// A file of prompts for --pairs, one a line; by default random tokens
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_PROMPTS", requires = "pairs",
          value_hint = clap::ValueHint::FilePath)]
    pub(crate) prompts: Option<PathBuf>,
    /// For --pairs: draft from the known answer, with this share of right tokens
    #[arg(long, value_name = "SHARE", env = "MILLSTREAM_ORACLE", requires = "pairs",
          value_parser = share)]
    pub(crate) oracle: Option<f64>,
    /// For --pairs: draft this many tokens in every round, whether it pays or not; of several, each pair takes the next
    #[arg(
        long,
        value_name = "COUNTS",
        env = "MILLSTREAM_FIXED_DRAFT",
        requires = "pairs",
        value_delimiter = ','
    )]
    pub(crate) fixed_draft: Vec<usize>,
    /// For --pairs: maximum tokens of a draft; how many pay is measured
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_NUM_DRAFT_TOKENS", requires = "pairs",
          value_parser = super::at_least_one)]
    pub(crate) num_draft_tokens: Option<usize>,
    /// For --pairs: tokens of a DFlash block, if fewer than it was made for
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_DFLASH_BLOCK_SIZE",
          value_parser = block_size, requires_all = ["pairs", "dflash"])]
    pub(crate) dflash_block_size: Option<usize>,
    /// For --pairs: write tokens drafted, time and outcome of every round, one round a line
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_ROUNDS", requires = "pairs",
          value_hint = clap::ValueHint::FilePath)]
    pub(crate) rounds: Option<PathBuf>,
    /// Write a trace of the reads and computations of the run that is reported, of several prompt lengths the last, for
    /// chrome://tracing or ui.perfetto.dev
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_TRACE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// Print comma-separated values
    #[arg(long, env = "MILLSTREAM_CSV", conflicts_with = "json",
          value_parser = BoolishValueParser::new())]
    pub(crate) csv: bool,
    /// How it is measured.
    #[command(flatten)]
    pub(crate) measuring: MeasuringArgs,
    /// How the model is loaded.
    #[command(flatten)]
    pub(crate) engine: super::EngineArgs,
    /// What may draft.
    #[command(flatten)]
    pub(crate) speculation: super::SpeculationArgs,
}

/// `millstream perplexity`.
#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    /// A folder, a name in the Hugging Face cache, or an alias
    pub(crate) model: String,
    /// The text to predict, UTF-8
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Also measure how far the model's distributions are from this model's (KL divergence)
    #[arg(long, value_name = "MODEL", env = "MILLSTREAM_REFERENCE")]
    pub(crate) reference: Option<String>,
    /// Positions that share a context
    #[arg(long, value_name = "TOKENS", env = "MILLSTREAM_CHUNK", default_value = "512",
          value_parser = RangedU64ValueParser::<usize>::new().range(2..))]
    pub(crate) chunk: usize,
    /// Run one token at a time, as generating does, instead of whole chunks
    #[arg(long, env = "MILLSTREAM_STEP_BY_STEP", value_parser = BoolishValueParser::new())]
    pub(crate) step_by_step: bool,
    /// Print JSON
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// How it is measured.
    #[command(flatten)]
    pub(crate) measuring: MeasuringArgs,
    /// How the model is loaded.
    #[command(flatten)]
    pub(crate) engine: super::EngineArgs,
}

/// `millstream synth`.
#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Model whose shape to take, such as qwen3.5-35b-a3b
    #[arg(long, value_name = "SHAPE", env = "MILLSTREAM_LIKE")]
    pub(crate) like: String,
    /// Folder (mlx) or file (gguf) to write
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    pub(crate) out: PathBuf,
    /// Number of layers; by default all
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_LAYERS",
          value_parser = super::at_least_one)]
    pub(crate) layers: Option<usize>,
    /// Write a draft head for such a model, not the model itself
    #[arg(long, value_name = "KIND", value_enum, env = "MILLSTREAM_HEAD")]
    pub(crate) head: Option<SynthHead>,
    /// Format to write; both hold the same values
    #[arg(long, value_enum, default_value_t = SynthFormat::Mlx, env = "MILLSTREAM_FORMAT")]
    pub(crate) format: SynthFormat,
    /// Weights that share a scale
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_GROUP", default_value = "32",
          value_parser = group_parser())]
    pub(crate) group: usize,
    /// How evenly tokens choose among the experts
    #[arg(long, value_enum, default_value_t = SynthRouter::Uniform, env = "MILLSTREAM_ROUTER")]
    pub(crate) router: SynthRouter,
    /// The same seed gives the same weights
    #[arg(long, value_name = "NUMBER", env = "MILLSTREAM_SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Replace what is there
    #[arg(long, env = "MILLSTREAM_FORCE", value_parser = BoolishValueParser::new())]
    pub(crate) force: bool,
}

/// What `synth` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SynthFormat {
    /// A folder of safetensors in MLX's layout: affine 4-bit.
    Mlx,
    /// One GGUF file: Q4_1.
    Gguf,
}

/// The draft heads that `synth` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SynthHead {
    /// Into the folder of a model that is there, as one more file.
    Mtp,
    /// A folder of its own, in the format of z-lab.
    Dflash,
}

/// How the experts of a `synth` model are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SynthRouter {
    /// All alike: a cache hits as often as it is large, the worst case.
    Uniform,
    /// Some far more than others, so that a cache hits as often as published for real models.
    Tuned,
}

fn group_parser() -> impl TypedValueParser<Value = usize> {
    PossibleValuesParser::new(["32", "64", "128"]).try_map(|group| group.parse::<usize>())
}

fn share(text: &str) -> Result<f64, &'static str> {
    match text.trim().parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1"),
    }
}

/// One token of a block is known.
fn block_size(text: &str) -> Result<usize, String> {
    match super::at_least_one(text)? {
        1 => Err("a block of 1 has nothing to draft".to_owned()),
        size => Ok(size),
    }
}

fn isa_parser() -> impl TypedValueParser<Value = Isa> {
    PossibleValuesParser::new(Isa::ALL.map(Isa::name)).try_map(|name| name.parse::<Isa>())
}
