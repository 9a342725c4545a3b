//! The machine at work, for viewers: `GET /live`, server-sent events.
//!
//! One `hello` says what does not change, then a `beat` comes about four times a second while anything
//! happens. The engine's thread takes the numbers between two steps and hands them on as they are; what is
//! written for viewers is written on their side. Without viewers nothing of the grid is counted.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use engine::{Engine, Load};
use runtime::ExpertLoad;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use crate::error::ApiError;
use crate::fields::Result;
use crate::live_sample::LiveSample;
use crate::model::{Model, Pulse, Rates};
use crate::shared::ServerState;
use crate::speculation::Speculating;
use crate::wire::{self, Framing, KeepAlive};

/// Viewers at once.
const MOST_VIEWERS: usize = 16;
/// Between samples while something happens, and while nothing does.
const BUSY: Duration = Duration::from_millis(250);
const IDLE: Duration = Duration::from_secs(2);
/// After so long without a sample (a long step) a comment keeps the stream of a viewer alive.
const SILENCE: Duration = Duration::from_secs(5);
/// Reading the statistics of a streamed bank copies some kilobytes: not after every step.
const STATISTICS: Duration = Duration::from_millis(50);

/// A viewer's slot.
struct Seat(Arc<ServerState>);

impl Seat {
    fn take(shared: &Arc<ServerState>) -> Option<Seat> {
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
pub(crate) async fn watch(State(shared): State<Arc<ServerState>>) -> Result<Response> {
    let model = Arc::clone(shared.model()?);
    if shared.is_draining() {
        return Err(ApiError::unavailable("shutting_down", "the server is shutting down", 5));
    }
    // Before the slot is taken: the sample that taking it brings must not be missed.
    let mut samples = shared.live.samples.subscribe();
    let Some(seat) = Seat::take(&shared) else {
        let message = format!("{MOST_VIEWERS} viewers are connected already");
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
    shared: Arc<ServerState>,
    mark: Mark,
    rates: Rates,
    last_sample: Instant,
    last_statistics: Instant,
    is_watched: bool,
}

impl Feed {
    pub(crate) fn new(shared: Arc<ServerState>) -> Feed {
        let now = Instant::now();
        Feed {
            shared,
            mark: Mark::default(),
            rates: Rates::default(),
            last_sample: now,
            last_statistics: now,
            is_watched: false,
        }
    }

    /// Takes the engine's pulse, and has it sample for viewers when it is time.
    pub(crate) fn after_step(&mut self, engine: &Engine, step: Option<Duration>) {
        let Ok(model) = self.shared.model().cloned() else { return };
        let now = Instant::now();
        let is_first = self.notice_viewers(engine);
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
            self.rates = self.mark.rates(&mark, now - self.last_sample);
            (self.mark, self.last_sample) = (mark, now);
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
    fn notice_viewers(&mut self, engine: &Engine) -> bool {
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
        now - self.last_sample >= every
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
    fn viewer_slots_are_limited_and_released() {
        let shared = Arc::new(ServerState::new(Options::default()));
        let mut seats: Vec<Seat> = (0..MOST_VIEWERS).map_while(|_| Seat::take(&shared)).collect();
        assert_eq!((seats.len(), shared.live.viewers()), (MOST_VIEWERS, MOST_VIEWERS));
        assert!(Seat::take(&shared).is_none());
        seats.pop();
        assert!(Seat::take(&shared).is_some());
        drop(seats);
        assert_eq!(shared.live.viewers(), 0);
    }
}
