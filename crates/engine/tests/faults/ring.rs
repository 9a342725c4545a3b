//! A ring that fails while a model answers: every logit is what it is in memory, and nothing waits for ever.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
use experts::device::{Access, Device, Faulty, Files, RingCall};
use experts::reader::{DiskReader, Method, ReadEngine};
use model::Logits;
use runtime::Runner;

use crate::support::{Model, PATIENCE, SLOTS, bank, serve, varied, within_patience};

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EPERM: i32 = 1;

const URING: Method = Method { queue: ReadEngine::Uring, depth: 6 };

/// The model's files for direct reads, if this system has such and io_uring.
fn files(model: &Model) -> Option<Arc<dyn Device>> {
    let Ok(files) = Files::open(&model.checkpoint, Access::Direct) else {
        println!("skipped: no direct reads here");
        return None;
    };
    let files: Arc<dyn Device> = Arc::new(files);
    if let Err(error) = DiskReader::start(Arc::clone(&files), URING, Arc::new(|_, _| {})) {
        println!("skipped: no io_uring here: {error}");
        return None;
    }
    Some(files)
}

fn faults() -> [(RingCall, Range<u32>, i32); 7] {
    [
        (RingCall::Submit, 5..u32::MAX, EBUSY),
        (RingCall::Submit, 5..6, EIO),
        (RingCall::Submit, 40..u32::MAX, ENOMEM),
        (RingCall::Wait, 3..u32::MAX, EIO),
        (RingCall::Wait, 3..u32::MAX, EBUSY),
        (RingCall::Complete, 10..13, EIO),
        (RingCall::Setup, 0..1, EPERM),
    ]
}

#[test]
fn logits_are_the_same_when_the_ring_fails_amid_an_answer() {
    within_patience(|| {
        let model = Model::new("qwen3_5_moe-4bit");
        let Some(files) = files(&model) else { return };
        let prompt = varied(3, 100, 1).prompt;
        let logits = |runner: &mut Runner| {
            let mut sequence = runner.sequence().unwrap();
            let mut bits = Vec::new();
            for part in std::iter::once(&prompt[..80]).chain(prompt[80..].chunks(1)) {
                let keep = |_: usize, row: &[f32]| bits.extend(row.iter().map(|v| v.to_bits()));
                runner.feed(&mut sequence, part, Logits::All, keep).unwrap();
            }
            bits
        };
        let want = logits(&mut model.runner(None, PATIENCE));
        for (call, calls, errno) in faults() {
            for slots in SLOTS {
                let what = format!("{call:?} {calls:?} {errno} with {slots} slots");
                let faulty = Faulty::new(Arc::clone(&files), 0);
                let faulty = Arc::new(faulty.with_ring_fault(call, calls.clone(), errno));
                let device = Arc::clone(&faulty) as Arc<dyn Device>;
                let stall = Duration::from_secs(60);
                let mut runner = model.runner_on(Some((slots, device, URING)), stall);
                assert!(logits(&mut runner) == want, "{what}");
                let statistics = runner.streamed().unwrap().statistics();
                assert_eq!((statistics.failed, statistics.reads.failed), (0, 0), "{what}");
                // Not reached where few reads are made.
                if faulty.fault_count() > 0 && errno != EBUSY && errno != ENOMEM {
                    assert_eq!(statistics.reads.queue, ReadEngine::Threads, "{what}");
                }
                assert!(faulty.fault_count() > 0 || slots != SLOTS[0], "{what}");
            }
        }
    });
}

#[test]
fn requests_at_once_all_get_their_answers_when_the_ring_fails() {
    within_patience(|| {
        let model = Model::new("qwen3_moe-4bit-sharded");
        let Some(files) = files(&model) else { return };
        let requests = [varied(1, 50, 6), varied(2, 3, 6), varied(3, 90, 6), varied(4, 1, 6)];
        let answers = model.answers(&requests);
        for (call, calls, errno) in faults() {
            let faulty = Faulty::new(Arc::clone(&files), 0).with_ring_fault(call, calls, errno);
            let device = Arc::new(faulty) as Arc<dyn Device>;
            let runner = model.runner_on(Some((SLOTS[0], device, URING)), PATIENCE);
            let mut engine = Engine::new(runner);
            for _ in 0..2 {
                for (outcome, answer) in serve(&mut engine, &requests).iter().zip(&answers) {
                    assert_eq!((&outcome.tokens, &outcome.error), (answer, &None));
                }
            }
            // A call that is refused repeatedly is given up after some attempts.
            let queue = || bank(&engine).statistics().reads.queue;
            for _ in 0..10_000 {
                if queue() == ReadEngine::Threads {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(queue(), ReadEngine::Threads, "{call:?} {errno}");
            // Measuring the disk uses the queue in use too.
            let (bytes, _) = bank(&engine).read_plainly(1 << 16).unwrap();
            assert!(bytes > 0);
        }
    });
}
