//! What a draft head is made of, as data, and what it costs in addition to its target.

use compute::memory::KvCode;
use state::{LayerKind, Layout};

use crate::spec::{
    DecoderSpec, FeedForwardSpec, LayerSpec, LinearSpec, MixerSpec, VectorSpec, vector,
};
use crate::{Batch, Result, residual};

/// Tokens that a head which drafts one at a time may be asked for: each is predicted from predictions.
const LONGEST_CHAIN: usize = 16;

/// A whole head.
#[derive(Clone, Debug)]
pub struct HeadSpec {
    /// Which kind, with what only that kind has.
    pub kind: HeadKind,
    /// Width of the stream, the target's.
    pub hidden: usize,
    /// Epsilon of its norms.
    pub eps: f32,
    /// Where its layers begin in a layout: after the target's.
    pub first_layer: usize,
    /// From what comes in to the stream.
    pub fc: LinearSpec,
    /// Its layers, all of attention.
    pub stack: Vec<LayerSpec>,
    /// The last norm.
    pub norm: VectorSpec,
}

/// The kinds of heads.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one a model")]
pub enum HeadKind {
    /// Multi-token prediction: one layer that continues from the target's last hidden state, a token at a time.
    Mtp(MtpSpec),
    /// A block of tokens at once, seen through the hidden states of several target layers.
    Dflash(DflashSpec),
}

/// What only an MTP head has.
#[derive(Clone, Debug)]
pub struct MtpSpec {
    /// Norm of the token's embedding.
    pub embedding_norm: VectorSpec,
    /// Norm of the hidden state before it.
    pub hidden_norm: VectorSpec,
}

/// What only a DFlash draft has.
#[derive(Clone, Debug)]
pub struct DflashSpec {
    /// Norm of the projected features.
    pub context_norm: VectorSpec,
    /// Target layers whose outputs are its features, in the order they lie side by side.
    pub taps: Vec<usize>,
    /// The token that stands for one to be guessed.
    pub mask: u32,
    /// Rows of a block, the anchor's included.
    pub block_size: usize,
}

/// What a head needs of each token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureSpec {
    /// Outputs of these target layers, side by side in this order.
    pub taps: Vec<usize>,
    /// Or the hidden state after the last norm.
    pub hidden: bool,
    /// Values a token.
    pub width: usize,
}

impl FeatureSpec {
    /// Makes a batch request them.
    pub fn ask(&self, batch: &mut Batch) {
        batch.taps.clone_from(&self.taps);
        batch.hidden = self.hidden;
    }
}

impl HeadSpec {
    /// A short name, for people.
    pub fn name(&self) -> &'static str {
        match self.kind {
            HeadKind::Mtp(_) => "MTP",
            HeadKind::Dflash(_) => "DFlash",
        }
    }

    /// Whether it drafts all tokens at once.
    pub fn is_block(&self) -> bool {
        matches!(self.kind, HeadKind::Dflash(_))
    }

    /// What its layers keep of a sequence.
    pub fn layers(&self, codes: &[KvCode]) -> Vec<LayerKind> {
        let kind = |layer: &LayerSpec| match &layer.mixer {
            MixerSpec::Attention(a) => a.layer_kind(codes),
            MixerSpec::Delta(_) => unreachable!("the layers of a head are made of attention"),
        };
        self.stack.iter().map(kind).collect()
    }

    /// What a sequence of the target remembers with this head: the target's layers, then the head's.
    ///
    /// The head's layers come after the target's in `codes` too. A target that can be cut at any position stays so: there
    /// the head's sliding layers keep all positions.
    pub fn layout(
        &self,
        target: &DecoderSpec,
        codes: &dyn Fn(usize) -> Vec<KvCode>,
    ) -> Result<Layout> {
        let own = target.layout(codes)?;
        let mut layers = own.layers().to_vec();
        let mut head = self.layers(&codes(layers.len()));
        if own.is_rewindable() {
            for layer in &mut head {
                if let LayerKind::Own { pages, .. } = layer {
                    pages.iter_mut().for_each(|pages| pages.keys.window = None);
                }
            }
        }
        layers.extend(head);
        Ok(Layout::new(layers)?)
    }

    /// Bytes of its weights, experts included.
    pub fn bytes(&self) -> u64 {
        let own = match &self.kind {
            HeadKind::Mtp(mtp) => vector(&mtp.embedding_norm) + vector(&mtp.hidden_norm),
            HeadKind::Dflash(dflash) => vector(&dflash.context_norm),
        };
        let experts = |layer: &LayerSpec| match &layer.feed_forward {
            FeedForwardSpec::Moe(moe) => moe.experts.bytes(),
            FeedForwardSpec::Dense(_) => 0,
        };
        let layers = self.stack.iter().map(|layer| layer.resident_bytes() + experts(layer));
        own + self.fc.bytes() + vector(&self.norm) + layers.sum::<u64>()
    }

    /// What it needs of each token.
    pub fn features(&self) -> FeatureSpec {
        match &self.kind {
            HeadKind::Mtp(_) => FeatureSpec { taps: Vec::new(), hidden: true, width: self.hidden },
            HeadKind::Dflash(dflash) => FeatureSpec {
                taps: dflash.taps.clone(),
                hidden: false,
                width: dflash.taps.len() * self.hidden,
            },
        }
    }

    /// The most tokens of one draft.
    pub fn reach(&self) -> usize {
        match &self.kind {
            HeadKind::Mtp(_) => LONGEST_CHAIN,
            HeadKind::Dflash(dflash) => dflash.block_size - 1,
        }
    }

    /// Floats of activations one row of the head needs at most, logits excepted.
    pub fn activation_floats(&self) -> usize {
        let layer = |layer: &LayerSpec| layer.activation_floats(self.hidden);
        // In addition: features, what is made of them and of an embedding, the stream, its norm and the output.
        let widest = self.stack.iter().map(layer).max().unwrap_or(0);
        self.features().width + residual::width(self.hidden) + 8 * self.hidden + widest + 16 * 16
    }

    /// Floats of features that one row of the target's pass holds until they are read.
    pub fn feature_floats(&self) -> usize {
        self.features().width + 16
    }

    /// Bytes of quantized copies of the activations that one row needs at most.
    pub fn quantized_bytes(&self) -> usize {
        let linears = self.stack.iter().flat_map(LayerSpec::linears).chain([&self.fc]);
        let widest = linears.map(|linear| linear.slices[0].in_features).max().unwrap_or(0);
        // As for the target.
        9 * widest + 9 * self.hidden
    }
}
