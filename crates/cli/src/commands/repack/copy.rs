//! Files onto the disk: written next to their place, synchronised, read back, and only then renamed.
//!
//! So a file under its own name is whole and was found on the disk as it should be. A few megabytes are in
//! memory, however large the file.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use checkpoint::Checkpoint;

use super::recipe::Recipe;
use crate::report::Interrupted;

/// How much is read and written at a time: several experts, so that each of the model's tensors is read in
/// stretches that keep a disk busy.
const CHUNK_BYTES: u64 = 8 << 20;

/// Observes a long piece of work.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    /// Receives every stretch of bytes that is written, and again when it is checked.
    pub(super) advance: &'a dyn Fn(u64),
    /// Whether to stop.
    pub(super) stop: &'a dyn Fn() -> bool,
}

/// How a file is not what it should be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Difference {
    Missing,
    Length { expected: u64, got: u64 },
    Byte { offset: u64, tensor: String },
}

impl std::fmt::Display for Difference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Difference::Missing => formatter.write_str("is missing"),
            Difference::Length { expected, got } => {
                write!(formatter, "has {got} bytes instead of {expected}")
            }
            Difference::Byte { offset, tensor } => {
                write!(formatter, "is wrong at byte {offset}, in {tensor}")
            }
        }
    }
}

/// The name a file has until it is whole.
pub(super) fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// Whether a file is there whole: what is written under this name was checked before.
pub(super) fn is_complete(recipe: &Recipe, path: &Path) -> bool {
    let mut begin = vec![0; recipe.header().len()];
    File::open(path).is_ok_and(|mut file| {
        file.metadata().is_ok_and(|found| found.is_file() && found.len() == recipe.len_bytes)
            && file.read_exact(&mut begin).is_ok()
            && begin == recipe.header()
    })
}

/// Writes, checks and renames one file.
pub(super) fn write(
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    path: &Path,
    watch: Watch<'_>,
) -> Result<()> {
    let unfinished = partial(path);
    let outcome = write_unfinished(recipe, checkpoint, &unfinished, watch);
    if outcome.is_err() {
        // What went wrong matters more, and the space may be needed.
        let _ = fs::remove_file(&unfinished);
    }
    outcome?;
    rename(&unfinished, path)
}

fn write_unfinished(
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    path: &Path,
    watch: Watch<'_>,
) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = File::create(path).with_context(failed)?;
    let mut buffer = buffer(recipe);
    for_each_chunk(recipe.len_bytes, watch, |offset, len| {
        let chunk = &mut buffer[..len];
        recipe.fill(checkpoint, offset, chunk)?;
        file.write_all(chunk).with_context(failed)
    })?;
    file.sync_all().with_context(failed)?;
    if let Some(difference) = compare(recipe, checkpoint, path, watch)? {
        bail!(
            "{} was written but {difference}: the disk does not keep what it is given",
            path.display()
        );
    }
    Ok(())
}

/// Compares a file with what it should be, as the disk has it and not as memory remembers it.
pub(super) fn compare(
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    path: &Path,
    watch: Watch<'_>,
) -> Result<Option<Difference>> {
    let failed = || format!("cannot read {}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Some(Difference::Missing));
        }
        Err(error) => return Err(error).with_context(failed),
    };
    let got = file.metadata().with_context(failed)?.len();
    if got != recipe.len_bytes {
        return Ok(Some(Difference::Length { expected: recipe.len_bytes, got }));
    }
    // Where the system does not do it, at least the file system's answer is checked.
    let _ = machine::disk::forget_cached(&file);
    let (mut expected, mut got) = (buffer(recipe), buffer(recipe));
    let mut difference = None;
    for_each_chunk(recipe.len_bytes, watch, |offset, len| {
        if difference.is_some() {
            return Ok(());
        }
        let (expected, got) = (&mut expected[..len], &mut got[..len]);
        file.read_exact(got).with_context(failed)?;
        recipe.fill(checkpoint, offset, expected)?;
        if expected != got {
            let at = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
            let offset = offset + at as u64;
            let tensor = recipe.tensor_at(offset).to_owned();
            difference = Some(Difference::Byte { offset, tensor });
        }
        Ok(())
    })?;
    Ok(difference)
}

fn buffer(recipe: &Recipe) -> Vec<u8> {
    vec![0; CHUNK_BYTES.min(recipe.len_bytes) as usize]
}

/// Calls `work` with offset and length of every chunk, until it fails or is stopped.
fn for_each_chunk(
    len_bytes: u64,
    watch: Watch<'_>,
    mut work: impl FnMut(u64, usize) -> Result<()>,
) -> Result<()> {
    let mut offset = 0;
    while offset < len_bytes {
        if (watch.stop)() {
            return Err(Interrupted.into());
        }
        let len = CHUNK_BYTES.min(len_bytes - offset);
        work(offset, len as usize)?;
        (watch.advance)(len);
        offset += len;
    }
    Ok(())
}

/// Writes a small file, unless it is there already.
pub(super) fn write_small(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let unfinished = partial(path);
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.with_context(|| format!("cannot write {}", unfinished.display()))?;
    rename(&unfinished, path)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("cannot rename {}", from.display()))?;
    // The name too must outlive a loss of power. Not every system can synchronise a folder.
    if let Some(folder) = to.parent()
        && let Ok(folder) = File::open(folder)
    {
        let _ = folder.sync_all();
    }
    Ok(())
}
