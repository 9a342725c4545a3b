//! Short names for models, from `aliases.toml` next to this file.
//!
//! The table is compiled in and parsed once. It uses a sliver of TOML (comments and `name = "target"`), so
//! that people can read it and any TOML tool can too.

use std::sync::OnceLock;

/// A short name and what it means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alias {
    /// What the user types.
    pub name: &'static str,
    /// What it means.
    pub target: Target,
}

/// What an alias means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A model inside this program.
    Builtin(&'static str),
    /// A Hugging Face repository.
    Repository(&'static str),
}

/// Every alias, in the order of the table.
pub fn aliases() -> &'static [Alias] {
    static ALIASES: OnceLock<Vec<Alias>> = OnceLock::new();
    ALIASES.get_or_init(|| include_str!("aliases.toml").lines().filter_map(parse_line).collect())
}

/// The alias of this name, in any case.
pub(crate) fn find(name: &str) -> Option<&'static Alias> {
    aliases().iter().find(|alias| alias.name.eq_ignore_ascii_case(name))
}

fn parse_line(line: &'static str) -> Option<Alias> {
    let (name, target) = line.split_once(" = ")?;
    let target = target.strip_prefix('"')?.strip_suffix('"')?;
    let target = match target.strip_prefix("builtin:") {
        Some(builtin) => Target::Builtin(builtin),
        None => Target::Repository(target),
    };
    (!name.starts_with('#')).then_some(Alias { name, target })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;

    #[test]
    fn every_line_of_the_table_is_an_alias() {
        let lines = include_str!("aliases.toml")
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(lines.count(), aliases().len());
    }

    #[test]
    fn names_are_lower_case_and_unique_and_targets_are_whole() {
        for (index, alias) in aliases().iter().enumerate() {
            assert_eq!(alias.name, alias.name.to_lowercase());
            assert!(!alias.name.contains(['/', ':', '@', ' ']), "{}", alias.name);
            assert!(aliases()[..index].iter().all(|other| other.name != alias.name));
            if let Target::Repository(repository) = alias.target {
                assert_eq!(Name::parse(repository).unwrap().repository, repository);
                assert!(repository.contains('/'));
            }
        }
    }

    #[track_caller]
    fn check(name: &str, target: Option<Target>) {
        assert_eq!(find(name).map(|alias| alias.target), target);
    }

    #[test]
    fn names_are_found_in_any_case() {
        check("pebble", Some(Target::Builtin("pebble")));
        check("Pebble-Draft", Some(Target::Builtin("pebble-draft")));
        let qwen = Target::Repository("mlx-community/Qwen3.5-35B-A3B-4bit");
        check("qwen3.5-35b-a3b", Some(qwen));
        check("Qwen3.5-35B-A3B", Some(qwen));
        for name in ["", "peb", "# Short names", "builtin:pebble"] {
            check(name, None);
        }
    }
}
