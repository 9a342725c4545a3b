//! What a converter changed of the weights, as a spec has it.
//!
//! Norms that have their one already are left to [`Frame`](crate::blocks::Frame); the rest is here.

use std::sync::Arc;

use checkpoint::Checkpoint;
use checkpoint::gguf::{Conversion, FactorLayers, HeadOrder, Rate, RotaryPairs};
use compute::RopePairs;

use crate::spec::{AttentionSpec, LayerSpec, MixerSpec};
use crate::{Error, Result};

/// Changes layers to what their weights are.
pub(crate) fn apply(checkpoint: &Checkpoint, layers: &mut [LayerSpec]) -> Result<()> {
    let conversion = checkpoint.conversion();
    if let Some(scale) = conversion.output_scales.first() {
        return Err(Error::OutputScale { tensor: scale.name.clone() });
    }
    let factors = match &conversion.frequency_factors {
        Some(factors) => Some((checkpoint.read_f32(&factors.tensor)?, factors.layers)),
        None => None,
    };
    for layer in layers {
        match &mut layer.mixer {
            MixerSpec::Attention(attention) => {
                rotation(conversion, factors.as_ref(), attention)?;
            }
            MixerSpec::Delta(delta) => {
                delta.shape.is_tiled = conversion.value_heads == HeadOrder::Tiled;
                delta.holds_rate = conversion.rate == Rate::Negative;
            }
        }
    }
    Ok(())
}

fn rotation(
    conversion: &Conversion,
    factors: Option<&(Vec<f32>, FactorLayers)>,
    attention: &mut AttentionSpec,
) -> Result<()> {
    let has_factors = |layers: &FactorLayers| match layers {
        FactorLayers::All => true,
        FactorLayers::Full => attention.shape.window.is_none(),
    };
    let factors = factors.filter(|(_, layers)| has_factors(layers));
    let pairs = match conversion.rotary_pairs {
        RotaryPairs::Halves => RopePairs::Halves,
        RotaryPairs::Neighbours => RopePairs::Interleaved,
    };
    if factors.is_none() && attention.rope.pairs == pairs {
        return Ok(());
    }
    let rope = Arc::make_mut(&mut attention.rope);
    rope.pairs = pairs;
    if let Some((factors, _)) = factors
        && !rope.divide(factors)
    {
        return Err(Error::FrequencyFactors { expected: rope.rotary_dim / 2, got: factors.len() });
    }
    Ok(())
}
