//! What a router chooses with the weights that are written, and what a cache makes of it.

use std::collections::BTreeMap;

use checkpoint::Checkpoint;
use half::f16;

use super::super::parts::mlx_parts;
use super::super::shape::{FeedForward, find};
use super::super::tensors::{Tensor, tensors};
use super::super::{Format, Router, Values, draw, router};
use super::{VALUES, mlx_values, request, synth};

/// Layers from first to last, so that the growth of the stream counts.
const LAYERS: [usize; 4] = [0, 13, 26, 39];

/// The last of them are counted, the others fill the cache.
const TOKENS: usize = 1000;
const COUNTED: usize = 750;

fn tensor<'a>(tensors: &'a [Tensor], name: &str) -> &'a Tensor {
    let named = |tensor: &&Tensor| tensor.mlx.as_deref().is_some_and(|mlx| mlx.ends_with(name));
    tensors.iter().find(named).expect(name)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

/// A row of a quantized matrix, from the bytes of its three parts.
fn affine_row(tensor: &Tensor, values: Values, row: usize) -> Vec<f32> {
    let parts = mlx_parts(tensor, values);
    let [codes, scales, biases] = [0, 1, 2].map(|part: usize| parts[part].chunk(row..row + 1));
    let half = |bytes: &[u8], index: usize| {
        f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
    };
    let value = |column: usize| {
        let code = codes[column / 2] >> (4 * (column % 2)) & 15;
        let group = column / values.group;
        half(&scales, group) * f32::from(code) + half(&biases, group)
    };
    (0..tensor.cols).map(value).collect()
}

/// Experts of random tokens: `[layers][tokens][used]`. Between the embedding and a router lies what
/// the layers before add to the moving columns; here that is random.
fn choices(like: &str, values: Values) -> Vec<Vec<Vec<usize>>> {
    let shape = find(like).expect("a shape");
    let FeedForward::Experts { count, used, .. } = shape.feed_forward else { panic!("{like}") };
    let tensors = tensors(&shape, shape.layers, values);
    let embedding = tensor(&tensors, "embed_tokens");
    let still = if values.router == Router::Tuned { values.group } else { 0 };
    let added_key = draw::Key::new(5, "added");
    let layer_choices = |layer: usize| {
        let plain = |name: &str| {
            let tensor = tensor(&tensors, &format!("layers.{layer}.{name}.weight"));
            floats(&mlx_parts(tensor, values)[0].chunk(0..tensor.rows))
        };
        let (norm, gate) = (plain("post_attention_layernorm"), plain("mlp.gate"));
        let added_std = (router::stream_growth(&shape, layer).powi(2) - 1.0).sqrt();
        let choose = |token: usize| {
            let mut stream = affine_row(embedding, values, token * 61 % shape.vocab);
            let added = added_key.row(layer * TOKENS + token);
            for (column, value) in stream.iter_mut().enumerate().skip(still) {
                *value += draw::value(added, column, draw::Fill::Normal { std: added_std });
            }
            let mean = stream.iter().map(|value| value * value).sum::<f32>() / stream.len() as f32;
            stream.iter_mut().zip(&norm).for_each(|(value, norm)| *value *= norm / mean.sqrt());
            let logit = |row: &[f32]| row.iter().zip(&stream).map(|(w, x)| w * x).sum::<f32>();
            let logits: Vec<f32> = gate.chunks_exact(shape.hidden).map(logit).collect();
            let mut experts: Vec<usize> = (0..count).collect();
            experts.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            experts.truncate(used);
            experts
        };
        (0..TOKENS).map(choose).collect()
    };
    LAYERS.map(layer_choices).to_vec()
}

/// Percent of hits in one least-recently-used cache over all layers.
fn hit_rate(choices: &[Vec<Vec<usize>>], slots: usize) -> f64 {
    let (mut last_use, mut by_use) = (BTreeMap::new(), BTreeMap::new());
    let (mut clock, mut hits, mut counted) = (0, 0, 0);
    for token in 0..TOKENS {
        for (layer, tokens) in choices.iter().enumerate() {
            for &expert in &tokens[token] {
                clock += 1;
                let before = last_use.insert((layer, expert), clock);
                if let Some(before) = before {
                    by_use.remove(&before);
                } else if by_use.len() == slots {
                    let (_, oldest) = by_use.pop_first().expect("slots");
                    last_use.remove(&oldest);
                }
                by_use.insert(clock, (layer, expert));
                if token >= TOKENS - COUNTED {
                    counted += 1;
                    hits += usize::from(before.is_some());
                }
            }
        }
    }
    100.0 * hits as f64 / counted as f64
}

/// (percent of all experts in the cache, percent of hits, tolerance)
#[track_caller]
fn check_curve(like: &str, values: Values, expected: &[(usize, f64, f64)]) {
    let Ok(FeedForward::Experts { count, .. }) = find(like).map(|shape| shape.feed_forward) else {
        panic!("{like} has no experts");
    };
    let choices = choices(like, values);
    for &(share, expect, tolerance) in expected {
        let got = hit_rate(&choices, LAYERS.len() * count * share / 100);
        assert!((got - expect).abs() < tolerance, "{like}, {share} %: {got:.1}, not {expect}");
    }
}

/// Published for Qwen3.6-35B; `benches/expert_use.py --check` checks the same for a whole model.
#[test]
fn a_cache_hits_as_published_with_the_tuned_router() {
    let curve = [(8, 52.0, 2.0), (11, 56.0, 2.0), (16, 63.0, 2.0)];
    check_curve("qwen3.5-35b-a3b", Values { router: Router::Tuned, ..VALUES }, &curve);
    let other = Values { seed: 1, group: 128, router: Router::Tuned };
    check_curve("qwen3.5-35b-a3b", other, &curve);
}

#[test]
fn a_cache_hits_as_often_as_it_is_large_with_the_uniform_router() {
    check_curve("qwen3.5-35b-a3b", VALUES, &[(8, 8.0, 2.0), (16, 16.0, 2.0)]);
}

#[test]
fn no_layer_writes_to_the_still_columns() {
    for (like, group) in [("tiny-qwen3.5-moe", 32), ("tiny-qwen3-moe", 64)] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut request = request(like, Format::Mlx, folder.path().join("model"));
        request.values = Values { group, router: Router::Tuned, ..VALUES };
        let checkpoint = Checkpoint::open(&synth(&request)).expect("opens");
        let mut writers = 0;
        for tensor in tensors(&request.shape, request.layers, request.values) {
            let Some(name) = tensor.mlx.as_deref() else { continue };
            let values = || mlx_values(&checkpoint, &format!("{name}*"), tensor.rows, tensor.cols);
            if name.ends_with("embed_tokens") {
                let still = values().chunks_exact(tensor.cols).all(|row| {
                    row[..group].iter().all(|&value| value == 1.0)
                        && row[group..].iter().any(|&value| value != 1.0)
                });
                assert!(still, "{like}: {name}");
            } else if ["o_proj", "out_proj", "down_proj"].iter().any(|end| name.ends_with(end)) {
                writers += 1;
                for (row, values) in values().chunks_exact(tensor.cols).enumerate() {
                    let zero = values.iter().all(|&value| value == 0.0);
                    assert_eq!(zero, row % request.shape.hidden < group, "{like}: {name} {row}");
                }
            }
        }
        // A mixer and experts in each layer, and a shared expert in one of the two.
        let expect = if like == "tiny-qwen3.5-moe" { 3 } else { 2 };
        assert_eq!(writers, expect * request.layers, "{like}");
    }
}
