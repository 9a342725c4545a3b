//! Weights: a matrix of output rows, dense or quantized. How it is coded is a property of the weight.
//!
//! [`Matrix`] is a borrowed view (codes, scales, biases as bytes exactly as the checkpoint stores
//! them, at any alignment); [`Weight`] is such a matrix in a [`Region`] of a backend's memory. Kernels take a
//! `Matrix`, so resident weights and streamed expert slots look the same to them.

use format::Encoding;

use crate::store::{Region, Store, Vector, weight_memory};
use crate::{Error, Result};

/// A borrowed weight: `rows` outputs of `cols` inputs each.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// How the values are coded.
    pub encoding: Encoding,
    /// What every value is multiplied with: formats with a scale for a whole matrix.
    pub factor: f32,
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
        Ok(Matrix { rows, cols, encoding, factor: 1.0, codes, scales, biases })
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.biases.len()
    }
}

/// An RMS norm.
#[derive(Clone, Debug)]
pub struct Norm {
    /// What normed values are multiplied with.
    pub weight: Vector,
    /// Is added to the mean of the squares.
    pub eps: f32,
}

/// Where the parts of a matrix begin in a region, and how it is coded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixPlace {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// How the values are coded.
    pub encoding: Encoding,
    /// What every value is multiplied with.
    pub factor: f32,
    /// First byte of the codes.
    pub codes: usize,
    /// First byte of the scales.
    pub scales: usize,
    /// First byte of the biases.
    pub biases: usize,
}

impl MatrixPlace {
    /// Codes, then scales, then biases, from `offset` on.
    pub fn packed(offset: usize, rows: usize, cols: usize, encoding: Encoding) -> MatrixPlace {
        let codes = offset;
        let scales = codes + rows * encoding.row_bytes(cols);
        let biases = scales + rows * encoding.scale_bytes(cols);
        MatrixPlace { rows, cols, encoding, factor: 1.0, codes, scales, biases }
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.encoding.matrix_bytes(self.rows, self.cols)
    }

    /// The matrix as kernels see it.
    pub fn view<'a>(&self, region: &'a [u8]) -> Matrix<'a> {
        let &MatrixPlace { rows, cols, encoding, factor, codes, scales, biases } = self;
        let part = |start: usize, per_row: usize| &region[start..start + rows * per_row];
        Matrix {
            rows,
            cols,
            encoding,
            factor,
            codes: part(codes, encoding.row_bytes(cols)),
            scales: part(scales, encoding.scale_bytes(cols)),
            biases: part(biases, encoding.bias_bytes(cols)),
        }
    }
}

/// A weight: a matrix in a region of a backend's memory.
#[derive(Clone, Debug)]
pub struct Weight {
    region: Region,
    place: MatrixPlace,
}

impl Weight {
    /// The matrix at a place of a region.
    pub fn new(region: Region, place: MatrixPlace) -> Weight {
        let end = place.biases + place.rows * place.encoding.bias_bytes(place.cols);
        assert!(end <= region.len(), "weight of {end} bytes in a region of {}", region.len());
        Weight { region, place }
    }

    /// A weight with a region of its own, from its parts.
    pub fn from_parts(matrix: Matrix<'_>, store: &dyn Store) -> Result<Weight> {
        let mut memory = weight_memory(matrix.bytes())?;
        let mut at = 0;
        for part in [matrix.codes, matrix.scales, matrix.biases] {
            memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let place = MatrixPlace::packed(0, matrix.rows, matrix.cols, matrix.encoding);
        let place = MatrixPlace { factor: matrix.factor, ..place };
        Ok(Weight::new(store.region(memory)?, place))
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.place.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.place.cols
    }

    /// How the values are coded.
    pub fn encoding(&self) -> Encoding {
        self.place.encoding
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.place.bytes()
    }

    /// The view that the CPU's kernels take.
    pub(crate) fn view(&self) -> Matrix<'_> {
        self.place.view(self.region.bytes())
    }
}
