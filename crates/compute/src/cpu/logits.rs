//! Passes over the logits of a whole vocabulary, for the sampler.
//!
//! Exponentials are of additions and multiplications alone and sums are in f64 in one fixed order: the same bits on every
//! platform and instruction set. Those of whole vocabularies are f32, sixteen to a vector: a mass is known to about one part in
//! a million, which no draw and no log-probability shows.

use super::lanes::{join_lanes, larger, versions};

/// The logits of a vocabulary cut into runs, with the best of each: most of what is asked of them needs few of the runs.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    logits: &'a [f32],
    /// Logits of a run; the last may have fewer.
    width: usize,
    tops: &'a [f32],
    best: f32,
}

impl<'a> Runs<'a> {
    /// Cuts logits into at least `count` runs, if they are so many; `tops` is a buffer. None if a logit is not a number or plus
    /// infinity.
    pub fn cut(logits: &'a [f32], count: usize, tops: &'a mut Vec<f32>) -> Option<Runs<'a>> {
        let width = TOGETHER * logits.len().div_ceil(TOGETHER.saturating_mul(count)).max(1);
        tops.clear();
        tops.resize(logits.len().div_ceil(width), 0.0);
        let is_broken = tops_kernel(machine::cpu::isa(), logits, width, tops);
        let best = tops.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        (!is_broken).then_some(Runs { logits, width, tops, best })
    }

    /// All logits.
    pub fn logits(&self) -> &'a [f32] {
        self.logits
    }

    /// The best logit of all; minus infinity if there is none.
    pub fn best(&self) -> f32 {
        self.best
    }

    /// The runs of which `wants` wants the best, each with its first token.
    pub fn of_tops(
        self,
        mut wants: impl FnMut(f32) -> bool,
    ) -> impl Iterator<Item = (u32, &'a [f32])> {
        let runs = self.logits.chunks(self.width).zip((0..).step_by(self.width));
        let wanted = self.tops.iter().zip(runs).filter(move |&(&top, _)| wants(top));
        wanted.map(|(_, (run, first))| (first, run))
    }

    /// A height that the best of at least `count` runs reach, so that the `count` best logits do; of many more only if they are
    /// within a sixteenth of each other. Minus infinity if the runs are fewer, or so many only far below the best.
    pub fn bar(&self, count: usize) -> f32 {
        let is_reached = |bar: f32| reaching_kernel(machine::cpu::isa(), self.tops, bar) >= count;
        // Ever farther from the best until it is far enough; then the last step is halved a few times.
        let (mut near, mut far) = (0.0, 1.0);
        while !is_reached(self.best - far) {
            if far > MOST_BELOW {
                return f32::NEG_INFINITY;
            }
            (near, far) = (far, 2.0 * far);
        }
        for _ in 0..HALVINGS {
            let middle = (near + far) / 2.0;
            *(if is_reached(self.best - middle) { &mut far } else { &mut near }) = middle;
        }
        self.best - far
    }

    /// The tokens whose logits are not below `bar()`, which may rise meanwhile, in ascending order.
    pub fn reaching(self, bar: impl Fn() -> f32, mut take: impl FnMut(u32, f32)) {
        for (first, run) in self.of_tops(|top| top >= bar()) {
            for (chunk, first) in run.chunks(TOGETHER).zip((first..).step_by(TOGETHER)) {
                let mut those = mask_kernel(machine::cpu::isa(), chunk, bar());
                while those != 0 {
                    let index = those.trailing_zeros();
                    take(first + index, chunk[index as usize]);
                    those &= those - 1;
                }
            }
        }
    }

    /// The runs in which something weighs more than nothing.
    fn that_weigh(self, inverse_temperature: f32) -> impl Iterator<Item = &'a [f32]> {
        let weighs = move |top: f32| {
            let is_nothing = (top - self.best) * inverse_temperature < LEAST_EXPONENT;
            !is_nothing
        };
        self.of_tops(weighs).map(|(_, run)| run)
    }

    /// What a logit weighs against the best, which weighs 1.
    pub fn weight(&self, logit: f32, inverse_temperature: f64) -> f64 {
        exp((f64::from(logit) - f64::from(self.best)) * inverse_temperature)
    }

    /// The weights of all tokens together.
    pub fn mass(&self, inverse_temperature: f64) -> f64 {
        mass_kernel(machine::cpu::isa(), self, inverse_temperature as f32)
    }

    /// The tokens of a step, with their logits, in ascending order of tokens.
    pub fn tokens_of_step(
        self,
        inverse_temperature: f64,
        step: usize,
        mut take: impl FnMut(u32, f32),
    ) {
        let inverse = inverse_temperature as f32;
        let step_of = |logit: f32| step_of((logit - self.best) * inverse);
        for (first, run) in self.of_tops(|top| step_of(top) <= step) {
            for (chunk, first) in run.chunks(TOGETHER).zip((first..).step_by(TOGETHER)) {
                if chunk.iter().fold(false, |some, &logit| some | (step_of(logit) == step)) {
                    for (token, &logit) in (first..).zip(chunk) {
                        if step_of(logit) == step && logit > f32::NEG_INFINITY {
                            take(token, logit);
                        }
                    }
                }
            }
        }
    }
}

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
    pub fn fill(&mut self, runs: &Runs<'_>, inverse_temperature: f64) {
        self.sums.iter_mut().for_each(|sums| sums.fill(0.0));
        spread_kernel(machine::cpu::isa(), runs, inverse_temperature as f32, &mut self.sums);
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

/// The step of an exponent that is not positive.
#[inline(always)]
fn step_of(x: f32) -> usize {
    // Casts stop at the ends of their range.
    ((x * -STEPS_PER_E) as i32).min(STEPS as i32 - 1) as usize
}

/// Logits that are compared, or whose exponentials are computed, side by side: that of one is a chain of many operations.
const TOGETHER: usize = 32;

versions! {
    fn tops_kernel(logits: &[f32], width: usize, tops: &mut [f32]) -> bool = tops_body
}

/// The best of each run. Whether one is not a number or plus infinity.
#[inline(always)]
fn tops_body(logits: &[f32], width: usize, tops: &mut [f32]) -> bool {
    let mut broken = [0u32; TOGETHER];
    for (run, top) in logits.chunks(width).zip(tops) {
        let mut best = [f32::NEG_INFINITY; TOGETHER];
        let (chunks, rest) = run.as_chunks::<TOGETHER>();
        for chunk in chunks {
            compare(chunk, &mut best, &mut broken);
        }
        if !rest.is_empty() {
            compare(&padded(rest), &mut best, &mut broken);
        }
        *top = join_lanes(best, larger);
    }
    broken.iter().any(|&broken| broken != 0)
}

#[inline(always)]
fn compare(logits: &[f32; TOGETHER], best: &mut [f32; TOGETHER], broken: &mut [u32; TOGETHER]) {
    for i in 0..TOGETHER {
        best[i] = larger(best[i], logits[i]);
        // Neither is less than plus infinity.
        broken[i] |= if logits[i] < f32::INFINITY { 0 } else { 1 };
    }
}

/// The end of a run, filled up with logits that weigh nothing.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; TOGETHER] {
    let mut last = [f32::NEG_INFINITY; TOGETHER];
    last[..rest.len()].copy_from_slice(rest);
    last
}

/// How far below the best a bar is looked for.
const MOST_BELOW: f32 = 1e6;
/// How often the way to a bar is halved.
const HALVINGS: usize = 4;

versions! {
    fn reaching_kernel(logits: &[f32], bar: f32) -> usize = reaching_body
}

/// How many are not below a bar.
#[inline(always)]
fn reaching_body(logits: &[f32], bar: f32) -> usize {
    logits.iter().map(|&logit| u32::from(logit >= bar)).sum::<u32>() as usize
}

versions! {
    fn mask_kernel(logits: &[f32], bar: f32) -> u32 = mask_body
}

/// Which of up to [`TOGETHER`] are not below a bar.
#[inline(always)]
fn mask_body(logits: &[f32], bar: f32) -> u32 {
    let bit = |logits: &[f32], i: usize| u32::from(logits[i] >= bar) << i;
    match logits.as_array::<TOGETHER>() {
        Some(all) => (0..TOGETHER).fold(0, |mask, i| mask | bit(all, i)),
        None => (0..logits.len()).fold(0, |mask, i| mask | bit(logits, i)),
    }
}

/// The exponent below which a logit weighs nothing.
const LEAST_EXPONENT: f32 = -87.0;

versions! {
    fn mass_kernel(runs: &Runs<'_>, inverse_temperature: f32) -> f64 = mass_body
}

#[inline(always)]
fn mass_body(runs: &Runs<'_>, inverse_temperature: f32) -> f64 {
    let mut sums = [0.0; TOGETHER];
    for run in runs.that_weigh(inverse_temperature) {
        let (chunks, rest) = run.as_chunks::<TOGETHER>();
        for chunk in chunks {
            add(chunk, runs.best, inverse_temperature, &mut sums);
        }
        if !rest.is_empty() {
            add(&padded(rest), runs.best, inverse_temperature, &mut sums);
        }
    }
    sums.iter().sum()
}

#[inline(always)]
fn add(logits: &[f32; TOGETHER], best: f32, inverse_temperature: f32, sums: &mut [f64; TOGETHER]) {
    let (_, weights) = weights(logits, best, inverse_temperature);
    for i in 0..TOGETHER {
        sums[i] += f64::from(weights[i]);
    }
}

versions! {
    fn spread_kernel(runs: &Runs<'_>, inverse_temperature: f32, sums: &mut [[f64; STEPS]; APART]) = spread_body
}

#[inline(always)]
fn spread_body(runs: &Runs<'_>, inverse_temperature: f32, sums: &mut [[f64; STEPS]; APART]) {
    for run in runs.that_weigh(inverse_temperature) {
        let (chunks, rest) = run.as_chunks::<TOGETHER>();
        for chunk in chunks {
            add_by_step(chunk, runs.best, inverse_temperature, sums);
        }
        if !rest.is_empty() {
            add_by_step(&padded(rest), runs.best, inverse_temperature, sums);
        }
    }
}

#[inline(always)]
fn add_by_step(
    logits: &[f32; TOGETHER],
    best: f32,
    inverse_temperature: f32,
    sums: &mut [[f64; STEPS]; APART],
) {
    let (x, weights) = weights(logits, best, inverse_temperature);
    let mut steps = [0; TOGETHER];
    for i in 0..TOGETHER {
        steps[i] = step_of(x[i]);
    }
    for i in 0..TOGETHER {
        sums[i % APART][steps[i]] += f64::from(weights[i]);
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

/// `eˣ` for `x ≤ 0`, to within a few units in the last place; 0 below [`LEAST_EXPONENT`]. Each step is done for all of `x`, so that the compiler does
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
        let clamped = if x[i] > LEAST_EXPONENT { x[i] } else { LEAST_EXPONENT };
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
        y[i] = if x[i] < LEAST_EXPONENT { 0.0 } else { y[i] * power };
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

    /// Runs of the smallest width.
    fn narrow<'a>(logits: &'a [f32], tops: &'a mut Vec<f32>) -> Runs<'a> {
        Runs::cut(logits, logits.len(), tops).unwrap()
    }

    #[test]
    fn a_mass_has_the_same_bits_everywhere() {
        for count in [1, 7, 31, 32, 33, 4096, 5003] {
            let logits = some_logits(count);
            let mut tops = Vec::new();
            let runs = narrow(&logits, &mut tops);
            let want = mass_kernel(Isa::Scalar, &runs, 0.7);
            let exact: f64 = logits.iter().map(|&logit| (f64::from(logit) * 0.7).exp()).sum();
            assert!((want - exact).abs() < 1e-6 * exact, "{want} {exact}");
            let mut spread = Spread::default();
            spread_kernel(Isa::Scalar, &runs, 0.7, &mut spread.sums);
            for isa in Isa::ALL.into_iter().filter(|&isa| supports(isa)) {
                let got = mass_kernel(isa, &runs, 0.7);
                assert_eq!(got.to_bits(), want.to_bits(), "{count} logits on {isa}");
                let mut other = Spread::default();
                spread_kernel(isa, &runs, 0.7, &mut other.sums);
                assert!(other.sums == spread.sums, "{count} logits on {isa}");
            }
        }
    }

    #[test]
    fn runs_that_are_passed_over_change_no_bit() {
        // From run to run by more and more below the best, the last ones masked.
        let mut logits = some_logits(5003);
        for (run, logits) in logits.chunks_mut(TOGETHER).enumerate() {
            logits.iter_mut().for_each(|logit| *logit -= run as f32);
        }
        logits[4800..].fill(f32::NEG_INFINITY);
        for inverse in [0.5, 1.0, 1.7] {
            let (mut tops, mut top) = (Vec::new(), Vec::new());
            let (many, one) =
                (narrow(&logits, &mut tops), Runs::cut(&logits, 1, &mut top).unwrap());
            assert_eq!((many.tops.len(), one.tops.len()), (157, 1));
            assert_eq!(many.mass(inverse).to_bits(), one.mass(inverse).to_bits());
            let (mut of_many, mut of_one) = (Spread::default(), Spread::default());
            of_many.fill(&many, inverse);
            of_one.fill(&one, inverse);
            assert!(of_many.sums == of_one.sums);
            for step in (0..STEPS).step_by(31).chain([STEPS - 1]) {
                let tokens = |runs: Runs<'_>| {
                    let mut tokens = Vec::new();
                    runs.tokens_of_step(inverse, step, |token, logit| tokens.push((token, logit)));
                    tokens
                };
                assert_eq!(tokens(many), tokens(one), "step {step}");
            }
        }
    }

    #[test]
    fn the_best_are_found_and_what_is_broken_is_seen() {
        let mut tops = Vec::new();
        assert_eq!(Runs::cut(&[], 1, &mut tops).unwrap().best(), f32::NEG_INFINITY);
        for count in [1, 31, 32, 33, 64, 100] {
            for place in 0..count {
                let mut logits = vec![f32::MIN; count];
                logits[0] = f32::NEG_INFINITY;
                logits[place] = -3.0;
                for runs in [1, 2, 100] {
                    let runs = Runs::cut(&logits, runs, &mut tops).unwrap();
                    assert_eq!(runs.best(), -3.0);
                    let (first, run) = runs.of_tops(|top| top == -3.0).next().unwrap();
                    assert_eq!(run[place - first as usize], -3.0);
                }
                for broken in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    logits[place] = broken;
                    for isa in Isa::ALL.into_iter().filter(|&isa| supports(isa)) {
                        let mut tops = vec![0.0; count.div_ceil(32)];
                        assert!(
                            tops_kernel(isa, &logits, 32, &mut tops),
                            "{broken} at {place}, {isa}"
                        );
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
            for width in [TOGETHER, 3 * TOGETHER, 1000, 1024] {
                let largest = |run: &[f32]| run.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let want: Vec<f32> = logits.chunks(width).map(largest).collect();
                let mut got = vec![0.0; want.len()];
                assert!(!tops_kernel(isa, &logits, width, &mut got));
                assert_eq!(got, want, "runs of {width} on {isa}");
            }
        }
    }

    #[test]
    fn a_bar_is_reached_by_enough_and_by_all_that_reach_it() {
        let mut logits = some_logits(5003);
        logits[300..900].fill(f32::NEG_INFINITY);
        for (offset, factor) in [(0.0, 1.0), (7.0, 1e-4), (-40.0, 300.0), (3e30, 1e27), (5.0, 0.0)]
        {
            let logits: Vec<f32> = logits.iter().map(|&l| l * factor + offset).collect();
            let logits: Vec<f32> =
                logits.iter().map(|&l| if l.is_nan() { f32::NEG_INFINITY } else { l }).collect();
            let mut tops = Vec::new();
            let runs = narrow(&logits, &mut tops);
            for count in [1, 2, 20, 100, 157, 158, 4000] {
                let bar = runs.bar(count);
                let reach = runs.tops.iter().filter(|&&top| top >= bar).count();
                assert!(reach >= count || bar == f32::NEG_INFINITY, "{count}: {bar}, {reach}");
                let want: Vec<u32> =
                    (0..).zip(&logits).filter(|x| *x.1 >= bar).map(|x| x.0).collect();
                let mut got = Vec::new();
                runs.reaching(
                    || bar,
                    |token, logit| {
                        assert_eq!(logit, logits[token as usize]);
                        got.push(token);
                    },
                );
                assert_eq!(got, want, "{count} at {offset}");
            }
        }
        // Close enough to be worth it.
        let mut tops = Vec::new();
        let runs = narrow(&logits, &mut tops);
        let reach = runs.tops.iter().filter(|&&top| top >= runs.bar(20)).count();
        assert!(reach < 40, "{reach}");
    }

    #[test]
    fn bars_and_masks_are_the_same_everywhere() {
        let logits = some_logits(101);
        for isa in Isa::ALL.into_iter().filter(|&isa| supports(isa)) {
            for bar in [f32::NEG_INFINITY, logits[3], -0.5, 0.0, 1.0] {
                let reach: Vec<bool> = logits.iter().map(|&logit| logit >= bar).collect();
                let count = reach.iter().filter(|&&r| r).count();
                assert_eq!(reaching_kernel(isa, &logits, bar), count);
                for (chunk, reach) in logits.chunks(TOGETHER).zip(reach.chunks(TOGETHER)) {
                    let mask = mask_kernel(isa, chunk, bar);
                    let got: Vec<bool> = (0..chunk.len()).map(|i| mask >> i & 1 == 1).collect();
                    assert_eq!(got, reach, "{bar} on {isa}");
                }
            }
        }
    }

    #[test]
    fn steps_hold_every_token_once() {
        let mut logits = some_logits(5003);
        logits[17] = f32::NEG_INFINITY;
        let inverse = 1.3;
        let (mut tops, mut spread) = (Vec::new(), Spread::default());
        let runs = Runs::cut(&logits, 20, &mut tops).unwrap();
        spread.fill(&runs, inverse);
        let (mut seen, mut above) = (0, f32::INFINITY);
        for step in 0..STEPS {
            let (mut sum, mut least, mut most) = (0.0, f32::INFINITY, f32::NEG_INFINITY);
            runs.tokens_of_step(inverse, step, |token, logit| {
                assert_eq!(logits[token as usize], logit);
                sum += runs.weight(logit, inverse);
                (least, most) = (least.min(logit), most.max(logit));
                seen += 1;
            });
            assert!(most < above, "step {step} is not below the one before");
            above = above.min(least);
            let bound = least_weight(step) * (1.0 - 1e-5);
            assert!(least == f32::INFINITY || runs.weight(least, inverse) >= bound);
            let mass = spread.mass(step);
            assert!((mass - sum).abs() <= 1e-5 * sum, "step {step}: {mass}, tokens {sum}");
        }
        assert_eq!(seen, logits.len() - 1);
    }
}
