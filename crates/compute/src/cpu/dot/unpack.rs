//! Codes to bytes: the little-endian bit stream of MLX's affine formats, and the fp4 table.

use super::Codes;

/// What is taken off an fp4 code: codes are doubled E2M1 values plus this.
pub(crate) const FP4_ZERO: i32 = 12;

/// Doubled E2M1 values plus [`FP4_ZERO`], by nibble: 0, ½, 1, 1½, 2, 3, 4, 6 and their negatives.
pub(crate) const FP4_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Unpacks `out.len()` codes (a multiple of 8) from the start of `codes`, one to a byte, natural order.
#[inline(always)]
pub(crate) fn unpack_codes(packing: Codes, codes: &[u8], out: &mut [u8]) {
    match packing {
        Codes::Nibbles => {
            for (o, &byte) in out.chunks_exact_mut(2).zip(codes) {
                o[0] = byte & 15;
                o[1] = byte >> 4;
            }
        }
        Codes::Fp4 => {
            for (o, &byte) in out.chunks_exact_mut(2).zip(codes) {
                o[0] = FP4_CODES[(byte & 15) as usize];
                o[1] = FP4_CODES[(byte >> 4) as usize];
            }
        }
        Codes::Bytes => out.copy_from_slice(&codes[..out.len()]),
        Codes::Stream(2) => stream::<2>(codes, out),
        Codes::Stream(3) => stream::<3>(codes, out),
        Codes::Stream(5) => stream::<5>(codes, out),
        Codes::Stream(6) => stream::<6>(codes, out),
        Codes::Stream(bits) => unreachable!("{bits} bits"),
    }
}

/// Eight codes of `BITS` bits are exactly `BITS` bytes.
#[inline(always)]
fn stream<const BITS: usize>(codes: &[u8], out: &mut [u8]) {
    let mask = (1u64 << BITS) - 1;
    let (groups, _) = codes.as_chunks::<BITS>();
    for (o, group) in out.chunks_exact_mut(8).zip(groups) {
        let mut word = [0u8; 8];
        word[..BITS].copy_from_slice(group);
        let word = u64::from_le_bytes(word);
        for (i, code) in o.iter_mut().enumerate() {
            *code = (word >> (i * BITS) & mask) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(packing: Codes, bits: usize, bytes: &[u8]) {
        let mut out = vec![0; bytes.len() * 8 / bits];
        unpack_codes(packing, bytes, &mut out);
        for (i, &code) in out.iter().enumerate() {
            let mut want = 0;
            for b in 0..bits {
                let at = i * bits + b;
                want |= (bytes[at / 8] >> (at % 8) & 1) << b;
            }
            assert_eq!(code, want, "code {i} of {packing:?}");
        }
    }

    #[test]
    fn every_width_follows_the_bit_stream_rule() {
        let bytes: Vec<u8> = (0..240u32).map(|i| (i * 89 + 41) as u8).collect();
        for bits in [2, 3, 5, 6] {
            check(Codes::Stream(bits as u8), bits, &bytes);
        }
        check(Codes::Nibbles, 4, &bytes);
        check(Codes::Bytes, 8, &bytes);
    }

    #[test]
    fn an_ascending_word_unpacks_in_order() {
        let mut out = [0; 8];
        unpack_codes(Codes::Nibbles, &0x7654_3210u32.to_le_bytes(), &mut out);
        assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
