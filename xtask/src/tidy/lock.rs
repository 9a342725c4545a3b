//! Whether `fuzz/Cargo.lock` still knows what it locks.
//!
//! The fuzz targets are a workspace of their own that no other stage builds, so their lock file would go
//! stale unseen when one of our crates gains a dependency. Cargo itself can only check it with every package
//! at hand, from a network or an earlier build; this compares manifests with the text of the lock. It does
//! not look at features, nor at what packages of others depend on.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Finding;

pub(super) const PATH: &str = "fuzz/Cargo.lock";

/// A package as the lock has it.
#[derive(Default)]
struct Locked<'a> {
    /// Of each version that is locked.
    versions: Vec<&'a str>,
    /// Names, some with a version after them.
    dependencies: Vec<&'a str>,
}

/// Checks the lock against `cargo metadata --no-deps` of the workspace that it belongs to, and of ours.
pub(super) fn check<'a>(lock: &str, own: &'a Value, house: &'a Value) -> Vec<Finding> {
    let locked = read(lock);
    let mut findings = Vec::new();
    let mut stale = |message: String| {
        let hint = "`cargo metadata --manifest-path fuzz/Cargo.toml` writes it anew";
        findings.push(Finding::Error(format!("{PATH}: {message}; {hint}")));
    };
    let packages = |metadata: &'a Value| metadata["packages"].as_array().into_iter().flatten();
    for package in packages(own).chain(packages(house)) {
        let name = package["name"].as_str().unwrap_or_default();
        // What of ours the fuzz targets do not use is not in it; what they do use is found missing below.
        let Some(entry) = locked.get(name) else { continue };
        let version = package["version"].as_str().unwrap_or_default();
        if !entry.versions.contains(&version) {
            stale(format!("`{name}` is at {version} by now"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["kind"] == "dev" || dependency["optional"] == true {
                continue;
            }
            let wanted = dependency["name"].as_str().unwrap_or_default();
            let requirement = dependency["req"].as_str().unwrap_or("*");
            // A name with several versions says which.
            let is_locked = entry.dependencies.iter().any(|listed| match listed.split_once(' ') {
                Some((listed, version)) => listed == wanted && fits(requirement, version),
                None => *listed == wanted && has_fitting(&locked, wanted, requirement),
            });
            if !is_locked {
                stale(format!("`{name}` depends on `{wanted} {requirement}`, which is not locked"));
            }
        }
    }
    findings
}

fn has_fitting(locked: &BTreeMap<&str, Locked<'_>>, name: &str, requirement: &str) -> bool {
    let versions = locked.get(name).into_iter().flat_map(|entry| &entry.versions);
    versions.into_iter().any(|version| fits(requirement, version))
}

/// Packages by name, from the lines that cargo writes.
fn read(lock: &str) -> BTreeMap<&str, Locked<'_>> {
    let mut packages: BTreeMap<&str, Locked<'_>> = BTreeMap::new();
    let mut name = "";
    for line in lock.lines() {
        let quoted = line.split('"').nth(1).unwrap_or_default();
        if line.starts_with("name = ") {
            name = quoted;
        } else if line.starts_with("version = \"") {
            packages.entry(name).or_default().versions.push(quoted);
        } else if line.starts_with(" \"") {
            packages.entry(name).or_default().dependencies.push(quoted);
        }
    }
    packages
}

/// Whether a version is one that a plain requirement (`^1.2`) takes; requirements of other forms take any.
fn fits(requirement: &str, version: &str) -> bool {
    let Some(least) = requirement.strip_prefix('^') else { return true };
    let numbers = |text: &str| -> Vec<u64> {
        let plain = text.split(['-', '+']).next().unwrap_or_default();
        plain.split('.').map_while(|part| part.parse().ok()).collect()
    };
    let (least, version) = (numbers(least), numbers(version));
    // Up to the first number that is not zero nothing may differ.
    let fixed = least.iter().position(|&part| part > 0).map_or(least.len(), |first| first + 1);
    version.get(..fixed) == least.get(..fixed) && version >= least
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LOCK: &str = r#"
version = 4

[[package]]
name = "ours"
version = "0.1.0"
dependencies = [
 "rand 0.9.1",
 "serde",
]

[[package]]
name = "rand"
version = "0.8.5"

[[package]]
name = "rand"
version = "0.9.1"

[[package]]
name = "serde"
version = "1.0.200"

[[package]]
name = "targets"
version = "0.0.0"
dependencies = [
 "ours",
]
"#;

    #[track_caller]
    fn check_one(name: &str, requirement: &str, kind: Option<&str>, expect: Option<&str>) {
        check_at("0.1.0", name, requirement, kind, expect);
    }

    #[track_caller]
    fn check_at(
        version: &str,
        name: &str,
        requirement: &str,
        kind: Option<&str>,
        expect: Option<&str>,
    ) {
        let ours = json!({ "path": "/x/ours", "name": "ours", "req": "*" });
        let own = json!({ "packages": [
            { "name": "targets", "version": "0.0.0", "dependencies": [ours] },
        ] });
        let dependency = json!({ "name": name, "req": requirement, "kind": kind });
        let house = json!({ "packages": [
            { "name": "ours", "version": version, "dependencies": [dependency] },
            { "name": "unused", "dependencies": [{ "name": "anything", "req": "^1" }] },
        ] });
        let got = check(LOCK, &own, &house);
        assert_eq!(got.len(), expect.iter().len(), "{got:?}");
        for (got, expect) in got.iter().zip(expect) {
            let Finding::Error(text) = got else { panic!("{got:?}") };
            assert!(text.contains(expect), "{text}");
        }
    }

    #[test]
    fn what_a_crate_gained_must_be_locked() {
        check_one("serde", "^1.0", None, None);
        check_one("regex", "^1", None, Some("`ours` depends on `regex ^1`, which is not locked"));
        check_one("regex", "^1", Some("dev"), None);
        check_one("regex", "^1", Some("build"), Some("`regex ^1`"));
    }

    #[test]
    fn what_a_crate_raised_must_be_locked() {
        check_one("rand", "^0.9", None, None);
        // The other version is there for another package.
        check_one("rand", "^0.8", None, Some("`rand ^0.8`"));
        check_one("serde", "^2", None, Some("`serde ^2`"));
        check_one("serde", "^1.0.201", None, Some("`serde ^1.0.201`"));
        check_one("rand", "^0.10", None, Some("`rand ^0.10`"));
        check_at("0.2.0", "serde", "^1", None, Some("`ours` is at 0.2.0 by now"));
    }
}
