//! Passes over the logits of a whole vocabulary, for who draws tokens from them.
//!
//! Exponentials are of additions and multiplications alone and sums are in f64 in one fixed order: the same bits on every
//! platform and instruction set. Those of whole vocabularies are f32, sixteen to a vector: a mass is known to about one part in
//! a million, which no draw and no log-probability shows.

use super::lanes::versions;

/// What a logit weighs against the best, which weighs 1.
pub fn weight(logit: f32, best: f32, inverse_temperature: f64) -> f64 {
    exp((f64::from(logit) - f64::from(best)) * inverse_temperature)
}

/// The weights of all tokens together.
pub fn mass(logits: &[f32], best: f32, inverse_temperature: f64) -> f64 {
    mass_kernel(machine::cpu::isa(), logits, best, inverse_temperature as f32)
}

/// The largest of them; none if one is not a number or plus infinity. Minus infinity if there are none.
pub fn largest(logits: &[f32]) -> Option<f32> {
    let (largest, is_broken) = largest_kernel(machine::cpu::isa(), logits);
    (!is_broken).then_some(largest)
}

/// The largest of each run of `width` logits, fewer at the end; none of them is not a number.
pub fn tops(logits: &[f32], width: usize, tops: &mut Vec<f32>) {
    tops.clear();
    tops.resize(logits.len().div_ceil(width), 0.0);
    tops_kernel(machine::cpu::isa(), logits, width, tops);
}

/// Logits that are compared at once.
pub const RUN: usize = TOGETHER;

/// Steps into which the distance from the best logit is cut; the last has everything beyond.
pub const STEPS: usize = 2048;

/// Steps of a distance over which a weight falls by e.
const STEPS_PER_E: f32 = 64.0;

/// By distance from the best: the weights of the tokens there.
#[derive(Clone, Debug)]
pub struct Spread {
    /// Several of each, summed apart: otherwise each addition would wait for the one before.
    sums: Box<[[f64; STEPS]; APART]>,
}

const APART: usize = 4;

impl Default for Spread {
    fn default() -> Spread {
        let sums = vec![[0.0; STEPS]; APART].into_boxed_slice();
        Spread { sums: sums.try_into().expect("as many as that") }
    }
}

impl Spread {
    /// Sorts the weights of all tokens into steps.
    pub fn fill(&mut self, logits: &[f32], best: f32, inverse_temperature: f64) {
        self.sums.iter_mut().for_each(|sums| sums.fill(0.0));
        let isa = machine::cpu::isa();
        spread_kernel(isa, logits, best, inverse_temperature as f32, &mut self.sums);
    }

    /// The weights of a step together.
    pub fn mass(&self, step: usize) -> f64 {
        self.sums.iter().map(|sums| sums[step]).sum()
    }
}

/// The least that a token of a step may weigh.
pub fn least_weight(step: usize) -> f64 {
    if step + 1 == STEPS { 0.0 } else { exp(-(step as f64 + 1.0) / f64::from(STEPS_PER_E)) }
}

/// The tokens of a step, with their logits, in ascending order of tokens.
pub fn tokens_of_step(
    logits: &[f32],
    best: f32,
    inverse_temperature: f64,
    step: usize,
    mut take: impl FnMut(u32, f32),
) {
    let inverse = inverse_temperature as f32;
    for (chunk, first) in logits.chunks(TOGETHER).zip((0u32..).step_by(TOGETHER)) {
        let is_there = |logit: f32| step_of((logit - best) * inverse) == step;
        if chunk.iter().fold(false, |some, &logit| some | is_there(logit)) {
            for (token, &logit) in (first..).zip(chunk) {
                if is_there(logit) && logit > f32::NEG_INFINITY {
                    take(token, logit);
                }
            }
        }
    }
}

/// The step of an exponent that is not positive.
#[inline(always)]
fn step_of(x: f32) -> usize {
    // Casts stop at the ends of their range.
    ((x * -STEPS_PER_E) as i32).min(STEPS as i32 - 1) as usize
}

/// Logits whose exponentials are computed side by side: that of one is a chain of many operations.
const TOGETHER: usize = 32;

versions! {
    fn largest_kernel(logits: &[f32]) -> (f32, bool) = largest_body
}

#[inline(always)]
fn largest_body(logits: &[f32]) -> (f32, bool) {
    let mut best = [f32::NEG_INFINITY; TOGETHER];
    let mut broken = [0u32; TOGETHER];
    let (chunks, rest) = logits.as_chunks::<TOGETHER>();
    let mut last = [f32::NEG_INFINITY; TOGETHER];
    last[..rest.len()].copy_from_slice(rest);
    for chunk in chunks.iter().chain([&last]) {
        for i in 0..TOGETHER {
            best[i] = if chunk[i] > best[i] { chunk[i] } else { best[i] };
            // Neither is less than plus infinity.
            broken[i] |= if chunk[i] < f32::INFINITY { 0 } else { 1 };
        }
    }
    let (mut largest, mut is_broken) = (f32::NEG_INFINITY, 0);
    for i in 0..TOGETHER {
        largest = if best[i] > largest { best[i] } else { largest };
        is_broken |= broken[i];
    }
    (largest, is_broken != 0)
}

versions! {
    fn tops_kernel(logits: &[f32], width: usize, tops: &mut [f32]) = tops_body
}

#[inline(always)]
fn tops_body(logits: &[f32], width: usize, tops: &mut [f32]) {
    for (run, top) in logits.chunks(width).zip(tops) {
        let mut best = [f32::NEG_INFINITY; RUN];
        let (chunks, rest) = run.as_chunks::<RUN>();
        for chunk in chunks {
            for i in 0..RUN {
                best[i] = if chunk[i] > best[i] { chunk[i] } else { best[i] };
            }
        }
        for i in 0..rest.len() {
            best[i] = if rest[i] > best[i] { rest[i] } else { best[i] };
        }
        let mut half = RUN / 2;
        while half > 0 {
            for i in 0..half {
                best[i] = if best[i + half] > best[i] { best[i + half] } else { best[i] };
            }
            half /= 2;
        }
        *top = best[0];
    }
}

versions! {
    fn mass_kernel(logits: &[f32], best: f32, inverse_temperature: f32) -> f64 = mass_body
}

#[inline(always)]
fn mass_body(logits: &[f32], best: f32, inverse_temperature: f32) -> f64 {
    let mut sums = [0.0; TOGETHER];
    let (chunks, rest) = logits.as_chunks::<TOGETHER>();
    let mut last = [f32::NEG_INFINITY; TOGETHER];
    last[..rest.len()].copy_from_slice(rest);
    for chunk in chunks.iter().chain([&last]) {
        let (_, weights) = weights(chunk, best, inverse_temperature);
        for i in 0..TOGETHER {
            sums[i] += f64::from(weights[i]);
        }
    }
    sums.iter().sum()
}

versions! {
    fn spread_kernel(logits: &[f32], best: f32, inverse_temperature: f32, sums: &mut [[f64; STEPS]; APART]) = spread_body
}

#[inline(always)]
fn spread_body(
    logits: &[f32],
    best: f32,
    inverse_temperature: f32,
    sums: &mut [[f64; STEPS]; APART],
) {
    let (chunks, rest) = logits.as_chunks::<TOGETHER>();
    let mut last = [f32::NEG_INFINITY; TOGETHER];
    last[..rest.len()].copy_from_slice(rest);
    for chunk in chunks.iter().chain([&last]) {
        let (x, weights) = weights(chunk, best, inverse_temperature);
        let mut steps = [0; TOGETHER];
        for i in 0..TOGETHER {
            steps[i] = step_of(x[i]);
        }
        for i in 0..TOGETHER {
            sums[i % APART][steps[i]] += f64::from(weights[i]);
        }
    }
}

/// Exponents and weights of some logits.
#[inline(always)]
fn weights(
    logits: &[f32; TOGETHER],
    best: f32,
    inverse_temperature: f32,
) -> ([f32; TOGETHER], [f32; TOGETHER]) {
    // Loops, not closures: those would not be compiled for the instruction set.
    let mut x = [0.0; TOGETHER];
    for i in 0..TOGETHER {
        x[i] = (logits[i] - best) * inverse_temperature;
    }
    (x, exp_f32(x))
}

/// `eˣ` for `x ≤ 0`, to within a few units in the last place; 0 below -87. Each step is done for all of `x`, so that the compiler does
/// several at once.
#[inline(always)]
fn exp_f32<const N: usize>(x: [f32; N]) -> [f32; N] {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2²³
    // As below, for |k| < 2⁷.
    const LN_2_HIGH: f32 = 0.693_359_4; // 355 / 512
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let mut shifted = [0.0; N];
    let mut r = [0.0; N];
    for i in 0..N {
        let clamped = if x[i] > -87.0 { x[i] } else { -87.0 };
        shifted[i] = clamped * std::f32::consts::LOG2_E + ROUND;
        let k = shifted[i] - ROUND;
        r[i] = (clamped - k * LN_2_HIGH) - k * LN_2_LOW;
    }
    // The first term left out is below 0.35⁸ / 8! < 6e-9.
    let mut y = [INVERSE_FACTORIALS[7] as f32; N];
    for n in (0..7).rev() {
        for i in 0..N {
            y[i] = y[i] * r[i] + INVERSE_FACTORIALS[n] as f32;
        }
    }
    for i in 0..N {
        let power = f32::from_bits(shifted[i].to_bits().wrapping_add(127) << 23); // 2ᵏ
        y[i] = if x[i] < -87.0 { 0.0 } else { y[i] * power };
    }
    y
}

/// `eˣ` for `x ≤ 0`, to within two units in the last place; 0 below -700.
fn exp(x: f64) -> f64 {
    // Adding this leaves the nearest integer in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 · 2⁵²
    // ln 2 in two parts: the first has zeros enough at its end that its product with any |k| < 2¹¹ is exact (fdlibm).
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    if x < -700.0 {
        return 0.0;
    }
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW; // |r| ≤ ln 2 / 2
    // Taylor's series: the first term left out is below 0.35¹⁴ / 14! < 5e-18.
    let y = INVERSE_FACTORIALS.iter().rev().fold(0.0, |y, term| y * r + term);
    y * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52) // 2ᵏ
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
    fn the_exponentials_are_exact_to_a_few_units() {
        for step in 0..700_000 {
            let x = f64::from(step) * -0.001_000_37;
            let (got, want) = (exp(x), x.exp());
            if x > -700.0 {
                assert!(((got - want) / want).abs() < 2.0 * f64::EPSILON, "{x}: {got} {want}");
            }
            let x = f64::from((x / 8.0) as f32);
            let ([got], want) = (exp_f32([x as f32]), x.exp());
            if x > -87.0 {
                let error = ((f64::from(got) - want) / want).abs();
                assert!(error < 3.0 * f64::from(f32::EPSILON), "{x}: {got} {want}");
            }
        }
    }

    #[test]
    fn the_exponentials_at_their_ends() {
        assert_eq!([0.0, -0.0, -700.1, f64::NEG_INFINITY].map(exp), [1.0, 1.0, 0.0, 0.0]);
        assert!(exp(-700.0) > 0.0);
        assert_eq!(exp_f32([0.0, -0.0, -87.1, f32::NEG_INFINITY]), [1.0, 1.0, 0.0, 0.0]);
        assert!(exp_f32([-87.0])[0] > 0.0);
    }

    fn some_logits(count: usize) -> Vec<f32> {
        (0..count).map(|i| -((i * 7919 % 3001) as f32) * 0.013).collect()
    }

    #[test]
    fn a_mass_has_the_same_bits_everywhere() {
        for count in [1, 7, 31, 32, 33, 4096, 5003] {
            let logits = some_logits(count);
            let want = mass_kernel(Isa::Scalar, &logits, 0.0, 0.7);
            let exact: f64 = logits.iter().map(|&logit| (f64::from(logit) * 0.7).exp()).sum();
            assert!((want - exact).abs() < 1e-6 * exact, "{want} {exact}");
            let mut spread = Spread::default();
            spread_kernel(Isa::Scalar, &logits, 0.0, 0.7, &mut spread.sums);
            for isa in Isa::ALL.into_iter().filter(|&isa| supports(isa)) {
                let got = mass_kernel(isa, &logits, 0.0, 0.7);
                assert_eq!(got.to_bits(), want.to_bits(), "{count} logits on {isa}");
                let mut other = Spread::default();
                spread_kernel(isa, &logits, 0.0, 0.7, &mut other.sums);
                assert!(other.sums == spread.sums, "{count} logits on {isa}");
            }
        }
    }

    #[test]
    fn the_largest_is_found_and_what_is_broken_is_seen() {
        for isa in Isa::ALL.into_iter().filter(|&isa| supports(isa)) {
            assert_eq!(largest_kernel(isa, &[]), (f32::NEG_INFINITY, false));
            for count in [1, 31, 32, 33, 64, 100] {
                for place in 0..count {
                    let mut logits = vec![f32::MIN; count];
                    logits[0] = f32::NEG_INFINITY;
                    logits[place] = -3.0;
                    assert_eq!(largest_kernel(isa, &logits), (-3.0, false), "{isa}");
                    for broken in [f32::NAN, -f32::NAN, f32::INFINITY] {
                        logits[place] = broken;
                        assert!(largest_kernel(isa, &logits).1, "{broken} at {place} on {isa}");
                    }
                }
            }
        }
    }

    #[test]
    fn tops_are_the_largest_of_their_runs() {
        let mut logits: Vec<f32> = (0..1000).map(|i| (i * 7919 % 1009) as f32 - 500.0).collect();
        logits[64..96].fill(f32::NEG_INFINITY);
        for isa in Isa::ALL.into_iter().filter(|&isa| supports(isa)) {
            for width in [RUN, 3 * RUN, 1000, 1024] {
                let largest = |run: &[f32]| run.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let want: Vec<f32> = logits.chunks(width).map(largest).collect();
                let mut got = vec![0.0; want.len()];
                tops_kernel(isa, &logits, width, &mut got);
                assert_eq!(got, want, "runs of {width} on {isa}");
            }
        }
    }

    #[test]
    fn steps_hold_every_token_once() {
        let mut logits = some_logits(5003);
        logits[17] = f32::NEG_INFINITY;
        let (best, inverse) = (0.0, 1.3);
        let mut spread = Spread::default();
        spread.fill(&logits, best, inverse);
        let (mut seen, mut above) = (0, f32::INFINITY);
        for step in 0..STEPS {
            let (mut sum, mut least, mut most) = (0.0, f32::INFINITY, f32::NEG_INFINITY);
            tokens_of_step(&logits, best, inverse, step, |token, logit| {
                assert_eq!(logits[token as usize], logit);
                sum += weight(logit, best, inverse);
                (least, most) = (least.min(logit), most.max(logit));
                seen += 1;
            });
            assert!(most < above, "step {step} is not below the one before");
            above = above.min(least);
            let bound = least_weight(step) * (1.0 - 1e-5);
            assert!(least == f32::INFINITY || weight(least, best, inverse) >= bound);
            let mass = spread.mass(step);
            assert!((mass - sum).abs() <= 1e-5 * sum, "step {step}: {mass}, tokens {sum}");
        }
        assert_eq!(seen, logits.len() - 1);
    }
}
