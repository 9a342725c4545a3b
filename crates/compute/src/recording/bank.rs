//! Experts as a device finds them: complete layers from a table, others divided between device and host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bank::{
    Expert, ExpertBank, Parting, Residency, ResidentExpert, ResidentVisit, SlabExpert, Take, Trial,
    Turn, Visit,
};
use crate::{Error, Tally};

/// A layer whose experts are all on the device.
pub(super) struct CompleteLayer {
    experts: Arc<[ResidentExpert]>,
    /// Of nothing: what a device chose, the host is not told.
    tally: Tally,
}

impl CompleteLayer {
    pub(super) fn new(layer: usize, experts: Arc<[ResidentExpert]>) -> CompleteLayer {
        let count = |index: usize| if index == layer { experts.len() } else { 0 };
        CompleteLayer { tally: Tally::new((0..=layer).map(count)), experts }
    }
}

impl ExpertBank for CompleteLayer {
    fn visit<'a>(
        &'a self,
        _layer: usize,
        wanted: &'a [u32],
        _rows: usize,
        _trials: &'a [Trial],
    ) -> Box<dyn Visit + 'a> {
        Box::new(ResidentVisit::new(&self.experts, wanted))
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }
}

/// The experts of a bank whose layers are divided anew at each visit.
pub(super) struct DividedLayers<'b> {
    pub(super) bank: &'b dyn ExpertBank,
    pub(super) residency: &'b dyn Residency,
}

impl ExpertBank for DividedLayers<'_> {
    fn visit<'a>(
        &'a self,
        layer: usize,
        wanted: &'a [u32],
        rows: usize,
        trials: &'a [Trial],
    ) -> Box<dyn Visit + 'a> {
        let parting = self.residency.settle_layer(layer, wanted, rows, trials);
        Box::new(DividedVisit { parting, is_device_done: AtomicBool::new(false) })
    }

    fn tally(&self) -> &Tally {
        self.bank.tally()
    }
}

/// The device's experts first, where they lie; then those of the host as they come.
struct DividedVisit<'a> {
    parting: Box<dyn Parting + 'a>,
    is_device_done: AtomicBool,
}

impl Visit for DividedVisit<'_> {
    fn next(&self, most: usize, wait: bool, take: Take<'_>) -> Turn {
        if !self.is_device_done.swap(true, Ordering::Relaxed) {
            let on_device = self.parting.on_device();
            if !on_device.is_empty() {
                take(&on_device.iter().map(in_place).collect::<Vec<_>>());
                return Turn::Served;
            }
        }
        self.parting.on_host().next(most, wait, take)
    }

    fn failures(&self) -> Vec<(u32, Error)> {
        self.parting.on_host().failures()
    }
}

/// An expert as a device sees it: by the address of its slot.
fn in_place<'a>(expert: &SlabExpert<'a>) -> (u32, Expert<'a>) {
    let (slab, start) = expert.slot;
    // SAFETY: the parting that made it keeps the slot as it is.
    let bytes = unsafe { slab.bytes(start, expert.bytes.len()) };
    (expert.id, expert.place.view(bytes))
}
