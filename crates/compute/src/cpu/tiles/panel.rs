//! The weights of a tile product: codes and scales of 32 rows, unpacked once for all tokens.
//!
//! Blocks lie in the order in which they are visited. Nothing is multiplied here.

use std::arch::x86_64::*;

use format::{BlockFormat, Encoding};
use machine::cpu::Isa;

use super::super::dot::{
    BlockRow, Codes, FP4_CODES, FP4_ZERO, Plain, Row, Shape, expand_avx512, shape, unpack_codes,
};
use super::super::quantize::{BLOCK, LANE_BLOCKS};
use super::{ROWS, Visits};
use crate::weight::Matrix;

/// Codes of up to 32 weight rows in the layout of the left-hand tiles, and their scales as floats.
#[derive(Default)]
pub(super) struct Panel {
    /// [visit][row][32 bytes]
    pub(super) codes: Vec<u8>,
    /// [visit][row]
    pub(super) scales: Vec<f32>,
    pub(super) biases: Vec<f32>,
    /// The same for the second halves of blocks, where those have scales of their own.
    pub(super) second_scales: Vec<f32>,
    pub(super) second_biases: Vec<f32>,
    /// What is taken off a code.
    pub(super) zero: i32,
    pub(super) biased: bool,
    /// Whether blocks have two scales.
    pub(super) halved: bool,
}

impl Panel {
    /// # Safety
    /// The machine must have AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
    pub(super) unsafe fn unpack(&mut self, w: &Matrix<'_>, first: usize, count: usize) {
        let blocks = w.cols.div_ceil(BLOCK);
        let visits = Visits::new(blocks);
        self.codes.resize(blocks * ROWS * BLOCK, 0);
        self.scales.resize(blocks * ROWS, 0.0);
        self.biases.resize(blocks * ROWS, 0.0);
        if count < ROWS {
            self.codes.fill(0);
            self.scales.fill(0.0);
            self.biases.fill(0.0);
        }
        self.halved = false;
        if let Encoding::Block(format) = w.encoding {
            self.unpack_blocks(w, format, first, count, &visits);
            return;
        }
        let sample = Row::new(w, first);
        self.zero = if sample.packing == Codes::Fp4 { FP4_ZERO } else { 0 };
        self.biased = !sample.biases.is_empty();
        for start in (0..count).step_by(16) {
            let rows = first + start..first + count.min(start + 16);
            unpack_scales(w, rows.clone(), &visits, |row| row.scales, &mut self.scales[start..]);
            if self.biased {
                unpack_scales(w, rows, &visits, |row| row.biases, &mut self.biases[start..]);
            }
        }
        if matches!(sample.packing, Codes::Nibbles | Codes::Fp4) {
            // SAFETY: as promised.
            unsafe { self.unpack_nibbles(w, first, count, &visits) };
            return;
        }
        let block_bytes = w.encoding.row_bytes(w.cols) / blocks;
        for r in 0..count {
            let row = Row::new(w, first + r);
            for block in 0..blocks {
                let to = &mut self.codes[(visits.of(block) * ROWS + r) * BLOCK..][..BLOCK];
                unpack_codes(row.packing, &row.codes[block * block_bytes..], to);
            }
        }
    }

    /// Rows of blocks, each expanded as for the row kernels.
    fn unpack_blocks(
        &mut self,
        w: &Matrix<'_>,
        format: BlockFormat,
        first: usize,
        count: usize,
        visits: &Visits,
    ) {
        let Shape { zero, is_halved, is_biased } = shape(format);
        (self.zero, self.halved, self.biased) = (zero, is_halved, is_biased);
        let second = if is_halved { self.scales.len() } else { 0 };
        self.second_scales.resize(second, 0.0);
        self.second_biases.resize(second, 0.0);
        if count < ROWS {
            self.second_scales.fill(0.0);
            self.second_biases.fill(0.0);
        }
        let mut plain = Plain::new();
        for r in 0..count {
            let row = BlockRow::new(w, format, first + r);
            for chunk in 0..visits.blocks.div_ceil(LANE_BLOCKS) {
                row.expand(Isa::Avx512, chunk, &mut plain);
                let blocks = (visits.blocks - chunk * LANE_BLOCKS).min(LANE_BLOCKS);
                for (block, codes) in
                    plain.codes.as_chunks::<BLOCK>().0[..blocks].iter().enumerate()
                {
                    let at = visits.of(chunk * LANE_BLOCKS + block) * ROWS + r;
                    self.codes[at * BLOCK..][..BLOCK].copy_from_slice(codes);
                    self.scales[at] = plain.scales[0][block];
                    self.biases[at] = plain.biases[0][block];
                    if is_halved {
                        self.second_scales[at] = plain.scales[1][block];
                        self.second_biases[at] = plain.biases[1][block];
                    }
                }
            }
        }
    }

    /// # Safety
    /// The machine must have AVX-512 BW.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn unpack_nibbles(
        &mut self,
        w: &Matrix<'_>,
        first: usize,
        count: usize,
        visits: &Visits,
    ) {
        let row_bytes = w.encoding.row_bytes(w.cols);
        let mask = _mm512_set1_epi8(15);
        let low_pairs = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        let high_pairs = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        // SAFETY: sixteen bytes of a constant.
        let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(FP4_CODES.as_ptr().cast())) };
        // Four blocks of one row are 64 bytes of codes.
        for quad in 0..w.cols.div_ceil(4 * BLOCK) {
            let bytes = 64.min(row_bytes - quad * 64);
            let valid = if bytes == 64 { u64::MAX } else { (1u64 << bytes) - 1 };
            let mut visit = [0; 4];
            for (block, visit) in visit.iter_mut().enumerate().take(bytes / 16) {
                *visit = visits.of(quad * 4 + block);
            }
            for r in 0..count {
                let from = &w.codes[(first + r) * row_bytes + quad * 64..][..bytes];
                // SAFETY: the mask keeps the load within `from`; the stores below go to blocks
                // that exist (a block is 16 bytes of codes).
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(
                        from.as_ptr().wrapping_add(ROWS * row_bytes).cast(),
                    );
                    let packed = _mm512_maskz_loadu_epi8(valid, from.as_ptr().cast());
                    let mut even = _mm512_and_si512(packed, mask);
                    let mut odd = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                    if self.zero != 0 {
                        even = _mm512_shuffle_epi8(table, even);
                        odd = _mm512_shuffle_epi8(table, odd);
                    }
                    let pairs = [
                        _mm512_permutex2var_epi64(even, low_pairs, odd),
                        _mm512_permutex2var_epi64(even, high_pairs, odd),
                    ];
                    for block in 0..bytes / 16 {
                        let pair = pairs[block / 2];
                        let half = if block % 2 == 0 {
                            _mm512_castsi512_si256(pair)
                        } else {
                            _mm512_extracti64x4_epi64::<1>(pair)
                        };
                        let to = self.codes.as_mut_ptr().add((visit[block] * ROWS + r) * BLOCK);
                        _mm256_storeu_si256(to.cast(), half);
                    }
                }
            }
        }
    }
}

/// Scales (or biases) of up to 16 rows as floats: [visit][32 rows].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn unpack_scales(
    w: &Matrix<'_>,
    rows: std::ops::Range<usize>,
    visits: &Visits,
    part: for<'a> fn(&Row<'a>) -> &'a [u8],
    to: &mut [f32],
) {
    let sample = Row::new(w, rows.start);
    let (kind, group) = (sample.kind, sample.group);
    let size = sample.chunk_scales() * sample.scale_size();
    let mut parts: [&[u8]; 16] = [&[]; 16];
    for (bytes, index) in parts.iter_mut().zip(rows.clone()) {
        *bytes = part(&Row::new(w, index));
    }
    for chunk in 0..visits.blocks.div_ceil(LANE_BLOCKS) {
        let mut square = [[0.0f32; 16]; 16];
        for (values, bytes) in square.iter_mut().zip(&parts[..rows.len()]) {
            let from = &bytes[chunk * size..];
            let mut padded = [0u8; LANE_BLOCKS * 4];
            let whole = if from.len() >= size {
                &from[..size]
            } else {
                padded[..from.len()].copy_from_slice(from);
                &padded[..size]
            };
            let wide = expand_avx512(kind, group, whole);
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), wide) };
        }
        // SAFETY: AVX-512 is there.
        let turned = unsafe { transpose(&square) };
        let blocks = (visits.blocks - chunk * LANE_BLOCKS).min(LANE_BLOCKS);
        for (block, values) in turned.iter().enumerate().take(blocks) {
            let at = visits.of(chunk * LANE_BLOCKS + block) * ROWS;
            to[at..at + rows.len()].copy_from_slice(&values[..rows.len()]);
        }
    }
}

/// 16 × 16 transpose.
///
/// # Safety
/// The machine must have AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose(from: &[[f32; 16]; 16]) -> [[f32; 16]; 16] {
    // SAFETY: sixteen rows of sixteen floats.
    unsafe {
        let r: [__m512; 16] = std::array::from_fn(|i| _mm512_loadu_ps(from[i].as_ptr()));
        let mut t = [_mm512_setzero_ps(); 16];
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let pd = |x| _mm512_castps_pd(x);
        let mut u = [_mm512_setzero_ps(); 16];
        for i in 0..4 {
            let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
            u[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(a), pd(c)));
            u[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(a), pd(c)));
            u[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(b), pd(d)));
            u[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(b), pd(d)));
        }
        // u[4g + j]: 128-bit lane k holds column 4k + j of rows 4g..4g + 4.
        let mut out = [[0.0f32; 16]; 16];
        for j in 0..4 {
            let a = _mm512_shuffle_f32x4::<0x88>(u[j], u[4 + j]);
            let b = _mm512_shuffle_f32x4::<0xdd>(u[j], u[4 + j]);
            let c = _mm512_shuffle_f32x4::<0x88>(u[8 + j], u[12 + j]);
            let d = _mm512_shuffle_f32x4::<0xdd>(u[8 + j], u[12 + j]);
            _mm512_storeu_ps(out[j].as_mut_ptr(), _mm512_shuffle_f32x4::<0x88>(a, c));
            _mm512_storeu_ps(out[8 + j].as_mut_ptr(), _mm512_shuffle_f32x4::<0xdd>(a, c));
            _mm512_storeu_ps(out[4 + j].as_mut_ptr(), _mm512_shuffle_f32x4::<0x88>(b, d));
            _mm512_storeu_ps(out[12 + j].as_mut_ptr(), _mm512_shuffle_f32x4::<0xdd>(b, d));
        }
        out
    }
}
