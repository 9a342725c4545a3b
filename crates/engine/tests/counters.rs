//! Several requests at once: the simulator, fed with the routing that was recorded, counts the hits and
//! misses that the bank counted, at the recorded number of slots and at others.

use std::collections::BTreeSet;
use std::sync::Arc;

use checkpoint::Checkpoint;
use engine::{Engine, Event, Request, SamplingParams};
use experts::Device;
use experts::device::{Access, Files};
use experts::reader::{Method, ReadEngine};
use experts::routing_log::{self, Header, LoggedVisit};
use experts::simulate::{Policy, run};
use runtime::{Options, Plan, PlanRequest, Runner};

/// What a run counted, and its routing.
struct Counted {
    hits: u64,
    misses: u64,
    header: Header,
    visits: Vec<LoggedVisit>,
}

/// Serves eight requests, three at a time, with so many slots.
fn serve(model: &str, slots: usize) -> Counted {
    let folder = golden::repository(model);
    let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
    let spec = model::arch::spec(&checkpoint).expect("spec");
    let request = PlanRequest {
        context: Some(256),
        sequences: Some(3),
        chunk: Some(64),
        expert_slots: Some(slots),
        ..PlanRequest::default()
    };
    let options = Options { threads: 2, ..Plan::new(&spec, &request).expect("plan").options };
    let vocab = spec.vocab as u32;
    let files: Arc<dyn Device> =
        Arc::new(Files::open(&checkpoint, Access::Buffered).expect("files"));
    let device = Some((files, Method { queue: ReadEngine::Threads, depth: 4 }));
    let runner = Runner::load_from(&checkpoint, spec, &options, device, &|_, _| {}).expect("model");
    let mut engine = Engine::new(runner);
    let home = tempfile::tempdir().expect("folder");
    let path = home.path().join("routing");
    let bank = engine.runner().streamed().expect("a streamed bank");
    bank.record_routing(&path, 0).expect("log");
    for index in 0..8 {
        // Prompts that pass through alongside answers, and short ones that are kept.
        let count = [100, 3, 17, 70][index % 4];
        let token =
            |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(97 * index as u32) >> 9) % vocab;
        let request = Request {
            prompt: (0..count).map(token).collect(),
            max_tokens: 6 + index,
            stop_tokens: BTreeSet::new(),
            sampling: SamplingParams { seed: index as u64, ..SamplingParams::default() },
            ..Request::default()
        };
        engine.submit(request).expect("request");
    }
    while !engine.is_idle() {
        for event in engine.step().expect("step") {
            assert!(!matches!(event, Event::Failed { .. }), "{event:?}");
        }
    }
    let bank = engine.runner().streamed().expect("a streamed bank");
    bank.finish_routing().expect("log");
    let statistics = bank.statistics();
    assert_eq!(statistics.failed, 0);
    let text = std::fs::read(&path).expect("log");
    let (header, visits) = routing_log::read(&text[..]).expect("a log");
    let wanted: usize = visits.iter().map(|visit| visit.wanted.len()).sum();
    assert_eq!(statistics.hits + statistics.misses, wanted as u64);
    Counted { hits: statistics.hits, misses: statistics.misses, header, visits }
}

#[track_caller]
fn check(model: &str, slot_counts: &[usize]) {
    let runs: Vec<Counted> = slot_counts.iter().map(|&slots| serve(model, slots)).collect();
    for routed in &runs {
        for counted in &runs {
            // What is routed does not depend on the slots, so any run's log predicts every run.
            assert_eq!(routed.visits, counted.visits);
            let slots = &counted.header.slots;
            let outcome =
                run(&routed.header, &routed.visits, slots, Policy::Layered).expect("simulation");
            let counts = outcome.counts();
            let live = (counted.hits, counted.misses);
            assert_eq!((counts.hits, counts.misses), live, "{model} with {slots:?}");
        }
    }
    let hits: Vec<u64> = runs.iter().map(|run| run.hits).collect();
    assert!(hits.windows(2).all(|pair| pair[0] < pair[1]), "more slots, more hits: {hits:?}");
}

#[test]
fn the_simulator_counts_what_a_bank_that_serves_batches_counted() {
    check("testdata/models/qwen3_5_moe-4bit", &[2, 6, 16]);
    // Experts of two sizes.
    check("testdata/models/qwen3_moe-mixed", &[4, 9, 16]);
    check("models/pebble", &[16, 150]);
}
