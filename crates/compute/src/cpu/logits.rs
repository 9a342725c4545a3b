//! Passes over the logits of a whole vocabulary, for who draws tokens from them.
//!
//! Sums are in f64, in one fixed order, with an exponential of additions and multiplications alone: the same bits on
//! every platform and instruction set.

use super::lanes::versions;

/// What a logit weighs against the best, which weighs 1.
pub fn weight(logit: f32, best: f32, inverse_temperature: f64) -> f64 {
    exp([(f64::from(logit) - f64::from(best)) * inverse_temperature])[0]
}

/// The weights of all tokens together.
pub fn mass(logits: &[f32], best: f32, inverse_temperature: f64) -> f64 {
    mass_kernel(machine::cpu::isa(), logits, best, inverse_temperature)
}

versions! {
    fn mass_kernel(logits: &[f32], best: f32, inverse_temperature: f64) -> f64 = mass_body
}

#[inline(always)]
fn mass_body(logits: &[f32], best: f32, inverse_temperature: f64) -> f64 {
    const LANES: usize = 8;
    /// Logits whose exponentials are computed side by side: that of one is a chain of two dozen operations.
    const TOGETHER: usize = 4 * LANES;
    let mut sums = [0.0; LANES];
    let (chunks, rest) = logits.as_chunks::<TOGETHER>();
    let mut last = [f32::NEG_INFINITY; TOGETHER];
    last[..rest.len()].copy_from_slice(rest);
    for chunk in chunks.iter().chain([&last]) {
        // Loops, not closures: those would not be compiled for the instruction set.
        let mut x = [0.0; TOGETHER];
        for i in 0..TOGETHER {
            x[i] = (f64::from(chunk[i]) - f64::from(best)) * inverse_temperature;
        }
        let weights = exp(x);
        for (i, weight) in weights.into_iter().enumerate() {
            sums[i % LANES] += weight;
        }
    }
    sums.iter().sum()
}

/// `eˣ` for `x ≤ 0`, to within two units in the last place; 0 below -700. Additions and multiplications only, so it is
/// the same on every platform; each step is done for all of `x`, so that the compiler does several at once.
#[inline(always)]
fn exp<const N: usize>(x: [f64; N]) -> [f64; N] {
    // Adding this leaves the nearest integer in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 · 2⁵²
    // ln 2 in two parts: the first has zeros enough at its end that its product with any |k| < 2¹¹ is exact (fdlibm).
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let mut shifted = [0.0; N];
    let mut r = [0.0; N]; // x - k ln 2, |r| ≤ ln 2 / 2
    for i in 0..N {
        let clamped = if x[i] > -700.0 { x[i] } else { -700.0 };
        shifted[i] = clamped * std::f64::consts::LOG2_E + ROUND;
        let k = shifted[i] - ROUND;
        r[i] = (clamped - k * LN_2_HIGH) - k * LN_2_LOW;
    }
    // Taylor's series: the first term left out is below 0.35¹⁴ / 14! < 5e-18.
    let mut y = [INVERSE_FACTORIALS[13]; N];
    for n in (0..13).rev() {
        for i in 0..N {
            y[i] = y[i] * r[i] + INVERSE_FACTORIALS[n];
        }
    }
    for i in 0..N {
        let power = f64::from_bits(shifted[i].to_bits().wrapping_add(1023) << 52); // 2ᵏ
        y[i] = if x[i] < -700.0 { 0.0 } else { y[i] * power };
    }
    y
}

/// 1 / n!
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut table = [1.0; 14];
    let mut factorial = 1.0;
    let mut n = 1;
    while n < table.len() {
        factorial *= n as f64;
        table[n] = 1.0 / factorial;
        n += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use machine::cpu::{Isa, supports};

    use super::*;

    #[test]
    fn the_exponential_is_exact_to_two_units() {
        for step in 0..700_000 {
            let x = f64::from(step) * -0.001_000_37;
            let ([got], want) = (exp([x]), x.exp());
            if x > -700.0 {
                assert!(((got - want) / want).abs() < 2.0 * f64::EPSILON, "{x}: {got} {want}");
            }
        }
    }

    #[test]
    fn the_exponential_at_its_ends() {
        let masked = f64::NEG_INFINITY;
        assert_eq!(exp([0.0, -0.0, -700.1, masked]), [1.0, 1.0, 0.0, 0.0]);
        assert!(exp([-700.0])[0] > 0.0);
    }

    #[test]
    fn a_mass_has_the_same_bits_everywhere() {
        for count in [1, 7, 8, 9, 4096, 5003] {
            let logits: Vec<f32> =
                (0..count).map(|i| -((i * 7919 % 3001) as f32) * 0.013).collect();
            let want = mass_kernel(Isa::Scalar, &logits, 0.0, 0.7);
            for isa in Isa::ALL.into_iter().filter(|&isa| supports(isa)) {
                let got = mass_kernel(isa, &logits, 0.0, 0.7);
                assert_eq!(got.to_bits(), want.to_bits(), "{count} logits on {isa}");
            }
        }
    }
}
