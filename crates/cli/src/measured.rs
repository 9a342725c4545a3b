//! How fast this machine reads its disks and its memory, kept in a file for the next plan.
//!
//! Measuring takes seconds and a plan should take none, so a command that measures writes down what came out, and
//! `plan` takes what is not too old. Runs measure anew: how to read a disk best is a matter of the moment.
//! Nothing here is an error: a file that is damaged or of another version is as good as none, and one that
//! cannot be written costs the time of the next measurement.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use experts::device::Access;
use experts::probe::Choice;
use experts::reader::Method;
use hub::Environment;
use jiff::Timestamp;
use machine::disk::Disk;
use machine::facts::Facts;
use serde::{Deserialize, Serialize};

/// What this program writes and reads.
const FORMAT: u32 = 1;

/// What is older is measured again: disks fill, and virtual machines move.
const OLDEST_SECONDS: u64 = 7 * 86_400;

/// Entries of each kind that are kept.
const MOST_ENTRIES: usize = 64;

/// Something measured, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dated<T> {
    /// What came out.
    pub(crate) value: T,
    unix_seconds: u64,
}

impl<T> Dated<T> {
    /// The day, such as `2026-11-15`.
    pub(crate) fn date(&self) -> String {
        let seconds = i64::try_from(self.unix_seconds).unwrap_or(i64::MAX);
        let moment = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        moment.strftime("%F").to_string()
    }
}

/// What reads of a model's experts have to do with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    disk: String,
    read_bytes: u64,
}

impl Place {
    /// The disk below a folder, and the size of the reads to the next power of two. Files that move to another disk, or
    /// are repacked into longer stretches, are another place.
    pub(crate) fn new(folder: &Path, mean_read_bytes: u64) -> Place {
        let known = Disk::of(folder).unwrap_or_default();
        let mount_point = known.mount_point.map(|path| path.display().to_string());
        let names: Vec<String> =
            [known.filesystem, known.device, mount_point].into_iter().flatten().collect();
        // A system that does not distinguish its disks: each folder is on its own.
        let disk = if names.is_empty() { folder.display().to_string() } else { names.join(" ") };
        Place { disk, read_bytes: mean_read_bytes.next_power_of_two() }
    }
}

/// The file of measurements.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// `None` where the user has no cache.
    path: Option<PathBuf>,
    /// A home folder may be shared by several machines.
    machine: String,
    now: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    format: u32,
    disks: Vec<DiskEntry>,
    memories: Vec<MemoryEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct DiskEntry {
    machine: String,
    disk: String,
    read_bytes: u64,
    access: Access,
    method: Method,
    bytes_per_second: f64,
    unix_seconds: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct MemoryEntry {
    machine: String,
    threads: usize,
    bytes_per_second: f64,
    unix_seconds: u64,
}

impl DiskEntry {
    fn is_of(&self, machine: &str, place: &Place) -> bool {
        self.machine == machine && self.disk == place.disk && self.read_bytes == place.read_bytes
    }
}

impl MemoryEntry {
    fn is_of(&self, machine: &str, threads: usize) -> bool {
        self.machine == machine && self.threads == threads
    }
}

impl Measured {
    /// What is known of this machine.
    pub(crate) fn of(environment: &Environment) -> Measured {
        let facts = Facts::gather();
        let cpu = facts.cpu_model.unwrap_or_else(|| facts.architecture.to_owned());
        let path = |cache: PathBuf| cache.join("millstream").join("measured.json");
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Measured {
            path: environment.user_cache().map(path),
            machine: format!("{cpu}, {} cores", facts.core_count),
            now: since.map_or(0, |since| since.as_secs()),
        }
    }

    /// How a disk is best read.
    pub(crate) fn disk(&self, place: &Place) -> Option<Dated<Choice>> {
        let disks = self.read().disks.into_iter();
        let found = disks.rev().find(|entry| entry.is_of(&self.machine, place))?;
        let DiskEntry { access, method, bytes_per_second, unix_seconds, .. } = found;
        let is_sensible = self.is_fresh(unix_seconds) && bytes_per_second > 0.0 && method.depth > 0;
        let value = Choice { access, method, bytes_per_second, tried: Vec::new() };
        is_sensible.then_some(Dated { value, unix_seconds })
    }

    /// Keeps how a disk was read; nothing if it was not timed. In whole bytes a second, which come back from a file as they
    /// went in.
    pub(crate) fn keep_disk(&self, place: &Place, mut choice: Choice) -> Dated<Choice> {
        let unix_seconds = self.now;
        choice.bytes_per_second = choice.bytes_per_second.round();
        if choice.bytes_per_second > 0.0 {
            self.change(|content| {
                content.disks.retain(|entry| !entry.is_of(&self.machine, place));
                content.disks.push(DiskEntry {
                    machine: self.machine.clone(),
                    disk: place.disk.clone(),
                    read_bytes: place.read_bytes,
                    access: choice.access,
                    method: choice.method,
                    bytes_per_second: choice.bytes_per_second,
                    unix_seconds,
                });
            });
        }
        Dated { value: choice, unix_seconds }
    }

    /// Bytes that so many threads read from memory in a second.
    pub(crate) fn memory(&self, threads: usize) -> Option<Dated<f64>> {
        let memories = self.read().memories.into_iter();
        let found = memories.rev().find(|entry| entry.is_of(&self.machine, threads))?;
        let MemoryEntry { bytes_per_second: value, unix_seconds, .. } = found;
        (self.is_fresh(unix_seconds) && value > 0.0).then_some(Dated { value, unix_seconds })
    }

    /// Keeps how fast memory was read, in whole bytes a second as well.
    pub(crate) fn keep_memory(&self, threads: usize, bytes_per_second: f64) -> Dated<f64> {
        let (unix_seconds, bytes_per_second) = (self.now, bytes_per_second.round());
        if bytes_per_second > 0.0 {
            self.change(|content| {
                content.memories.retain(|entry| !entry.is_of(&self.machine, threads));
                let machine = self.machine.clone();
                content.memories.push(MemoryEntry {
                    machine,
                    threads,
                    bytes_per_second,
                    unix_seconds,
                });
            });
        }
        Dated { value: bytes_per_second, unix_seconds }
    }

    /// Whether a measurement is not too old. One from the future is of a clock that was wrong.
    fn is_fresh(&self, unix_seconds: u64) -> bool {
        self.now.checked_sub(unix_seconds).is_some_and(|age| age <= OLDEST_SECONDS)
    }

    fn read(&self) -> Content {
        let bytes = self.path.as_ref().and_then(|path| fs::read(path).ok());
        let content = bytes.and_then(|bytes| serde_json::from_slice::<Content>(&bytes).ok());
        content.filter(|content| content.format == FORMAT).unwrap_or(Content {
            format: FORMAT,
            disks: Vec::new(),
            memories: Vec::new(),
        })
    }

    /// Writes a whole new file and renames it, so that half of one is never read.
    fn change(&self, change: impl FnOnce(&mut Content)) {
        let Some(path) = &self.path else { return };
        let mut content = self.read();
        change(&mut content);
        content.disks.retain(|entry| self.is_fresh(entry.unix_seconds));
        content.memories.retain(|entry| self.is_fresh(entry.unix_seconds));
        content.disks.drain(..content.disks.len().saturating_sub(MOST_ENTRIES));
        content.memories.drain(..content.memories.len().saturating_sub(MOST_ENTRIES));
        let unfinished = path.with_extension(format!("{}.partial", std::process::id()));
        let write = || -> std::io::Result<()> {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&unfinished, serde_json::to_string_pretty(&content)? + "\n")?;
            fs::rename(&unfinished, path)
        };
        if let Err(error) = write() {
            // What is left of the attempt is of no use.
            let _ = fs::remove_file(&unfinished);
            tracing::debug!("measurements are not kept in {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
#[path = "measured_tests.rs"]
mod tests;
