//! `millstream run`: an answer to one prompt, or a conversation.

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result};
use engine::SamplingParams;
use text::Message;

use crate::answer::{Occasion, Speaker};
use crate::args::RunArgs;
use crate::builtin;
use crate::console::{Tone, print_json, say};
use crate::interrupt;
use crate::invocation::Invocation;
use crate::report::{Advised, Interrupted};
use crate::screen::Screen;
use crate::size;

pub(crate) fn run(args: &RunArgs, invocation: &Invocation) -> Result<()> {
    // Before anything is loaded.
    if let Err(error) = args.sampling.overrides().over(&SamplingParams::default()).validate() {
        return Err(Advised::usage(error.to_string(), "millstream run --help").into());
    }
    let (model, asked) = model_and_prompt(args, invocation)?;
    let prompt = match (asked, piped()?) {
        (Some(asked), Some(piped)) => Some(format!("{asked}\n\n{piped}")),
        (asked, piped) => asked.or(piped),
    };
    if prompt.is_none() && !std::io::stdin().is_terminal() {
        let hint = "give it as an argument, or on standard input";
        return Err(Advised::usage("there is no prompt", hint).into());
    }
    let model = invocation.open(&model)?;
    interrupt::listen();
    match prompt {
        Some(prompt) => {
            let mut speaker = Speaker::load(invocation, &model, Occasion::Prompt)?;
            one_shot(&mut speaker, prompt, args, invocation)
        }
        None => {
            let speaker = Speaker::load(invocation, &model, Occasion::Conversation)?;
            super::chat::run(speaker, &args.sampling, invocation.console)
        }
    }
}

fn one_shot(
    speaker: &mut Speaker,
    prompt: String,
    args: &RunArgs,
    invocation: &Invocation,
) -> Result<()> {
    let system = args.sampling.system.iter().map(|text| Message::new("system", text));
    let messages: Vec<Message> = system.chain([Message::new("user", prompt)]).collect();
    let answer = if args.json {
        let answer = speaker.answer(&messages, &args.sampling, &mut |_| Ok(()))?;
        print_json(&answer.to_json(speaker))?;
        answer
    } else {
        let mut screen = Screen::new(invocation.console);
        let answer =
            speaker.answer(&messages, &args.sampling, &mut |update| screen.show(update))?;
        screen.finish()?;
        answer
    };
    say!("{}", invocation.console.paint(Tone::Dim, &answer.summary(&speaker.name)));
    speaker.finish()?;
    if answer.is_interrupted {
        return Err(Interrupted.into());
    }
    Ok(())
}

/// The most that is read from standard input: longer than any context. What is refused later by the length of the model's
/// own must not take the memory of everything else before.
const MOST_PIPED_BYTES: u64 = 8 << 20;

/// What is on standard input, if it is not a terminal and not empty.
fn piped() -> Result<Option<String>> {
    let input = std::io::stdin().lock();
    if input.is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    input
        .take(MOST_PIPED_BYTES + 1)
        .read_to_end(&mut bytes)
        .context("cannot read standard input")?;
    if bytes.len() as u64 > MOST_PIPED_BYTES {
        let most = size::bytes(MOST_PIPED_BYTES);
        let message = format!("standard input has more than {most}, which no context holds");
        return Err(Advised::new(message, "ask about a part of it").into());
    }
    bytes.shrink_to_fit();
    let mut text = String::from_utf8(bytes).context("standard input is not UTF-8")?;
    text.truncate(text.trim_end_matches(['\n', '\r']).len());
    Ok((!text.trim().is_empty()).then_some(text))
}

/// One word or text alone may be a model or a prompt: a model if it can be found or was surely meant as
/// one, else a prompt for the built-in model.
fn model_and_prompt(args: &RunArgs, invocation: &Invocation) -> Result<(String, Option<String>)> {
    let (first, second) = (args.model.clone(), args.prompt.clone());
    let Some(first) = first.filter(|first| !first.trim().is_empty() || second.is_some()) else {
        return Ok((builtin::DEFAULT.to_owned(), None));
    };
    if second.is_some() {
        return Ok((first, second));
    }
    match hub::resolve(&first, &invocation.environment) {
        Ok(_) => Ok((first, None)),
        Err(error) if is_meant_as_model(&first, &error) => {
            let hint = "if it is a prompt, name the model too: millstream run pebble \"…\"";
            let message = error.to_string();
            let own = error.hint().unwrap_or_default();
            let hints = own.lines().map(str::to_owned).chain([hint.to_owned()]).collect();
            Err(Advised::with_hints(message, hints).into())
        }
        Err(_) => Ok((builtin::DEFAULT.to_owned(), Some(first))),
    }
}

/// Whether a text that is no model was meant to be one: a path, `org/repo`, an alias, or nearly an alias.
fn is_meant_as_model(text: &str, error: &hub::Error) -> bool {
    let is_path = ["/", "./", "../", "~/"].iter().any(|start| text.starts_with(start));
    if text.contains(char::is_whitespace) && !is_path {
        return false;
    }
    let is_alias = hub::aliases().iter().any(|alias| alias.name.eq_ignore_ascii_case(text));
    let in_place = match error {
        hub::Error::NotFound { suggestions, .. } | hub::Error::BadName { suggestions, .. } => {
            !suggestions.is_empty()
        }
        hub::Error::EmptyName => false,
        // A path, or a model that is there but not whole.
        _ => true,
    };
    is_alias || in_place || text.contains(['/', '\\'])
}
