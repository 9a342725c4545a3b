//! The machine at work, for viewers: `GET /live`, server-sent events.
//!
//! One `hello` says what does not change, then a `beat` comes about four times a second while anything
//! happens. The engine's thread takes the numbers between two steps and hands them on as they are; what is
//! written for viewers is written on their side. Without viewers nothing of the grid is counted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use engine::{Engine, Load};
use runtime::{ExpertActivity, ExpertLoad};
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, error::RecvError};

use crate::error::ApiError;
use crate::fields::Result;
use crate::model::{Model, Pulse};
use crate::shared::Shared;
use crate::speculation::Speculating;
use crate::wire::{self, Framing, KeepAlive};

/// Viewers at once.
const MOST_VIEWERS: usize = 16;
/// Beats that a viewer may be behind.
const SAMPLES: usize = 4;
/// Between samples while something happens, and while nothing does.
const BUSY: Duration = Duration::from_millis(250);
const IDLE: Duration = Duration::from_secs(2);
/// After so long without a sample (a long step) a comment keeps the stream of a viewer alive.
const SILENCE: Duration = Duration::from_secs(5);
/// The longest list of a sample.
const MOST_CELLS: usize = 4096;
/// Reading the statistics of a streamed bank copies some kilobytes: not after every step.
const STATISTICS: Duration = Duration::from_millis(50);

/// Where the engine's thread and viewers meet.
#[derive(Debug)]
pub(crate) struct Live {
    viewers: AtomicUsize,
    /// `None` is the end.
    samples: broadcast::Sender<Option<Arc<LiveSample>>>,
}

impl Default for Live {
    fn default() -> Live {
        Live { viewers: AtomicUsize::new(0), samples: broadcast::channel(SAMPLES).0 }
    }
}

impl Live {
    /// How many look on.
    pub(crate) fn viewers(&self) -> usize {
        self.viewers.load(Ordering::Relaxed)
    }
}

/// A viewer's place.
struct Seat(Arc<Shared>);

impl Seat {
    fn take(shared: &Arc<Shared>) -> Option<Seat> {
        let more = |viewers| (viewers < MOST_VIEWERS).then_some(viewers + 1);
        let viewers = &shared.live.viewers;
        viewers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Seat(Arc::clone(shared)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.live.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `GET /live`
pub(crate) async fn watch(State(shared): State<Arc<Shared>>) -> Result<Response> {
    let model = Arc::clone(shared.model()?);
    if shared.is_draining() {
        return Err(ApiError::unavailable("shutting_down", "the server is shutting down", 5));
    }
    // Before the seat is taken: the sample that taking it brings must not be missed.
    let mut samples = shared.live.samples.subscribe();
    let Some(seat) = Seat::take(&shared) else {
        let message = format!("{MOST_VIEWERS} look on already");
        return Err(ApiError::unavailable("too_many_viewers", message, 10));
    };
    let keep_alive = KeepAlive { every: SILENCE, frame: None };
    Ok(wire::stream(Framing::Events, keep_alive, move |mut wire| async move {
        let _seat = seat;
        wire.event("hello", &hello(&model));
        loop {
            match tokio::time::timeout(SILENCE, samples.recv()).await {
                Ok(Ok(Some(sample))) => wire.event("beat", sample.value()),
                Ok(Ok(None) | Err(RecvError::Closed)) => return,
                Ok(Err(RecvError::Lagged(_))) => {}
                Err(_) => wire.event("alive", &json!({})),
            }
        }
    }))
}

fn hello(model: &Model) -> Value {
    let (plan, facts) = (&model.plan, &model.facts);
    let experts = facts.experts.map(|(layers, experts, experts_per_token)| {
        let slots = plan.streaming.as_ref().map_or(layers * experts, |streaming| streaming.slots);
        json!({
            "layers": layers,
            "experts": experts,
            "experts_per_token": experts_per_token,
            "slots": slots,
        })
    });
    json!({
        "model": model.name,
        "mode": model.mode(),
        "plan": plan_json(plan),
        "experts": experts,
        "context": facts.context,
        "parallel": facts.parallel,
    })
}

/// A plan as the page and `/health` show it.
pub(crate) fn plan_json(plan: &runtime::Plan) -> Value {
    json!({
        "rows": plan.rows,
        "total_bytes": plan.total_bytes,
        "budget_bytes": plan.budget_bytes,
    })
}

/// What happened since the sample before.
#[derive(Debug, Default)]
struct LiveSample {
    /// Since the server started.
    seconds: f64,
    rates: Rates,
    load: Load,
    limit: usize,
    memory_bytes: u64,
    disk_bytes_per_second: Option<f64>,
    grid: Option<ExpertActivity>,
    speculation: Option<Speculating>,
    /// Written by the first viewer that needs it.
    value: OnceLock<Value>,
}

impl LiveSample {
    fn value(&self) -> &Value {
        self.value.get_or_init(|| {
            let LiveSample { rates, load, .. } = self;
            json!({
                "t": self.seconds,
                "prefill_tok_s": rates.prefill,
                "decode_tok_s": rates.decode,
                "active": load.active,
                "prefilling": load.prefilling,
                "queued": load.queued,
                "limit": self.limit,
                "pool": {"pages": load.pages, "free": load.free_pages},
                "cache": {"entries": load.cache_entries, "tokens": load.cache_tokens},
                "memory_bytes": self.memory_bytes,
                "hit_rate": rates.hits,
                "read_bytes_s": rates.read_bytes,
                "disk_bytes_s": self.disk_bytes_per_second,
                "grid": self.grid.as_ref().map(grid_json),
                "speculation": self.speculation.as_ref().and_then(Speculating::sample),
            })
        })
    }
}

fn grid_json(grid: &ExpertActivity) -> Value {
    let uses = grid
        .uses
        .iter()
        .take(MOST_CELLS)
        .map(|&(layer, expert, rows)| json!([layer, expert, rows]));
    let reads = grid.reads.iter().take(MOST_CELLS).map(|&(layer, expert)| json!([layer, expert]));
    json!({
        "resident": base64::encode(&grid.resident),
        "hits": uses.collect::<Vec<_>>(),
        "reads": reads.collect::<Vec<_>>(),
    })
}

/// What happens a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// Tokens of prompts.
    pub(crate) prefill: f64,
    /// Tokens of answers.
    pub(crate) decode: f64,
    /// Share of the wanted experts that were in memory, if any were wanted of those that stream.
    pub(crate) hits: Option<f64>,
    /// Bytes of experts, if they stream.
    pub(crate) read_bytes: Option<f64>,
}

impl Rates {
    fn is_still(&self) -> bool {
        self.prefill == 0.0 && self.decode == 0.0
    }
}

/// Counters at a moment, to see what has changed since.
#[derive(Clone, Debug, Default)]
struct Mark {
    prompt_tokens: u64,
    generated_tokens: u64,
    /// Hits, misses and bytes of experts that stream.
    experts: Option<(u64, u64, u64)>,
}

impl Mark {
    fn of(load: &Load, experts: Option<&ExpertLoad>) -> Mark {
        Mark {
            prompt_tokens: load.counters.prompt_tokens_computed,
            generated_tokens: load.counters.generated_tokens,
            experts: experts.map(|experts| (experts.hits, experts.misses, experts.read_bytes)),
        }
    }

    /// From here to `now`.
    fn rates(&self, now: &Mark, elapsed: Duration) -> Rates {
        let seconds = elapsed.as_secs_f64().max(1e-6);
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let (before, after) = (self.experts.unwrap_or_default(), now.experts.unwrap_or_default());
        let (hits, misses) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        let has_wanted = now.experts.is_some() && hits + misses > 0;
        Rates {
            prefill: rate(self.prompt_tokens, now.prompt_tokens),
            decode: rate(self.generated_tokens, now.generated_tokens),
            hits: has_wanted.then(|| hits as f64 / (hits + misses) as f64),
            read_bytes: now.experts.map(|_| rate(before.2, after.2)),
        }
    }
}

/// The engine's side: called between steps.
pub(crate) struct Feed {
    shared: Arc<Shared>,
    mark: Mark,
    rates: Rates,
    last_beat: Instant,
    last_statistics: Instant,
    is_watched: bool,
}

impl Feed {
    pub(crate) fn new(shared: Arc<Shared>) -> Feed {
        let now = Instant::now();
        Feed {
            shared,
            mark: Mark::default(),
            rates: Rates::default(),
            last_beat: now,
            last_statistics: now,
            is_watched: false,
        }
    }

    /// Takes the engine's pulse, and has it sample for viewers when it is time.
    pub(crate) fn after_step(&mut self, engine: &Engine, step: Option<Duration>) {
        let Ok(model) = self.shared.model().cloned() else { return };
        let now = Instant::now();
        let is_first = self.mind_the_viewers(engine);
        let due = is_first || self.is_due(now, step.is_some());
        let load = engine.load();
        let reads_all = due || engine.is_idle() || now - self.last_statistics >= STATISTICS;
        if reads_all {
            self.last_statistics = now;
        }
        let experts = if reads_all { engine.runner().expert_load() } else { None };
        let speculation = if reads_all { Speculating::of(engine) } else { None };
        if due {
            let mark = Mark::of(&load, experts.as_ref());
            self.rates = self.mark.rates(&mark, now - self.last_beat);
            (self.mark, self.last_beat) = (mark, now);
        }
        if due && self.is_watched {
            self.sample(engine, &load, experts.as_ref(), speculation.clone());
        }
        let mut pulse = model.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let experts = experts.or_else(|| pulse.experts.take());
        let speculation = speculation.or_else(|| pulse.speculation.take());
        *pulse = Pulse { load, rates: self.rates, experts, speculation };
    }

    /// Whether the first viewer has come.
    fn mind_the_viewers(&mut self, engine: &Engine) -> bool {
        let is_watched = self.shared.live.viewers() > 0;
        let has_changed = is_watched != self.is_watched;
        if has_changed {
            self.is_watched = is_watched;
            engine.runner().watch_experts(is_watched);
        }
        has_changed && is_watched
    }

    fn is_due(&self, now: Instant, has_stepped: bool) -> bool {
        let every = if has_stepped || !self.rates.is_still() { BUSY } else { IDLE };
        now - self.last_beat >= every
    }

    fn sample(
        &self,
        engine: &Engine,
        load: &Load,
        experts: Option<&ExpertLoad>,
        speculation: Option<Speculating>,
    ) {
        let sample = LiveSample {
            seconds: self.shared.started.elapsed().as_secs_f64(),
            rates: self.rates,
            load: *load,
            limit: self.shared.options.queue,
            memory_bytes: machine::memory::usage().resident_bytes,
            disk_bytes_per_second: experts.and_then(|experts| experts.disk_bytes_per_second),
            grid: engine.runner().take_expert_activity(),
            speculation,
            value: OnceLock::new(),
        };
        // All viewers may have gone.
        let _ = self.shared.live.samples.send(Some(Arc::new(sample)));
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let _ = self.shared.live.samples.send(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use engine::Counters;

    #[test]
    fn a_beat_has_what_the_page_draws() {
        let load = Load {
            active: 3,
            prefilling: 1,
            queued: 2,
            pages: 64,
            free_pages: 40,
            ..Load::default()
        };
        let sample = LiveSample {
            seconds: 1.5,
            rates: Rates { prefill: 10.0, decode: 4.0, hits: Some(0.75), read_bytes: Some(1e6) },
            load,
            limit: 256,
            memory_bytes: 77,
            disk_bytes_per_second: Some(2e9),
            grid: Some(ExpertActivity {
                uses: vec![(0, 3, 2)],
                reads: vec![(1, 9)],
                // Layer 0 with 12 experts has experts 0 and 9; layer 1 has expert 1: bit 13.
                resident: vec![0b0000_0001, 0b0010_0010],
            }),
            speculation: Some(Speculating::example()),
            value: OnceLock::new(),
        };
        let expect = json!({
            "t": 1.5, "prefill_tok_s": 10.0, "decode_tok_s": 4.0, "active": 3, "prefilling": 1, "queued": 2,
            "limit": 256, "pool": {"pages": 64, "free": 40}, "cache": {"entries": 0, "tokens": 0},
            "memory_bytes": 77, "hit_rate": 0.75, "read_bytes_s": 1e6, "disk_bytes_s": 2e9,
            "grid": {"resident": "ASI=", "hits": [[0, 3, 2]], "reads": [[1, 9]]},
            "speculation": {"acceptance": 0.75, "gain": 1.5},
        });
        assert_eq!(*sample.value(), expect);
        let plain = LiveSample::default();
        assert_eq!(plain.value()["grid"], Value::Null);
        assert_eq!(plain.value()["speculation"], Value::Null);
        assert_eq!(plain.value()["hit_rate"], Value::Null);
        assert_eq!(plain.value()["disk_bytes_s"], Value::Null);
    }

    #[test]
    fn lists_are_cut() {
        let many = ExpertActivity {
            uses: (0..5000).map(|expert| (0, expert, 1)).collect(),
            reads: (0..5000).map(|expert| (0, expert)).collect(),
            resident: Vec::new(),
        };
        let grid = grid_json(&many);
        assert_eq!(grid["hits"].as_array().unwrap().len(), MOST_CELLS);
        assert_eq!(grid["reads"].as_array().unwrap().len(), MOST_CELLS);
    }

    #[test]
    fn rates_are_of_what_changed() {
        let load = |prompt: u64, generated: u64| {
            let counters = Counters {
                prompt_tokens_computed: prompt,
                generated_tokens: generated,
                ..Counters::default()
            };
            Load { counters, ..Load::default() }
        };
        let experts = |hits: u64, misses: u64, read_bytes: u64| ExpertLoad {
            hits,
            misses,
            read_bytes,
            ..ExpertLoad::default()
        };
        let before = Mark::of(&load(100, 10), Some(&experts(5, 5, 1000)));
        let now = Mark::of(&load(200, 20), Some(&experts(8, 6, 3000)));
        let rates = before.rates(&now, Duration::from_millis(500));
        let expect =
            Rates { prefill: 200.0, decode: 20.0, hits: Some(0.75), read_bytes: Some(4000.0) };
        assert_eq!(rates, expect);
        // Nothing was wanted, and a model in memory reads nothing.
        let still = now.rates(&now, Duration::from_millis(500));
        assert_eq!(still, Rates { read_bytes: Some(0.0), ..Rates::default() });
        let resident = Mark::of(&load(1, 0), None);
        assert_eq!(Mark::default().rates(&resident, Duration::from_secs(1)).read_bytes, None);
    }

    #[test]
    fn seats_are_limited_and_given_back() {
        let shared = Arc::new(Shared::new(Options::default()));
        let mut seats: Vec<Seat> = (0..MOST_VIEWERS).map_while(|_| Seat::take(&shared)).collect();
        assert_eq!((seats.len(), shared.live.viewers()), (MOST_VIEWERS, MOST_VIEWERS));
        assert!(Seat::take(&shared).is_none());
        seats.pop();
        assert!(Seat::take(&shared).is_some());
        drop(seats);
        assert_eq!(shared.live.viewers(), 0);
    }
}
