//! Which connections may be open, and which of them have a request that is answered.
//!
//! A connection holds a request slot (a seat) from when its request is known until its answer is written, and none while it
//! is idle. When no more may be open, the one that has been idle for longest is closed. When no slot is free, a connection
//! is closed whose client is slow to send its request or to read an answer that is complete; one whose answer is being
//! generated never is. No address has more than half of the slots. What is answered at once needs none.
//!
//! Invariant: accepting a connection never waits, so a new one can always send its request.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::error::ApiError;

/// Connections that may be open, however few files the system grants.
const LEAST_OPEN: usize = 16;
/// How long a client may be slow although its slot is wanted: a lost packet is sent again within it.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes a second that keep a slot from other connections.
const PACE: f64 = 4096.0;
/// How often a request that waits looks for clients that have become slow.
const LOOK: Duration = Duration::from_millis(100);
/// Between two lines in the log about slots.
const QUIET: Duration = Duration::from_secs(30);

/// How many there may be of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    open: usize,
    seats: usize,
    /// Slots of one address.
    seats_each: usize,
    /// Requests that wait for a slot.
    waiting: usize,
    waiting_each: usize,
}

impl Limits {
    /// A quarter has no slot: half of it may wait, and the rest is for connections that have yet to send a request.
    fn of(connections: usize) -> Limits {
        let open = connections.max(LEAST_OPEN);
        let seats = open - open / 4;
        let waiting = open / 8;
        let (seats_each, waiting_each) = (seats.div_ceil(2), waiting.div_ceil(2));
        Limits { open, seats, seats_each, waiting, waiting_each }
    }
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is between requests, or before its first.
    Idle,
    /// Its request waits for a slot.
    Waiting,
    /// Its request is answered at once, without a slot.
    Brief,
    /// Its request is still on its way.
    Receiving,
    /// Its answer is being made.
    Answering,
    /// Its answer is complete and not yet written.
    Finishing,
    /// It takes no more requests.
    Closing,
}

impl Phase {
    fn has_seat(self) -> bool {
        matches!(self, Phase::Receiving | Phase::Answering | Phase::Finishing)
    }

    /// Whether it can be closed without the loss of an answer that is being made.
    fn is_idle(self) -> bool {
        matches!(self, Phase::Idle | Phase::Brief | Phase::Closing)
    }
}

/// An open connection.
struct Entry {
    peer: IpAddr,
    phase: Phase,
    since: Instant,
    /// Bytes that had come and gone when the phase began.
    moved: u64,
    link: Arc<Link>,
}

impl Entry {
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
        self.moved = self.link.moved.load(Ordering::Relaxed);
    }

    /// Whether it waits for a client that does next to nothing.
    fn is_slow(&self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.since);
        let moved = self.link.moved.load(Ordering::Relaxed) - self.moved;
        matches!(self.phase, Phase::Receiving | Phase::Finishing)
            && elapsed >= GRACE
            && (moved as f64) < PACE * elapsed.as_secs_f64()
    }
}

/// What the table and a connection's own task exchange.
#[derive(Debug, Default)]
struct Link {
    /// Bytes read and written.
    moved: AtomicU64,
    /// A request is being answered.
    is_asked: AtomicBool,
    /// The answer is complete, but for writing it.
    is_answered: AtomicBool,
    /// Bytes wait to be written.
    is_blocked: AtomicBool,
    /// A request was answered before all of it had come.
    has_rest: AtomicBool,
    unblocked: Notify,
    /// It was closed for another.
    closed: Notify,
}

/// All connections of a server.
pub(crate) struct Seats {
    limits: Limits,
    table: Mutex<Table>,
    freed: Notify,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Entry>,
    told: Option<Instant>,
}

/// The outcome of requesting a slot.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Seat,
    /// There is none now.
    Wait,
    /// As many wait as may, and all of them came later.
    TurnedAway,
}

impl Seats {
    /// For so many connections at once.
    pub(crate) fn new(connections: usize) -> Arc<Seats> {
        let limits = Limits::of(connections);
        Arc::new(Seats { limits, table: Mutex::default(), freed: Notify::new() })
    }

    /// Accepts a connection; `None` if no other can be closed for it.
    pub(crate) fn open(self: &Arc<Seats>, address: IpAddr) -> Option<Opened> {
        let mut table = self.table();
        while table.open.len() >= self.limits.open {
            table.give_way()?;
        }
        let id = table.next;
        table.next += 1;
        let link = Arc::new(Link::default());
        let (peer, since) = (peer_of(address), Instant::now());
        let entry = Entry { peer, phase: Phase::Idle, since, moved: 0, link: Arc::clone(&link) };
        table.open.insert(id, entry);
        Some(Opened(Place { seats: Arc::clone(self), id, link }))
    }

    /// Closes the least needed connection, for want of files.
    pub(crate) fn make_room(&self) {
        self.table().give_way();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a connection, if need be one that another gives up.
    fn take(&self, id: u64) -> Taken {
        let now = Instant::now();
        let mut table = self.table();
        let limits = self.limits;
        let Some(&Entry { peer, phase, .. }) = table.open.get(&id) else {
            return Taken::TurnedAway;
        };
        if phase == Phase::Brief {
            return Taken::TurnedAway;
        }
        let is_free = if table.count(|entry| entry.phase.has_seat() && entry.peer == peer)
            >= limits.seats_each
        {
            table.evict_slow(now, |entry| entry.peer == peer)
        } else if table.count(|entry| entry.phase.has_seat()) >= limits.seats {
            table.evict_slow(now, |_| true)
        } else {
            true
        };
        if is_free {
            table.enter(id, Phase::Receiving);
            return Taken::Seat;
        }
        if phase != Phase::Waiting {
            table.tell(now, "all request slots are taken: connections of slow clients are closed");
            // Clients give up in time: the newest is the likeliest to be still there.
            let is_waiting = |entry: &Entry| entry.phase == Phase::Waiting;
            if table.count(|entry| is_waiting(entry) && entry.peer == peer) >= limits.waiting_each {
                table.turn_away(|entry| is_waiting(entry) && entry.peer == peer);
            } else if table.count(is_waiting) >= limits.waiting {
                table.turn_away(is_waiting);
            }
            table.enter(id, Phase::Waiting);
        }
        Taken::Wait
    }
}

impl Table {
    fn count(&self, is_meant: impl Fn(&Entry) -> bool) -> usize {
        self.open.values().filter(|entry| is_meant(entry)).count()
    }

    /// The one of these that has been in its phase for longest.
    fn longest(&self, is_meant: impl Fn(&Entry) -> bool) -> Option<u64> {
        let meant = self.open.iter().filter(|(_, entry)| is_meant(entry));
        meant.min_by_key(|(_, entry)| entry.since).map(|(&id, _)| id)
    }

    fn enter(&mut self, id: u64, phase: Phase) {
        if let Some(entry) = self.open.get_mut(&id) {
            entry.enter(phase);
        }
    }

    fn turn_away(&mut self, is_meant: impl Fn(&Entry) -> bool) {
        if let Some(id) = self.longest(is_meant) {
            self.enter(id, Phase::Brief);
        }
    }

    fn evict(&mut self, id: u64) {
        if let Some(entry) = self.open.remove(&id) {
            entry.link.closed.notify_one();
        }
    }

    fn evict_slow(&mut self, now: Instant, is_meant: impl Fn(&Entry) -> bool) -> bool {
        let slow = self.longest(|entry| entry.is_slow(now) && is_meant(entry));
        slow.inspect(|&id| self.evict(id)).is_some()
    }

    /// Closes the idle connection that can best be spared: the oldest of the address with most connections. Without any, one
    /// whose client is slow.
    fn give_way(&mut self) -> Option<()> {
        let now = Instant::now();
        self.tell(now, "the limit of open connections is reached: idle ones are closed");
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for entry in self.open.values() {
            *counts.entry(entry.peer).or_default() += 1;
        }
        let idle = self.open.iter().filter(|(_, entry)| entry.phase.is_idle());
        let spared = idle
            .max_by_key(|(_, entry)| (counts.get(&entry.peer), std::cmp::Reverse(entry.since)))
            .map(|(&id, _)| id)
            .or_else(|| self.longest(|entry| entry.is_slow(now)))?;
        self.evict(spared);
        Some(())
    }

    fn tell(&mut self, now: Instant, line: &str) {
        if self.told.is_none_or(|told| now.saturating_duration_since(told) >= QUIET) {
            self.told = Some(now);
            tracing::warn!("{line}");
        }
    }
}

/// The address whose share a connection counts for. One subscriber has 64 bits of addresses in version 6, and this computer
/// has many.
fn peer_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// An open connection's place in the table, for its service, its bodies and its socket.
#[derive(Clone)]
pub(crate) struct Place {
    seats: Arc<Seats>,
    id: u64,
    link: Arc<Link>,
}

/// The same for its task: the connection counts as long as this is there.
pub(crate) struct Opened(pub(crate) Place);

impl Drop for Opened {
    fn drop(&mut self) {
        let Place { seats, id, .. } = &self.0;
        let entry = seats.table().open.remove(id);
        if entry.is_some_and(|entry| entry.phase.has_seat()) {
            seats.freed.notify_one();
        }
    }
}

impl Place {
    /// Goes from one of these phases to another.
    fn go(&self, from: impl Fn(Phase) -> bool, phase: Phase) {
        let mut table = self.seats.table();
        let Some(entry) = table.open.get_mut(&self.id).filter(|entry| from(entry.phase)) else {
            return;
        };
        let gives_up = entry.phase.has_seat() && !phase.has_seat();
        entry.enter(phase);
        drop(table);
        if gives_up {
            self.seats.freed.notify_one();
        }
    }

    /// A request has come. It continues when the answer before it is written.
    pub(crate) async fn ask(&self) {
        loop {
            let unblocked = self.link.unblocked.notified();
            if !self.link.is_blocked.load(Ordering::Acquire) {
                break;
            }
            unblocked.await;
        }
        self.link.is_asked.store(true, Ordering::Relaxed);
        self.link.has_rest.store(false, Ordering::Relaxed);
        self.go(|_| true, Phase::Idle);
    }

    /// Its answer needs no slot.
    pub(crate) fn stand(&self) {
        self.go(|_| true, Phase::Brief);
    }

    /// Takes a slot, or waits for one, but not for longer than `patience`.
    pub(crate) async fn sit(&self, patience: Duration) -> Result<(), ApiError> {
        let deadline = Instant::now() + patience;
        loop {
            let freed = self.seats.freed.notified();
            match self.seats.take(self.id) {
                Taken::Seat => return Ok(()),
                Taken::Wait if Instant::now() < deadline => {}
                Taken::Wait | Taken::TurnedAway => break,
            }
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
        self.stand();
        let message = "too many requests are sent and answered at once: try again in 1 s";
        Err(ApiError::unavailable("too_many_connections", message, 1))
    }

    /// All of its request is there, or no more of it is wanted.
    pub(crate) fn received(&self, has_rest: bool) {
        self.link.has_rest.store(has_rest, Ordering::Relaxed);
        self.go(|phase| phase == Phase::Receiving, Phase::Answering);
    }

    /// Its answer is complete.
    pub(crate) fn answered(&self) {
        self.go(Phase::has_seat, Phase::Finishing);
        self.link.is_answered.store(true, Ordering::Release);
    }

    /// Bytes have come or gone.
    pub(crate) fn moved(&self, bytes: usize) {
        self.link.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Its client does not read what is to be written.
    pub(crate) fn blocked(&self) {
        self.link.is_blocked.store(true, Ordering::Release);
    }

    /// Everything is written. Whether an answer has ended with it.
    pub(crate) fn flushed(&self) -> bool {
        let link = &*self.link;
        let has_ended = link.is_answered.load(Ordering::Acquire);
        if has_ended {
            link.is_answered.store(false, Ordering::Relaxed);
            link.is_asked.store(false, Ordering::Relaxed);
            self.go(|_| true, Phase::Idle);
        }
        if link.is_blocked.load(Ordering::Relaxed) {
            link.is_blocked.store(false, Ordering::Release);
            link.unblocked.notify_waiters();
        }
        has_ended
    }

    /// It takes no more requests, and only lets its client read.
    pub(crate) fn closing(&self) {
        self.go(|_| true, Phase::Closing);
    }

    /// Whether a request is being answered.
    pub(crate) fn is_asked(&self) -> bool {
        self.link.is_asked.load(Ordering::Relaxed)
    }

    /// Whether a request was answered before all of it had come.
    pub(crate) fn has_rest(&self) -> bool {
        self.link.has_rest.load(Ordering::Relaxed)
    }

    /// Until it has to close.
    pub(crate) async fn given_up(&self) {
        self.link.closed.notified().await;
    }
}

#[cfg(test)]
#[path = "seats_tests.rs"]
mod tests;
