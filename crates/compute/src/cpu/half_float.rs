//! Half-precision storage: slices of f16 bits to and from f32.
//!
//! Every conversion is exact or rounds to nearest even, so all instruction sets give the same bits
//! (a NaN stays a NaN, made quiet). Slices of equal length; anything else is our bug.

use half::f16;
use machine::cpu::Isa;

/// One f16 value, without asking the processor what it can do.
#[inline(always)]
fn f16_value_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32_const()
}

/// One f32 value rounded to f16 bits, without asking the processor what it can do.
#[inline(always)]
fn f32_value_to_f16(value: f32) -> u16 {
    f16::from_f32_const(value).to_bits()
}

/// f16 bits to f32.
pub(crate) fn f16_to_f32(isa: Isa, src: &[u16], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len());
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` above Scalar is only handed out after run-time detection.
        Isa::Avx512 | Isa::Amx => unsafe { x86::f16_to_f32_avx512(src, dst) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::f16_to_f32_avx2(src, dst) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => {
            use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
            src.reinterpret_cast::<f16>().convert_to_f32_slice(dst);
        }
        _ => {
            for (y, &x) in dst.iter_mut().zip(src) {
                *y = f16_value_to_f32(x);
            }
        }
    }
}

/// f32 to f16 bits; what is too large becomes infinite.
pub(crate) fn f32_to_f16(isa: Isa, src: &[f32], dst: &mut [u16]) {
    assert_eq!(src.len(), dst.len());
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` above Scalar is only handed out after run-time detection.
        Isa::Avx512 | Isa::Amx => unsafe { x86::f32_to_f16_avx512(src, dst) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::f32_to_f16_avx2(src, dst) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => {
            use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
            dst.reinterpret_cast_mut::<f16>().convert_from_f32_slice(src);
        }
        _ => {
            for (y, &x) in dst.iter_mut().zip(src) {
                *y = f32_value_to_f16(x);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

    #[target_feature(enable = "avx512f")]
    pub(super) fn f16_to_f32_avx512(src: &[u16], dst: &mut [f32]) {
        let (x_chunks, x_tail) = src.as_chunks::<16>();
        let (y_chunks, y_tail) = dst.as_chunks_mut::<16>();
        for (x, y) in x_chunks.iter().zip(y_chunks) {
            // SAFETY: both arrays are 16 elements long and the accesses are unaligned.
            unsafe {
                let bits = _mm256_loadu_si256(x.as_ptr().cast());
                _mm512_storeu_ps(y.as_mut_ptr(), _mm512_cvtph_ps(bits));
            }
        }
        for (y, &x) in y_tail.iter_mut().zip(x_tail) {
            *y = super::f16_value_to_f32(x);
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn f16_to_f32_avx2(src: &[u16], dst: &mut [f32]) {
        let (x_chunks, x_tail) = src.as_chunks::<8>();
        let (y_chunks, y_tail) = dst.as_chunks_mut::<8>();
        for (x, y) in x_chunks.iter().zip(y_chunks) {
            // SAFETY: both arrays are 8 elements long and the accesses are unaligned.
            unsafe {
                let bits = _mm_loadu_si128(x.as_ptr().cast());
                _mm256_storeu_ps(y.as_mut_ptr(), _mm256_cvtph_ps(bits));
            }
        }
        for (y, &x) in y_tail.iter_mut().zip(x_tail) {
            *y = super::f16_value_to_f32(x);
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn f32_to_f16_avx512(src: &[f32], dst: &mut [u16]) {
        let (x_chunks, x_tail) = src.as_chunks::<16>();
        let (y_chunks, y_tail) = dst.as_chunks_mut::<16>();
        for (x, y) in x_chunks.iter().zip(y_chunks) {
            // SAFETY: both arrays are 16 elements long and the accesses are unaligned.
            unsafe {
                let bits = _mm512_cvtps_ph::<NEAREST>(_mm512_loadu_ps(x.as_ptr()));
                _mm256_storeu_si256(y.as_mut_ptr().cast(), bits);
            }
        }
        for (y, &x) in y_tail.iter_mut().zip(x_tail) {
            *y = super::f32_value_to_f16(x);
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn f32_to_f16_avx2(src: &[f32], dst: &mut [u16]) {
        let (x_chunks, x_tail) = src.as_chunks::<8>();
        let (y_chunks, y_tail) = dst.as_chunks_mut::<8>();
        for (x, y) in x_chunks.iter().zip(y_chunks) {
            // SAFETY: both arrays are 8 elements long and the accesses are unaligned.
            unsafe {
                let bits = _mm256_cvtps_ph::<NEAREST>(_mm256_loadu_ps(x.as_ptr()));
                _mm_storeu_si128(y.as_mut_ptr().cast(), bits);
            }
        }
        for (y, &x) in y_tail.iter_mut().zip(x_tail) {
            *y = super::f32_value_to_f16(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::activation::testing::{Random, isas};
    use super::*;

    /// f16 bits to f64 from the definition: sign, exponent, mantissa.
    fn f16_reference(bits: u16) -> f64 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        match exponent {
            0 => sign * mantissa * 2f64.powi(-24),
            31 if mantissa == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            _ => sign * (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
        }
    }

    #[test]
    fn every_f16_converts_exactly_and_back() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        for isa in isas() {
            // An odd offset exercises unaligned starts and tails.
            for src in [&all[..], &all[3..65_530]] {
                let mut wide = vec![0.0; src.len()];
                f16_to_f32(isa, src, &mut wide);
                let mut back = vec![0; src.len()];
                f32_to_f16(isa, &wide, &mut back);
                for ((&bits, &value), &again) in src.iter().zip(&wide).zip(&back) {
                    let want = f16_reference(bits);
                    assert_eq!(value.to_bits(), f16_value_to_f32(bits).to_bits(), "{isa} {bits:x}");
                    if want.is_nan() {
                        assert!(value.is_nan());
                        assert_eq!(again, bits | 0x200);
                    } else {
                        assert_eq!(f64::from(value).to_bits(), want.to_bits(), "{isa} {bits:x}");
                        assert_eq!(again, bits);
                    }
                }
            }
        }
    }

    #[test]
    fn f16_rounds_to_nearest_even() {
        let mut random = Random::new(1);
        let mut src: Vec<f32> = (0..100_003).map(|_| f32::from_bits(random.bits())).collect();
        // Values near f16's range and exact ties between neighbours.
        src.extend((0..100_000).map(|_| random.normal() * 100.0));
        src.extend(
            (0..0x7bffu16)
                .map(|bits| ((f16_reference(bits) + f16_reference(bits + 1)) / 2.0) as f32),
        );
        let mut want = Vec::new();
        for isa in isas() {
            let mut dst = vec![0; src.len()];
            f32_to_f16(isa, &src, &mut dst);
            for (&x, &bits) in src.iter().zip(&dst) {
                assert_eq!(bits, f32_value_to_f16(x), "{isa} {x:e}");
                if x.abs() < 65504.0 {
                    let error = (f16_reference(bits) - f64::from(x)).abs();
                    for other in [bits.wrapping_sub(1), bits.wrapping_add(1)] {
                        let other_error = (f16_reference(other) - f64::from(x)).abs();
                        let even = other_error == error && bits & 1 == 0;
                        assert!(
                            other_error > error || other_error.is_nan() || even,
                            "{isa} {x:e} {bits:x}"
                        );
                    }
                }
            }
            if want.is_empty() {
                want.clone_from(&dst);
            }
            assert_eq!(want, dst);
        }
    }
}
