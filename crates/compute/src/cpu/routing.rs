//! Which experts a token goes to, and with what weights.
//!
//! The order is total: a larger logit first, equal logits by the lower expert, and what is not a
//! number counts as the smallest. So the choice never depends on the sort, and no input panics.

use super::lanes::{LANES, exp, join_lanes, larger, sum_lanes, versions};

/// Groups of lanes whose logits are kept on the stack.
const MOST_GROUPS: usize = 16;

/// How router logits become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingScheme {
    /// Softmax over all experts, then the largest k, renormalised to sum to one if so configured.
    SoftmaxThenTopK {
        /// `norm_topk_prob`.
        renormalise: bool,
    },
    /// The largest k logits, then a softmax over those.
    TopKThenSoftmax,
}

versions! {
    /// The `ids.len()` experts with the largest logits, in descending order, and their weights.
    pub(crate) fn top_k(
        logits: &[f32],
        scheme: RoutingScheme,
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
fn top_k_body(logits: &[f32], scheme: RoutingScheme, ids: &mut [u32], weights: &mut [f32]) {
    assert!(ids.len() == weights.len() && ids.len() <= logits.len());
    let k = ids.len();
    if k == 0 {
        return;
    }

    choose(logits, ids, weights);
    let largest = weights[0];
    let over_all = matches!(scheme, RoutingScheme::SoftmaxThenTopK { renormalise: false });
    let all = if over_all { sum_exp(logits, largest) } else { 0.0 };
    let mut chosen = 0.0;
    for weight in &mut *weights {
        *weight = exp(*weight - largest);
        chosen += *weight;
    }
    // Renormalising p / Σ p cancels the sum over all experts: the same as a softmax over the chosen.
    let total = if over_all { all } else { chosen };
    for weight in weights {
        *weight /= total;
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

    const SCHEMES: [RoutingScheme; 3] = [
        RoutingScheme::SoftmaxThenTopK { renormalise: true },
        RoutingScheme::SoftmaxThenTopK { renormalise: false },
        RoutingScheme::TopKThenSoftmax,
    ];

    #[track_caller]
    fn check(logits: &[f32], k: usize) {
        // A stable sort in descending order keeps equal logits in index order.
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(k);
        let e = |id: usize| f64::from(logits[id] - logits[order[0]]).exp();
        let all: f64 = (0..logits.len()).map(e).sum();
        let chosen: f64 = order.iter().map(|&id| e(id)).sum();
        for scheme in SCHEMES {
            let total = if scheme == SCHEMES[1] { all } else { chosen };
            let want: Vec<f64> = order.iter().map(|&id| e(id) / total).collect();
            let mut first = None;
            for isa in isas() {
                let (mut ids, mut weights) = (vec![0; k], vec![0.0; k]);
                top_k(isa, logits, scheme, &mut ids, &mut weights);
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
            for scheme in SCHEMES {
                for isa in isas() {
                    let (mut ids, mut weights) = ([9; 3], [f32::NAN; 3]);
                    top_k(isa, logits, scheme, &mut ids, &mut weights);
                    assert!(weights.iter().all(|w| (0.0..=1.0).contains(w)), "{weights:?}");
                    assert!(ids.iter().all(|&id| id < 4));
                    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
                }
            }
        }
        top_k(machine::cpu::isa(), cases[0], SCHEMES[0], &mut [], &mut []);
        let (mut ids, mut weights) = ([9; 2], [0.0; 2]);
        top_k(machine::cpu::isa(), cases[0], SCHEMES[0], &mut ids, &mut weights);
        assert_eq!(ids, [3, 1]);
    }
}
