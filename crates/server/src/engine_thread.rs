//! The thread that steps the engine: commands in, events out.
//!
//! It owns the engine. Handlers send it commands through an [`EngineHandle`] and read the events of each submission from a
//! bounded channel; a channel that is nearly full pauses its own requests and no others, and requests whose handler has ended
//! are cancelled at the next step. The events of a step are handed out together, by a task among the handlers: waking them
//! one by one, the engine's thread would be interrupted by each. An error of the engine itself ends the requests under way,
//! not the server.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use engine::{Engine, Event, Request, RequestId};
use tokio::sync::mpsc;

use crate::metrics::Metrics;

/// Events that may wait for a handler.
const CHANNEL_EVENTS: usize = 192;
/// Room that a step may need: a request with less is paused. A pass may verify 63 drafted tokens, and the answer
/// may end with them.
const STEP_EVENTS: usize = 72;
/// A handler that has caught up must find its request fit to continue.
const _: () = assert!(CHANNEL_EVENTS / 2 >= STEP_EVENTS);
/// How long an idle thread sleeps before it looks at its requests again.
const IDLE: Duration = Duration::from_millis(250);

/// What the thread is to do.
enum Command {
    Submit {
        requests: Vec<Request>,
        submission: Submission,
    },
    /// All answers, or the one of this number.
    Cancel(SubmissionId, Option<usize>),
    /// A handler has caught up.
    Wake,
    /// Return, with everything that is still under way cancelled.
    Stop,
}

/// Names all answers to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SubmissionId(u64);

/// Answers under way to one client.
struct Submission {
    id: SubmissionId,
    events: mpsc::Sender<ChoiceEvent>,
    /// Shared with the [`EventReceiver`], which wakes the thread.
    paused: Arc<AtomicBool>,
    is_paused: bool,
    /// Requests that have not ended.
    requests: Vec<RequestId>,
}

/// What happened to one answer of a submission.
#[derive(Debug)]
pub(crate) struct ChoiceEvent {
    /// Which answer.
    pub(crate) choice: usize,
    /// What.
    pub(crate) event: Event,
}

/// An event and its place in the channel that it is for.
pub(crate) type Delivery = (mpsc::OwnedPermit<ChoiceEvent>, ChoiceEvent);

/// Hands out events until the engine's thread ends.
pub(crate) async fn deliver(mut steps: mpsc::UnboundedReceiver<Vec<Delivery>>) {
    while let Some(deliveries) = steps.recv().await {
        for (place, event) in deliveries {
            place.send(event);
        }
    }
}

/// A handle for handlers.
#[derive(Clone, Debug)]
pub(crate) struct EngineHandle {
    commands: Sender<Command>,
    next_id: Arc<AtomicU64>,
}

/// A handler's end of a submission. Dropping it cancels the answers.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    id: SubmissionId,
    events: mpsc::Receiver<ChoiceEvent>,
    paused: Arc<AtomicBool>,
    commands: Sender<Command>,
}

/// The thread's end of all channels.
pub(crate) struct EngineThread {
    commands: Receiver<Command>,
    /// No more than there are places for in the channels of events.
    deliveries: mpsc::UnboundedSender<Vec<Delivery>>,
}

/// The handle, what the engine's thread needs, and what [`deliver`] needs, which must run among the handlers.
pub(crate) fn open() -> (EngineHandle, EngineThread, mpsc::UnboundedReceiver<Vec<Delivery>>) {
    let (sender, commands) = channel();
    let (deliveries, steps) = mpsc::unbounded_channel();
    let handle = EngineHandle { commands: sender, next_id: Arc::default() };
    (handle, EngineThread { commands, deliveries }, steps)
}

impl EngineHandle {
    /// Queues the answers to one client.
    pub(crate) fn submit(&self, requests: Vec<Request>) -> EventReceiver {
        let id = SubmissionId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (sender, events) = mpsc::channel(CHANNEL_EVENTS * requests.len().max(1));
        let paused = Arc::new(AtomicBool::new(false));
        let submission = Submission {
            id,
            events: sender,
            paused: Arc::clone(&paused),
            is_paused: false,
            requests: Vec::new(),
        };
        // A thread that is gone drops the submission: its channel ends, and says so.
        let _ = self.commands.send(Command::Submit { requests, submission });
        EventReceiver { id, events, paused, commands: self.commands.clone() }
    }

    /// Ends the thread's loop.
    pub(crate) fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }
}

impl EventReceiver {
    /// The next event; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<ChoiceEvent> {
        let event = self.events.recv().await;
        self.wake();
        event
    }

    /// An event that is there already.
    pub(crate) fn try_next(&mut self) -> Option<ChoiceEvent> {
        let event = self.events.try_recv().ok()?;
        self.wake();
        Some(event)
    }

    /// Stops generating an answer; events from before and the end still come.
    pub(crate) fn cancel(&self, choice: usize) {
        let _ = self.commands.send(Command::Cancel(self.id, Some(choice)));
    }

    fn wake(&self) {
        // Places that are reserved count, as they do for the engine's thread.
        let half_empty = self.events.capacity() >= self.events.max_capacity() / 2;
        if half_empty && self.paused.swap(false, Ordering::AcqRel) {
            let _ = self.commands.send(Command::Wake);
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Cancel(self.id, None));
    }
}

/// The state of the loop.
struct StepLoop<'a> {
    engine: &'a mut Engine,
    submissions: HashMap<SubmissionId, Submission>,
    owners: HashMap<RequestId, (SubmissionId, usize)>,
    /// Events of this step.
    deliveries: Vec<Delivery>,
    metrics: &'a Metrics,
}

impl EngineThread {
    /// Steps the engine until [`EngineHandle::stop`]. `after_step` sees the engine between steps.
    pub(crate) fn run(
        self,
        engine: &mut Engine,
        metrics: &Metrics,
        mut after_step: impl FnMut(&Engine, Option<Duration>),
    ) {
        let mut state = StepLoop {
            engine,
            submissions: HashMap::new(),
            owners: HashMap::new(),
            deliveries: Vec::new(),
            metrics,
        };
        loop {
            let first = if state.has_nothing_to_do() {
                match self.commands.recv_timeout(IDLE) {
                    Ok(command) => Some(command),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            } else {
                self.commands.try_recv().ok()
            };
            let commands =
                first.into_iter().chain(std::iter::from_fn(|| self.commands.try_recv().ok()));
            for command in commands {
                if matches!(command, Command::Stop) {
                    return;
                }
                state.execute(command);
            }
            state.apply_backpressure();
            if state.has_nothing_to_do() {
                after_step(state.engine, None);
                continue;
            }
            let start = Instant::now();
            // A panic is a bug of ours that one request may have found; the others should not pay for it.
            match catch_unwind(AssertUnwindSafe(|| state.engine.step())) {
                Ok(Ok(events)) => events.into_iter().for_each(|event| state.route(event)),
                Ok(Err(error)) => state.fail_all(&error.to_string()),
                Err(_) => state.fail_all("an internal error"),
            }
            if !state.deliveries.is_empty() {
                // Without the task that hands events out there is no handler that reads them.
                let _ = self.deliveries.send(std::mem::take(&mut state.deliveries));
            }
            after_step(state.engine, Some(start.elapsed()));
        }
    }
}

impl StepLoop<'_> {
    fn execute(&mut self, command: Command) {
        match command {
            Command::Submit { requests, submission } => self.submit(requests, submission),
            Command::Cancel(id, choice) => {
                let Some(submission) = self.submissions.get(&id) else { return };
                for &id in &submission.requests {
                    let owner = self.owners.get(&id);
                    if choice.is_none() || owner.map(|owner| owner.1) == choice {
                        self.engine.cancel(id);
                    }
                }
            }
            Command::Wake | Command::Stop => {}
        }
    }

    fn submit(&mut self, requests: Vec<Request>, mut submission: Submission) {
        for (choice, request) in requests.into_iter().enumerate() {
            match self.engine.submit_choice(request, choice) {
                Ok(id) => {
                    submission.requests.push(id);
                    self.owners.insert(id, (submission.id, choice));
                }
                Err(error) => {
                    let event = Event::Failed { id: RequestId(u64::MAX), error };
                    let _ = submission.events.try_send(ChoiceEvent { choice, event });
                }
            }
        }
        if !submission.requests.is_empty() {
            self.submissions.insert(submission.id, submission);
        }
    }

    /// Pauses requests whose client is not reading, and cancels those whose handler has ended.
    fn apply_backpressure(&mut self) {
        for submission in self.submissions.values_mut() {
            let Submission { events, paused, is_paused, requests, .. } = submission;
            if events.is_closed() {
                requests.iter().for_each(|&id| self.engine.cancel(id));
                continue;
            }
            let capacity = events.capacity();
            let is_full = capacity < STEP_EVENTS * requests.len().max(1);
            if is_full && !*is_paused {
                paused.store(true, Ordering::Release);
                *is_paused = true;
                requests.iter().for_each(|&id| self.engine.pause(id));
                self.metrics.pauses.add(1);
            } else if *is_paused && capacity >= events.max_capacity() / 2 {
                paused.store(false, Ordering::Release);
                *is_paused = false;
                requests.iter().for_each(|&id| self.engine.resume(id));
            }
        }
    }

    /// Whether there are no requests, or all are paused until a client reads.
    fn has_nothing_to_do(&self) -> bool {
        let waits = |one: &Submission| one.is_paused && !one.events.is_closed();
        self.engine.is_idle()
            || (!self.submissions.is_empty() && self.submissions.values().all(waits))
    }

    /// Reserves the place of an event in its channel.
    fn route(&mut self, event: Event) {
        let (id, is_last) = match &event {
            Event::Prefill { id, .. } | Event::Token { id, .. } => (*id, false),
            Event::Finished { id, .. } | Event::Failed { id, .. } => (*id, true),
        };
        let Some(&(submission_id, choice)) = self.owners.get(&id) else { return };
        let Some(submission) = self.submissions.get_mut(&submission_id) else { return };
        // A channel without room belongs to a handler that is gone: requests of slow clients were paused.
        match submission.events.clone().try_reserve_owned() {
            Ok(place) => self.deliveries.push((place, ChoiceEvent { choice, event })),
            Err(_) if !is_last => self.engine.cancel(id),
            Err(_) => {}
        }
        if is_last {
            self.owners.remove(&id);
            submission.requests.retain(|&other| other != id);
            if submission.requests.is_empty() {
                self.submissions.remove(&submission_id);
            }
        }
    }

    /// Ends the requests under way after an error of the engine itself, which continues with the next.
    fn fail_all(&mut self, message: &str) {
        tracing::error!("the engine could not step: {message}");
        for (id, (submission_id, choice)) in self.owners.drain() {
            self.engine.cancel(id);
            if let Some(submission) = self.submissions.get(&submission_id) {
                let error = engine::Error::Step { message: message.to_owned() };
                let event = Event::Failed { id, error };
                if let Ok(place) = submission.events.clone().try_reserve_owned() {
                    self.deliveries.push((place, ChoiceEvent { choice, event }));
                }
            }
        }
        self.submissions.clear();
    }
}
