//! What all handlers share: the options, the model once it is there, places, and whether the end is near.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Options;
use crate::error::ApiError;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::model::Model;

/// State of a server.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) started: Instant,
    pub(crate) live: Live,
    model: OnceLock<Arc<Model>>,
    /// One for each request that is answered or waits.
    places: OnceLock<(Arc<Semaphore>, usize)>,
    is_draining: AtomicBool,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Shared {
        Shared {
            options,
            metrics: Arc::new(Metrics::default()),
            started: Instant::now(),
            live: Live::default(),
            model: OnceLock::new(),
            places: OnceLock::new(),
            is_draining: AtomicBool::new(false),
        }
    }

    /// The model is loaded: from now on requests are answered.
    pub(crate) fn open(&self, model: Model) {
        let places = model.facts.parallel + self.options.queue;
        let _ = self.places.set((Arc::new(Semaphore::new(places)), places));
        let _ = self.model.set(Arc::new(model));
    }

    /// The model, or 503 while it is loading.
    pub(crate) fn model(&self) -> Result<&Arc<Model>, ApiError> {
        self.model
            .get()
            .ok_or_else(|| ApiError::unavailable("model_loading", "the model is still loading", 2))
    }

    /// A place for a request, or 503 if too many wait or the end is near.
    pub(crate) fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.is_draining() {
            let message = "the server is shutting down";
            return Err(ApiError::unavailable("shutting_down", message, 5));
        }
        let taken = self.places.get().map(|(places, _)| Arc::clone(places).try_acquire_owned());
        match taken {
            Some(Ok(place)) => Ok(place),
            _ => {
                self.metrics.requests_refused.add(1);
                let seconds = self.metrics.seconds_until_a_place();
                let message = format!(
                    "{} requests are waiting already: try again in {seconds} s",
                    self.options.queue
                );
                Err(ApiError::unavailable("queue_full", message, seconds))
            }
        }
    }

    /// Requests that are answered or wait.
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
