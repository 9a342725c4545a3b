//! What distinguishes one file, and one state of it, from another.
//!
//! Length, number and time of the last change are queried after every read, in one system call. The time alone says
//! little: `touch`, a backup or a copy of the same bytes change it too. So when nothing else differs, the file's header
//! and some places of its data decide, once for each new time.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use machine::pages::Pages;

use super::{ALIGNMENT, system};
use crate::{Error, Result};

/// What is read of a header at a time.
const CHUNK_BYTES: usize = 64 * ALIGNMENT;

/// Blocks of data that belong to a fingerprint, evenly spread; the last is the file's last. Other weights of the same
/// shapes have the same header, and a copy that is still being made ends in zeros.
const SAMPLES: u64 = 4;

/// A file and its state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// The disk and the file on it.
    number: (u64, u64),
    len_bytes: u64,
    modified: Option<SystemTime>,
}

impl Identity {
    fn of(file: &File) -> io::Result<Identity> {
        let metadata = file.metadata()?;
        let number = system::number(file, &metadata)?;
        Ok(Identity { number, len_bytes: metadata.len(), modified: metadata.modified().ok() })
    }

    /// Whether only the time may differ.
    fn is_alike(&self, other: &Identity) -> bool {
        Identity { modified: other.modified, ..*self } == *other
    }
}

/// A file as it was when it was opened.
#[derive(Debug)]
pub(super) struct Original {
    fingerprint: u64,
    len_bytes: u64,
    times: Mutex<Times>,
}

/// What is known of the file's times.
#[derive(Debug)]
struct Times {
    /// The file when its bytes were last known to be the original ones.
    same: Identity,
    /// The file when they were last found to be others.
    other: Option<Identity>,
}

impl Original {
    /// Of a file that was opened now, and that must be the same as `before`, an older descriptor of it.
    pub(super) fn of(file: &File, before: Option<&File>, path: &Path) -> Result<Original> {
        let failed = |source| examine(path, source);
        let identity = Identity::of(file).map_err(failed)?;
        if let Some(before) = before
            && !identity.is_alike(&Identity::of(before).map_err(failed)?)
        {
            return Err(Error::Changed { path: path.to_owned() });
        }
        // The older descriptor reads through the cache, where the header is.
        let fingerprint =
            fingerprint(before.unwrap_or(file), identity.len_bytes).map_err(failed)?;
        let times = Mutex::new(Times { same: identity, other: None });
        Ok(Original { fingerprint, len_bytes: identity.len_bytes, times })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// An error if the file is no longer what it was.
    pub(super) fn check(&self, file: &File, path: &Path) -> Result<()> {
        let failed = |source| examine(path, source);
        let now = Identity::of(file).map_err(failed)?;
        let changed = || Err(Error::Changed { path: path.to_owned() });
        // Held while the bytes are compared: other threads that see the new time wait for the answer.
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        if now == times.same {
            return Ok(());
        }
        // Queried again: another thread may have settled a later time since.
        let now = Identity::of(file).map_err(failed)?;
        if now == times.same {
            return Ok(());
        }
        if !now.is_alike(&times.same) || times.other == Some(now) {
            return changed();
        }
        // The time is older than the bytes that are compared: what is written meanwhile has a newer one.
        if fingerprint(file, self.len_bytes).map_err(failed)? != self.fingerprint {
            times.other = Some(now);
            return changed();
        }
        times.same = now;
        let path = path.display();
        tracing::info!(
            "{path} has a new time of change and the same size, header and samples; reading on"
        );
        Ok(())
    }
}

fn examine(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), operation: "examine".to_owned(), source }
}

/// A number made of the header of a safetensors file (of the first block, where there is none) and of the samples.
fn fingerprint(file: &File, len_bytes: u64) -> io::Result<u64> {
    // Direct reads must land at multiples of a block.
    let mut buffer = Pages::new(CHUNK_BYTES).map_err(io::Error::other)?;
    let mut hasher = DefaultHasher::new();
    let (mut offset, mut end) = (0, ALIGNMENT as u64);
    while offset < end {
        let came = read(file, offset, &mut buffer)?;
        if offset == 0
            && let Some(length) = buffer.first_chunk().copied().map(u64::from_le_bytes)
        {
            let header_end = length.saturating_add(8);
            let is_header =
                header_end <= len_bytes.min(checkpoint::safetensors::HEADER_LIMIT_BYTES);
            end = if is_header { header_end } else { end };
        }
        hasher.write(&buffer[..came.min((end - offset) as usize)]);
        if came < CHUNK_BYTES {
            break;
        }
        offset += CHUNK_BYTES as u64;
    }
    for sample in 1..=SAMPLES {
        // Products of lengths and small numbers: no file is that long.
        let place = len_bytes.saturating_sub(1).saturating_mul(sample) / SAMPLES;
        let offset = place - place % ALIGNMENT as u64;
        let came = read(file, offset, &mut buffer[..ALIGNMENT])?;
        hasher.write(&buffer[..came]);
    }
    Ok(hasher.finish())
}

/// Fills `out` from a multiple of a block on, as far as the file goes: how many bytes came.
fn read(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    let mut came = 0;
    while came < out.len() && came.is_multiple_of(ALIGNMENT) {
        match system::read_at(file, offset + came as u64, &mut out[came..]) {
            Ok(0) => break,
            Ok(count) => came += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(came)
}
