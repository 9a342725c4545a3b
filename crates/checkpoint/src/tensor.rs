//! A named tensor and where its bytes lie.
//!
//! Row-major and at any byte offset: safetensors aligns nothing, so a reader with demands on
//! alignment reads the aligned range around a [`Span`] and looks inside it.

use format::Dtype;

/// Which of a checkpoint's files; [`crate::Checkpoint::source`] gives the file itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileIndex(pub u32);

/// A range of bytes in one file of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The file.
    pub file: FileIndex,
    /// The first byte, counted from the beginning of the file.
    pub offset: u64,
    /// The number of bytes.
    pub len_bytes: u64,
}

impl Span {
    /// The `index`-th of `count` equal parts.
    pub(crate) fn part(self, index: usize, count: usize) -> Span {
        assert!(index < count, "part {index} of {count}");
        let len_bytes = self.len_bytes / count as u64;
        Span { file: self.file, offset: self.offset + index as u64 * len_bytes, len_bytes }
    }

    /// Rows `first..first + rows` of a matrix of `out_rows` rows.
    pub(crate) fn rows(self, first: usize, rows: usize, out_rows: usize) -> Span {
        assert!(first + rows <= out_rows, "rows {first}+{rows} of {out_rows}");
        let row_bytes = self.len_bytes / out_rows.max(1) as u64;
        Span {
            file: self.file,
            offset: self.offset + first as u64 * row_bytes,
            len_bytes: rows as u64 * row_bytes,
        }
    }
}

/// One tensor: its name, what it is, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name in the header.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The file it lies in.
    pub file: FileIndex,
    /// Its first byte, counted from the beginning of the file.
    pub offset: u64,
    /// Its length, always what dtype and shape say.
    pub len_bytes: u64,
}

impl Tensor {
    /// The bytes of the whole tensor.
    pub fn span(&self) -> Span {
        Span { file: self.file, offset: self.offset, len_bytes: self.len_bytes }
    }

    /// The number of elements, from the bytes: multiplying the shape of an empty tensor could
    /// overflow.
    pub fn elements(&self) -> usize {
        let (unit, bytes) = self.dtype.unit();
        (self.len_bytes / bytes as u64) as usize * unit
    }
}
