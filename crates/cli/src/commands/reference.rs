//! `millstream reference --out DIR`: the pages of docs/reference, written from the options themselves.
//!
//! Pages that are generated cannot be wrong for long: a test compares them with what is committed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, Command};

use crate::args::{ReferenceArgs, command};
use crate::settings;

const HEAD: &str =
    "<!-- Written by `cargo xtask reference`; changes go into crates/cli/src. -->\n\n";

/// Variables that are not options.
const OTHER_VARIABLES: [(&str, &str); 8] = [
    ("HF_HUB_CACHE", "The Hugging Face cache, where models named `org/repo` are looked for."),
    ("HF_HOME", "Holds the cache as `hub`, if `HF_HUB_CACHE` is not set."),
    (
        "XDG_CACHE_HOME",
        "Stands in for `~/.cache`: repacked copies and measurements are there, and the Hugging Face cache if \
         neither of these is set.",
    ),
    ("XDG_CONFIG_HOME", "Stands in for `~/.config`, where the file of settings is."),
    ("XDG_STATE_HOME", "Stands in for `~/.local/state`, where the history of conversations is."),
    ("NO_COLOR", "Set and not empty: no colour."),
    ("TERM", "`dumb`: no colour and no bars."),
    ("COLUMNS", "The width of help texts, where the terminal does not report it."),
];

pub(crate) fn run(args: &ReferenceArgs) -> Result<()> {
    let folder = &args.out;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in [
        ("cli.md", cli()),
        ("environment.md", environment()),
        ("config.md", config()),
        ("metrics.md", format!("{HEAD}{}", server::metrics_page())),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Adds a paragraph or another piece of a page. Writing to a string cannot fail.
fn add(page: &mut String, piece: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(piece);
}

// === Commands ===

fn cli() -> String {
    let mut program = command();
    program.build();
    let mut page = format!("{HEAD}# Commands\n\n");
    let about = program.get_long_about().or(program.get_about());
    if let Some(about) = about {
        add(&mut page, format_args!("{about}\n\n"));
    }
    page.push_str(
        "Standard output is data, standard error carries messages. The exit code is 0 when all went well, 1 when \
         something failed, 2 when the command line makes no sense, and 130 after Ctrl-C.\n\n",
    );
    page.push_str(
        "Pebble and what drafts for it are compiled into the program (30 MB): it is one file to copy and works without a \
         network. `cargo install --git` builds it that way. A package registry that limits the size of a crate \
         (crates.io: 10 MB) would need them next to the program. Without the cargo feature `builtin` \
         (`--no-default-features`) they are left out, and a model has to be named.\n\n",
    );
    page.push_str("| command | what it does |\n|---|---|\n");
    let commands = leaves(&program);
    for (name, command) in &commands {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let anchor = name.replace(' ', "-");
        add(&mut page, format_args!("| [`{name}`](#{anchor}) | {about} |\n"));
    }
    page.push_str("\n## Global options\n\nEvery command has these.\n\n");
    let is_shared = |arg: &&Arg| arg.is_global_set() || arg.get_id() == "help";
    program.get_arguments().filter(is_shared).for_each(|arg| option(&mut page, arg));
    program.get_arguments().filter(|arg| arg.get_id() == "version").for_each(|arg| {
        option(&mut page, arg);
    });
    for (name, command) in commands {
        let mut command = command.clone();
        let usage = command.render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
        add(&mut page, format_args!("## {name}\n\n"));
        if let Some(about) = command.get_long_about().or(command.get_about()) {
            for paragraph in about.to_string().split("\n\n") {
                add(&mut page, format_args!("{}.\n\n", paragraph.trim_end_matches('.')));
            }
        }
        add(&mut page, format_args!("```text\n{usage}\n```\n\n"));
        let own = |arg: &&Arg| !is_shared(arg) && !arg.is_hide_set();
        command.get_arguments().filter(own).for_each(|arg| option(&mut page, arg));
        if let Some(after) = command.get_after_help() {
            let after = after.to_string();
            let examples = after.strip_prefix("Try:\n").unwrap_or(&after);
            let lines: Vec<&str> = examples.lines().map(str::trim_start).collect();
            add(&mut page, format_args!("```sh\n{}\n```\n\n", lines.join("\n")));
        }
    }
    page.trim_end().to_owned() + "\n"
}

/// Commands that do something, with their whole names, in the order of the help.
fn leaves(program: &Command) -> Vec<(String, &Command)> {
    fn walk<'a>(prefix: &str, command: &'a Command, found: &mut Vec<(String, &'a Command)>) {
        let visible = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
        for inner in command.get_subcommands().filter(visible) {
            let name = format!("{prefix} {}", inner.get_name());
            if inner.has_subcommands() {
                walk(&name, inner, found);
            } else {
                found.push((name, inner));
            }
        }
    }
    let mut found = Vec::new();
    walk(program.get_name(), program, &mut found);
    found
}

fn option(page: &mut String, arg: &Arg) {
    let values: Vec<String> = if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().map(ToString::to_string).collect()
    } else {
        Vec::new()
    };
    let values = values.join(" ");
    let name = match (arg.get_short(), arg.get_long()) {
        (None, None) => format!("`{values}`"),
        (Some(short), None) => format!("`-{short}`"),
        (None, Some(long)) if arg.is_require_equals_set() => format!("`--{long}[={values}]`"),
        (None, Some(long)) => format!("`{}`", format!("--{long} {values}").trim_end()),
        (Some(short), Some(long)) => format!("`-{short}`, `--{long}`"),
    };
    add(page, format_args!("- {name}: {}", help(arg)));
    if let Some(more) = arg.get_long_help() {
        // The first paragraph is the help that stands above.
        let more = more.to_string();
        if let Some((_, rest)) = more.split_once("\n\n") {
            add(page, format_args!(" {}", rest.replace('\n', " ")));
        }
    }
    page.push('\n');
    let choices = choices(arg);
    if !choices.is_empty() {
        add(page, format_args!("  - one of {choices}\n"));
    }
    if let Some(default) = default(arg) {
        add(page, format_args!("  - default: `{default}`\n"));
    }
    if let Some(variable) = arg.get_env() {
        add(page, format_args!("  - variable: `{}`\n", variable.to_string_lossy()));
    }
    page.push('\n');
}

fn help(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    format!("{}.", help.trim_end_matches('.'))
}

fn choices(arg: &Arg) -> String {
    if !arg.get_action().takes_values() || arg.get_id() == "thinking" {
        return String::new();
    }
    let values = arg.get_possible_values();
    let names: Vec<String> =
        values.iter().filter(|v| !v.is_hide_set()).map(|v| format!("`{}`", v.get_name())).collect();
    names.join(", ")
}

fn default(arg: &Arg) -> Option<String> {
    if !arg.get_action().takes_values() {
        return None;
    }
    let values: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    (!values.is_empty()).then(|| values.join(","))
}

// === Variables ===

fn environment() -> String {
    let mut program = command();
    program.build();
    // Variable → what it does, and the options and commands it belongs to.
    let mut variables: BTreeMap<String, (String, String, Vec<String>)> = BTreeMap::new();
    let mut see = |arg: &Arg, place: &str| {
        let (Some(variable), Some(long)) = (arg.get_env(), arg.get_long()) else { return };
        let entry = variables
            .entry(variable.to_string_lossy().into_owned())
            .or_insert_with(|| (help(arg), long.to_owned(), Vec::new()));
        entry.2.push(place.to_owned());
    };
    program.get_arguments().for_each(|arg| see(arg, "all"));
    for (name, command) in leaves(&program) {
        let name = name.strip_prefix("millstream ").unwrap_or(&name).to_owned();
        let own = command.get_arguments().filter(|arg| !arg.is_global_set());
        own.for_each(|arg| see(arg, &format!("`{name}`")));
    }
    let mut page = format!("{HEAD}# Environment variables\n\n");
    page.push_str(
        "Every long option has a variable: its name in capitals after `MILLSTREAM_`. Only `--no-thinking` has none \
         of its own: `MILLSTREAM_THINKING=false` says the same. An option on the command line wins over its variable, and a variable over the [file of settings](config.md). Flags \
         take `1`, `true`, `yes` or `on`, and `0`, `false`, `no` or `off`.\n\n",
    );
    page.push_str("| variable | option | commands | meaning |\n|---|---|---|---|\n");
    for (variable, (help, long, places)) in variables {
        let places = places.join(", ");
        add(&mut page, format_args!("| `{variable}` | `--{long}` | {places} | {help} |\n"));
    }
    page.push_str("\n## Others\n\n| variable | meaning |\n|---|---|\n");
    for (variable, meaning) in OTHER_VARIABLES {
        add(&mut page, format_args!("| `{variable}` | {meaning} |\n"));
    }
    page
}

// === Settings ===

fn config() -> String {
    let mut page = format!("{HEAD}# File of settings\n\n");
    page.push_str(
        "`~/.config/millstream/config.toml` (on Windows `%APPDATA%\\millstream\\config.toml`), or the file that \
         `--config` or `MILLSTREAM_CONFIG` names. Keys are long options without the dashes: \
         those of every command, of loading a model, of speculation, of an answer and of a server. What holds for one \
         model only goes into a table `[model.\"NAME\"]`, by the name you type: an alias and the repository it \
         stands for are the same.\n\n\
         The command line wins over variables, variables over the file, a model's table over the top of the \
         file, and the file over defaults. A key that is not in the list below is an error that names its line. \
         `millstream config show [MODEL]` prints every value and where it comes from.\n\n",
    );
    page.push_str("```toml\nmemory = \"16G\"\ncontext = 16384\n\n[model.\"qwen3.5-35b-a3b\"]\n");
    page.push_str(
        "memory = \"24G\"\nthinking = false\ntemperature = 0.6\nstop = [\"\\n\\nUser:\"]\n```\n\n",
    );
    page.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
    for arg in settings::options() {
        let key = arg.get_long().unwrap_or_default();
        let default = default(&arg).map_or_else(String::new, |value| format!("`{value}`"));
        let kind = kind(&arg);
        add(&mut page, format_args!("| `{key}` | {kind} | {default} | {} |\n", help(&arg)));
    }
    page
}

/// What TOML value a key takes.
fn kind(arg: &Arg) -> String {
    let choices = choices(arg);
    if !choices.is_empty() {
        return choices;
    }
    let value = arg.get_value_names().and_then(|names| names.first().cloned());
    match (arg.get_action(), value.as_deref()) {
        (ArgAction::SetTrue, _) | (_, Some("BOOL")) => "true or false",
        (ArgAction::Append, _) => "text, or a list of texts",
        (_, Some("SIZE")) => "size, such as \"16G\"",
        (_, Some("TOKENS" | "COUNT" | "PORT" | "SECONDS")) => "whole number",
        (_, Some("NUMBER")) => "number",
        _ => "text",
    }
    .to_owned()
}
