//! Which pairs of pieces are joined, and in which order.

use std::collections::HashMap;

use super::Vocabulary;
use crate::{Error, Result};

/// The pairs as a file lists them, or, in files that list none, as the order of the tokens implies them.
pub(super) fn listed(vocabulary: &Vocabulary) -> Result<Vec<(&str, &str)>> {
    if vocabulary.merges.is_empty() {
        // Of two tokens the earlier was made first.
        let rank = |id: usize| -(id as f32);
        let scores: Vec<f32> = (0..vocabulary.tokens.len()).map(rank).collect();
        return by_score(&vocabulary.tokens, &scores, |id| {
            matches!(vocabulary.kinds.get(id), None | Some(0 | 1))
        });
    }
    let pair = |(index, merge): (usize, &'_ String)| -> Result<(usize, usize)> {
        // A piece may begin with a space.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let space = merge[first..].find(' ').map(|at| first + at);
        space.map(|at| (index, at)).ok_or_else(|| Error::Vocabulary {
            reason: format!("merge {index}, {merge:?}, is no pair"),
        })
    };
    let cuts: Vec<(usize, usize)> =
        vocabulary.merges.iter().enumerate().map(pair).collect::<Result<_>>()?;
    let cut = |(index, at): (usize, usize)| {
        let merge = &vocabulary.merges[index];
        (&merge[..at], &merge[at + 1..])
    };
    Ok(cuts.into_iter().map(cut).collect())
}

/// Every way to make a piece of two others, those of the highest score first: what is listed nowhere, since
/// sentencepiece joins whichever pair makes the piece with the highest score.
pub(super) fn by_score<'a>(
    tokens: &'a [String],
    scores: &[f32],
    is_normal: impl Fn(usize) -> bool,
) -> Result<Vec<(&'a str, &'a str)>> {
    if scores.len() != tokens.len() {
        let (scores, tokens) = (scores.len(), tokens.len());
        let reason = format!("{scores} scores for {tokens} tokens");
        return Err(Error::Vocabulary { reason });
    }
    let normal = (0..tokens.len()).filter(|&id| is_normal(id));
    let ids: HashMap<&str, usize> = normal.map(|id| (tokens[id].as_str(), id)).collect();
    let mut found: Vec<(usize, usize, usize)> = Vec::new(); // whole, left, right
    for (&piece, &whole) in &ids {
        for (at, _) in piece.char_indices().skip(1) {
            if let (Some(&left), Some(&right)) = (ids.get(&piece[..at]), ids.get(&piece[at..])) {
                found.push((whole, left, right));
            }
        }
    }
    found.sort_unstable_by(|a, b| scores[b.0].total_cmp(&scores[a.0]).then(a.cmp(b)));
    let pair =
        |(_, left, right): (usize, usize, usize)| (tokens[left].as_str(), tokens[right].as_str());
    Ok(found.into_iter().map(pair).collect())
}
