//! A source for benchmarks and tests: it knows the answers, and is wrong as often as it is configured to be.
//!
//! Whether it is wrong at a position, and which token it says then, depends on the seed and the position alone.

use runtime::{Result, Runner};

use super::controller::Offer;
use super::source::{Source, Wanted};
use super::{AnswerId, SourceKind};

/// Its buckets all say the same: it does not show when it is wrong.
const BUCKET: u8 = 4;

/// Knows what will be said.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// Prompts together with their answers. To what it does not know it says anything.
    pub texts: Vec<Vec<u32>>,
    /// How often a token is right.
    pub acceptance: f64,
    /// Decides which.
    pub seed: u64,
}

impl Oracle {
    /// The token at a position that it proposes; `truth` is what will come.
    fn token(&self, position: usize, truth: Option<u32>, vocab: usize) -> u32 {
        let noise = mix(self.seed ^ mix(position as u64));
        let draw = (noise >> 11) as f64 / (1u64 << 53) as f64;
        let other = (mix(noise) % vocab as u64) as u32;
        match truth {
            Some(truth) if draw < self.acceptance => truth,
            Some(truth) if truth == other => (other + 1) % vocab as u32,
            _ => other,
        }
    }
}

/// SplitMix64's finaliser: neighbouring numbers come out unrelated.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Source for Oracle {
    fn kind(&self) -> SourceKind {
        SourceKind::Oracle
    }

    fn offer(&mut self, _id: AnswerId, _tokens: &[u32], most: usize) -> Option<Offer> {
        Some(Offer { source: SourceKind::Oracle, most, behind: 0, bucket: None })
    }

    fn draft(&mut self, target: &mut Runner, wanted: &mut [Wanted<'_>]) -> Result<()> {
        let vocab = target.spec().vocab;
        for Wanted { tokens, count, draft, .. } in wanted {
            let known = self.texts.iter().find(|text| text.starts_with(tokens));
            for position in tokens.len()..tokens.len() + *count {
                let truth = known.and_then(|text| text.get(position)).copied();
                draft.push(self.token(position, truth, vocab), BUCKET);
            }
        }
        Ok(())
    }
}
