//! Expansion of the formats whose indices pick magnitudes from a grid: IQ1, IQ2 and IQ3.
//!
//! Eight codes at a time as the bytes of a word.

use super::Plain;
use super::grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::small::{each, half_at, spread_bits};
use crate::cpu::dense::f16_to_f32;

/// Blocks of 32 in a block of 256.
const BLOCKS: usize = 8;

/// A byte in each byte of a word.
const fn bytes_of(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Eight levels of two bits, one to a byte.
#[inline(always)]
fn pairs_of_bits(entry: u16) -> u64 {
    let x = u64::from(entry);
    let x = (x | x << 24) & 0x0000_00ff_0000_00ff;
    let x = (x | x << 12) & 0x000f_000f_000f_000f;
    (x | x << 6) & bytes_of(3)
}

/// Eight magnitudes of IQ2: 8, 25 or 43.
#[inline(always)]
fn iq2_magnitudes(entry: u16) -> u64 {
    let levels = pairs_of_bits(entry);
    bytes_of(8) + 17 * levels + (levels >> 1 & bytes_of(1))
}

/// Eight levels of IQ3, of two entries of four.
#[inline(always)]
fn iq3_levels(entries: [u16; 2]) -> u64 {
    let x = u64::from(entries[0]) | u64::from(entries[1]) << 32;
    let x = (x | x << 10) & 0x003f_003f_003f_003f;
    (x | x << 5) & bytes_of(7)
}

/// Eight magnitudes of IQ3_XXS: 4, 12, 20, 28, 36, 44, 52 or 62.
#[inline(always)]
fn iq3_xxs_magnitudes(entries: [u16; 2]) -> u64 {
    let levels = iq3_levels(entries);
    let is_largest = (levels + bytes_of(1)) >> 3 & bytes_of(1);
    bytes_of(4) + 8 * levels + 2 * is_largest
}

/// Magnitudes with their signs (a set bit is a minus), and the zero of 64.
#[inline(always)]
fn signed(magnitudes: u64, signs: u8) -> [u8; 8] {
    let turned = magnitudes & (spread_bits(signs) * 255);
    (bytes_of(64) + magnitudes - 2 * turned).to_le_bytes()
}

/// Seven signs and an eighth that makes the number of minuses even.
#[inline(always)]
fn signs7(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | (bits.count_ones() as u8 & 1) << 7
}

/// Codes of IQ1: eight times the level of -1, 0 or 1, one more or less, and the zero of 16.
#[inline(always)]
fn iq1_codes(index: usize, is_less: bool) -> [u8; 8] {
    let delta = if is_less { 7 } else { 9 };
    (8 * pairs_of_bits(IQ1[index % IQ1.len()]) + bytes_of(delta)).to_le_bytes()
}

#[inline(always)]
fn word16(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
}

#[inline(always)]
fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
pub(super) fn iq2_xxs(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], .. } = to;
    for (i, (block, codes)) in each::<66, 256>(bytes, codes) {
        let d = half_at(block, 0);
        for (run, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let group = &block[2 + run / 4 * 8..];
            let signs = signs7(word32(group, 4) >> (run % 4 * 7));
            *codes = signed(iq2_magnitudes(IQ2_XXS[usize::from(group[run % 4])]), signs);
        }
        for b in 0..BLOCKS {
            let scale = word32(block, 2 + 8 * b + 4) >> 28;
            scales[BLOCKS * i + b] = d * (0.5 + scale as f32) * 0.25;
        }
    }
}

/// Scales of groups of 16 by nibbles: IQ2_XS and IQ2_S.
#[inline(always)]
fn iq2_scales(i: usize, d: f32, bytes: &[u8], scales: &mut [super::Lanes; 2]) {
    for b in 0..BLOCKS {
        scales[0][BLOCKS * i + b] = d * (0.5 + f32::from(bytes[b] & 15)) * 0.25;
        scales[1][BLOCKS * i + b] = d * (0.5 + f32::from(bytes[b] >> 4)) * 0.25;
    }
}

#[inline(always)]
pub(super) fn iq2_xs(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales, .. } = to;
    for (i, (block, codes)) in each::<74, 256>(bytes, codes) {
        iq2_scales(i, half_at(block, 0), &block[66..], scales);
        for (run, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = word16(&block[2..], run);
            let magnitudes = iq2_magnitudes(IQ2_XS[usize::from(word & 511)]);
            *codes = signed(magnitudes, signs7(u32::from(word >> 9)));
        }
    }
}

#[inline(always)]
pub(super) fn iq2_s(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales, .. } = to;
    for (i, (block, codes)) in each::<82, 256>(bytes, codes) {
        iq2_scales(i, half_at(block, 0), &block[74..], scales);
        for (run, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let top = usize::from(block[66 + run / 4] >> (run % 4 * 2) & 3);
            let entry = IQ2_S[usize::from(block[2 + run]) | top << 8];
            *codes = signed(iq2_magnitudes(entry), block[34 + run]);
        }
    }
}

#[inline(always)]
pub(super) fn iq3_xxs(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], .. } = to;
    for (i, (block, codes)) in each::<98, 256>(bytes, codes) {
        let d = half_at(block, 0);
        for (run, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (first, second) = (block[2 + 2 * run], block[3 + 2 * run]);
            let entries = [IQ3_XXS[usize::from(first)], IQ3_XXS[usize::from(second)]];
            let signs = signs7(word32(block, 66 + run / 4 * 4) >> (run % 4 * 7));
            *codes = signed(iq3_xxs_magnitudes(entries), signs);
        }
        for b in 0..BLOCKS {
            let scale = word32(block, 66 + 4 * b) >> 28;
            scales[BLOCKS * i + b] = d * (0.5 + scale as f32) * 0.5;
        }
    }
}

#[inline(always)]
pub(super) fn iq3_s(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], .. } = to;
    for (i, (block, codes)) in each::<110, 256>(bytes, codes) {
        let d = half_at(block, 0);
        for (run, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let tops = usize::from(block[66 + run / 4] >> (run % 4 * 2));
            let first = usize::from(block[2 + 2 * run]) | (tops & 1) << 8;
            let second = usize::from(block[3 + 2 * run]) | (tops >> 1 & 1) << 8;
            let magnitudes = 2 * iq3_levels([IQ3_S[first], IQ3_S[second]]) + bytes_of(1);
            *codes = signed(magnitudes, block[74 + run]);
        }
        for b in 0..BLOCKS {
            let scale = block[106 + b / 2] >> (b % 2 * 4) & 15;
            scales[BLOCKS * i + b] = d * f32::from(1 + 2 * scale);
        }
    }
}

#[inline(always)]
pub(super) fn iq1_s(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales: [scales, _], .. } = to;
    for (i, (block, codes)) in each::<50, 256>(bytes, codes) {
        let d = half_at(block, 0);
        for (run, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = word16(&block[34..], run / 4);
            let top = usize::from(high >> (run % 4 * 3) & 7);
            *codes = iq1_codes(usize::from(block[2 + run]) | top << 8, high & 0x8000 != 0);
        }
        for b in 0..BLOCKS {
            let scale = 2 * (word16(&block[34..], b) >> 12 & 7) + 1;
            // Codes are eight times as large as what they stand for.
            scales[BLOCKS * i + b] = d * f32::from(scale) * 0.125;
        }
    }
}

#[inline(always)]
pub(super) fn iq1_m(bytes: &[u8], to: &mut Plain) {
    let Plain { codes, scales, .. } = to;
    for (i, (block, codes)) in each::<56, 256>(bytes, codes) {
        let mut words = [0; 4];
        let mut d = 0;
        for (n, word) in words.iter_mut().enumerate() {
            *word = word16(&block[48..], n);
            d |= *word >> 12 << (4 * n);
        }
        let d = f16_to_f32(d);
        for (run, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = block[32 + run / 2] >> (run % 2 * 4);
            let top = usize::from(high & 7);
            *codes = iq1_codes(usize::from(block[run]) | top << 8, high & 8 != 0);
        }
        for group in 0..2 * BLOCKS {
            let scale = 2 * (words[group / 4] >> (group % 4 * 3) & 7) + 1;
            scales[group % 2][BLOCKS * i + group / 2] = d * f32::from(scale) * 0.125;
        }
    }
}
