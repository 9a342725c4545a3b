//! Normalization of one row, or of each head of a row.
//!
//! Weights are plain multipliers: a checkpoint that stores them centred at zero has 1 added at load.
//! Every sum runs over one vector in the fixed lane order of [`sum_squares`](super::lanes::sum_squares).

use super::lanes::{silu, sum_squares, versions};

/// Under the square root of [`l2_normalize`], as in the reference implementation of Qwen3.5.
const L2_EPSILON: f32 = 1e-6;

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_squares(x) / x.len() as f32 + eps).sqrt()
}

versions! {
    /// `out = x / rms(x) * weight` for one row.
    pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_body
}

#[inline(always)]
fn rms_norm_body(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let scale = inverse_rms(x, eps);
    for ((y, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *y = x * scale * w;
    }
}

versions! {
    /// [`rms_norm`] in place over each head: `x` is a whole number of vectors as long as `weight`.
    pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32)
        = rms_norm_in_place_body
}

#[inline(always)]
fn rms_norm_in_place_body(x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(x.len().is_multiple_of(weight.len()));
    for head in x.chunks_exact_mut(weight.len()) {
        let scale = inverse_rms(head, eps);
        for (y, &w) in head.iter_mut().zip(weight) {
            *y = *y * scale * w;
        }
    }
}

versions! {
    /// `out = x / rms(x) * weight * silu(gate)` over each head: the output norm of a gated delta layer.
    pub(crate) fn rms_norm_gated(x: &[f32], gate: &[f32], weight: &[f32], eps: f32, out: &mut [f32])
        = rms_norm_gated_body
}

#[inline(always)]
fn rms_norm_gated_body(x: &[f32], gate: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let dim = weight.len();
    assert!(x.len().is_multiple_of(dim) && x.len() == gate.len() && x.len() == out.len());
    let heads = x.chunks_exact(dim).zip(gate.chunks_exact(dim)).zip(out.chunks_exact_mut(dim));
    for ((x, gate), out) in heads {
        let scale = inverse_rms(x, eps);
        for (((y, &x), &g), &w) in out.iter_mut().zip(x).zip(gate).zip(weight) {
            *y = x * scale * w * silu(g);
        }
    }
}

versions! {
    /// `x = x / sqrt(Σ x² + 1e-6) * scale` in place over each head of `head_dim`.
    pub(crate) fn l2_normalize(x: &mut [f32], head_dim: usize, scale: f32) = l2_normalize_body
}

#[inline(always)]
fn l2_normalize_body(x: &mut [f32], head_dim: usize, scale: f32) {
    assert!(x.len().is_multiple_of(head_dim));
    for head in x.chunks_exact_mut(head_dim) {
        let factor = 1.0 / (sum_squares(head) + L2_EPSILON).sqrt() * scale;
        for y in head {
            *y *= factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::activation::testing::{Random, assert_close, assert_same_bits, isas};
    use super::*;

    fn rms(x: &[f32], eps: f64) -> f64 {
        (x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64 + eps).sqrt()
    }

    #[test]
    fn norms_agree_with_f64_on_every_instruction_set() {
        let mut random = Random::new(3);
        for dim in [1, 7, 16, 33, 128, 256, 2048] {
            let heads = 3;
            let (x, gate) = (random.normals(dim * heads), random.normals(dim * heads));
            let weight = random.normals(dim);
            let mut want = [vec![], vec![], vec![]];
            for (head, z) in x.chunks(dim).zip(gate.chunks(dim)) {
                let r = rms(head, 1e-6);
                let l2 = (head.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() + 1e-6).sqrt();
                for ((&x, &w), &z) in head.iter().zip(&weight).zip(z) {
                    let (x, w, z) = (f64::from(x), f64::from(w), f64::from(z));
                    want[0].push(x / r * w);
                    want[1].push(x / r * w * z / (1.0 + (-z).exp()));
                    want[2].push(x / l2 * 0.5);
                }
            }
            let mut first = None;
            for isa in isas() {
                let mut got = [x.clone(), vec![0.0; x.len()], x.clone()];
                rms_norm_in_place(isa, &mut got[0], &weight, 1e-6);
                rms_norm_gated(isa, &x, &gate, &weight, 1e-6, &mut got[1]);
                l2_normalize(isa, &mut got[2], dim, 0.5);
                let mut row = vec![0.0; dim];
                rms_norm(isa, &x[dim..2 * dim], &weight, 1e-6, &mut row);
                assert_same_bits(&row, &got[0][dim..2 * dim]);
                let first = first.get_or_insert(got.clone());
                for i in 0..3 {
                    assert_close(&got[i], &want[i], 1e-6);
                    assert_same_bits(&got[i], &first[i]);
                }
            }
        }
    }

    #[test]
    fn zeros_stay_zero() {
        for isa in isas() {
            let mut x = vec![0.0; 64];
            l2_normalize(isa, &mut x, 32, 1.0);
            rms_norm_in_place(isa, &mut x, &[1.0; 32], 1e-6);
            assert_eq!(x, vec![0.0; 64]);
        }
    }
}
