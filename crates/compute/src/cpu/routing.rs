//! Which experts a token goes to, and with what weights.
//!
//! The order is total: a larger logit first, equal logits by the lower expert, and what is not a
//! number counts as the smallest. So the choice never depends on the sort, and no input panics.

use super::activation::softplus;
use super::lanes::{LANES, exp, join_lanes, larger, sigmoid, sum_lanes, versions};
use crate::step::{ExpertGroups, RouterShape, Score};

/// Groups of lanes whose logits are kept on the stack.
const MOST_GROUPS: usize = 16;

versions! {
    /// The `ids.len()` experts with the largest scores, in descending order, and their weights. `bias` is added to the
    /// scores for the choice alone.
    pub(crate) fn top_k(
        logits: &[f32],
        routing: &RouterShape,
        bias: Option<&[f32]>,
        ids: &mut [u32],
        weights: &mut [f32],
    ) = top_k_body
}

/// A finite number in the logit's place, so that differences never give NaN.
#[inline(always)]
fn finite(logit: f32) -> f32 {
    if logit.is_nan() { f32::MIN } else { logit.clamp(f32::MIN, f32::MAX) }
}

#[inline(always)]
fn top_k_body(
    logits: &[f32],
    routing: &RouterShape,
    bias: Option<&[f32]>,
    ids: &mut [u32],
    weights: &mut [f32],
) {
    assert!(ids.len() == weights.len() && ids.len() <= logits.len());
    if ids.is_empty() {
        return;
    }
    let is_plain = routing.score == Score::Softmax && routing.renormalize.unwrap_or(0.0) == 0.0;
    if is_plain && bias.is_none() && routing.groups.is_none() {
        softmax_of_best(logits, routing.renormalize.is_some(), ids, weights);
    } else {
        weights_of_scores(logits, routing, bias, ids, weights);
    }
    if routing.scale != 1.0 {
        weights.iter_mut().for_each(|weight| *weight *= routing.scale);
    }
}

/// A softmax chooses what the logits choose, and its weights need no other expert's exponential if they are to sum to
/// one.
#[inline(always)]
fn softmax_of_best(logits: &[f32], renormalize: bool, ids: &mut [u32], weights: &mut [f32]) {
    choose(logits, ids, weights);
    let largest = weights[0];
    let all = if renormalize { 0.0 } else { sum_exp(logits, largest) };
    let mut chosen = 0.0;
    for weight in &mut *weights {
        *weight = exp(*weight - largest);
        chosen += *weight;
    }
    // Renormalizing p / Σ p cancels the sum over all experts: the same as a softmax over the chosen.
    let total = if renormalize { chosen } else { all };
    for weight in weights {
        *weight /= total;
    }
}

/// The general case: scores of all experts, a choice by what they are with the bias, weights by what they are without.
#[inline(always)]
fn weights_of_scores(
    logits: &[f32],
    routing: &RouterShape,
    bias: Option<&[f32]>,
    ids: &mut [u32],
    weights: &mut [f32],
) {
    let mut scores: Vec<f32> = logits.iter().map(|&logit| finite(logit)).collect();
    match routing.score {
        Score::Sigmoid => scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
        Score::SqrtSoftplus => scores.iter_mut().for_each(|x| *x = softplus(*x).sqrt()),
        Score::Softmax => {
            let largest = scores.iter().copied().fold(f32::MIN, larger);
            let total = sum_exp(logits, largest);
            scores.iter_mut().for_each(|x| *x = exp(*x - largest) / total);
        }
    }
    let mut ranks = scores.clone();
    if let Some(bias) = bias {
        ranks.iter_mut().zip(bias).for_each(|(rank, &bias)| *rank = finite(*rank + bias));
    }
    if let Some(groups) = routing.groups {
        leave_groups_out(&mut ranks, groups);
    }
    choose(&ranks, ids, weights);
    let mut total = routing.renormalize.unwrap_or(0.0);
    for (id, weight) in ids.iter().zip(&mut *weights) {
        *weight = scores[*id as usize];
        total += *weight;
    }
    if routing.renormalize.is_some() {
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
}

/// Puts the experts of all groups but the best behind the others. A group is as good as its two best experts together.
#[inline(always)]
fn leave_groups_out(ranks: &mut [f32], groups: ExpertGroups) {
    let size = ranks.len() / groups.count;
    let worth = |group: &[f32]| {
        let (best, second) = group.iter().fold((f32::MIN, f32::MIN), |(best, second), &rank| {
            if rank > best { (rank, best) } else { (best, larger(second, rank)) }
        });
        finite(best + second)
    };
    let worths: Vec<f32> = ranks.chunks(size).map(worth).collect();
    let (mut chosen, mut best) = (vec![0; groups.chosen], vec![0.0; groups.chosen]);
    choose(&worths, &mut chosen, &mut best);
    for (group, ranks) in ranks.chunks_mut(size).enumerate() {
        if !chosen.contains(&(group as u32)) {
            ranks.fill(f32::MIN);
        }
    }
}

/// The largest logits and whose they are. Looking for the largest again and again has one branch for each that depends on
/// them; a list of the best so far has one for every logit.
#[inline(always)]
fn choose(logits: &[f32], ids: &mut [u32], best: &mut [f32]) {
    // What was chosen, and what fills the last group, is less than all that is finite.
    const NONE: f32 = f32::NEG_INFINITY;
    let mut room = [[NONE; LANES]; MOST_GROUPS];
    let mut more = Vec::new();
    let count = logits.len().div_ceil(LANES);
    let groups = if count <= MOST_GROUPS {
        &mut room[..count]
    } else {
        more.resize(count, [NONE; LANES]);
        &mut more[..]
    };
    for (group, logits) in groups.iter_mut().zip(logits.chunks(LANES)) {
        for (to, &logit) in group.iter_mut().zip(logits) {
            *to = finite(logit);
        }
    }
    for (id, best) in ids.iter_mut().zip(best) {
        let mut most = [NONE; LANES];
        for group in &*groups {
            for l in 0..LANES {
                most[l] = larger(most[l], group[l]);
            }
        }
        *best = join_lanes(most, larger);
        // The first that has it.
        for (number, group) in groups.iter_mut().enumerate() {
            let mut hits = [0u32; LANES];
            for l in 0..LANES {
                hits[l] = if group[l] == *best { 1 << l } else { 0 };
            }
            let first = join_lanes(hits, std::ops::BitOr::bitor).trailing_zeros() as usize;
            if first < LANES {
                *id = (number * LANES + first) as u32;
                group[first] = NONE;
                break;
            }
        }
    }
}

#[inline(always)]
fn sum_exp(logits: &[f32], largest: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, tail) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for l in 0..LANES {
            lanes[l] += exp(finite(chunk[l]) - largest);
        }
    }
    for (lane, &logit) in lanes.iter_mut().zip(tail) {
        *lane += exp(finite(logit) - largest);
    }
    sum_lanes(lanes)
}

#[cfg(test)]
mod tests {
    use super::super::activation::testing::{Random, assert_close, assert_same_bits, isas};
    use super::*;

    const RENORMALIZED: RouterShape = RouterShape {
        experts_per_row: 2,
        score: Score::Softmax,
        groups: None,
        renormalize: Some(0.0),
        scale: 1.0,
    };
    const SHAPES: [RouterShape; 2] =
        [RENORMALIZED, RouterShape { renormalize: None, ..RENORMALIZED }];

    #[track_caller]
    fn check(logits: &[f32], k: usize) {
        // A stable sort in descending order keeps equal logits in index order.
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(k);
        let e = |id: usize| f64::from(logits[id] - logits[order[0]]).exp();
        let all: f64 = (0..logits.len()).map(e).sum();
        let chosen: f64 = order.iter().map(|&id| e(id)).sum();
        for shape in SHAPES {
            let total = if shape.renormalize.is_none() { all } else { chosen };
            let want: Vec<f64> = order.iter().map(|&id| e(id) / total).collect();
            let mut first = None;
            for isa in isas() {
                let (mut ids, mut weights) = (vec![0; k], vec![0.0; k]);
                top_k(isa, logits, &shape, None, &mut ids, &mut weights);
                assert!(
                    ids.iter().zip(&order).all(|(&a, &b)| a as usize == b),
                    "{ids:?} {order:?}"
                );
                assert_close(&weights, &want, 1e-6);
                assert_same_bits(&weights, first.get_or_insert(weights.clone()));
            }
        }
    }

    #[test]
    fn largest_logits_are_chosen_in_order() {
        let mut random = Random::new(9);
        for experts in [1, 2, 8, 31, 128, 256, 512] {
            for k in [1, 2, 8, 10] {
                if k <= experts {
                    let logits: Vec<f32> = (0..experts).map(|_| random.normal() * 4.0).collect();
                    check(&logits, k);
                }
            }
        }
    }

    #[test]
    fn ties_go_to_the_lower_expert() {
        check(&[1.0, 3.0, 3.0, 2.0, 3.0], 3);
        check(&[0.5; 64], 8);
        let mut random = Random::new(10);
        for _ in 0..100 {
            let logits: Vec<f32> = (0..40).map(|_| random.below(6) as f32).collect();
            check(&logits, 7);
        }
    }

    #[test]
    fn what_is_not_a_number_comes_last_and_weights_stay_finite() {
        let cases: [&[f32]; 5] = [
            &[f32::NAN, 1.0, f32::NAN, 2.0],
            &[f32::NAN; 4],
            &[f32::NEG_INFINITY; 4],
            &[f32::INFINITY, 1.0, f32::INFINITY, f32::NEG_INFINITY],
            &[f32::MAX, f32::MIN, 0.0, -0.0],
        ];
        for logits in cases {
            for shape in SHAPES {
                for isa in isas() {
                    let (mut ids, mut weights) = ([9; 3], [f32::NAN; 3]);
                    top_k(isa, logits, &shape, None, &mut ids, &mut weights);
                    assert!(weights.iter().all(|w| (0.0..=1.0).contains(w)), "{weights:?}");
                    assert!(ids.iter().all(|&id| id < 4));
                    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
                }
            }
        }
        let isa = machine::cpu::isa();
        top_k(isa, cases[0], &SHAPES[0], None, &mut [], &mut []);
        let (mut ids, mut weights) = ([9; 2], [0.0; 2]);
        top_k(isa, cases[0], &SHAPES[0], None, &mut ids, &mut weights);
        assert_eq!(ids, [3, 1]);
    }

    /// The definition, in f64.
    fn reference(
        logits: &[f32],
        shape: &RouterShape,
        bias: Option<&[f32]>,
        k: usize,
    ) -> (Vec<u32>, Vec<f64>) {
        let score = |logit: f64| match shape.score {
            Score::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            Score::SqrtSoftplus => logit.exp().ln_1p().sqrt(),
            Score::Softmax => logit.exp() / logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>(),
        };
        let scores: Vec<f64> = logits.iter().map(|&logit| score(f64::from(logit))).collect();
        let rank = |id: usize| scores[id] + bias.map_or(0.0, |bias| f64::from(bias[id]));
        let mut order: Vec<usize> = (0..logits.len()).collect();
        if let Some(groups) = shape.groups {
            let size = logits.len() / groups.count;
            let worth = |group: usize| {
                let mut ranks: Vec<f64> = (group * size..(group + 1) * size).map(rank).collect();
                ranks.sort_by(|a, b| b.total_cmp(a));
                ranks[0] + ranks[1]
            };
            let mut best: Vec<usize> = (0..groups.count).collect();
            best.sort_by(|&a, &b| worth(b).total_cmp(&worth(a)));
            order.retain(|id| best[..groups.chosen].contains(&(id / size)));
        }
        order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)));
        order.truncate(k);
        let chosen: f64 = order.iter().map(|&id| scores[id]).sum();
        let total = shape.renormalize.map_or(1.0, |epsilon| chosen + f64::from(epsilon));
        let weight = |&id: &usize| scores[id] / total * f64::from(shape.scale);
        (order.iter().map(|&id| id as u32).collect(), order.iter().map(weight).collect())
    }

    #[test]
    fn scores_biases_and_groups_choose_as_defined() {
        let mut random = Random::new(11);
        let groups = [None, Some(ExpertGroups { count: 8, chosen: 3 })];
        for score in [Score::Softmax, Score::Sigmoid, Score::SqrtSoftplus] {
            for (groups, biased) in groups.iter().flat_map(|&g| [(g, false), (g, true)]) {
                for (renormalize, scale) in [(None, 1.0), (Some(1e-2), 2.5)] {
                    let shape =
                        RouterShape { experts_per_row: 6, score, groups, renormalize, scale };
                    let logits: Vec<f32> = (0..64).map(|_| random.normal() * 2.0).collect();
                    let bias: Vec<f32> = (0..64).map(|_| random.normal() - 0.5).collect();
                    let bias = biased.then_some(&bias[..]);
                    let (want_ids, want) = reference(&logits, &shape, bias, 6);
                    let mut first = None;
                    for isa in isas() {
                        let (mut ids, mut weights) = (vec![0; 6], vec![0.0; 6]);
                        top_k(isa, &logits, &shape, bias, &mut ids, &mut weights);
                        assert_eq!(ids, want_ids, "{shape:?}");
                        assert_close(&weights, &want, 1e-6);
                        assert_same_bits(&weights, first.get_or_insert(weights.clone()));
                    }
                }
            }
        }
    }

    #[test]
    fn scores_that_are_not_numbers_choose_something() {
        let groups = Some(ExpertGroups { count: 2, chosen: 1 });
        for score in [Score::Softmax, Score::Sigmoid, Score::SqrtSoftplus] {
            let shape = RouterShape { score, groups, ..RENORMALIZED };
            let logits = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            for isa in isas() {
                let (mut ids, mut weights) = ([9; 2], [f32::NAN; 2]);
                top_k(isa, &logits, &shape, Some(&[f32::NAN; 4]), &mut ids, &mut weights);
                assert!(ids[0] != ids[1] && ids.iter().all(|&id| id < 4), "{ids:?}");
            }
        }
    }
}
