//! What the tests share: disks that fail until they are mended, models on them, and requests that need an
//! expert or do not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use checkpoint::{Checkpoint, FileIndex, Projection};
use engine::{Engine, Event, Request, RequestId, SamplingParams};
use experts::device::{Access, Device, Fault, Faulty, Files, Rule};
use experts::reader::{Method, ReadEngine};
use experts::{LayerExperts, routing_log};
use model::DecoderSpec;
use runtime::{Options, Plan, PlanRequest, Runner, Streaming};

/// One layer's top k, and all experts.
pub(crate) const SLOTS: [usize; 2] = [2, 24];

/// Longer than anything here takes, and short enough to report what hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// What reads get where some are made to stall. Others get [`PATIENCE`]: a slow disk is not what is tested.
pub(crate) const STALL: Duration = Duration::from_secs(1);

/// Runs something that may hang if it is wrong.
pub(crate) fn within_patience(test: impl FnOnce() + Send + 'static) {
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
pub(crate) struct Disk {
    pub(crate) good: Arc<dyn Device>,
    pub(crate) bad: Faulty,
    pub(crate) is_bad: AtomicBool,
}

impl Disk {
    pub(crate) fn new(checkpoint: &Checkpoint, faults: impl FnOnce(Faulty) -> Faulty) -> Arc<Disk> {
        let good: Arc<dyn Device> = Arc::new(Files::open(checkpoint, Access::Buffered).unwrap());
        let bad = faults(Faulty::new(Arc::clone(&good), 0));
        Arc::new(Disk { good, bad, is_bad: AtomicBool::new(true) })
    }

    pub(crate) fn mend(&self) {
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
pub(crate) struct Model {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) spec: DecoderSpec,
}

impl Model {
    pub(crate) fn new(name: &str) -> Model {
        Model::open(&golden::model(name))
    }

    pub(crate) fn open(folder: &Path) -> Model {
        let checkpoint = Checkpoint::open(folder).unwrap();
        let spec = model::arch::spec(&checkpoint).unwrap();
        Model { checkpoint, spec }
    }

    pub(crate) fn good_disk(&self) -> Arc<Disk> {
        let disk = Disk::new(&self.checkpoint, |faulty| faulty);
        disk.mend();
        disk
    }

    /// With so many slots on this disk, or all in memory.
    pub(crate) fn runner(&self, streamed: Option<(usize, Arc<Disk>)>, stall: Duration) -> Runner {
        let method = Method { queue: ReadEngine::Threads, depth: 6 };
        let streamed = streamed.map(|(slots, disk)| (slots, disk as Arc<dyn Device>, method));
        self.runner_on(streamed, stall)
    }

    /// The same with any device, read in any way.
    pub(crate) fn runner_on(
        &self,
        streamed: Option<(usize, Arc<dyn Device>, Method)>,
        stall: Duration,
    ) -> Runner {
        let request = PlanRequest {
            context: Some(256),
            sequences: Some(4),
            chunk: Some(64),
            expert_slots: streamed.as_ref().map(|(slots, ..)| *slots),
            streaming: if streamed.is_some() { Streaming::Always } else { Streaming::Never },
            ..PlanRequest::default()
        };
        let plan = Plan::new(&self.spec, &request).unwrap();
        let options = Options { threads: 2, stall, ..plan.options };
        let device = streamed.map(|(_, device, method)| (device, method));
        Runner::load_from(&self.checkpoint, self.spec.clone(), &options, device, &|_, _| {})
            .unwrap()
    }

    pub(crate) fn engine(&self, slots: usize, disk: &Arc<Disk>, stall: Duration) -> Engine {
        Engine::new(self.runner(Some((slots, Arc::clone(disk))), stall))
    }

    /// What each request says alone, all experts in memory.
    pub(crate) fn answers(&self, requests: &[Request]) -> Vec<Vec<u32>> {
        let mut engine = Engine::new(self.runner(None, PATIENCE));
        let alone = |request: &Request| {
            let outcome = serve(&mut engine, std::slice::from_ref(request)).remove(0);
            assert_eq!(outcome.error, None);
            outcome.tokens
        };
        requests.iter().map(alone).collect()
    }

    /// The experts that each request is routed to, by layer and index.
    pub(crate) fn routes(&self, requests: &[Request]) -> Vec<BTreeSet<(usize, u32)>> {
        let mut engine = self.engine(SLOTS[0], &self.good_disk(), PATIENCE);
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
    pub(crate) fn around(
        &self,
        layer: usize,
        expert: u32,
        fault: Fault,
    ) -> (BTreeSet<(usize, u32)>, Rule) {
        let moe = self.spec.moe_layers().find(|(index, _)| *index == layer).unwrap().1;
        let span = moe.experts.slice(expert as usize, Projection::Up).weight;
        let byte = span.offset + span.len_bytes / 2;
        let mut met = BTreeSet::new();
        for (layer, moe) in self.spec.moe_layers() {
            let layer_experts = LayerExperts {
                layout: moe.experts.clone(),
                experts_per_token: moe.experts_per_token(),
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

pub(crate) fn bank(engine: &Engine) -> &experts::StreamedBank {
    engine.runner().streamed().expect("a streamed bank")
}

/// The same token over and over is routed to few experts.
pub(crate) fn monotone(token: u32, count: usize, max_tokens: usize) -> Request {
    Request {
        prompt: vec![token; count],
        max_tokens,
        stop_tokens: BTreeSet::new(),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        ..Request::default()
    }
}

/// Any tokens, and a draw for each token of the answer.
pub(crate) fn varied(seed: u32, count: usize, max_tokens: usize) -> Request {
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
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    /// Why it failed, with all causes.
    pub(crate) error: Option<String>,
}

/// Serves requests all at once, to the end.
pub(crate) fn serve(engine: &mut Engine, requests: &[Request]) -> Vec<Outcome> {
    let mut ids = Vec::new();
    let mut outcomes: BTreeMap<RequestId, Outcome> = BTreeMap::new();
    for request in requests {
        let id = engine.submit(request.clone()).unwrap();
        ids.push(id);
        outcomes.insert(id, Outcome { tokens: Vec::new(), error: None });
    }
    let mut ended = BTreeSet::new();
    while !engine.is_idle() {
        for event in engine.step().expect("a step continues whatever the disk does") {
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
pub(crate) fn failed(outcome: &Outcome, answer: &[u32]) -> bool {
    match outcome.error {
        None => assert_eq!(outcome.tokens, answer),
        Some(_) => assert!(answer.starts_with(&outcome.tokens), "{outcome:?}, not {answer:?}"),
    }
    outcome.error.is_some()
}

/// Requests of which two need one of the experts in one place of the file and two do not.
pub(crate) struct Divided {
    model: Model,
    requests: Vec<Request>,
    answers: Vec<Vec<u32>>,
    routes: Vec<BTreeSet<(usize, u32)>>,
    layer: usize,
    expert: u32,
}

impl Divided {
    pub(crate) fn new(name: &str, count: usize, max_tokens: usize) -> Divided {
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
    pub(crate) fn check(&self, slots: usize, fault: Fault) {
        let Divided { model, requests, answers, .. } = self;
        let (met, rule) = model.around(self.layer, self.expert, fault);
        let path = model.good_disk().path(rule.file.unwrap()).display().to_string();
        let disk = Disk::new(&model.checkpoint, |faulty| faulty.with_rule(rule));
        let stall = if fault == Fault::Stall { STALL } else { PATIENCE };
        let mut engine = model.engine(slots, &disk, stall);
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
pub(crate) fn check_mended(engine: &mut Engine, requests: &[Request], answers: &[Vec<u32>]) {
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
