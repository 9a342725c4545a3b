//! `millstream run` and the options that shape an answer.

use clap::Args;
use clap::builder::BoolishValueParser;
use engine::session::SamplingOverrides;

/// `millstream run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// A folder, a name in the Hugging Face cache, or an alias
    ///
    /// A single argument that names no model is the prompt, for Pebble.
    pub(crate) model: Option<String>,
    /// What to ask; read from standard input if it is not a terminal
    ///
    /// With both, the text from standard input comes after the prompt. With neither, a conversation begins.
    pub(crate) prompt: Option<String>,
    /// Print JSON
    ///
    /// One object at the end, with the answer, the thinking, tokens and times.
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// How to answer.
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// How the model is loaded.
    #[command(flatten)]
    pub(crate) engine: super::EngineArgs,
    /// What may draft.
    #[command(flatten)]
    pub(crate) speculation: super::SpeculationArgs,
    /// What is written down.
    #[command(flatten)]
    pub(crate) record: super::RecordArgs,
}

const RUN_HELP: &str = "\
Try:
  millstream run \"What's the opposite of cold?\"
  millstream run ./my-model \"Summarise this:\" < notes.txt
  millstream run";

/// Options that shape an answer. What is not given is as the model's makers recommend
/// (`generation_config.json`).
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Answer")]
pub(crate) struct SamplingArgs {
    /// Instructions that hold for the whole conversation
    #[arg(long, value_name = "TEXT", env = "MILLSTREAM_SYSTEM")]
    pub(crate) system: Option<String>,

    /// Longest answer; by default until the context is full
    #[arg(long, value_name = "TOKENS", env = "MILLSTREAM_MAX_TOKENS",
          value_parser = super::at_least_one)]
    pub(crate) max_tokens: Option<usize>,

    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", env = "MILLSTREAM_STOP")]
    pub(crate) stop: Vec<String>,

    /// Have the model think before it answers, or not; by default as its template decides
    #[arg(long, value_name = "BOOL", env = "MILLSTREAM_THINKING", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", overrides_with = "no_thinking",
          value_parser = BoolishValueParser::new())]
    pub(crate) thinking: Option<bool>,

    /// The same as `--thinking=false`
    #[arg(long, overrides_with = "thinking")]
    pub(crate) no_thinking: bool,

    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "NUMBER", env = "MILLSTREAM_TEMPERATURE")]
    pub(crate) temperature: Option<f32>,

    /// Choose among the likeliest tokens whose probabilities reach this sum; 1 is all
    #[arg(long, value_name = "NUMBER", env = "MILLSTREAM_TOP_P")]
    pub(crate) top_p: Option<f32>,

    /// Choose among this many of the likeliest tokens; 0 is all
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_TOP_K")]
    pub(crate) top_k: Option<usize>,

    /// Choose among tokens at least this likely, relative to the likeliest; 0 is all
    #[arg(long, value_name = "NUMBER", env = "MILLSTREAM_MIN_P")]
    pub(crate) min_p: Option<f32>,

    /// Penalty for tokens that occurred in the prompt or the answer; 1 is off
    #[arg(long, value_name = "NUMBER", env = "MILLSTREAM_REPETITION_PENALTY")]
    pub(crate) repetition_penalty: Option<f32>,

    /// Penalty for tokens that occurred in the answer, from -2 to 2; 0 is off
    #[arg(long, value_name = "NUMBER", env = "MILLSTREAM_PRESENCE_PENALTY")]
    pub(crate) presence_penalty: Option<f32>,

    /// Penalty for each earlier occurrence of a token in the answer, from -2 to 2; 0 is off
    #[arg(long, value_name = "NUMBER", env = "MILLSTREAM_FREQUENCY_PENALTY")]
    pub(crate) frequency_penalty: Option<f32>,

    /// The same seed gives the same answer; by default another one each time
    #[arg(long, value_name = "NUMBER", env = "MILLSTREAM_SEED")]
    pub(crate) seed: Option<u64>,
}

impl SamplingArgs {
    /// Whether to think: `--no-thinking` was typed, so it wins over a variable.
    pub(crate) fn enable_thinking(&self) -> Option<bool> {
        if self.no_thinking { Some(false) } else { self.thinking }
    }

    /// What is chosen here of how tokens are sampled.
    pub(crate) fn overrides(&self) -> SamplingOverrides {
        SamplingOverrides {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            ..SamplingOverrides::default()
        }
    }
}
