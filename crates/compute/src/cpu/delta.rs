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
use super::prefetch;
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
    /// Queries, `[rows, key_dim]`, normalized and scaled.
    pub(crate) q: Rows<'a>,
    /// Keys, `[rows, key_dim]`, normalized.
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
/// row is `from`, or in `state` itself when that is `None`. The panel at `next` is fetched meanwhile.
pub(crate) fn delta_rule(
    isa: Isa,
    from: Option<&[f32]>,
    state: &mut [f32],
    rows: &DeltaRows<'_>,
    next: *const f32,
    out: &mut RowsMut<'_>,
) {
    delta_rule_kernel(isa, isa, from, state, rows, next, out);
}

versions! {
    fn delta_rule_kernel(
        isa_inside: Isa,
        from: Option<&[f32]>,
        state: &mut [f32],
        rows: &DeltaRows<'_>,
        next: *const f32,
        out: &mut RowsMut<'_>,
    ) = delta_rule_body
}

#[inline(always)]
fn delta_rule_body(
    isa: Isa,
    from: Option<&[f32]>,
    state: &mut [f32],
    rows: &DeltaRows<'_>,
    next: *const f32,
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
        columns::<64>(from, state, rows, next, column, out);
        column += 64;
    }
    while width - column >= 32 {
        columns::<32>(from, state, rows, next, column, out);
        column += 32;
    }
    while width - column >= 8 {
        columns::<8>(from, state, rows, next, column, out);
        column += 8;
    }
    while column < width {
        columns::<1>(from, state, rows, next, column, out);
        column += 1;
    }
}

/// All rows over `C` columns from `column` on.
#[inline(always)]
fn columns<const C: usize>(
    from: Option<&[f32]>,
    state: &mut [f32],
    rows: &DeltaRows<'_>,
    next: *const f32,
    column: usize,
    out: &mut RowsMut<'_>,
) {
    let width = out.width();
    let (first_alpha, first_k) = (rows.alpha[0], rows.k.row(0));
    let mut m = match from {
        Some(from) => begin::<C>(from, state, width, column, first_alpha, first_k, next),
        None => begin_in_place::<C>(state, width, column, first_alpha, first_k, next),
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
            // Rows of a wide matrix are too far apart for the hardware to guess.
            let (v, out) = (&rows.v.row(ahead)[column..], &out.row(ahead)[column..]);
            for (row, floats) in [
                (rows.q.row(ahead), rows.q.width()),
                (rows.k.row(ahead), rows.k.width()),
                (v, C),
                (out, C),
            ] {
                prefetch::lines(row.as_ptr(), floats);
            }
        }
        let o;
        if r < last {
            let next_alpha = rows.alpha[(r + 1) * rows.gate_stride];
            let next_k = rows.k.row(r + 1);
            (o, m) = update_and_begin::<C>(state, width, column, k, q, &d, next_alpha, next_k);
        } else {
            o = update::<C>(state, width, column, k, q, &d, next);
        }
        out.row(r)[column..column + C].copy_from_slice(&o);
    }
}

/// The panel that comes next, row by row. Half of it is asked for in the first half of a row and half in the second: there are
/// only so many lines under way at a time. It counts for itself, since a loop that counts its rows as well keeps its place in
/// memory instead of in registers, which takes twice as long.
struct Ahead {
    at: *const f32,
    width: usize,
}

impl Ahead {
    #[inline(always)]
    fn fetch(&mut self, floats: usize) {
        prefetch::lines(self.at, floats);
        self.at = self.at.wrapping_add(self.width);
    }
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
    next: *const f32,
) -> [f32; C] {
    let mut m = [0.0; C];
    let mut ahead = Ahead { at: next.wrapping_add(column), width };
    let pairs = from.chunks_exact(width).zip(state.chunks_exact_mut(width));
    for ((from, s), &k) in pairs.zip(k) {
        ahead.fetch(C / 2);
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
    next: *const f32,
) -> [f32; C] {
    let mut m = [0.0; C];
    let mut ahead = Ahead { at: next.wrapping_add(column), width };
    for (s, &k) in state.chunks_exact_mut(width).zip(k) {
        ahead.fetch(C / 2);
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
    next: *const f32,
) -> [f32; C] {
    let (mut o, d) = ([0.0; C], *d);
    let mut ahead = Ahead { at: next.wrapping_add(column + C / 2), width };
    for ((s, &k), &q) in state.chunks_exact_mut(width).zip(k).zip(q) {
        ahead.fetch(C.div_ceil(2));
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

#[cfg(test)]
mod chunked;
#[cfg(test)]
#[path = "delta_tests.rs"]
mod tests;
