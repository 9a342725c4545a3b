//! `millstream.json`: what a copy was made from, and of which files it consists.
//!
//! Reading a whole model to check whether it has changed would take as long as copying it. A weight file is
//! known by its size, its header and a few blocks of its data; another training run, another seed or
//! another quantization differ in every block.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use checkpoint::safetensors::HEADER_LIMIT_BYTES;
use serde::{Deserialize, Serialize};

/// The marker's name.
pub(super) const FILE: &str = "millstream.json";

/// What this program writes and reads.
pub(super) const FORMAT: u32 = 1;

/// Blocks of data that are looked at, and their size.
const SAMPLES: u64 = 8;
const SAMPLE_BYTES: u64 = 4096;

/// The content of the marker.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    /// [`FORMAT`].
    pub(super) format: u32,
    /// The model's name, as the user gave it.
    pub(super) source: String,
    /// The files it was made from.
    pub(super) source_files: Vec<Stamp>,
    /// The files it consists of, but for this one.
    pub(super) files: Vec<Written>,
}

/// A file the copy was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) name: String,
    size_bytes: u64,
    hash: String,
}

/// A file of the copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) name: String,
    pub(super) size_bytes: u64,
}

impl Marker {
    /// The marker in a folder; `None` if there is none that this program understands.
    pub(super) fn read(folder: &Path) -> Option<Marker> {
        let text = fs::read(folder.join(FILE)).ok()?;
        let marker: Marker = serde_json::from_slice(&text).ok()?;
        (marker.format == FORMAT).then_some(marker)
    }

    /// Whether every file is there, as long as it was written.
    pub(super) fn is_whole(&self, folder: &Path) -> bool {
        self.files.iter().all(|file| {
            let found = fs::metadata(folder.join(&file.name));
            found.is_ok_and(|found| found.is_file() && found.len() == file.size_bytes)
        })
    }

    /// Whether both describe the same copy. The same model may be requested by several names.
    pub(super) fn is_same(&self, other: &Marker) -> bool {
        self.source_files == other.source_files && self.files == other.files
    }
}

impl Stamp {
    /// Looks at a file: whole, or if it holds weights at its header and a few blocks.
    pub(super) fn new(name: &str, mut file: impl Read + Seek) -> io::Result<Stamp> {
        let size_bytes = file.seek(SeekFrom::End(0))?;
        let mut hash = Hash::default();
        if name.ends_with(".safetensors") {
            let mut length = [0; 8];
            file.rewind()?;
            file.read_exact(&mut length)?;
            let header = u64::from_le_bytes(length).min(HEADER_LIMIT_BYTES).min(size_bytes - 8);
            add(&mut hash, &mut file, 8, header)?;
            let data = size_bytes - 8 - header;
            for sample in 0..SAMPLES {
                let offset = 8 + header + data / SAMPLES * sample;
                add(&mut hash, &mut file, offset, SAMPLE_BYTES)?;
            }
        } else {
            add(&mut hash, &mut file, 0, size_bytes)?;
        }
        Ok(Stamp { name: name.to_owned(), size_bytes, hash: hash.to_string() })
    }
}

/// One word for the weights a copy is made from. It stands in the header of every file of the copy, so that
/// files of two versions are never taken for one model.
pub(super) fn identity(stamps: &[Stamp]) -> String {
    let mut hash = Hash::default();
    for stamp in stamps.iter().filter(|stamp| stamp.name.ends_with(".safetensors")) {
        hash.add(stamp.name.as_bytes());
        hash.add(&stamp.size_bytes.to_le_bytes());
        hash.add(stamp.hash.as_bytes());
    }
    hash.to_string()
}

/// Adds `len` bytes at `offset`, or what there is of them.
fn add(hash: &mut Hash, file: &mut (impl Read + Seek), offset: u64, len: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(len).read_to_end(&mut bytes)?;
    hash.add(&bytes);
    Ok(())
}

/// A hash that stays the same from release to release, which std's does not promise: rustc's FxHash over
/// 64-bit words. It distinguishes files; it is no protection against deliberate collisions.
#[derive(Default)]
struct Hash(u64);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn weights(change: impl Fn(&mut Vec<u8>)) -> Stamp {
        let mut bytes = 16_u64.to_le_bytes().to_vec();
        bytes.extend(b"{               ");
        bytes.extend((0..100_000_u32).map(|index| (index * 7) as u8));
        change(&mut bytes);
        Stamp::new("model.safetensors", Cursor::new(bytes)).unwrap()
    }

    #[test]
    fn stamps_differ_where_files_do() {
        let plain = weights(|_| {});
        assert_eq!(plain, weights(|_| {}));
        let others = [
            weights(|bytes| bytes[8] = b' '),
            weights(|bytes| bytes.push(0)),
            weights(|bytes| bytes.truncate(90_000)),
            weights(|bytes| bytes[8..].rotate_left(1)),
            weights(|bytes| bytes[24..].iter_mut().for_each(|byte| *byte ^= 0x80)),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(plain, *other, "{index}");
        }
        // Side files count whole.
        let side = |bytes: &[u8]| Stamp::new("config.json", Cursor::new(bytes.to_vec())).unwrap();
        assert_eq!(side(b"{}"), side(b"{}"));
        assert_ne!(side(b"{ }"), side(b"{} "));
        assert_eq!(side(b"").size_bytes, 0);
    }

    #[test]
    fn the_hash_never_changes() {
        let mut hash = Hash::default();
        hash.add(b"millstream");
        assert_eq!(hash.to_string(), "5e181348950d4dba");
    }

    #[test]
    fn absurd_headers_are_no_panic() {
        for bytes in [&[0xff; 8][..], &[0xff; 20]] {
            Stamp::new("x.safetensors", Cursor::new(bytes)).unwrap();
        }
        assert!(Stamp::new("x.safetensors", Cursor::new(&[1; 3])).is_err());
    }
}
