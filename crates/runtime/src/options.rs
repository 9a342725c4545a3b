//! What a caller may choose when a model is loaded. Everything has a sensible default.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::Checkpoint;
use compute::BackendKind;
use compute::memory::KvFormat;
use experts::Slots;
use experts::probe::Choice;
use machine::cpu::Isa;
use model::HeadSpec;

/// Choices of a [`crate::Runner`].
#[derive(Clone, Debug)]
pub struct Options {
    /// What computes.
    pub backend: BackendKind,
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Compute threads, the caller's included.
    pub threads: usize,
    /// Positions a sequence may have.
    pub context: usize,
    /// Sequences that may live at once.
    pub sequences: usize,
    /// Positions over all of them and the prefix cache, at least one sequence's; all sequences at their
    /// longest if `None`.
    pub pool_tokens: Option<usize>,
    /// Recurrent states in addition to those of the live sequences, for the prefix cache.
    pub checkpoints: usize,
    /// How keys and values are kept.
    pub kv: KvFormat,
    /// Rows of one prefill step: whole blocks of 64.
    pub chunk: usize,
    /// Slots for experts that are read when they are wanted; all experts are in memory if `None`.
    pub slots: Option<Slots>,
    /// How to read them, if that is known; else the disk is tried first.
    pub reading: Option<Choice>,
    /// How long a read of an expert may take.
    pub stall: Duration,
    /// Whether to read experts that a layer's router chooses before the layer's mixer has run.
    pub look_ahead: bool,
    /// A draft head to load with the model.
    pub head: Option<HeadOptions>,
}

/// A draft head and where its weights are.
#[derive(Clone, Debug)]
pub struct HeadOptions {
    /// What it is made of.
    pub spec: Arc<HeadSpec>,
    /// Its checkpoint; the model's own if `None`.
    pub checkpoint: Option<Arc<Checkpoint>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            backend: BackendKind::default(),
            isa: machine::cpu::isa(),
            threads: machine::cpu::core_count(),
            context: 4096,
            sequences: 1,
            pool_tokens: None,
            checkpoints: 0,
            kv: KvFormat::F16,
            chunk: 512,
            slots: None,
            reading: None,
            stall: Duration::from_secs(30),
            look_ahead: true,
            head: None,
        }
    }
}

impl Options {
    /// Positions over all sequences and the prefix cache.
    pub fn pool_positions(&self) -> usize {
        let all = self.context.saturating_mul(self.sequences);
        self.pool_tokens.unwrap_or(all).max(self.context)
    }
}
