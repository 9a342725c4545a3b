//! The bank a streamed model runs on: slots of memory, a policy that assigns them, a reader that fills them.
//!
//! One visit at a time. A visit takes its schedule from the cache, starts every read it can at once and
//! hands experts over as they are in memory; a slot is written only while no visit holds it and read only
//! after all its reads have ended well. All memory is taken when the bank is made.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use compute::{ExpertBank, Parting, Residency, ResidentExpert, Slab, Store, Tally, Trial, Visit};

use crate::cache::Cache;
use crate::device::Device;
use crate::geometry::{Geometry, LayerSize, Slots};
use crate::reader::{DiskReader, Method, Priority, Read};
use crate::record::LayerExperts;
use crate::routing_log::{Header, LOG_VERSION, RoutingLog};
use crate::state::{BankState, SlotState};
use crate::statistics::{Activity, Missed, Statistics, VisitRecord};
use crate::table::{Entry, ExpertTable};
use crate::visit::StreamedVisit;
use crate::{Error, Result};

/// What a bank is made of.
#[derive(Clone, Debug)]
pub struct BankOptions {
    /// Slots of each size.
    pub slots: Slots,
    /// How reads are queued.
    pub method: Method,
    /// How long a read may take.
    pub stall: Duration,
    /// Whether to read experts that a layer's router chooses before the layer's mixer has run.
    pub look_ahead: bool,
}

/// Experts that are read when they are wanted.
#[derive(Debug)]
pub struct StreamedBank {
    /// Before the arena: dropping it ends the reads into it.
    pub(crate) reader: DiskReader,
    pub(crate) core: Arc<BankCore>,
    pub(crate) experts: ExpertTable,
    pub(crate) geometry: Geometry,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) arena: SlotArena,
    pub(crate) tally: Tally,
    options: BankOptions,
    /// Held during a visit.
    turn: Mutex<()>,
}

/// What visitors and reader threads share.
#[derive(Debug)]
pub(crate) struct BankCore {
    state: Mutex<BankState>,
    pub(crate) landed: Condvar,
}

impl BankCore {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BankState> {
        // A panic elsewhere leaves counters that may be off by one visit, not memory that is unsafe:
        // reads in flight are counted slot by slot.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of all slots.
#[derive(Debug)]
pub(crate) struct SlotArena {
    slab: Slab,
    /// By slot: where it begins and how long it is.
    slots: Vec<(usize, usize)>,
}

impl SlotArena {
    fn new(geometry: &Geometry, slots: &Slots, store: &dyn Store) -> Result<SlotArena> {
        let mut places = Vec::new();
        let mut bytes = 0;
        for (class, count) in geometry.classes().iter().zip(&slots.classes) {
            for _ in 0..count.kept + count.staging {
                places.push((bytes, class.slot_bytes));
                bytes += class.slot_bytes;
            }
        }
        let mut slab = store.slab(bytes).map_err(|source| Error::Memory { bytes, source })?;
        slab.prefault();
        Ok(SlotArena { slab, slots: places })
    }

    /// How long a slot is, on average.
    pub(crate) fn mean_bytes(&self) -> usize {
        let bytes: usize = self.slots.iter().map(|&(_, len)| len).sum();
        bytes / self.slots.len().max(1)
    }

    /// How long this slot is.
    pub(crate) fn slot_len(&self, slot: u32) -> usize {
        self.slots[slot as usize].1
    }

    /// The slab, and where a slot begins in it.
    pub(crate) fn address(&self, slot: u32) -> (&Slab, usize) {
        (&self.slab, self.slots[slot as usize].0)
    }

    /// Where a byte of a slot is.
    pub(crate) fn target(&self, slot: u32, offset: usize) -> NonNull<u8> {
        let (start, len) = self.slots[slot as usize];
        assert!(offset < len, "an offset outside its slot");
        self.slab.target(start + offset)
    }

    /// A slot's bytes.
    ///
    /// # Safety
    /// No read into the slot may be in flight or begin while the slice lives.
    pub(crate) unsafe fn slot(&self, slot: u32) -> &[u8] {
        let (start, len) = self.slots[slot as usize];
        // SAFETY: the caller's promise.
        unsafe { self.slab.bytes(start, len) }
    }
}

impl StreamedBank {
    /// A bank with empty slots in a backend's memory over the experts of `layers` (`None` for layers without), read from
    /// `device`.
    pub fn new(
        layers: Vec<Option<LayerExperts>>,
        device: Arc<dyn Device>,
        options: BankOptions,
        store: &dyn Store,
    ) -> Result<StreamedBank> {
        let sizes: Vec<_> = layers.iter().map(|layer| layer.as_ref().map(LayerSize::new)).collect();
        let geometry = Geometry::new(&sizes);
        let arena = SlotArena::new(&geometry, &options.slots, store)?;
        let cache = Cache::new(geometry.layered(&options.slots));
        assert_eq!(cache.slot_count(), arena.slots.len(), "more slots than experts");
        let slots = (0..cache.slot_count()).map(|_| SlotState::default()).collect();
        let core = Arc::new(BankCore {
            state: Mutex::new(BankState::new(cache, slots)),
            landed: Condvar::new(),
        });
        let done = {
            let core = Arc::clone(&core);
            Arc::new(move |ticket: u64, outcome: Result<()>| {
                let last = core.lock().land(ticket as u32, outcome);
                if last {
                    core.landed.notify_all();
                }
            })
        };
        let reader = DiskReader::start_or_by_threads(Arc::clone(&device), options.method, done)?;
        let tally = Tally::new(sizes.iter().map(|size| size.map_or(0, |size| size.experts)));
        Ok(StreamedBank {
            reader,
            core,
            experts: ExpertTable::new(layers, &geometry),
            geometry,
            device,
            arena,
            tally,
            options,
            turn: Mutex::new(()),
        })
    }

    /// What it was made of.
    pub fn options(&self) -> &BankOptions {
        &self.options
    }

    /// Sizes of its experts.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The files it reads.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The experts of each layer.
    pub fn layers(&self) -> &[Option<LayerExperts>] {
        self.experts.layers()
    }

    /// What happened so far.
    pub fn statistics(&self) -> Statistics {
        let state = self.core.lock();
        Statistics {
            hits: state.cache.counts().hits,
            misses: state.cache.counts().misses,
            failed: state.failed,
            ahead: state.ahead,
            ahead_used: state.cache.counts().staged,
            waited: state.waited,
            reads: self.reader.statistics(),
        }
    }

    /// What had to be read since the last call, by how deep the rows were drafted that wanted it.
    pub fn take_missed(&self) -> Missed {
        std::mem::take(&mut self.core.lock().missed)
    }

    /// The experts that are kept in memory now, or are on their way there: layer and index, in order.
    pub fn kept(&self) -> Vec<(usize, u32)> {
        let mut keys: Vec<u32> = self.core.lock().cache.kept().collect();
        keys.sort_unstable();
        let mut keys = keys.into_iter().peekable();
        let mut kept = Vec::with_capacity(keys.len());
        // Keys are numbered layer by layer.
        for (index, layer) in self.experts.layers().iter().enumerate() {
            let (Some(layer), Some((_, first))) = (layer, self.geometry.layer(index)) else {
                continue;
            };
            let end = first + layer.layout.experts() as u32;
            while let Some(key) = keys.next_if(|&key| key < end) {
                kept.push((index, key - first));
            }
        }
        kept
    }

    /// Writes which experts each visit wants to a file, from now on.
    pub fn record_routing(&self, path: &Path, fixed_bytes: u64) -> Result<()> {
        let layers =
            self.experts.layers().iter().map(|layer| layer.as_ref().map(LayerSize::new)).collect();
        let slots = self.options.slots.clone();
        let header = Header { version: LOG_VERSION, layers, slots, fixed_bytes };
        self.core.lock().log = Some(RoutingLog::create(path, &header)?);
        Ok(())
    }

    /// Ends the recording of routing; an error if the file could not be written to its end.
    pub fn finish_routing(&self) -> Result<()> {
        self.core.lock().log.take().map_or(Ok(()), RoutingLog::finish)
    }

    /// Remembers each visit from now on, and what threads did in it; or no more.
    pub fn observe(&self, on: bool) {
        let mut state = self.core.lock();
        state.visits = on.then(Vec::new);
        state.activities = Vec::new();
    }

    /// What threads did in the visits since the last call, if they are observed.
    pub fn take_activities(&self) -> Vec<Activity> {
        std::mem::take(&mut self.core.lock().activities)
    }

    /// The visits since the last call, if they are observed.
    pub fn take_visits(&self) -> Vec<VisitRecord> {
        self.core.lock().visits.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Hands over whatever experts are in slots instead of the wanted ones, without reading or counting:
    /// what is computed is worthless, but takes the time it would take if everything were in memory.
    pub fn rehearse(&self, on: bool) {
        self.core.lock().rehearsing = on;
    }

    /// The reader, for traces.
    pub fn reader(&self) -> &DiskReader {
        &self.reader
    }

    /// Adds the reads that bring an expert into a slot, labelled with its layer and index: their bytes.
    pub(crate) fn reads_into(&self, key: u32, slot: u32, reads: &mut Vec<Read>) -> u64 {
        let Entry { layer, expert, record } = self.experts.entry(key);
        reads.extend(record.pieces().map(|piece| Read {
            file: piece.file,
            offset: piece.offset,
            target: self.arena.target(slot, piece.slot_offset),
            len: piece.len,
            needed: piece.needed,
            ticket: u64::from(slot),
            label: [*layer as u32, *expert],
        }));
        record.slot_bytes() as u64
    }

    /// Waits until no visit is under way; no other begins while the guard lives.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExpertBank for StreamedBank {
    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn visit<'a>(
        &'a self,
        layer: usize,
        wanted: &'a [u32],
        rows: usize,
        trials: &'a [Trial],
    ) -> Box<dyn Visit + 'a> {
        Box::new(self.begin_visit(layer, wanted, rows, trials))
    }

    fn residency(&self) -> Option<&dyn Residency> {
        Some(self)
    }

    fn settle(&self, accepted: u64) {
        self.core.lock().settle(accepted);
    }

    fn looks_ahead(&self) -> bool {
        self.options.look_ahead
    }

    fn expect(&self, layer: usize, likely: &[u32]) {
        let Some((_, first_key)) = self.geometry.layer(layer) else { return };
        let mut state = self.core.lock();
        if !state.trusts_guesses() {
            return;
        }
        let mut reads = Vec::new();
        for &expert in likely {
            let Some(slot) = state.stage(first_key + expert) else { continue };
            let before = reads.len();
            let bytes = self.reads_into(first_key + expert, slot, &mut reads);
            state.begin_ahead(slot, first_key + expert, reads.len() - before, bytes);
            self.tally.count_read(layer, expert);
        }
        drop(state);
        if !reads.is_empty() {
            // SAFETY: as for a visit's reads; a staged slot is used by no step.
            unsafe { self.reader.submit(&reads, Priority::Ahead) }
        }
    }
}

impl StreamedBank {
    fn begin_visit<'a>(
        &'a self,
        layer: usize,
        wanted: &[u32],
        rows: usize,
        trials: &[Trial],
    ) -> StreamedVisit<'a> {
        let turn = self.turn();
        let (class, first_key) = self.geometry.layer(layer).expect("a layer with experts");
        let stall = self.options.stall;
        let held = Vec::new();
        let visit = StreamedVisit { bank: self, layer, first_key, stall, held, _turn: turn };
        let mut state = self.core.lock();
        if state.rehearsing {
            state.rehearse(wanted, first_key, class, &self.geometry, &self.options.slots);
        } else {
            self.tally.count_union(rows, wanted.len());
            state.begin(layer, rows, wanted, trials, first_key);
            visit.start(&mut state);
        }
        drop(state);
        visit
    }
}

/// Experts that are found go to the device, which reads the slots; the others to the host, as they land.
impl Residency for StreamedBank {
    fn resident(&self, _layer: usize) -> Option<Arc<[ResidentExpert]>> {
        None
    }

    fn settle_layer<'a>(
        &'a self,
        layer: usize,
        wanted: &'a [u32],
        rows: usize,
        trials: &'a [Trial],
    ) -> Box<dyn Parting + 'a> {
        let mut visit = self.begin_visit(layer, wanted, rows, trials);
        visit.hold_ready();
        Box::new(visit)
    }
}
