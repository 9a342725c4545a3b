//! The tensors of draft heads: an MTP layer as it lies next to its model, and a DFlash draft as z-lab publishes it.
//!
//! Only MLX folders have them, so nothing here has a GGUF name.

use super::{Content, Fill, List, Order, Shape, Tensor, Values};
use crate::synth::router::Router;
use crate::synth::shape::Dflash;

/// An MTP head of Qwen3.5: what joins embedding and hidden state, one full-attention layer, its norms.
pub(crate) fn mtp(shape: &Shape, values: Values) -> Vec<Tensor> {
    // No column of its stream stays as an embedding made it, so its router can only be even.
    let values = Values { router: Router::Uniform, ..values };
    let mut list = List { shape, values, tensors: Vec::new() };
    let (hidden, block) = (shape.hidden, "");
    list.linear("mtp.fc".into(), block.into(), [hidden, 2 * hidden], 1.0);
    let layer = "mtp.layers.0";
    list.attention(&format!("{layer}.self_attn"), block);
    list.feed_forward(&format!("{layer}.mlp"), block, 0);
    for norm in [
        "mtp.pre_fc_norm_embedding",
        "mtp.pre_fc_norm_hidden",
        "mtp.layers.0.input_layernorm",
        "mtp.layers.0.post_attention_layernorm",
        "mtp.norm",
    ] {
        list.vector(format!("{norm}.weight"), block.into(), hidden, Fill::NearOne);
    }
    list.tensors
}

/// A DFlash draft, all in bf16, for the first `layers` layers of a shape.
pub(crate) fn dflash(shape: &Shape, draft: &Dflash, layers: usize) -> Vec<Tensor> {
    let hidden = shape.hidden;
    let mut tensors = vec![
        matrix("fc", hidden, Dflash::taps(layers).len() * hidden),
        norm("hidden_norm", hidden),
        norm("norm", hidden),
    ];
    let (query, key) = (draft.heads * draft.head_dim, draft.kv_heads * draft.head_dim);
    for layer in 0..draft.layers {
        let name = |part: &str| format!("layers.{layer}.{part}");
        tensors.extend([
            matrix(&name("self_attn.q_proj"), query, hidden),
            matrix(&name("self_attn.k_proj"), key, hidden),
            matrix(&name("self_attn.v_proj"), key, hidden),
            matrix(&name("self_attn.o_proj"), hidden, query),
            matrix(&name("mlp.gate_proj"), draft.width, hidden),
            matrix(&name("mlp.up_proj"), draft.width, hidden),
            matrix(&name("mlp.down_proj"), hidden, draft.width),
            norm(&name("self_attn.q_norm"), draft.head_dim),
            norm(&name("self_attn.k_norm"), draft.head_dim),
            norm(&name("input_layernorm"), hidden),
            norm(&name("post_attention_layernorm"), hidden),
        ]);
    }
    tensors
}

fn matrix(name: &str, rows: usize, cols: usize) -> Tensor {
    half(name, vec![rows, cols], Fill::Normal { std: 1.0 / (cols as f32).sqrt() })
}

fn norm(name: &str, len: usize) -> Tensor {
    half(name, vec![len], Fill::NearOne)
}

fn half(name: &str, shape: Vec<usize>, fill: Fill) -> Tensor {
    let cols = shape[shape.len() - 1];
    Tensor {
        mlx: Some(format!("{name}.weight")),
        rows: shape.iter().product::<usize>() / cols,
        cols,
        shape,
        gguf: String::new(),
        dimensions: Vec::new(),
        content: Content::Half(fill),
        row_order: Order::Same,
        col_order: Order::Same,
    }
}
