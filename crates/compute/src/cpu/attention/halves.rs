//! Few queries times keys or values in f16, widened in registers: where one token is decoded, writing a page out as f32
//! takes longer than multiplying it. The arithmetic is that of [`multiply`](super::multiply()), in the same order.

use std::arch::x86_64::*;

use machine::cpu::Isa;

use super::TOGETHER;
use super::multiply::{Row, prefetch};

/// Sixteen floats at a time.
const VECTORS: usize = 4;

/// A row of `b` that is still f16.
pub(super) type HalfRow = [u16; 64];

/// Whether so many queries are few.
pub(super) fn are_few(isa: Isa, queries: usize) -> bool {
    queries <= TOGETHER && matches!(isa, Isa::Avx512 | Isa::Amx)
}

/// `out[n] += Σ_i a[n * stride + i] b[i]`, in order of i, over the first `columns` of `b` at least. Each step asks for two
/// cache lines of `ahead`.
pub(super) fn multiply(
    a: &[f32],
    stride: usize,
    b: &[HalfRow],
    columns: usize,
    out: &mut [Row],
    ahead: &[u8],
) {
    assert!(b.is_empty() || a.len() >= (out.len() - 1) * stride + b.len());
    // A cache line has half a row.
    let whole = columns > 32;
    // SAFETY: `are_few` has seen the instruction set, and each of the rows of `a` is as long as `b`.
    unsafe {
        match (out, whole) {
            ([a0], true) => rows::<1, 4>(a, stride, b, [a0], ahead),
            ([a0], false) => rows::<1, 2>(a, stride, b, [a0], ahead),
            ([a0, a1], true) => rows::<2, 4>(a, stride, b, [a0, a1], ahead),
            ([a0, a1], false) => rows::<2, 2>(a, stride, b, [a0, a1], ahead),
            ([a0, a1, a2], true) => rows::<3, 4>(a, stride, b, [a0, a1, a2], ahead),
            ([a0, a1, a2], false) => rows::<3, 2>(a, stride, b, [a0, a1, a2], ahead),
            ([a0, a1, a2, a3], true) => rows::<4, 4>(a, stride, b, [a0, a1, a2, a3], ahead),
            ([a0, a1, a2, a3], false) => rows::<4, 2>(a, stride, b, [a0, a1, a2, a3], ahead),
            _ => unreachable!("few queries"),
        }
    }
}

/// # Safety
/// The machine has AVX-512; `a` has `N` rows as long as `b`.
#[target_feature(enable = "avx512f")]
unsafe fn rows<const N: usize, const V: usize>(
    a: &[f32],
    stride: usize,
    b: &[HalfRow],
    out: [&mut Row; N],
    ahead: &[u8],
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; N];
    // SAFETY: a row has four vectors; the rest is the caller's promise.
    unsafe {
        for n in 0..N {
            for v in 0..V {
                sums[n][v] = _mm512_loadu_ps(out[n].as_ptr().add(16 * v));
            }
        }
        for (i, row) in b.iter().enumerate() {
            prefetch(ahead, 2 * i);
            prefetch(ahead, 2 * i + 1);
            let mut wide = [_mm512_setzero_ps(); VECTORS];
            for v in 0..V {
                let bits = _mm256_loadu_si256(row.as_ptr().add(16 * v).cast());
                wide[v] = _mm512_cvtph_ps(bits);
            }
            for n in 0..N {
                let factor = _mm512_set1_ps(*a.get_unchecked(n * stride + i));
                for v in 0..V {
                    sums[n][v] = _mm512_fmadd_ps(factor, wide[v], sums[n][v]);
                }
            }
        }
        for (sums, out) in sums.iter().zip(out) {
            for v in 0..V {
                _mm512_storeu_ps(out.as_mut_ptr().add(16 * v), sums[v]);
            }
        }
    }
}
