//! Every instruction set against the scalar form, to the bit, and the scalar form against f64.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::activation::testing::isas;
use super::super::dense;
use super::*;
use crate::weight::Weight;
use format::BlockFormat;

/// A small counter-based generator, so that a failing case can be made again from its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

pub(crate) fn encodings() -> Vec<Encoding> {
    let mut all = vec![Encoding::Mxfp4, Encoding::Mxfp8, Encoding::Nvfp4];
    for float in [Float::F32, Float::F16, Float::Bf16] {
        all.push(Encoding::Dense(float));
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                all.push(Encoding::Affine { bits, group, scale: float });
            }
        }
    }
    all.extend(BlockFormat::ALL.iter().map(|&format| Encoding::Block(format)));
    all
}

/// What the columns of a weight are a multiple of.
pub(crate) fn least_cols(encoding: Encoding) -> usize {
    match encoding {
        Encoding::Block(format) => format.weights(),
        encoding => encoding.group().unwrap_or(1),
    }
}

/// Makes the scales of random blocks sensible numbers: the high byte of each f16 says 2^-7 to 2^-3.
pub(crate) fn tame(format: BlockFormat, blocks: &mut [u8]) {
    use BlockFormat::*;
    let high_bytes: &[usize] = match format {
        Q4_1 | Q5_1 | Q4K | Q5K => &[1, 3],
        Q2K => &[81, 83],
        Q3K => &[109],
        Q6K => &[209],
        Iq1M => &[55],
        Tq1_0 => &[53],
        Tq2_0 => &[65],
        Mxfp4 | Nvfp4 => &[],
        _ => &[1],
    };
    for block in blocks.chunks_exact_mut(format.bytes()) {
        for &at in high_bytes {
            block[at] = block[at] & 0x8f | 0x20;
        }
        match format {
            Mxfp4 => block[0] &= 0x7f,
            Nvfp4 => block[..4].iter_mut().for_each(|scale| *scale &= 0x7f),
            _ => {}
        }
    }
}

/// A random weight whose scales and biases are sensible numbers.
pub(crate) fn random_weight(rows: usize, cols: usize, encoding: Encoding, seed: u64) -> Weight {
    let mut random = Random(seed);
    let put = |value: f32, float: Float, to: &mut Vec<u8>| match float {
        Float::F32 => to.extend(value.to_le_bytes()),
        Float::F16 => to.extend(f16::from_f32(value).to_bits().to_le_bytes()),
        Float::Bf16 => to.extend(bf16::from_f32(value).to_bits().to_le_bytes()),
    };
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    match encoding {
        Encoding::Dense(float) => {
            for _ in 0..rows * cols {
                put(random.float(), float, &mut codes);
            }
        }
        _ => codes.extend((0..rows * encoding.row_bytes(cols)).map(|_| random.next() as u8)),
    }
    match encoding {
        Encoding::Affine { group, scale, .. } => {
            for _ in 0..rows * cols / group {
                put(0.01 * random.float(), scale, &mut scales);
                put(0.1 * random.float(), scale, &mut biases);
            }
        }
        Encoding::Mxfp4 | Encoding::Mxfp8 => {
            scales.extend((0..rows * cols / 32).map(|_| 118 + (random.next() % 8) as u8));
            // E4M3 has two NaN codes; they are not weights.
            if encoding == Encoding::Mxfp8 {
                codes.iter_mut().filter(|c| **c & 0x7f == 0x7f).for_each(|c| *c = 0);
            }
        }
        Encoding::Nvfp4 => {
            scales.extend((0..rows * cols / 16).map(|_| 0x20 + (random.next() % 32) as u8));
        }
        Encoding::Dense(_) => {}
        Encoding::Block(format) => {
            tame(format, &mut codes);
            // Of one size, so that no block outweighs all others.
            match format {
                BlockFormat::Mxfp4 => codes.chunks_mut(17).for_each(|b| b[0] = 118 + b[0] % 8),
                BlockFormat::Nvfp4 => codes
                    .chunks_mut(36)
                    .for_each(|b| b[..4].iter_mut().for_each(|scale| *scale = 0x20 | *scale & 31)),
                _ => {}
            }
        }
    }
    let matrix = Matrix::new(rows, cols, encoding, &codes, &scales, &biases).expect("consistent");
    Weight::from_parts(matrix, &crate::HostStore).expect("memory")
}

/// The values of one row in f64.
pub(crate) fn row_values(w: &Matrix<'_>, row: usize) -> Vec<f64> {
    if let Encoding::Block(_) = w.encoding {
        // These are checked against another decoder.
        let mut values = vec![0.0; w.cols];
        dense::dequantize_row(Isa::Scalar, w, row, &mut values);
        return values.into_iter().map(f64::from).collect();
    }
    (0..w.cols).map(|col| value(w, row, col)).collect()
}

/// The value of one weight in f64, straight from the format's definition.
pub(crate) fn value(w: &Matrix<'_>, row: usize, col: usize) -> f64 {
    let float = |bytes: &[u8], index: usize, float: Float| -> f64 {
        let b = &bytes[index * float.bytes()..];
        match float {
            Float::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
            Float::F16 => f16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f64(),
            Float::Bf16 => bf16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f64(),
        }
    };
    let e2m1 = |code: u8| {
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][(code & 7) as usize];
        if code & 8 == 0 { magnitude } else { -magnitude }
    };
    let e4m3 = |code: u8| {
        let (e, m) = ((code >> 3 & 15) as i32, (code & 7) as f64);
        let magnitude =
            if e == 0 { m / 8.0 * 2f64.powi(-6) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    };
    let code = |bits: usize| -> u8 {
        let mut code = 0;
        for b in 0..bits {
            let at = (row * w.cols + col) * bits + b;
            code |= (w.codes[at / 8] >> (at % 8) & 1) << b;
        }
        code
    };
    match w.encoding {
        Encoding::Dense(kind) => float(w.codes, row * w.cols + col, kind),
        Encoding::Affine { bits, group, scale } => {
            let index = (row * w.cols + col) / group;
            code(bits as usize) as f64 * float(w.scales, index, scale)
                + float(w.biases, index, scale)
        }
        Encoding::Mxfp4 => {
            e2m1(code(4)) * 2f64.powi(w.scales[(row * w.cols + col) / 32] as i32 - 127)
        }
        Encoding::Mxfp8 => {
            e4m3(code(8)) * 2f64.powi(w.scales[(row * w.cols + col) / 32] as i32 - 127)
        }
        Encoding::Nvfp4 => e2m1(code(4)) * e4m3(w.scales[(row * w.cols + col) / 16]),
        Encoding::Block(_) => row_values(w, row)[col],
    }
}

fn quantized(isa: Isa, w: &Weight, x: &[f32], x_rows: usize) -> Activations {
    let mut a = Activations::default();
    // As they are after wider rows.
    let before: Vec<f32> = (0..w.cols().next_multiple_of(512)).map(|i| i as f32 - 77.5).collect();
    a.resize(isa, x_rows, before.len(), Forms::ALL);
    (0..x_rows).for_each(|row| a.fill(isa, row, &before));
    a.resize(isa, x_rows, w.cols(), forms([w.encoding()]));
    for r in 0..x_rows {
        a.fill(isa, r, &x[r * w.cols()..][..w.cols()]);
    }
    a
}

/// The product with one of the activation rows.
fn product_of_row(isa: Isa, w: &Weight, x: &[f32], x_rows: usize, row: usize) -> Vec<f32> {
    let a = quantized(isa, w, x, x_rows);
    let mut out = vec![f32::NAN; w.rows()];
    let target = Target { start: out.as_mut_ptr(), stride: w.rows(), column: 0 };
    let rows = Rows { inputs: &[row as u32], outputs: &[0] };
    // SAFETY: `out` has room for the row.
    unsafe { multiply_rows(isa, &w.view(), 0..w.rows(), &a, rows, target) };
    out
}

fn product(isa: Isa, w: &Weight, x: &[f32], x_rows: usize) -> Vec<f32> {
    let a = quantized(isa, w, x, x_rows);
    let mut out = vec![f32::NAN; x_rows * w.rows()];
    let all: Vec<u32> = (0..x_rows as u32).collect();
    let target = Target { start: out.as_mut_ptr(), stride: w.rows(), column: 0 };
    let rows = Rows { inputs: &all, outputs: &all };
    // SAFETY: `out` has room for every row.
    unsafe { multiply_rows(isa, &w.view(), 0..w.rows(), &a, rows, target) };
    out
}

/// The instruction sets of this machine that have a row kernel besides the scalar one. (AMX has that of AVX-512.)
fn fast_isas() -> Vec<Isa> {
    let isas: Vec<Isa> = isas().filter(|isa| !matches!(isa, Isa::Scalar | Isa::Amx)).collect();
    if isas.is_empty() {
        println!("skipped: this machine has no instruction set besides the scalar one");
    }
    isas
}

#[track_caller]
fn same_bits(want: &[f32], got: &[f32], what: std::fmt::Arguments<'_>) {
    let same = want.iter().zip(got).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(same && want.len() == got.len(), "{what}");
}

#[test]
fn nibbles_are_exact_for_any_rows_and_any_tail() {
    let affine = |group: usize, scale: Float| {
        (Encoding::Affine { bits: 4, group, scale }, [128, 256, 384, 512, 640, 768, 1408])
    };
    let isas = fast_isas();
    let mut random = Random(2);
    for (encoding, widths) in [
        affine(32, Float::F32),
        affine(64, Float::Bf16),
        affine(128, Float::F16),
        // Any number of blocks; gpt-oss has 2880 columns.
        (Encoding::Mxfp4, [32, 160, 512, 544, 1376, 2016, 2880]),
    ] {
        for cols in widths {
            // Narrow rows are multiplied sixteen at a time.
            let rows = if cols < 512 { 37 } else { 5 };
            let w = random_weight(rows, cols, encoding, random.next());
            for x_rows in 1..=18 {
                let x: Vec<f32> = (0..x_rows * cols).map(|_| random.float()).collect();
                let want = product(Isa::Scalar, &w, &x, x_rows);
                for &isa in &isas {
                    let got = product(isa, &w, &x, x_rows);
                    same_bits(&want, &got, format_args!("{encoding:?} {cols} × {x_rows}, {isa}"));
                    // One row of several, as an expert has that one token wants.
                    let got = product_of_row(isa, &w, &x, x_rows, x_rows - 1);
                    let want = &want[(x_rows - 1) * w.rows()..];
                    let what = format_args!("{encoding:?} {cols}, the last of {x_rows}, {isa}");
                    same_bits(want, &got, what);
                }
            }
        }
    }
}

#[test]
fn every_integer_format_is_exact_to_the_bit_and_close_to_f64() {
    let isas = fast_isas();
    let mut random = Random(1);
    for encoding in encodings().into_iter().filter(|e| e.is_integer()) {
        let unit = least_cols(encoding);
        for (rows, cols, x_rows) in [
            (3, unit.max(128), 1),
            (5, unit.max(128) * 5, 6),
            (2, 1024, 4),
            (1, 512, 3),
            (33, 256, 9),
            // The last round of lanes has one unit, or lacks one.
            (2, unit, 2),
            (2, 512 + unit, 5),
            (3, 1024 - unit, 1),
            (2, 512 + unit, 18),
        ] {
            let w = random_weight(rows, cols, encoding, random.next());
            let x: Vec<f32> = (0..x_rows * cols).map(|_| random.float()).collect();
            let want = product(Isa::Scalar, &w, &x, x_rows);
            for &isa in &isas {
                let got = product(isa, &w, &x, x_rows);
                let what = format_args!("{encoding:?} [{rows}, {cols}] × {x_rows} on {isa}");
                same_bits(&want, &got, what);
            }
            for row in 0..rows {
                let values = row_values(&w.view(), row);
                for r in 0..x_rows {
                    let (mut exact, mut norm) = (0.0, 0.0);
                    for c in 0..cols {
                        let term = values[c] * x[r * cols + c] as f64;
                        exact += term;
                        norm += term * term;
                    }
                    let error = (want[r * rows + row] as f64 - exact).abs() / norm.sqrt();
                    assert!(error < 1e-4, "{encoding:?}: relative error {error}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_shape_is_exact_to_the_bit(
        encoding in select(encodings()),
        (rows, units, x_rows) in (1..40usize, 1..50usize, 1..40usize),
        seed in any::<u64>(),
    ) {
        let unit = least_cols(encoding);
        let cols = units.min(6400 / unit) * unit;
        let w = random_weight(rows, cols, encoding, seed);
        let mut random = Random(seed);
        let x: Vec<f32> = (0..x_rows * cols).map(|_| random.float()).collect();
        let run = |isa: Isa| {
            if encoding.is_integer() {
                return product(isa, &w, &x, x_rows);
            }
            let mut out = vec![f32::NAN; x_rows * rows];
            let outputs: Vec<u32> = (0..x_rows as u32).collect();
            let target = Target { start: out.as_mut_ptr(), stride: rows, column: 0 };
            // SAFETY: `out` has room for every row.
            unsafe { dense::multiply_rows(isa, &w.view(), 0..rows, &x, &outputs, target) };
            out
        };
        let want = run(Isa::Scalar);
        for isa in fast_isas() {
            same_bits(&want, &run(isa), format_args!("on {isa}"));
        }
    }
}
