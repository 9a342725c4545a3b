//! `millstream doctor`: is this computer ready? One line a check, with a hint where it could be better.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use machine::doctor::{Check, Status};
use serde_json::json;

use crate::args::DoctorArgs;
use crate::console::print_json;
use crate::invocation::Invocation;

pub(crate) fn run(args: &DoctorArgs, invocation: &Invocation) -> Result<ExitCode> {
    let folder = models_folder(invocation);
    let checks = machine::doctor::checks(folder.as_deref());
    let failed = checks.iter().any(|check| check.status == Status::Fail);
    if args.json {
        print_json(&json!({
            "ready": !failed,
            "checks": checks,
            "models_folder": folder,
            "machine": machine::facts::Facts::gather(),
            "version": env!("CARGO_PKG_VERSION"),
        }))?;
    } else {
        std::io::stdout().write_all(lines(&checks).as_bytes())?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn lines(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        };
        text.push_str(&format!("{status:<4}  {}: {}\n", check.name, check.detail));
        if let Some(hint) = &check.hint {
            text.push_str(&format!("      hint: {hint}\n"));
        }
    }
    text
}

/// Where models lie or would lie: the cache, or the nearest folder above it that exists.
fn models_folder(invocation: &Invocation) -> Option<PathBuf> {
    let cache = invocation.environment.cache_folders().into_iter().next()?;
    cache.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned)
}
