//! The second opinion: the same recurrence in the chunked (WY) form that GPU implementations use.
//!
//! Not for use: its bits depend on where a chunk begins, and as written it is slower here. 512 rows of 32 heads of
//! 128 × 128 on one thread of a busy Xeon with AVX-512 (2026-11): 17,000 to 20,000 tokens/s a layer against 33,000 of
//! [`delta_rule`](super::delta_rule), which also prefetches its rows; this form was not tuned further.

use super::DeltaRows;
use crate::cpu::lanes::{exp, versions};
use crate::memory::RowsMut;

/// Rows that [`delta_rule_chunked`] takes at once.
pub(super) const CHUNK: usize = 64;

/// Floats of scratch that [`delta_rule_chunked`] needs.
pub(super) fn chunk_scratch_floats(key_dim: usize, width: usize) -> usize {
    CHUNK * (2 * CHUNK + 3 * key_dim + width + 1)
}

versions! {
    /// The same recurrence over at most [`CHUNK`] rows as a few small matrix products (the WY form).
    ///
    /// Equal in exact arithmetic only: its bits depend on where a chunk begins. `log_alpha` replaces the decays,
    /// with the same stride.
    pub(super) fn delta_rule_chunked(
        state: &mut [f32],
        rows: &DeltaRows<'_>,
        log_alpha: &[f32],
        scratch: &mut [f32],
        out: &mut RowsMut<'_>,
    ) = delta_rule_chunked_body
}

#[inline(always)]
fn delta_rule_chunked_body(
    state: &mut [f32],
    rows: &DeltaRows<'_>,
    log_alpha: &[f32],
    scratch: &mut [f32],
    out: &mut RowsMut<'_>,
) {
    let (n, key_dim, width) = (out.count(), rows.k.width(), out.width());
    assert!(n <= CHUNK && state.len() == key_dim * width);
    let (kk, scratch) = scratch.split_at_mut(CHUNK * CHUNK); // strict lower (B K Kᵀ) ⊙ Γ
    let (qk, scratch) = scratch.split_at_mut(CHUNK * CHUNK); // lower (Q Kᵀ) ⊙ Γ
    let (k_columns, scratch) = scratch.split_at_mut(key_dim * CHUNK); // Kᵀ
    let (y, scratch) = scratch.split_at_mut(CHUNK * key_dim); // T (B K ⊙ e^G)
    let (q_decayed, scratch) = scratch.split_at_mut(CHUNK * key_dim); // Q ⊙ e^G
    let (u, scratch) = scratch.split_at_mut(CHUNK * width); // T (B V) - Y S
    let cumulative = &mut scratch[..CHUNK]; // G

    let mut g = 0.0;
    for i in 0..n {
        g += log_alpha[i * rows.gate_stride];
        cumulative[i] = g;
    }
    k_columns.fill(0.0);
    for i in 0..n {
        for (d, &k) in rows.k.row(i).iter().enumerate() {
            k_columns[d * CHUNK + i] = k;
        }
    }
    for i in 0..n {
        let decay = exp(cumulative[i]);
        for (y, &q) in q_decayed[i * key_dim..][..key_dim].iter_mut().zip(rows.q.row(i)) {
            *y = q * decay;
        }
        let beta = rows.beta[i * rows.gate_stride];
        for (y, &k) in y[i * key_dim..][..key_dim].iter_mut().zip(rows.k.row(i)) {
            *y = k * (beta * decay);
        }
        for (u, &v) in u[i * width..][..width].iter_mut().zip(rows.v.row(i)) {
            *u = v * beta;
        }
    }

    // K Kᵀ and Q Kᵀ, then the decays between rows.
    kk.fill(0.0);
    qk.fill(0.0);
    let mut i = 0;
    while i < n {
        let count = (n - i).min(4);
        let at = |j: usize| i + j.min(count - 1);
        let k: [&[f32]; 4] = std::array::from_fn(|j| rows.k.row(at(j)));
        let q: [&[f32]; 4] = std::array::from_fn(|j| rows.q.row(at(j)));
        let k = product_tile::<4>(k, k_columns, CHUNK, 0, [[0.0; 64]; 4], 1.0);
        let q = product_tile::<4>(q, k_columns, CHUNK, 0, [[0.0; 64]; 4], 1.0);
        for j in 0..count {
            let row = i + j;
            let beta = rows.beta[row * rows.gate_stride];
            for t in 0..=row {
                let decay = exp(cumulative[row] - cumulative[t]);
                qk[row * CHUNK + t] = q[j][t] * decay;
                if t < row {
                    kk[row * CHUNK + t] = k[j][t] * decay * beta;
                }
            }
        }
        i += count;
    }

    // Forward substitution of (I + A) X = [B V | B K ⊙ e^G].
    for i in 1..n {
        let a = &kk[i * CHUNK..][..i];
        substitute(&mut u[..(i + 1) * width], a, width);
        substitute(&mut y[..(i + 1) * key_dim], a, key_dim);
    }

    // U = W - Y S, O = (Q ⊙ e^G) S + (Q Kᵀ ⊙ Γ) U.
    assert!(width.is_multiple_of(64));
    let mut i = 0;
    while i < n {
        let count = (n - i).min(4);
        let at = |j: usize| i + j.min(count - 1);
        for c in (0..width).step_by(64) {
            let y: [&[f32]; 4] = std::array::from_fn(|j| &y[at(j) * key_dim..][..key_dim]);
            let start: [[f32; 64]; 4] = std::array::from_fn(|j| {
                u[at(j) * width + c..][..64].try_into().expect("64 columns")
            });
            let x = product_tile::<4>(y, state, width, c, start, -1.0);
            for j in 0..count {
                u[(i + j) * width + c..][..64].copy_from_slice(&x[j]);
            }
        }
        i += count;
    }
    let mut i = 0;
    while i < n {
        let count = (n - i).min(4);
        let at = |j: usize| i + j.min(count - 1);
        for c in (0..width).step_by(64) {
            let q: [&[f32]; 4] = std::array::from_fn(|j| &q_decayed[at(j) * key_dim..][..key_dim]);
            let o = product_tile::<4>(q, state, width, c, [[0.0; 64]; 4], 1.0);
            let p: [&[f32]; 4] = std::array::from_fn(|j| &qk[at(j) * CHUNK..][..i + count]);
            let o = product_tile::<4>(p, u, width, c, o, 1.0);
            for j in 0..count {
                out.row(i + j)[c..c + 64].copy_from_slice(&o[j]);
            }
        }
        i += count;
    }

    // S = e^G_n S + (K ⊙ e^(G_n - G))ᵀ U.
    let last = cumulative[n - 1];
    let decay = exp(last);
    let mut factors = [0.0; CHUNK];
    for i in 0..n {
        factors[i] = exp(last - cumulative[i]);
    }
    for row in k_columns.chunks_exact_mut(CHUNK) {
        for i in 0..CHUNK {
            row[i] *= factors[i];
        }
    }
    let mut i = 0;
    while i < key_dim {
        let count = (key_dim - i).min(4);
        let at = |j: usize| i + j.min(count - 1);
        for c in (0..width).step_by(64) {
            let k: [&[f32]; 4] = std::array::from_fn(|j| &k_columns[at(j) * CHUNK..][..n]);
            let start: [[f32; 64]; 4] = std::array::from_fn(|j| {
                let s: [f32; 64] = state[at(j) * width + c..][..64].try_into().expect("64 columns");
                s.map(|s| s * decay)
            });
            let s = product_tile::<4>(k, u, width, c, start, 1.0);
            for j in 0..count {
                state[(i + j) * width + c..][..64].copy_from_slice(&s[j]);
            }
        }
        i += count;
    }
}

/// `acc + sign * a b` for `N` rows of `a` and 64 columns of `b` from `c` on.
#[inline(always)]
fn product_tile<const N: usize>(
    a: [&[f32]; N],
    b: &[f32],
    stride: usize,
    c: usize,
    start: [[f32; 64]; N],
    sign: f32,
) -> [[f32; 64]; N] {
    let mut acc = start;
    let depth = a[0].len();
    let a = a.map(|a| &a[..depth]);
    for (i, b) in b.chunks_exact(stride).take(depth).enumerate() {
        let b = &b[c..c + 64];
        for n in 0..N {
            let a = a[n][i] * sign;
            for j in 0..64 {
                acc[n][j] = a.mul_add(b[j], acc[n][j]);
            }
        }
    }
    acc
}

/// The last row minus the rows before it weighted by `a`.
#[inline(always)]
fn substitute(x: &mut [f32], a: &[f32], width: usize) {
    let (before, row) = x.split_at_mut(a.len() * width);
    for (row, c) in row.chunks_mut(64).zip((0..width).step_by(64)) {
        if let Ok(row) = <&mut [f32; 64]>::try_from(&mut *row) {
            let mut acc = *row;
            for (&a, x) in a.iter().zip(before.chunks_exact(width)) {
                let x = &x[c..c + 64];
                for j in 0..64 {
                    acc[j] = (-a).mul_add(x[j], acc[j]);
                }
            }
            *row = acc;
        } else {
            for (&a, x) in a.iter().zip(before.chunks_exact(width)) {
                for (r, &x) in row.iter_mut().zip(&x[c..]) {
                    *r = (-a).mul_add(x, *r);
                }
            }
        }
    }
}
