//! What a step costs by the number of answers that are decoded in it, without a server around.
//!
//! `cargo run --release -p millstream-engine --example company [FOLDER [THREADS [STEPS [ANSWERS]]]]`
//!
//! With ANSWERS only that many at once are measured: for a profile.

use std::path::PathBuf;
use std::time::Instant;

use checkpoint::Checkpoint;
use engine::{Engine, Options, Request, Runner, SamplingParams};

/// Answers at once.
const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Times that all of them are measured, in turns.
const ROUNDS: usize = 5;

fn main() {
    let mut args = std::env::args().skip(1);
    let pebble = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pebble");
    let folder = PathBuf::from(args.next().unwrap_or_else(|| pebble.to_owned()));
    let threads = args.next().and_then(|n| n.parse().ok()).unwrap_or(2);
    let steps: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(200);
    let only: Option<usize> = args.next().and_then(|n| n.parse().ok());
    let counts: Vec<usize> = only.map_or(COUNTS.to_vec(), |count| vec![count]);
    let checkpoint = Checkpoint::open(&folder).expect("a checkpoint");
    let options = Options { context: 1024, sequences: 32, threads, ..Options::default() };
    let runner = Runner::load(&checkpoint, &options, &|_, _| {}).expect("a model");
    let mut engine = Engine::new(runner);
    let mut best = vec![f64::MAX; counts.len()];
    for round in 0..ROUNDS {
        for (best, &count) in best.iter_mut().zip(&counts) {
            for number in 0..count {
                let seed = (round * 64 + number) as u64;
                let prompt = (0..24).map(|i| (i * 131 + seed as u32 * 977) % 4000).collect();
                let sampling = SamplingParams { seed, ..SamplingParams::default() };
                let request =
                    Request { prompt, max_tokens: steps + 32, sampling, ..Request::default() };
                engine.submit(request).expect("a request");
            }
            // Prompts first.
            for _ in 0..16 {
                engine.step().expect("a step");
            }
            let start = Instant::now();
            for _ in 0..steps {
                engine.step().expect("a step");
            }
            *best = best.min(start.elapsed().as_secs_f64() / steps as f64);
            while !engine.is_idle() {
                engine.step().expect("a step");
            }
        }
    }
    for (&seconds, &count) in best.iter().zip(&counts) {
        let gain = count as f64 / seconds * best[0] / counts[0] as f64;
        let rate = count as f64 / seconds;
        println!(
            "{count:2} answers: {:8.1} µs a step, {rate:6.0} tokens/s, {gain:5.2} ×",
            seconds * 1e6
        );
    }
}
