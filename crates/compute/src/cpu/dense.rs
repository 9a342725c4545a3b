//! Weights to floats, and products of float-coded weights (f32, f16, bf16, mxfp8, nvfp4).
//!
//! Element i of a product goes to lane i mod 16 as in [`super::lanes::dot`], whatever the number of
//! rows in the call. Formats without an integer form are turned into floats a few rows at a time.

use std::cell::RefCell;

use machine::cpu::Isa;

use super::dot::{Codes, FP4_CODES, FP4_ZERO, Target, dequantize_blocks, packing, unpack_codes};
use super::lanes::{LANES, dot, sum_lanes, versions};
use crate::weight::Matrix;
use format::{Encoding, Float};

/// Weight rows and activation rows that are multiplied together: 16 sums of 16 lanes fill the registers.
const TILE: usize = 4;

#[inline(always)]
pub(crate) fn f16_to_f32(h: u16) -> f32 {
    // Shifting the exponent into place and multiplying by 2^112 is exact, subnormals included.
    let magnitude = f32::from_bits(((h & 0x7fff) as u32) << 13) * f32::from_bits(0x7780_0000);
    let infinite = if h & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | infinite | ((h & 0x8000) as u32) << 16)
}

#[inline(always)]
pub(crate) fn e4m3_to_f32(code: u8) -> f32 {
    // The same with 2^120: exponent bias 7 instead of 127.
    let magnitude = f32::from_bits(((code & 0x7f) as u32) << 20) * f32::from_bits(0x7b80_0000);
    f32::from_bits(magnitude.to_bits() | ((code & 0x80) as u32) << 24)
}

/// 2^(e - 127).
#[inline(always)]
fn exponent(e: u8) -> f32 {
    if e == 0 { f32::from_bits(1 << 22) } else { f32::from_bits((e as u32) << 23) }
}

/// The values of row `row` of a weight, as f32.
pub(crate) fn dequantize_row(isa: Isa, w: &Matrix<'_>, row: usize, out: &mut [f32]) {
    match w.encoding {
        Encoding::Block(format) => dequantize_blocks(isa, w, format, row, out),
        _ => dequantize_planes(isa, w, row, out),
    }
}

versions! {
    fn dequantize_planes(w: &Matrix<'_>, row: usize, out: &mut [f32]) = dequantize_planes_body
}

#[inline(always)]
fn dequantize_planes_body(w: &Matrix<'_>, row: usize, out: &mut [f32]) {
    let codes = &w.codes[row * w.encoding.row_bytes(w.cols)..][..w.encoding.row_bytes(w.cols)];
    let scale_bytes = w.encoding.scale_bytes(w.cols);
    let scales = &w.scales[row * scale_bytes..][..scale_bytes];
    match w.encoding {
        Encoding::Dense(float) => floats(float, codes, out),
        Encoding::Affine { group, scale, .. } => {
            let biases = &w.biases[row * scale_bytes..][..scale_bytes];
            affine(packing(w.encoding).0, group, scale, codes, scales, biases, out);
        }
        Encoding::Mxfp8 => {
            for (g, (o, c)) in out.chunks_exact_mut(32).zip(codes.chunks_exact(32)).enumerate() {
                let scale = exponent(scales[g]);
                for i in 0..32 {
                    o[i] = e4m3_to_f32(c[i]) * scale;
                }
            }
        }
        Encoding::Mxfp4 => {
            for (g, (o, c)) in out.chunks_exact_mut(32).zip(codes.chunks_exact(16)).enumerate() {
                fp4_group(c, exponent(scales[g]), o);
            }
        }
        Encoding::Nvfp4 => {
            for (g, (o, c)) in out.chunks_exact_mut(16).zip(codes.chunks_exact(8)).enumerate() {
                fp4_group(c, e4m3_to_f32(scales[g]), o);
            }
        }
        Encoding::Block(format) => unreachable!("{format} has no planes"),
    }
}

#[inline(always)]
fn fp4_group(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (o, &byte) in out.chunks_exact_mut(2).zip(codes) {
        for (value, nibble) in o.iter_mut().zip([byte & 15, byte >> 4]) {
            // Codes are doubled, so that they are integers.
            let doubled = FP4_CODES[nibble as usize] as i32 - FP4_ZERO;
            *value = doubled as f32 * 0.5 * scale;
        }
    }
}

#[inline(always)]
fn affine(
    codes: Codes,
    group: usize,
    scale: Float,
    bytes: &[u8],
    scales: &[u8],
    biases: &[u8],
    out: &mut [f32],
) {
    let group_bytes = bytes.len() * group / out.len();
    for (g, (o, c)) in out.chunks_exact_mut(group).zip(bytes.chunks_exact(group_bytes)).enumerate()
    {
        let mut unpacked = [0u8; 128];
        unpack_codes(codes, c, &mut unpacked[..group]);
        let (s, b) = (one_float(scale, scales, g), one_float(scale, biases, g));
        for (value, &code) in o.iter_mut().zip(&unpacked) {
            *value = (code as f32).mul_add(s, b);
        }
    }
}

#[inline(always)]
fn one_float(float: Float, bytes: &[u8], index: usize) -> f32 {
    let mut out = [0.0];
    floats(float, &bytes[index * float.bytes()..][..float.bytes()], &mut out);
    out[0]
}

/// Stored numbers as f32, exactly.
#[inline(always)]
pub(crate) fn floats(float: Float, bytes: &[u8], out: &mut [f32]) {
    match float {
        Float::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        Float::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = f16_to_f32(u16::from_le_bytes(*b));
            }
        }
        Float::Bf16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = f32::from_bits((u16::from_le_bytes(*b) as u32) << 16);
            }
        }
    }
}

thread_local! {
    /// A few weight rows as floats. Grows to the widest weight once and is kept.
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Products of weight rows `range` with the rows of `x`, [rows, cols]; row n goes to `outputs[n]`.
///
/// # Safety
/// `out` must have room for every output row and column; no other thread may touch the elements
/// written meanwhile.
pub(crate) unsafe fn multiply_rows(
    isa: Isa,
    w: &Matrix<'_>,
    range: std::ops::Range<usize>,
    x: &[f32],
    outputs: &[u32],
    out: Target,
) {
    assert_eq!(x.len(), outputs.len() * w.cols);
    ROWS.with_borrow_mut(|scratch| {
        scratch.resize(scratch.len().max(TILE * w.cols), 0.0);
        let mut first = range.start;
        while first < range.end {
            let count = TILE.min(range.end - first);
            let rows = if let Some(rows) = as_floats(w, first..first + count) {
                rows
            } else {
                for i in 0..count {
                    dequantize_row(isa, w, first + i, &mut scratch[i * w.cols..][..w.cols]);
                }
                &scratch[..count * w.cols]
            };
            for (x, outputs) in x.chunks(TILE * w.cols).zip(outputs.chunks(TILE)) {
                let mut results = [[0.0; TILE]; TILE];
                tile(isa, rows, x, w.cols, &mut results);
                for (row, &output) in results.iter().zip(outputs) {
                    for (i, &result) in row.iter().enumerate().take(count) {
                        // SAFETY: within the bounds the caller promised.
                        unsafe { out.put(output, first - range.start + i, result) };
                    }
                }
            }
            first += count;
        }
    });
}

/// Rows of a weight that are floats in memory already.
fn as_floats<'a>(w: &Matrix<'a>, rows: std::ops::Range<usize>) -> Option<&'a [f32]> {
    if w.encoding != Encoding::Dense(Float::F32) || cfg!(target_endian = "big") {
        return None;
    }
    let bytes = &w.codes[rows.start * w.cols * 4..rows.end * w.cols * 4];
    // SAFETY: any four bytes are a float.
    let (before, floats, after) = unsafe { bytes.align_to::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}

/// Products of up to four weight rows with up to four activation rows: `out[x row][weight row]`.
fn tile(isa: Isa, w: &[f32], x: &[f32], cols: usize, out: &mut [[f32; TILE]; TILE]) {
    if w.len() == TILE * cols && cols.is_multiple_of(LANES) {
        let (w, chunks) = (w.as_chunks().0, cols / LANES);
        let mut sums = [[[0.0f32; LANES]; TILE]; TILE];
        if x.len() == TILE * cols {
            lanes_4x4(isa, w, x.as_chunks().0, chunks, &mut sums);
        } else {
            for (x, sums) in x.chunks_exact(cols).zip(&mut sums) {
                lanes_4x1(isa, w, x.as_chunks().0, chunks, sums);
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            *out = sums.map(sum_lanes);
        }
        return;
    }
    for (x, out) in x.chunks_exact(cols).zip(out) {
        for (w, out) in w.chunks_exact(cols).zip(out) {
            *out = one_dot(isa, x, w);
        }
    }
}

versions! { fn one_dot(x: &[f32], w: &[f32]) -> f32 = dot }

// A function of its own: inside a larger one its sums would not stay in registers.
versions! {
    fn lanes_4x4(
        w: &[[f32; LANES]],
        x: &[[f32; LANES]],
        chunks: usize,
        out: &mut [[[f32; LANES]; TILE]; TILE],
    ) = lanes_4x4_body
}

#[inline(always)]
fn lanes_4x4_body(
    w: &[[f32; LANES]],
    x: &[[f32; LANES]],
    chunks: usize,
    out: &mut [[[f32; LANES]; TILE]; TILE],
) {
    let row = |i: usize| &w[i * chunks..][..chunks];
    let (w0, w1, w2, w3) = (row(0), row(1), row(2), row(3));
    // Two activation rows at a time: eight sums, each named, so that each is a register.
    for pair in 0..TILE / 2 {
        let x0 = &x[2 * pair * chunks..][..chunks];
        let x1 = &x[(2 * pair + 1) * chunks..][..chunks];
        let (mut a0, mut a1, mut a2, mut a3) =
            ([0.0; LANES], [0.0; LANES], [0.0; LANES], [0.0; LANES]);
        let (mut b0, mut b1, mut b2, mut b3) =
            ([0.0; LANES], [0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for c in 0..chunks {
            fma(&mut a0, &x0[c], &w0[c]);
            fma(&mut a1, &x0[c], &w1[c]);
            fma(&mut a2, &x0[c], &w2[c]);
            fma(&mut a3, &x0[c], &w3[c]);
            fma(&mut b0, &x1[c], &w0[c]);
            fma(&mut b1, &x1[c], &w1[c]);
            fma(&mut b2, &x1[c], &w2[c]);
            fma(&mut b3, &x1[c], &w3[c]);
        }
        out[2 * pair] = [a0, a1, a2, a3];
        out[2 * pair + 1] = [b0, b1, b2, b3];
    }
}

versions! {
    fn lanes_4x1(
        w: &[[f32; LANES]],
        x: &[[f32; LANES]],
        chunks: usize,
        out: &mut [[f32; LANES]; TILE],
    ) = lanes_4x1_body
}

#[inline(always)]
fn lanes_4x1_body(
    w: &[[f32; LANES]],
    x: &[[f32; LANES]],
    chunks: usize,
    out: &mut [[f32; LANES]; TILE],
) {
    let row = |i: usize| &w[i * chunks..][..chunks];
    let (x, w0, w1, w2, w3) = (&x[..chunks], row(0), row(1), row(2), row(3));
    let (mut a0, mut a1, mut a2, mut a3) = ([0.0; LANES], [0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for c in 0..chunks {
        fma(&mut a0, &x[c], &w0[c]);
        fma(&mut a1, &x[c], &w1[c]);
        fma(&mut a2, &x[c], &w2[c]);
        fma(&mut a3, &x[c], &w3[c]);
    }
    *out = [a0, a1, a2, a3];
}

#[inline(always)]
fn fma(acc: &mut [f32; LANES], x: &[f32; LANES], w: &[f32; LANES]) {
    for l in 0..LANES {
        acc[l] = x[l].mul_add(w[l], acc[l]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::activation::testing::isas;
    use super::super::dot::tests::{Random, encodings, random_weight, row_values};
    use super::*;

    #[test]
    fn rows_become_the_values_the_formats_define() {
        for encoding in encodings() {
            let w = random_weight(3, 256, encoding, 7);
            let mut out = vec![0.0; 256];
            for isa in [Isa::Scalar, machine::cpu::isa()] {
                for row in 0..3 {
                    dequantize_row(isa, &w.view(), row, &mut out);
                    let values = row_values(&w.view(), row);
                    for (col, (&got, want)) in out.iter().zip(values).enumerate() {
                        let close = (got as f64 - want).abs() <= 1e-6 * want.abs().max(0.01);
                        assert!(close, "{encoding:?} {row},{col}: {got} {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn halves_convert_exactly() {
        for bits in 0..=u16::MAX {
            let want = half::f16::from_bits(bits).to_f32();
            let got = f16_to_f32(bits);
            assert!(got == want || want.is_nan() && got.is_nan(), "{bits:04x}: {got} {want}");
        }
    }

    #[test]
    fn products_have_the_same_bits_on_every_instruction_set_and_in_every_tile() {
        let mut random = Random(3);
        for encoding in encodings().into_iter().filter(|e| !e.is_integer()) {
            for (rows, cols, x_rows) in [(6, 128, 7), (4, 96, 4), (1, 64, 1)] {
                let w = random_weight(rows, cols, encoding, random.next());
                let x: Vec<f32> = (0..x_rows * cols).map(|_| random.float()).collect();
                let run = |isa, x: &[f32], x_rows| {
                    let mut out = vec![0.0; x_rows * rows];
                    // SAFETY: `out` has room for every row.
                    unsafe {
                        let to = Target { start: out.as_mut_ptr(), stride: rows, column: 0 };
                        let outputs: Vec<u32> = (0..x_rows as u32).collect();
                        multiply_rows(isa, &w.view(), 0..rows, x, &outputs, to);
                    }
                    out
                };
                let want = run(Isa::Scalar, &x, x_rows);
                for isa in isas() {
                    assert_eq!(want, run(isa, &x, x_rows), "{encoding:?} on {isa}");
                }
                for r in 0..x_rows {
                    let alone = run(machine::cpu::isa(), &x[r * cols..][..cols], 1);
                    assert_eq!(alone, want[r * rows..][..rows], "row {r} alone");
                }
            }
        }
    }
}
