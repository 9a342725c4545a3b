//! Many requests at once: whichever requests share its batch, whatever is cached, paused, cancelled or preempted around
//! it, a request gets the answer that it gets alone; and everything it held is released.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "these are tests; clippy.toml covers only the test functions"
)]

use std::collections::{BTreeMap, BTreeSet};

use checkpoint::Checkpoint;
use engine::{
    Engine, Error, Event, FinishReason, Load, Request, RequestId, SampleError, SamplingParams,
    Usage,
};
use runtime::{Options, Runner};

/// Recurrent and attention layers.
const PEBBLE: &str = "models/pebble";
const HYBRID: &str = "testdata/models/qwen3_5_moe-4bit";
/// Attention layers only.
const FULL: &str = "testdata/models/llama-4bit";
/// A window of 48 positions on every layer.
const SLIDING: &str = "testdata/models/mistral-4bit";
/// A window of 40 positions on one layer, none on the other; and with layers that look at others' keys.
const GEMMA: &str = "testdata/models/gemma4-4bit";
const GEMMA_E: &str = "testdata/models/gemma4_e-4bit";

fn engine(model: &str, options: &Options) -> Engine {
    let folder = golden::repository(model);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    Engine::new(Runner::load(&checkpoint, options, &|_, _| {}).unwrap())
}

fn options() -> Options {
    Options { context: 2560, sequences: 4, checkpoints: 16, threads: 1, ..Options::default() }
}

/// A generator of test cases, not of anything that matters.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(250) as u32).collect()
    }
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    Random(seed).tokens(count)
}

fn join(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { prompt, max_tokens, sampling: SamplingParams::greedy(), ..Request::default() }
}

/// What became of a request.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Of the prompt, as last reported.
    left_to_read: usize,
    tokens: Vec<u32>,
    end: Option<(FinishReason, Usage)>,
}

/// An engine and what it reported.
struct World {
    engine: Engine,
    outcomes: BTreeMap<RequestId, Outcome>,
    steps: usize,
}

impl World {
    fn new(model: &str, options: &Options) -> World {
        World { engine: engine(model, options), outcomes: BTreeMap::new(), steps: 0 }
    }

    fn submit(&mut self, request: &Request) -> RequestId {
        let id = self.engine.submit(request.clone()).unwrap();
        self.outcomes.insert(id, Outcome::default());
        id
    }

    /// A step, and whether it computed nothing.
    fn stands_still(&mut self) -> bool {
        let before = self.engine.load().counters.steps;
        self.step();
        self.engine.load().counters.steps == before
    }

    fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < 50_000, "it does not end");
        for event in self.engine.step().unwrap() {
            match event {
                Event::Prefill { id, done, total, cached } => {
                    assert!(cached < done && done <= total, "{id:?}: {cached}, {done}, {total}");
                    let outcome = self.outcomes.get_mut(&id).unwrap();
                    assert!(outcome.end.is_none());
                    outcome.left_to_read = total - done;
                }
                Event::Token { id, sampled } => {
                    let outcome = self.outcomes.get_mut(&id).unwrap();
                    // A request that begins again after a preemption reads its own tokens, too, the last as ever.
                    let is_read = outcome.left_to_read == 0 || !outcome.tokens.is_empty();
                    assert!(is_read, "a token amid the prompt");
                    assert!(outcome.end.is_none(), "a token after the end");
                    outcome.tokens.push(sampled.token);
                }
                Event::Finished { id, reason, usage } => {
                    let outcome = self.outcomes.get_mut(&id).unwrap();
                    assert_eq!(usage.completion_tokens, outcome.tokens.len());
                    assert!(outcome.end.replace((reason, usage)).is_none(), "it ended twice");
                }
                Event::Failed { id, error } => panic!("{id:?}: {error}"),
            }
        }
    }

    fn finish(&mut self) {
        while !self.engine.is_idle() {
            self.step();
        }
    }

    /// Serves one request to its end, from what is cached.
    fn serve(&mut self, request: &Request) -> (Vec<u32>, Usage) {
        let id = self.submit(request);
        self.finish();
        let outcome = &self.outcomes[&id];
        (outcome.tokens.clone(), outcome.end.unwrap().1)
    }

    /// The same with nothing cached.
    fn alone(&mut self, request: &Request) -> Vec<u32> {
        self.engine.clear_cache();
        let (tokens, usage) = self.serve(request);
        assert_eq!(usage.cached_tokens, 0);
        tokens
    }

    fn computed(&self) -> u64 {
        self.engine.load().counters.prompt_tokens_computed
    }

    /// Nothing is lost.
    #[track_caller]
    fn check_empty(&mut self) {
        assert!(self.engine.is_idle());
        self.engine.clear_cache();
        let load = self.engine.load();
        assert_eq!((load.free_pages, load.free_states), (load.pages, load.states));
        let Load { queued, active, prefilling, paused, cache_entries, cache_tokens, .. } = load;
        assert_eq!([queued, active, prefilling, paused, cache_entries, cache_tokens], [0; 6]);
    }
}

/// Requests of all kinds, many with the same beginnings.
fn requests(random: &mut Random, count: usize) -> Vec<Request> {
    let beginnings: Vec<Vec<u32>> = (0..3).map(|_| random.tokens(120)).collect();
    let request = |_| {
        let beginning = &beginnings[random.below(3)];
        let shared = random.below(beginning.len());
        let tail = 1 + random.below(40);
        let prompt = join(&[&beginning[..shared], &random.tokens(tail)]);
        let sampling = SamplingParams {
            temperature: if random.chance(50) { 0.0 } else { 0.8 },
            top_p: 0.95,
            repetition_penalty: if random.chance(30) { 1.2 } else { 1.0 },
            frequency_penalty: if random.chance(30) { 0.5 } else { 0.0 },
            seed: random.next(),
            ..SamplingParams::default()
        };
        let stop_tokens = if random.chance(30) {
            BTreeSet::from([random.below(250) as u32])
        } else {
            BTreeSet::new()
        };
        let max_tokens = if random.chance(50) { 1 + random.below(30) } else { 400 };
        let checkpoints = (0..random.below(8)).map(|_| random.below(160)).collect();
        Request { stop_tokens, sampling, checkpoints, ..greedy(prompt, max_tokens) }
    };
    (0..count).map(request).collect()
}

/// Serves requests that come, are cancelled and paused at random times, over a small pool.
fn any_load(model: &str, seed: u64) -> Load {
    let small = Options {
        context: 576,
        sequences: 3,
        pool_tokens: Some(576),
        checkpoints: 3,
        chunk: 128,
        threads: 1,
        ..Options::default()
    };
    let mut random = Random(seed);
    let requests = requests(&mut random, if model == PEBBLE { 10 } else { 20 });
    let mut alone =
        World::new(model, &Options { sequences: 1, pool_tokens: None, ..small.clone() });
    let answers: Vec<Vec<u32>> = requests.iter().map(|request| alone.alone(request)).collect();

    let threads = match seed % 4 {
        1 => 2,
        3 if model == HYBRID => 4,
        _ => 1,
    };
    let mut world = World::new(model, &Options { threads, ..small });
    let mut ids: Vec<RequestId> = Vec::new();
    let mut paused: BTreeSet<RequestId> = BTreeSet::new();
    while ids.len() < requests.len() || !world.engine.is_idle() {
        if ids.len() < requests.len() && (random.chance(50) || world.engine.is_idle()) {
            ids.push(world.submit(&requests[ids.len()]));
        }
        if !ids.is_empty() {
            // It may be long gone.
            let id = ids[random.below(ids.len())];
            match random.below(100) {
                0 => world.engine.cancel(id),
                1 => world.engine.pause(RequestId(u64::MAX)),
                2..5 => {
                    paused.insert(id);
                    world.engine.pause(id);
                }
                _ => {}
            }
        }
        let load = world.engine.load();
        if random.chance(8) || load.active + load.queued <= load.paused {
            for id in std::mem::take(&mut paused) {
                world.engine.resume(id);
            }
        }
        let before: BTreeMap<RequestId, usize> = paused
            .iter()
            .filter_map(|id| Some((*id, world.outcomes.get(id)?.tokens.len())))
            .collect();
        world.step();
        for (id, count) in before {
            assert_eq!(world.outcomes[&id].tokens.len(), count, "a token of a paused request");
        }
        let load = world.engine.load();
        assert!(load.active <= 3 && load.free_pages <= load.pages);
        assert!(load.states == 0 || load.cache_entries <= 3, "{load:?}");
    }
    let load = world.engine.load();
    for (id, answer) in ids.iter().zip(&answers) {
        let outcome = &world.outcomes[id];
        match outcome.end.unwrap().0 {
            FinishReason::Cancelled => assert!(answer.starts_with(&outcome.tokens)),
            FinishReason::Stop | FinishReason::Length => {
                assert_eq!(outcome.tokens, *answer, "{model}, seed {seed}, {id:?}");
            }
        }
    }
    world.check_empty();
    load
}

#[test]
fn the_batch_never_changes_an_answer() {
    let is_long = std::env::var_os("MILLSTREAM_LONG_TESTS").is_some();
    for model in [PEBBLE, HYBRID, FULL, SLIDING, GEMMA, GEMMA_E] {
        let (mut preemptions, mut cached) = (0, 0);
        let seeds = if model == PEBBLE { 1 } else { 4 };
        for seed in 0..if is_long { 10 * seeds } else { seeds } {
            let counters = any_load(model, seed).counters;
            preemptions += counters.preemptions;
            cached += counters.prompt_tokens_cached;
        }
        println!("{model}: {preemptions} preemptions, {cached} tokens cached");
        // Else nothing was tried. (Windows of 48 positions never fill a pool; Pebble gets less to do.)
        let may_lack = model == SLIDING || model == PEBBLE;
        assert!(preemptions > 0 || may_lack, "{model} was never short of pages");
        assert!(cached > 100, "{model} reused {cached} tokens");
    }
}

/// Two answers that do not fit together to their ends: the younger begins again, and its answer is the same.
#[test]
fn a_preempted_request_gives_the_same_answer() {
    for model in [PEBBLE, HYBRID, FULL] {
        let small = Options {
            context: 512,
            sequences: 2,
            pool_tokens: Some(512),
            checkpoints: 1,
            ..options()
        };
        let mut world = World::new(model, &small);
        let request = |seed| Request {
            sampling: SamplingParams { seed, repetition_penalty: 1.1, ..SamplingParams::default() },
            ..greedy(tokens(seed, 60), 360)
        };
        let answers = [1, 2].map(|seed| world.alone(&request(seed)));
        world.engine.clear_cache();
        let ids = [1, 2].map(|seed| world.submit(&request(seed)));
        world.step();
        assert_eq!(world.engine.load().active, 2);
        world.finish();
        assert_eq!(ids.map(|id| world.outcomes[&id].tokens.clone()), answers, "{model}");
        assert_eq!(world.engine.load().counters.preemptions, 1);
        assert_eq!(world.outcomes[&ids[1]].end.unwrap().1.cached_tokens, 0);
        world.check_empty();
    }
}

#[test]
fn a_second_turn_does_not_read_the_first_again() {
    for model in [PEBBLE, HYBRID, FULL, SLIDING, GEMMA, GEMMA_E] {
        let mut world = World::new(model, &options());
        let first = tokens(1, 2000);
        let (answer, usage) = world.serve(&greedy(first.clone(), 20));
        assert_eq!((usage.prompt_tokens, usage.cached_tokens), (2000, 0));
        assert_eq!(usage.completion_tokens, 20);
        assert!(usage.first_token_seconds.unwrap() >= usage.queue_seconds);

        let second = greedy(join(&[&first, &answer, &tokens(2, 60)]), 10);
        let (tokens, usage) = world.serve(&second);
        // All but the last token, which was never fed.
        assert_eq!(usage.cached_tokens, 2019, "{model}");
        assert_eq!(tokens, world.alone(&second), "{model}");
        world.check_empty();
    }
}

#[test]
fn a_turn_with_other_text_begins_at_the_callers_checkpoint() {
    for model in [PEBBLE, SLIDING, GEMMA, GEMMA_E] {
        let mut world = World::new(model, &options());
        let first = tokens(1, 2000);
        // Hints that make no sense are left out.
        let checkpoints = vec![1987, 0, 5000, 2000, usize::MAX, 1987];
        world.serve(&Request { checkpoints, ..greedy(first.clone(), 200) });
        // What follows the last user turn was thinking, and is not repeated.
        let second = greedy(join(&[&first[..1987], &tokens(2, 60)]), 10);
        let (answer, usage) = world.serve(&second);
        assert_eq!(usage.cached_tokens, 1987, "{model}");
        assert_eq!(answer, world.alone(&second), "{model}");
    }
}

#[test]
fn a_question_of_one_line_is_remembered() {
    for model in [PEBBLE, HYBRID] {
        let mut world = World::new(model, &options());
        let first = tokens(1, 23);
        let ask = |seed| Request {
            sampling: SamplingParams { seed, ..SamplingParams::default() },
            checkpoints: vec![16],
            ..greedy(first.clone(), 40)
        };
        assert_eq!(world.serve(&ask(1)).1.cached_tokens, 0);
        // Another answer to it.
        let (answer, usage) = world.serve(&ask(2));
        assert_eq!(usage.cached_tokens, 16, "{model}");
        assert_eq!(answer, world.alone(&ask(2)), "{model}");
        // The next turn, which does not say how the last was answered.
        let second = greedy(join(&[&first[..16], &tokens(2, 9)]), 10);
        let (answer, usage) = world.serve(&second);
        assert_eq!(usage.cached_tokens, 16, "{model}");
        assert_eq!(answer, world.alone(&second), "{model}");
        world.check_empty();
    }
}

#[test]
fn questions_of_one_line_do_not_drive_out_a_conversation() {
    for model in [PEBBLE, HYBRID] {
        let mut world = World::new(model, &Options { checkpoints: 4, ..options() });
        let turn = tokens(1, 300);
        world.serve(&greedy(turn.clone(), 4));
        for seed in 2..8 {
            world.serve(&Request { checkpoints: vec![16], ..greedy(tokens(seed, 23), 4) });
        }
        let second = greedy(join(&[&turn, &tokens(99, 20)]), 4);
        let (answer, usage) = world.serve(&second);
        assert_eq!(usage.cached_tokens, 300, "{model}");
        assert_eq!(answer, world.alone(&second), "{model}");
    }
}

#[test]
fn the_third_request_begins_where_the_second_left_the_first() {
    for model in [PEBBLE, HYBRID] {
        let mut world = World::new(model, &options());
        let system = tokens(1, 1000);
        let request = |seed| greedy(join(&[&system, &tokens(seed, 100)]), 4);
        world.serve(&request(2));
        // Nothing but the place on the way at 512 is known.
        assert_eq!(world.serve(&request(3)).1.cached_tokens, 512, "{model}");
        let (answer, usage) = world.serve(&request(4));
        assert_eq!(usage.cached_tokens, 960, "{model}");
        assert_eq!(answer, world.alone(&request(4)));
    }
}

#[test]
fn a_model_without_recurrent_layers_shares_to_the_token() {
    // Nothing is planned for it: the cache lives in the pool.
    let mut world = World::new(FULL, &Options { checkpoints: 0, ..options() });
    let system = tokens(1, 1000);
    let request = |seed| greedy(join(&[&system, &[seed as u32], &tokens(seed, 100)]), 4);
    world.serve(&request(2));
    assert_eq!(world.serve(&request(3)).1.cached_tokens, 1000);
    // The same again: one token must run.
    assert_eq!(world.serve(&request(3)).1.cached_tokens, 1100);
}

#[test]
fn prompts_in_common_are_read_once() {
    for (model, checkpoints) in [(PEBBLE, 16), (HYBRID, 0), (FULL, 0), (SLIDING, 16), (GEMMA, 16)] {
        let mut world = World::new(model, &Options { checkpoints, ..options() });
        let prompt = tokens(1, 1000);
        let choice = |seed| Request {
            sampling: SamplingParams { seed, ..SamplingParams::default() },
            ..greedy(prompt.clone(), 12)
        };
        let answers: Vec<Vec<u32>> = (0..4).map(|seed| world.alone(&choice(seed))).collect();
        world.engine.clear_cache();
        let before = world.computed();
        let ids: Vec<RequestId> = (0..4).map(|seed| world.submit(&choice(seed))).collect();
        world.finish();
        for (id, answer) in ids.iter().zip(&answers) {
            assert_eq!(world.outcomes[id].tokens, *answer, "{model}");
        }
        assert!(answers.iter().any(|answer| *answer != answers[0]), "{answers:?}");
        let computed = world.computed() - before;
        assert!(computed < 1000 + 3 * 64, "{model} computed {computed} tokens");
    }
}

#[test]
fn a_request_that_waits_for_anothers_prompt_continues_without_it() {
    for model in [PEBBLE, FULL] {
        for pauses in [false, true] {
            let mut world = World::new(model, &options());
            let prompt = tokens(1, 1500);
            let answer = world.alone(&greedy(prompt.clone(), 5));
            world.engine.clear_cache();
            let first = world.submit(&greedy(prompt.clone(), 5));
            let second = world.submit(&greedy(prompt.clone(), 5));
            world.step();
            let load = world.engine.load();
            assert_eq!((load.queued, load.active, load.prefilling), (1, 1, 1));
            if pauses {
                world.engine.pause(first);
                while world.outcomes[&second].end.is_none() {
                    world.step();
                }
                assert!(world.outcomes[&first].tokens.is_empty());
                world.engine.resume(first);
            } else {
                world.engine.cancel(first);
            }
            world.finish();
            assert_eq!(world.outcomes[&second].tokens, answer);
            let reason = world.outcomes[&first].end.unwrap().0;
            assert_eq!(reason == FinishReason::Cancelled, !pauses);
            world.check_empty();
        }
    }
}

#[test]
fn short_prompts_do_not_wait_and_long_ones_do_not_starve() {
    let mut world = World::new(HYBRID, &Options { chunk: 64, ..options() });
    let long = world.submit(&greedy(tokens(1, 2048), 1));
    world.step();
    let (mut seed, mut served) = (2, 0);
    let mut short = None;
    let begun = world.steps;
    while world.outcomes[&long].end.is_none() {
        let (id, since) = *short.get_or_insert_with(|| {
            seed += 1;
            (world.submit(&greedy(tokens(seed, 60), 1)), world.steps)
        });
        world.step();
        if world.outcomes[&id].end.is_some() {
            assert!(world.steps - since <= 2, "a short prompt waited");
            (served, short) = (served + 1, None);
        }
    }
    // 31 more chunks of its own, and every second step another request's.
    assert!(world.steps - begun <= 2 * 32, "{} steps", world.steps - begun);
    assert!(served >= 30, "{served}");
}

#[test]
fn a_paused_request_keeps_its_place_until_others_want_it() {
    for model in [PEBBLE, FULL] {
        let mut world = World::new(model, &Options { sequences: 1, ..options() });
        let requests = [greedy(tokens(1, 300), 40), greedy(tokens(2, 300), 10)];
        let answers = requests.each_ref().map(|request| world.alone(request));
        world.engine.clear_cache();
        let first = world.submit(&requests[0]);
        while world.outcomes[&first].tokens.len() < 5 {
            world.step();
        }
        world.engine.pause(first);
        for _ in 0..3 {
            assert!(world.stands_still() && !world.engine.is_idle());
        }
        let load = world.engine.load();
        assert_eq!((load.active, load.paused), (1, 1));
        assert_eq!(world.outcomes[&first].tokens.len(), 5);

        let second = world.submit(&requests[1]);
        while world.outcomes[&second].end.is_none() {
            world.step();
        }
        let load = world.engine.load();
        assert_eq!((load.active, load.paused, load.counters.preemptions), (0, 1, 0));
        assert!(world.stands_still() && !world.engine.is_idle());
        let before = world.computed();
        world.engine.resume(first);
        world.finish();
        assert_eq!([first, second].map(|id| world.outcomes[&id].tokens.clone()), answers);
        // It was kept.
        assert_eq!(world.computed() - before, 0, "{model}");
        // A request without a queue before it can be cancelled too.
        let third = world.submit(&requests[0]);
        world.engine.pause(third);
        assert!(world.stands_still() && world.outcomes[&third].end.is_none());
        world.engine.cancel(third);
        world.step();
        assert_eq!(world.outcomes[&third].end.unwrap().0, FinishReason::Cancelled);
        world.check_empty();
    }
}

/// Queues answers to one client.
fn submit_choices(world: &mut World, seed: u64, count: usize) -> Vec<RequestId> {
    let submit = |choice: usize| {
        let request = greedy(tokens(seed, 20), 3);
        let id = world.engine.submit_choice(request, choice).unwrap();
        world.outcomes.insert(id, Outcome::default());
        id
    };
    (0..count).map(submit).collect()
}

/// Steps until one more has ended than had before: that one.
fn next_to_end(world: &mut World) -> RequestId {
    let ended = |world: &World| -> BTreeSet<RequestId> {
        let ended = world.outcomes.iter().filter(|(_, outcome)| outcome.end.is_some());
        ended.map(|(&id, _)| id).collect()
    };
    let before = ended(world);
    loop {
        world.step();
        if let Some(&id) = ended(world).difference(&before).next() {
            return id;
        }
    }
}

#[test]
fn requests_for_several_answers_take_turns() {
    let mut world = World::new(FULL, &Options { sequences: 1, ..options() });
    let first = submit_choices(&mut world, 1, 4);
    world.step();
    let second = submit_choices(&mut world, 2, 1);
    let third = submit_choices(&mut world, 3, 2);
    let expect = [first[0], second[0], third[0], first[1], third[1], first[2], first[3]];
    let order: Vec<RequestId> = expect.iter().map(|_| next_to_end(&mut world)).collect();
    assert_eq!(order, expect);
    world.finish();
    world.check_empty();
}

#[test]
fn later_answers_are_not_passed_for_ever_by_those_that_come() {
    let mut world = World::new(FULL, &Options { sequences: 1, ..options() });
    let first = submit_choices(&mut world, 1, 4);
    world.step();
    let mut order = Vec::new();
    // Whenever one is admitted another comes that wants one answer.
    for seed in 2..14 {
        submit_choices(&mut world, seed, 1);
        order.push(next_to_end(&mut world));
        world.step();
    }
    let places = first.iter().map(|id| order.iter().position(|other| other == id));
    // A round is as long as the last one, and requests that came in it more.
    assert_eq!(places.collect::<Vec<_>>(), [0, 2, 5, 9].map(Some));
    world.finish();
    world.check_empty();
}

#[test]
fn preempted_requests_are_queued_before_new_ones() {
    let small = Options { context: 1024, pool_tokens: Some(1024), checkpoints: 0, ..options() };
    let mut world = World::new(FULL, &small);
    // Both are admitted, and then write more than was expected.
    let ids = [1, 2].map(|seed| world.submit(&greedy(tokens(seed, 200), 500)));
    while world.engine.load().counters.preemptions == 0 {
        world.step();
    }
    let choices = submit_choices(&mut world, 3, 3);
    assert_eq!(next_to_end(&mut world), ids[0]);
    // There was room for them, and they waited.
    assert!(choices.iter().all(|id| world.outcomes[id].tokens.is_empty()));
    world.finish();
    world.check_empty();
}

#[test]
fn the_first_in_line_is_not_overtaken() {
    let small = Options { context: 1024, pool_tokens: Some(1024), checkpoints: 0, ..options() };
    let mut world = World::new(FULL, &small);
    // Each needs most of the pool, the last hardly anything.
    let requests =
        [greedy(tokens(1, 800), 100), greedy(tokens(2, 800), 100), greedy(tokens(3, 10), 2)];
    let ids = requests.each_ref().map(|request| world.submit(request));
    world.step();
    let load = world.engine.load();
    assert_eq!((load.active, load.queued), (1, 2));
    while world.outcomes[&ids[0]].end.is_none() {
        assert!(world.outcomes[&ids[2]].tokens.is_empty(), "it was overtaken");
        world.step();
    }
    world.finish();
    assert_eq!(world.engine.load().counters.preemptions, 0);
    world.check_empty();
}

#[test]
fn what_can_never_be_served_is_refused() {
    let mut world = World::new(FULL, &Options { context: 100, ..options() });
    let vocab = world.engine.runner().spec().vocab;
    let refused = |world: &mut World, request: Request| world.engine.submit(request).unwrap_err();
    let error = refused(&mut world, greedy(tokens(1, 100), 1));
    assert!(
        matches!(error, Error::Runtime(runtime::Error::Context { needed: 101, context: 100 })),
        "{error}"
    );
    assert!(matches!(refused(&mut world, greedy(vec![], 1)), Error::EmptyPrompt));
    let error = refused(&mut world, greedy(vec![vocab as u32], 1));
    assert!(matches!(error, Error::Runtime(runtime::Error::Token { .. })), "{error}");
    let mut request = greedy(vec![1], 1);
    request.sampling.logit_bias = vec![(vocab as u32, 1.0)];
    let error = refused(&mut world, request);
    assert!(matches!(error, Error::Sampling(SampleError::UnknownToken { .. })), "{error}");
    // The longest that can be, with its answer as long as the context; and an answer of nothing.
    for (prompt, answer) in [(99, 1), (98, 2), (90, 10)] {
        let (tokens, usage) = world.serve(&greedy(tokens(1, prompt), 50));
        assert_eq!((tokens.len(), usage.completion_tokens), (answer, answer));
    }
    assert!(world.serve(&greedy(tokens(1, 50), 0)).0.is_empty());
    world.check_empty();
}
