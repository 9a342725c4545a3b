//! Disks that fail under an engine that serves several requests: those that need what cannot be read
//! fail and say why, the others say exactly what they say alone, and afterwards the engine goes on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "these are tests; clippy.toml covers only the test functions"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use checkpoint::{Checkpoint, FileIndex, Projection};
use engine::{
    Engine, Event, Options, Plan, PlanRequest, Request, RequestId, Runner, SamplingParams,
    Streaming,
};
use experts::device::{Access, Device, Fault, Faulty, Files, Rule};
use experts::reader::{Method, Queue};
use experts::{LayerExperts, routing_log};
use model::{DecoderSpec, Logits};

/// Stacked, sharded, fused and separate experts; with and without recurrent layers and a shared expert.
const MODELS: [&str; 4] =
    ["qwen3_5_moe-4bit", "qwen3_moe-4bit-sharded", "qwen3_5_moe-vl-bf16", "qwen3_moe-bf16"];

/// One layer's top k, and all experts.
const SLOTS: [usize; 2] = [2, 24];

/// Longer than anything here takes, and short enough to be told of what hangs.
const PATIENCE: Duration = Duration::from_secs(300);

const STALL: Duration = Duration::from_millis(400);

/// Runs something that may hang if it is wrong.
fn within_patience(test: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = sender.send(());
    });
    match receiver.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        // Done, or it panicked.
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// A disk that fails until it is mended.
#[derive(Debug)]
struct Disk {
    good: Arc<dyn Device>,
    bad: Faulty,
    is_bad: AtomicBool,
}

impl Disk {
    fn new(checkpoint: &Checkpoint, faults: impl FnOnce(Faulty) -> Faulty) -> Arc<Disk> {
        let good: Arc<dyn Device> = Arc::new(Files::open(checkpoint, Access::Buffered).unwrap());
        let bad = faults(Faulty::new(Arc::clone(&good), 0));
        Arc::new(Disk { good, bad, is_bad: AtomicBool::new(true) })
    }

    fn mend(&self) {
        self.is_bad.store(false, Ordering::Relaxed);
        self.bad.release();
    }

    fn device(&self) -> &dyn Device {
        if self.is_bad.load(Ordering::Relaxed) { &self.bad } else { &*self.good }
    }
}

impl Device for Disk {
    fn read(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.device().read(file, offset, out)
    }

    fn path(&self, file: FileIndex) -> &Path {
        self.good.path(file)
    }

    fn check_unchanged(&self, file: FileIndex) -> experts::Result<()> {
        self.device().check_unchanged(file)
    }
}

/// A model, and what requests say when nothing fails.
struct Model {
    checkpoint: Checkpoint,
    spec: DecoderSpec,
}

impl Model {
    fn new(name: &str) -> Model {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models");
        Model::open(&models.join(name))
    }

    fn open(folder: &Path) -> Model {
        let checkpoint = Checkpoint::open(folder).unwrap();
        let spec = model::arch::spec(&checkpoint).unwrap();
        Model { checkpoint, spec }
    }

    fn good_disk(&self) -> Arc<Disk> {
        let disk = Disk::new(&self.checkpoint, |faulty| faulty);
        disk.mend();
        disk
    }

    /// With so many slots on this disk, or all in memory.
    fn runner(&self, streamed: Option<(usize, Arc<Disk>)>, stall: Duration) -> Runner {
        let request = PlanRequest {
            context: Some(256),
            sequences: Some(4),
            chunk: Some(64),
            expert_slots: streamed.as_ref().map(|(slots, _)| *slots),
            streaming: if streamed.is_some() { Streaming::Always } else { Streaming::Never },
            ..PlanRequest::default()
        };
        let plan = Plan::new(&self.spec, &request).unwrap();
        let options = Options { threads: 2, stall, ..plan.options };
        let device = streamed
            .map(|(_, disk)| (disk as Arc<dyn Device>, Method { queue: Queue::Threads, depth: 6 }));
        Runner::load_from(&self.checkpoint, self.spec.clone(), &options, device, &|_, _| {})
            .unwrap()
    }

    fn engine(&self, slots: usize, disk: &Arc<Disk>, stall: Duration) -> Engine {
        Engine::new(self.runner(Some((slots, Arc::clone(disk))), stall))
    }

    /// What each request says alone, all experts in memory.
    fn answers(&self, requests: &[Request]) -> Vec<Vec<u32>> {
        let mut engine = Engine::new(self.runner(None, STALL));
        let alone = |request: &Request| {
            let outcome = serve(&mut engine, std::slice::from_ref(request)).remove(0);
            assert_eq!(outcome.error, None);
            outcome.tokens
        };
        requests.iter().map(alone).collect()
    }

    /// The experts that each request is routed to, by layer and index.
    fn routes(&self, requests: &[Request]) -> Vec<BTreeSet<(usize, u32)>> {
        let mut engine = self.engine(SLOTS[0], &self.good_disk(), STALL);
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("routing");
        let route = |request: &Request| {
            bank(&engine).record_routing(&path, 0).unwrap();
            let outcome = serve(&mut engine, std::slice::from_ref(request)).remove(0);
            assert_eq!(outcome.error, None);
            bank(&engine).finish_routing().unwrap();
            let log = fs::read(&path).unwrap();
            let (_, visits) = routing_log::read(&log[..]).unwrap();
            let experts = |visit: &routing_log::LoggedVisit| {
                let layer = visit.layer;
                visit.wanted.iter().map(move |&id| (layer, id)).collect::<Vec<_>>()
            };
            visits.iter().flat_map(experts).collect()
        };
        let mut route = route;
        requests.iter().map(&mut route).collect()
    }

    /// All experts whose reads touch a byte in the middle of one of them, and the rule for that byte.
    fn around(&self, layer: usize, expert: u32, fault: Fault) -> (BTreeSet<(usize, u32)>, Rule) {
        let moe = self.spec.moe_layers().find(|(index, _)| *index == layer).unwrap().1;
        let span = moe.experts.slice(expert as usize, Projection::Up).weight;
        let byte = span.offset + span.len_bytes / 2;
        let mut met = BTreeSet::new();
        for (layer, moe) in self.spec.moe_layers() {
            let layer_experts = LayerExperts {
                layout: moe.experts.clone(),
                shapes: moe.shapes(self.spec.hidden),
                experts_per_token: moe.experts_per_token,
            };
            for id in 0..moe.experts.experts() {
                let touches = |region: &experts::Region| {
                    region.file == span.file
                        && (region.offset..region.offset + region.len as u64).contains(&byte)
                };
                if experts::reads_of(&layer_experts, id).iter().any(touches) {
                    met.insert((layer, id as u32));
                }
            }
        }
        let rule =
            Rule { file: Some(span.file), bytes: byte..byte + 1, attempts: 0..u32::MAX, fault };
        (met, rule)
    }
}

fn bank(engine: &Engine) -> &experts::StreamedBank {
    engine.runner().streamed().expect("a streamed bank")
}

/// The same token over and over is routed to few experts.
fn monotone(token: u32, count: usize, max_tokens: usize) -> Request {
    Request {
        prompt: vec![token; count],
        max_tokens,
        stop_tokens: BTreeSet::new(),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        ..Request::default()
    }
}

/// Any tokens, and a draw for each token of the answer.
fn varied(seed: u32, count: usize, max_tokens: usize) -> Request {
    let token = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 9) % 256;
    Request {
        prompt: (0..count as u32).map(token).collect(),
        max_tokens,
        stop_tokens: BTreeSet::new(),
        sampling: SamplingParams { seed: u64::from(seed), ..SamplingParams::default() },
        ..Request::default()
    }
}

/// What became of a request.
#[derive(Debug, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    /// Why it failed, with all causes.
    error: Option<String>,
}

/// Serves requests all at once, to the end.
fn serve(engine: &mut Engine, requests: &[Request]) -> Vec<Outcome> {
    let mut ids = Vec::new();
    let mut outcomes: BTreeMap<RequestId, Outcome> = BTreeMap::new();
    for request in requests {
        let id = engine.submit(request.clone()).unwrap();
        ids.push(id);
        outcomes.insert(id, Outcome { tokens: Vec::new(), error: None });
    }
    let mut ended = BTreeSet::new();
    while !engine.is_idle() {
        for event in engine.step().expect("a step goes on whatever the disk does") {
            match event {
                Event::Token { id, sampled } => {
                    assert!(!ended.contains(&id), "a token after the end");
                    outcomes.get_mut(&id).unwrap().tokens.push(sampled.token);
                }
                Event::Failed { id, error } => {
                    assert!(ended.insert(id), "it ended twice");
                    let error: &dyn std::error::Error = &error;
                    let causes = std::iter::successors(Some(error), |error| error.source());
                    let chain = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
                    outcomes.get_mut(&id).unwrap().error = Some(chain);
                }
                Event::Finished { id, .. } => assert!(ended.insert(id), "it ended twice"),
                Event::Prefill { .. } => {}
            }
        }
    }
    assert_eq!(ended.len(), ids.len());
    ids.iter().map(|id| outcomes.remove(id).unwrap()).collect()
}

/// Whether a request failed; if not, it said what it should, and if so, nothing else before.
#[track_caller]
fn failed(outcome: &Outcome, answer: &[u32]) -> bool {
    match outcome.error {
        None => assert_eq!(outcome.tokens, answer),
        Some(_) => assert!(answer.starts_with(&outcome.tokens), "{outcome:?}, not {answer:?}"),
    }
    outcome.error.is_some()
}

/// Requests of which two need one of the experts in one place of the file and two do not.
struct Divided {
    model: Model,
    requests: Vec<Request>,
    answers: Vec<Vec<u32>>,
    routes: Vec<BTreeSet<(usize, u32)>>,
    layer: usize,
    expert: u32,
}

impl Divided {
    fn new(name: &str, count: usize, max_tokens: usize) -> Divided {
        let model = Model::new(name);
        let all: Vec<Request> =
            (0..24).map(|token| monotone(10 * token, count, max_tokens)).collect();
        let routes = model.routes(&all);
        let layers: Vec<(usize, usize)> =
            model.spec.moe_layers().map(|(layer, moe)| (layer, moe.experts.experts())).collect();
        for (layer, experts) in layers {
            for expert in 0..experts as u32 {
                let (met, _) = model.around(layer, expert, Fault::Broken);
                let (need, others): (Vec<usize>, Vec<usize>) =
                    (0..all.len()).partition(|&index| !routes[index].is_disjoint(&met));
                if let ([first, .., last], [one, .., other]) = (&need[..], &others[..]) {
                    let chosen = [*one, *first, *other, *last];
                    let requests = chosen.map(|index| all[index].clone()).to_vec();
                    let routes = chosen.map(|index| routes[index].clone()).to_vec();
                    let answers = model.answers(&requests);
                    return Divided { model, requests, answers, routes, layer, expert };
                }
            }
        }
        panic!("all requests need the same experts");
    }

    /// Serves them on a disk where the place is bad: those fail that need it, and no others.
    #[track_caller]
    fn check(&self, slots: usize, fault: Fault) {
        let Divided { model, requests, answers, .. } = self;
        let (met, rule) = model.around(self.layer, self.expert, fault);
        let path = model.good_disk().path(rule.file.unwrap()).display().to_string();
        let disk = Disk::new(&model.checkpoint, |faulty| faulty.with_rule(rule));
        let mut engine = model.engine(slots, &disk, STALL);
        let outcomes = serve(&mut engine, requests);
        let mut failures = 0;
        for ((outcome, answer), route) in outcomes.iter().zip(answers).zip(&self.routes) {
            let needs = !route.is_disjoint(&met);
            // Behind a read that stalls the only slots may be taken.
            let may_fail = fault == Fault::Stall && slots == SLOTS[0];
            let fails = failed(outcome, answer);
            assert!(
                fails == needs || (fails && may_fail),
                "{outcome:?} needs {route:?} of {met:?}"
            );
            let Some(error) = &outcome.error else { continue };
            failures += 1;
            let names = |&(layer, expert): &(usize, u32)| {
                error.contains(&format!("expert {expert} of layer {layer} "))
            };
            assert!(may_fail || met.iter().any(names), "`{error}` names none of {met:?}");
            let reason = match fault {
                Fault::Broken => "cannot read at",
                Fault::Stall => "the disk did not answer",
                _ => "is too short",
            };
            assert!(error.contains(reason), "{error}");
            assert!(fault == Fault::Stall || error.contains(&path), "`{error}` lacks {path}");
        }
        assert!(failures >= 2);
        let statistics = bank(&engine).statistics();
        assert!(statistics.failed >= 1, "{statistics:?}");
        // Later, on a disk that works, the same engine serves them all.
        disk.mend();
        check_mended(&mut engine, requests, answers);
        let failed_since = bank(&engine).statistics().failed - statistics.failed;
        assert!(fault == Fault::Stall || failed_since == 0);
    }
}

/// On a disk that was mended the engine serves as ever, once what stalled has landed.
#[track_caller]
fn check_mended(engine: &mut Engine, requests: &[Request], answers: &[Vec<u32>]) {
    for _ in 0..100 {
        let outcomes = serve(engine, requests);
        let mut lost = outcomes.iter().zip(answers).filter(|(o, a)| failed(o, a)).peekable();
        if lost.peek().is_none() {
            return;
        }
        for (outcome, _) in lost {
            let error = outcome.error.as_ref().unwrap();
            assert!(error.contains("the disk did not answer"), "{error}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it does not recover");
}

#[test]
fn faults_that_a_retry_mends_change_nothing() {
    within_patience(|| {
        for name in MODELS {
            let model = Model::new(name);
            let prompt = varied(3, 100, 1).prompt;
            let logits = |runner: &mut Runner| {
                let mut sequence = runner.sequence().unwrap();
                let mut bits = Vec::new();
                // A prompt that passes through, then single tokens.
                for part in std::iter::once(&prompt[..80]).chain(prompt[80..].chunks(1)) {
                    runner
                        .feed(&mut sequence, part, Logits::All, |_, row| {
                            bits.extend(row.iter().map(|value| value.to_bits()));
                        })
                        .unwrap();
                }
                bits
            };
            let want = logits(&mut model.runner(None, STALL));
            for slots in SLOTS {
                let disk = Disk::new(&model.checkpoint, |faulty| {
                    faulty
                        .with_chance(0.4, Fault::Short)
                        .with_chance(0.4, Fault::Interrupted)
                        .with_chance(0.02, Fault::Delay(Duration::from_millis(1)))
                });
                let mut runner =
                    model.runner(Some((slots, Arc::clone(&disk))), Duration::from_secs(60));
                assert!(logits(&mut runner) == want, "{name} with {slots} slots");
                let statistics = runner.streamed().unwrap().statistics();
                assert_eq!((statistics.failed, statistics.reads.failed), (0, 0));
                assert!(disk.bad.fault_count() > 20 && statistics.reads.retries > 10);
            }
        }
    });
}

#[test]
fn a_bad_place_fails_the_prompts_that_need_it() {
    within_patience(|| {
        for name in MODELS {
            let divided = Divided::new(name, 40, 3);
            for slots in SLOTS {
                divided.check(slots, Fault::Broken);
            }
        }
        // Two steps for each prompt.
        let divided = Divided::new(MODELS[0], 100, 3);
        for slots in SLOTS {
            divided.check(slots, Fault::ShortForever);
        }
    });
}

#[test]
fn a_bad_place_fails_the_answers_that_need_it() {
    within_patience(|| {
        for name in MODELS {
            let divided = Divided::new(name, 2, 8);
            for slots in SLOTS {
                divided.check(slots, Fault::ShortForever);
                divided.check(slots, Fault::Broken);
            }
        }
    });
}

#[test]
fn a_stalled_read_fails_those_that_need_it() {
    within_patience(|| {
        for (count, max_tokens) in [(40, 3), (2, 8)] {
            let divided = Divided::new(MODELS[1], count, max_tokens);
            for slots in SLOTS {
                divided.check(slots, Fault::Stall);
            }
        }
    });
}

#[test]
fn when_nothing_can_be_read_all_fail_and_nothing_hangs() {
    within_patience(|| {
        let model = Model::new(MODELS[0]);
        let requests = [varied(1, 50, 4), varied(2, 3, 4), varied(3, 90, 4), varied(4, 1, 4)];
        let answers = model.answers(&requests);
        for (fault, slots) in
            [(Fault::Broken, 2), (Fault::Broken, 24), (Fault::Stall, 2), (Fault::Stall, 24)]
        {
            let disk = Disk::new(&model.checkpoint, |faulty| faulty.with_rule(Rule::always(fault)));
            let mut engine = model.engine(slots, &disk, STALL);
            let outcomes = serve(&mut engine, &requests);
            for (outcome, answer) in outcomes.iter().zip(&answers) {
                assert!(failed(outcome, answer) && outcome.tokens.is_empty(), "{outcome:?}");
            }
            disk.mend();
            check_mended(&mut engine, &requests, &answers);
        }
    });
}

#[test]
fn a_dead_disk_is_waited_for_in_one_layer_only() {
    within_patience(|| {
        let model = Model::new(MODELS[0]);
        assert!(model.spec.moe_layers().count() > 1);
        let (_, first) = model.spec.moe_layers().next().unwrap();
        let disk =
            Disk::new(&model.checkpoint, |faulty| faulty.with_rule(Rule::always(Fault::Stall)));
        let mut engine = model.engine(24, &disk, STALL);
        let outcomes = serve(&mut engine, &[varied(1, 1, 4)]);
        assert!(outcomes[0].tokens.is_empty());
        let statistics = bank(&engine).statistics();
        assert_eq!(statistics.failed, first.experts_per_token as u64, "{statistics:?}");
        disk.mend();
    });
}

/// Whatever fails, no request ever says anything that it would not say in memory.
#[test]
fn never_a_wrong_token() {
    within_patience(|| {
        let (mut failures, mut successes) = (0, 0);
        for name in [MODELS[0], MODELS[3]] {
            let model = Model::new(name);
            let lengths = [2, 40, 70, 9, 33];
            let requests: Vec<Request> =
                (0..5).map(|index| varied(index, lengths[index as usize], 5)).collect();
            let answers = model.answers(&requests);
            for seed in 0..16 {
                let mut chance = (seed + 1) as f64 / 1600.0;
                let slots = [2, 3, 7, 24][seed as usize % 4];
                let good = model.good_disk();
                let mut bad = Faulty::new(Arc::clone(&good.good), seed)
                    .with_chance(0.1, Fault::Short)
                    .with_chance(0.1, Fault::Interrupted)
                    .with_chance(0.01, Fault::Delay(Duration::from_millis(1)));
                if seed % 8 == 5 {
                    bad = bad.with_chance(chance / 2.0, Fault::Stall);
                }
                if seed % 8 == 7 {
                    bad = bad.with_chance(chance / 4.0, Fault::Overwritten);
                    chance = 0.0;
                }
                bad = bad.with_chance(chance, Fault::Broken);
                bad = bad.with_chance(chance / 2.0, Fault::ShortForever);
                let is_bad = AtomicBool::new(true);
                let disk = Arc::new(Disk { good: Arc::clone(&good.good), bad, is_bad });
                let mut engine = model.engine(slots, &disk, Duration::from_millis(100));
                for _ in 0..2 {
                    let outcomes = serve(&mut engine, &requests);
                    let lost = outcomes.iter().zip(&answers).filter(|(o, a)| failed(o, a)).count();
                    assert!(lost == 0 || bank(&engine).statistics().failed > 0, "seed {seed}");
                    failures += lost;
                    successes += requests.len() - lost;
                }
                disk.mend();
                check_mended(&mut engine, &requests, &answers);
            }
        }
        // Else nothing was tried.
        assert!(failures > 40 && successes > 40, "{failures} failed, {successes} did not");
    });
}

/// A copy of a model that may be changed.
fn copy(name: &str) -> (tempfile::TempDir, Model, PathBuf) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let model = Model::open(folder.path());
    let weights = folder.path().join("model.safetensors");
    // Later than the clock of the file system can tell apart.
    std::thread::sleep(Duration::from_millis(30));
    (folder, model, weights)
}

/// Serves requests, lets something happen to the weights, and serves them again: whether any failed.
#[track_caller]
fn after(change: impl FnOnce(&Path), slots: usize, reason: &str) -> bool {
    let (_folder, model, weights) = copy("qwen3_5_moe-4bit");
    let requests = [monotone(5, 40, 6), varied(2, 3, 6), varied(7, 70, 6)];
    let answers = model.answers(&requests);
    let mut engine = model.engine(slots, &model.good_disk(), STALL);
    for (outcome, answer) in serve(&mut engine, &requests).iter().zip(&answers) {
        assert!(!failed(outcome, answer), "{outcome:?}");
    }
    change(&weights);
    let outcomes = serve(&mut engine, &requests);
    let lost: Vec<&Outcome> = outcomes
        .iter()
        .zip(&answers)
        .filter_map(|(outcome, answer)| failed(outcome, answer).then_some(outcome))
        .collect();
    for outcome in &lost {
        let error = outcome.error.as_ref().unwrap();
        assert!(error.contains(reason) && error.contains(weights.to_str().unwrap()), "{error}");
    }
    assert_eq!(bank(&engine).statistics().failed > 0, !lost.is_empty());
    !lost.is_empty()
}

fn open(path: &Path) -> fs::File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
// Other systems may refuse to replace a file that is open.
#[cfg(unix)]
fn a_file_replaced_by_a_rename_is_read_on() {
    within_patience(|| {
        let replace = |path: &Path| {
            let new = path.with_extension("new");
            fs::write(&new, vec![0x55; fs::metadata(path).unwrap().len() as usize]).unwrap();
            fs::rename(&new, path).unwrap();
        };
        assert!(!after(replace, SLOTS[0], ""));
    });
}

#[test]
fn a_file_overwritten_in_place_is_noticed_before_it_is_used() {
    within_patience(|| {
        let overwrite = |path: &Path| {
            let len = fs::metadata(path).unwrap().len() as usize;
            open(path).write_all(&vec![0x55; len]).unwrap();
        };
        assert!(after(overwrite, SLOTS[0], "was changed while it was in use"));
        // What was read before it happened is right.
        assert!(!after(overwrite, SLOTS[1], ""));
    });
}

#[test]
fn a_file_that_is_cut_is_noticed() {
    within_patience(|| {
        assert!(after(|path| open(path).set_len(20_000).unwrap(), SLOTS[0], "is too short"));
        let end = |path: &Path| fs::metadata(path).unwrap().len() - 1;
        assert!(after(|path| open(path).set_len(end(path)).unwrap(), SLOTS[0], ""));
    });
}
