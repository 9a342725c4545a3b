//! Settings: flags over variables over the file over defaults.
//!
//! The file, `config.toml`, has the names of the long options as keys, and `[model."NAME"]` tables for
//! what holds for one model only. Its values become the *defaults* of clap's options, so precedence,
//! parsing and messages are clap's own and there is no second list of options to keep in step.
//! A key or value that makes no sense is an error that names the line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args as _};
use etcetera::BaseStrategy;
use toml::de::{DeTable, DeValue};

use crate::args::{EngineArgs, GlobalArgs, SamplingArgs, ServiceArgs, SpeculationArgs};
use crate::report::Advised;

/// Stands for a secret where settings are shown.
const SECRET: &str = "(set)";

/// A value of the file.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    values: Vec<String>,
    line: usize,
}

/// The file of settings, read and checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingsFile {
    path: PathBuf,
    top: BTreeMap<String, Entry>,
    models: BTreeMap<String, BTreeMap<String, Entry>>,
}

/// The values of the file that hold for one model, by key, with the place they stand at.
pub(crate) type Overlay = BTreeMap<String, (Vec<String>, String)>;

/// One setting as `config show` prints it.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Effective {
    /// The key.
    pub(crate) name: String,
    /// Its value; `None` if nothing is set.
    pub(crate) value: Option<String>,
    /// Where the value comes from.
    pub(crate) origin: String,
}

/// The options that the file may hold, in the order of the help.
pub(crate) fn options() -> Vec<Arg> {
    let in_file = |arg: &&Arg| {
        // The file cannot name itself, and `no-thinking` is `thinking = false`.
        arg.get_long().is_some_and(|long| long != "config" && long != "no-thinking")
    };
    every_option().get_arguments().filter(in_file).cloned().collect()
}

/// The options that settings are made of, and their other halves.
fn every_option() -> clap::Command {
    let command = GlobalArgs::augment_args(clap::Command::new("settings"));
    let command = SpeculationArgs::augment_args(EngineArgs::augment_args(command));
    ServiceArgs::augment_args(SamplingArgs::augment_args(command))
}

impl SettingsFile {
    /// Reads the file that was named, or the usual one if there is one.
    pub(crate) fn find(asked: Option<&Path>) -> Result<SettingsFile> {
        if let Some(path) = asked {
            return SettingsFile::read(path);
        }
        match usual_path() {
            Some(path) if path.exists() => SettingsFile::read(&path),
            _ => Ok(SettingsFile::default()),
        }
    }

    fn read(path: &Path) -> Result<SettingsFile> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the settings in {}", path.display()))?;
        SettingsFile::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<SettingsFile> {
        let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(span.start));
            anyhow::anyhow!("{}:{line}: {}", path.display(), error.message())
        })?;
        let parser = Parser { path, options: options(), line_of: &line_of };
        let mut file = SettingsFile { path: path.to_owned(), ..SettingsFile::default() };
        for (key, value) in table.get_ref() {
            if key.get_ref() == "model" {
                let line = line_of(key.span().start);
                let tables = value.get_ref().as_table().ok_or_else(|| {
                    Advised::new(
                        format!("{}:{line}: `model` is not a table", path.display()),
                        "settings of one model go under [model.\"NAME\"]",
                    )
                })?;
                for (name, section) in tables {
                    let line = line_of(name.span().start);
                    let section = section.get_ref().as_table().ok_or_else(|| {
                        Advised::new(
                            format!(
                                "{}:{line}: `model.{name}` is not a table",
                                path.display(),
                                name = name.get_ref()
                            ),
                            "settings of one model go under [model.\"NAME\"]",
                        )
                    })?;
                    let entries = parser.entries(section)?;
                    file.models.insert(canonical(name.get_ref()), entries);
                }
            } else {
                let (key, entry) = parser.entry(key, value)?;
                file.top.insert(key, entry);
            }
        }
        Ok(file)
    }

    /// What holds for a model: its own table over the top of the file.
    pub(crate) fn overlay(&self, model: &str) -> Overlay {
        let mut overlay = Overlay::new();
        let own = self.models.get(&canonical(model));
        for (key, entry) in self.top.iter().chain(own.into_iter().flatten()) {
            let place = format!("{}:{}", self.path.display(), entry.line);
            overlay.insert(key.clone(), (entry.values.clone(), place));
        }
        overlay
    }
}

struct Parser<'a> {
    path: &'a Path,
    options: Vec<Arg>,
    line_of: &'a dyn Fn(usize) -> usize,
}

impl Parser<'_> {
    fn entries(&self, table: &DeTable<'_>) -> Result<BTreeMap<String, Entry>> {
        table.iter().map(|(key, value)| self.entry(key, value)).collect()
    }

    fn entry(
        &self,
        key: &toml::Spanned<toml::de::DeString<'_>>,
        value: &toml::Spanned<DeValue<'_>>,
    ) -> Result<(String, Entry)> {
        let line = (self.line_of)(key.span().start);
        let name = key.get_ref().as_ref();
        let place = format!("{}:{line}", self.path.display());
        let Some(option) = self.options.iter().find(|arg| arg.get_long() == Some(name)) else {
            let known: Vec<&str> = self.options.iter().filter_map(Arg::get_long).collect();
            return Err(Advised::new(
                format!("{place}: unknown setting `{name}`"),
                format!("settings are {}, and [model.\"NAME\"] tables of these", known.join(", ")),
            )
            .into());
        };
        let values = match value.get_ref() {
            DeValue::Array(items) if matches!(option.get_action(), ArgAction::Append) => {
                items.iter().map(|item| scalar(item.get_ref())).collect::<Option<Vec<_>>>()
            }
            other => scalar(other).map(|value| vec![value]),
        };
        let Some(values) = values else {
            let kind = value.get_ref().type_str();
            anyhow::bail!("{place}: `{name}` cannot be a TOML {kind}");
        };
        for value in &values {
            check(option, value).with_context(|| format!("{place}: bad value for `{name}`"))?;
        }
        Ok((name.to_owned(), Entry { values, line }))
    }
}

/// A value as it would be typed after the option.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// Has clap parse a value as it would on the command line.
fn check(option: &Arg, value: &str) -> Result<()> {
    let long = option.get_long().unwrap_or_default();
    // A flag takes no value on the command line, but one from a file. No variable may interfere.
    let with_value = |arg: Arg| match arg.get_action() {
        ArgAction::SetTrue => arg.action(ArgAction::Set).num_args(1),
        _ => arg,
    };
    let probe = every_option().no_binary_name(true).mut_args(|arg| arg.env(None::<&'static str>));
    let probe = probe.mut_arg(option.get_id(), with_value);
    match probe.try_get_matches_from([format!("--{long}={value}")]) {
        Ok(_) => Ok(()),
        Err(error) => Err(anyhow::anyhow!(first_line(&error))),
    }
}

/// The first sentence of clap's message, and the possible values where it lists them.
pub(crate) fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    match lines.next().filter(|line| line.starts_with("[possible")) {
        Some(values) => format!("{first} {values}"),
        None => first,
    }
}

/// Lays values of the file under the options of a command and of those below it.
pub(crate) fn with_defaults(command: clap::Command, overlay: &Overlay) -> clap::Command {
    let settings = options();
    // The heading too: `synth --seed` has the name of a setting, and is another option.
    let is_setting = |arg: &Arg| {
        let same = |setting: &Arg| {
            (setting.get_id(), setting.get_help_heading()) == (arg.get_id(), arg.get_help_heading())
        };
        settings.iter().any(same)
    };
    let lay = |arg: Arg| match arg.get_long().and_then(|long| overlay.get(long)) {
        Some((values, _)) if is_setting(&arg) => {
            arg.default_values(values.iter().map(|value| leak(value)).collect::<Vec<_>>())
        }
        _ => arg,
    };
    command.mut_args(lay).mut_subcommands(|command| with_defaults(command, overlay))
}

/// clap keeps defaults for ever; a file of settings is small and read once.
fn leak(text: &str) -> &'static str {
    text.to_owned().leak()
}

/// Every setting with its value and where it comes from.
pub(crate) fn effective(matches: &ArgMatches, overlay: &Overlay) -> Vec<Effective> {
    let one = |arg: &Arg| {
        let id = arg.get_id().as_str();
        let name = arg.get_long().unwrap_or(id).to_owned();
        let raw = matches.try_get_raw(id).ok().flatten();
        let joined = |raw: clap::parser::RawValues<'_>| {
            raw.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>().join(", ")
        };
        let value = raw.map(joined);
        let flag_value =
            || matches!(arg.get_action(), ArgAction::SetTrue).then(|| "true".to_owned());
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "command line".to_owned(),
            Some(ValueSource::EnvVariable) => match arg.get_env() {
                Some(variable) => variable.to_string_lossy().into_owned(),
                None => "environment".to_owned(),
            },
            _ => match overlay.get(&name) {
                Some((_, place)) => place.clone(),
                None => "default".to_owned(),
            },
        };
        let value = value
            .filter(|value| !value.is_empty())
            .map(|value| if name == "api-key" { SECRET.to_owned() } else { value })
            .or_else(|| (origin == "command line").then(flag_value).flatten());
        Effective { name, value, origin }
    };
    options().iter().map(one).collect()
}

/// `millstream/config.toml` in the user's configuration folder, also on macOS.
pub(crate) fn usual_path() -> Option<PathBuf> {
    let folders = etcetera::choose_base_strategy().ok()?;
    Some(folders.config_dir().join("millstream").join("config.toml"))
}

/// Where the history of conversations lies.
pub(crate) fn history_path() -> Option<PathBuf> {
    let folders = etcetera::choose_base_strategy().ok()?;
    let state = folders.state_dir().unwrap_or_else(|| folders.data_dir());
    Some(state.join("millstream").join("history"))
}

/// An alias and what it stands for are one model.
fn canonical(name: &str) -> String {
    let alias = hub::aliases().iter().find(|alias| alias.name.eq_ignore_ascii_case(name));
    match alias.map(|alias| alias.target) {
        Some(hub::Target::Repository(name) | hub::Target::Builtin(name)) => name.to_owned(),
        None => name.to_owned(),
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
