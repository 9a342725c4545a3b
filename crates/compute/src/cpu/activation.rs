//! Element-wise kernels: gated activations, residual adds, and the scalar functions they are made of.
//!
//! One output element depends on the input elements at its own index alone.

use super::lanes::{exp, sigmoid, silu, versions};

/// `tanh x` within 1e-7 absolute, as the same few operations on every instruction set.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// `ln(1 + e^x)` with small relative error for every x, also far below zero.
///
/// `max(x, 0) + log1p(y)` with `y = e^-|x|` in (0, 1], and `log1p(y) = 2 atanh(z)` with
/// `z = y / (2 + y)` at most 1/3: the odd series up to z^13 leaves 2e-8 relative.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let y = exp(-x.abs());
    let z = y / (2.0 + y);
    let z2 = z * z;
    let mut p = 1.0 / 13.0;
    p = z2.mul_add(p, 1.0 / 11.0);
    p = z2.mul_add(p, 1.0 / 9.0);
    p = z2.mul_add(p, 1.0 / 7.0);
    p = z2.mul_add(p, 1.0 / 5.0);
    p = z2.mul_add(p, 1.0 / 3.0);
    p = z2.mul_add(p, 1.0);
    (2.0 * z).mul_add(p, if x > 0.0 { x } else { 0.0 })
}

/// The tanh form of GELU. `0.5 (1 + tanh u)` is `sigmoid(2u)`, which needs no tanh.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let u = SQRT_2_OVER_PI * (0.044_715 * x * x).mul_add(x, x);
    x * sigmoid(2.0 * u)
}

versions! {
    /// `out = silu(gate) * up`.
    pub(crate) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) = silu_mul_body
}

#[inline(always)]
fn silu_mul_body(gate: &[f32], up: &[f32], out: &mut [f32]) {
    binary(gate, up, out, |gate, up| silu(gate) * up);
}

versions! {
    /// `out = x * sigmoid(gate)`: the output gate of an attention layer.
    pub(crate) fn sigmoid_mul(x: &[f32], gate: &[f32], out: &mut [f32]) = sigmoid_mul_body
}

#[inline(always)]
fn sigmoid_mul_body(x: &[f32], gate: &[f32], out: &mut [f32]) {
    binary(x, gate, out, |x, gate| x * sigmoid(gate));
}

versions! {
    /// `out = gelu_tanh(gate) * up`.
    pub(crate) fn gelu_tanh_mul(gate: &[f32], up: &[f32], out: &mut [f32]) = gelu_tanh_mul_body
}

#[inline(always)]
fn gelu_tanh_mul_body(gate: &[f32], up: &[f32], out: &mut [f32]) {
    binary(gate, up, out, |gate, up| gelu_tanh(gate) * up);
}

versions! {
    /// The clamped gate of gpt-oss: `g = min(gate, limit)`, `u = clamp(up, ±limit)`,
    /// `out = g * sigmoid(1.702 g) * (u + 1)`.
    pub(crate) fn clamped_swiglu(gate: &[f32], up: &[f32], limit: f32, out: &mut [f32])
        = clamped_swiglu_body
}

#[inline(always)]
fn clamped_swiglu_body(gate: &[f32], up: &[f32], limit: f32, out: &mut [f32]) {
    binary(gate, up, out, |gate, up| {
        let g = if gate > limit { limit } else { gate };
        let u = up.clamp(-limit, limit);
        g * sigmoid(1.702 * g) * (u + 1.0)
    });
}

#[inline(always)]
fn binary(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    assert!(a.len() == out.len() && b.len() == out.len());
    for ((y, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *y = f(a, b);
    }
}

versions! {
    /// `out += x`: the residual stream.
    pub(crate) fn add_assign(out: &mut [f32], x: &[f32]) = add_assign_body
}

#[inline(always)]
fn add_assign_body(out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len());
    for (y, &x) in out.iter_mut().zip(x) {
        *y += x;
    }
}

versions! {
    /// `out *= scale`.
    pub(crate) fn scale_assign(out: &mut [f32], scale: f32) = scale_assign_body
}

#[inline(always)]
fn scale_assign_body(out: &mut [f32], scale: f32) {
    for y in out {
        *y *= scale;
    }
}

versions! {
    /// `out = cap * tanh(out / cap)`: bounds logits.
    pub(crate) fn softcap_assign(out: &mut [f32], cap: f32) = softcap_assign_body
}

#[inline(always)]
fn softcap_assign_body(out: &mut [f32], cap: f32) {
    for y in out {
        *y = cap * tanh(*y / cap);
    }
}

versions! {
    /// `out = fma(weight, x, out)`: one expert's weighted output.
    pub(crate) fn scale_add(out: &mut [f32], x: &[f32], weight: f32) = scale_add_body
}

#[inline(always)]
fn scale_add_body(out: &mut [f32], x: &[f32], weight: f32) {
    assert_eq!(out.len(), x.len());
    for (y, &x) in out.iter_mut().zip(x) {
        *y = weight.mul_add(x, *y);
    }
}

/// What the kernel tests share: seeded numbers and the instruction sets of this machine.
#[cfg(test)]
pub(crate) mod testing {
    use machine::cpu::{Isa, supports};

    /// Every instruction set that this machine runs; Scalar is the first.
    pub(crate) fn isas() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|&isa| supports(isa))
    }

    /// Seeded xorshift numbers.
    pub(crate) struct Random(u64);

    impl Random {
        pub(crate) fn new(seed: u64) -> Random {
            Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
        }

        pub(crate) fn bits(&mut self) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 32) as u32
        }

        /// Uniform in 0..bound.
        pub(crate) fn below(&mut self, bound: usize) -> usize {
            self.bits() as usize % bound
        }

        /// Uniform in [0, 1).
        pub(crate) fn unit(&mut self) -> f32 {
            (self.bits() >> 8) as f32 / (1 << 24) as f32
        }

        /// About normal: a sum of four uniform numbers with variance 1.
        pub(crate) fn normal(&mut self) -> f32 {
            let sum: f32 = (0..4).map(|_| self.unit()).sum();
            (sum - 2.0) * 3f32.sqrt()
        }

        pub(crate) fn normals(&mut self, count: usize) -> Vec<f32> {
            (0..count).map(|_| self.normal()).collect()
        }
    }

    #[track_caller]
    pub(crate) fn assert_same_bits(got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len());
        for (i, (x, y)) in got.iter().zip(want).enumerate() {
            assert_eq!(x.to_bits(), y.to_bits(), "element {i}: {x:e} and {y:e}");
        }
    }

    /// Each difference is at most `tolerance` times the largest magnitude wanted.
    #[track_caller]
    pub(crate) fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
        assert_eq!(got.len(), want.len());
        let largest = want.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
        for (i, (&x, &y)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(x) - y).abs() / largest;
            assert!(error <= tolerance, "element {i}: {x:e}, wanted {y:e}, error {error:e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Random, assert_close, assert_same_bits, isas};
    use super::*;

    type Kernel = fn(machine::cpu::Isa, &[f32], &[f32], &mut [f32]);

    #[track_caller]
    fn check(kernel: Kernel, reference: fn(f64, f64) -> f64) {
        let mut random = Random::new(7);
        for len in [0, 1, 15, 16, 17, 64, 1000] {
            let a: Vec<f32> = (0..len).map(|_| random.normal() * 6.0).collect();
            let b = random.normals(len);
            let want: Vec<f64> =
                a.iter().zip(&b).map(|(&a, &b)| reference(a.into(), b.into())).collect();
            let mut first = None;
            for isa in isas() {
                let mut out = vec![f32::NAN; len];
                kernel(isa, &a, &b, &mut out);
                assert_close(&out, &want, 3e-7);
                assert_same_bits(&out, first.get_or_insert(out.clone()));
            }
        }
    }

    fn logistic(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn gates_agree_with_f64_on_every_instruction_set() {
        check(silu_mul, |gate, up| gate * logistic(gate) * up);
        check(sigmoid_mul, |x, gate| x * logistic(gate));
        check(gelu_tanh_mul, |gate, up| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            0.5 * gate * (1.0 + u.tanh()) * up
        });
        check(
            |isa, gate, up, out| clamped_swiglu(isa, gate, up, 7.0, out),
            |gate, up| {
                let (g, u) = (gate.min(7.0), up.clamp(-7.0, 7.0));
                g * logistic(1.702 * g) * (u + 1.0)
            },
        );
        check(
            |isa, a, b, out| {
                out.copy_from_slice(a);
                add_assign(isa, out, b);
                scale_assign(isa, out, 3.0);
                scale_add(isa, out, b, 0.3);
            },
            |a, b| (a + b) * 3.0 + f64::from(0.3f32) * b,
        );
        check(
            |isa, a, _, out| {
                out.copy_from_slice(a);
                softcap_assign(isa, out, 5.0);
            },
            |a, _| 5.0 * (a / 5.0).tanh(),
        );
    }

    #[test]
    fn softplus_is_close_relatively() {
        for i in -80_000..40_000 {
            let x = i as f32 / 1000.0;
            let want = f64::from(x).exp().ln_1p();
            let error = (f64::from(softplus(x)) - want).abs() / want;
            assert!(error < 4e-7, "{x}: {error:e}");
        }
        assert_eq!(softplus(100.0), 100.0);
    }

    #[test]
    fn extremes_stay_finite() {
        for x in [-1e30, -200.0, 200.0, 1e30] {
            assert!(gelu_tanh(x).is_finite() && silu(x).is_finite() && tanh(x).abs() <= 1.0);
        }
        assert!(softplus(-1e30) >= 0.0);
    }
}
