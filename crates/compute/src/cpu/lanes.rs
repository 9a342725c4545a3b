//! One source for every instruction set: kernels written as loops over fixed groups of lanes.
//!
//! A kernel body is an `#[inline(always)]` function over slices whose float operations are spelled
//! out in one fixed order (`mul_add` where a fused multiply-add is meant). [`versions!`] compiles it
//! once for each instruction set and picks one at run time. The compiler may vectorise the body but
//! never reorders float operations, so every version gives the same bits: this is what makes a
//! row's result independent of the machine's vector width.

/// Lanes of a float reduction: every sum over a long axis keeps this many partial sums.
pub(crate) const LANES: usize = 16;

/// Defines `pub(crate) fn name(isa, args…)` that runs `body` compiled for `isa`.
macro_rules! versions {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$meta])*
        $vis fn $name(isa: machine::cpu::Isa, $($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")]
                fn avx512($($arg: $type),*) $(-> $ret)? { $body($($arg),*) }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $type),*) $(-> $ret)? { $body($($arg),*) }
                match isa {
                    // SAFETY: an `Isa` above Scalar is only handed out after run-time detection.
                    machine::cpu::Isa::Avx512 | machine::cpu::Isa::Amx => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    machine::cpu::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    _ => {}
                }
            }
            let _ = isa;
            $body($($arg),*)
        }
    };
}
pub(crate) use versions;

/// Lanes, a power of two of them, in the one fixed order: halves are joined until one value is left. `join` is a function that
/// is sure to be inlined, or it would not be compiled for the instruction set.
#[inline(always)]
pub(crate) fn join_lanes<T: Copy, const N: usize>(
    mut lanes: [T; N],
    join: impl Fn(T, T) -> T,
) -> T {
    const { assert!(N.is_power_of_two()) };
    let mut width = N / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The larger of two; the first if one of them is not a number.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Sum of the lanes.
#[inline(always)]
pub(crate) fn sum_lanes(lanes: [f32; LANES]) -> f32 {
    join_lanes(lanes, std::ops::Add::add)
}

/// Dot product with [`LANES`] fused partial sums; element `i` goes to lane `i % LANES`.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_chunks, a_tail) = a.as_chunks::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<LANES>();
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for l in 0..LANES {
            lanes[l] = x[l].mul_add(y[l], lanes[l]);
        }
    }
    for (l, (x, y)) in a_tail.iter().zip(b_tail).enumerate() {
        lanes[l] = x.mul_add(*y, lanes[l]);
    }
    sum_lanes(lanes)
}

/// Sum with [`LANES`] partial sums.
#[inline(always)]
pub(crate) fn sum(a: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = a.as_chunks::<LANES>();
    for x in chunks {
        for l in 0..LANES {
            lanes[l] += x[l];
        }
    }
    for (l, x) in tail.iter().enumerate() {
        lanes[l] += x;
    }
    sum_lanes(lanes)
}

/// Sum of squares with [`LANES`] partial sums.
#[inline(always)]
pub(crate) fn sum_squares(a: &[f32]) -> f32 {
    dot(a, a)
}

/// `e^x` as the same few float operations on every instruction set (relative error under 2e-7).
///
/// Range reduction by `x = n ln 2 + r`, |r| <= ln 2 / 2, and a degree-6 Taylor polynomial with its
/// last coefficients adjusted by the remainder; results below 2^-126 flush to zero, above 2^127 saturate.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts: the first has few enough bits that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.3, 88.3);
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer without a libm call.
    const MAGIC: f32 = 12_582_912.0;
    let shifted = LOG2_E.mul_add(x, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    p = r.mul_add(p, 1.0 / 720.0);
    p = r.mul_add(p, 1.0 / 120.0);
    p = r.mul_add(p, 1.0 / 24.0);
    p = r.mul_add(p, 1.0 / 6.0);
    p = r.mul_add(p, 0.5);
    p = r.mul_add(p, 1.0);
    p = r.mul_add(p, 1.0);
    // 2^n by its exponent bits: the integer n sits in the low bits of `shifted`, and is within
    // -126..=127 after the clamp. (A cast to i32 would saturate, which does not vectorise.)
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

/// Logistic function.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_std() {
        let mut worst = 0.0f64;
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0;
            let want = (x as f64).exp();
            worst = worst.max(((exp(x) as f64 - want) / want).abs());
        }
        assert!(worst < 2e-7, "relative error {worst}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1000.0) < 1e-37);
    }
}
