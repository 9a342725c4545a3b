//! Draft heads: small decoders that guess what their target will say next.
//!
//! A head shares the target's embeddings, output head, memory and backend. It keeps its keys and values in layers
//! after the target's own, in the same sequences, so whatever forks, cuts or drops a sequence does so for the
//! head too. It reads what the target thought of each token ([`FeatureSpec`]) and never runs the target.
//! Invariant: what a token leaves in a head's layers depends on that token's features and position alone, so it
//! may be taken in by any cuts of the sequence, in any batch.

mod dflash;
mod mtp;
mod spec;

use checkpoint::Checkpoint;
use compute::{ExpertBank, Features, Linear, Norm, ResidentBank, Step, Store, Tensor};
use state::{Memory, Sequence};

use crate::batch::{Batch, Logits, SegmentKind};
use crate::decoder::{Attention, FeedForward};
use crate::load::{Caching, Loader, Progress, bank_of_layers};
use crate::pass::Pass;
use crate::residual::Residual;
use crate::spec::{LayerSpec, MixerSpec};
use crate::{Decoder, Result};

pub use spec::{DflashSpec, FeatureSpec, HeadKind, HeadSpec, MtpSpec};

/// A loaded head.
#[derive(Debug)]
pub struct Head {
    spec: HeadSpec,
    /// What comes in, to the width of the stream.
    fc: Linear,
    layers: Vec<HeadLayer>,
    norm: Norm,
    parts: Parts,
    bank: Option<ResidentBank>,
}

/// What the two kinds do not have in common.
#[derive(Debug)]
enum Parts {
    Mtp { embedding_norm: Norm, hidden_norm: Norm },
    Dflash { context_norm: Norm, mask: u32 },
}

#[derive(Debug)]
struct HeadLayer {
    input_norm: Norm,
    attention: Attention,
    post_norm: Norm,
    feed_forward: FeedForward,
}

/// Consecutive tokens of one sequence that a head takes in.
#[derive(Clone, Debug)]
pub struct HeadSegment<'a> {
    /// Index into the sequences of the call.
    pub sequence: usize,
    /// Position of the first token.
    pub position: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// What the target thought of each.
    pub features: Features,
    /// What it thought of the token before the first; no row if that is not known.
    pub before: Features,
}

/// Where a draft begins.
#[derive(Clone, Debug)]
pub struct Anchor {
    /// Index into the sequences of the call.
    pub sequence: usize,
    /// Position of `token`, and with it of what the draft writes first.
    pub position: usize,
    /// The last token that is known.
    pub token: u32,
    /// The target's features of the token before it (no row if they are not known); from the second token of a draft on,
    /// the head's own [`Proposal::hidden`].
    pub feature: Features,
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
    /// Loads a head, its experts included, into a backend's memory. The checkpoint is the one the spec was made from.
    pub fn load(
        checkpoint: &Checkpoint,
        spec: &HeadSpec,
        store: &dyn Store,
        caching: Caching,
        progress: Progress<'_>,
    ) -> Result<Head> {
        let loader = Loader::new(checkpoint, store, spec.bytes(), spec.eps, progress, caching);
        let parts = match &spec.kind {
            HeadKind::Mtp(mtp) => Parts::Mtp {
                embedding_norm: loader.norm(&mtp.embedding_norm)?,
                hidden_norm: loader.norm(&mtp.hidden_norm)?,
            },
            HeadKind::Dflash(dflash) => Parts::Dflash {
                context_norm: loader.norm(&dflash.context_norm)?,
                mask: dflash.mask,
            },
        };
        let layer = |layer: &LayerSpec| HeadLayer::load(&loader, layer);
        Ok(Head {
            fc: loader.linear(&spec.fc)?,
            layers: spec.stack.iter().map(layer).collect::<Result<_>>()?,
            norm: loader.norm(&spec.norm)?,
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
            let HeadSegment { sequence, position, tokens, .. } = segment;
            batch.push(*sequence, *position, tokens, SegmentKind::Prefill, Logits::None);
        }
        if batch.tokens.is_empty() {
            return;
        }
        let mut pass = self.pass(step, &batch, memory, sequences);
        match &self.parts {
            Parts::Mtp { .. } => self.mtp_take_in(&mut pass, decoder, segments),
            Parts::Dflash { context_norm, .. } => {
                self.dflash_take_in(&mut pass, context_norm, segments);
            }
        }
    }

    /// Its own experts, if it has some; it has no recurrent layers.
    fn pass<'a>(
        &'a self,
        step: &'a mut dyn Step,
        batch: &'a Batch,
        memory: &'a mut Memory,
        sequences: &'a [&'a Sequence],
    ) -> Pass<'a> {
        let bank = self.bank.as_ref().map(|bank| bank as &dyn ExpertBank);
        Pass { step, batch, memory, sequences, bank, tape: None }
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
        let sequences = [sequence];
        let mut pass = self.pass(step, &batch, memory, &sequences);
        for (layer, at) in self.layers.iter().zip(self.spec.first_layer..) {
            let mark = pass.step.mark();
            layer.attention.store_nothing(&mut pass, at);
            pass.step.release(mark);
        }
    }

    /// Drafts for several sequences at once. Each must have taken in every position before its anchor and have been
    /// prepared for what is written: one position a token, and one more for the anchor of a block.
    pub fn propose(
        &self,
        step: &mut dyn Step,
        decoder: &Decoder,
        anchors: &[Anchor],
        memory: &mut Memory,
        sequences: &[&Sequence],
    ) -> Proposal {
        let mut batch = Batch::default();
        for anchor in anchors {
            let (position, kind) = (anchor.position, SegmentKind::Decode);
            match &self.parts {
                Parts::Mtp { .. } => {
                    batch.push(anchor.sequence, position, &[anchor.token], kind, Logits::Last);
                }
                Parts::Dflash { mask, .. } => {
                    let mut block = vec![*mask; anchor.count + 1];
                    block[0] = anchor.token;
                    batch.push(anchor.sequence, position, &block, kind, Logits::All);
                }
            }
        }
        let mut pass = self.pass(step, &batch, memory, sequences);
        match &self.parts {
            Parts::Mtp { .. } => self.mtp_propose(&mut pass, decoder, anchors),
            Parts::Dflash { .. } => self.dflash_propose(&mut pass, decoder),
        }
    }

    /// One layer on the stream `h`.
    fn layer(&self, pass: &mut Pass<'_>, h: Residual, index: usize) {
        let layer = &self.layers[index];
        let mark = pass.step.mark();
        let x = h.enter(pass.step, &layer.input_norm);
        let y = layer.attention.forward(pass, x, self.spec.first_layer + index);
        h.join(pass.step, y, None);
        pass.step.release(mark);
        let mark = pass.step.mark();
        let x = h.enter(pass.step, &layer.post_norm);
        let y = layer.feed_forward.forward(pass, h, x, index);
        h.join(pass.step, y, None);
        pass.step.release(mark);
    }
}

impl HeadLayer {
    fn load(loader: &Loader<'_>, spec: &LayerSpec) -> Result<HeadLayer> {
        let MixerSpec::Attention(attention) = &spec.mixer else {
            unreachable!("the layers of a head are made of attention")
        };
        Ok(HeadLayer {
            input_norm: loader.norm(&spec.input_norm)?,
            attention: Attention::load(loader, attention)?,
            post_norm: loader.norm(&spec.post_norm)?,
            feed_forward: FeedForward::load(loader, &spec.feed_forward)?,
        })
    }
}
