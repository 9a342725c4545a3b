//! Expansion with AVX-512 of the formats that files are mostly made of.
//!
//! A vector of 64 codes is two blocks of 32: where both come from the same bytes (planes, or nibbles of which the low
//! ones are the first half), the bytes are put into both halves and shifted by different counts.

use std::arch::x86_64::*;

use format::BlockFormat;
use machine::cpu::Isa;

use super::super::table::IQ4_CODES;
use super::super::{Plain, expand_by_loops};
use crate::cpu::dot::avx512::{PREFETCH_BYTES, load_scales};
use crate::cpu::dot::unpack::FP4_CODES;
use crate::cpu::quantize::{CHUNK, LANE_BLOCKS};

/// Stands for the formats that have no code here: loops expand them.
pub(super) const LOOPS: u32 = u32::MAX;

/// Expands a whole chunk of blocks.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL, DQ and VNNI.
pub(in super::super) unsafe fn expand(format: BlockFormat, bytes: &[u8], to: &mut Plain) {
    assert_eq!(bytes.len(), format.row_bytes(CHUNK));
    let from = bytes.as_ptr();
    macro_rules! by_format {
        ($($variant:ident)*) => {
            match format {
                $(BlockFormat::$variant => {
                    expand_one::<{ BlockFormat::$variant.id() }>(format, from, bytes.len(), to);
                })*
                _ => expand_one::<LOOPS>(format, from, bytes.len(), to),
            }
        };
    }
    // SAFETY: a whole chunk, just checked, on such a machine.
    unsafe { by_format!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4) }
}

/// The same of the format of that number.
///
/// # Safety
/// `from` must point to a whole chunk of such blocks, which is so many bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")]
pub(super) unsafe fn expand_one<const ID: u32>(
    format: BlockFormat,
    from: *const u8,
    bytes: usize,
    to: &mut Plain,
) {
    use BlockFormat::*;
    const fn is(id: u32, format: BlockFormat) -> bool {
        id == format.id()
    }
    for line in 0..bytes.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH_BYTES + 64 * line).cast());
    }
    // SAFETY: the caller's promise.
    unsafe {
        match ID {
            id if is(id, Q4_0) => {
                nibbles::<18, 2, 0>(from, None, to);
                store(&mut to.scales[0], halves_at::<18>(from));
            }
            id if is(id, Iq4Nl) => {
                nibbles::<18, 2, 0>(from, Some(&IQ4_CODES), to);
                store(&mut to.scales[0], halves_at::<18>(from));
            }
            id if is(id, Q4_1) => {
                nibbles::<20, 4, 0>(from, None, to);
                store(&mut to.scales[0], halves_at::<20>(from));
                store(&mut to.biases[0], halves_at::<20>(from.add(2)));
            }
            id if is(id, Q5_0) => {
                nibbles::<22, 6, 2>(from, None, to);
                store(&mut to.scales[0], halves_at::<22>(from));
            }
            id if is(id, Q5_1) => {
                nibbles::<24, 8, 4>(from, None, to);
                store(&mut to.scales[0], halves_at::<24>(from));
                store(&mut to.biases[0], halves_at::<24>(from.add(2)));
            }
            id if is(id, Q8_0) => {
                q8_0(from, to);
                store(&mut to.scales[0], halves_at::<34>(from));
            }
            id if is(id, Mxfp4) => {
                nibbles::<17, 1, 0>(from, Some(&FP4_CODES), to);
                let mut exponents = [0; LANE_BLOCKS];
                for (i, exponent) in exponents.iter_mut().enumerate() {
                    *exponent = *from.add(17 * i);
                }
                store(&mut to.scales[0], load_scales::<3>(exponents.as_ptr(), LANE_BLOCKS));
            }
            id if is(id, Q2K) => q2_k(from, to),
            id if is(id, Q3K) => q3_k(from, to),
            id if is(id, Q4K) => q4_k(from, to),
            id if is(id, Q5K) => q5_k(from, to),
            id if is(id, Q6K) => q6_k(from, to),
            id if is(id, Iq4Xs) => iq4_xs(from, to),
            _ => {
                let bytes = std::slice::from_raw_parts(from, bytes);
                expand_by_loops(Isa::Avx512, format, bytes, to);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(to: &mut [f32; LANE_BLOCKS], numbers: __m512) {
    // SAFETY: sixteen floats.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), numbers) };
}

/// Stores vector `part` of the codes.
#[inline]
#[target_feature(enable = "avx512f")]
fn put(to: &mut Plain, part: usize, codes: __m512i) {
    // SAFETY: 64 codes.
    unsafe { _mm512_storeu_si512(to.codes[64 * part..][..64].as_mut_ptr().cast(), codes) };
}

/// The f16 at the start of each of sixteen blocks.
///
/// # Safety
/// There are so many, `STRIDE` bytes apart.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn halves_at<const STRIDE: usize>(from: *const u8) -> __m512 {
    // SAFETY: the caller's promise; then the sixteen that were read.
    unsafe {
        let mut halves = [0; LANE_BLOCKS];
        for (i, half) in halves.iter_mut().enumerate() {
            *half = from.add(STRIDE * i).cast::<u16>().read_unaligned();
        }
        _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast()))
    }
}

/// Codes of blocks of 32 whose nibbles begin at byte `AT`, two blocks at a time: as they are, with a fifth bit from byte
/// `FIFTH` on if that is not 0, or as indices into a table.
///
/// # Safety
/// `from` points to a chunk of blocks of `BYTES` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn nibbles<const BYTES: usize, const AT: usize, const FIFTH: usize>(
    from: *const u8,
    table: Option<&[u8; 16]>,
    to: &mut Plain,
) {
    // High nibbles in the second and the fourth sixteen bytes.
    let shifts = _mm512_setr_epi64(0, 0, HIGH, HIGH, 0, 0, HIGH, HIGH);
    for part in 0..CHUNK / 64 {
        // SAFETY: two blocks of the chunk.
        unsafe {
            let pair = from.add(2 * part * BYTES);
            let first = _mm_loadu_si128(pair.add(AT).cast());
            let second = _mm_loadu_si128(pair.add(BYTES + AT).cast());
            let both = _mm512_broadcast_i32x4(first);
            let both = _mm512_mask_broadcast_i32x4(both, 0xff00, second);
            let mut codes = _mm512_and_si512(_mm512_srlv_epi16(both, shifts), _mm512_set1_epi8(15));
            if FIFTH != 0 {
                let first = pair.add(FIFTH).cast::<u32>().read_unaligned();
                let second = pair.add(BYTES + FIFTH).cast::<u32>().read_unaligned();
                let bits = u64::from(first) | u64::from(second) << 32;
                codes = _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8(16));
            }
            if let Some(table) = table {
                codes = looked_up(table, codes);
            }
            put(to, part, codes);
        }
    }
}

/// Four in each 16 bits: the count of a shift that brings high nibbles down.
const HIGH: i64 = 0x0004_0004_0004_0004;

/// Nibbles as indices into a table.
///
/// # Safety
/// The machine must have AVX-512 BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn looked_up(table: &[u8; 16], codes: __m512i) -> __m512i {
    // SAFETY: sixteen bytes.
    let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())) };
    _mm512_shuffle_epi8(table, codes)
}

/// # Safety
/// `from` points to a chunk of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn q8_0(from: *const u8, to: &mut Plain) {
    for part in 0..CHUNK / 64 {
        // SAFETY: two blocks of the chunk.
        unsafe {
            let pair = from.add(2 * part * 34);
            let first = _mm512_castsi256_si512(_mm256_loadu_si256(pair.add(2).cast()));
            let second = _mm256_loadu_si256(pair.add(36).cast());
            let both = _mm512_inserti64x4::<1>(first, second);
            // Signed bytes plus 128.
            put(to, part, _mm512_xor_si512(both, _mm512_set1_epi8(-128)));
        }
    }
}

/// 32 bytes in both halves of a vector.
///
/// # Safety
/// There are 32 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn twice(at: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(at.cast()) })
}

/// Numbers for the 32 bytes of either half of a vector, as counts of 16-bit shifts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn counts(low: i16, high: i16) -> __m512i {
    _mm512_mask_set1_epi16(_mm512_set1_epi16(low), 0xffff_0000, high)
}

/// Bits that lie in planes: bit 2p of each byte for the first half of part p of four, bit 2p + 1 for the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn plane_bits(bits: __m512i, part: usize) -> __mmask64 {
    let first = [0x01, 0x04, 0x10, 0x40][part];
    let mask = _mm512_mask_set1_epi8(_mm512_set1_epi8(first), !0 << 32, first << 1);
    _mm512_test_epi8_mask(bits, mask)
}

/// The f16 at byte `AT` of each of two blocks of `BYTES` bytes, for the eight lanes of each.
///
/// # Safety
/// `from` points to them.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
unsafe fn two_halves<const BYTES: usize, const AT: usize>(from: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    let (first, second) = unsafe {
        let (first, second) = (from.add(AT), from.add(BYTES + AT));
        (first.cast::<u16>().read_unaligned(), second.cast::<u16>().read_unaligned())
    };
    let both = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(first) | i32::from(second) << 16));
    let lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(both))
}

/// A byte that is not there, in an order of bytes.
const NONE: u8 = 0x80;

/// The order of the four bytes of a word.
const fn k_bytes(low: u8, low_top: u8, high: u8, high_top: u8) -> i32 {
    i32::from_le_bytes([low, low_top, high, high_top])
}

/// Scales and biases of Q4_K and Q5_K: six bits each, by two blocks of `BYTES` bytes.
///
/// # Safety
/// `from` points to them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,f16c")]
unsafe fn k_scales<const BYTES: usize>(from: *const u8, to: &mut Plain) {
    // SAFETY: both blocks begin with 16 bytes of this.
    let (first, second) =
        unsafe { (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(BYTES).cast())) };
    let heads = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(first), 0xff00, second);
    // For each of the first four groups the bytes [s[i], -, s[i + 4], -], for each of the others [s[i + 4], s[i - 4],
    // s[i + 4], s[i]]; s begins at byte 4.
    let order = _mm512_broadcast_i32x8(_mm256_setr_epi32(
        k_bytes(4, NONE, 8, NONE),
        k_bytes(5, NONE, 9, NONE),
        k_bytes(6, NONE, 10, NONE),
        k_bytes(7, NONE, 11, NONE),
        k_bytes(12, 4, 12, 8),
        k_bytes(13, 5, 13, 9),
        k_bytes(14, 6, 14, 10),
        k_bytes(15, 7, 15, 11),
    ));
    let words = _mm512_shuffle_epi8(heads, order);
    let low_bits = _mm512_mask_set1_epi32(_mm512_set1_epi32(63), 0xf0f0, 15);
    let shifts = _mm512_mask_set1_epi32(_mm512_set1_epi32(16), 0xf0f0, 20);
    let top = _mm512_set1_epi32(0x30);
    let scale = _mm512_or_si512(
        _mm512_and_si512(words, low_bits),
        _mm512_and_si512(_mm512_srli_epi32::<10>(words), top),
    );
    let minimum = _mm512_or_si512(
        _mm512_and_si512(_mm512_srlv_epi32(words, shifts), low_bits),
        _mm512_and_si512(_mm512_srli_epi32::<26>(words), top),
    );
    // Both blocks begin with two f16.
    let floats =
        _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second));
    let of_d = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8);
    let of_d_min = _mm512_add_epi32(of_d, _mm512_set1_epi32(1));
    let (d, d_min) = (_mm512_permutexvar_ps(of_d, floats), _mm512_permutexvar_ps(of_d_min, floats));
    store(&mut to.scales[0], _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)));
    let bias = _mm512_mul_ps(d_min, _mm512_cvtepi32_ps(minimum));
    store(&mut to.biases[0], _mm512_xor_ps(bias, _mm512_set1_ps(-0.0)));
}

/// # Safety
/// `from` points to a chunk of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,f16c")]
unsafe fn q4_k(from: *const u8, to: &mut Plain) {
    let shifts = counts(0, 4);
    for part in 0..CHUNK / 64 {
        // SAFETY: a run of a block.
        let run = unsafe { twice(from.add(part / 4 * 144 + 16 + part % 4 * 32)) };
        let codes = _mm512_and_si512(_mm512_srlv_epi16(run, shifts), _mm512_set1_epi8(15));
        put(to, part, codes);
    }
    // SAFETY: two blocks.
    unsafe { k_scales::<144>(from, to) };
}

/// # Safety
/// `from` points to a chunk of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,f16c")]
unsafe fn q5_k(from: *const u8, to: &mut Plain) {
    let shifts = counts(0, 4);
    for block in 0..2 {
        // SAFETY: the bits and the runs of a block.
        unsafe {
            let from = from.add(block * 176);
            let high = twice(from.add(16));
            for part in 0..4 {
                let run = twice(from.add(48 + part * 32));
                let low = _mm512_and_si512(_mm512_srlv_epi16(run, shifts), _mm512_set1_epi8(15));
                let fifth = plane_bits(high, part);
                let codes = _mm512_mask_add_epi8(low, fifth, low, _mm512_set1_epi8(16));
                put(to, 4 * block + part, codes);
            }
        }
    }
    // SAFETY: two blocks.
    unsafe { k_scales::<176>(from, to) };
}

/// Sixteen bytes for each of two blocks as the numbers of the first halves of blocks of 32 and of the second halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn apart(first: __m512i, second: __m512i) -> [__m512i; 2] {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    [_mm512_permutex2var_epi32(first, even, second), _mm512_permutex2var_epi32(first, odd, second)]
}

/// # Safety
/// `from` points to a chunk of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,f16c")]
unsafe fn q6_k(from: *const u8, to: &mut Plain) {
    let (up, down) = (counts(4, 2), counts(0, 2));
    let (low_bits, top_bits) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
    for half in 0..4 {
        // SAFETY: half a block: 64 bytes of low bits, 32 of top ones.
        unsafe {
            let (block, n) = (from.add(half / 2 * 210), half % 2);
            let low = _mm512_loadu_si512(block.add(64 * n).cast());
            let top = twice(block.add(128 + 32 * n));
            let tops = [_mm512_sllv_epi16(top, up), _mm512_srlv_epi16(top, down)];
            let lows = [low, _mm512_srli_epi16::<4>(low)];
            for i in 0..2 {
                let top = _mm512_and_si512(tops[i], top_bits);
                // (low & low_bits) | top
                let codes = _mm512_ternarylogic_epi32::<0xec>(lows[i], top, low_bits);
                put(to, 2 * half + i, codes);
            }
        }
    }
    // SAFETY: both blocks have sixteen scales from byte 192 on, and an f16 after them.
    unsafe {
        let d = two_halves::<210, 208>(from);
        let first = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.add(192).cast()));
        let second = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.add(210 + 192).cast()));
        for (to, scale) in to.scales.iter_mut().zip(apart(first, second)) {
            store(to, _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)));
        }
    }
}

/// Two runs of 32 bytes with four planes of two bits.
///
/// # Safety
/// `from` points to them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn two_bits(from: *const u8) -> [__m512i; 4] {
    let mut codes = [_mm512_setzero_si512(); 4];
    for (part, codes) in codes.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let run = unsafe { twice(from.add(part / 2 * 32)) };
        let shifts = if part % 2 == 0 { counts(0, 2) } else { counts(4, 6) };
        *codes = _mm512_and_si512(_mm512_srlv_epi16(run, shifts), _mm512_set1_epi8(3));
    }
    codes
}

/// # Safety
/// `from` points to a chunk of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,f16c")]
unsafe fn q2_k(from: *const u8, to: &mut Plain) {
    // SAFETY: both blocks have sixteen bytes of scales, then runs, then two f16.
    unsafe {
        for block in 0..2 {
            for (part, codes) in two_bits(from.add(84 * block + 16)).into_iter().enumerate() {
                put(to, 4 * block + part, codes);
            }
        }
        let (d, d_min) = (two_halves::<84, 80>(from), two_halves::<84, 82>(from));
        let first = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
        let second = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.add(84).cast()));
        for (half, bytes) in apart(first, second).into_iter().enumerate() {
            let scale = _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
            store(&mut to.scales[half], _mm512_mul_ps(d, scale));
            let minimum = _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes));
            let bias = _mm512_mul_ps(d_min, minimum);
            store(&mut to.biases[half], _mm512_xor_ps(bias, _mm512_set1_ps(-0.0)));
        }
    }
}

/// # Safety
/// `from` points to a chunk of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,f16c")]
unsafe fn q3_k(from: *const u8, to: &mut Plain) {
    let mut scales = [_mm512_setzero_si512(); 2];
    // SAFETY: both blocks have 32 bytes of high bits, two runs, twelve bytes of scales and an f16.
    unsafe {
        for block in 0..2 {
            let from = from.add(110 * block);
            let high = twice(from);
            for (part, codes) in two_bits(from.add(32)).into_iter().enumerate() {
                let high = plane_bits(high, part);
                let codes = _mm512_mask_add_epi8(codes, high, codes, _mm512_set1_epi8(4));
                put(to, 4 * block + part, codes);
            }
            // Eight bytes of nibbles, four of two-bit fields: four planes for four scales each.
            let low = from.add(96).cast::<u64>().read_unaligned();
            let top = u64::from(from.add(104).cast::<u32>().read_unaligned());
            let mut scales_of_block = [0u64; 2];
            for (n, eight) in scales_of_block.iter_mut().enumerate() {
                let first = top >> (4 * n) & 0x0303_0303;
                let second = top >> (4 * n + 2) & 0x0303_0303;
                *eight = low >> (4 * n) & 0x0f0f_0f0f_0f0f_0f0f | (first | second << 32) << 4;
            }
            let bytes = _mm_loadu_si128(scales_of_block.as_ptr().cast());
            scales[block] = _mm512_cvtepu8_epi32(bytes);
        }
        let d = two_halves::<110, 108>(from);
        for (to, scale) in to.scales.iter_mut().zip(apart(scales[0], scales[1])) {
            let scale = _mm512_sub_epi32(scale, _mm512_set1_epi32(32));
            store(to, _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)));
        }
    }
}

/// # Safety
/// `from` points to a chunk of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,f16c")]
unsafe fn iq4_xs(from: *const u8, to: &mut Plain) {
    let shifts = _mm512_setr_epi64(0, 0, HIGH, HIGH, 0, 0, HIGH, HIGH);
    // SAFETY: both blocks have an f16, six bytes of scales and eight times sixteen of nibbles.
    unsafe {
        for part in 0..CHUNK / 64 {
            let pair = from.add(part / 4 * 136 + 8 + part % 4 * 32);
            let first = _mm512_broadcast_i32x4(_mm_loadu_si128(pair.cast()));
            let second = _mm_loadu_si128(pair.add(16).cast());
            let both = _mm512_mask_broadcast_i32x4(first, 0xff00, second);
            let nibbles = _mm512_and_si512(_mm512_srlv_epi16(both, shifts), _mm512_set1_epi8(15));
            put(to, part, looked_up(&IQ4_CODES, nibbles));
        }
        let high = i32::from(from.add(2).cast::<u16>().read_unaligned());
        let next_high = i32::from(from.add(138).cast::<u16>().read_unaligned());
        let high = _mm512_mask_set1_epi32(_mm512_set1_epi32(high), 0xff00, next_high);
        let low = from.add(4).cast::<i32>().read_unaligned();
        let next_low = from.add(140).cast::<i32>().read_unaligned();
        let low = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, next_low);
        let steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
        let low = _mm512_srlv_epi32(low, _mm512_slli_epi32::<2>(steps));
        let high = _mm512_srlv_epi32(high, _mm512_slli_epi32::<1>(steps));
        let low = _mm512_and_si512(low, _mm512_set1_epi32(15));
        let high = _mm512_and_si512(_mm512_slli_epi32::<4>(high), _mm512_set1_epi32(0x30));
        let scale = _mm512_sub_epi32(_mm512_or_si512(low, high), _mm512_set1_epi32(32));
        let d = two_halves::<136, 0>(from);
        store(&mut to.scales[0], _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)));
    }
}
