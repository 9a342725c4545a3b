//! The routed experts of rows that belong to several threads, each in a step of its own: all put their rows into one
//! room, take experts in turns, each for all rows that want it, and fetch what came of their rows. Who is early begins with
//! its own rows. Every row gets the same bits as in a step on its own. For banks that have all experts in memory.

use std::sync::atomic::{AtomicBool, Ordering};

use machine::cpu::Isa;

use super::super::dot::{self, Rows, Target};
use super::super::matmul::{SharedMut, uses_tiles};
use super::super::meeting::{Seat, Shares};
use super::super::quantise::{Activations, Forms, Writer};
use super::{Call, RoutingTable, Scratch, Shared, group, group_by_demand, sum_row, whole_expert};
use crate::Encoding;
use crate::bank::ExpertBank;

/// What rows of all threads have in common in one layer.
#[derive(Default)]
pub(crate) struct Room {
    /// The round it was prepared for, its k and hidden, and what its experts read.
    round: usize,
    shape: [usize; 2],
    wants: Wants,
    /// `[rows, hidden]`, if an expert wants floats.
    x: Vec<f32>,
    activations: Activations,
    /// `[rows, k]`
    ids: Vec<u32>,
    /// `[rows · k, hidden]`
    slots: Vec<f32>,
    /// `[rows · k]`: whether somebody has begun with it.
    taken: Vec<AtomicBool>,
    shares: Shares,
    /// How members write to it.
    table: Option<Table>,
}

/// Where each member leaves its rows.
#[derive(Clone, Copy)]
struct Table {
    x: SharedMut<f32>,
    writer: Writer<'static>,
    ids: SharedMut<u32>,
    slots: SharedMut<f32>,
    taken: SharedMut<AtomicBool>,
}

/// Pairs that a member has taken, and their rows.
#[derive(Default)]
struct Taken {
    rows: Vec<u32>,
    slots: Vec<u32>,
}

impl Taken {
    /// Takes those of an expert's pairs, counted from `first`, that nobody has begun with, instead of what it had.
    ///
    /// # Safety
    /// The room has them, and the round is not over.
    unsafe fn take(&mut self, table: &Table, first: usize, pairs: &[u32], k: usize) -> Rows<'_> {
        // SAFETY: the caller's promise.
        let is_free = |&&pair: &&u32| unsafe {
            !(*table.taken.at(first + pair as usize)).swap(true, Ordering::Relaxed)
        };
        self.slots.clear();
        self.slots.extend(pairs.iter().filter(is_free));
        self.rows.clear();
        self.rows.extend(self.slots.iter().map(|pair| pair / k as u32));
        Rows { inputs: &self.rows, outputs: &self.slots }
    }
}

/// What experts read of the rows, those in the room and a member's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Wants {
    forms: Forms,
    floats: bool,
}

impl Wants {
    /// What a layer's experts want. The room moves from cache to cache, so little goes there that nobody looks at. The shared
    /// expert looks at a member's own rows, whose copies have the same form.
    fn of(encodings: &[Encoding], shared: Option<&Shared<'_>>, uses_tiles: bool) -> Wants {
        let shared = shared.iter().flat_map(|s| [s.expert.gate.encoding, s.expert.up.encoding]);
        let forms = dot::forms(encodings.iter().copied().chain(shared));
        let floats = encodings.iter().any(|encoding| !encoding.is_integer());
        Wants { forms: Forms { values: uses_tiles, ..forms }, floats }
    }
}

impl Room {
    /// Makes room for a round, unless another member has.
    fn prepare(
        &mut self,
        round: usize,
        isa: Isa,
        seat: [usize; 2],
        k: usize,
        hidden: usize,
        wants: Wants,
    ) -> Table {
        if let Some(table) = self.table.filter(|_| self.round == round) {
            assert_eq!(
                (self.shape, self.wants),
                ([k, hidden], wants),
                "parts of a step that do not make the same operations"
            );
            return table;
        }
        let [rows, members] = seat;
        (self.round, self.shape, self.wants) = (round, [k, hidden], wants);
        self.x.resize(if wants.floats { rows * hidden } else { 0 }, 0.0);
        self.ids.resize(rows * k, 0);
        self.slots.resize(rows * k * hidden, 0.0);
        self.activations.resize(isa, rows, hidden, wants.forms);
        self.taken.clear();
        self.taken.resize_with(rows * k, AtomicBool::default);
        self.shares.reset(members);
        // SAFETY: nothing of the room is resized before the members have left it.
        let writer = unsafe { self.activations.writer().detached() };
        let (x, ids) = (SharedMut(self.x.as_mut_ptr()), SharedMut(self.ids.as_mut_ptr()));
        let (slots, taken) =
            (SharedMut(self.slots.as_mut_ptr()), SharedMut(self.taken.as_mut_ptr()));
        let table = Table { x, writer, ids, slots, taken };
        self.table = Some(table);
        table
    }
}

/// As [`run`](super::run), by all members of a meeting at once. `own` has room for [rows, hidden]: what the shared expert
/// makes of this member's rows.
pub(crate) fn run(
    isa: Isa,
    seat: &mut Seat<Room>,
    scratch: &mut Scratch,
    layer: usize,
    x: &[f32],
    rows: usize,
    routing: &RoutingTable,
    bank: &dyn ExpertBank,
    shared: Option<&Shared<'_>>,
    own: &mut [f32],
    out: &mut [f32],
) {
    let (hidden, k) = (x.len() / rows.max(1), routing.ids.len() / rows.max(1));
    let (me, first, all) = (seat.me, seat.first_row, seat.all_rows);
    assert_eq!(rows, seat.rows, "a part of a step with other rows than it said");
    let sizes = [all, seat.members];
    let wants = Wants::of(bank.input_encodings(layer), shared, uses_tiles(isa, all, hidden));
    let table = {
        let (round, mut room) = seat.next_room();
        room.prepare(round, isa, sizes, k, hidden, wants)
    };
    let own_rows = &mut scratch.activations;
    own_rows.resize(isa, rows, hidden, wants.forms);
    // SAFETY: each member writes its own rows, and looks at those of others when all have.
    unsafe {
        if wants.floats {
            std::slice::from_raw_parts_mut(table.x.at(first * hidden), x.len()).copy_from_slice(x);
        }
        std::slice::from_raw_parts_mut(table.ids.at(first * k), routing.ids.len())
            .copy_from_slice(&routing.ids);
        for (row, x) in x.chunks_exact(hidden).enumerate() {
            own_rows.fill(isa, row, x);
            // A row alone may have another form than several.
            if table.writer.is_like(own_rows) {
                table.writer.copy(own_rows, row, first + row);
            } else {
                table.writer.fill(isa, first + row, x);
            }
        }
    }
    let arrival = seat.arrive();
    // What every row uses is left to the member whose row it is, and done while others may still be on their way.
    let activation = bank.activation();
    if let Some(shared) = shared {
        let target = Target { start: own.as_mut_ptr(), stride: hidden, column: 0 };
        let every: Vec<u32> = (0..rows as u32).collect();
        let call = Call { isa, activation, x, rows, k, target };
        whole_expert(&call, &shared.expert, Rows { inputs: &every, outputs: &every }, own_rows);
    }
    let mut taken = Taken::default();
    // Who is early begins with experts for its own rows: that unpacks some of them twice, but waiting does nothing at all.
    if !seat.are_all_there(&arrival) {
        group_by_demand(scratch, &routing.ids, k);
        // SAFETY: this member's rows.
        let start = unsafe { table.slots.at(first * k * hidden) };
        let target = Target { start, stride: hidden, column: 0 };
        let call = Call { isa, activation, x, rows, k, target };
        for &id in &scratch.wanted {
            if seat.are_all_there(&arrival) {
                break;
            }
            // SAFETY: this member's pairs, in a round it has not left.
            let pairs = unsafe { taken.take(&table, first * k, scratch.pairs_of(id), k) };
            // Others may be there since.
            if !pairs.inputs.is_empty() {
                let expert = bank.resident(layer, id).expect("an expert that stays in memory");
                whole_expert(&call, &expert, pairs, &scratch.activations);
            }
        }
    }
    seat.wait(arrival);
    // Until all have waited again it is only read, but for the slots and who has taken which.
    let room = seat.room();
    let Room { x, activations, ids, shares, .. } = &*room;
    group(scratch, ids, k);
    if me == 0 {
        let (tally, wanted) = (bank.tally(), &scratch.wanted);
        tally.count_union(all, wanted.len());
        if tally.is_watched() {
            wanted.iter().for_each(|&id| tally.count_use(layer, id, scratch.pairs_of(id).len()));
        }
    }
    let target = Target { start: table.slots.0, stride: hidden, column: 0 };
    let call = Call { isa, activation, x, rows: all, k, target };
    // In the order of memory, where they follow one another.
    let wanted = &scratch.wanted;
    shares.work(wanted.len(), me, |task| {
        let id = wanted[task];
        // SAFETY: pairs of all members, in a round that this one has not left.
        let pairs = unsafe { taken.take(&table, 0, scratch.pairs_of(id), k) };
        if !pairs.inputs.is_empty() {
            let expert = bank.resident(layer, id).expect("an expert that stays in memory");
            whole_expert(&call, &expert, pairs, activations);
        }
    });
    seat.wait(seat.arrive());
    // SAFETY: nobody writes slots any more, and who prepares the next round has another room.
    let slots = unsafe {
        std::slice::from_raw_parts(table.slots.at(first * k * hidden), rows * k * hidden)
    };
    for (row, out) in out.chunks_exact_mut(hidden).enumerate() {
        let own = &own[row * hidden..][..hidden];
        sum_row(isa, row, k, slots, &routing.weights, shared.map(|s| (s, own)), out);
    }
}
