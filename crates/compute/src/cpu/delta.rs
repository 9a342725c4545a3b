//! The gated delta rule: the recurrence of a linear-attention layer, one value head at a time.
//!
//! The state of a head is `S [key_dim][value_dim]`, stored in panels of [`PANEL`] columns, each panel
//! `[key_dim][panel width]`, so that a panel (32 KiB at key_dim 128) stays in the first-level cache over
//! all rows of a prefill chunk. Columns are independent: a task takes one panel of one head. Per row:
//! `S = α S; m = Sᵀ k; d = β (v - m); S = S + k dᵀ; o = Sᵀ q`, every sum in order of the key dimension.
//!
//! Rows run strictly one after the other, in prefill as in decode, so that a chunk's cut never shows in the
//! result. The chunked form is the second opinion that the tests compare with.

use machine::cpu::Isa;

use super::activation::softplus;
use super::lanes::{exp, sigmoid, versions};
#[cfg(doc)]
use crate::memory::PANEL;
use crate::memory::{Rows, RowsMut};

/// How many rows ahead the inputs are asked for.
const PREFETCH_ROWS: usize = 2;

versions! {
    /// The gates of each value head: `alpha = e^(decay * softplus(a + dt_bias))`, `beta = sigmoid(b)`.
    ///
    /// `decay` is `-e^A_log`, computed at load. Every slice is one row of value heads.
    pub(crate) fn delta_gates(
        a: &[f32],
        b: &[f32],
        decay: &[f32],
        dt_bias: &[f32],
        alpha: &mut [f32],
        beta: &mut [f32],
    ) = delta_gates_body
}

#[inline(always)]
fn delta_gates_body(
    a: &[f32],
    b: &[f32],
    decay: &[f32],
    dt_bias: &[f32],
    alpha: &mut [f32],
    beta: &mut [f32],
) {
    let n = alpha.len();
    let (a, b, decay, dt_bias) = (&a[..n], &b[..n], &decay[..n], &dt_bias[..n]);
    for h in 0..n {
        alpha[h] = exp(decay[h] * softplus(a[h] + dt_bias[h]));
    }
    for (beta, &b) in beta[..n].iter_mut().zip(b) {
        *beta = sigmoid(b);
    }
}

/// A run of rows of one sequence, for one panel of one value head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaRows<'a> {
    /// Queries, `[rows, key_dim]`, normalised and scaled.
    pub(crate) q: Rows<'a>,
    /// Keys, `[rows, key_dim]`, normalised.
    pub(crate) k: Rows<'a>,
    /// The panel's columns of the values, `[rows, panel width]`.
    pub(crate) v: Rows<'a>,
    /// Decay of each row, at `row * gate_stride`.
    pub(crate) alpha: &'a [f32],
    /// Write strength of each row, at `row * gate_stride`.
    pub(crate) beta: &'a [f32],
    /// From one row's gate to the next.
    pub(crate) gate_stride: usize,
}

/// Runs every row of `out` through one panel of the state.
///
/// `state` is `[key_dim][panel width]`, overwritten with the state after the last row; the state before the first
/// row is `from`, or in `state` itself when that is `None`.
pub(crate) fn delta_rule(
    isa: Isa,
    from: Option<&[f32]>,
    state: &mut [f32],
    rows: &DeltaRows<'_>,
    out: &mut RowsMut<'_>,
) {
    delta_rule_kernel(isa, isa, from, state, rows, out);
}

versions! {
    fn delta_rule_kernel(
        isa_inside: Isa,
        from: Option<&[f32]>,
        state: &mut [f32],
        rows: &DeltaRows<'_>,
        out: &mut RowsMut<'_>,
    ) = delta_rule_body
}

#[inline(always)]
fn delta_rule_body(
    isa: Isa,
    from: Option<&[f32]>,
    state: &mut [f32],
    rows: &DeltaRows<'_>,
    out: &mut RowsMut<'_>,
) {
    let (key_dim, width) = (rows.k.width(), out.width());
    assert!(state.len() == key_dim * width && from.is_none_or(|from| from.len() == state.len()));
    assert!(rows.q.width() == key_dim && rows.v.width() == width);
    if out.count() == 0 {
        if let Some(from) = from {
            state.copy_from_slice(from);
        }
        return;
    }
    // How many columns fit in registers depends on the instruction set; each column's arithmetic does not.
    let wide = matches!(isa, Isa::Avx512 | Isa::Amx);
    let mut column = 0;
    while wide && width - column >= 64 {
        columns::<64>(from, state, rows, column, out);
        column += 64;
    }
    while width - column >= 32 {
        columns::<32>(from, state, rows, column, out);
        column += 32;
    }
    while width - column >= 8 {
        columns::<8>(from, state, rows, column, out);
        column += 8;
    }
    while column < width {
        columns::<1>(from, state, rows, column, out);
        column += 1;
    }
}

/// All rows over `C` columns from `column` on.
#[inline(always)]
fn columns<const C: usize>(
    from: Option<&[f32]>,
    state: &mut [f32],
    rows: &DeltaRows<'_>,
    column: usize,
    out: &mut RowsMut<'_>,
) {
    let width = out.width();
    let (first_alpha, first_k) = (rows.alpha[0], rows.k.row(0));
    let mut m = match from {
        Some(from) => begin::<C>(from, state, width, column, first_alpha, first_k),
        None => begin_in_place::<C>(state, width, column, first_alpha, first_k),
    };
    let last = out.count() - 1;
    for r in 0..=last {
        let beta = rows.beta[r * rows.gate_stride];
        let v: &[f32; C] = rows.v.row(r)[column..column + C].try_into().expect("C columns");
        let mut d = [0.0; C];
        for j in 0..C {
            d[j] = beta * (v[j] - m[j]);
        }
        let (q, k) = (rows.q.row(r), rows.k.row(r));
        let ahead = r + PREFETCH_ROWS;
        if ahead <= last {
            prefetch(rows.q.row(ahead));
            prefetch(rows.k.row(ahead));
            prefetch(&rows.v.row(ahead)[column..column + C]);
            prefetch(&out.row(ahead)[column..column + C]);
        }
        let o;
        if r < last {
            let next_alpha = rows.alpha[(r + 1) * rows.gate_stride];
            let next_k = rows.k.row(r + 1);
            (o, m) = update_and_begin::<C>(state, width, column, k, q, &d, next_alpha, next_k);
        } else {
            o = update::<C>(state, width, column, k, q, &d);
        }
        out.row(r)[column..column + C].copy_from_slice(&o);
    }
}

/// Asks for the cache lines of `x`. Rows of a wide matrix are too far apart for the hardware to guess.
#[inline(always)]
fn prefetch(x: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in x.chunks(16) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect but speed, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}

/// The first half of a row: `S = α from`, returns `Sᵀ k`.
#[inline(always)]
fn begin<const C: usize>(
    from: &[f32],
    state: &mut [f32],
    width: usize,
    column: usize,
    alpha: f32,
    k: &[f32],
) -> [f32; C] {
    let mut m = [0.0; C];
    let pairs = from.chunks_exact(width).zip(state.chunks_exact_mut(width));
    for ((from, s), &k) in pairs.zip(k) {
        let (from, s) = (&from[column..column + C], &mut s[column..column + C]);
        for j in 0..C {
            s[j] = from[j] * alpha;
            m[j] = s[j].mul_add(k, m[j]);
        }
    }
    m
}

#[inline(always)]
fn begin_in_place<const C: usize>(
    state: &mut [f32],
    width: usize,
    column: usize,
    alpha: f32,
    k: &[f32],
) -> [f32; C] {
    let mut m = [0.0; C];
    for (s, &k) in state.chunks_exact_mut(width).zip(k) {
        let s = &mut s[column..column + C];
        for j in 0..C {
            s[j] *= alpha;
            m[j] = s[j].mul_add(k, m[j]);
        }
    }
    m
}

/// The second half of a row: `S = S + k dᵀ`, returns `Sᵀ q`.
#[inline(always)]
fn update<const C: usize>(
    state: &mut [f32],
    width: usize,
    column: usize,
    k: &[f32],
    q: &[f32],
    d: &[f32; C],
) -> [f32; C] {
    let mut o = [0.0; C];
    for ((s, &k), &q) in state.chunks_exact_mut(width).zip(k).zip(q) {
        let s = &mut s[column..column + C];
        for j in 0..C {
            s[j] = d[j].mul_add(k, s[j]);
            o[j] = s[j].mul_add(q, o[j]);
        }
    }
    o
}

/// The second half of one row and the first half of the next in a single pass over the state.
#[inline(always)]
fn update_and_begin<const C: usize>(
    state: &mut [f32],
    width: usize,
    column: usize,
    k: &[f32],
    q: &[f32],
    d: &[f32; C],
    next_alpha: f32,
    next_k: &[f32],
) -> ([f32; C], [f32; C]) {
    let (mut o, mut m) = ([0.0; C], [0.0; C]);
    let d = *d;
    for (((s, &k), &q), &next_k) in state.chunks_exact_mut(width).zip(k).zip(q).zip(next_k) {
        let s = &mut s[column..column + C];
        for j in 0..C {
            let x = d[j].mul_add(k, s[j]);
            o[j] = x.mul_add(q, o[j]);
            let x = x * next_alpha;
            m[j] = x.mul_add(next_k, m[j]);
            s[j] = x;
        }
    }
    (o, m)
}

/// The second opinion: the same recurrence in the chunked (WY) form that GPU implementations use.
///
/// Not for use: its bits depend on where a chunk begins, and as written it is slower here. 512 rows of 32 heads of
/// 128 × 128 on one thread of a busy Xeon with AVX-512 (2026-11): 17,000 to 20,000 tokens/s a layer against 33,000 of
/// [`delta_rule`](super::delta_rule), which also prefetches its rows; this form was not tuned further.
#[cfg(test)]
pub(crate) mod chunked {
    use super::super::lanes::{exp, versions};
    use super::DeltaRows;
    use crate::memory::RowsMut;

    /// Rows that [`delta_rule_chunked`] takes at once.
    pub(crate) const CHUNK: usize = 64;

    /// Floats of scratch that [`delta_rule_chunked`] needs.
    pub(crate) fn chunk_scratch_floats(key_dim: usize, width: usize) -> usize {
        CHUNK * (2 * CHUNK + 3 * key_dim + width + 1)
    }

    versions! {
        /// The same recurrence over at most [`CHUNK`] rows as a few small matrix products (the WY form).
        ///
        /// Equal in exact arithmetic only: its bits depend on where a chunk begins. `log_alpha` replaces the decays,
        /// with the same stride.
        pub(crate) fn delta_rule_chunked(
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
                let q: [&[f32]; 4] =
                    std::array::from_fn(|j| &q_decayed[at(j) * key_dim..][..key_dim]);
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
                    let s: [f32; 64] =
                        state[at(j) * width + c..][..64].try_into().expect("64 columns");
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
}

#[cfg(test)]
mod tests {
    use super::super::activation::testing::{Random, assert_close, assert_same_bits, isas};
    use super::chunked::{CHUNK, chunk_scratch_floats, delta_rule_chunked};
    use super::*;

    /// Inputs of one value head as a model makes them: unit keys, decays in (0, 1].
    struct Head {
        key_dim: usize,
        value_dim: usize,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
        log_alpha: Vec<f32>,
        alpha: Vec<f32>,
        beta: Vec<f32>,
        state: Vec<f32>, // [key_dim][value_dim]
    }

    impl Head {
        fn new(rows: usize, key_dim: usize, value_dim: usize) -> Head {
            let mut random = Random::new((rows * key_dim) as u64);
            let mut unit = |scale: f32| {
                let mut x = random.normals(rows * key_dim);
                for x in x.chunks_mut(key_dim) {
                    let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                    x.iter_mut().for_each(|x| *x *= scale / norm);
                }
                x
            };
            let (q, k) = (unit(1.0 / (key_dim as f32).sqrt()), unit(1.0));
            let log_alpha: Vec<f32> = (0..rows).map(|_| -random.unit().powi(4) * 3.0).collect();
            Head {
                key_dim,
                value_dim,
                q,
                k,
                v: random.normals(rows * value_dim),
                alpha: log_alpha.iter().map(|&g| exp(g)).collect(),
                log_alpha,
                beta: (0..rows).map(|_| random.unit()).collect(),
                state: random.normals(key_dim * value_dim),
            }
        }

        fn rows_from(&self, start: usize, column: usize, width: usize) -> DeltaRows<'_> {
            let (key_dim, value_dim) = (self.key_dim, self.value_dim);
            let v = Rows::new(&self.v[start * value_dim..], value_dim, value_dim);
            DeltaRows {
                q: Rows::new(&self.q[start * key_dim..], key_dim, key_dim),
                k: Rows::new(&self.k[start * key_dim..], key_dim, key_dim),
                v: v.columns(column..column + width),
                alpha: &self.alpha[start..],
                beta: &self.beta[start..],
                gate_stride: 1,
            }
        }

        /// The panel of the initial state.
        fn panel(&self, column: usize, width: usize) -> Vec<f32> {
            self.state
                .chunks(self.value_dim)
                .flat_map(|s| s[column..column + width].to_vec())
                .collect()
        }

        /// The recurrence as the specification writes it, in f64: outputs and final state.
        fn reference(&self) -> (Vec<f64>, Vec<f64>) {
            let (dk, dv) = (self.key_dim, self.value_dim);
            let mut s: Vec<f64> = self.state.iter().map(|&s| s.into()).collect();
            let mut out = Vec::new();
            for r in 0..self.beta.len() {
                let at = |x: &[f32], i: usize| f64::from(x[r * dk + i]);
                for s in &mut s {
                    *s *= f64::from(self.alpha[r]);
                }
                for j in 0..dv {
                    let m: f64 = (0..dk).map(|i| s[i * dv + j] * at(&self.k, i)).sum();
                    let d = f64::from(self.beta[r]) * (f64::from(self.v[r * dv + j]) - m);
                    for i in 0..dk {
                        s[i * dv + j] += d * at(&self.k, i);
                    }
                    out.push((0..dk).map(|i| s[i * dv + j] * at(&self.q, i)).sum());
                }
            }
            (out, s)
        }
    }

    /// Runs the head in panels of `width` and chunks of `cut` rows.
    fn run(isa: Isa, head: &Head, rows: usize, width: usize, cut: usize) -> (Vec<f32>, Vec<f32>) {
        let dv = head.value_dim;
        let mut out = vec![f32::NAN; rows * dv];
        let mut state = vec![f32::NAN; head.key_dim * dv];
        for column in (0..dv).step_by(width) {
            let width = width.min(dv - column);
            let before = head.panel(column, width);
            let mut panel = vec![f32::NAN; before.len()];
            for start in (0..rows).step_by(cut) {
                let count = cut.min(rows - start);
                let out = &mut out[start * dv + column..][..(count - 1) * dv + width];
                let mut out = RowsMut::new(out, dv, width);
                let from = (start == 0).then_some(&before[..]);
                delta_rule(isa, from, &mut panel, &head.rows_from(start, column, width), &mut out);
            }
            for (s, panel) in state.chunks_mut(dv).zip(panel.chunks(width)) {
                s[column..column + width].copy_from_slice(panel);
            }
        }
        (out, state)
    }

    #[test]
    fn the_recurrence_agrees_with_f64_and_any_cut_gives_the_same_bits() {
        for (rows, key_dim, value_dim) in [(1, 128, 128), (70, 128, 128), (9, 16, 24), (5, 33, 75)]
        {
            let head = Head::new(rows, key_dim, value_dim);
            let (want_out, want_state) = head.reference();
            let mut first = None;
            for isa in isas() {
                for (width, cut) in [(64, rows), (64, 1), (64, 7), (32, rows), (16, 3), (5, 4)] {
                    let got = run(isa, &head, rows, width, cut);
                    let first = first.get_or_insert_with(|| {
                        assert_close(&got.0, &want_out, 2e-6);
                        assert_close(&got.1, &want_state, 2e-6);
                        got.clone()
                    });
                    assert_same_bits(&got.0, &first.0);
                    assert_same_bits(&got.1, &first.1);
                }
            }
        }
    }

    #[test]
    fn no_rows_copy_the_state() {
        let head = Head::new(1, 16, 16);
        let mut state = vec![0.0; 256];
        let mut out = RowsMut::new(&mut [], 16, 16);
        for isa in isas() {
            let rows = head.rows_from(0, 0, 16);
            delta_rule(isa, Some(&head.state), &mut state, &rows, &mut out);
            assert_same_bits(&state, &head.state);
        }
    }

    #[test]
    fn the_chunked_form_agrees_with_the_recurrence() {
        for rows in [1, 3, 63, 64, 200] {
            let (key_dim, value_dim) = (128, 128);
            let head = Head::new(rows, key_dim, value_dim);
            let (want_out, want_state) = head.reference();
            let mut out = vec![0.0; rows * value_dim];
            let mut state = head.state.clone();
            let mut scratch = vec![f32::NAN; chunk_scratch_floats(key_dim, value_dim)];
            for start in (0..rows).step_by(CHUNK) {
                let count = CHUNK.min(rows - start);
                let out = &mut out[start * value_dim..][..count * value_dim];
                let mut out = RowsMut::new(out, value_dim, value_dim);
                let inputs = head.rows_from(start, 0, value_dim);
                let log_alpha = &head.log_alpha[start..];
                let isa = machine::cpu::isa();
                delta_rule_chunked(isa, &mut state, &inputs, log_alpha, &mut scratch, &mut out);
            }
            assert_close(&out, &want_out, 1e-4);
            assert_close(&state, &want_state, 1e-4);
        }
    }

    #[test]
    fn gates_agree_with_f64_on_every_instruction_set() {
        let mut random = Random::new(23);
        for heads in [1, 16, 31, 64] {
            let (a, b) = (random.normals(heads), random.normals(heads));
            let dt_bias: Vec<f32> = (0..heads).map(|_| random.normal() * 3.0).collect();
            let decay: Vec<f32> = (0..heads).map(|_| -(random.normal().exp())).collect();
            let want: Vec<f64> = (0..heads)
                .map(|h| {
                    let x = f64::from(a[h]) + f64::from(dt_bias[h]);
                    (f64::from(decay[h]) * (1.0 + x.exp()).ln()).exp()
                })
                .collect();
            let want_beta: Vec<f64> =
                b.iter().map(|&b| 1.0 / (1.0 + f64::from(-b).exp())).collect();
            let mut first = None;
            for isa in isas() {
                let (mut alpha, mut beta) = (vec![0.0; heads], vec![0.0; heads]);
                delta_gates(isa, &a, &b, &decay, &dt_bias, &mut alpha, &mut beta);
                assert_close(&alpha, &want, 1e-6);
                assert_close(&beta, &want_beta, 1e-6);
                let first = first.get_or_insert((alpha.clone(), beta.clone()));
                assert_same_bits(&alpha, &first.0);
                assert_same_bits(&beta, &first.1);
            }
        }
    }
}
