//! The gated delta rule against the recurrence in f64 and its chunked form; every cut of rows and columns to the bit.

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
        self.state.chunks(self.value_dim).flat_map(|s| s[column..column + width].to_vec()).collect()
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
            let rows = head.rows_from(start, column, width);
            delta_rule(isa, from, &mut panel, &rows, std::ptr::null(), &mut out);
        }
        for (s, panel) in state.chunks_mut(dv).zip(panel.chunks(width)) {
            s[column..column + width].copy_from_slice(panel);
        }
    }
    (out, state)
}

#[test]
fn the_recurrence_agrees_with_f64_and_any_cut_gives_the_same_bits() {
    for (rows, key_dim, value_dim) in [(1, 128, 128), (70, 128, 128), (9, 16, 24), (5, 33, 75)] {
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
        delta_rule(isa, Some(&head.state), &mut state, &rows, std::ptr::null(), &mut out);
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
        let want_beta: Vec<f64> = b.iter().map(|&b| 1.0 / (1.0 + f64::from(-b).exp())).collect();
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
