//! Is this machine ready? One line per question, with a hint where the answer could be better.
//!
//! Gathering and judging are apart: [`Examination`] holds everything that was read, and [`judge`] is a plain
//! function of it. Nothing here changes the machine and nothing takes longer than a few milliseconds.

use std::path::Path;

use serde::Serialize;

use crate::cpu::Isa;
use crate::disk::Disk;
use crate::facts::{Facts, HugePages};
use crate::memory::{LimitSource, Memory};
use crate::{size, system};

/// How a check went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Nothing to do.
    Ok,
    /// Works, but slower or tighter than it could be.
    Warn,
    /// Will not work.
    Fail,
}

/// One question and its answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Everything that the checks look at.
#[derive(Clone, Debug)]
pub struct Examination {
    /// The machine.
    pub facts: Facts,
    /// The disk that holds the models, if a folder was named; the error as text if it could not be read.
    pub disk: Option<Result<Disk, String>>,
    /// How many files this process may open.
    pub open_file_limit: Option<u64>,
}

/// Examines this machine, and the disk of `model_dir` if there is one.
pub fn checks(model_dir: Option<&Path>) -> Vec<Check> {
    judge(&Examination {
        facts: Facts::gather(),
        disk: model_dir.map(|path| Disk::of(path).map_err(|error| error.to_string())),
        open_file_limit: system::open_file_limit(),
    })
}

/// Turns what was found into answers, in the order a reader wants them.
pub fn judge(examination: &Examination) -> Vec<Check> {
    let Examination { facts, disk, open_file_limit } = examination;
    let mut checks = vec![cores(facts), instruction_sets(facts), memory(facts.memory.as_ref())];
    if let Some(memory) = &facts.memory {
        checks.extend(memory_limit(memory));
        checks.push(swap(facts.os, memory));
    }
    checks.push(huge_pages(facts));
    checks.extend(disk.as_ref().map(disk_check));
    checks.extend(open_file_limit.map(open_files));
    checks
}

impl Check {
    fn ok(name: &'static str, detail: String) -> Check {
        Check { name, status: Status::Ok, detail, hint: None }
    }

    fn warn(name: &'static str, detail: String, hint: &str) -> Check {
        Check { name, status: Status::Warn, detail, hint: Some(hint.to_owned()) }
    }

    fn fail(name: &'static str, detail: String, hint: &str) -> Check {
        Check { status: Status::Fail, ..Check::warn(name, detail, hint) }
    }
}

fn cores(facts: &Facts) -> Check {
    let model = facts.cpu_model.as_deref().unwrap_or("unknown processor");
    let plural = if facts.core_count == 1 { "core" } else { "cores" };
    let detail = format!("{} {plural}, {model}", facts.core_count);
    if facts.core_count == 1 {
        let hint =
            "reading experts and computing share this one core; give the process a second one";
        return Check::warn("cores", detail, hint);
    }
    Check::ok("cores", detail)
}

fn instruction_sets(facts: &Facts) -> Check {
    let name = "instruction sets";
    let sets: Vec<_> = facts.instruction_sets.iter().map(|isa| isa.name()).collect();
    let detail = format!("{} (of {})", facts.isa, sets.join(", "));
    if facts.isa == Isa::Scalar {
        let hint = "no vector instructions that we know: expect a tenth of the usual speed";
        return Check::warn(name, detail, hint);
    }
    if facts.amx_advertised && facts.isa != Isa::Amx {
        let detail = format!("{detail}; AMX is advertised but failed its self-test");
        let hint =
            "the virtual machine or kernel does not support AMX fully; prompts are read slower";
        return Check::warn(name, detail, hint);
    }
    Check::ok(name, detail)
}

fn memory(memory: Option<&Memory>) -> Check {
    let Some(memory) = memory else {
        let hint = "say how much to use with --memory, for example --memory 16G";
        return Check::warn("memory", "this system does not report its memory".to_owned(), hint);
    };
    let budget_bytes = memory.budget_bytes();
    let detail = format!(
        "{} in all, {} available, {} by default for the model",
        size::bytes(memory.total_bytes),
        size::bytes(memory.available_bytes),
        size::bytes(budget_bytes)
    );
    // The dense part of the smallest model worth streaming and one token's experts do not fit in less.
    if budget_bytes < 1 << 30 {
        return Check::fail("memory", detail, "end other programs, or raise the container's limit");
    }
    if budget_bytes < 4 << 30 {
        return Check::warn("memory", detail, "large models will read most experts from disk");
    }
    Check::ok("memory", detail)
}

fn memory_limit(memory: &Memory) -> Option<Check> {
    let limit = memory.limit.as_ref()?;
    let source = match limit.source {
        LimitSource::CgroupV1 => "cgroup v1",
        LimitSource::CgroupV2 => "cgroup v2",
        LimitSource::AddressSpace => "address space (ulimit -v)",
    };
    let cached = match limit.source {
        LimitSource::AddressSpace => String::new(),
        _ => format!(", {} of files that can be given back", size::bytes(limit.file_bytes)),
    };
    let detail = format!(
        "{} by {source}, {} of it in use{cached}, set in {}",
        size::bytes(limit.bytes),
        size::bytes(limit.used_bytes),
        limit.path.display()
    );
    if limit.source == LimitSource::AddressSpace {
        let hint = "address space is more than memory in use; remove this limit with `ulimit -v unlimited`";
        return Some(Check::warn("memory limit", detail, hint));
    }
    Some(Check::ok("memory limit", detail))
}

fn swap(os: &str, memory: &Memory) -> Check {
    if memory.swap_total_bytes == 0 {
        return Check::ok("swap", "none".to_owned());
    }
    let used_bytes = memory.swap_total_bytes.saturating_sub(memory.swap_free_bytes);
    let detail =
        format!("{} of {} in use", size::bytes(used_bytes), size::bytes(memory.swap_total_bytes));
    // The swap of macOS grows as it is needed, so how full it is says nothing.
    let all_bytes = if os == "macos" { memory.total_bytes } else { memory.swap_total_bytes };
    if used_bytes > all_bytes / 2 {
        let hint = "the machine is short of memory already; end other programs or lower --memory";
        return Check::warn("swap", detail, hint);
    }
    Check::ok("swap", detail)
}

fn huge_pages(facts: &Facts) -> Check {
    let name = "huge pages";
    match facts.huge_pages {
        HugePages::Always => Check::ok(name, "always".to_owned()),
        HugePages::Madvise => Check::ok(name, "on request (madvise)".to_owned()),
        HugePages::Never => Check::warn(
            name,
            "switched off".to_owned(),
            "reading weights is up to a third slower; as root: \
             echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        HugePages::Unknown if facts.os == "linux" => Check::warn(
            name,
            "this kernel does not offer them".to_owned(),
            "reading weights is up to a third slower than on a kernel that does",
        ),
        HugePages::Unknown => Check::ok(name, "left to the system".to_owned()),
    }
}

fn disk_check(disk: &Result<Disk, String>) -> Check {
    let disk = match disk {
        Ok(disk) => disk,
        Err(error) => {
            return Check::fail("disk", error.clone(), "name a folder that exists and is readable");
        }
    };
    let filesystem = disk.filesystem.as_deref().unwrap_or("unknown file system");
    let device = disk.disk.as_deref().or(disk.device.as_deref()).unwrap_or("unknown device");
    let free = disk.free_bytes.map_or("unknown".to_owned(), size::bytes);
    let detail = format!("{filesystem} on {device}, {free} free");
    // Those of Linux, of macOS, and the word for all on Windows.
    let mut network =
        "nfs nfs4 cifs smb3 9p fuse.sshfs ceph virtiofs smbfs afpfs webdav network".split(' ');
    if network.any(|name| name == filesystem) {
        let hint = "experts are read at every token; put the model on a local SSD";
        return Check::warn("disk", detail, hint);
    }
    // Virtual disks often claim to spin, so this is advice and no more.
    if disk.rotational == Some(true) && !device.starts_with("vd") && !device.starts_with("xvd") {
        let detail = format!("{detail}, rotating");
        let hint = "a rotating disk is about a hundred times too slow to stream from; use an SSD";
        return Check::warn("disk", detail, hint);
    }
    Check::ok("disk", detail)
}

fn open_files(limit: u64) -> Check {
    let detail = format!("{limit} allowed");
    // Checkpoints come in up to 200 shards, and every connection of the server is a file too.
    if limit < 1024 {
        return Check::warn("open files", detail, "raise it with `ulimit -n 4096`");
    }
    Check::ok("open files", detail)
}

#[cfg(test)]
#[path = "doctor_tests.rs"]
mod tests;
