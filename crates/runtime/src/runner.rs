//! A loaded model with its memory: turns token rows into logits.

use std::sync::Arc;

use checkpoint::Checkpoint;
use compute::{Backend, ExpertBank, Features, ResidentBank, Tape};
use experts::reader::Method;
use experts::{Device, StreamedBank};
use model::{
    Batch, Caching, Decoder, DecoderSpec, Head, Logits, Pass, Progress, SegmentKind, in_format,
};
use state::{Capacity, Layout, Memory, Sequence};

use crate::pass::{self, LogitsReader};
use crate::{Error, Options, Result, features, streaming};

/// Rows that may ask for logits in one step: bounds the memory of the output head.
pub const LOGIT_ROWS: usize = 64;

/// What a compute thread keeps: gate, up and hidden values of 512 rows of an expert, tiles, a block of keys.
const THREAD_BYTES: usize = 12 << 20;

/// Where the experts are.
#[allow(clippy::large_enum_variant, reason = "one a model")]
enum Bank {
    /// The model has none.
    None,
    Resident(ResidentBank),
    Streamed(StreamedBank),
}

impl Bank {
    fn get(&self) -> Option<&dyn ExpertBank> {
        match self {
            Bank::None => None,
            Bank::Resident(bank) => Some(bank),
            Bank::Streamed(bank) => Some(bank),
        }
    }
}

/// A sequence of a batch that cannot go on.
#[derive(Debug)]
pub struct SequenceFailure {
    /// Its index in the call.
    pub sequence: usize,
    /// Why.
    pub error: Error,
}

/// A model that can run batches.
pub struct Runner {
    pub(crate) spec: DecoderSpec,
    pub(crate) decoder: Decoder,
    bank: Bank,
    pub(crate) memory: Memory,
    pub(crate) backend: Backend,
    /// Of the last batch that had rows to verify.
    tape: Tape,
    pub(crate) options: Options,
    pub(crate) head: Option<Head>,
    /// Whether the head's features are left out.
    head_rests: bool,
    /// What the head needs of the rows of the last batch, by segment.
    pub(crate) features: Vec<Features>,
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
        let device = match &options.slots {
            Some(_) => Some(streaming::open(checkpoint, &spec, options.reading.as_ref())?),
            None => None,
        };
        Runner::load_from(checkpoint, spec, options, device, progress)
    }

    /// The same with a device and a way to read experts from it that the caller has chosen.
    pub fn load_from(
        checkpoint: &Checkpoint,
        spec: DecoderSpec,
        options: &Options,
        device: Option<(Arc<dyn Device>, Method)>,
        progress: Progress<'_>,
    ) -> Result<Runner> {
        let (resident, experts) = (spec.resident_bytes(), spec.expert_bytes());
        // What is read now is not read again, and the memory is spoken for.
        let caching = if device.is_some() { Caching::Forget } else { Caching::Keep };
        let head_bytes = options.head.as_ref().map_or(0, |head| head.spec.bytes());
        let weights = if device.is_some() { resident } else { resident + experts };
        let all = weights + head_bytes;
        let arena_floats = arena_floats(&spec, options);
        let Options { backend, isa, threads, .. } = *options;
        let backend = Backend::new(backend, isa, threads, arena_floats)?;
        let store = backend.store();
        let progress_of_all = |done, _| progress(done, all);
        let decoder = Decoder::load(checkpoint, &spec, store, caching, &progress_of_all)?;
        let bank = match (device, &options.slots) {
            (Some((device, method)), Some(slots)) => {
                Bank::Streamed(streaming::bank(&spec, slots, device, method, options, store)?)
            }
            _ => {
                let progress = |done, _| progress(resident + done, all);
                model::resident_bank(checkpoint, &spec, store, &progress)?
                    .map_or(Bank::None, Bank::Resident)
            }
        };
        let head = features::load_head(checkpoint, options, store, caching, &|done, _| {
            progress(weights + done, all);
        })?;
        let memory = Memory::new(&layout(&spec, options)?, &capacity(options), store)?;
        let (options, tape) = (options.clone(), store.tape());
        Ok(Runner {
            spec,
            decoder,
            bank,
            memory,
            backend,
            tape,
            options,
            head,
            head_rests: false,
            features: Vec::new(),
        })
    }

    /// Asks nothing for the head, or again what it needs.
    pub fn rest_head(&mut self, rests: bool) {
        self.head_rests = rests;
    }

    /// Moves the model to the threads of another, with which it takes turns.
    pub fn share_threads(&mut self, other: &Runner) {
        self.backend.share_threads(&other.backend);
    }

    /// The bank of a model whose experts are read when they are wanted.
    pub fn streamed(&self) -> Option<&StreamedBank> {
        match &self.bank {
            Bank::Streamed(bank) => Some(bank),
            Bank::Resident(_) | Bank::None => None,
        }
    }

    /// Where the experts are.
    pub(crate) fn bank(&self) -> Option<&dyn ExpertBank> {
        self.bank.get()
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

    /// Pages and slots of all sequences.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// A new, empty sequence, for callers that can make room.
    pub fn new_sequence(&mut self) -> state::Result<Sequence> {
        self.memory.sequence()
    }

    /// Makes room for the rows that a sequence has in the next batch, so that [`Runner::forward`] will find
    /// it. If there is none, nothing is changed.
    pub fn reserve(&mut self, sequence: &mut Sequence, count: usize) -> state::Result<()> {
        self.memory.prepare(sequence, count)
    }

    /// Runs a batch and hands each wanted row of logits to `row`, in order. The sequences advance, but those
    /// with rows to verify wait for [`Runner::settle`]. Those in the answer could not be computed: their rows are
    /// left out, and they are good for nothing more.
    pub fn forward(
        &mut self,
        batch: &Batch,
        sequences: &mut [&mut Sequence],
        mut row: impl FnMut(usize, &[f32]),
    ) -> Result<Vec<SequenceFailure>> {
        self.check(batch, sequences)?;
        for segment in &batch.segments {
            if let Err(error) = self.memory.prepare(sequences[segment.sequence], segment.count) {
                // Nothing is written: none of them is in the middle of a step.
                sequences.iter_mut().for_each(|sequence| sequence.advance(0));
                return Err(error.into());
            }
        }
        Ok(self.run(batch, sequences, LogitsReader::InOrder(&mut row)))
    }

    /// The same for any reader, in room that [`Runner::reserve`] has made.
    pub fn forward_reserved(
        &mut self,
        batch: &Batch,
        sequences: &mut [&mut Sequence],
        reader: LogitsReader<'_>,
    ) -> Result<Vec<SequenceFailure>> {
        self.check(batch, sequences)?;
        Ok(self.run(batch, sequences, reader))
    }

    fn run(
        &mut self,
        batch: &Batch,
        sequences: &mut [&mut Sequence],
        reader: LogitsReader<'_>,
    ) -> Vec<SequenceFailure> {
        let shared: Vec<&Sequence> = sequences.iter().map(|s| &**s).collect();
        let head = self.head.as_ref().filter(|_| !self.head_rests);
        let asking = head.map(|head| features::asking(head, batch));
        let batch = asking.as_ref().unwrap_or(batch);
        let pass = Pass {
            step: &mut *self.backend.begin(),
            batch,
            memory: &mut self.memory,
            sequences: &shared,
            bank: self.bank.get(),
            tape: Some(&mut self.tape),
        };
        let passed = pass::run(&self.decoder, head, pass, reader);
        self.features = passed.features;
        let mut failures = Vec::new();
        for segment in &batch.segments {
            if !segment.is_trial() {
                sequences[segment.sequence].advance(segment.count);
                sequences[segment.sequence].release_windows(0);
            }
            if let Some(failure) = pass::failure_of(&passed.failures, segment) {
                let error = Error::Expert(Arc::clone(&failure.error));
                failures.push(SequenceFailure { sequence: segment.sequence, error });
            }
        }
        failures
    }

    /// After [`Runner::forward`]: the first `counts[i]` rows of each segment `i` that was verified are right. Their
    /// sequences advance by so many, as if only those rows had been there.
    pub fn settle(&mut self, batch: &Batch, counts: &[usize], sequences: &mut [&mut Sequence]) {
        let shared: Vec<&Sequence> = sequences.iter().map(|s| &**s).collect();
        let mut step = self.backend.begin();
        self.decoder.replay(&mut *step, batch, counts, &self.tape, &mut self.memory, &shared);
        let _done = step.submit();
        if let Some(bank) = self.bank.get() {
            let rows = batch.segments.iter().zip(counts);
            let rows = rows.filter(|(segment, _)| segment.is_trial());
            let right = rows.flat_map(|(segment, &count)| segment.row..segment.row + count);
            bank.settle(right.fold(0, |bits, row| bits | 1 << row));
        }
        for (segment, &count) in batch.segments.iter().zip(counts) {
            if segment.is_trial() {
                sequences[segment.sequence].advance(count);
                sequences[segment.sequence].release_windows(0);
            }
        }
    }

    fn check(&self, batch: &Batch, sequences: &[&mut Sequence]) -> Result<()> {
        for &token in &batch.tokens {
            if token as usize >= self.spec.vocab {
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

    /// Feeds tokens to a sequence chunk by chunk; `row` receives the logits that are wanted.
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
            let failures =
                self.forward(&batch, &mut [sequence], |index, values| row(base + index, values))?;
            if let Some(failure) = failures.into_iter().next() {
                return Err(failure.error);
            }
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
        tokens: options.pool_positions(),
        sequences: options.sequences,
        checkpoints: options.checkpoints,
        step_tokens: options.chunk.max(compute::memory::BLOCK),
    }
}

/// What a sequence remembers: the model's layers, then those of a draft head.
pub(crate) fn layout(spec: &DecoderSpec, options: &Options) -> Result<Layout> {
    Ok(match &options.head {
        Some(head) => head.spec.layout(spec, &in_format(options.kv))?,
        None => spec.layout(&in_format(options.kv))?,
    })
}

/// Rows that may ask for logits in one step.
pub(crate) fn logit_rows(options: &Options) -> usize {
    LOGIT_ROWS.max(options.sequences)
}

/// Floats of the activation arena: the largest step, and its logits.
pub(crate) fn arena_floats(spec: &DecoderSpec, options: &Options) -> usize {
    // The model's step and the head's follow one another.
    let (features, head) = options
        .head
        .as_ref()
        .map_or((0, 0), |head| (head.spec.feature_floats(), head.spec.activation_floats()));
    let row = (spec.activation_floats() + features).max(head);
    let logit_row = spec.vocab + 2 * spec.hidden;
    let rows = options.chunk.max(compute::memory::BLOCK) + options.sequences;
    // Tensors begin on a cache line; the rest covers what lies between them.
    rows * row + logit_rows(options) * logit_row + 4096
}

/// Bytes of the kernels' own buffers in the largest step: quantized copies of the activations, and what
/// each thread keeps for one expert.
pub(crate) fn scratch_bytes(spec: &DecoderSpec, options: &Options) -> u64 {
    let rows = options.chunk.max(compute::memory::BLOCK) + options.sequences;
    let head = options.head.as_ref().map_or(0, |head| head.spec.quantized_bytes());
    let mut bytes = rows * spec.quantized_bytes().max(head) + options.threads * THREAD_BYTES;
    if let Some(head) = &options.head {
        // Features on their way from the model's step to the head's.
        bytes += 2 * rows * head.spec.features().width * 4;
    }
    bytes as u64
}
