//! The layers of Gemma 4, which is written as MLX only: no tensor has a GGUF name.
//!
//! Norms after both halves decide what a layer adds to the residual stream, so they carry the gain that matrices
//! have in other families. As in published 4-bit files the dense layers have eight bits.

use super::{Content, Fill, LOGIT_STD, List, Router};
use crate::synth::shape::{FeedForward, Gemma};

/// Bits of the dense layers.
const DENSE_BITS: usize = 8;

/// Weights of the norms of queries and keys, whose products are not divided by the root of a head's width.
fn head_gain(head_dim: usize) -> f32 {
    (head_dim as f32).powf(-0.25)
}

impl List<'_> {
    pub(super) fn gemma_layer(&mut self, gemma: &Gemma, layer: usize, layers: usize) {
        let path = self.model(&format!("layers.{layer}"));
        for norm in ["input_layernorm", "pre_feedforward_layernorm", "pre_feedforward_layernorm_2"]
        {
            self.norm(&path, norm, 1.0);
        }
        for norm in ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2"] {
            self.norm(&path, norm, 1.0);
        }
        // The scaled embedding has the deviation of the logits; all layers together add as much.
        let gain = LOGIT_STD / (2.0 * self.shape.layers as f32).sqrt();
        for norm in ["post_attention_layernorm", "post_feedforward_layernorm"] {
            self.norm(&path, norm, gain);
        }
        self.named_vector(format!("{path}.layer_scalar"), 1, Fill::One);
        self.gemma_attention(&format!("{path}.self_attn"), gemma, gemma.is_global(layer, layers));
        self.gemma_feed_forward(&path, gemma, layer);
    }

    fn gemma_attention(&mut self, path: &str, gemma: &Gemma, is_global: bool) {
        let shape = self.shape;
        let (kv_heads, head_dim) = match is_global {
            true => (gemma.global_kv_heads, gemma.global_head_dim),
            false => (shape.kv_heads, shape.head_dim),
        };
        let (query, key) = (shape.heads * head_dim, kv_heads * head_dim);
        self.linear(format!("{path}.q_proj"), String::new(), [query, shape.hidden], 1.0);
        self.linear(format!("{path}.k_proj"), String::new(), [key, shape.hidden], 1.0);
        if !is_global {
            self.linear(format!("{path}.v_proj"), String::new(), [key, shape.hidden], 1.0);
        }
        self.output_linear(format!("{path}.o_proj"), String::new(), query);
        for norm in ["q_norm", "k_norm"] {
            let value = head_gain(head_dim);
            self.named_vector(format!("{path}.{norm}.weight"), head_dim, Fill::Near { value });
        }
    }

    fn gemma_feed_forward(&mut self, path: &str, gemma: &Gemma, layer: usize) {
        let first = self.tensors.len();
        self.swiglu(&format!("{path}.mlp"), "", "", None, gemma.dense_width);
        for tensor in &mut self.tensors[first..] {
            if let Content::Affine { bits, .. } = &mut tensor.content {
                *bits = DENSE_BITS;
            }
        }
        let FeedForward::Experts { count, used, width, .. } = self.shape.feed_forward else {
            return;
        };
        let hidden = self.shape.hidden;
        let router = format!("{path}.router.proj.weight");
        let content = self.router(&router, [count, used], layer);
        self.matrix(router, String::new(), [count, hidden], Fill::NearOne).content = content;
        // Even for a tuned router, whose first columns must count alike.
        let fill = match self.values.router {
            Router::Uniform => Fill::NearOne,
            Router::Tuned => Fill::One,
        };
        self.named_vector(format!("{path}.router.scale"), hidden, fill);
        self.named_vector(format!("{path}.router.per_expert_scale"), count, Fill::NearOne);
        self.swiglu(&format!("{path}.experts.switch_glu"), "", "", Some(count), width);
    }

    fn norm(&mut self, path: &str, name: &str, value: f32) {
        let hidden = self.shape.hidden;
        self.named_vector(format!("{path}.{name}.weight"), hidden, Fill::Near { value });
    }

    fn named_vector(&mut self, name: String, len: usize, fill: Fill) {
        self.vector(name, String::new(), len, fill);
    }
}
