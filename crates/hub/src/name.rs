//! What a model name may look like: `org/repo`, `repo`, and either with `@revision` or `:revision`.
//!
//! Names become folder names, so this is also the guard against a name that would leave the cache.

use std::path::Path;

/// A name in the Hugging Face cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    /// `org/repo`, or `repo` for the few that have no owner.
    pub(crate) repository: String,
    /// A branch, tag, commit or `refs/pr/N`.
    pub(crate) revision: Option<String>,
}

impl Name {
    pub(crate) fn parse(text: &str) -> Option<Name> {
        let (repository, revision) = match split_revision(text) {
            Some((repository, revision)) => (repository, Some(revision)),
            None => (text, None),
        };
        let is_revision = |revision: &str| {
            revision.split('/').all(|part| is_part(part) && !part.starts_with('.'))
        };
        let is_repository = repository.split('/').count() <= 2
            // The cache writes "/" as "--", so Hugging Face forbids it in names.
            && repository.split('/').all(|part| is_part(part) && !part.contains("--"));
        if !is_repository || !revision.is_none_or(is_revision) {
            return None;
        }
        Some(Name { repository: repository.to_owned(), revision: revision.map(str::to_owned) })
    }

    /// The name of this repository's folder in the cache.
    pub(crate) fn cache_folder(&self) -> String {
        format!("models--{}", self.repository.replace('/', "--"))
    }

    /// The other way round.
    pub(crate) fn from_cache_folder(folder: &str) -> Option<String> {
        let repository = folder.strip_prefix("models--")?.replace("--", "/");
        Name::parse(&repository).map(|name| name.repository)
    }
}

/// Splits at the first `@`, or else the first `:`.
pub(crate) fn split_revision(text: &str) -> Option<(&str, &str)> {
    text.split_once('@').or_else(|| text.split_once(':'))
}

fn is_part(part: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    !part.is_empty()
        && part.len() <= 255
        && part.chars().all(is_allowed)
        && !part.contains("..")
        && part != "."
}

/// Whether the user surely meant a path: anything that cannot be a name, or ends like a file.
pub(crate) fn looks_like_path(text: &str) -> bool {
    let path = Path::new(text);
    path.is_absolute()
        || text.starts_with('~')
        || text.starts_with('.')
        || text.ends_with('/')
        || text.contains('\\')
        || text.matches('/').count() > 1 && split_revision(text).is_none()
        || path.extension().is_some_and(|extension| {
            extension == "safetensors" || extension == "gguf" || extension == "json"
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, Option<&str>)>) {
        let found = Name::parse(text);
        let found = found.as_ref().map(|name| (name.repository.as_str(), name.revision.as_deref()));
        assert_eq!(found, expected);
    }

    #[test]
    fn names_with_and_without_owner_and_revision() {
        check("gpt2", Some(("gpt2", None)));
        check("org/repo", Some(("org/repo", None)));
        check("org/Repo-1.5_b+c", Some(("org/Repo-1.5_b+c", None)));
        check("org/repo@main", Some(("org/repo", Some("main"))));
        check("org/repo:v1.0", Some(("org/repo", Some("v1.0"))));
        check("org/repo@refs/pr/3", Some(("org/repo", Some("refs/pr/3"))));
        check("gpt2@11c5a3d5", Some(("gpt2", Some("11c5a3d5"))));
    }

    #[test]
    fn names_that_are_not_names() {
        for text in [
            "",
            "/",
            "a/b/c",
            "/a",
            "a/",
            "a/../b",
            "..",
            ".",
            "a/..",
            "a--b/c",
            "a b/c",
            "a/b@",
            "a/b@../x",
            "a/b@.hidden",
            "a/b@x//y",
            "a/b@m:n",
            "a\\b",
            "é/x",
            "a/b@/etc",
        ] {
            check(text, None);
        }
        check(&"x".repeat(300), None);
    }

    #[test]
    fn cache_folders_convert_in_both_directions() {
        for name in ["gpt2", "org/repo", "org/re-po.1"] {
            let folder = Name::parse(name).unwrap().cache_folder();
            assert_eq!(Name::from_cache_folder(&folder).as_deref(), Some(name));
        }
        assert_eq!(Name::parse("org/repo").unwrap().cache_folder(), "models--org--repo");
        for folder in
            ["datasets--org--x", "models--", "models--a--b--c", "version.txt", "models--a--.."]
        {
            assert_eq!(Name::from_cache_folder(folder), None, "{folder}");
        }
    }

    #[test]
    fn paths_are_distinguished_from_names() {
        for text in ["/a", "./a", "../a", "~/a", "a/b/c", "a/", "m.safetensors", "a\\b", "x/m.gguf"]
        {
            assert!(looks_like_path(text), "{text}");
        }
        for text in ["a", "org/repo", "qwen3.5-35b", "org/repo@refs/pr/1", "org/repo:main"] {
            assert!(!looks_like_path(text), "{text}");
        }
    }
}
