//! Dot products of integer-coded weight rows with quantized activations.
//!
//! The arithmetic every instruction set follows to the bit, for one weight row and one activation row:
//! block j of 32 columns gives the exact integer `D = Σ code · value` (for mxfp4 the codes are
//! twice the E2M1 values plus 12, and `12 · Σ value` is taken off again); then, in lane j mod 16,
//! `acc = fma(D, scale_w · scale_x, acc)` and, for affine weights, `acc = fma(bias_w, sum_x, acc)`;
//! the sixteen lanes are added in halves at the end. Rows are padded with zero blocks to whole
//! rounds of lanes. [`blocks`] has what GGUF's formats add to this. So a product has the same bits on every instruction set, for one row or many.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
pub(crate) mod tests;
mod unpack;

use machine::cpu::Isa;

use super::quantize::{Activations, CHUNK, Forms, LANE_BLOCKS};
use crate::weight::Matrix;
use format::{Encoding, Float};

#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::{BlockRow, Plain, Shape};

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{expand_chunk as expand_avx512, transpose_sum};
pub(crate) use blocks::{dequantize_row as dequantize_blocks, shape};
pub(crate) use unpack::{FP4_CODES, FP4_ZERO, unpack_codes};

/// How the codes of a chunk are packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Codes {
    /// Two to a byte, low nibble first.
    Nibbles,
    /// Two to a byte, each an index into [`FP4_CODES`].
    Fp4,
    /// One to a byte.
    Bytes,
    /// A bit stream of 2, 3, 5 or 6 bits.
    Stream(u8),
}

/// Type of a weight's scales.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScaleKind {
    F32,
    F16,
    Bf16,
    /// An exponent: 2^(e - 127). Halved here, because fp4 codes are doubled.
    HalvedExponent,
}

/// One weight row of integer codes.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) biases: &'a [u8],
    pub(crate) packing: Codes,
    pub(crate) kind: ScaleKind,
    /// Values that share a scale: 32, 64 or 128.
    pub(crate) group: usize,
    pub(crate) cols: usize,
}

impl<'a> Row<'a> {
    /// Row `index` of an integer-coded matrix.
    pub(crate) fn new(w: &Matrix<'a>, index: usize) -> Row<'a> {
        let (packing, kind, group) = packing(w.encoding);
        let part = |bytes: &'a [u8], per_row: usize| &bytes[index * per_row..][..per_row];
        Row {
            codes: part(w.codes, w.encoding.row_bytes(w.cols)),
            scales: part(w.scales, w.encoding.scale_bytes(w.cols)),
            biases: part(w.biases, w.encoding.bias_bytes(w.cols)),
            packing,
            kind,
            group,
            cols: w.cols,
        }
    }

    /// Bytes of codes in one chunk of 512 columns.
    pub(crate) fn chunk_bytes(&self) -> usize {
        match self.packing {
            Codes::Nibbles | Codes::Fp4 => CHUNK / 2,
            Codes::Bytes => CHUNK,
            Codes::Stream(bits) => CHUNK / 8 * bits as usize,
        }
    }

    /// Scales in one chunk.
    pub(crate) fn chunk_scales(&self) -> usize {
        CHUNK / self.group
    }

    pub(crate) fn scale_size(&self) -> usize {
        match self.kind {
            ScaleKind::F32 => 4,
            ScaleKind::F16 | ScaleKind::Bf16 => 2,
            ScaleKind::HalvedExponent => 1,
        }
    }
}

/// Packing, scale type and group of an integer encoding.
pub(crate) fn packing(encoding: Encoding) -> (Codes, ScaleKind, usize) {
    match encoding {
        Encoding::Affine { bits, group, scale } => {
            let codes = match bits {
                4 => Codes::Nibbles,
                8 => Codes::Bytes,
                bits => Codes::Stream(bits),
            };
            let kind = match scale {
                Float::F32 => ScaleKind::F32,
                Float::F16 => ScaleKind::F16,
                Float::Bf16 => ScaleKind::Bf16,
            };
            (codes, kind, group)
        }
        Encoding::Mxfp4 => (Codes::Fp4, ScaleKind::HalvedExponent, 32),
        other => unreachable!("{other:?} has no integer form"),
    }
}

/// Which planes the row kernels of weights of these encodings read, where they read planes and not [`Activations::values`].
pub(crate) fn forms(encodings: impl IntoIterator<Item = Encoding>) -> Forms {
    let mut forms = Forms::default();
    for encoding in encodings.into_iter().filter(|encoding| encoding.is_integer()) {
        if let Encoding::Block(format) = encoding {
            forms.natural = true;
            forms.halves |= shape(format).is_halved;
            continue;
        }
        match packing(encoding).0 {
            Codes::Nibbles | Codes::Fp4 => forms.paired = true,
            Codes::Bytes | Codes::Stream(_) => forms.natural = true,
        }
    }
    forms
}

/// A chunk's parts; the last chunk of a row is copied here and padded with zeros.
pub(crate) struct Padded {
    codes: [u8; CHUNK],
    scales: [u8; LANE_BLOCKS * 4],
    biases: [u8; LANE_BLOCKS * 4],
}

impl Padded {
    pub(crate) fn new() -> Padded {
        Padded { codes: [0; CHUNK], scales: [0; LANE_BLOCKS * 4], biases: [0; LANE_BLOCKS * 4] }
    }
}

/// Codes, scales and biases of chunk `index`, each long enough for a whole chunk.
#[inline(always)]
pub(crate) fn chunk<'a>(
    row: &Row<'a>,
    index: usize,
    padded: &'a mut Padded,
) -> (&'a [u8], &'a [u8], &'a [u8]) {
    let code_at = index * row.chunk_bytes();
    let scale_bytes = row.chunk_scales() * row.scale_size();
    let scale_at = index * scale_bytes;
    if (index + 1) * CHUNK <= row.cols {
        let biases =
            if row.biases.is_empty() { &[] } else { &row.biases[scale_at..][..scale_bytes] };
        return (
            &row.codes[code_at..][..row.chunk_bytes()],
            &row.scales[scale_at..][..scale_bytes],
            biases,
        );
    }
    let copy = |to: &mut [u8], from: &[u8]| to[..from.len()].copy_from_slice(from);
    copy(&mut padded.codes, &row.codes[code_at..]);
    copy(&mut padded.scales, &row.scales[scale_at..]);
    if row.biases.is_empty() {
        return (&padded.codes, &padded.scales, &[]);
    }
    copy(&mut padded.biases, &row.biases[scale_at..]);
    (&padded.codes, &padded.scales, &padded.biases)
}

/// The float part of one chunk, as the head of this module gives it.
#[inline(always)]
pub(crate) fn accumulate(
    acc: &mut [f32; LANE_BLOCKS],
    integers: &[i32; LANE_BLOCKS],
    scale: &[f32; LANE_BLOCKS],
    bias: Option<&[f32; LANE_BLOCKS]>,
    x_scale: &[f32; LANE_BLOCKS],
    x_sum: &[f32; LANE_BLOCKS],
) {
    for l in 0..LANE_BLOCKS {
        acc[l] = (integers[l] as f32).mul_add(scale[l] * x_scale[l], acc[l]);
    }
    if let Some(bias) = bias {
        for l in 0..LANE_BLOCKS {
            acc[l] = bias[l].mul_add(x_sum[l], acc[l]);
        }
    }
}

/// Activation rows taken by a product, and where their results go.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Rows of the activations.
    pub(crate) inputs: &'a [u32],
    /// Rows of the output, one for each input.
    pub(crate) outputs: &'a [u32],
}

/// Where results go: output row r begins at `start + r · stride`; the i-th weight row of a call is
/// column `column + i`.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) start: *mut f32,
    pub(crate) stride: usize,
    pub(crate) column: usize,
}

// SAFETY: a plain address; which thread may write where is the contract of the functions that take it.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// Where an element is.
    ///
    /// # Safety
    /// It must be inside the output.
    #[inline(always)]
    pub(crate) unsafe fn place(&self, row: u32, index: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(row as usize * self.stride + self.column + index) }
    }

    /// # Safety
    /// The element must be inside the output and no other thread may access it meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, row: u32, index: usize, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { *self.place(row, index) = value };
    }

    /// The same output, `columns` further right.
    pub(crate) fn shifted(self, columns: usize) -> Target {
        Target { column: self.column + columns, ..self }
    }
}

/// Products of weight rows `range` with some activation rows.
///
/// # Safety
/// `out` must have room for every output row and column; no other thread may touch the elements
/// written meanwhile.
pub(crate) unsafe fn multiply_rows(
    isa: Isa,
    w: &Matrix<'_>,
    range: std::ops::Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    assert_eq!(w.cols, x.cols);
    assert_eq!(rows.inputs.len(), rows.outputs.len());
    if let Encoding::Block(format) = w.encoding {
        // SAFETY: the caller's promise, passed on.
        unsafe { blocks::multiply_rows(isa, w, format, range, x, rows, out) };
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if matches!(isa, Isa::Avx512 | Isa::Amx) {
        // SAFETY: the instruction set was detected before this `Isa` was handed out.
        unsafe { avx512::multiply_rows(w, range, x, rows, out) };
        return;
    }
    for (i, index) in range.enumerate() {
        let row = Row::new(w, index);
        for (inputs, outputs) in rows.inputs.chunks(4).zip(rows.outputs.chunks(4)) {
            let mut results = [0.0f32; 4];
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => {
                    // SAFETY: as above.
                    unsafe { avx2::dot(&row, x, inputs, &mut results) }
                }
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => neon::dot(&row, x, inputs, &mut results),
                _ => scalar::dot(&row, x, inputs, &mut results),
            }
            for (&output, result) in outputs.iter().zip(results) {
                // SAFETY: within the bounds the caller promised.
                unsafe { out.put(output, i, result) };
            }
        }
    }
}
