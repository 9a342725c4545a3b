//! Expansion of the formats of 256 weights without grids: K, IQ4_XS and the ternary ones.
//!
//! Most store codes in planes: in a run of 32 bytes, the first fields of all bytes are the first 32 codes, the second
//! fields the next.

use super::Plain;
use super::small::{each, half_at, nibbles};

/// Blocks of 32 in a block of 256.
const BLOCKS: usize = 8;

/// One plane of a run: the fields of `BITS` bits from bit `shift` on.
#[inline(always)]
fn plane<const BITS: u32>(run: &[u8], shift: u32, codes: &mut [u8]) {
    for (code, byte) in codes.iter_mut().zip(&run[..32]) {
        *code = byte >> shift & ((1 << BITS) - 1);
    }
}

/// Adds bit `from` of each byte as bit `to` of its code.
#[inline(always)]
fn more_bits<const BITS: u32>(run: &[u8], from: u32, to: u32, codes: &mut [u8]) {
    for (code, byte) in codes.iter_mut().zip(&run[..32]) {
        *code |= (byte >> from & ((1 << BITS) - 1)) << to;
    }
}

#[inline(always)]
pub(super) fn q2_k(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales, biases } = to;
    for (i, (block, codes)) in each::<84, 256>(bytes, codes) {
        let (d, d_min) = (half_at(block, 80), half_at(block, 82));
        for (b, codes) in codes.chunks_exact_mut(32).enumerate() {
            plane::<2>(&block[16 + b / 4 * 32..], b as u32 % 4 * 2, codes);
            for half in 0..2 {
                let byte = block[2 * b + half];
                scales[half][BLOCKS * i + b] = d * f32::from(byte & 15);
                biases[half][BLOCKS * i + b] = -(d_min * f32::from(byte >> 4));
            }
        }
    }
}

#[inline(always)]
pub(super) fn q3_k(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales, .. } = to;
    for (i, (block, codes)) in each::<110, 256>(bytes, codes) {
        let (d, raw) = (half_at(block, 108), &block[96..108]);
        for (b, codes) in codes.chunks_exact_mut(32).enumerate() {
            plane::<2>(&block[32 + b / 4 * 32..], b as u32 % 4 * 2, codes);
            more_bits::<1>(block, b as u32, 2, codes);
            for half in 0..2 {
                let group = 2 * b + half;
                let low = raw[group % 8] >> (group / 8 * 4) & 15;
                let top = raw[8 + group % 4] >> (group / 4 * 2) & 3;
                let scale = i32::from(low | top << 4) - 32;
                scales[half][BLOCKS * i + b] = d * scale as f32;
            }
        }
    }
}

/// Eight scales and eight minima of six bits.
#[inline(always)]
fn k_scales(s: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for i in 0..4 {
        (scales[i], minima[i]) = (s[i] & 63, s[i + 4] & 63);
        scales[i + 4] = s[i + 8] & 15 | s[i] >> 6 << 4;
        minima[i + 4] = s[i + 8] >> 4 | s[i + 4] >> 6 << 4;
    }
    (scales, minima)
}

/// Scales and biases of block `i` of Q4_K or Q5_K, which begin alike.
#[inline(always)]
fn k_head(i: usize, block: &[u8], scales: &mut [f32], biases: &mut [f32]) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    let (six_bit, minima) = k_scales(block[4..].first_chunk().expect("twelve bytes"));
    for b in 0..BLOCKS {
        scales[BLOCKS * i + b] = d * f32::from(six_bit[b]);
        biases[BLOCKS * i + b] = -(d_min * f32::from(minima[b]));
    }
}

#[inline(always)]
pub(super) fn q4_k(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], biases: [biases, _] } = to;
    for (i, (block, codes)) in each::<144, 256>(bytes, codes) {
        k_head(i, block, scales, biases);
        for (b, codes) in codes.chunks_exact_mut(32).enumerate() {
            plane::<4>(&block[16 + b / 2 * 32..], b as u32 % 2 * 4, codes);
        }
    }
}

#[inline(always)]
pub(super) fn q5_k(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], biases: [biases, _] } = to;
    for (i, (block, codes)) in each::<176, 256>(bytes, codes) {
        k_head(i, block, scales, biases);
        for (b, codes) in codes.chunks_exact_mut(32).enumerate() {
            plane::<4>(&block[48 + b / 2 * 32..], b as u32 % 2 * 4, codes);
            more_bits::<1>(&block[16..], b as u32, 4, codes);
        }
    }
}

#[inline(always)]
pub(super) fn q6_k(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales, .. } = to;
    for (i, (block, codes)) in each::<210, 256>(bytes, codes) {
        let d = half_at(block, 208);
        for (b, codes) in codes.chunks_exact_mut(32).enumerate() {
            let (half, quarter) = (b / 4, b % 4);
            let low = &block[64 * half + quarter % 2 * 32..];
            plane::<4>(low, quarter as u32 / 2 * 4, codes);
            more_bits::<2>(&block[128 + 32 * half..], quarter as u32 * 2, 4, codes);
            for half in 0..2 {
                scales[half][BLOCKS * i + b] = d * f32::from(block[192 + 2 * b + half] as i8);
            }
        }
    }
}

#[inline(always)]
pub(super) fn iq4_xs(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], .. } = to;
    for (i, (block, codes)) in each::<136, 256>(bytes, codes) {
        let (d, high) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
        for (b, codes) in codes.chunks_exact_mut(32).enumerate() {
            let low = block[4 + b / 2] >> (b % 2 * 4) & 15;
            let scale = (i32::from(low) | i32::from(high >> (2 * b) & 3) << 4) - 32;
            scales[BLOCKS * i + b] = d * scale as f32;
            nibbles(&block[8 + 16 * b..], codes);
        }
    }
}

/// A digit of bytes that are fractions of 3^5, `power` being 3 to how many digits come before it.
#[inline(always)]
fn digit(bytes: &[u8], power: u8, codes: &mut [u8]) {
    for (code, &byte) in codes.iter_mut().zip(bytes) {
        *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
    }
}

#[inline(always)]
pub(super) fn tq1_0(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], .. } = to;
    for (i, (block, codes)) in each::<54, 256>(bytes, codes) {
        scales[BLOCKS * i..][..BLOCKS].fill(half_at(block, 52));
        for (n, power) in [1, 3, 9, 27, 81].into_iter().enumerate() {
            digit(&block[..32], power, &mut codes[32 * n..][..32]);
            digit(&block[32..48], power, &mut codes[160 + 16 * n..][..16]);
            if n < 4 {
                digit(&block[48..52], power, &mut codes[240 + 4 * n..][..4]);
            }
        }
    }
}

#[inline(always)]
pub(super) fn tq2_0(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], .. } = to;
    for (i, (block, codes)) in each::<66, 256>(bytes, codes) {
        scales[BLOCKS * i..][..BLOCKS].fill(half_at(block, 64));
        for (b, codes) in codes.chunks_exact_mut(32).enumerate() {
            plane::<2>(&block[b / 4 * 32..], b as u32 % 4 * 2, codes);
        }
    }
}
