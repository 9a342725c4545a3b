//! The two heads in f64, from their papers: every row computed again, whole attention matrices, no caches.

use crate::rig::Track;
use crate::weights::{DflashShape, THETA, Weights};

type Row = Vec<f64>;

const EPS: f64 = 1e-6;

/// Heads that attend alike.
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotary: usize,
    theta: f64,
}

fn vector(weights: &Weights, name: &str) -> Row {
    weights[name].data.iter().map(|&x| x.into()).collect()
}

/// `W x`
fn times(weights: &Weights, name: &str, x: &[f64]) -> Row {
    let rows = weights[name].data.chunks_exact(x.len());
    rows.map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
}

pub(crate) fn rms_norm(x: &[f64], weight: &[f64]) -> Row {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| x / (mean + EPS).sqrt() * w).collect()
}

fn plus(a: &[f64], b: &[f64]) -> Row {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Norms each head and turns it by its position.
fn turned(x: &[f64], norm: &[f64], position: usize, of: &Heads) -> Vec<Row> {
    let turn = |head: &[f64]| {
        let mut head = rms_norm(head, norm);
        let half = of.rotary / 2;
        for i in 0..half {
            let angle = position as f64 * of.theta.powf(-2.0 * i as f64 / of.rotary as f64);
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[i + half] = b * angle.cos() + a * angle.sin();
        }
        head
    };
    x.chunks_exact(of.head_dim).map(turn).collect()
}

/// Softmax attention of one row's heads over the keys that `sees` lets through.
fn attend(
    q: &[Row],
    keys: &[Vec<Row>],
    values: &[Row],
    of: &Heads,
    sees: impl Fn(usize) -> bool,
) -> Row {
    let mut out = Row::new();
    for (head, q) in q.iter().enumerate() {
        let kv_head = head / (of.heads / of.kv_heads);
        let score = |key: &Vec<Row>| -> f64 {
            let dot: f64 = q.iter().zip(&key[kv_head]).map(|(q, k)| q * k).sum();
            (dot / (of.head_dim as f64).sqrt()).exp()
        };
        let weights: Row = keys
            .iter()
            .enumerate()
            .map(|(i, key)| if sees(i) { score(key) } else { 0.0 })
            .collect();
        let sum: f64 = weights.iter().sum();
        for d in 0..of.head_dim {
            let value = |(w, v): (&f64, &Row)| w * v[kv_head * of.head_dim + d];
            out.push(weights.iter().zip(values).map(value).sum::<f64>() / sum);
        }
    }
    out
}

fn gated(weights: &Weights, path: &str, x: &[f64]) -> Row {
    let gate = times(weights, &format!("{path}gate_proj.weight"), x);
    let up = times(weights, &format!("{path}up_proj.weight"), x);
    let inner: Row = gate.iter().zip(up).map(|(&gate, up)| silu(gate) * up).collect();
    times(weights, &format!("{path}down_proj.weight"), &inner)
}

/// Two of eight experts and the shared one, or a dense layer.
fn feed_forward(weights: &Weights, path: &str, x: &[f64]) -> Row {
    if weights.contains_key(&format!("{path}gate_proj.weight")) {
        return gated(weights, path, x);
    }
    let logits = times(weights, &format!("{path}gate.weight"), x);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let sum: f64 = order[..2].iter().map(|&expert| logits[expert].exp()).sum();
    let mut y = vec![0.0; x.len()];
    for &expert in &order[..2] {
        let out = gated(weights, &format!("{path}experts.{expert}."), x);
        let share = logits[expert].exp() / sum;
        y = plus(&y, &out.iter().map(|out| out * share).collect::<Row>());
    }
    let gate = sigmoid(times(weights, &format!("{path}shared_expert_gate.weight"), x)[0]);
    let shared = gated(weights, &format!("{path}shared_expert."), x);
    plus(&y, &shared.iter().map(|out| out * gate).collect::<Row>())
}

pub(crate) fn logits(head: &[Row], hidden: &[f64]) -> Row {
    head.iter().map(|row| row.iter().zip(hidden).map(|(w, x)| w * x).sum()).collect()
}

fn features(track: &Track) -> Vec<Row> {
    let rows = track.features.chunks_exact(track.width);
    rows.map(|row| row.iter().map(|&x| x.into()).collect()).collect()
}

fn best(logits: &[f64]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits") as u32
}

/// The logits of a chain of `count` tokens after `token`.
pub(crate) fn mtp(
    embedding: &[Row],
    head: &[Row],
    weights: &Weights,
    track: &Track,
    token: u32,
    count: usize,
) -> Vec<Row> {
    let hidden = embedding[0].len();
    let mut tokens = track.tokens.clone();
    tokens.push(token);
    // Of the token before each.
    let mut before = vec![vec![0.0; hidden]];
    before.extend(features(track));
    let mut answers = Vec::new();
    for _ in 0..count {
        let row = mtp_last_row(embedding, weights, &tokens, &before);
        let out = rms_norm(&row, &vector(weights, "mtp.norm.weight"));
        let logits = logits(head, &out);
        tokens.push(best(&logits));
        before.push(out);
        answers.push(logits);
    }
    answers
}

/// The layer over all pairs; the last row of what comes out.
fn mtp_last_row(embedding: &[Row], weights: &Weights, tokens: &[u32], before: &[Row]) -> Row {
    let of = Heads { heads: 2, kv_heads: 1, head_dim: 64, rotary: 16, theta: 1_000_000.0 };
    let at = |name: &str| format!("mtp.layers.0.{name}");
    let norm = |name: &str, x: &[f64]| rms_norm(x, &vector(weights, name));
    let rows: Vec<Row> = tokens
        .iter()
        .zip(before)
        .map(|(&token, before)| {
            let e = norm("mtp.pre_fc_norm_embedding.weight", &embedding[token as usize]);
            let h = norm("mtp.pre_fc_norm_hidden.weight", before);
            times(weights, "mtp.fc.weight", &[e, h].concat())
        })
        .collect();
    let normed: Vec<Row> = rows.iter().map(|x| norm(&at("input_layernorm.weight"), x)).collect();
    let k_norm = vector(weights, &at("self_attn.k_norm.weight"));
    let keys: Vec<Vec<Row>> = normed
        .iter()
        .enumerate()
        .map(|(i, x)| turned(&times(weights, &at("self_attn.k_proj.weight"), x), &k_norm, i, &of))
        .collect();
    let values: Vec<Row> =
        normed.iter().map(|x| times(weights, &at("self_attn.v_proj.weight"), x)).collect();
    let last = rows.len() - 1;
    let both = times(weights, &at("self_attn.q_proj.weight"), &normed[last]);
    let (mut q, mut gate) = (Row::new(), Row::new());
    for head in both.chunks_exact(2 * of.head_dim) {
        q.extend(&head[..of.head_dim]);
        gate.extend(&head[of.head_dim..]);
    }
    let q = turned(&q, &vector(weights, &at("self_attn.q_norm.weight")), last, &of);
    let o = attend(&q, &keys, &values, &of, |_| true);
    let o: Row = o.iter().zip(gate).map(|(o, gate)| o * sigmoid(gate)).collect();
    let h = plus(&rows[last], &times(weights, &at("self_attn.o_proj.weight"), &o));
    let x = norm(&at("post_attention_layernorm.weight"), &h);
    plus(&h, &feed_forward(weights, &at("mlp."), &x))
}

/// The logits of a block of `count` tokens after `token`.
pub(crate) fn dflash(
    embedding: &[Row],
    head: &[Row],
    weights: &Weights,
    shape: &DflashShape,
    track: &Track,
    token: u32,
    count: usize,
) -> Vec<Row> {
    let of = Heads {
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        rotary: shape.head_dim,
        theta: THETA,
    };
    let context: Vec<Row> = features(track)
        .iter()
        .map(|c| rms_norm(&times(weights, "fc.weight", c), &vector(weights, "hidden_norm.weight")))
        .collect();
    let len = context.len();
    let mut block = vec![embedding[token as usize].clone()];
    block.extend(vec![embedding[shape.mask as usize].clone(); count]);
    for (layer, &sliding) in shape.sliding.iter().enumerate() {
        let at = |name: &str| format!("layers.{layer}.{name}.weight");
        let norm = |name: &str, x: &Row| rms_norm(x, &vector(weights, &at(name)));
        let own: Vec<Row> = block.iter().map(|x| norm("input_layernorm", x)).collect();
        let all: Vec<&Row> = context.iter().chain(&own).collect();
        let project =
            |x: &Row, name: &str| times(weights, &at(&format!("self_attn.{name}_proj")), x);
        let k_norm = vector(weights, &at("self_attn.k_norm"));
        let keys: Vec<Vec<Row>> = all
            .iter()
            .enumerate()
            .map(|(i, x)| turned(&project(x, "k"), &k_norm, i, &of))
            .collect();
        let values: Vec<Row> = all.iter().map(|x| project(x, "v")).collect();
        let q_norm = vector(weights, &at("self_attn.q_norm"));
        let causal = shape.causal.unwrap_or(sliding);
        block = own
            .iter()
            .enumerate()
            .map(|(i, x)| {
                let position = len + i;
                let q = turned(&project(x, "q"), &q_norm, position, &of);
                let sees = |key: usize| {
                    (!sliding || key + shape.window > position) && (!causal || key <= position)
                };
                let o = attend(&q, &keys, &values, &of, sees);
                let h = plus(&block[i], &times(weights, &at("self_attn.o_proj"), &o));
                let x = norm("post_attention_layernorm", &h);
                plus(&h, &gated(weights, &format!("layers.{layer}.mlp."), &x))
            })
            .collect();
    }
    let norm = vector(weights, "norm.weight");
    block[1..].iter().map(|row| logits(head, &rms_norm(row, &norm))).collect()
}
