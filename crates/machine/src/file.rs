//! Files of untrusted folders: opened without waiting, and never read without end.
//!
//! A name may lead to a pipe, a device or a file that grows, directly or by links. Only a regular file is
//! opened, which the open handle itself confirms, and what is read whole is counted as it comes: the length
//! that the system reports is a hint for the buffer. Only a name that leads nowhere counts as absent; every
//! other failure is reported.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// The most that is reserved before a byte has come.
const RESERVED_BYTES: u64 = 1 << 20;

/// Why a file was not opened or not read.
#[derive(Debug)]
pub enum Refusal {
    /// Not a regular file: a folder, a pipe, a device.
    NotAFile,
    /// It has more bytes than the caller takes.
    TooLarge,
    /// The system refused.
    Io {
        /// `open` or `read`.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Opens a regular file and gives its length; `None` when there is none at `path`.
pub fn open(path: &Path) -> Result<Option<(File, u64)>, Refusal> {
    let failed = |source| Refusal::Io { operation: "open", source };
    // Checked before opening, since opening some devices does something.
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err(Refusal::NotAFile),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    }
    let file = match open_at_once(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    // Another file may have taken the place meanwhile.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Refusal::NotAFile);
    }
    Ok(Some((file, metadata.len())))
}

/// The bytes of a regular file that has at most `limit` of them; `None` when there is none at `path`.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Refusal> {
    let Some((file, len_bytes)) = open(path)? else { return Ok(None) };
    if len_bytes > limit {
        return Err(Refusal::TooLarge);
    }
    let mut bytes = Vec::with_capacity(len_bytes.min(RESERVED_BYTES) as usize);
    // One more than the limit, to distinguish a file that is full from one that continues.
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| Refusal::Io { operation: "read", source })?;
    if bytes.len() as u64 > limit {
        return Err(Refusal::TooLarge);
    }
    Ok(Some(bytes))
}

/// Opening a pipe waits for its writer, unless it is opened without blocking.
#[cfg(unix)]
fn open_at_once(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

#[cfg(not(unix))]
fn open_at_once(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &Path, limit: u64, expect: &str) {
        let got = match read(path, limit) {
            Ok(Some(bytes)) => format!("{} bytes", bytes.len()),
            Ok(None) => "nothing".to_owned(),
            Err(refusal) => format!("{refusal:?}"),
        };
        assert!(got.starts_with(expect), "{got}");
    }

    #[test]
    fn regular_files_are_read_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        check(&path, 10, "nothing");
        std::fs::write(&path, "0123456789").unwrap();
        check(&path, 10, "10 bytes");
        check(&path, 9, "TooLarge");
        check(folder.path(), 10, "NotAFile");
        // A name below a file leads nowhere, and the system says so in its own way.
        check(&path.join("below"), 10, "Io");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_has_no_end_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        check(&link, 10, "NotAFile");
        // A regular file whose length is reported as zero.
        check(Path::new("/proc/self/maps"), 10, "TooLarge");
        let status = std::fs::read("/proc/self/limits").unwrap().len();
        check(Path::new("/proc/self/limits"), 1 << 20, &format!("{status} bytes"));
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: there is no mkfifo");
            return;
        }
        check(&pipe, 10, "NotAFile");
        // By the handle too: the check of the name may have come before the pipe.
        let file = open_at_once(&pipe).unwrap();
        assert!(!file.metadata().unwrap().is_file());
    }
}
