//! Steps with drafted rows on a bank that reads: the same bits as with experts in memory and no word of
//! drafts, the bank is told who wants what, and a replay of the log counts what the bank counted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use checkpoint::Checkpoint;
use compute::{CpuBackend, ExpertBank, HostStore, Step, Trial};
use experts::device::{Access, Files};
use experts::reader::{Method, Queue};
use experts::routing_log::{self, Header, LoggedVisit};
use experts::simulate::{Policy, run};
use experts::{Device, StreamedBank};
use model::{Batch, Caching, Decoder, DecoderSpec, Logits, Pass, SegmentKind, in_format};
use runtime::{Options, Plan, PlanRequest, Runner};
use state::{Capacity, Memory, Sequence};

const SEQUENCES: usize = 3;
const ROUNDS: usize = 14;

fn request() -> PlanRequest {
    PlanRequest {
        context: Some(256),
        sequences: Some(SEQUENCES),
        chunk: Some(64),
        ..PlanRequest::default()
    }
}

/// A model without its experts.
struct Dense {
    decoder: Decoder,
    options: Options,
    spec: DecoderSpec,
}

impl Dense {
    fn load(checkpoint: &Checkpoint) -> Dense {
        let spec = model::arch::spec(checkpoint).expect("spec");
        let options = Plan::new(&spec, &request()).expect("plan").options;
        let decoder = Decoder::load(checkpoint, &spec, &HostStore, Caching::Keep, &|_, _| {});
        let decoder = decoder.expect("model");
        Dense { decoder, options: Options { threads: 2, ..options }, spec }
    }

    /// Rows that three sequences have in a round, and how deep they are drafted.
    fn round(&self, round: usize) -> Vec<(Vec<u32>, Vec<u8>)> {
        let vocab = self.spec.vocab as u32;
        let sequence = |index: usize| {
            // The first round is a prompt; later some verify drafts and some go on as ever.
            let count = if round == 0 { 10 } else { [1, 4, 9, 2, 6][(round + 2 * index) % 5] };
            let token = |i: u32| {
                let seed = i + 31 * index as u32 + 1009 * round as u32;
                (seed.wrapping_mul(2_654_435_761) >> 9) % vocab
            };
            let depth = |row: usize| if round == 0 { 0 } else { row as u8 };
            ((0..count as u32).map(token).collect(), (0..count).map(depth).collect())
        };
        (0..SEQUENCES).map(sequence).collect()
    }

    /// Runs all rounds, all rows of one together or each alone: the bits of their logits, in order.
    fn answer(&self, bank: &dyn ExpertBank, together: bool) -> Vec<u32> {
        let capacity = Capacity {
            tokens: 2048,
            sequences: SEQUENCES,
            checkpoints: 0,
            step_tokens: compute::memory::BLOCK,
        };
        let layout = self.spec.layout(&in_format(self.options.kv)).expect("layout");
        let mut memory = Memory::new(&layout, &capacity, &HostStore).expect("memory");
        let floats = 64 * (self.spec.activation_floats() + self.spec.vocab + 2 * self.spec.hidden);
        let mut backend = CpuBackend::new(self.options.isa, 2, floats + 4096).expect("backend");
        let mut sequences: Vec<Sequence> =
            (0..SEQUENCES).map(|_| memory.sequence().expect("sequence")).collect();
        let mut seen = Vec::new();
        for round in 0..ROUNDS {
            let rows = self.round(round);
            let (mut batch, mut depths, mut steps) = (Batch::default(), Vec::new(), Vec::new());
            for (index, (tokens, depth)) in rows.iter().enumerate() {
                let position = sequences[index].len();
                if together {
                    // All rows stay: for recurrent layers they are no trial.
                    batch.push(index, position, tokens, SegmentKind::Prefill, Logits::All);
                    depths.extend(depth);
                    continue;
                }
                for (row, token) in tokens.iter().enumerate() {
                    let mut batch = Batch::default();
                    let place = position + row;
                    batch.push(index, place, &[*token], SegmentKind::Decode, Logits::All);
                    steps.push(batch);
                }
            }
            if together {
                steps.push(batch);
            }
            for batch in steps {
                for segment in &batch.segments {
                    let sequence = &mut sequences[segment.sequence];
                    memory.prepare(sequence, segment.count).expect("room");
                }
                let shared: Vec<&Sequence> = sequences.iter().collect();
                let mut step = backend.begin();
                step.set_trials(&depths);
                let decoder = &self.decoder;
                let output = decoder.forward(&mut Pass {
                    step: &mut step,
                    batch: &batch,
                    memory: &mut memory,
                    sequences: &shared,
                    bank: Some(bank),
                    tape: None,
                });
                let fence = step.submit();
                assert!(step.failures(&fence).is_empty());
                let logits = output.logits.expect("logits");
                seen.extend(step.read(&fence, logits).iter().map(|value| value.to_bits()));
                for segment in &batch.segments {
                    sequences[segment.sequence].advance(segment.count);
                    sequences[segment.sequence].release_windows(0);
                }
            }
            // The model goes on as if all rows were right; what the bank is told is for it alone.
            if round % 5 != 4 {
                bank.settle(verdict(round));
            }
        }
        seen
    }
}

fn verdict(round: usize) -> u64 {
    [0, u64::MAX, 0b10_0110_1110, 0b1_0000_0011][round % 4]
}

/// Answers of a bank with so many slots; hits, misses, and the log.
struct Answered {
    bits: Vec<u32>,
    counts: (u64, u64),
    header: Header,
    visits: Vec<LoggedVisit>,
}

fn streamed(folder: &Path, dense: &Dense, slots: usize, together: bool) -> Answered {
    let checkpoint = Checkpoint::open(folder).expect("checkpoint");
    let request = PlanRequest { expert_slots: Some(slots), ..request() };
    let plan = Plan::new(&dense.spec, &request).expect("plan");
    let options = Options { threads: 2, ..plan.options };
    let files: Arc<dyn Device> =
        Arc::new(Files::open(&checkpoint, Access::Buffered).expect("files"));
    let device = Some((files, Method { queue: Queue::Threads, depth: 4 }));
    let spec = model::arch::spec(&checkpoint).expect("spec");
    let runner = Runner::load_from(&checkpoint, spec, &options, device, &|_, _| {}).expect("model");
    let bank: &StreamedBank = runner.streamed().expect("a streamed bank");
    let home = tempfile::tempdir().expect("folder");
    let path = home.path().join("routing");
    bank.record_routing(&path, 0).expect("log");
    let bits = dense.answer(bank, together);
    bank.finish_routing().expect("log");
    let text = std::fs::read(&path).expect("log");
    let (header, visits) = routing_log::read(&text[..]).expect("a log");
    let statistics = bank.statistics();
    assert_eq!(statistics.failed, 0);
    Answered { bits, counts: (statistics.hits, statistics.misses), header, visits }
}

/// Who wants which expert of each layer in a round, from steps of one row each.
fn trials(alone: &[&LoggedVisit], depths: &[u8]) -> BTreeMap<(usize, u32), Trial> {
    let layers: BTreeSet<usize> = alone.iter().map(|visit| visit.layer).collect();
    let mut trials: BTreeMap<(usize, u32), Trial> = BTreeMap::new();
    for (index, visit) in alone.iter().enumerate() {
        let row = index / layers.len();
        for &id in &visit.wanted {
            let fresh = Trial { rows: 0, depth: u8::MAX };
            let trial = trials.entry((visit.layer, id)).or_insert(fresh);
            trial.rows |= 1 << row;
            trial.depth = trial.depth.min(depths[row]);
        }
    }
    trials.values_mut().filter(|trial| trial.depth == 0).for_each(|trial| trial.rows = 0);
    trials
}

#[track_caller]
fn check(model: &str, slot_counts: &[usize]) {
    let folder = golden::repository(model);
    let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
    let dense = Dense::load(&checkpoint);
    let resident = model::resident_bank(&checkpoint, &dense.spec, &HostStore, &|_, _| {});
    let resident = resident.expect("bank").expect("experts");
    let want = dense.answer(&resident, false);
    assert!(want == dense.answer(&resident, true), "{model}: rows depend on each other");
    let runs: Vec<Answered> =
        slot_counts.iter().map(|&slots| streamed(&folder, &dense, slots, true)).collect();
    for (answered, slots) in runs.iter().zip(slot_counts) {
        assert!(want == answered.bits, "{model} with {slots} slots");
        // What is wanted and what was right does not depend on the slots.
        assert_eq!(answered.visits, runs[0].visits);
        let Answered { header, visits, .. } = &runs[0];
        let counts =
            run(header, visits, &answered.header.slots, Policy::Layered).expect("counts").counts();
        assert_eq!((counts.hits, counts.misses), answered.counts, "{model} with {slots} slots");
    }

    // What the bank was told is what the rows want one by one.
    let alone = streamed(&folder, &dense, slot_counts[0], false);
    let (mut alone, mut together) = (alone.visits.iter(), runs[0].visits.iter());
    let layers = dense.spec.moe_layers().count();
    for round in 0..ROUNDS {
        let depths: Vec<u8> = dense.round(round).into_iter().flat_map(|rows| rows.1).collect();
        let alone: Vec<&LoggedVisit> = alone.by_ref().take(depths.len() * layers).collect();
        let mut expect = trials(&alone, &depths);
        let mut last = None;
        for visit in together.by_ref().take(layers) {
            assert_eq!(visit.rows, depths.len());
            for (index, &id) in visit.wanted.iter().enumerate() {
                let trial = visit.trials.get(index).copied().unwrap_or_default();
                assert_eq!(expect.remove(&(visit.layer, id)), Some(trial), "round {round}");
            }
            last = visit.settled;
        }
        assert!(expect.is_empty(), "{model}, round {round}: {expect:?}");
        // A round that nobody judged is found wrong by the next; the prompt has nothing to judge.
        let expected = if round % 5 == 4 { 0 } else { verdict(round) };
        assert_eq!(last, (round > 0).then_some(expected), "{model}, round {round}");
    }
    assert!(alone.next().is_none() && together.next().is_none());
}

#[test]
fn drafted_rows_change_no_bit_and_the_bank_is_told_who_wants_what() {
    check("testdata/models/qwen3_5_moe-4bit", &[2, 6, 16]);
    check("testdata/models/qwen3_moe-mixed", &[4, 9, 16]);
    check("testdata/models/gemma4-4bit", &[2, 6, 16]);
    check("models/pebble", &[16, 64, 150]);
}
