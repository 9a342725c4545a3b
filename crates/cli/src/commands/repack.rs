//! `millstream repack`: a copy of a model in which every expert is one aligned stretch of a file.
//!
//! The copy is an ordinary safetensors checkpoint, so nothing else knows about it: an expert that is twelve
//! ranges in the published file is one in the copy, and one read brings it. Where a complete copy of an
//! unchanged model lies in the user's cache, [`found`] says so. Weights are copied, never converted.

mod copy;
mod marker;
mod origin;
mod quantization;
mod recipe;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hub::Environment;
use machine::disk::Disk;

use self::copy::{Difference, Watch};
use self::marker::{FORMAT, Marker, Written};
use self::origin::{CONFIG, INDEX, Origin};
use self::recipe::Recipe;
use crate::args::RepackArgs;
use crate::console::say;
use crate::interrupt::{self, Answering};
use crate::invocation::Invocation;
use crate::report::{Advised, Interrupted};
use crate::size;

pub(crate) fn run(args: &RepackArgs, invocation: &Invocation) -> Result<()> {
    let origin = Origin::open(&args.model, &invocation.environment)?;
    let usual = origin.key().and_then(|key| usual_folder(&key, &invocation.environment));
    let out = args.out.clone().or_else(|| usual.clone()).ok_or_else(|| {
        let hint = format!("name one: millstream repack {} FOLDER", origin.name);
        Advised::usage("there is no folder for the copy", hint)
    })?;
    let copy = Copy::new(&origin, &out)?;
    interrupt::listen();
    let running = Answering::begin();
    let stop = || running.is_stopped();
    if args.verify {
        let bar = invocation.console.byte_bar("comparing", copy.weight_bytes());
        let checked = copy.verify(Watch { advance: &|bytes| bar.inc(bytes), stop: &stop });
        bar.finish_and_clear();
        checked?;
        say!("{}: {} files are as they should be", out.display(), copy.file_count());
        return Ok(());
    }
    // Every byte is written and then read back: half a byte of the bar each.
    let bar = invocation.console.byte_bar("repacking", copy.weight_bytes());
    let half_bytes = Cell::new(0);
    let advance = |bytes: u64| {
        half_bytes.set(half_bytes.get() + bytes);
        bar.set_position(half_bytes.get() / 2);
    };
    let written = copy.write(Watch { advance: &advance, stop: &stop });
    bar.finish_and_clear();
    let kept = match written {
        Err(error) if error.is::<Interrupted>() => {
            let (done, all) = (copy.done().count(), copy.recipes.len());
            say!(
                "stopped: {done} of {all} files are complete; the same command continues from here"
            );
            return Err(error);
        }
        other => other?,
    };
    copy.describe(kept);
    if args.out.is_none() && origin.folder().is_some() {
        say!("From now on it is used wherever {} is requested.", origin.name);
    }
    Ok(())
}

/// The complete copy of an unchanged model that lies in `folder`, if there is one where [`run`] puts it.
pub(crate) fn found(folder: &Path, name: &str, environment: &Environment) -> Option<PathBuf> {
    let copy = usual_folder(&origin::key(folder)?, environment)?;
    if !copy.join(marker::FILE).exists() {
        return None;
    }
    let stale = match Marker::read(&copy) {
        None => "was written by another version of this program",
        Some(marker) if !marker.is_whole(&copy) => "is not complete",
        Some(marker) => match origin::is_unchanged(folder, &marker.source_files) {
            Ok(true) => {
                tracing::info!("{name}: using the repacked copy in {}", copy.display());
                return Some(copy);
            }
            Ok(false) => "is of another version of the model",
            Err(error) => {
                tracing::warn!("{name}: cannot tell whether {} is stale: {error}", copy.display());
                return None;
            }
        },
    };
    let place = copy.display();
    tracing::warn!(
        "{name}: the repacked copy in {place} {stale} and is not used; `millstream repack` renews it"
    );
    None
}

/// Where the copy of a model lies by default.
fn usual_folder(key: &str, environment: &Environment) -> Option<PathBuf> {
    Some(environment.user_cache()?.join("millstream").join("repacked").join(key))
}

/// A copy, there or not, and what it should consist of.
struct Copy<'a> {
    origin: &'a Origin,
    folder: PathBuf,
    recipes: Vec<Recipe>,
    /// Everything else in the order it is written: the marker and config.json come last.
    small: Vec<(String, Vec<u8>)>,
    marker: Marker,
}

impl<'a> Copy<'a> {
    fn new(origin: &'a Origin, folder: &Path) -> Result<Copy<'a>> {
        let stamps = origin.stamps()?;
        let identity = marker::identity(&stamps);
        let recipes = recipe::recipes(&origin.checkpoint, &origin.spec, &identity)?;
        let mut small = Vec::new();
        for name in origin.side_names()? {
            if [CONFIG, INDEX, marker::FILE].contains(&name.as_str()) {
                continue;
            }
            match origin.checkpoint.read_file(&name) {
                Ok(content) => small.extend(content.map(|content| (name, content))),
                Err(checkpoint::Error::TooLarge { .. }) => {
                    tracing::warn!("{}: {name} is too large to be copied", origin.name);
                }
                Err(error) => return Err(error.into()),
            }
        }
        small.push((INDEX.to_owned(), recipe::index(&recipes)));
        let config = quantization::config(origin)?;

        let weights = recipes.iter().map(|recipe| (&recipe.name, recipe.len_bytes));
        let others = small.iter().map(|(name, content)| (name, content.len() as u64));
        let mut files: Vec<Written> = weights
            .chain(others)
            .map(|(name, size_bytes)| Written { name: name.clone(), size_bytes })
            .collect();
        files.push(Written { name: CONFIG.to_owned(), size_bytes: config.len() as u64 });
        let source = origin.name.clone();
        let marker = Marker { format: FORMAT, source, source_files: stamps, files };
        let text = serde_json::to_string_pretty(&marker)? + "\n";
        small.push((marker::FILE.to_owned(), text.into_bytes()));
        small.push((CONFIG.to_owned(), config));
        Ok(Copy { origin, folder: folder.to_owned(), recipes, small, marker })
    }

    fn weight_bytes(&self) -> u64 {
        self.recipes.iter().map(|recipe| recipe.len_bytes).sum()
    }

    fn file_count(&self) -> usize {
        self.recipes.len() + self.small.len()
    }

    /// The weight files that are there.
    fn done(&self) -> impl Iterator<Item = &Recipe> {
        let is_done = |recipe: &&Recipe| copy::is_complete(recipe, &self.folder.join(&recipe.name));
        self.recipes.iter().filter(is_done)
    }

    /// Writes what is not there yet; how many weight files were.
    fn write(&self, watch: Watch<'_>) -> Result<usize> {
        self.refuse_other_content()?;
        let done: BTreeSet<&str> = self.done().map(|recipe| recipe.name.as_str()).collect();
        let missing = self.recipes.iter().filter(|recipe| !done.contains(recipe.name.as_str()));
        let missing: Vec<&Recipe> = missing.collect();
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot create {}", self.folder.display()))?;
        self.tidy(!missing.is_empty())?;
        self.refuse_full_disk(missing.iter().map(|recipe| recipe.len_bytes).sum())?;
        for recipe in self.recipes.iter().filter(|recipe| done.contains(recipe.name.as_str())) {
            tracing::info!("{} is complete", recipe.name);
            (watch.advance)(2 * recipe.len_bytes);
        }
        for (index, recipe) in missing.iter().enumerate() {
            let path = self.folder.join(&recipe.name);
            copy::write(recipe, &self.origin.checkpoint, &path, watch).map_err(|error| {
                let rest = missing[index..].iter().map(|recipe| recipe.len_bytes).sum();
                self.explain_full_disk(error, rest)
            })?;
            tracing::info!("{} is written and checked", recipe.name);
        }
        for (name, content) in &self.small {
            copy::write_small(&self.folder.join(name), content)?;
        }
        Ok(done.len())
    }

    /// Compares every file with the model.
    fn verify(&self, watch: Watch<'_>) -> Result<()> {
        if !self.folder.is_dir() {
            let hint = format!("millstream repack {} writes one", self.origin.name);
            let message = format!("there is no copy in {}", self.folder.display());
            return Err(Advised::new(message, hint).into());
        }
        let mut wrong = Vec::new();
        for recipe in &self.recipes {
            let path = self.folder.join(&recipe.name);
            let difference = copy::compare(recipe, &self.origin.checkpoint, &path, watch)?;
            wrong.extend(difference.map(|difference| format!("{} {difference}", recipe.name)));
        }
        for (name, content) in &self.small {
            let difference = match fs::read(self.folder.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Difference::Missing,
                Err(error) => return Err(error).with_context(|| format!("cannot read {name}")),
                Ok(found) if found == *content => continue,
                Ok(_) if name == marker::FILE => {
                    let marker = Marker::read(&self.folder);
                    if marker.is_some_and(|marker| marker.is_same(&self.marker)) {
                        continue;
                    }
                    wrong.push(format!("{name} is of another version of the model"));
                    continue;
                }
                Ok(_) => {
                    wrong.push(format!("{name} is another than the model's"));
                    continue;
                }
            };
            wrong.push(format!("{name} {difference}"));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let message = format!("{}: {}", self.folder.display(), wrong.join("; "));
        Err(Advised::new(message, "delete these files, and `millstream repack` writes them anew")
            .into())
    }

    /// Refuses a folder that holds anything but a copy, finished or not.
    fn refuse_other_content(&self) -> Result<()> {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            if self.folder.exists() {
                anyhow::bail!("{} is not a folder", self.folder.display());
            }
            return Ok(());
        };
        let refuse = |reason: String| {
            let message = format!("{}: {reason}", self.folder.display());
            Err(Advised::new(message, "name a new or empty folder for the copy").into())
        };
        let here = self.folder.canonicalize().ok();
        if here.is_some() && here == self.origin.folder().and_then(|f| f.canonicalize().ok()) {
            return refuse("this is the model itself".to_owned());
        }
        if Marker::read(&self.folder).is_some() {
            return Ok(());
        }
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let whole = name.strip_suffix(".partial").unwrap_or(&name);
            let ours =
                recipe::is_weights(whole) || self.small.iter().any(|(name, _)| name == whole);
            if !ours {
                return refuse(format!("holds {name}, which is no part of a repacked copy"));
            }
        }
        Ok(())
    }

    /// Removes what an interrupted run or a copy of another model left. If weights are going to be
    /// `replaced`, the folder stops being a model until they are.
    fn tidy(&self, replaced: bool) -> Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let unfinished = name.ends_with(".partial");
            let stray = recipe::is_weights(&name) && !self.recipes.iter().any(|r| r.name == name);
            let last = name == CONFIG || name == marker::FILE;
            if unfinished || stray || last && replaced {
                let path = entry.path();
                fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn refuse_full_disk(&self, needed: u64) -> Result<()> {
        // Where the free space is not known, writing will show it.
        let Ok((_, disk)) = Disk::to_hold(&self.folder) else { return Ok(()) };
        match disk.free_bytes {
            Some(free) if free < needed => Err(self.full_disk(needed, free).into()),
            _ => Ok(()),
        }
    }

    /// Says with figures that the disk is full, if that is what went wrong.
    fn explain_full_disk(&self, error: anyhow::Error, needed: u64) -> anyhow::Error {
        let is_full = |cause: &io::Error| {
            matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        if !error.chain().any(|cause| cause.downcast_ref().is_some_and(is_full)) {
            return error;
        }
        let free = Disk::to_hold(&self.folder).ok().and_then(|(_, disk)| disk.free_bytes);
        self.full_disk(needed, free.unwrap_or(0)).into()
    }

    fn full_disk(&self, needed: u64, free: u64) -> Advised {
        let (needed, free, place) = (size::bytes(needed), size::bytes(free), self.folder.display());
        let message = format!("the rest of the copy needs {needed}, {place} has {free} free");
        let again = "make room and give the same command again: finished files stay".to_owned();
        let other = format!("or name another disk: millstream repack {} FOLDER", self.origin.name);
        Advised::with_hints(message, vec![again, other])
    }

    /// Says what is there now.
    fn describe(&self, kept: usize) {
        let (place, files) = (self.folder.display(), self.file_count());
        let layers = self.origin.spec.moe_layers().count();
        let experts: usize =
            self.origin.spec.moe_layers().map(|(_, moe)| moe.experts.experts()).sum();
        let bytes = size::bytes(self.weight_bytes());
        let (experts, layers) = (size::counted(experts, "expert"), size::counted(layers, "layer"));
        say!("{place}: {experts} of {layers}, {bytes} in {}", size::counted(files, "file"));
        match (kept, self.recipes.len()) {
            (0, _) => {}
            (kept, all) if kept == all => say!("All of it was there already."),
            (kept, _) => say!("{kept} weight files were there already."),
        }
    }
}
