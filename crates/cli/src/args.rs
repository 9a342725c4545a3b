//! What can be typed: every command, option, variable and default, in one place.
//!
//! These structs say what was typed, not what it means. Help, completions, the man pages and
//! docs/reference are made from them. Every long option has a `MILLSTREAM_…` variable of the same
//! name; a test holds that. The file of settings is laid under them in `settings.rs`.

mod engine;
mod generation;
mod measure;
mod repack;
mod serve;
mod simulate;
mod speculation;

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::size::Size;
#[cfg(test)]
pub(crate) use engine::Kv;
pub(crate) use engine::{EngineArgs, ExpertCacheArgs, StreamExperts};
pub(crate) use generation::{RunArgs, SamplingArgs};
pub(crate) use measure::{
    BenchArgs, LogitsArgs, MeasuringArgs, PerplexityArgs, RecordArgs, SlotsArgs, SynthArgs,
    SynthFormat, SynthHead, SynthRouter,
};
pub(crate) use repack::RepackArgs;
pub(crate) use serve::{ServeArgs, ServiceArgs};
pub(crate) use simulate::SimulateArgs;
pub(crate) use speculation::{OWN_DFLASH, SpeculationArgs, When};

/// Heading of the options that every command has.
const GLOBAL: &str = "Global options";

/// Runs mixture-of-experts language models on the CPU.
///
/// Without a model, commands use Pebble, a small model inside this program.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Try:
  millstream run \"Tell me a story about a fox and a lantern\"
  millstream serve
  millstream plan mlx-community/Qwen3.5-35B-A3B-4bit --memory 16G
  millstream doctor";

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = GLOBAL)]
pub(crate) struct GlobalArgs {
    /// Memory the model may use; by default a safe share of what the system allows
    ///
    /// 16G and 16GiB are 16 · 2³⁰ bytes, 16GB is 16 · 10⁹.
    #[arg(long, global = true, value_name = "SIZE", env = "MILLSTREAM_MEMORY", value_parser = some_memory)]
    pub(crate) memory: Option<Size>,

    /// Positions (prompt and answer) a conversation may have; by default as many as fit, up to 32768
    #[arg(long, global = true, value_name = "TOKENS", env = "MILLSTREAM_CONTEXT",
          value_parser = at_least_one)]
    pub(crate) context: Option<usize>,

    /// Threads that compute; by default one a core
    #[arg(long, global = true, value_name = "COUNT", env = "MILLSTREAM_THREADS",
          value_parser = at_least_one)]
    pub(crate) threads: Option<usize>,

    /// Log level
    #[arg(long, global = true, value_name = "LEVEL", value_enum, default_value_t = LogLevel::Warn,
          env = "MILLSTREAM_LOG_LEVEL")]
    pub(crate) log_level: LogLevel,

    /// More log output: once for `--log-level info`, twice for `debug`, three times for `trace`
    #[arg(short = 'v', global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Show no bars while loading and reading the prompt
    #[arg(long, global = true, env = "MILLSTREAM_NO_PROGRESS",
          value_parser = BoolishValueParser::new())]
    pub(crate) no_progress: bool,

    /// File of settings; by default millstream/config.toml in the user's configuration folder
    #[arg(long, global = true, value_name = "FILE", env = "MILLSTREAM_CONFIG",
          value_hint = clap::ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask a model, or talk with it
    Run(RunArgs),
    /// Put a model behind HTTP: OpenAI, Anthropic and Ollama clients, and a web page
    Serve(ServeArgs),
    /// Plan a model's memory before loading it
    ///
    /// A model that does not fit is an answer too: the exit code is 0, and `fits` is false in the JSON.
    Plan(PlanArgs),
    /// Describe a model
    Show(ShowArgs),
    /// List the models on this computer
    List(ListArgs),
    /// Check whether this computer is ready
    Doctor(DoctorArgs),
    /// Measure speed
    Bench(BenchArgs),
    /// Write a model's logits to a file, to compare with another engine
    Logits(LogitsArgs),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Make a checkpoint of a real model's shape with random weights, for benchmarks
    Synth(SynthArgs),
    /// Copy a model with one aligned record per expert, to stream it faster
    Repack(RepackArgs),
    /// Say how often experts would be in memory, by its size, from a recorded run
    Simulate(SimulateArgs),
    /// Show the settings
    Config(ConfigArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print a manual page
    Man(ManArgs),
    /// Write the reference pages of the documentation
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

impl Command {
    /// The options of loading a model that this command has and was given.
    pub(crate) fn engine(&self) -> EngineArgs {
        match self {
            Command::Run(args) => args.engine.clone(),
            Command::Serve(args) => args.engine.clone(),
            Command::Plan(args) => args.engine.clone(),
            Command::Bench(args) => args.engine.clone(),
            Command::Logits(args) => args.engine.clone(),
            Command::Perplexity(args) => args.engine.clone(),
            Command::Simulate(args) => {
                EngineArgs { cache: args.cache.clone(), ..EngineArgs::default() }
            }
            _ => EngineArgs::default(),
        }
    }

    /// The options of speculation that this command has and was given.
    pub(crate) fn speculation(&self) -> SpeculationArgs {
        match self {
            Command::Run(args) => args.speculation.clone(),
            Command::Serve(args) => args.speculation.clone(),
            Command::Plan(args) => args.speculation.clone(),
            Command::Bench(args) => args.speculation.clone(),
            _ => SpeculationArgs::default(),
        }
    }

    /// The options of measuring that this command has and was given.
    pub(crate) fn measuring(&self) -> MeasuringArgs {
        let slots = |slots: &SlotsArgs| MeasuringArgs { slots: *slots, ..MeasuringArgs::default() };
        match self {
            Command::Bench(args) => args.measuring.clone(),
            Command::Logits(args) => args.measuring.clone(),
            Command::Perplexity(args) => args.measuring.clone(),
            Command::Plan(args) => slots(&args.slots),
            Command::Simulate(args) => slots(&args.slots),
            Command::Run(args) => {
                MeasuringArgs { record: args.record.clone(), ..MeasuringArgs::default() }
            }
            _ => MeasuringArgs::default(),
        }
    }
}

/// `millstream plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// A folder, a name in the Hugging Face cache, or an alias
    #[arg(default_value = crate::builtin::DEFAULT)]
    pub(crate) model: String,
    /// Print JSON
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// How many experts are kept.
    #[command(flatten)]
    pub(crate) slots: SlotsArgs,
    /// How the model is loaded.
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// What may draft.
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
}

/// `millstream show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A folder, a name in the Hugging Face cache, or an alias
    #[arg(default_value = crate::builtin::DEFAULT)]
    pub(crate) model: String,
    /// Print JSON
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// `millstream list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// `millstream doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// `millstream config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

/// What to do with the settings.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting, its value and where the value comes from
    Show(ConfigShowArgs),
}

/// `millstream config show`.
#[derive(Debug, Args)]
pub(crate) struct ConfigShowArgs {
    /// Show what holds for this model
    #[arg(default_value = crate::builtin::DEFAULT)]
    pub(crate) model: String,
    /// Print JSON
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// Settings of an answer are settings too.
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// So is how a model is loaded,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// what may draft,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
    /// and how it is served.
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

/// `millstream completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

/// `millstream man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The page of this command; the program's own without it
    pub(crate) command: Option<String>,
}

/// `millstream reference`.
#[derive(Debug, Args)]
pub(crate) struct ReferenceArgs {
    /// Folder for the pages
    #[arg(long, value_name = "DIR", env = "MILLSTREAM_OUT", value_hint = clap::ValueHint::DirPath)]
    pub(crate) out: PathBuf,
}

/// How much is logged on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Errors.
    Error,
    /// And warnings.
    Warn,
    /// And progress.
    Info,
    /// And details.
    Debug,
    /// Everything.
    Trace,
}

impl GlobalArgs {
    /// The level to log at, `-v` counted.
    pub(crate) fn level(&self) -> tracing::Level {
        let quietest = match self.verbose {
            0 => tracing::Level::ERROR,
            1 => tracing::Level::INFO,
            2 => tracing::Level::DEBUG,
            _ => tracing::Level::TRACE,
        };
        let level = match self.log_level {
            LogLevel::Error => tracing::Level::ERROR,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Debug => tracing::Level::DEBUG,
            LogLevel::Trace => tracing::Level::TRACE,
        };
        level.max(quietest)
    }
}

/// The whole command line, as help and reference show it.
pub(crate) fn command() -> clap::Command {
    fn ours(command: clap::Command) -> clap::Command {
        let arg = |arg: clap::Arg| {
            // `--seed -1` is a bad seed, not an option -1.
            let takes_numbers = arg.get_long().is_some() && arg.get_action().takes_values();
            let arg = arg.allow_negative_numbers(takes_numbers);
            // Help that shows the variables' values would differ from machine to machine.
            arg.hide_env_values(true)
        };
        command.mut_args(arg).mut_subcommands(ours)
    }
    ours(Cli::command())
}

/// A size that holds something.
fn some_memory(text: &str) -> Result<Size, String> {
    match text.parse()? {
        Size(0) => {
            Err("nothing fits into no memory; without the option it is what can be had".to_owned())
        }
        size => Ok(size),
    }
}

/// A number of things, none of which would make no sense.
fn at_least_one(text: &str) -> Result<usize, &'static str> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err("expected a whole number from 1"),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    /// Calls `see` with every option of every command.
    fn every_option(command: &clap::Command, see: &mut impl FnMut(&str, &clap::Arg)) {
        for arg in command.get_arguments() {
            see(command.get_name(), arg);
        }
        command.get_subcommands().for_each(|command| every_option(command, see));
    }

    #[test]
    fn every_long_option_has_the_variable_of_its_name() {
        let mut count = 0;
        every_option(&command(), &mut |command, arg| {
            let Some(long) = arg.get_long() else { return };
            // The other half of `--thinking`, whose variable takes yes and no.
            if long == "no-thinking" {
                return;
            }
            let expect = format!("MILLSTREAM_{}", long.to_uppercase().replace('-', "_"));
            let env = arg.get_env().and_then(|name| name.to_str());
            assert_eq!(env, Some(expect.as_str()), "{command} --{long}");
            count += 1;
        });
        assert!(count > 30, "{count}");
    }

    #[test]
    fn every_option_has_help() {
        every_option(&command(), &mut |command, arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty(), "{command} {}", arg.get_id());
            assert!(!help.ends_with('.'), "{command} {}: {help}", arg.get_id());
        });
    }

    #[test]
    fn more_v_say_more_but_never_less_than_the_level() {
        #[track_caller]
        fn check(arguments: &[&str], expect: tracing::Level) {
            let all = ["millstream", "list"].iter().chain(arguments);
            assert_eq!(Cli::try_parse_from(all).unwrap().global.level(), expect);
        }
        check(&["--log-level", "error"], tracing::Level::ERROR);
        check(&["-v"], tracing::Level::INFO);
        check(&["-vv"], tracing::Level::DEBUG);
        check(&["-v", "--log-level", "trace"], tracing::Level::TRACE);
    }
}
