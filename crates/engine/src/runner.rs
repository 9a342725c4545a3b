//! A loaded model with its memory: turns token rows into logits.

use checkpoint::Checkpoint;
use compute::{CpuBackend, ExpertBank, Step};
use model::{Batch, Decoder, DecoderSpec, Logits, Progress, SegmentKind};
use state::{Capacity, Memory, Sequence};

use crate::{Error, Options, Result};

/// Rows that may ask for logits in one step: bounds the memory of the output head.
pub(crate) const LOGIT_ROWS: usize = 64;

/// A model that can run batches.
pub struct Runner {
    spec: DecoderSpec,
    decoder: Decoder,
    bank: Option<Box<dyn ExpertBank>>,
    memory: Memory,
    backend: CpuBackend,
    options: Options,
}

impl Runner {
    /// Loads a model, its experts included.
    pub fn load(
        checkpoint: &Checkpoint,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Runner> {
        let spec = model::arch::spec(checkpoint)?;
        Runner::load_spec(checkpoint, spec, options, progress)
    }

    /// Loads a model whose spec is already known.
    pub fn load_spec(
        checkpoint: &Checkpoint,
        spec: DecoderSpec,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Runner> {
        if !machine::cpu::supports(options.isa) {
            return Err(Error::Isa { isa: options.isa });
        }
        let (resident, experts) = (spec.resident_bytes(), spec.expert_bytes());
        let all = resident + experts;
        let decoder = Decoder::load(checkpoint, &spec, &|done, _| progress(done, all))?;
        let bank =
            model::resident_bank(checkpoint, &spec, &|done, _| progress(resident + done, all))?;
        let memory = Memory::new(&spec.layout()?, options.kv, &capacity(options))?;
        let backend = CpuBackend::new(options.isa, options.threads, arena_floats(&spec, options))?;
        Ok(Runner {
            spec,
            decoder,
            bank: bank.map(|bank| Box::new(bank) as Box<dyn ExpertBank>),
            memory,
            backend,
            options: *options,
        })
    }

    /// What the model is made of.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// How it was loaded.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A new, empty sequence.
    pub fn sequence(&mut self) -> Result<Sequence> {
        Ok(self.memory.sequence()?)
    }

    /// Runs a batch and hands each wanted row of logits to `row`, in order. The sequences advance.
    pub fn forward(
        &mut self,
        batch: &Batch,
        sequences: &mut [&mut Sequence],
        mut row: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.check(batch, sequences)?;
        for segment in &batch.segments {
            self.memory.prepare(sequences[segment.sequence], segment.count)?;
        }
        let shared: Vec<&Sequence> = sequences.iter().map(|s| &**s).collect();
        let mut step = self.backend.begin();
        let bank = self.bank.as_deref();
        let output = self.decoder.forward(&mut step, batch, bank, &mut self.memory, &shared)?;
        let fence = step.submit();
        if let Some(logits) = output.logits {
            let values = step.read(&fence, logits);
            for (index, values) in values.chunks_exact(logits.cols()).enumerate() {
                row(index, values);
            }
        }
        for segment in &batch.segments {
            sequences[segment.sequence].advance(segment.count);
            sequences[segment.sequence].release_windows(0);
        }
        Ok(())
    }

    fn check(&self, batch: &Batch, sequences: &[&mut Sequence]) -> Result<()> {
        for input in &batch.rows {
            if let compute::Input::Token(token) = *input
                && token as usize >= self.spec.vocab
            {
                return Err(Error::Token { token, vocab: self.spec.vocab });
            }
        }
        for segment in &batch.segments {
            let needed = sequences[segment.sequence].len() + segment.count;
            if needed > self.options.context {
                return Err(Error::Context { needed, context: self.options.context });
            }
        }
        Ok(())
    }

    /// Feeds tokens to a sequence chunk by chunk; `row` is told the logits that are wanted.
    pub fn feed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        logits: Logits,
        mut row: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let mut done = 0;
        while done < tokens.len() {
            let count = self.next_chunk(sequence.len(), tokens.len() - done, logits);
            let last = done + count == tokens.len();
            let wanted = match logits {
                Logits::Last if !last => Logits::None,
                other => other,
            };
            let mut batch = Batch::default();
            let part = &tokens[done..done + count];
            batch.push(0, sequence.len(), part, SegmentKind::Prefill, wanted);
            let base = if wanted == Logits::All { done } else { tokens.len() - 1 };
            self.forward(&batch, &mut [sequence], |index, values| row(base + index, values))?;
            done += count;
        }
        Ok(())
    }

    /// Rows of the next chunk: it ends at a block boundary unless the prompt ends before.
    pub(crate) fn next_chunk(&self, position: usize, left: usize, logits: Logits) -> usize {
        let block = compute::memory::BLOCK;
        let most = match logits {
            Logits::All => self.options.chunk.min(LOGIT_ROWS),
            _ => self.options.chunk,
        };
        let end = ((position + most.max(block)) / block * block).max(position + 1);
        left.min(end - position)
    }
}

/// State memory for the options.
pub(crate) fn capacity(options: &Options) -> Capacity {
    Capacity {
        tokens: options.context * options.sequences,
        sequences: options.sequences,
        checkpoints: 0,
        step_tokens: options.chunk.max(compute::memory::BLOCK),
    }
}

/// Floats of the activation arena: the largest step, and its logits.
pub(crate) fn arena_floats(spec: &DecoderSpec, options: &Options) -> usize {
    let rows = options.chunk.max(compute::memory::BLOCK) + options.sequences;
    let logit_rows = LOGIT_ROWS.max(options.sequences);
    rows * spec.activation_floats() + logit_rows * (spec.vocab + 2 * spec.hidden) + 4096
}
