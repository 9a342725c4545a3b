//! The part of the process environment that decides where models are.
//!
//! Same variables, same order and same default as Python's `huggingface_hub`, on every operating system, so
//! that both share one cache.

use std::path::{Path, PathBuf};

/// Where to look. Tests build their own.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `HF_HUB_CACHE`: the cache itself.
    pub hf_hub_cache: Option<PathBuf>,
    /// `HF_HOME`: the folder that holds the cache as `hub`.
    pub hf_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`: stands in for `~/.cache`.
    pub xdg_cache_home: Option<PathBuf>,
    /// The user's home folder.
    pub home: Option<PathBuf>,
    /// What relative paths start from.
    pub current_folder: PathBuf,
}

impl Environment {
    /// The environment of this process.
    pub fn from_env() -> Environment {
        // An empty variable means the same as none, as it does in Python.
        let variable = |name: &str| {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        Environment {
            hf_hub_cache: variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")),
            hf_home: variable("HF_HOME"),
            xdg_cache_home: variable("XDG_CACHE_HOME"),
            home: etcetera::home_dir().ok(),
            current_folder: std::env::current_dir().unwrap_or_default(),
        }
    }

    /// The user's cache of everything: `XDG_CACHE_HOME`, or `.cache` in the home folder.
    pub fn user_cache(&self) -> Option<PathBuf> {
        let in_home = || Some(self.home.as_ref()?.join(".cache"));
        self.xdg_cache_home.as_ref().map(|path| self.expand(path)).or_else(in_home)
    }

    /// The folders that hold cached models, in the order they are searched. One at most today; a list, because
    /// every error names all places that were looked at.
    pub fn cache_folders(&self) -> Vec<PathBuf> {
        let folder = if let Some(cache) = &self.hf_hub_cache {
            Some(self.expand(cache))
        } else if let Some(home) = &self.hf_home {
            Some(self.expand(home).join("hub"))
        } else {
            self.user_cache().map(|cache| cache.join("huggingface").join("hub"))
        };
        folder.into_iter().collect()
    }

    /// `path` with `~` and the current folder filled in.
    pub(crate) fn absolute(&self, path: &str) -> PathBuf {
        let joined = self.current_folder.join(self.expand(Path::new(path)));
        // Drops the `.` of `./folder`, which reads badly in messages.
        joined.components().collect()
    }

    fn expand(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables in the order `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, home.
    #[track_caller]
    fn check(variables: [Option<&str>; 4], expected: &[&str]) {
        let [hf_hub_cache, hf_home, xdg_cache_home, home] =
            variables.map(|value| value.map(PathBuf::from));
        let environment =
            Environment { hf_hub_cache, hf_home, xdg_cache_home, home, ..Environment::default() };
        let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
        assert_eq!(environment.cache_folders(), expected);
    }

    #[test]
    fn the_most_specific_variable_wins() {
        let home = Some("/home/me");
        check([None, None, None, None], &[]);
        check([None, None, None, home], &["/home/me/.cache/huggingface/hub"]);
        check([None, None, Some("/x"), home], &["/x/huggingface/hub"]);
        check([None, Some("/hf"), Some("/x"), home], &["/hf/hub"]);
        check([Some("/cache"), Some("/hf"), Some("/x"), home], &["/cache"]);
    }

    #[test]
    fn the_tilde_is_the_home_folder() {
        let home = Some("/home/me");
        check([Some("~/models"), None, None, home], &["/home/me/models"]);
        check([None, Some("~/hf"), None, home], &["/home/me/hf/hub"]);
        check([None, None, Some("~"), home], &["/home/me/huggingface/hub"]);
        check([Some("~other/models"), None, None, home], &["~other/models"]);
        check([Some("~/models"), None, None, None], &["~/models"]);
    }

    #[test]
    fn paths_become_absolute() {
        let environment = Environment {
            home: Some("/home/me".into()),
            current_folder: "/here".into(),
            ..Environment::default()
        };
        for (path, expected) in [
            ("a/b", "/here/a/b"),
            ("./a", "/here/a"),
            ("/a", "/a"),
            ("~/a", "/home/me/a"),
            ("../a", "/here/../a"),
        ] {
            assert_eq!(environment.absolute(path), Path::new(expected));
        }
    }
}
