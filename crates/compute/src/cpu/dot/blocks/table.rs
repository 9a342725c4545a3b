//! Codes that are indices into a table of sixteen: expansion leaves nibbles, and a pass over the chunk looks them up.
//!
//! A pass of its own because loops over tables are not made into the byte shuffles that every instruction set has.

use format::BlockFormat;
use machine::cpu::Isa;

use crate::cpu::dot::unpack::FP4_CODES;
use crate::cpu::quantize::CHUNK;

/// The table of IQ4_NL and IQ4_XS plus 128.
pub(super) const IQ4_CODES: [u8; 16] =
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// The table of a format that has one.
pub(super) const fn table(format: BlockFormat) -> Option<&'static [u8; 16]> {
    match format {
        BlockFormat::Iq4Nl | BlockFormat::Iq4Xs => Some(&IQ4_CODES),
        BlockFormat::Mxfp4 | BlockFormat::Nvfp4 => Some(&FP4_CODES),
        _ => None,
    }
}

/// Replaces indices by what they stand for. (AVX-512 has few codes left to do here; it takes the way of AVX2.)
pub(super) fn look_up(isa: Isa, table: &[u8; 16], codes: &mut [u8; CHUNK]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` above Scalar is only handed out after run-time detection.
        Isa::Avx2 | Isa::Avx512 | Isa::Amx => unsafe { avx2(table, codes) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every 64-bit Arm has NEON.
        Isa::Neon => unsafe { neon(table, codes) },
        _ => {
            for code in codes {
                *code = table[usize::from(*code & 15)];
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(table: &[u8; 16], codes: &mut [u8; CHUNK]) {
    use std::arch::x86_64::*;
    // SAFETY: sixteen bytes.
    let table = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) };
    for codes in codes.as_chunks_mut::<32>().0 {
        // SAFETY: 32 bytes.
        unsafe {
            let found = _mm256_shuffle_epi8(table, _mm256_loadu_si256(codes.as_ptr().cast()));
            _mm256_storeu_si256(codes.as_mut_ptr().cast(), found);
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn neon(table: &[u8; 16], codes: &mut [u8; CHUNK]) {
    use std::arch::aarch64::*;
    // SAFETY: sixteen bytes.
    let table = unsafe { vld1q_u8(table.as_ptr()) };
    for codes in codes.as_chunks_mut::<16>().0 {
        // SAFETY: sixteen bytes.
        unsafe { vst1q_u8(codes.as_mut_ptr(), vqtbl1q_u8(table, vld1q_u8(codes.as_ptr()))) };
    }
}
