//! Prefill and decode speed at several context lengths, against the memory's own.

pub mod pairs;
mod streaming;

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use machine::facts::Facts;
use machine::memory::MemoryUsage;
use model::Logits;
use runtime::Runner;
use serde::Serialize;
use state::Sequence;

use crate::{Result, argmax, noise_token};
use streaming::{REHEARSAL, STRETCH, Stopped, Watch};

pub use streaming::{Percentiles, StreamedRun};

/// Tokens decoded before the clock starts, so that buffers have their size and threads are awake.
const WARM_UP: usize = 2;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prompt lengths, each a run.
    pub prompt_tokens: Vec<usize>,
    /// Tokens that are decoded after each prompt.
    pub gen_tokens: usize,
    /// Times that each is measured, every time with other tokens; the best is kept.
    pub repeat: usize,
    /// Where a trace of the last run that is reported goes, if experts stream.
    pub trace: Option<PathBuf>,
}

impl Options {
    /// Positions that a context must have. A copy of the sequence is rehearsed on.
    pub fn positions(&self) -> usize {
        let longest = self.prompt_tokens.iter().max().copied().unwrap_or(0) + self.gen_tokens;
        longest + WARM_UP + compute::memory::BLOCK + REHEARSAL
    }
}

/// What came out.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Its `model_type`.
    pub model_type: String,
    /// Threads that computed.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// A plain read of memory with the same threads in this run, bytes per second.
    pub memory_bandwidth: f64,
    /// One a prompt length.
    pub runs: Vec<Run>,
    /// What the process held at the end of the last run: resident, from files, in swap.
    pub memory: MemoryUsage,
    /// This computer.
    pub machine: Facts,
}

/// One prompt and one answer.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub gen_tokens: usize,
    /// Tokens of the prompt read in a second.
    pub prefill_tok_s: f64,
    /// Tokens of the answer made in a second.
    pub decode_tok_s: f64,
    /// Bytes one decoded token touches: weights, keys and values, recurrent state read and written.
    pub bytes_per_token: u64,
    /// Share of the plain read's bandwidth that decoding reaches.
    pub bandwidth_share: f64,
    /// Most memory that the process has had.
    pub peak_bytes: u64,
    /// If experts came from the disk.
    #[serde(flatten)]
    pub streamed: Option<StreamedRun>,
}

/// Measures each prompt length, and writes the trace.
pub fn runs(runner: &mut Runner, options: &Options) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for &prompt_tokens in &options.prompt_tokens {
        let mut best: Option<(Run, Option<Stopped>)> = None;
        for repeat in 0..options.repeat {
            let (run, seen) = measure(runner, prompt_tokens, repeat, options)?;
            best = Some(match best {
                None => (run, seen),
                Some((best, best_seen)) => {
                    let prefill_tok_s = best.prefill_tok_s.max(run.prefill_tok_s);
                    let is_faster = run.decode_tok_s > best.decode_tok_s;
                    let (faster, seen) = if is_faster { (run, seen) } else { (best, best_seen) };
                    (Run { prefill_tok_s, ..faster }, seen)
                }
            });
        }
        let Some((run, seen)) = best else { continue };
        if let (Some(seen), Some(path)) = (seen, &options.trace) {
            seen.write_trace(path)?;
        }
        runs.push(run);
    }
    Ok(runs)
}

/// Sets runs against the memory's own speed. It is measured after them and without the model, so that the buffer of
/// the plain read finds room and is not in their peak. `facts` are those from before the model was loaded.
pub fn report(model: String, runner: Runner, mut runs: Vec<Run>, facts: Facts) -> Result<Report> {
    let memory = machine::memory::usage();
    let (spec, options) = (runner.spec(), runner.options());
    let (model_type, threads, isa) =
        (spec.model_type.clone(), options.threads, options.isa.to_string());
    let weight_bytes = spec.resident_bytes() + spec.expert_bytes();
    drop(runner);
    // Neighbours on the machine come and go: the ceiling is the better of two.
    let bandwidth = plain_read(&facts, threads)?.max(plain_read(&facts, threads)?);
    for run in &mut runs {
        run.bandwidth_share = run.bytes_per_token as f64 * run.decode_tok_s / bandwidth;
    }
    Ok(Report {
        model,
        model_type,
        threads,
        isa,
        weight_bytes,
        memory_bandwidth: bandwidth,
        runs,
        memory,
        machine: facts,
    })
}

fn plain_read(facts: &Facts, threads: usize) -> Result<f64> {
    Ok(machine::probe::read_bandwidth(threads, machine::probe::buffer_bytes(facts))?)
}

/// One prompt and one answer, and for a trace what was seen of reads meanwhile. Tokens are drawn at random, so that
/// routing does not settle on the experts of a repeated token; each repeat draws others, which the cache of
/// experts does not know yet.
fn measure(
    runner: &mut Runner,
    prompt_tokens: usize,
    repeat: usize,
    options: &Options,
) -> Result<(Run, Option<Stopped>)> {
    let gen_tokens = options.gen_tokens;
    let vocab = runner.spec().vocab;
    let token = |index: usize| noise_token(((repeat as u64) << 32) + index as u64, vocab);
    let prompt: Vec<u32> = (0..prompt_tokens).map(token).collect();
    let mut sequence = runner.sequence()?;
    let start = Instant::now();
    runner.feed(&mut sequence, &prompt, Logits::Last, |_, _| {})?;
    let prefill_seconds = start.elapsed().as_secs_f64();
    let decode =
        |runner: &mut Runner, sequence: &mut Sequence, range: Range<usize>| -> Result<f64> {
            let start = Instant::now();
            for index in range {
                let next = [token(prompt_tokens + index)];
                runner.feed(sequence, &next, Logits::Last, |_, logits| {
                    std::hint::black_box(argmax(logits));
                })?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
    decode(runner, &mut sequence, 0..WARM_UP)?;
    let mut watch = Watch::start(runner, &sequence)?;
    let (mut decoded, mut decode_seconds) = (0, 0.0);
    while decoded < gen_tokens {
        let stretch = if watch.is_some() { STRETCH } else { gen_tokens };
        let end = gen_tokens.min(decoded + stretch);
        let range = WARM_UP + decoded..WARM_UP + end;
        decode_seconds += decode(runner, &mut sequence, range)?;
        decoded = end;
        if let Some(watch) = &mut watch {
            watch.pause(runner, &sequence)?;
        }
    }
    let peak_bytes = machine::memory::usage().peak_resident_bytes;
    let stopped = watch.zip(runner.streamed());
    let stopped = stopped.map(|(watch, bank)| watch.stop(bank, gen_tokens, decode_seconds));
    let streamed = stopped.as_ref().zip(runner.streamed());
    let streamed = streamed.map(|(stopped, bank)| stopped.judge(bank, runner.spec()));
    let layout = runner.spec().layout(&model::in_format(runner.options().kv))?;
    let state = layout.kv_bytes(prompt_tokens + gen_tokens / 2) + 2 * layout.recurrent_bytes();
    let run = Run {
        prompt_tokens,
        gen_tokens,
        prefill_tok_s: prompt_tokens as f64 / prefill_seconds,
        decode_tok_s: gen_tokens as f64 / decode_seconds,
        bytes_per_token: runner.spec().bytes_per_token() + state as u64,
        bandwidth_share: 0.0,
        peak_bytes,
        streamed,
    };
    // Without a trace it is of no more use, and it holds memory.
    Ok((run, stopped.filter(|_| options.trace.is_some())))
}
