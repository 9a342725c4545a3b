//! Which of our crates may know which: the arrows of ARCHITECTURE.md.
//!
//! Read from cargo's metadata, so a dependency counts however it is written and for whatever it is
//! used: in the library, in a build script or in tests. A crate is named by its folder.

use serde_json::Value;

use super::Finding;

/// A crate and all it may depend on. `cli` may depend on everything.
const ARROWS: [(&str, &[&str]); 16] = [
    ("machine", &[]),
    ("format", &[]),
    ("golden", &[]),
    ("checkpoint", &["machine", "format"]),
    ("compute", &["machine", "format"]),
    ("experts", &["machine", "format", "golden", "checkpoint", "compute"]),
    ("state", &["compute"]),
    ("grammar", &[]),
    ("text", &["grammar"]),
    ("model", &["format", "checkpoint", "compute", "state"]),
    (
        "runtime",
        &["machine", "format", "golden", "checkpoint", "compute", "experts", "state", "model"],
    ),
    ("speculation", &["experts", "state", "model", "runtime"]),
    (
        "engine",
        &[
            "machine",
            "golden",
            "checkpoint",
            "compute",
            "experts",
            "state",
            "model",
            "grammar",
            "text",
            "runtime",
            "speculation",
        ],
    ),
    ("hub", &["machine"]),
    ("server", &["machine", "engine", "grammar", "runtime", "speculation", "text"]),
    (
        "workbench",
        &[
            "machine",
            "format",
            "checkpoint",
            "compute",
            "experts",
            "state",
            "text",
            "model",
            "runtime",
            "speculation",
            "engine",
        ],
    ),
];
const KNOWS_EVERYTHING: &str = "cli";

/// Checks `cargo metadata --no-deps`.
pub(super) fn check(metadata: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let crate_folder = folder_name(manifest.trim_end_matches("Cargo.toml"));
        // The project's tools are no part of the house, and use nothing of it.
        let allowed = match ARROWS.iter().find(|(name, _)| *name == crate_folder) {
            Some((_, allowed)) => *allowed,
            None if crate_folder == KNOWS_EVERYTHING => continue,
            None if crate_folder == "xtask" => &[],
            None => {
                let message = "is not in the list of arrows (xtask/src/tidy/arrows.rs)";
                findings.push(Finding::Error(format!("crate `{crate_folder}` {message}")));
                continue;
            }
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Only what lies in this tree has a path.
            let Some(path) = dependency["path"].as_str() else { continue };
            let used = folder_name(path);
            if !allowed.contains(&used) {
                findings.push(Finding::Error(format!(
                    "crate `{crate_folder}` must not depend on `{used}` (it may on: {})",
                    if allowed.is_empty() { "none of ours".to_owned() } else { allowed.join(", ") },
                )));
            }
        }
    }
    findings
}

fn folder_name(path: &str) -> &str {
    path.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_one(folder: &str, dependencies: &[&str], expect: Option<&str>) {
        let dependencies: Vec<Value> = dependencies
            .iter()
            .map(|name| match *name {
                "serde" => json!({ "name": "serde" }),
                name => json!({ "name": format!("x-{name}"), "path": format!("/x/crates/{name}") }),
            })
            .collect();
        let package = json!({
            "manifest_path": format!("/x/crates/{folder}/Cargo.toml"),
            "dependencies": dependencies,
        });
        let expect: Vec<Finding> =
            expect.iter().map(|text| Finding::Error((*text).to_owned())).collect();
        assert_eq!(check(&json!({ "packages": [package] })), expect);
    }

    #[test]
    fn arrows_point_one_way() {
        check_one("compute", &["machine", "serde"], None);
        check_one("experts", &["checkpoint", "compute"], None);
        check_one("cli", &["machine", "server", "anything"], None);
        let expect = "crate `machine` must not depend on `compute` (it may on: none of ours)";
        check_one("machine", &["compute"], Some(expect));
        let expect = "crate `model` must not depend on `experts` (it may on: format, checkpoint, compute, state)";
        check_one("model", &["state", "experts"], Some(expect));
        let expect = "crate `hub` must not depend on `checkpoint` (it may on: machine)";
        check_one("hub", &["checkpoint"], Some(expect));
        let expect = "crate `xtask` must not depend on `cli` (it may on: none of ours)";
        check_one("xtask", &["cli"], Some(expect));
    }

    #[test]
    fn a_new_crate_must_be_entered() {
        let expect = "crate `bits` is not in the list of arrows (xtask/src/tidy/arrows.rs)";
        check_one("bits", &[], Some(expect));
    }

    #[test]
    fn allowed_arrows_make_no_circle() {
        // Take away, again and again, a crate that depends on none of the rest.
        let mut rest: Vec<(&str, &[&str])> = ARROWS.to_vec();
        while let Some(free) = rest
            .iter()
            .position(|(_, allowed)| allowed.iter().all(|to| !rest.iter().any(|(of, _)| of == to)))
        {
            rest.remove(free);
        }
        assert!(rest.is_empty(), "{rest:?}");
    }
}
