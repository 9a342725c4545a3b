//! Weights: a matrix of output rows, dense or quantised. How it is coded is a property of the weight.
//!
//! [`Matrix`] is a borrowed view (codes, scales, biases as bytes exactly as the checkpoint stores
//! them, at any alignment); [`Weight`] owns such a matrix in huge-page memory. Kernels take a
//! `Matrix`, so resident weights and streamed expert slots look the same to them.

use std::sync::Arc;

use machine::pages::Pages;

use crate::{Error, Result};

use format::Encoding;

/// A borrowed weight: `rows` outputs of `cols` inputs each.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// How the values are coded.
    pub encoding: Encoding,
    /// Codes, row-major.
    pub codes: &'a [u8],
    /// Scales, row-major, or empty.
    pub scales: &'a [u8],
    /// Biases, row-major, or empty.
    pub biases: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Checks the lengths once, so that kernels may trust them.
    pub fn new(
        rows: usize,
        cols: usize,
        encoding: Encoding,
        codes: &'a [u8],
        scales: &'a [u8],
        biases: &'a [u8],
    ) -> Result<Self> {
        let parts = [
            ("codes", codes.len(), encoding.row_bytes(cols)),
            ("scales", scales.len(), encoding.scale_bytes(cols)),
            ("biases", biases.len(), encoding.bias_bytes(cols)),
        ];
        for (what, got, per_row) in parts {
            let expected = rows * per_row;
            if got != expected {
                return Err(Error::WeightBytes { what, rows, cols, expected, got });
            }
        }
        Ok(Matrix { rows, cols, encoding, codes, scales, biases })
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.biases.len()
    }
}

/// Values that are kept with a model: norms, biases, scales.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector(Arc<[f32]>);

impl Vector {
    /// The values.
    pub(crate) fn values(&self) -> &[f32] {
        &self.0
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl From<Vec<f32>> for Vector {
    fn from(values: Vec<f32>) -> Vector {
        Vector(values.into())
    }
}

/// An RMS norm.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// What normed values are multiplied with.
    pub weight: Vector,
    /// Is added to the mean of the squares.
    pub eps: f32,
}

/// Huge-page memory for weights, to be filled and then shared by one or more of them.
pub fn weight_memory(bytes: usize) -> Result<Pages> {
    Pages::new(bytes.max(1)).map_err(|source| Error::Memory { what: "weights", bytes, source })
}

/// A weight that owns a share of a memory region.
#[derive(Clone, Debug)]
pub struct Weight {
    rows: usize,
    cols: usize,
    encoding: Encoding,
    memory: Arc<Pages>,
    codes: usize,
    scales: usize,
    biases: usize,
}

impl Weight {
    /// Lays a [rows, cols] weight out at `offset` of `memory`: codes, then scales, then biases.
    pub fn new(
        memory: Arc<Pages>,
        offset: usize,
        rows: usize,
        cols: usize,
        encoding: Encoding,
    ) -> Self {
        let codes = offset;
        let scales = codes + rows * encoding.row_bytes(cols);
        let biases = scales + rows * encoding.scale_bytes(cols);
        let end = biases + rows * encoding.bias_bytes(cols);
        assert!(end <= memory.len(), "weight of {end} bytes in a region of {}", memory.len());
        Weight { rows, cols, encoding, memory, codes, scales, biases }
    }

    /// A weight with memory of its own, from its parts.
    pub fn from_parts(matrix: Matrix<'_>) -> Result<Self> {
        let bytes = matrix.bytes();
        let mut memory = Pages::new(bytes.max(1)).map_err(|source| Error::Memory {
            what: "a weight",
            bytes,
            source,
        })?;
        let mut at = 0;
        for part in [matrix.codes, matrix.scales, matrix.biases] {
            memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(Weight::new(Arc::new(memory), 0, matrix.rows, matrix.cols, matrix.encoding))
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How the values are coded.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.encoding.matrix_bytes(self.rows, self.cols)
    }

    /// The view kernels take.
    pub fn view(&self) -> Matrix<'_> {
        let part = |start: usize, per_row: usize| &self.memory[start..start + self.rows * per_row];
        Matrix {
            rows: self.rows,
            cols: self.cols,
            encoding: self.encoding,
            codes: part(self.codes, self.encoding.row_bytes(self.cols)),
            scales: part(self.scales, self.encoding.scale_bytes(self.cols)),
            biases: part(self.biases, self.encoding.bias_bytes(self.cols)),
        }
    }
}
