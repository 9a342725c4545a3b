//! How failures read: `error:` what failed, `caused by:` why, `hint:` what to do.
//!
//! Exit codes: 0 done, 1 failed, 2 the command line makes no sense, 130 interrupted.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::console::{Console, Tone, is_broken_pipe};

/// A failure with advice that belongs to it.
#[derive(Debug)]
pub(crate) struct Advised {
    message: String,
    hints: Vec<String>,
    usage: bool,
}

impl Advised {
    /// Something failed; `hint` says what to do.
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Advised {
        Advised { message: message.into(), hints: vec![hint.into()], usage: false }
    }

    /// Something failed; all of `hints` may help.
    pub(crate) fn with_hints(message: impl Into<String>, hints: Vec<String>) -> Advised {
        Advised { message: message.into(), hints, usage: false }
    }

    /// The command line makes no sense.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Advised {
        Advised { usage: true, ..Advised::new(message, hint) }
    }
}

impl fmt::Display for Advised {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Advised {}

/// Ctrl-C ended an answer.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Says what went wrong and gives the exit code.
pub(crate) fn failure(error: &anyhow::Error, console: Console) -> ExitCode {
    // The reader of our output has what it wanted: `millstream show … | head`.
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if error.is::<Interrupted>() {
        return ExitCode::from(130);
    }
    let mut text = String::new();
    for (index, cause) in error.chain().enumerate() {
        let label = if index == 0 { "error:" } else { "caused by:" };
        text.push_str(&format!("{} {cause}\n", console.paint(Tone::Error, label)));
    }
    for hint in hints(error) {
        text.push_str(&format!("{} {hint}\n", console.paint(Tone::Hint, "hint:")));
    }
    // A standard error that is closed cannot be reported.
    let _ = std::io::stderr().write_all(text.as_bytes());
    let usage = error.downcast_ref::<Advised>().is_some_and(|advised| advised.usage);
    ExitCode::from(if usage { 2 } else { 1 })
}

/// Says what clap found wrong, in our words for advice, and gives the exit code.
pub(crate) fn bad_usage(mut error: clap::Error, console: Console) -> ExitCode {
    if !error.use_stderr() {
        // Help and version were requested; a closed pipe is as good as a reader.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    advise_on_unknown(&mut error);
    let rendered = error.render();
    let (plain, coloured) = (rendered.to_string(), rendered.ansi().to_string());
    let mut text = if console.paint(Tone::Error, "").is_empty() { plain } else { coloured };
    for (clap, ours) in WORDS {
        text = text.replace(clap, ours);
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::from(2)
}

/// What clap and the parsers of numbers call it, and what we do.
const WORDS: [(&str, &str); 4] = [
    ("tip:", "hint:"),
    ("For more information, try", "hint: try"),
    ("invalid digit found in string", "expected a whole number from 0"),
    ("invalid float literal", "expected a number"),
];

/// Better advice than to pass an unknown option as a value: that other commands have it, that the model is none, or
/// nothing but a pointer to the help.
fn advise_on_unknown(error: &mut clap::Error) {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return };
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let owners = flag.strip_prefix("--").map_or_else(Vec::new, commands_with);
    if !owners.is_empty() {
        // Options of a command that stand before it.
        let is_early = error
            .get(ContextKind::Usage)
            .is_some_and(|usage| usage.to_string().contains("<COMMAND>"));
        let place = if is_early { " and comes after the command" } else { "" };
        let hint = format!("`{flag}` is an option of {}{place}", owners.join(", "));
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
        return;
    }
    if error.get(ContextKind::SuggestedArg).is_some() {
        return;
    }
    // A prompt may well begin with a dash, but not like this.
    let is_option = flag.strip_prefix("--").is_some_and(|name| !name.contains(char::is_whitespace));
    let is_model = flag == "-m" || flag.starts_with("--mod");
    let has_model = error.get(ContextKind::Usage).is_some_and(|u| u.to_string().contains("MODEL"));
    if is_model && has_model {
        let hint = "the model is no option: its name comes first, right after the command".into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint]));
    } else if is_option {
        error.remove(ContextKind::Suggested);
    }
}

/// The commands that have an option of this name.
fn commands_with(long: &str) -> Vec<String> {
    let program = crate::args::command();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
    let has =
        |command: &&clap::Command| command.get_arguments().any(|arg| arg.get_long() == Some(long));
    commands.filter(has).map(|command| command.get_name().to_owned()).collect()
}

/// How a routing log is made.
pub(crate) const RECORDING: &str =
    "`millstream run MODEL PROMPT --record-routing FILE` writes a routing log";
const DAMAGED: &str = "if it was not edited, it is damaged: download it again";

/// Advice for every cause that has some.
pub(crate) fn hints(error: &anyhow::Error) -> Vec<String> {
    let mut hints: Vec<String> = Vec::new();
    for cause in error.chain() {
        if let Some(advised) = cause.downcast_ref::<Advised>() {
            hints.extend(advised.hints.iter().cloned());
        } else if let Some(error) = cause.downcast_ref::<hub::Error>() {
            hints.extend(error.hint().iter().flat_map(|hint| hint.lines()).map(str::to_owned));
        } else if let Some(error) = cause.downcast_ref::<engine::Error>() {
            hints.extend(engine_hint(error));
        } else if let Some(error) = cause.downcast_ref::<runtime::Error>() {
            hints.extend(runtime_hint(error));
        } else if let Some(error) = cause.downcast_ref::<text::Error>() {
            hints.extend(text_hint(error));
        } else if let Some(experts::Error::Log { .. }) = cause.downcast_ref() {
            hints.push(RECORDING.to_owned());
        } else if let Some(error) = cause.downcast_ref::<workbench::Error>() {
            hints.extend(measuring_hint(error));
        } else if let Some(error) = cause.downcast_ref::<workbench::synth::Error>() {
            hints.extend(error.hint());
        }
    }
    hints
}

fn measuring_hint(error: &workbench::Error) -> Option<String> {
    match error {
        workbench::Error::Engine(error) => engine_hint(error),
        workbench::Error::Runtime(error) => runtime_hint(error),
        workbench::Error::NoPrompts { .. } => Some("write one prompt on each line".to_owned()),
        _ => None,
    }
}

fn engine_hint(error: &engine::Error) -> Option<String> {
    use engine::Error;
    match error {
        Error::Runtime(error) => runtime_hint(error),
        Error::Text(error) => text_hint(error),
        _ => None,
    }
}

fn runtime_hint(error: &runtime::Error) -> Option<String> {
    use runtime::Error;
    match error {
        Error::Context { needed, .. } => {
            Some(format!("--context {} makes room, if the model allows it", needed + 512))
        }
        Error::Isa { .. } => {
            let sets: Vec<&str> = machine::cpu::Isa::ALL
                .into_iter()
                .filter(|&isa| machine::cpu::supports(isa))
                .map(machine::cpu::Isa::name)
                .collect();
            Some(format!("this machine can run {}", sets.join(", ")))
        }
        Error::Experts(experts::Error::TooFewSlots { needed, .. }) => Some(format!(
            "--expert-slots {needed} is the least; without the option there are as many as fit"
        )),
        Error::Experts(experts::Error::TooLittleCache { needed_bytes, .. }) => Some(format!(
            "--expert-cache {}M is the least; without the option it is what is left of --memory",
            needed_bytes.div_ceil(1 << 20)
        )),
        Error::Model(model::Error::Checkpoint(error)) | Error::Checkpoint(error) => {
            checkpoint_hint(error)
        }
        _ => None,
    }
}

fn text_hint(error: &text::Error) -> Option<String> {
    match error {
        text::Error::NoTokenizer => {
            Some("`millstream logits` works with token ids and needs no tokenizer".to_owned())
        }
        text::Error::TokenizerFile { .. } => Some(DAMAGED.to_owned()),
        _ => None,
    }
}

fn checkpoint_hint(error: &checkpoint::Error) -> Option<String> {
    match error {
        checkpoint::Error::OutOfRange { .. } | checkpoint::Error::ShortRead { .. } => {
            Some("the file is shorter than its header says: download it again".to_owned())
        }
        checkpoint::Error::Json { .. } | checkpoint::Error::HeaderLength { .. } => {
            Some(DAMAGED.to_owned())
        }
        _ => None,
    }
}
