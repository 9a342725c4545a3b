//! Where requests meet the engine: orders in, events out, one thread that steps.
//!
//! The desk owns the engine. Handlers send it orders and read events from a bounded channel each; a
//! channel that is nearly full pauses its own request and no other, and a request whose client no longer listens is
//! cancelled at the next step. The events of a step are handed out together, by a task among the handlers: waking them one by
//! one, the engine's thread would be interrupted by each. An error of the engine itself ends the requests under way, not the server.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use engine::{Engine, Event, Request, RequestId};
use tokio::sync::mpsc;

use crate::metrics::Metrics;

/// Events that may wait for a reader.
const CHANNEL_EVENTS: usize = 192;
/// Room that a step may need: a request with less is paused. A pass may verify 63 drafted tokens, and the answer
/// may end with them.
const STEP_EVENTS: usize = 72;
/// A reader that has caught up must find its request fit to go on.
const _: () = assert!(CHANNEL_EVENTS / 2 >= STEP_EVENTS);
/// How long an idle desk sleeps before it looks at its requests again.
const IDLE: Duration = Duration::from_millis(250);

/// What the desk is told.
enum Order {
    Submit {
        requests: Vec<Request>,
        outlet: Outlet,
    },
    /// All answers, or the one of this number.
    Cancel(Ticket, Option<usize>),
    /// A reader has caught up.
    Wake,
    /// End when told, with everything that is still under way cancelled.
    Stop,
}

/// Names all answers to one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ticket(u64);

/// The desk's end of a channel.
struct Outlet {
    ticket: Ticket,
    sender: mpsc::Sender<Told>,
    paused: Arc<AtomicBool>,
}

/// What happened to one answer of an ask.
#[derive(Debug)]
pub(crate) struct Told {
    /// Which answer.
    pub(crate) choice: usize,
    /// What.
    pub(crate) event: Event,
}

/// An event and its place in the channel that it is for.
type Delivery = (mpsc::OwnedPermit<Told>, Told);

/// Hands out events.
pub(crate) struct Post(mpsc::UnboundedReceiver<Vec<Delivery>>);

impl Post {
    /// Until the desk is closed.
    pub(crate) async fn deliver(mut self) {
        while let Some(deliveries) = self.0.recv().await {
            for (place, told) in deliveries {
                place.send(told);
            }
        }
    }
}

/// A handle for handlers.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    orders: Sender<Order>,
    next: Arc<std::sync::atomic::AtomicU64>,
}

/// A handler's end of a channel. Dropping it cancels the answers.
#[derive(Debug)]
pub(crate) struct Inlet {
    ticket: Ticket,
    receiver: mpsc::Receiver<Told>,
    paused: Arc<AtomicBool>,
    orders: Sender<Order>,
}

/// A desk whose engine is still to come.
pub(crate) struct OpenDesk {
    orders: Receiver<Order>,
    /// No more than there are places for in the channels.
    post: mpsc::UnboundedSender<Vec<Delivery>>,
}

/// A new desk: the handle, what the engine's thread needs, and what must run beside the handlers.
pub(crate) fn open() -> (Desk, OpenDesk, Post) {
    let (sender, receiver) = channel();
    let (post, deliveries) = mpsc::unbounded_channel();
    let desk = Desk { orders: sender, next: Arc::default() };
    (desk, OpenDesk { orders: receiver, post }, Post(deliveries))
}

impl Desk {
    /// Hands in the answers of one ask.
    pub(crate) fn submit(&self, requests: Vec<Request>) -> Inlet {
        let ticket = Ticket(self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, receiver) = mpsc::channel(CHANNEL_EVENTS * requests.len().max(1));
        let paused = Arc::new(AtomicBool::new(false));
        let outlet = Outlet { ticket, sender, paused: Arc::clone(&paused) };
        // A desk that is gone drops the outlet: the inlet's channel ends, and says so.
        let _ = self.orders.send(Order::Submit { requests, outlet });
        Inlet { ticket, receiver, paused, orders: self.orders.clone() }
    }

    /// Ends the loop.
    pub(crate) fn stop(&self) {
        let _ = self.orders.send(Order::Stop);
    }
}

impl Inlet {
    /// The next thing told; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        let told = self.receiver.recv().await;
        self.wake();
        told
    }

    /// What is told already.
    pub(crate) fn try_next(&mut self) -> Option<Told> {
        let told = self.receiver.try_recv().ok()?;
        self.wake();
        Some(told)
    }

    /// Stops generating an answer; what was told before and the end still come.
    pub(crate) fn cancel(&self, choice: usize) {
        let _ = self.orders.send(Order::Cancel(self.ticket, Some(choice)));
    }

    fn wake(&self) {
        // Places that are spoken for count, as they do for the desk.
        let half_empty = self.receiver.capacity() >= self.receiver.max_capacity() / 2;
        if half_empty && self.paused.swap(false, Ordering::AcqRel) {
            let _ = self.orders.send(Order::Wake);
        }
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Cancel(self.ticket, None));
    }
}

/// Answers under way of one ask.
struct Client {
    outlet: Outlet,
    /// Requests that have not ended.
    requests: Vec<RequestId>,
    is_paused: bool,
}

/// The loop's own state.
struct Floor<'a> {
    engine: &'a mut Engine,
    clients: HashMap<Ticket, Client>,
    owners: HashMap<RequestId, (Ticket, usize)>,
    /// What this step tells.
    deliveries: Vec<Delivery>,
    metrics: &'a Metrics,
}

impl OpenDesk {
    /// Steps the engine until [`Desk::stop`]. `after_step` sees the engine between steps.
    pub(crate) fn run(
        self,
        engine: &mut Engine,
        metrics: &Metrics,
        mut after_step: impl FnMut(&Engine, Option<Duration>),
    ) {
        let mut floor = Floor {
            engine,
            clients: HashMap::new(),
            owners: HashMap::new(),
            deliveries: Vec::new(),
            metrics,
        };
        loop {
            let waits = floor.engine.is_idle() || floor.all_paused();
            let first = if waits {
                match self.orders.recv_timeout(IDLE) {
                    Ok(order) => Some(order),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            } else {
                self.orders.try_recv().ok()
            };
            let orders =
                first.into_iter().chain(std::iter::from_fn(|| self.orders.try_recv().ok()));
            for order in orders {
                if matches!(order, Order::Stop) {
                    return;
                }
                floor.carry_out(order);
            }
            floor.mind_the_readers();
            if floor.engine.is_idle() || floor.all_paused() {
                after_step(floor.engine, None);
                continue;
            }
            let start = Instant::now();
            // A panic is a bug of ours that one request may have found; the others should not pay for it.
            match catch_unwind(AssertUnwindSafe(|| floor.engine.step())) {
                Ok(Ok(events)) => events.into_iter().for_each(|event| floor.tell(event)),
                Ok(Err(error)) => floor.fail_all(&error.to_string()),
                Err(_) => floor.fail_all("an internal error"),
            }
            if !floor.deliveries.is_empty() {
                // Without a task that hands them out there is none that reads them.
                let _ = self.post.send(std::mem::take(&mut floor.deliveries));
            }
            after_step(floor.engine, Some(start.elapsed()));
        }
    }
}

impl Floor<'_> {
    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Submit { requests, outlet } => self.submit(requests, outlet),
            Order::Cancel(ticket, choice) => {
                let Some(client) = self.clients.get(&ticket) else { return };
                for &id in &client.requests {
                    let is_meant =
                        choice.is_none() || self.owners.get(&id).map(|owner| owner.1) == choice;
                    if is_meant {
                        self.engine.cancel(id);
                    }
                }
            }
            Order::Wake | Order::Stop => {}
        }
    }

    fn submit(&mut self, requests: Vec<Request>, outlet: Outlet) {
        let ticket = outlet.ticket;
        let mut client = Client { outlet, requests: Vec::new(), is_paused: false };
        for (choice, request) in requests.into_iter().enumerate() {
            match self.engine.submit_choice(request, choice) {
                Ok(id) => {
                    client.requests.push(id);
                    self.owners.insert(id, (ticket, choice));
                }
                Err(error) => {
                    let event = Event::Failed { id: RequestId(u64::MAX), error };
                    let _ = client.outlet.sender.try_send(Told { choice, event });
                }
            }
        }
        if !client.requests.is_empty() {
            self.clients.insert(ticket, client);
        }
    }

    /// Pauses who does not read, cancels who is gone.
    fn mind_the_readers(&mut self) {
        for client in self.clients.values_mut() {
            let Client { outlet, requests, is_paused } = client;
            if outlet.sender.is_closed() {
                requests.iter().for_each(|&id| self.engine.cancel(id));
                continue;
            }
            let capacity = outlet.sender.capacity();
            let is_full = capacity < STEP_EVENTS * requests.len().max(1);
            if is_full && !*is_paused {
                outlet.paused.store(true, Ordering::Release);
                *is_paused = true;
                requests.iter().for_each(|&id| self.engine.pause(id));
                self.metrics.pauses.add(1);
            } else if *is_paused && capacity >= outlet.sender.max_capacity() / 2 {
                outlet.paused.store(false, Ordering::Release);
                *is_paused = false;
                requests.iter().for_each(|&id| self.engine.resume(id));
            }
        }
    }

    /// Whether nothing can go on until a reader reads.
    fn all_paused(&self) -> bool {
        !self.clients.is_empty()
            && self
                .clients
                .values()
                .all(|client| client.is_paused && !client.outlet.sender.is_closed())
    }

    fn tell(&mut self, event: Event) {
        let (id, is_last) = match &event {
            Event::Prefill { id, .. } | Event::Token { id, .. } => (*id, false),
            Event::Finished { id, .. } | Event::Failed { id, .. } => (*id, true),
        };
        let Some(&(ticket, choice)) = self.owners.get(&id) else { return };
        let Some(client) = self.clients.get_mut(&ticket) else { return };
        // A channel without room belongs to a reader that is gone: readers that are slow were paused.
        match client.outlet.sender.clone().try_reserve_owned() {
            Ok(place) => self.deliveries.push((place, Told { choice, event })),
            Err(_) if !is_last => self.engine.cancel(id),
            Err(_) => {}
        }
        if is_last {
            self.owners.remove(&id);
            client.requests.retain(|&other| other != id);
            if client.requests.is_empty() {
                self.clients.remove(&ticket);
            }
        }
    }

    /// The engine itself is in trouble: requests under way are told, and it goes on with the next.
    fn fail_all(&mut self, message: &str) {
        tracing::error!("the engine could not step: {message}");
        for (id, (ticket, choice)) in self.owners.drain() {
            self.engine.cancel(id);
            if let Some(client) = self.clients.get(&ticket) {
                let error = engine::Error::Step { message: message.to_owned() };
                let event = Event::Failed { id, error };
                if let Ok(place) = client.outlet.sender.clone().try_reserve_owned() {
                    self.deliveries.push((place, Told { choice, event }));
                }
            }
        }
        self.clients.clear();
    }
}
