//! Values from counters: any group of any row of any tensor, without making what comes before it.
//!
//! So both file formats hold the same numbers although they store rows, heads and nibbles in
//! different orders, and threads need not agree on anything. Weights are uniform over the sixteen
//! levels of a group, which is what random bits give for free; a group's scale makes their size.

use half::f16;

/// Weights that share one 16-byte run of codes: a Q4_1 block, and the smallest MLX group.
pub(crate) const BLOCK: usize = 32;

/// Bytes of a block's codes.
pub(crate) const BLOCK_BYTES: usize = BLOCK / 2;

/// Standard deviation of a uniform code 0..=15: sqrt((16² − 1) / 12).
const CODE_STD: f32 = 4.609_772;

/// Standard deviation of a uniform E2M1 code: the root of (0² + 0.5² + 1² + 1.5² + 2² + 3² + 4² + 6²) / 8.
const E2M1_STD: f32 = 2.926_175;

/// Mean of a uniform code.
const CODE_MEAN: f32 = 7.5;

/// The same of a code 0..=255.
const BYTE_STD: f32 = 73.900_16;
const BYTE_MEAN: f32 = 127.5;

/// The increment of SplitMix64 (Steele, Lea, Flood 2014): an odd number near 2⁶⁴ / φ.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Keeps the scales' counters apart from the codes'.
const SCALES: u64 = 0x5ca1_e5ca_1e5c_a1e5;

/// A counter that no column has.
const SHUFFLE: u64 = 1 << 63;

/// Where a tensor's, or a row's, counters start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// The key of a tensor: the same for the same seed and name.
    pub(crate) fn new(seed: u64, name: &str) -> Key {
        let start = mix(seed.wrapping_add(GOLDEN));
        Key(name.bytes().fold(start, |key, byte| mix(key ^ u64::from(byte))))
    }

    /// The key of a row, counted through all experts of a stack.
    pub(crate) fn row(self, row: usize) -> Key {
        Key(mix(self.0.wrapping_add((row as u64 + 1).wrapping_mul(GOLDEN))))
    }

    #[inline]
    fn word(self, counter: u64) -> u64 {
        mix(self.0.wrapping_add((counter + 1).wrapping_mul(GOLDEN)))
    }
}

/// SplitMix64's finaliser: every input bit reaches every output bit.
#[inline]
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The codes of one block of a row, in MLX's order: element 2j in the low nibble of byte j.
#[inline]
pub(crate) fn codes(row: Key, block: usize) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    bytes[..8].copy_from_slice(&row.word(2 * block as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&row.word(2 * block as u64 + 1).to_le_bytes());
    bytes
}

/// The same codes in Q4_1's order: element j low and element j + 16 high in byte j.
#[inline]
pub(crate) fn split_halves(codes: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    let mut split = [0; BLOCK_BYTES];
    for pair in 0..BLOCK_BYTES / 2 {
        let (first, second) = (codes[pair], codes[pair + BLOCK_BYTES / 2]);
        split[2 * pair] = (first & 0x0f) | (second << 4);
        split[2 * pair + 1] = (first >> 4) | (second & 0xf0);
    }
    split
}

/// Scale and bias of one group: weights of this standard deviation around zero, a quarter more or
/// less from group to group as in real checkpoints.
#[inline]
pub(crate) fn scale(row: Key, group: usize, std: f32) -> (f16, f16) {
    scale_of(row, group, std, [CODE_STD, CODE_MEAN])
}

/// The same for codes of eight bits.
#[inline]
pub(crate) fn byte_scale(row: Key, group: usize, std: f32) -> (f16, f16) {
    scale_of(row, group, std, [BYTE_STD, BYTE_MEAN])
}

#[inline]
fn scale_of(row: Key, group: usize, std: f32, [code_std, code_mean]: [f32; 2]) -> (f16, f16) {
    let jitter = 0.75 + 0.5 * unit(Key(row.0 ^ SCALES).word(group as u64));
    let scale = f16::from_f32(std / code_std * jitter);
    (scale, f16::from_f32(-code_mean * scale.to_f32()))
}

/// The E8M0 scale of 32 four-bit floats of about this standard deviation: the nearest power of two.
#[inline]
pub(crate) fn exponent(std: f32) -> u8 {
    ((std / E2M1_STD).log2().round() + 127.0).clamp(0.0, 254.0) as u8
}

/// Where a quantized matrix is not random but has one value: scale zero, so codes do not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flat {
    Nowhere,
    /// The first columns, whole groups of them.
    Columns {
        count: usize,
        value: f32,
    },
    /// Zero in the first `count` rows of every `of`: of every expert, in a stack.
    Rows {
        of: usize,
        count: usize,
    },
}

impl Flat {
    /// Scale and bias of a flat group.
    #[inline]
    pub(crate) fn scale(self, row: usize, column: usize) -> Option<(f16, f16)> {
        let value = match self {
            Flat::Columns { count, value } if column < count => value,
            Flat::Rows { of, count } if row % of < count => 0.0,
            Flat::Nowhere | Flat::Columns { .. } | Flat::Rows { .. } => return None,
        };
        Some((f16::ZERO, f16::from_f32(value)))
    }
}

/// Numbers from 0 in an order that the key decides.
pub(crate) fn shuffled(key: Key, count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    numbers.sort_by_key(|&number| key.row(number).word(SHUFFLE));
    numbers
}

/// How plain f32 values are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fill {
    /// Around zero.
    Normal { std: f32 },
    /// A norm's weights: 0.9 to 1.1.
    NearOne,
    /// The same around another value.
    Near { value: f32 },
    /// One, everywhere.
    One,
    /// `A_log` of a delta net: ln of 1 to 16 (the initialisation of Mamba 2 and Qwen3-Next).
    DecayLog,
    /// `dt_bias`: inverse softplus of a time step of 0.001 to 0.1, evenly in its logarithm
    /// (the initialisation of Mamba).
    TimeStep,
}

/// One plain value.
pub(crate) fn value(row: Key, column: usize, fill: Fill) -> f32 {
    let word = row.word(column as u64);
    match fill {
        Fill::Normal { std } => std * bell(word),
        Fill::NearOne => 0.9 + 0.2 * unit(word),
        Fill::Near { value } => value * (0.9 + 0.2 * unit(word)),
        Fill::One => 1.0,
        Fill::DecayLog => (1.0 + 15.0 * unit(word)).ln(),
        Fill::TimeStep => {
            let (low, high) = (0.001_f32.ln(), 0.1_f32.ln());
            (low + (high - low) * unit(word)).exp().exp_m1().ln()
        }
    }
}

/// 0 to 1, from the upper 24 bits.
fn unit(word: u64) -> f32 {
    (word >> 40) as f32 / (1_u32 << 24) as f32
}

/// Nearly normal with variance one: the sum of four uniform numbers of variance 1/12.
fn bell(word: u64) -> f32 {
    let sum: u32 = (0..4).map(|lane| (word >> (16 * lane)) as u32 & 0xffff).sum();
    (sum as f32 / 65_536.0 - 2.0) * 3.0_f32.sqrt()
}
