//! Files, memory to read into, and a listener that keeps what is reported to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex};

use checkpoint::FileIndex;
use experts::device::{ALIGNMENT, Access, Files};
use experts::reader::{DiskReader, Done, Method, Priority, Read, ReadEngine};
use experts::{Device, Error, Result};
use machine::pages::Pages;
use tempfile::TempDir;

/// Lengths of the files most tests use: with and without a last block that is not full.
pub(crate) const LENGTHS: [usize; 3] = [1_000_003, 64 * ALIGNMENT, 12_345];

/// Bytes that look alike in no two places.
pub(crate) fn content(file: usize, len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (file as u64 + 1);
    let mut bytes = vec![0; len];
    for byte in &mut bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    bytes
}

/// Files of these lengths with [`content`].
pub(crate) fn write_files(lengths: &[usize]) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (file, &len) in lengths.iter().enumerate() {
        let path = folder.path().join(format!("{file}.bin"));
        std::fs::write(&path, content(file, len)).unwrap();
        paths.push(path);
    }
    (folder, paths)
}

/// The device over these files; `None`, and a line that says so, where this disk has no direct reads.
pub(crate) fn open(paths: &[PathBuf], access: Access) -> Option<Arc<dyn Device>> {
    match Files::open_paths(paths, access) {
        Ok(files) => Some(Arc::new(files)),
        Err(Error::Io { source, .. })
            if access == Access::Direct && source.kind() == std::io::ErrorKind::InvalidInput =>
        {
            println!("skipped: the temporary folder has no direct reads");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn threads(depth: usize) -> Method {
    Method { queue: ReadEngine::Threads, depth }
}

/// Keeps results by ticket and waits for them.
#[derive(Default)]
pub(crate) struct Listener {
    results: Mutex<BTreeMap<u64, Vec<Result<()>>>>,
    more: Condvar,
}

impl Listener {
    pub(crate) fn new() -> Arc<Listener> {
        Arc::default()
    }

    pub(crate) fn done(self: &Arc<Listener>) -> Arc<Done> {
        let listener = Arc::clone(self);
        Arc::new(move |ticket, result| {
            listener.results.lock().unwrap().entry(ticket).or_default().push(result);
            listener.more.notify_all();
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.results.lock().unwrap().values().map(Vec::len).sum()
    }

    /// Waits for this many results in all, and hands them out.
    pub(crate) fn wait(&self, count: usize) -> BTreeMap<u64, Vec<Result<()>>> {
        let mut results = self.results.lock().unwrap();
        while results.values().map(Vec::len).sum::<usize>() < count {
            results = self.more.wait(results).unwrap();
        }
        std::mem::take(&mut *results)
    }
}

/// What to read: file, offset, bytes requested, bytes needed.
pub(crate) type Wish = (usize, u64, usize, usize);

/// Reads of a whole file in pieces of `blocks` blocks, the last one as short as the file.
pub(crate) fn pieces(file: usize, len: usize, blocks: usize) -> Vec<Wish> {
    let piece = blocks * ALIGNMENT;
    let wish = |offset: usize| (file, offset as u64, piece, piece.min(len - offset));
    (0..len).step_by(piece).map(wish).collect()
}

/// Lays the reads out one after the other in memory; each read's number is its ticket.
pub(crate) fn lay_out(wishes: &[Wish]) -> (Pages, Vec<Read>) {
    let mut memory = Pages::new(wishes.iter().map(|wish| wish.2).sum()).unwrap();
    let start = NonNull::new(memory.as_mut_ptr()).unwrap();
    let mut used = 0;
    let mut reads = Vec::new();
    for (ticket, &(file, offset, len, needed)) in wishes.iter().enumerate() {
        // SAFETY: the memory is as long as all reads together.
        let target = unsafe { start.add(used) };
        let (file, ticket) = (FileIndex(file as u32), ticket as u64);
        let label = [file.0, ticket as u32];
        reads.push(Read { file, offset, target, len, needed, ticket, label });
        used += len;
    }
    (memory, reads)
}

/// Makes all reads: for each the bytes that were needed, or the error.
pub(crate) fn read_all(
    device: &Arc<dyn Device>,
    method: Method,
    wishes: &[Wish],
) -> Result<Vec<Result<Vec<u8>>>> {
    let listener = Listener::new();
    let (memory, reads) = lay_out(wishes);
    let reader = DiskReader::start(Arc::clone(device), method, listener.done())?;
    // SAFETY: the memory outlives the reader, and the reads do not overlap.
    unsafe { reader.submit(&reads, Priority::Demand) };
    let results = listener.wait(wishes.len());
    let statistics = reader.statistics();
    assert_eq!(statistics.reads, wishes.len() as u64);
    assert_eq!(statistics.from_start.count(), wishes.len() as u64);
    drop(reader);
    let mut used = 0;
    let mut all = Vec::new();
    for (mut result, &(_, _, len, needed)) in results.into_values().zip(wishes) {
        assert_eq!(result.len(), 1, "reported once");
        all.push(result.remove(0).map(|()| memory[used..used + needed].to_vec()));
        used += len;
    }
    Ok(all)
}

/// Checks bytes against [`content`].
#[track_caller]
pub(crate) fn check_bytes(wishes: &[Wish], lengths: &[usize], results: &[Result<Vec<u8>>]) {
    assert_eq!(wishes.len(), results.len());
    let contents: Vec<_> =
        lengths.iter().enumerate().map(|(file, &len)| content(file, len)).collect();
    for (&(file, offset, _, needed), result) in wishes.iter().zip(results) {
        let start = offset as usize;
        let bytes = result.as_ref().unwrap_or_else(|error| panic!("{file} at {offset}: {error}"));
        assert!(*bytes == contents[file][start..start + needed], "bytes of {file} at {offset}");
    }
}
