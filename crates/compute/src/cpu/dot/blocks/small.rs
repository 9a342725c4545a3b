//! Expansion of the formats of 32, 64 and 128 weights.

use super::Plain;
use crate::cpu::dense::{e4m3_to_f32, f16_to_f32};
use crate::cpu::dot::scalar::halved_exponent;
use crate::cpu::quantize::CHUNK;

/// The f16 that begins at a byte.
#[inline(always)]
pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The blocks of a chunk in turn, with their numbers and the codes they become. (What they become is computed in loops: a
/// closure would be a function without the instructions that its caller is compiled for.)
#[inline(always)]
pub(super) fn each<'a, const BYTES: usize, const WEIGHTS: usize>(
    bytes: &'a [u8],
    codes: &'a mut [u8; CHUNK],
) -> impl Iterator<Item = (usize, (&'a [u8; BYTES], &'a mut [u8; WEIGHTS]))> {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (codes, _) = codes.as_chunks_mut::<WEIGHTS>();
    blocks.iter().zip(codes).enumerate()
}

/// Low nibbles are the first half, high ones the second.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let half = codes.len() / 2;
    let (low, high) = codes.split_at_mut(half);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[..half]) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// The bits of a byte, one to a byte of a word.
#[inline(always)]
pub(super) fn spread_bits(bits: u8) -> u64 {
    let bits = (u64::from(bits) * EACH) & 0x8040_2010_0804_0201;
    (bits + 0x7f * EACH) >> 7 & EACH
}

/// One in each byte.
const EACH: u64 = u64::from_ne_bytes([1; 8]);

/// The fifth bit of each code.
#[inline(always)]
fn fifth_bits(bits: &[u8], codes: &mut [u8; 32]) {
    for (codes, &bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
        *codes = (u64::from_le_bytes(*codes) | spread_bits(bits) << 4).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn q4_0(bytes: &[u8], to: &mut Plain) {
    let [scales, _] = &mut to.scales;
    for (i, (block, codes)) in each::<18, 32>(bytes, &mut to.codes) {
        scales[i] = half_at(block, 0);
        nibbles(&block[2..], codes);
    }
}

#[inline(always)]
pub(super) fn q4_1(bytes: &[u8], to: &mut Plain) {
    let ([scales, _], [biases, _]) = (&mut to.scales, &mut to.biases);
    for (i, (block, codes)) in each::<20, 32>(bytes, &mut to.codes) {
        (scales[i], biases[i]) = (half_at(block, 0), half_at(block, 2));
        nibbles(&block[4..], codes);
    }
}

#[inline(always)]
pub(super) fn q5_0(bytes: &[u8], to: &mut Plain) {
    let [scales, _] = &mut to.scales;
    for (i, (block, codes)) in each::<22, 32>(bytes, &mut to.codes) {
        scales[i] = half_at(block, 0);
        nibbles(&block[6..], codes);
        fifth_bits(&block[2..6], codes);
    }
}

#[inline(always)]
pub(super) fn q5_1(bytes: &[u8], to: &mut Plain) {
    let ([scales, _], [biases, _]) = (&mut to.scales, &mut to.biases);
    for (i, (block, codes)) in each::<24, 32>(bytes, &mut to.codes) {
        (scales[i], biases[i]) = (half_at(block, 0), half_at(block, 2));
        nibbles(&block[8..], codes);
        fifth_bits(&block[4..8], codes);
    }
}

#[inline(always)]
pub(super) fn q8_0(bytes: &[u8], to: &mut Plain) {
    let [scales, _] = &mut to.scales;
    for (i, (block, codes)) in each::<34, 32>(bytes, &mut to.codes) {
        scales[i] = half_at(block, 0);
        for (code, byte) in codes.iter_mut().zip(&block[2..]) {
            // A signed byte plus 128.
            *code = byte ^ 0x80;
        }
    }
}

#[inline(always)]
pub(super) fn iq4_nl(bytes: &[u8], to: &mut Plain) {
    let [scales, _] = &mut to.scales;
    for (i, (block, codes)) in each::<18, 32>(bytes, &mut to.codes) {
        scales[i] = half_at(block, 0);
        nibbles(&block[2..], codes);
    }
}

#[inline(always)]
pub(super) fn mxfp4(bytes: &[u8], to: &mut Plain) {
    let [scales, _] = &mut to.scales;
    for (i, (block, codes)) in each::<17, 32>(bytes, &mut to.codes) {
        scales[i] = halved_exponent(block[0]);
        nibbles(&block[1..], codes);
    }
}

#[inline(always)]
pub(super) fn nvfp4(bytes: &[u8], to: &mut Plain) {
    let scales = &mut to.scales;
    for (i, (block, codes)) in each::<36, 64>(bytes, &mut to.codes) {
        for group in 0..4 {
            let code = block[group];
            // Halved, because the codes are doubled; what would be not a number is nothing.
            let scale = if code == 0x7f { 0.0 } else { 0.5 * e4m3_to_f32(code) };
            scales[group % 2][2 * i + group / 2] = scale;
            nibbles(&block[4 + 8 * group..], &mut codes[16 * group..][..16]);
        }
    }
}

#[inline(always)]
pub(super) fn q1_0(bytes: &[u8], to: &mut Plain) {
    let [scales, _] = &mut to.scales;
    for (i, (block, codes)) in each::<18, 128>(bytes, &mut to.codes) {
        scales[4 * i..4 * i + 4].fill(half_at(block, 0));
        for (codes, &bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
            *codes = (2 * spread_bits(bits)).to_le_bytes();
        }
    }
}

#[inline(always)]
pub(super) fn q2_0(bytes: &[u8], to: &mut Plain) {
    let [scales, _] = &mut to.scales;
    for (i, (block, codes)) in each::<18, 64>(bytes, &mut to.codes) {
        scales[2 * i..2 * i + 2].fill(half_at(block, 0));
        for (codes, &byte) in codes.chunks_exact_mut(4).zip(&block[2..]) {
            for (field, code) in codes.iter_mut().enumerate() {
                *code = byte >> (2 * field) & 3;
            }
        }
    }
}
