//! The model that is served, and what handlers need of it.

use std::sync::{Mutex, PoisonError};

use engine::session::Session;
use engine::{Engine, Load};
use runtime::{ExpertLoad, Plan};

use crate::engine_thread::EngineHandle;
use crate::speculation::Speculating;

/// What is known of the model once it is loaded.
pub(crate) struct Model {
    /// As the user named it.
    pub(crate) name: String,
    /// When it was loaded, in seconds since 1970.
    pub(crate) created: u64,
    /// Requests to prompts, and events to answers.
    pub(crate) session: Session,
    /// Where requests go.
    pub(crate) engine: EngineHandle,
    /// Where the memory goes.
    pub(crate) plan: Plan,
    /// Facts for people.
    pub(crate) facts: Facts,
    /// What the engine last said of itself.
    pub(crate) pulse: Mutex<Pulse>,
}

/// Facts about a model.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// `model_type` of its config.
    pub(crate) model_type: String,
    /// Positions a conversation may have.
    pub(crate) context: usize,
    /// Tokens there are.
    pub(crate) vocabulary: usize,
    /// Conversations that are answered at once.
    pub(crate) parallel: usize,
    /// All parameters.
    pub(crate) parameters: u64,
    /// Bytes of all weights.
    pub(crate) bytes: u64,
    /// Such as `4-bit`.
    pub(crate) quantization: String,
    /// Layers with routed experts, experts of each, experts a token uses.
    pub(crate) experts: Option<(usize, usize, usize)>,
}

/// The state of the engine after its last step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse {
    /// Requests and memory.
    pub(crate) load: Load,
    /// What happens a second.
    pub(crate) rates: Rates,
    /// Reads of experts, if they stream.
    pub(crate) experts: Option<ExpertLoad>,
    /// What came of drafting, if it may be.
    pub(crate) speculation: Option<Speculating>,
}

impl Pulse {
    /// Of an engine that has not stepped yet.
    pub(crate) fn of(engine: &Engine) -> Pulse {
        Pulse {
            load: engine.load(),
            rates: Rates::default(),
            experts: engine.runner().expert_load(),
            speculation: Speculating::of(engine),
        }
    }
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
    /// Whether no token was computed.
    pub(crate) fn is_still(&self) -> bool {
        self.prefill == 0.0 && self.decode == 0.0
    }
}

impl Model {
    /// The state of the engine after its last step.
    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether experts are read when they are wanted.
    pub(crate) fn mode(&self) -> &'static str {
        if self.plan.streaming.is_some() { "streaming" } else { "resident" }
    }
}
