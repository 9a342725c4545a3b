//! Temporary folders with files in them.

/// A weight file that is as long as it says: a header without tensors, and its length.
pub(crate) const WHOLE: &str = "\u{2}\0\0\0\0\0\0\0{}";

/// A folder with the given files.
pub(crate) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}
