//! Products with weights in the blocks of GGUF, as they lie in the file.
//!
//! A chunk of 512 columns of a weight row is first turned into a plain form ([`Plain`]), the same for every format; one
//! kernel per instruction set multiplies that with any number of activation rows. The arithmetic is that of [`super`]:
//! for block j of 32 columns, in lane j mod 16,
//!
//! - with one scale a block: `D = Σ code · value - zero · Σ value` and `acc = fma(D, scale_w · scale_x, acc)`; where
//!   there are offsets `acc = fma(bias_w, sum_x, acc)` after it;
//! - with a scale for each 16 weights: the exact integers of the halves, A and B, each less zero times its sum of
//!   values, and `acc = fma(A, scale_a · scale_x, acc)`, then `acc = fma(B, scale_b · scale_x, acc)`; where there are
//!   offsets then `acc = fma(bias_a, sum_a · scale_x, acc)` and the same for b.
//!
//! Every format is expanded by the loops of [`small`], [`k`] and [`iq`], compiled for each instruction set. AVX-512 has
//! code of its own for Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4, which files are mostly made of.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod grids;
mod iq;
mod k;
#[cfg(target_arch = "aarch64")]
mod neon;
mod small;
mod table;
#[cfg(test)]
mod tests;

use format::BlockFormat;
use machine::cpu::Isa;

use super::{Rows, Target};
use crate::cpu::lanes::{sum_lanes, versions};
use crate::cpu::quantize::{Activations, BLOCK, CHUNK, LANE_BLOCKS};
use crate::weight::Matrix;

/// Activation rows that a chunk is multiplied with once it is expanded: their sums stay in the nearest cache.
const TOGETHER: usize = 32;

/// Bytes of a chunk at most: Q8_0 has 34 for 32 weights.
const MOST_BYTES: usize = CHUNK / 32 * 34;

/// A number for each lane.
type Lanes = [f32; LANE_BLOCKS];

/// A chunk of a weight row, expanded.
#[repr(C, align(64))]
pub(crate) struct Plain {
    /// In order, not less than 0; [`Shape::zero`] is in them.
    pub(crate) codes: [u8; CHUNK],
    /// Of each block. Where a block has two they are those of its first halves, then those of the second.
    pub(crate) scales: [Lanes; 2],
    /// What is added to each weight, likewise, where [`Shape::is_biased`].
    pub(crate) biases: [Lanes; 2],
}

impl Plain {
    pub(crate) fn new() -> Plain {
        Plain {
            codes: [0; CHUNK],
            scales: [[0.0; LANE_BLOCKS]; 2],
            biases: [[0.0; LANE_BLOCKS]; 2],
        }
    }
}

/// What the plain form of a format means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// What is taken off a code.
    pub(crate) zero: i32,
    /// Whether each 16 weights have a scale of their own, instead of each 32.
    pub(crate) is_halved: bool,
    /// Whether something is added to weights. Then the zero is 0.
    pub(crate) is_biased: bool,
}

/// The shape of a format's plain form.
pub(crate) const fn shape(format: BlockFormat) -> Shape {
    use BlockFormat::*;
    let (zero, is_biased) = match format {
        Q4_1 | Q5_1 | Q2K | Q4K | Q5K => (0, true),
        Q1_0 | Q2_0 | Tq1_0 | Tq2_0 => (1, false),
        Q3K => (4, false),
        Q4_0 => (8, false),
        Mxfp4 | Nvfp4 => (super::FP4_ZERO, false),
        Q5_0 | Iq1S | Iq1M => (16, false),
        Q6K => (32, false),
        Iq2Xxs | Iq2Xs | Iq2S | Iq3Xxs | Iq3S => (64, false),
        Q8_0 | Iq4Nl | Iq4Xs => (128, false),
    };
    Shape { zero, is_halved: format.group() == BLOCK / 2, is_biased }
}

/// Expands a whole chunk of blocks.
fn expand_by_loops(isa: Isa, format: BlockFormat, bytes: &[u8], to: &mut Plain) {
    unpack(isa, format, bytes, to);
    if let Some(table) = table::table(format) {
        table::look_up(isa, table, &mut to.codes);
    }
}

versions! {
    /// The same, with indices instead of codes where a format has a table.
    fn unpack(format: BlockFormat, bytes: &[u8], to: &mut Plain) = unpack_body
}

#[inline(always)]
fn unpack_body(format: BlockFormat, bytes: &[u8], to: &mut Plain) {
    use BlockFormat::*;
    match format {
        Q4_0 => small::q4_0(bytes, to),
        Q4_1 => small::q4_1(bytes, to),
        Q5_0 => small::q5_0(bytes, to),
        Q5_1 => small::q5_1(bytes, to),
        Q8_0 => small::q8_0(bytes, to),
        Iq4Nl => small::iq4_nl(bytes, to),
        Mxfp4 => small::mxfp4(bytes, to),
        Nvfp4 => small::nvfp4(bytes, to),
        Q1_0 => small::q1_0(bytes, to),
        Q2_0 => small::q2_0(bytes, to),
        Q2K => k::q2_k(bytes, to),
        Q3K => k::q3_k(bytes, to),
        Q4K => k::q4_k(bytes, to),
        Q5K => k::q5_k(bytes, to),
        Q6K => k::q6_k(bytes, to),
        Iq4Xs => k::iq4_xs(bytes, to),
        Tq1_0 => k::tq1_0(bytes, to),
        Tq2_0 => k::tq2_0(bytes, to),
        Iq2Xxs => iq::iq2_xxs(bytes, to),
        Iq2Xs => iq::iq2_xs(bytes, to),
        Iq2S => iq::iq2_s(bytes, to),
        Iq3Xxs => iq::iq3_xxs(bytes, to),
        Iq3S => iq::iq3_s(bytes, to),
        Iq1S => iq::iq1_s(bytes, to),
        Iq1M => iq::iq1_m(bytes, to),
    }
}

/// One weight row of blocks.
#[derive(Clone, Copy)]
pub(crate) struct BlockRow<'a> {
    bytes: &'a [u8],
    format: BlockFormat,
    /// Bytes of a whole chunk.
    chunk_bytes: usize,
}

impl<'a> BlockRow<'a> {
    /// Row `index` of a matrix whose encoding is that format.
    pub(crate) fn new(w: &Matrix<'a>, format: BlockFormat, index: usize) -> BlockRow<'a> {
        let row_bytes = format.row_bytes(w.cols);
        let bytes = &w.codes[index * row_bytes..][..row_bytes];
        BlockRow { bytes, format, chunk_bytes: format.row_bytes(CHUNK) }
    }

    /// Expands chunk `index`. Columns that are not there get codes like any and scales and biases of 0.
    pub(crate) fn expand(&self, isa: Isa, index: usize, to: &mut Plain) {
        let mut bytes = &self.bytes[index * self.chunk_bytes..];
        let mut padded;
        if bytes.len() < self.chunk_bytes {
            // The scales of zero bytes are zero, or times the zero of padded activations.
            padded = [0; MOST_BYTES];
            padded[..bytes.len()].copy_from_slice(bytes);
            bytes = &padded;
        }
        bytes = &bytes[..self.chunk_bytes];
        #[cfg(target_arch = "x86_64")]
        if matches!(isa, Isa::Avx512 | Isa::Amx) {
            // SAFETY: the instruction set was detected before this `Isa` was handed out.
            unsafe { avx512::expand(self.format, bytes, to) };
            return;
        }
        expand_by_loops(isa, self.format, bytes, to);
    }
}

/// Products of weight rows `range` with some activation rows.
///
/// # Safety
/// `out` must have room for every output row and column; no other thread may touch the elements written meanwhile.
pub(super) unsafe fn multiply_rows(
    isa: Isa,
    w: &Matrix<'_>,
    format: BlockFormat,
    range: std::ops::Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    #[cfg(target_arch = "x86_64")]
    if matches!(isa, Isa::Avx512 | Isa::Amx) {
        // SAFETY: the instruction set was detected before this `Isa` was handed out.
        unsafe { avx512::multiply_rows(w, format, range, x, rows, out) };
        return;
    }
    let shape = shape(format);
    let mut plain = Plain::new();
    let mut sums = [[0.0; LANE_BLOCKS]; TOGETHER];
    for (i, index) in range.enumerate() {
        let row = BlockRow::new(w, format, index);
        for (inputs, outputs) in rows.inputs.chunks(TOGETHER).zip(rows.outputs.chunks(TOGETHER)) {
            let sums = &mut sums[..inputs.len()];
            sums.fill([0.0; LANE_BLOCKS]);
            for chunk in 0..x.blocks / LANE_BLOCKS {
                row.expand(isa, chunk, &mut plain);
                add(isa, shape, &plain, x, inputs, chunk, sums);
            }
            for (&output, sums) in outputs.iter().zip(sums) {
                // SAFETY: within the bounds the caller promised.
                unsafe { out.put(output, i, sum_lanes(*sums)) };
            }
        }
    }
}

/// Adds the products of one chunk to the sums of each activation row.
fn add(
    isa: Isa,
    shape: Shape,
    plain: &Plain,
    x: &Activations,
    inputs: &[u32],
    chunk: usize,
    sums: &mut [Lanes],
) {
    match isa {
        // SAFETY: the instruction set was detected before this `Isa` was handed out.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::add(shape, plain, x, inputs, chunk, sums) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon::add(shape, plain, x, inputs, chunk, sums),
        _ => {
            for (&input, sums) in inputs.iter().zip(sums) {
                let x = Inputs::new(x, input, chunk, shape);
                scale(shape, plain, &x, &half_sums(plain, &x), sums);
            }
        }
    }
}

/// What a chunk has of one activation row.
struct Inputs<'a> {
    values: &'a [i16; CHUNK],
    scale: &'a Lanes,
    sum: &'a Lanes,
    integer_sum: &'a [i32; LANE_BLOCKS],
    /// The sums of the first halves of blocks, or those of whole blocks where halves do not count.
    first_sum: &'a [i32; LANE_BLOCKS],
}

impl<'a> Inputs<'a> {
    fn new(x: &'a Activations, row: u32, chunk: usize, shape: Shape) -> Inputs<'a> {
        fn lanes<T>(all: &[T], chunk: usize) -> &[T; LANE_BLOCKS] {
            all[chunk * LANE_BLOCKS..].first_chunk().expect("a whole round of lanes")
        }
        let row = row as usize;
        let values = x.row_values(row)[chunk * CHUNK..].first_chunk().expect("a whole chunk");
        let integer_sum = lanes(x.row_integer_sum(row), chunk);
        let first_sum =
            if shape.is_halved { lanes(x.row_first_sum(row), chunk) } else { integer_sum };
        let (scale, sum) = (lanes(x.row_scale(row), chunk), lanes(x.row_sum(row), chunk));
        Inputs { values, scale, sum, integer_sum, first_sum }
    }
}

/// Σ code · value of the first half of each block, and of the second.
fn half_sums(plain: &Plain, x: &Inputs<'_>) -> [[i32; LANE_BLOCKS]; 2] {
    let mut sums = [[0; LANE_BLOCKS]; 2];
    for block in 0..LANE_BLOCKS {
        for i in 0..BLOCK {
            let at = block * BLOCK + i;
            sums[i / (BLOCK / 2)][block] += i32::from(plain.codes[at]) * i32::from(x.values[at]);
        }
    }
    sums
}

/// The float part of one chunk, as the head of this module gives it.
#[inline(always)]
fn scale(
    shape: Shape,
    plain: &Plain,
    x: &Inputs<'_>,
    half_sums: &[[i32; LANE_BLOCKS]; 2],
    acc: &mut Lanes,
) {
    let [first, second] = half_sums;
    if shape.is_halved {
        for l in 0..LANE_BLOCKS {
            let sums = [x.first_sum[l], x.integer_sum[l] - x.first_sum[l]];
            let a = (first[l] - shape.zero * sums[0]) as f32;
            let b = (second[l] - shape.zero * sums[1]) as f32;
            acc[l] = a.mul_add(plain.scales[0][l] * x.scale[l], acc[l]);
            acc[l] = b.mul_add(plain.scales[1][l] * x.scale[l], acc[l]);
            if shape.is_biased {
                acc[l] = plain.biases[0][l].mul_add(sums[0] as f32 * x.scale[l], acc[l]);
                acc[l] = plain.biases[1][l].mul_add(sums[1] as f32 * x.scale[l], acc[l]);
            }
        }
        return;
    }
    for l in 0..LANE_BLOCKS {
        let sum = (first[l] + second[l] - shape.zero * x.integer_sum[l]) as f32;
        acc[l] = sum.mul_add(plain.scales[0][l] * x.scale[l], acc[l]);
        if shape.is_biased {
            acc[l] = plain.biases[0][l].mul_add(x.sum[l], acc[l]);
        }
    }
}

/// The values of one row, exactly those that the format defines.
pub(crate) fn dequantize_row(
    isa: Isa,
    w: &Matrix<'_>,
    format: BlockFormat,
    index: usize,
    out: &mut [f32],
) {
    assert_eq!(out.len(), w.cols);
    let row = BlockRow::new(w, format, index);
    let mut plain = Plain::new();
    for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
        row.expand(isa, chunk, &mut plain);
        values(isa, shape(format), &plain, out);
    }
}

versions! { fn values(shape: Shape, plain: &Plain, out: &mut [f32]) = values_body }

#[inline(always)]
fn values_body(shape: Shape, plain: &Plain, out: &mut [f32]) {
    let halves = plain.codes.as_chunks::<{ BLOCK / 2 }>().0;
    for (i, (out, codes)) in out.chunks_exact_mut(BLOCK / 2).zip(halves).enumerate() {
        let half = if shape.is_halved { i % 2 } else { 0 };
        let (scale, bias) = (plain.scales[half][i / 2], plain.biases[half][i / 2]);
        for (out, &code) in out.iter_mut().zip(codes) {
            let code = (i32::from(code) - shape.zero) as f32;
            // A bias of 0 would make a -0 positive.
            *out = if shape.is_biased { code.mul_add(scale, bias) } else { code * scale };
        }
    }
}
