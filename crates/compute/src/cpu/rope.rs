//! Rotary position embedding: which angle each pair of a head turns by, and the turning.
//!
//! What turns are consecutive dimensions of a head, in pairs; the others pass through. Frequencies follow transformers' `modeling_rope_utils.py`; the angle is the f32
//! product of position and frequency, as there, and its cosine and sine are rounded from f64.

use super::lanes::versions;

/// The rotation of one kind of attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// How many dimensions of a head turn.
    pub rotary_dim: usize,
    /// The first of them.
    pub first_dim: usize,
    /// Which of them turn together.
    pub pairs: RopePairs,
    inv_freq: Vec<f32>, // [rotary_dim / 2]
    attention_factor: f32,
}

/// Which of the dimensions `0..n` that turn make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// `i` and `i + n / 2`, "rotate half".
    Halves,
    /// `2i` and `2i + 1`.
    Interleaved,
}

/// What `rope_type: yarn` needs in addition to theta; names as in config.json.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How many times the context was extended.
    pub factor: f64,
    /// `original_max_position_embeddings`.
    pub original_max_position: f64,
    /// Rotations over the original context above which a frequency is kept (32).
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided by `factor` (1).
    pub beta_slow: f64,
    /// Multiplies cosine and sine; `None` derives it from `mscale` and `mscale_all_dim`, or `factor`.
    pub attention_factor: Option<f64>,
    /// DeepSeek's pair, used only when both are given and not zero.
    pub mscale: Option<f64>,
    /// See `mscale`.
    pub mscale_all_dim: Option<f64>,
    /// Whether the correction range is widened to whole dimensions (gpt-oss: no).
    pub truncate: bool,
}

/// `theta^(2j / dim)` for each pair: raised in f64, rounded to f32.
fn periods(dim: usize, pairs: usize, theta: f64) -> impl Iterator<Item = f32> {
    (0..pairs).map(move |j| {
        let exponent = (2 * j) as f32 / dim as f32;
        theta.powf(f64::from(exponent)) as f32
    })
}

impl Rope {
    fn new(rotary_dim: usize, inv_freq: Vec<f32>) -> Rope {
        assert_eq!(inv_freq.len() * 2, rotary_dim, "rotary dimension must be even");
        let (first_dim, pairs) = (0, RopePairs::Halves);
        Rope { rotary_dim, first_dim, pairs, inv_freq, attention_factor: 1.0 }
    }

    /// `rope_type: default`.
    pub fn default_theta(rotary_dim: usize, theta: f64) -> Rope {
        let inv_freq = periods(rotary_dim, rotary_dim / 2, theta).map(|period| 1.0 / period);
        Rope::new(rotary_dim, inv_freq.collect())
    }

    /// `rope_type: linear`: every frequency divided by `factor`.
    pub fn linear(rotary_dim: usize, theta: f64, factor: f64) -> Rope {
        let mut rope = Rope::default_theta(rotary_dim, theta);
        for freq in &mut rope.inv_freq {
            *freq /= factor as f32;
        }
        rope
    }

    /// `rope_type: proportional` (Gemma 4): pairs span the whole head, and only the first `partial`
    /// of them turn, with the frequencies of the whole head.
    pub fn proportional(head_dim: usize, theta: f64, partial: f64, factor: f64) -> Rope {
        let turning = (partial * head_dim as f64 / 2.0).floor() as usize;
        let mut inv_freq: Vec<f32> =
            periods(head_dim, turning, theta).map(|period| 1.0 / period / factor as f32).collect();
        inv_freq.resize(head_dim / 2, 0.0);
        Rope::new(head_dim, inv_freq)
    }

    /// `rope_type: llama3`: long wavelengths divided by `factor`, short ones kept, a ramp between.
    pub fn llama3(
        rotary_dim: usize,
        theta: f64,
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position: f64,
    ) -> Rope {
        let mut rope = Rope::default_theta(rotary_dim, theta);
        let (factor, low, high) = (factor as f32, low_freq_factor as f32, high_freq_factor as f32);
        let original = original_max_position as f32;
        for freq in &mut rope.inv_freq {
            let wavelength = std::f32::consts::TAU / *freq;
            if wavelength > original / low {
                *freq /= factor;
            } else if wavelength >= original / high {
                let smooth = (original / wavelength - low) / (high - low);
                *freq = (1.0 - smooth) * *freq / factor + smooth * *freq;
            }
        }
        rope
    }

    /// `rope_type: yarn`.
    pub fn yarn(rotary_dim: usize, theta: f64, yarn: &Yarn) -> Rope {
        let dim = rotary_dim as f64;
        // The dimension whose pair makes `rotations` turns over the original context.
        let dimension = |rotations: f64| {
            let turns = yarn.original_max_position / (rotations * std::f64::consts::TAU);
            dim * turns.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (dimension(yarn.beta_fast), dimension(yarn.beta_slow));
        if yarn.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let inv_freq = periods(rotary_dim, rotary_dim / 2, theta).enumerate().map(|(j, period)| {
            let ramp = ((j as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            let interpolated = 1.0 / (yarn.factor as f32 * period);
            interpolated * (1.0 - kept) + 1.0 / period * kept
        });
        let mut rope = Rope::new(rotary_dim, inv_freq.collect());
        let mscale = |mscale: f64| {
            if yarn.factor <= 1.0 { 1.0 } else { 0.1 * mscale * yarn.factor.ln() + 1.0 }
        };
        let factor = match (yarn.attention_factor, yarn.mscale, yarn.mscale_all_dim) {
            (Some(factor), ..) => factor,
            (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => mscale(m) / mscale(all),
            _ => mscale(1.0),
        };
        rope.attention_factor = factor as f32;
        rope
    }

    /// Writes the cosine and sine of each pair at `position`; both slices are `rotary_dim / 2` long.
    pub fn table(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        self.table_by_pair(|_| position, cos, sin);
    }

    /// [`Rope::table`] where each pair has its own position, as in M-RoPE.
    pub fn table_by_pair(
        &self,
        position_of_pair: impl Fn(usize) -> usize,
        cos: &mut [f32],
        sin: &mut [f32],
    ) {
        assert!(cos.len() == self.inv_freq.len() && sin.len() == self.inv_freq.len());
        for (j, &freq) in self.inv_freq.iter().enumerate() {
            let angle = position_of_pair(j) as f32 * freq;
            let (s, c) = f64::from(angle).sin_cos();
            cos[j] = c as f32 * self.attention_factor;
            sin[j] = s as f32 * self.attention_factor;
        }
    }
}

/// Cosines and sines for the rows of a step: layers ask for the same ones again and again, for queries and for keys.
#[derive(Default)]
pub(crate) struct Turns(Vec<Turned>);

/// Kinds of attention layers of one model, at most.
const MOST_KINDS: usize = 2;

/// Those of one kind of layer.
struct Turned {
    rope: Rope,
    positions: Vec<u32>,
    /// `[rows, rotary_dim]`: the cosines of a row, then its sines.
    table: Vec<f32>,
}

impl Turns {
    /// Those of rows at these positions.
    pub(crate) fn of(&mut self, rope: &Rope, positions: &[u32]) -> &[f32] {
        let kind = self.0.iter().position(|turned| turned.rope == *rope).unwrap_or_else(|| {
            if self.0.len() == MOST_KINDS {
                self.0.remove(0);
            }
            self.0.push(Turned { rope: rope.clone(), positions: Vec::new(), table: Vec::new() });
            self.0.len() - 1
        });
        let turned = &mut self.0[kind];
        if turned.positions != positions {
            turned.positions.clear();
            turned.positions.extend_from_slice(positions);
            turned.table.clear();
            turned.table.resize(positions.len() * rope.rotary_dim, 0.0);
            let rows = turned.table.chunks_exact_mut(rope.rotary_dim.max(1));
            for (row, &position) in rows.zip(positions) {
                let (cos, sin) = row.split_at_mut(rope.rotary_dim / 2);
                rope.table(position as usize, cos, sin);
            }
        }
        &turned.table
    }
}

versions! {
    /// Turns each head of `head_dim` in place; `table` has the cosines of its pairs, then the sines.
    pub(crate) fn rotate(heads: &mut [f32], head_dim: usize, rope: &Rope, table: &[f32]) = rotate_body
}

#[inline(always)]
fn rotate_body(heads: &mut [f32], head_dim: usize, rope: &Rope, table: &[f32]) {
    let turning = rope.first_dim..rope.first_dim + rope.rotary_dim;
    assert!(table.len() == rope.rotary_dim && heads.len().is_multiple_of(head_dim));
    let (cos, sin) = table.split_at(rope.rotary_dim / 2);
    for head in heads.chunks_exact_mut(head_dim) {
        let head = &mut head[turning.clone()];
        match rope.pairs {
            RopePairs::Halves => {
                let (low, high) = head.split_at_mut(cos.len());
                for (((x, y), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                    (*x, *y) = turned(*x, *y, c, s);
                }
            }
            RopePairs::Interleaved => {
                let pairs = head.as_chunks_mut::<2>().0;
                for ((pair, &c), &s) in pairs.iter_mut().zip(cos).zip(sin) {
                    *pair = turned(pair[0], pair[1], c, s).into();
                }
            }
        }
    }
}

#[inline(always)]
fn turned(x: f32, y: f32, cos: f32, sin: f32) -> (f32, f32) {
    (x.mul_add(cos, -(y * sin)), y.mul_add(cos, x * sin))
}

#[cfg(test)]
mod tests {
    use super::super::activation::testing::{Random, assert_close, assert_same_bits, isas};
    use super::*;

    #[track_caller]
    fn check_freq(rope: &Rope, pair: usize, want: f64) {
        let got = f64::from(rope.inv_freq[pair]);
        assert!((got - want).abs() <= 3e-7 * want, "pair {pair}: {got:e}, wanted {want:e}");
    }

    #[test]
    fn default_frequencies_fall_geometrically() {
        let rope = Rope::default_theta(64, 1e7);
        for j in 0..32 {
            check_freq(&rope, j, 1e7f64.powf(-(j as f64) / 32.0));
        }
        assert_eq!(Rope::linear(64, 1e7, 4.0).inv_freq[5], rope.inv_freq[5] / 4.0);
    }

    /// Values printed by transformers 5.22 (torch 2.15); its f32 powers are off by an ulp here and there.
    #[track_caller]
    fn check_transformers(rope: &Rope, pairs: &[(usize, f64)]) {
        for &(pair, want) in pairs {
            check_freq(rope, pair, want);
        }
    }

    #[test]
    fn llama3_matches_transformers() {
        // Llama 3.1: factor 8, low 1, high 4, original 8192.
        let plain = Rope::default_theta(128, 5e5);
        let rope = Rope::llama3(128, 5e5, 8.0, 1.0, 4.0, 8192.0);
        assert_eq!(rope.inv_freq[..29], plain.inv_freq[..29]);
        assert_eq!(rope.inv_freq[63], plain.inv_freq[63] / 8.0);
        check_transformers(
            &rope,
            &[
                (28, 3.211_446_106_433_868_4e-3),
                (29, 2.166_570_629_924_535_8e-3),
                (31, 8.567_514_596_506_953e-4),
                (34, 1.785_077_911_335_975e-4),
                (35, 9.556_212_171_446_532e-5),
                (39, 4.208_236_714_475_788e-5),
            ],
        );
    }

    #[test]
    fn yarn_matches_transformers() {
        // gpt-oss.
        let yarn = Yarn {
            factor: 32.0,
            original_max_position: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: false,
        };
        let rope = Rope::yarn(64, 150_000.0, &yarn);
        assert_eq!(rope.attention_factor, 1.346_573_590_279_972_7f64 as f32);
        check_transformers(
            &rope,
            &[
                (0, 1.0),
                (1, 0.689_044_296_741_485_6),
                (8, 5.081_327_259_540_558e-2),
                (9, 3.170_569_613_575_935_4e-2),
                (13, 3.860_359_080_135_822_3e-3),
                (16, 4.564_839_182_421_565e-4),
                (17, 1.293_186_942_348_256_7e-4),
                (18, 3.830_881_178_146_228e-5),
                (31, 3.023_511_396_804_679e-7),
            ],
        );
        // Whole bounds, and DeepSeek's mscales.
        let truncated =
            Yarn { truncate: true, mscale: Some(1.0), mscale_all_dim: Some(0.707), ..yarn };
        let rope = Rope::yarn(64, 150_000.0, &truncated);
        assert_eq!(rope.attention_factor, 1.081_561_298_558_922_2f64 as f32);
        check_transformers(
            &rope,
            &[
                (8, 5.081_327_259_540_558e-2),
                (9, 3.162_075_206_637_382_5e-2),
                (13, 4.069_554_619_491_1e-3),
                (17, 2.279_478_358_104_825e-4),
                (18, 3.830_881_178_146_228e-5),
            ],
        );
        let given = Yarn { attention_factor: Some(0.5), ..truncated };
        assert_eq!(Rope::yarn(64, 150_000.0, &given).attention_factor, 0.5);
    }

    #[test]
    fn proportional_spans_the_head() {
        let rope = Rope::proportional(512, 1e6, 0.25, 1.0);
        assert_eq!(rope.rotary_dim, 512);
        check_freq(&rope, 63, 1e6f64.powf(-126.0 / 512.0));
        assert!(rope.inv_freq[64..].iter().all(|&freq| freq == 0.0));
    }

    #[test]
    fn rotation_agrees_with_complex_numbers_on_every_instruction_set() {
        let mut random = Random::new(5);
        let heads = [(256, 64, 0), (64, 64, 0), (40, 18, 0), (512, 512, 0), (96, 32, 64)];
        let kinds = heads.iter().flat_map(|&head| {
            [RopePairs::Halves, RopePairs::Interleaved].map(|pairs| (head, pairs))
        });
        for ((head_dim, rotary_dim, first_dim), pairs) in kinds {
            let rope = Rope { first_dim, pairs, ..Rope::default_theta(rotary_dim, 1e4) };
            let half = rotary_dim / 2;
            let mut table = vec![0.0; rotary_dim];
            let (cos, sin) = table.split_at_mut(half);
            rope.table(12_345, cos, sin);
            let x = random.normals(3 * head_dim);
            let mut want: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            for head in want.chunks_mut(head_dim) {
                for j in 0..half {
                    let angle = f64::from(12_345.0 * rope.inv_freq[j]);
                    let (i, k) = match pairs {
                        RopePairs::Halves => (first_dim + j, first_dim + j + half),
                        RopePairs::Interleaved => (first_dim + 2 * j, first_dim + 2 * j + 1),
                    };
                    let (a, b) = (head[i], head[k]);
                    head[i] = a * angle.cos() - b * angle.sin();
                    head[k] = a * angle.sin() + b * angle.cos();
                }
            }
            let mut first = None;
            for isa in isas() {
                let mut got = x.clone();
                rotate(isa, &mut got, head_dim, &rope, &table);
                assert_close(&got, &want, 3e-7);
                assert_same_bits(&got, first.get_or_insert(got.clone()));
            }
        }
    }

    #[test]
    fn pairs_can_have_their_own_positions() {
        let rope = Rope::default_theta(8, 1e4);
        let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
        rope.table_by_pair(|j| if j % 2 == 1 { 9 } else { 0 }, &mut cos, &mut sin);
        let (mut cos9, mut sin9) = ([0.0; 4], [0.0; 4]);
        rope.table(9, &mut cos9, &mut sin9);
        assert_eq!((cos[0], sin[0]), (1.0, 0.0));
        assert_eq!((cos[1], sin[3]), (cos9[1], sin9[3]));
    }

    #[test]
    fn turns_are_those_of_the_rope_and_the_positions() {
        let [slow, fast, third] = [1e6, 1e4, 1e3].map(|theta| Rope::default_theta(8, theta));
        let mut turns = Turns::default();
        let asked: [(&Rope, &[u32]); 8] = [
            (&slow, &[3, 1000]),
            (&slow, &[3, 1000]),
            (&fast, &[3, 1000]),
            (&fast, &[4, 1001]),
            (&fast, &[4]),
            (&slow, &[4]),
            (&third, &[4]),
            (&fast, &[4]),
        ];
        for (rope, positions) in asked {
            let mut want = Vec::new();
            for &position in positions {
                let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
                rope.table(position as usize, &mut cos, &mut sin);
                want.extend([cos, sin].concat());
            }
            assert_same_bits(turns.of(rope, positions), &want);
        }
    }
}
