//! What all handlers share: the options, the model once it is there, places, and whether the end is near.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Options;
use crate::budget::Budget;
use crate::error::ApiError;
use crate::hosts::Hosts;
use crate::live_sample::Live;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::turns::Turns;

/// State of a server.
pub(crate) struct ServerState {
    pub(crate) options: Options,
    pub(crate) hosts: Hosts,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) started: Instant,
    pub(crate) live: Live,
    /// Turns of requests that are prepared.
    pub(crate) turns: Arc<Turns>,
    model: OnceLock<Arc<Model>>,
    /// What requests may hold.
    budget: OnceLock<Arc<Budget>>,
    /// One for each answer that is written or waits.
    places: OnceLock<(Arc<Semaphore>, usize)>,
    is_draining: AtomicBool,
}

impl ServerState {
    pub(crate) fn new(options: Options) -> ServerState {
        let hosts = Hosts::new(&options, machine::facts::host_name().as_deref());
        ServerState {
            options,
            hosts,
            metrics: Arc::new(Metrics::default()),
            started: Instant::now(),
            live: Live::default(),
            turns: Arc::default(),
            model: OnceLock::new(),
            budget: OnceLock::new(),
            places: OnceLock::new(),
            is_draining: AtomicBool::new(false),
        }
    }

    /// The model is loaded: from now on requests are answered.
    pub(crate) fn open(&self, model: Model, budget: Arc<Budget>) {
        let places = model.facts.parallel + self.options.queue;
        let _ = self.places.set((Arc::new(Semaphore::new(places)), places));
        let _ = self.budget.set(budget);
        let _ = self.model.set(Arc::new(model));
    }

    /// The model, or 503 while it is loading.
    pub(crate) fn model(&self) -> Result<&Arc<Model>, ApiError> {
        self.model.get().ok_or_else(model_loading)
    }

    /// What requests may hold, or 503 while the model is loading.
    pub(crate) fn budget(&self) -> Result<&Arc<Budget>, ApiError> {
        self.budget.get().ok_or_else(model_loading)
    }

    /// Places for a request that wants so many answers, or 503 if too many wait or the end is near.
    pub(crate) fn place(&self, answers: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.is_draining() {
            let message = "the server is shutting down";
            return Err(ApiError::unavailable("shutting_down", message, 5));
        }
        let taken = self.places.get().and_then(|(places, all)| take(places, *all, answers));
        taken.ok_or_else(|| {
            self.metrics.requests_refused.add(1);
            let seconds = self.metrics.seconds_until_a_place();
            let free = self.places.get().map_or(0, |(places, _)| places.available_permits());
            let message = format!(
                "{answers} answers requested, {free} queue places free: retry in {seconds} s"
            );
            ApiError::unavailable("queue_full", message, seconds)
        })
    }

    /// Answers that are written or wait.
    pub(crate) fn occupied(&self) -> usize {
        self.places.get().map_or(0, |(places, all)| all - places.available_permits())
    }

    /// No more requests from now on.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}

fn model_loading() -> ApiError {
    ApiError::unavailable("model_loading", "the model is still loading", 2)
}

/// Places for so many answers, of `all` there are. A request that wants more than all has the server to itself, or
/// it could never be answered.
fn take(places: &Arc<Semaphore>, all: usize, answers: usize) -> Option<OwnedSemaphorePermit> {
    let count = u32::try_from(answers.min(all)).ok()?;
    Arc::clone(places).try_acquire_many_owned(count).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_a_place() {
        let places = Arc::new(Semaphore::new(5));
        let first = take(&places, 5, 3).unwrap();
        assert!(take(&places, 5, 3).is_none());
        let second = take(&places, 5, 2).unwrap();
        assert!(take(&places, 5, 1).is_none());
        drop(first);
        assert!(take(&places, 5, 3).is_some());
        drop(second);
        assert_eq!(places.available_permits(), 5);
    }

    #[test]
    fn a_request_for_more_than_all_places_is_answered_alone() {
        let places = Arc::new(Semaphore::new(5));
        let one = take(&places, 5, 1).unwrap();
        assert!(take(&places, 5, 16).is_none());
        drop(one);
        let all = take(&places, 5, 16).unwrap();
        assert!(take(&places, 5, 1).is_none());
        drop(all);
        assert!(take(&places, 5, 5).is_some());
    }
}
