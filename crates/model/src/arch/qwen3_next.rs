//! Qwen3-Next (80B-A3B): Qwen3.5's mathematics with fused projections laid out by key head. Converters to GGUF take
//! one of the two apart.

use compute::DeltaShape;

use super::qwen3_5::{is_full_attention, unconverted_norm_offset};
use crate::blocks::{
    Attention, Frame, Moe, attention, delta_parts, delta_shape, dense, frame, moe,
};
use crate::{DecoderSpec, MixerSpec, Result, Tensors};

/// The model a Qwen3-Next config describes.
pub fn spec(tensors: &Tensors<'_>) -> Result<DecoderSpec> {
    let mut frame_of = Frame::from_config(tensors)?;
    frame_of.norm_plus = unconverted_norm_offset(tensors);
    let mut attention_of = Attention::from_config(tensors, 10_000_000.0)?;
    (attention_of.qk_norm, attention_of.gated) = (true, true);
    let delta_of = delta_shape(tensors)?;
    let moe_of = Moe::qwen(tensors, false)?;
    frame(tensors, &frame_of, |layer, path| {
        let mixer = if is_full_attention(tensors, layer) {
            attention(tensors, &format!("{path}.self_attn"), &frame_of, &attention_of)?
        } else {
            fused_delta(tensors, &format!("{path}.linear_attn"), frame_of.hidden, &delta_of)?
        };
        let feed_forward = if Moe::is_sparse(tensors, layer) {
            moe(tensors, &format!("{path}.mlp"), frame_of.hidden, &moe_of)?
        } else {
            let intermediate = tensors.count("intermediate_size")?;
            dense(tensors, &format!("{path}.mlp"), frame_of.hidden, intermediate)?
        };
        Ok((mixer, feed_forward))
    })
}

/// For each key head the fused rows are its query, its key, its values and their gates; here they
/// are gathered into all queries, all keys, all values, and all gates. Likewise b and a.
fn fused_delta(
    tensors: &Tensors<'_>,
    path: &str,
    hidden: usize,
    d: &DeltaShape,
) -> Result<MixerSpec> {
    let ratio = d.value_heads / d.key_heads;
    let values = ratio * d.value_dim;
    let group = 2 * d.key_dim + 2 * values;
    let part = |offset: usize, count: usize| {
        (0..d.key_heads).map(move |head| (head * group + offset, count))
    };
    let separate = format!("{path}.in_proj_qkv");
    let (qkv, z) = if tensors.has(&separate) {
        let z =
            tensors.linear(&format!("{path}.in_proj_z"), d.value_heads * d.value_dim, hidden)?;
        (tensors.linear(&separate, d.channels(), hidden)?, z)
    } else {
        let qkvz = format!("{path}.in_proj_qkvz");
        let qkv_ranges =
            part(0, d.key_dim).chain(part(d.key_dim, d.key_dim)).chain(part(2 * d.key_dim, values));
        let qkv = tensors.gathered(&qkvz, d.key_heads * group, hidden, qkv_ranges)?;
        let z_ranges = part(2 * d.key_dim + values, values);
        (qkv, tensors.gathered(&qkvz, d.key_heads * group, hidden, z_ranges)?)
    };
    let ba = format!("{path}.in_proj_ba");
    let half = |offset: usize| (0..d.key_heads).map(move |head| (head * 2 * ratio + offset, ratio));
    let b = tensors.gathered(&ba, 2 * d.value_heads, hidden, half(0))?;
    let a = tensors.gathered(&ba, 2 * d.value_heads, hidden, half(ratio))?;
    delta_parts(tensors, path, hidden, d, [qkv, z, b, a])
}
