//! Filters against naive references, reproducible draws, and the distribution that comes out.

use super::*;
use proptest::prelude::*;

fn choose(logits: &[f32], params: &SamplingParams, position: u64) -> u32 {
    let history = TokenCounts::new();
    sample(logits, &history, params, position, None, &mut Scratch::default()).unwrap().token
}

/// Tokens the filters leave and their probabilities, descending: sorts everything, a step at a time.
fn reference(logits: &[f32], history: &TokenCounts, params: &SamplingParams) -> Vec<(u32, f64)> {
    let mut scores: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    for &(token, bias) in &params.logit_bias {
        scores[token as usize] += f64::from(bias);
    }
    for (token, score) in (0..).zip(&mut scores) {
        if history.contains(token) {
            let penalty = f64::from(params.repetition_penalty);
            *score *= if *score < 0.0 { penalty } else { 1.0 / penalty };
        }
        let count = f64::from(history.generated(token));
        *score -= f64::from(params.presence_penalty) * count.min(1.0);
        *score -= f64::from(params.frequency_penalty) * count;
    }
    let mut list: Vec<(u32, f64)> = (0..).zip(scores).collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable: ties stay in order of id
    let best = list[0].1;
    for (_, score) in &mut list {
        *score = ((*score - best) / f64::from(params.temperature)).exp();
    }
    let normalize = |list: &mut Vec<(u32, f64)>| {
        let sum: f64 = list.iter().map(|x| x.1).sum();
        list.iter_mut().for_each(|x| x.1 /= sum);
    };
    if params.top_k > 0 {
        list.truncate(params.top_k);
    }
    normalize(&mut list);
    if params.top_p < 1.0 {
        let mut before = 0.0;
        let inside = list.iter().take_while(|x| {
            let keep = before < f64::from(params.top_p);
            before += x.1;
            keep
        });
        let count = inside.count().max(1);
        list.truncate(count);
        normalize(&mut list);
    }
    let bar = f64::from(params.min_p) * list[0].1;
    list.retain(|x| x.1 >= bar);
    normalize(&mut list);
    list
}

/// The sampled token is one whose share of the reference's CDF holds the draw.
#[track_caller]
fn check(logits: &[f32], history: &TokenCounts, params: &SamplingParams, position: u64) {
    let mut scratch = Scratch::default();
    let token = sample(logits, history, params, position, None, &mut scratch).unwrap().token;
    let u = uniform(params.seed, position);
    let mut before = 0.0;
    for (candidate, probability) in reference(logits, history, params) {
        if candidate == token {
            let slack = 1e-6; // penalties are f32 here and f64 in the reference
            assert!(u > before - slack && u < before + probability + slack);
            return;
        }
        before += probability;
    }
    panic!("token {token} should have been filtered out");
}

fn logits(max_len: usize) -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        6 => -20.0..20.0f32,
        3 => (-8..8i32).prop_map(|x| x as f32), // ties
        1 => Just(f32::NEG_INFINITY),
    ];
    (prop::collection::vec(logit, 1..max_len), 0.0..20.0f32).prop_map(|(mut logits, first)| {
        logits[0] = first;
        logits
    })
}

#[track_caller]
fn check_rank(logits: &[f32], count: usize) {
    let mut want: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    want.retain(|x| x.1 > f32::NEG_INFINITY);
    want.sort_by(|a, b| b.1.total_cmp(&a.1));
    want.truncate(count);
    let (mut tops, mut candidates) = (Vec::new(), Vec::new());
    rank(cut(logits, count, &mut tops).unwrap(), count, &mut candidates);
    let got: Vec<_> = candidates.iter().map(|c| (c.token, c.logit)).collect();
    assert_eq!(got, want, "{count} of {}", logits.len());
}

#[test]
fn ranking_of_a_large_vocabulary_is_sorting() {
    // Many are equal, whole runs are masked, and the best are neighbours.
    let mut logits: Vec<f32> = (0..20_011u64).map(|i| (i * i % 4093 % 977) as f32).collect();
    logits[4000..9000].fill(f32::NEG_INFINITY);
    logits[12_000..12_300].iter_mut().for_each(|logit| *logit += 1000.0);
    for count in [1, 20, 200, 255, 256, 257, 1000, 14_000, 30_000] {
        check_rank(&logits, count);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn each_filter_agrees_with_sorting_everything(
        logits in logits(3000),
        temperature in 0.05..2.0f32,
        (top_k, top_p, min_p) in (0..400usize, 0.0..1.0f32, 0.0..1.0f32),
        which in 0..8u32,
        seed: u64,
        position: u64,
    ) {
        let on = |bit: u32| which >> bit & 1 == 1;
        let params = SamplingParams {
            temperature,
            top_k: if on(0) { top_k } else { 0 },
            top_p: if on(1) { top_p } else { 1.0 },
            min_p: if on(2) { min_p * min_p * min_p } else { 0.0 },
            seed,
            ..SamplingParams::default()
        };
        check(&logits, &TokenCounts::new(), &params, position);
    }

    #[test]
    fn penalties_agree_with_the_reference(
        logits in logits(40),
        prompt in prop::collection::vec(0..50u32, 0..30),
        answer in prop::collection::vec(0..50u32, 0..30),
        bias in prop::collection::vec((any::<prop::sample::Index>(), -5.0..5.0f32), 0..5),
        repetition_penalty in 0.5..2.0f32,
        (presence_penalty, frequency_penalty) in (-2.0..2.0f32, -2.0..2.0f32),
        position: u64,
    ) {
        let mut history = TokenCounts::new();
        history.push_prompt(&prompt);
        answer.iter().for_each(|&token| history.push(token));
        let logit_bias =
            bias.iter().map(|(at, bias)| (at.index(logits.len()) as u32, *bias)).collect();
        let params = SamplingParams {
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            ..SamplingParams::default()
        };
        check(&logits, &history, &params, position);
    }

    #[test]
    fn ranking_is_sorting(logits in logits(600), count in prop_oneof![0..20usize, 0..700usize]) {
        check_rank(&logits, count);
    }

    #[test]
    fn no_input_panics(
        logits in prop::collection::vec(
            prop_oneof![99 => any::<f32>(), 1 => prop::num::f32::ANY],
            0..300,
        ),
        (temperature, top_k, top_p, min_p) in (0.0..=2.0f32, 0..400usize, 0.0..=1.0f32, 0.0..=1.0f32),
        repetition_penalty in 0.001..=10.0f32,
        seed: u64,
    ) {
        let mut history = TokenCounts::new();
        history.push_prompt(&[0, 5, 7, 900]);
        history.push(5);
        let params = SamplingParams {
            temperature, top_k, top_p, min_p, repetition_penalty, seed,
            logit_bias: vec![(0, -100.0)],
            logprobs: Some(5),
            ..SamplingParams::default()
        };
        let nan = logits.iter().filter(|x| x.is_nan()).count();
        let infinite = logits.iter().filter(|x| **x == f32::INFINITY).count();
        match sample(&logits, &history, &params, 3, None, &mut Scratch::default()) {
            Ok(sampled) => {
                prop_assert!(logits[sampled.token as usize] > f32::NEG_INFINITY);
                prop_assert!(sampled.logprob.unwrap() <= 0.0);
            }
            Err(SampleError::BrokenLogits { nan: n, infinite: i, .. }) => {
                prop_assert_eq!((n, i), (nan, infinite));
            }
            Err(SampleError::EmptyVocabulary) => prop_assert!(logits.is_empty()),
            Err(SampleError::AllMasked { .. }) => {
                prop_assert!(logits.iter().all(|x| *x == f32::NEG_INFINITY));
            }
            Err(error) => panic!("{error}"),
        }
        if nan + infinite > 0 {
            let result = sample(&logits, &history, &params, 3, None, &mut Scratch::default());
            prop_assert!(result.is_err());
        }
    }
}

#[test]
fn empty_logits_are_an_error_whatever_the_parameters() {
    let biased = SamplingParams { logit_bias: vec![(0, 1.0)], ..SamplingParams::default() };
    for params in [SamplingParams::greedy(), SamplingParams::default(), biased] {
        let sampled = sample(&[], &TokenCounts::new(), &params, 0, None, &mut Scratch::default());
        assert_eq!(sampled.unwrap_err(), SampleError::EmptyVocabulary);
    }
}

/// χ² of the draws at positions 0..n against the reference.
#[track_caller]
fn check_distribution(logits: &[f32], params: &SamplingParams) {
    const DRAWS: usize = 30_000;
    let expected = reference(logits, &TokenCounts::new(), params);
    let mut counts = vec![0usize; logits.len()];
    for position in 0..DRAWS as u64 {
        counts[choose(logits, params, position) as usize] += 1;
    }
    let mut chi2 = 0.0;
    for &(token, probability) in &expected {
        let want = probability * DRAWS as f64;
        assert!(want > 5.0, "the test's vocabulary is too unlikely");
        chi2 += (counts[token as usize] as f64 - want).powi(2) / want;
        counts[token as usize] = 0;
    }
    assert!(counts.iter().all(|&count| count == 0), "a filtered token was drawn");
    // Mean + 4 standard deviations of χ² with this many degrees of freedom.
    let freedom = expected.len() as f64 - 1.0;
    assert!(chi2 < freedom + 4.0 * (2.0 * freedom).sqrt(), "χ² {chi2} of {freedom}");
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0, 1.5, -1.0, 2.0, 0.5, 0.5, -2.0, f32::NEG_INFINITY, 1.0];
    let toy = &logits[..7];
    for seed in [0, 1, u64::MAX] {
        let plain = SamplingParams { seed, ..SamplingParams::default() };
        check_distribution(toy, &plain);
        check_distribution(toy, &SamplingParams { temperature: 1.7, ..plain.clone() });
        check_distribution(&logits, &SamplingParams { top_k: 4, ..plain.clone() });
        check_distribution(&logits, &SamplingParams { top_p: 0.8, ..plain.clone() });
        check_distribution(&logits, &SamplingParams { min_p: 0.2, ..plain });
    }
    // More tokens than are ranked at first.
    check_distribution(&[0.25; 900], &SamplingParams::default());
}

#[test]
fn a_token_depends_on_seed_and_position_alone() {
    let logits: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32 / 20.0).collect();
    let params = SamplingParams { seed: 42, top_p: 0.9, ..SamplingParams::default() };
    let mut scratch = Scratch::default();
    let first: Vec<u32> = (0..50).map(|p| choose(&logits, &params, p)).collect();
    // Backwards, with other work in between and a used scratch.
    let other = SamplingParams { seed: 7, top_k: 3, ..SamplingParams::default() };
    for position in (0..50).rev() {
        let history = TokenCounts::new();
        sample(&logits[..9], &history, &other, position, None, &mut scratch).unwrap();
        let again = sample(&logits, &history, &params, position, None, &mut scratch).unwrap();
        assert_eq!(again.token, first[position as usize]);
    }
    let reseeded = SamplingParams { seed: 43, ..params };
    assert_ne!((0..50).map(|p| choose(&logits, &reseeded, p)).collect::<Vec<_>>(), first);
}

#[test]
fn draws_are_pinned() {
    // A stored seed must give the same text in the next release.
    let draws = [(0, 0), (0, 1), (1, 0), (u64::MAX, u64::MAX)].map(|(s, p)| uniform(s, p));
    assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
    let pinned = [652_448_486, 701_212_109, 368_189_515, 266_847_186];
    assert_eq!(draws.map(|u| (u * 1e9) as u64), pinned);
}

#[test]
fn greedy_takes_the_lower_of_equals() {
    let greedy = SamplingParams::greedy();
    assert_eq!(choose(&[1.0, 3.0, 3.0, -1.0], &greedy, 0), 1);
    assert_eq!(choose(&[-0.0, 0.0], &greedy, 0), 0);
    assert_eq!(choose(&[0.0, -0.0], &greedy, 0), 0);
    assert_eq!(choose(&[7.0], &greedy, 9), 0);
    let biased = SamplingParams { logit_bias: vec![(3, 4.5), (2, -1.0)], ..greedy };
    assert_eq!(choose(&[1.0, 3.0, 3.0, -1.0], &biased, 0), 3);
}

#[test]
fn penalties_act_on_prompt_and_answer_as_documented() {
    #[track_caller]
    fn check(params: &SamplingParams, want: [f32; 5]) {
        let mut history = TokenCounts::new();
        history.push_prompt(&[0, 1, 1]);
        [2, 2, 3].into_iter().for_each(|token| history.push(token));
        let mut adjusted = Vec::new();
        adjust(&[2.0, -2.0, 2.0, -2.0, 2.0], &history, params, &mut adjusted).unwrap();
        assert_eq!(adjusted, want);
    }
    let none = SamplingParams::default();
    check(&SamplingParams { repetition_penalty: 2.0, ..none.clone() }, [1.0, -4.0, 1.0, -4.0, 2.0]);
    check(&SamplingParams { presence_penalty: 0.5, ..none.clone() }, [2.0, -2.0, 1.5, -2.5, 2.0]);
    check(&SamplingParams { frequency_penalty: 0.5, ..none.clone() }, [2.0, -2.0, 1.0, -2.5, 2.0]);
    // Bias comes before the penalties.
    check(
        &SamplingParams { logit_bias: vec![(1, 6.0)], repetition_penalty: 2.0, ..none },
        [1.0, 2.0, 1.0, -4.0, 2.0],
    );
}

#[test]
fn extreme_logits_are_no_trouble() {
    let mut lone = vec![f32::NEG_INFINITY; 1000];
    lone[777] = -3e38;
    let far = [f32::MAX, f32::MIN, 0.0];
    for position in 0..100 {
        for temperature in [0.0, f32::MIN_POSITIVE, 1e-3, 1.0, 2.0] {
            let params = SamplingParams { temperature, ..SamplingParams::default() };
            assert_eq!(choose(&lone, &params, position), 777);
            assert_eq!(choose(&far, &params, position), 0);
        }
    }
}

#[test]
fn what_cannot_be_sampled_is_an_error() {
    #[track_caller]
    fn check(logits: &[f32], params: &SamplingParams, want: &str) {
        let history = TokenCounts::new();
        let error = sample(logits, &history, params, 0, None, &mut Scratch::default()).unwrap_err();
        assert_eq!(error.to_string(), want);
    }
    let greedy = SamplingParams::greedy();
    let masked = f32::NEG_INFINITY;
    check(&[], &greedy, "there are no logits to choose from");
    check(
        &[1.0, f32::NAN, f32::NAN, f32::INFINITY],
        &greedy,
        "2 of 4 logits are NaN and 1 are infinite",
    );
    check(&[masked; 3], &greedy, "all 3 tokens are masked");
    check(
        &[1.0; 3],
        &SamplingParams { logit_bias: vec![(3, 1.0)], ..greedy },
        "logit_bias names token 3, the vocabulary has 3",
    );
}

#[test]
fn parameters_out_of_range_are_named() {
    #[track_caller]
    fn check(change: impl Fn(&mut SamplingParams), want: &str) {
        let mut params = SamplingParams::default();
        params.validate().unwrap();
        change(&mut params);
        assert_eq!(params.validate().unwrap_err().to_string(), want);
    }
    check(|p| p.temperature = 2.5, "temperature must be 0 to 2, got 2.5");
    check(|p| p.temperature = f32::NAN, "temperature must be 0 to 2, got NaN");
    check(|p| p.top_p = -0.1, "top_p must be 0 to 1, got -0.1");
    check(|p| p.min_p = 1.5, "min_p must be 0 to 1, got 1.5");
    check(|p| p.repetition_penalty = 0.0, "repetition_penalty must be above 0, to 10, got 0");
    check(|p| p.presence_penalty = 3.0, "presence_penalty must be -2 to 2, got 3");
    check(|p| p.frequency_penalty = -3.0, "frequency_penalty must be -2 to 2, got -3");
    check(
        |p| p.logit_bias = vec![(1, 0.0), (2, f32::INFINITY)],
        "logit_bias must be -100 to 100, got inf",
    );
    check(|p| p.logprobs = Some(21), "logprobs must be 0 to 20, got 21");
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let logits = [0.5f32, 2.0, -1.0, 2.0];
    let mut history = TokenCounts::new();
    history.push(1);
    let params = SamplingParams {
        temperature: 0.0,
        presence_penalty: 2.0,
        logit_bias: vec![(0, 50.0)],
        logprobs: Some(3),
        ..SamplingParams::default()
    };
    let sampled = sample(&logits, &history, &params, 0, None, &mut Scratch::default()).unwrap();
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let want = logits.map(|x| (f64::from(x) - sum.ln()) as f32);
    assert_eq!(sampled.token, 0);
    assert!((sampled.logprob.unwrap() - want[0]).abs() < 1e-6);
    assert_eq!(sampled.top.iter().map(|x| x.0).collect::<Vec<_>>(), [1, 3, 0]);
    for (token, logprob) in sampled.top {
        assert!((logprob - want[token as usize]).abs() < 1e-6);
    }
    let quiet = SamplingParams { logprobs: None, ..params };
    let sampled = sample(&logits, &history, &quiet, 0, None, &mut Scratch::default()).unwrap();
    assert_eq!((sampled.logprob, sampled.top.len()), (None, 0));
}

/// What is sampled under a mask is what is sampled from the allowed logits alone, whatever the others are.
#[track_caller]
fn check_mask(logits: &[f32], allowed: &[u32], params: &SamplingParams, position: u64) {
    let mask = Mask::of(logits.len(), allowed.iter().copied());
    let mut history = TokenCounts::new();
    history.push(allowed[0]);
    let mut scratch = Scratch::default();
    let got = sample(logits, &history, params, position, Some(&mask), &mut scratch).unwrap();
    let alone: Vec<f32> = (0..)
        .zip(logits)
        .map(|(token, &logit)| if allowed.contains(&token) { logit } else { f32::NEG_INFINITY })
        .collect();
    let want = sample(&alone, &history, params, position, None, &mut scratch).unwrap();
    assert_eq!(got.token, want.token);
    assert!(allowed.contains(&got.token));
    let free = SamplingParams { temperature: 1.0, ..params.clone() };
    let unmasked = sample(logits, &history, &free, position, None, &mut scratch).unwrap();
    assert_eq!(got.top, unmasked.top, "log-probabilities know no mask");
}

proptest! {
    #[test]
    fn a_mask_counts_as_minus_infinity(
        logits in logits(400),
        allowed in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
        temperature in prop_oneof![Just(0.0f32), 0.05..2.0f32],
        (top_k, top_p, min_p) in (0..20usize, 0.1..1.0f32, 0.0..0.5f32),
        presence_penalty in prop_oneof![Just(0.0f32), 0.0..2.0f32],
        (seed, position) in (any::<u64>(), any::<u64>()),
    ) {
        let mut allowed: Vec<u32> =
            allowed.iter().map(|index| index.index(logits.len()) as u32).collect();
        allowed.push(0); // never minus infinity in these logits
        let params = SamplingParams {
            temperature, top_k, top_p, min_p, presence_penalty, seed,
            logprobs: Some(4),
            ..SamplingParams::default()
        };
        check_mask(&logits, &allowed, &params, position);
    }
}

#[test]
fn filters_look_at_what_the_mask_leaves() {
    let logits: Vec<f32> = (0..200).map(|i| i as f32 / 10.0).collect();
    let mask = Mask::of(200, [3, 64, 130]);
    let pick = |params: &SamplingParams, position: u64| {
        let (history, mut scratch) = (TokenCounts::new(), Scratch::default());
        sample(&logits, &history, params, position, Some(&mask), &mut scratch).unwrap().token
    };
    assert_eq!(pick(&SamplingParams::greedy(), 0), 130);
    let first = SamplingParams { top_k: 1, ..SamplingParams::default() };
    assert_eq!(pick(&first, 5), 130);
    let two = SamplingParams { top_k: 2, temperature: 2.0, ..SamplingParams::default() };
    let drawn: std::collections::BTreeSet<u32> = (0..2000).map(|p| pick(&two, p)).collect();
    assert_eq!(drawn, [64, 130].into());
    // A bias does not bring back what is forbidden.
    let biased = SamplingParams { logit_bias: vec![(150, 100.0)], ..SamplingParams::greedy() };
    assert_eq!(pick(&biased, 0), 130);
}

#[test]
fn a_mask_that_leaves_nothing_is_an_error() {
    #[track_caller]
    fn check(logits: &[f32], mask: &Mask, want: &str) {
        let (history, mut scratch) = (TokenCounts::new(), Scratch::default());
        let greedy = SamplingParams::greedy();
        let error = sample(logits, &history, &greedy, 0, Some(mask), &mut scratch).unwrap_err();
        assert_eq!(error.to_string(), want);
    }
    check(&[1.0; 100], &Mask::none(100), "all 100 tokens are masked");
    let masked = f32::NEG_INFINITY;
    check(&[1.0, masked, 2.0], &Mask::of(3, [1]), "all 3 tokens are masked");
    check(&[1.0; 3], &Mask::of(2, [1]), "the mask is for 2 tokens, the vocabulary has 3");
    check(&[f32::NAN, 1.0], &Mask::of(2, [1]), "1 of 2 logits are NaN and 0 are infinite");
}

/// The last of what a filter leaves is drawn at the end of the range, never the first that it cuts off.
#[test]
fn what_is_cut_off_is_not_drawn_at_the_very_end() {
    let logits: Vec<f32> = (0..5000u32).map(|i| (i * 7919 % 4999) as f32 * 1e-3).collect();
    let mut tops = Vec::new();
    let runs = cut(&logits, 0, &mut tops).unwrap();
    for step in 1..40 {
        let share = step as f32 / 40.0;
        for (top_p, min_p) in [(share, 0.0), (1.0, share), (share, 0.01)] {
            let params = SamplingParams { top_p, min_p, ..SamplingParams::default() };
            let kept = reference(&logits, &TokenCounts::new(), &params);
            let mut scratch = DrawScratch::default();
            let token = draw(runs, &params, 1.0 - f64::EPSILON / 2.0, &mut scratch);
            let rank = kept.iter().position(|&(other, _)| other == token);
            // Whether the last one still is within `top_p` is a matter of rounding.
            assert!(rank.is_some_and(|rank| rank + 2 >= kept.len()), "{rank:?} of {}", kept.len());
        }
    }
}
