//! A conversation on the terminal: line editing, history, and commands that begin with a slash.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args as _, FromArgMatches as _};
use machine::file::Refusal;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde::{Deserialize, Serialize};
use text::{Message, Weight};

use crate::answer::Speaker;
use crate::args::SamplingArgs;
use crate::console::{Console, Tone, say};
use crate::screen::Screen;
use crate::settings::{first_line, history_path};
use crate::size;

const HELP: &str = "\
/help               this list
/clear              begin anew
/system [TEXT]      instructions for the whole conversation; without TEXT, none
/set [NAME VALUE]   change an option of the answer (temperature, max-tokens, thinking …)
/save FILE          write the conversation to a file; one that holds anything else is not replaced
/load FILE          continue a conversation from a file
/bye                end (also Ctrl-D)
\"\"\"                 begins and ends a text of several lines
Ctrl-C stops an answer; twice, it ends the program.";

/// Whether the conversation continues.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Go,
    End,
}

/// What was typed at the prompt.
enum Typed {
    Text(String),
    Interrupt,
    End,
}

/// A conversation as `/save` writes it.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    model: String,
    #[serde(default)]
    system: Option<String>,
    messages: Vec<Message>,
}

struct Chat {
    speaker: Speaker,
    choices: SamplingArgs,
    messages: Vec<Message>,
    console: Console,
}

/// Runs the conversation until the user ends it.
pub(crate) fn run(speaker: Speaker, choices: &SamplingArgs, console: Console) -> Result<()> {
    let mut editor = DefaultEditor::new().context("cannot use this terminal")?;
    let history = history_path();
    if let Some(path) = &history {
        // There is none the first time.
        let _ = editor.load_history(path);
    }
    say!("{}, {} positions. /help lists commands, Ctrl-D ends.", speaker.name, speaker.context());
    let mut chat = Chat { speaker, choices: choices.clone(), messages: Vec::new(), console };
    let mut interrupts = 0;
    loop {
        let typed = match read(&mut editor)? {
            Typed::End => break,
            Typed::Interrupt => {
                interrupts += 1;
                if interrupts > 1 {
                    break;
                }
                say!("Ctrl-C again ends the program.");
                continue;
            }
            Typed::Text(typed) => typed,
        };
        interrupts = 0;
        if typed.trim().is_empty() {
            continue;
        }
        if let Err(error) = remember(&mut editor, &typed, history.as_deref()) {
            tracing::debug!("no history is kept: {error:#}");
        }
        if chat.turn(&typed)? == Next::End {
            break;
        }
    }
    chat.speaker.finish()
}

/// A line, or several between `"""`.
fn read(editor: &mut DefaultEditor) -> Result<Typed> {
    let mut text = match line(editor, ">>> ")? {
        Typed::Text(text) => text,
        other => return Ok(other),
    };
    let Some(first) = text.trim_start().strip_prefix("\"\"\"").map(str::to_owned) else {
        return Ok(Typed::Text(text));
    };
    text = first;
    loop {
        if let Some(whole) = text.trim_end().strip_suffix("\"\"\"") {
            return Ok(Typed::Text(whole.to_owned()));
        }
        match line(editor, "... ")? {
            Typed::Text(more) => {
                text.push('\n');
                text.push_str(&more);
            }
            other => return Ok(other),
        }
    }
}

fn line(editor: &mut DefaultEditor, prompt: &str) -> Result<Typed> {
    match editor.readline(prompt) {
        Ok(line) => Ok(Typed::Text(line)),
        Err(ReadlineError::Interrupted) => Ok(Typed::Interrupt),
        Err(ReadlineError::Eof) => Ok(Typed::End),
        Err(error) => Err(error).context("cannot read from the terminal"),
    }
}

/// Adds to the history at once: a crash or a closed window loses nothing.
fn remember(editor: &mut DefaultEditor, typed: &str, path: Option<&Path>) -> Result<()> {
    editor.add_history_entry(typed)?;
    let Some(path) = path else { return Ok(()) };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    editor.append_history(path)?;
    Ok(())
}

impl Chat {
    /// Does what was typed. Only what ends the program is an error here.
    fn turn(&mut self, typed: &str) -> Result<Next> {
        if let Some(command) = typed.trim().strip_prefix('/') {
            let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
            if name == "bye" || name == "exit" || name == "quit" {
                return Ok(Next::End);
            }
            match self.obey(name, rest.trim()) {
                Ok(said) => say!("{said}"),
                Err(error) => self.complain(&error),
            }
            return Ok(Next::Go);
        }
        self.messages.push(Message::new("user", typed));
        if let Err(error) = self.answer() {
            if crate::console::is_broken_pipe(&error) {
                return Err(error);
            }
            // The question is not part of the conversation if it has no answer.
            self.messages.pop();
            self.complain(&error);
        }
        Ok(Next::Go)
    }

    fn answer(&mut self) -> Result<()> {
        let system = self.choices.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain(self.messages.iter().cloned()).collect();
        let mut screen = Screen::new(self.console);
        let answer =
            self.speaker.answer(&messages, &self.choices, &mut |update| screen.show(update))?;
        screen.finish()?;
        say!("{}", self.console.paint(Tone::Dim, &answer.summary(&self.speaker.name)));
        if answer.is_interrupted && answer.whole.content.is_empty() {
            self.messages.pop();
            return Ok(());
        }
        let mut message = Message::new("assistant", answer.whole.content);
        message.reasoning_content = Some(answer.whole.reasoning).filter(|text| !text.is_empty());
        self.messages.push(message);
        Ok(())
    }

    /// A slash command; what it has to say.
    fn obey(&mut self, name: &str, rest: &str) -> Result<String> {
        match name {
            "help" | "?" => Ok(HELP.to_owned()),
            "clear" => {
                self.messages.clear();
                Ok("The conversation begins anew.".to_owned())
            }
            "system" => {
                self.choices.system = Some(rest.to_owned()).filter(|text| !text.is_empty());
                Ok(match rest {
                    "" => "No instructions.",
                    _ => "These instructions hold from now on.",
                }
                .to_owned())
            }
            "set" => self.set(rest),
            "save" => self.save(rest),
            "load" => self.load(rest),
            _ => anyhow::bail!("there is no command /{name}; /help lists those there are"),
        }
    }

    fn set(&mut self, rest: &str) -> Result<String> {
        let command = SamplingArgs::augment_args_for_update(clap::Command::new("set"));
        // Variables have had their say.
        let mut command =
            command.no_binary_name(true).mut_args(|arg| arg.env(None::<&'static str>));
        let names: Vec<&str> = command
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .filter(|name| *name != "no-thinking" && *name != "help")
            .collect();
        let takes = format!("/set takes {}", names.join(", "));
        let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if name.is_empty() {
            return Ok(takes);
        }
        let option = name.trim_start_matches('-').replace('_', "-");
        anyhow::ensure!(names.contains(&option.as_str()), "there is no `{name}`; {takes}");
        let value = value.trim();
        anyhow::ensure!(!value.is_empty(), "/set {name} needs a value");
        let typed = [format!("--{option}={value}")];
        let mut changed = self.choices.clone();
        let matches = command.try_get_matches_from_mut(typed);
        let matches = matches.map_err(|error| anyhow::anyhow!(first_line(&error)))?;
        changed.update_from_arg_matches(&matches)?;
        changed.overrides().over(&self.speaker.session.defaults).validate()?;
        if name == "thinking" {
            changed.no_thinking = false;
        }
        self.choices = changed;
        Ok(format!("{name} is {value}."))
    }

    fn save(&self, rest: &str) -> Result<String> {
        let path = file_name(rest, "save")?;
        // A mistyped name must not overwrite a file.
        anyhow::ensure!(
            !path.exists() || read_saved(&path, self.speaker.conversation_bytes()).is_ok(),
            "{} is there and is not a saved conversation; choose another name",
            path.display()
        );
        let saved = Saved {
            model: self.speaker.name.clone(),
            system: self.choices.system.clone(),
            messages: self.messages.clone(),
        };
        let json = serde_json::to_string_pretty(&saved)?;
        std::fs::write(&path, json + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        let count = saved.messages.len();
        let are = if count == 1 { "is" } else { "are" };
        Ok(format!("{} {are} in {}.", size::counted(count, "message"), path.display()))
    }

    fn load(&mut self, rest: &str) -> Result<String> {
        let path = file_name(rest, "load")?;
        let saved = read_saved(&path, self.speaker.conversation_bytes())?;
        let count = saved.messages.len();
        self.messages = saved.messages;
        self.choices.system = saved.system;
        Ok(format!("{} from {}.", size::counted(count, "message"), path.display()))
    }

    fn complain(&self, error: &anyhow::Error) {
        say!("{} {error:#}", self.console.paint(Tone::Error, "error:"));
    }
}

/// A conversation from an untrusted file, if it holds no more than `most` bytes once it is read.
fn read_saved(path: &Path, most: usize) -> Result<Saved> {
    let shown = path.display();
    let too_large = || format!("{shown} holds more than {}", size::bytes(most as u64));
    let json = match machine::file::read(path, most as u64) {
        Ok(Some(json)) => json,
        Ok(None) => anyhow::bail!("cannot read {shown}: there is no such file"),
        Err(Refusal::NotAFile) => anyhow::bail!("cannot read {shown}: it is not a plain file"),
        Err(Refusal::TooLarge) => anyhow::bail!(too_large()),
        Err(Refusal::Io { source, .. }) => {
            return Err(source).with_context(|| format!("cannot read {shown}"));
        }
    };
    anyhow::ensure!(Weight::of(&json).reading_bytes(json.capacity()) <= most, too_large());
    serde_json::from_slice(&json).with_context(|| format!("{shown} is not a saved conversation"))
}

fn file_name(rest: &str, command: &str) -> Result<PathBuf> {
    anyhow::ensure!(!rest.is_empty(), "/{command} needs the name of a file");
    Ok(PathBuf::from(rest))
}
