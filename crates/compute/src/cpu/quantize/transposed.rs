//! The two bytes of quantized values in the order of [`Activations::paired`](super::Activations), transposed.

use machine::cpu::Isa;

use super::{BLOCK, CHUNK, split};

/// Splits whole chunks of values. What is past the part of 128 columns that the row ends in keeps any bytes: it has no scale.
pub(super) fn split_transposed(isa: Isa, cols: usize, values: &[i16], out: &mut [i8]) {
    assert!(values.len().is_multiple_of(CHUNK) && out.len() == 2 * values.len());
    #[cfg(target_arch = "x86_64")]
    if matches!(isa, Isa::Avx512 | Isa::Amx) {
        // SAFETY: the instruction set was detected before this `Isa` was handed out.
        unsafe { avx512::split_transposed(cols, values, out) };
        return;
    }
    let _ = (isa, cols);
    for (i, &value) in values.iter().enumerate() {
        let (block, inside) = (i % CHUNK / BLOCK, i % BLOCK);
        let at = i / CHUNK * 2 * CHUNK + inside / 8 * 256 + inside % 2 * 64;
        let at = at + 4 * block + inside % 8 / 2;
        (out[at], out[at + 128]) = split(value);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use crate::cpu::quantize::{BLOCK, CHUNK};

    /// Parts of a chunk, four blocks each.
    const PARTS: usize = 4;

    /// # Safety
    /// The machine must have AVX-512 F and BW; there are whole chunks, and twice as many bytes.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn split_transposed(cols: usize, values: &[i16], out: &mut [i8]) {
        let high = _mm512_set1_epi16(0xff00_u16 as i16);
        let half = _mm512_set1_epi16(128);
        // Of eight values: the high bytes of the even ones, of the odd ones, then the low bytes likewise.
        let apart = _mm512_broadcast_i32x4(_mm_setr_epi8(
            1, 5, 9, 13, 3, 7, 11, 15, 0, 4, 8, 12, 2, 6, 10, 14,
        ));
        let mut left = cols.div_ceil(CHUNK / PARTS);
        for (values, out) in values.chunks_exact(CHUNK).zip(out.chunks_exact_mut(2 * CHUNK)) {
            let parts = left.min(PARTS);
            left -= parts;
            for part in 0..parts {
                let mut blocks = [_mm512_setzero_si512(); 4];
                for block in 0..4 {
                    // SAFETY: a block of the chunk.
                    let x = unsafe {
                        _mm512_loadu_si512(values.as_ptr().add((part * 4 + block) * BLOCK).cast())
                    };
                    // The low byte is signed, so the high one is that of the value rounded: high where the mask is set.
                    let both =
                        _mm512_ternarylogic_epi32::<0xca>(high, _mm512_add_epi16(x, half), x);
                    blocks[block] = _mm512_shuffle_epi8(both, apart);
                }
                // Lanes of 128 bits are eighths of a block, their numbers are planes: four of one plane go together.
                let [a, b, c, d] = blocks;
                let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
                let planes = [_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd)];
                let (ab, cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
                let planes = [
                    planes[0],
                    planes[1],
                    _mm512_unpacklo_epi64(ab, cd),
                    _mm512_unpackhi_epi64(ab, cd),
                ];
                for (plane, x) in planes.into_iter().enumerate() {
                    let eighths = [
                        _mm512_castsi512_si128(x),
                        _mm512_extracti32x4_epi32::<1>(x),
                        _mm512_extracti32x4_epi32::<2>(x),
                        _mm512_extracti32x4_epi32::<3>(x),
                    ];
                    for (k, eighth) in eighths.into_iter().enumerate() {
                        // SAFETY: four vectors of four planes of four parts are the chunk's bytes.
                        unsafe {
                            let at = out.as_mut_ptr().add(256 * k + 64 * plane + 16 * part);
                            _mm_storeu_si128(at.cast(), eighth);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_same_bytes() {
        let values: Vec<i16> =
            (0..2 * CHUNK as i32).map(|i| (i * 7919 % 65_025 - 32_512) as i16).collect();
        let mut plain = vec![0; 2 * values.len()];
        split_transposed(Isa::Scalar, values.len(), &values, &mut plain);
        let mut fast = vec![0; 2 * values.len()];
        split_transposed(machine::cpu::isa(), values.len(), &values, &mut fast);
        assert_eq!(plain, fast);
    }
}
