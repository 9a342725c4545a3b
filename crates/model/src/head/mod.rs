//! Draft heads: small decoders that guess what their target will say next.
//!
//! A head shares the target's embeddings, output head, memory and backend. It keeps its keys and values in layers
//! after the target's own, in the same sequences, so whatever forks, cuts or drops a sequence does so for the
//! head too. It reads what the target thought of each token ([`Features`]) and never runs the target.
//! Invariant: what a token leaves in a head's layers depends on that token's features and position alone, so it
//! may be taken in by any cuts of the sequence, in any company.

mod dflash;
mod mtp;
mod spec;

use checkpoint::Checkpoint;
use compute::{ExpertBank, Input, Linear, ResidentBank, Step, Tensor};
use state::{Memory, Sequence};

use crate::batch::{Batch, Logits, SegmentKind};
use crate::decoder::{Attention, FeedForward};
use crate::load::{Caching, Loader, Progress, bank_of_layers};
use crate::spec::{LayerSpec, MixerSpec};
use crate::{Decoder, Result};

pub use spec::{DflashSpec, Features, HeadKind, HeadSpec, MtpSpec};

/// A loaded head.
#[derive(Debug)]
pub struct Head {
    spec: HeadSpec,
    /// What comes in, to the width of the stream.
    fc: Linear,
    layers: Vec<HeadLayer>,
    norm: Vec<f32>,
    parts: Parts,
    bank: Option<ResidentBank>,
}

/// What the two kinds do not have in common.
#[derive(Debug)]
enum Parts {
    Mtp { embedding_norm: Vec<f32>, hidden_norm: Vec<f32> },
    Dflash { context_norm: Vec<f32>, mask: u32 },
}

#[derive(Debug)]
struct HeadLayer {
    input_norm: Vec<f32>,
    attention: Attention,
    post_norm: Vec<f32>,
    feed_forward: FeedForward,
}

/// Consecutive tokens of one sequence that a head takes in.
#[derive(Clone, Copy, Debug)]
pub struct HeadSegment<'a> {
    /// Index into the sequences of the call.
    pub sequence: usize,
    /// Position of the first token.
    pub position: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// What the target thought of each: [tokens, [`Features::width`]].
    pub features: &'a [f32],
    /// What it thought of the token before the first; empty if that is not known.
    pub before: &'a [f32],
}

/// Where a draft begins.
#[derive(Clone, Copy, Debug)]
pub struct Anchor<'a> {
    /// Index into the sequences of the call.
    pub sequence: usize,
    /// Position of `token`, and with it of what the draft writes first.
    pub position: usize,
    /// The last token that is known.
    pub token: u32,
    /// The target's features of the token before it (empty if they are not known); from the second token of a draft on,
    /// the head's own [`Proposal::hidden`].
    pub feature: &'a [f32],
    /// Tokens wanted. A head that drafts one at a time gives one.
    pub count: usize,
}

/// What a head proposes.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    /// Logits of the tokens after each anchor, anchor by anchor: [tokens, vocab].
    pub logits: Tensor,
    /// What a head that drafts one token at a time wants to see again: [anchors, hidden].
    pub hidden: Option<Tensor>,
}

impl Head {
    /// Loads a head, its experts included. The checkpoint is the one the spec was made from.
    pub fn load(
        checkpoint: &Checkpoint,
        spec: &HeadSpec,
        caching: Caching,
        progress: Progress<'_>,
    ) -> Result<Head> {
        let loader = Loader::new(checkpoint, spec.bytes(), progress, caching);
        let parts = match &spec.kind {
            HeadKind::Mtp(mtp) => Parts::Mtp {
                embedding_norm: loader.vector(&mtp.embedding_norm)?,
                hidden_norm: loader.vector(&mtp.hidden_norm)?,
            },
            HeadKind::Dflash(dflash) => Parts::Dflash {
                context_norm: loader.vector(&dflash.context_norm)?,
                mask: dflash.mask,
            },
        };
        let layer = |layer: &LayerSpec| HeadLayer::load(&loader, layer);
        Ok(Head {
            fc: loader.linear(&spec.fc)?,
            layers: spec.stack.iter().map(layer).collect::<Result<_>>()?,
            norm: loader.vector(&spec.norm)?,
            parts,
            bank: bank_of_layers(&loader, &spec.stack, spec.hidden)?,
            spec: spec.clone(),
        })
    }

    /// What it is made of.
    pub fn spec(&self) -> &HeadSpec {
        &self.spec
    }

    /// Writes what tokens leave in the head's layers. Their positions must have pages; pages that forks share are
    /// written too, since the forks hold the same tokens there.
    pub fn take_in(
        &self,
        step: &mut dyn Step,
        decoder: &Decoder,
        segments: &[HeadSegment<'_>],
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) {
        let mut batch = Batch::default();
        for segment in segments {
            let HeadSegment { sequence, position, tokens, .. } = *segment;
            batch.push(sequence, position, tokens, SegmentKind::Prefill, Logits::None);
        }
        if batch.rows.is_empty() {
            return;
        }
        match &self.parts {
            Parts::Mtp { .. } => {
                self.mtp_take_in(step, decoder, segments, &batch, memory, sequences);
            }
            Parts::Dflash { context_norm, .. } => {
                self.dflash_take_in(step, context_norm, segments, &batch, memory, sequences);
            }
        }
    }

    /// Fills `count` positions from `position` on of one sequence, whose features were lost, with keys and values
    /// that say nothing.
    pub fn skip(
        &self,
        step: &mut dyn Step,
        position: usize,
        count: usize,
        memory: &mut Memory,
        sequence: &Sequence,
    ) {
        let mut batch = Batch::default();
        batch.push(0, position, &vec![0; count], SegmentKind::Prefill, Logits::None);
        for (index, layer) in self.layers.iter().enumerate() {
            let mark = step.mark();
            let at = self.spec.first_layer + index;
            layer.attention.store_nothing(step, at, &batch, memory, &[sequence]);
            step.release(mark);
        }
    }

    /// Drafts for several sequences at once. Each must have taken in every position before its anchor and have been
    /// prepared for what is written: one position a token, and one more for the anchor of a block.
    pub fn propose(
        &self,
        step: &mut dyn Step,
        decoder: &Decoder,
        anchors: &[Anchor<'_>],
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) -> Proposal {
        match &self.parts {
            Parts::Mtp { .. } => self.mtp_propose(step, decoder, anchors, memory, sequences),
            Parts::Dflash { mask, .. } => {
                self.dflash_propose(step, decoder, *mask, anchors, memory, sequences)
            }
        }
    }

    /// One layer on the stream `h`.
    fn layer(
        &self,
        step: &mut dyn Step,
        h: Tensor,
        index: usize,
        batch: &Batch,
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) {
        let (layer, eps) = (&self.layers[index], self.spec.eps);
        let mark = step.mark();
        let x = step.norm(h, &layer.input_norm, eps);
        let at = self.spec.first_layer + index;
        let y = layer.attention.forward(step, x, eps, at, batch, memory, sequences);
        step.add(h, y);
        step.release(mark);
        let mark = step.mark();
        let x = step.norm(h, &layer.post_norm, eps);
        let bank = self.bank.as_ref().map(|bank| bank as &dyn ExpertBank);
        let y = layer.feed_forward.forward(step, h, x, eps, index, bank);
        step.add(h, y);
        step.release(mark);
    }
}

impl HeadLayer {
    fn load(loader: &Loader<'_>, spec: &LayerSpec) -> Result<HeadLayer> {
        let MixerSpec::Attention(attention) = &spec.mixer else {
            unreachable!("the layers of a head are made of attention")
        };
        Ok(HeadLayer {
            input_norm: loader.vector(&spec.input_norm)?,
            attention: Attention::load(loader, attention)?,
            post_norm: loader.vector(&spec.post_norm)?,
            feed_forward: FeedForward::load(loader, &spec.feed_forward)?,
        })
    }
}

fn inputs(tokens: &[u32]) -> Vec<Input> {
    tokens.iter().map(|&token| Input::Token(token)).collect()
}
