//! The register tiles of attention: a few queries times a panel of K or V, while the next panel is fetched.
//!
//! Each element is summed in order of the inner axis, whatever the tile.

use machine::cpu::Isa;

use super::TILE_FLOATS;
use crate::cpu::lanes::{LANES, versions};
use crate::cpu::prefetch::{self, LINE_BYTES};
use crate::memory::{BLOCK, PANEL};

/// Rows of 64: keys of one dimension, or columns of one key's V panel.
pub(super) type Row = [f32; 64];
const _: () = assert!(BLOCK == 64 && PANEL == 64);

/// `out[n] += Σ_i a[n][i] b[i]`, in order of i.
#[inline(always)]
pub(super) fn multiply<const N: usize>(
    isa: Isa,
    a: [&[f32]; N],
    b: &[Row],
    out: &mut [Row; N],
    ahead: &[u8],
) {
    // How much fits in registers depends on the instruction set; each element's arithmetic does not.
    let wide = matches!(isa, Isa::Avx512 | Isa::Amx);
    if let (&[a0, a1, a2, a3], Some(out)) = (&a[..], out.first_chunk_mut()) {
        if wide {
            multiply_4x64(isa, [a0, a1, a2, a3], b, out, ahead);
        } else {
            multiply_4x16(isa, [a0, a1, a2, a3], b, out, ahead);
        }
    } else {
        for (&a, out) in a.iter().zip(out) {
            multiply_1x64(isa, [a], b, std::array::from_mut(out), ahead);
        }
    }
}

// Each register tile is a function of its own: inside a larger one its sums end up in memory.
versions! {
    fn multiply_4x64(a: [&[f32]; 4], b: &[Row], out: &mut [Row; 4], ahead: &[u8])
        = multiply_body::<4, 64>
}
versions! {
    fn multiply_4x16(a: [&[f32]; 4], b: &[Row], out: &mut [Row; 4], ahead: &[u8])
        = multiply_body::<4, 16>
}
versions! {
    fn multiply_1x64(a: [&[f32]; 1], b: &[Row], out: &mut [Row; 1], ahead: &[u8])
        = multiply_body::<1, 64>
}

#[inline(always)]
fn multiply_body<const N: usize, const C: usize>(
    a: [&[f32]; N],
    b: &[Row],
    out: &mut [Row; N],
    ahead: &[u8],
) {
    let a = a.map(|a| &a[..b.len()]);
    for c in (0..64).step_by(C) {
        let mut acc = [[0.0; C]; N];
        for n in 0..N {
            acc[n].copy_from_slice(&out[n][c..c + C]);
        }
        for (i, b) in b.iter().enumerate() {
            let b = &b[c..c + C];
            if c == 0 {
                prefetch(ahead, i);
            }
            for n in 0..N {
                let a = a[n][i];
                for j in 0..C {
                    acc[n][j] = a.mul_add(b[j], acc[n][j]);
                }
            }
        }
        for n in 0..N {
            out[n][c..c + C].copy_from_slice(&acc[n]);
        }
    }
}

versions! {
    /// [`multiply`] where the rows of `b` are narrower: 16, 32 or 48, at the end of an odd head.
    pub(super) fn multiply_narrow(a: &[&[f32]], b: &[f32], width: usize, out: &mut [Row]) = multiply_narrow_body
}

#[inline(always)]
fn multiply_narrow_body(a: &[&[f32]], b: &[f32], width: usize, out: &mut [Row]) {
    for (a, out) in a.iter().zip(out) {
        for c in (0..width).step_by(LANES) {
            let mut acc = [0.0; LANES];
            acc.copy_from_slice(&out[c..c + LANES]);
            for (&a, b) in a.iter().zip(b.chunks_exact(width)) {
                let b = &b[c..c + LANES];
                for j in 0..LANES {
                    acc[j] = a.mul_add(b[j], acc[j]);
                }
            }
            out[c..c + LANES].copy_from_slice(&acc);
        }
    }
}

/// The part of what comes next in memory that group number `group` asks for: a cache line a step.
#[inline(always)]
pub(super) fn lines(ahead: &[u8], group: usize) -> &[u8] {
    const PART: usize = PANEL * LINE_BYTES;
    let panel = ahead.len().min(TILE_FLOATS * size_of::<f32>());
    let start = (group * PART).min(panel);
    &ahead[start..(start + PART).min(panel)]
}

/// Asks for cache line `index` of `ahead`, if there is one, while the arithmetic goes on.
#[inline(always)]
pub(super) fn prefetch(ahead: &[u8], index: usize) {
    if index * LINE_BYTES < ahead.len() {
        prefetch::line(ahead.as_ptr().wrapping_add(index * LINE_BYTES));
    }
}
