//! Random lives of sequences against a plain model: the list of tokens each of them was fed. What pages and slots
//! hold is read back from the arenas.

use std::collections::BTreeSet;

use compute::memory::{BLOCK, KvFormat, PageId, PageShape, Plane, PlaneOrder, SlotId};
use compute::{HostStore, PageTable};
use proptest::prelude::*;

use super::*;
use crate::LayerPages;

const SLIDING: usize = 2;
const WINDOW: usize = 70;
const KEEP: usize = 5;

/// Pages of so many planes.
fn shape(planes: usize, heads: usize, width: usize) -> PageShape {
    let order = |index| if index == 1 { PlaneOrder::Panels } else { PlaneOrder::Columns };
    let plane = |index| Plane { heads, width, order: order(index), format: KvFormat::F32 };
    PageShape::new((0..planes).map(plane).collect())
}

fn kv(heads: usize, width: usize, window: Option<usize>) -> LayerKind {
    LayerKind::kv(shape(2, heads, width), window)
}

/// Two KV arenas and, if `recurrent`, two recurrent ones; layer 2 slides, the last layer shares.
fn layout(recurrent: bool) -> Layout {
    let mut layers =
        vec![kv(2, 16, None), kv(1, 16, None), kv(1, 16, Some(WINDOW)), LayerKind::Shared(1)];
    if recurrent {
        layers.extend([37, 37, 5].map(LayerKind::recurrent));
    }
    Layout::new(layers).unwrap()
}

/// Sequences of two codes: plain ones, and such that keep larger pages, the newest keys once more, and an entry for every
/// four positions beside a recurrent state.
fn coded_layout(recurrent: bool) -> Layout {
    let group = |planes, window, rate| PageGroup { pages: shape(planes, 1, 16), window, rate };
    let plain = |window| LayerPages { keys: group(2, window, 1), recent: None, others: Vec::new() };
    let coded = LayerPages {
        keys: group(3, None, 1),
        recent: Some(group(2, Some(WINDOW), 1)),
        others: vec![group(1, None, 4)],
    };
    let floats = if recurrent { 5 } else { 0 };
    let layers = vec![
        LayerKind::Own { pages: vec![plain(None), plain(None)], floats: 0 },
        LayerKind::Own { pages: vec![plain(None), coded], floats },
        LayerKind::Own { pages: vec![plain(Some(WINDOW)), plain(Some(WINDOW))], floats: 0 },
        LayerKind::Shared(1),
    ];
    Layout::new(layers).unwrap()
}

fn capacity(tokens: usize, sequences: usize, checkpoints: usize) -> Capacity {
    Capacity { tokens, sequences, checkpoints, step_tokens: 2 * BLOCK }
}

fn memory(layout: &Layout, capacity: &Capacity) -> Memory {
    Memory::new(layout, capacity, &HostStore).unwrap()
}

/// What a layer stores of an entry, for all heads of a plane: different for every layer, entry, plane, head and dimension,
/// and exact in f32.
fn row(layer: usize, plane: usize, entry: usize, token: u32, width: usize) -> Vec<f32> {
    let facts = [layer as f32, entry as f32, token as f32];
    let sign = if plane == 1 { -1.0 } else { 1.0 + plane as f32 };
    (0..width).map(|i| sign * (facts[i % 3] + (i << 15) as f32)).collect()
}

/// The tokens that entries are of: each takes the last of its positions.
fn entries(tokens: &[u32], rate: usize) -> impl Iterator<Item = (usize, u32)> {
    tokens.chunks_exact(rate).map(move |tokens| tokens[rate - 1]).enumerate()
}

/// The recurrent update: order matters, and every value is exact in f32.
fn integrate(state: f32, layer: usize, token: u32) -> f32 {
    ((state as u32 * 31 + token + layer as u32) % 65_521) as f32
}

/// A memory and its live sequences beside the tokens they were fed.
struct World {
    memory: Memory,
    live: Vec<(Sequence, Vec<u32>)>,
    next_token: u32,
    codes: usize,
}

/// Everything an operation that fails must leave alone.
fn facts(memory: &Memory, sequence: &Sequence) -> impl PartialEq + std::fmt::Debug + use<> {
    let groups = sequence.layers.iter().flat_map(LayerState::pages).map(Pages::table);
    let tables: Vec<_> = groups.map(|table| (table.first_block, table.pages.to_vec())).collect();
    let slots = sequence.layers.iter().filter_map(LayerState::slot);
    let slots: Vec<_> = slots.map(Slot::id).collect();
    let free_pages: Vec<_> = (0..memory.kv().len()).map(|a| memory.free_pages(a)).collect();
    let free_slots: Vec<_> = (0..memory.recurrent_count()).map(|a| memory.free_slots(a)).collect();
    (tables, slots, free_pages, free_slots, sequence.len, sequence.prepared)
}

impl World {
    fn new(layout: &Layout, capacity: &Capacity) -> World {
        let memory = memory(layout, capacity);
        World { memory, live: Vec::new(), next_token: 1, codes: layout.code_count() }
    }

    /// A step of `count` tokens on one sequence: prepare, write every layer, advance.
    fn step(&mut self, index: usize, count: usize) -> Result<()> {
        let before = facts(&self.memory, &self.live[index].0);
        if let Err(error) = self.memory.prepare(&mut self.live[index].0, count) {
            assert_eq!(facts(&self.memory, &self.live[index].0), before);
            return Err(error);
        }
        if count > 0 {
            self.check_exclusive(index, count);
        }

        let (sequence, tokens) = &mut self.live[index];
        let new: Vec<u32> = (self.next_token..).take(count).collect();
        self.next_token += count as u32;
        let all: Vec<u32> = tokens.iter().chain(&new).copied().collect();
        for (layer, state) in sequence.layers.iter().enumerate() {
            for pages in state.pages() {
                let (table, rate) = (pages.table(), pages.place.rate);
                let arena = &mut self.memory.kv_mut()[table.arena];
                let planes = arena.shape().shapes()[table.shape].planes().to_vec();
                for (entry, token) in entries(&all, rate).skip(tokens.len() / rate) {
                    let page = table.pages[entry / BLOCK - table.first_block];
                    let rows = planes.iter().enumerate().map(|(index, plane)| {
                        row(layer, index, entry, token, plane.heads * plane.width)
                    });
                    let rows: Vec<Vec<f32>> = rows.collect();
                    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                    arena.write(table.shape, page, entry % BLOCK, &rows);
                }
            }
            if state.slot().is_some() {
                let (arena, slot) = sequence.recurrent(layer);
                for state in self.memory.recurrent_mut(arena).slot_mut(slot) {
                    *state = new.iter().fold(*state, |s, &t| integrate(s, layer, t));
                }
            }
        }
        sequence.advance(count);
        tokens.extend(new);
        Ok(())
    }

    /// No other sequence holds what the next `count` positions will write.
    fn check_exclusive(&self, index: usize, count: usize) {
        let sequence = &self.live[index].0;
        for (layer, state) in sequence.layers.iter().enumerate() {
            for (_, (other, _)) in self.live.iter().enumerate().filter(|(i, _)| *i != index) {
                let others: Vec<PageTable<'_>> =
                    other.layers.iter().flat_map(LayerState::pages).map(Pages::table).collect();
                for pages in state.pages() {
                    let (table, rate) = (pages.table(), pages.place.rate);
                    let first = sequence.len / rate / BLOCK - table.first_block;
                    let end = ((sequence.len + count) / rate).div_ceil(BLOCK) - table.first_block;
                    let is_same = |other: &&PageTable<'_>| {
                        (other.arena, other.shape) == (table.arena, table.shape)
                    };
                    for page in table.pages.get(first..end).unwrap_or(&[]) {
                        assert!(others.iter().filter(is_same).all(|t| !t.pages.contains(page)));
                    }
                }
                if state.slot().is_some() {
                    assert_ne!(sequence.recurrent(layer), other.recurrent(layer));
                }
            }
        }
    }

    /// Every sequence remembers its tokens, and every page and slot is either free or held.
    fn check(&self) {
        let mut pages: BTreeSet<(usize, usize, PageId)> = BTreeSet::new();
        let mut slots: BTreeSet<(usize, SlotId)> = BTreeSet::new();
        for (sequence, tokens) in &self.live {
            assert_eq!(sequence.len(), tokens.len());
            let mut bytes = 0;
            for (layer, state) in sequence.layers().iter().enumerate() {
                for group in state.pages() {
                    let (table, GroupPlace { rate, window, page_bytes, .. }) =
                        (group.table(), group.place);
                    let first = table.first_block * BLOCK;
                    assert!(first == 0 || first + window.unwrap() <= tokens.len());
                    let arena = &self.memory.kv()[table.arena];
                    let shape = &arena.shape().shapes()[table.shape];
                    assert_eq!(shape.bytes(), page_bytes);
                    for (entry, token) in entries(tokens, rate).skip(first) {
                        let page = table.pages[entry / BLOCK - table.first_block];
                        for (index, plane) in shape.planes().iter().enumerate() {
                            let want = row(layer, index, entry, token, plane.heads * plane.width);
                            for (head, want) in want.chunks_exact(plane.width).enumerate() {
                                let slot = entry % BLOCK;
                                let stored = arena.read(table.shape, page, slot, index, head);
                                assert_eq!(stored, want);
                            }
                        }
                    }
                    let held = table.pages.iter().map(|&page| (table.arena, table.shape, page));
                    pages.extend(held);
                    bytes += table.pages.len() * page_bytes;
                }
                if state.slot().is_some() {
                    let (arena, slot) = sequence.recurrent(layer);
                    let want = tokens.iter().fold(0.0, |s, &t| integrate(s, layer, t));
                    let stored = self.memory.recurrent(arena).slot(slot);
                    assert!(stored.iter().all(|&state| state == want));
                    slots.insert((arena, slot));
                    bytes += self.memory.recurrent(arena).slot_bytes();
                }
                if let LayerState::Shared(target) = state {
                    assert_eq!(sequence.kv(layer).pages, sequence.kv(*target).pages);
                }
            }
            assert_eq!(sequence.bytes(), bytes);
        }
        self.check_bytes(&pages);
        let mut free_bytes = self.memory.bytes();
        let chunks: BTreeSet<(usize, usize)> = pages
            .iter()
            .map(|&(arena, shape, page)| {
                let size = self.memory.kv()[arena].shape().chunk_pages(shape);
                (arena, page.0 as usize / size)
            })
            .collect();
        for (arena, kv) in self.memory.kv().iter().enumerate() {
            let used = chunks.iter().filter(|chunk| chunk.0 == arena).count();
            free_bytes -= used * kv.shape().chunk_bytes();
        }
        for arena in 0..self.memory.recurrent_count() {
            let used = slots.iter().filter(|slot| slot.0 == arena).count();
            let count = self.memory.recurrent(arena).slot_count();
            assert_eq!(used + self.memory.free_slots(arena), count);
            free_bytes -= used * self.memory.recurrent(arena).slot_bytes();
        }
        assert_eq!(self.memory.free_bytes(), free_bytes);
    }

    /// No two pages have a byte in common.
    fn check_bytes(&self, pages: &BTreeSet<(usize, usize, PageId)>) {
        let range = |&(arena, shape, page): &(usize, usize, PageId)| {
            let of = self.memory.kv()[arena].shape();
            let (size, bytes) = (of.chunk_pages(shape), of.shapes()[shape].bytes());
            let page = page.0 as usize;
            let start = page / size * of.chunk_bytes() + page % size * bytes;
            (arena, start, start + bytes)
        };
        let mut ranges: Vec<_> = pages.iter().map(range).collect();
        ranges.sort_unstable();
        let apart =
            |pair: &[(usize, usize, usize)]| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1;
        assert!(ranges.windows(2).all(apart));
    }

    fn run(&mut self, op: &Op) {
        let count = self.live.len();
        match *op {
            Op::New { code } => match self.memory.sequence_of(CodeId(code % self.codes)) {
                Ok(sequence) => self.live.push((sequence, Vec::new())),
                Err(Error::OutOfSlots { needed, free }) => assert!(needed > free),
                Err(error) => panic!("{error}"),
            },
            _ if count == 0 => {}
            Op::Step { index, tokens } => match self.step(index % count, tokens) {
                Ok(()) => {}
                Err(Error::OutOfPages { needed, free } | Error::OutOfSlots { needed, free }) => {
                    assert!(needed > free);
                }
                Err(error) => panic!("{error}"),
            },
            Op::Abandon { index, tokens, advance } => {
                // A draft: prepared, perhaps written, accepted only in part by a model without recurrent layers.
                if self.memory.recurrent_count() == 0 && self.step(index % count, tokens).is_ok() {
                    let (sequence, fed) = &mut self.live[index % count];
                    sequence.len -= tokens;
                    sequence.prepared = tokens;
                    sequence.advance(advance.min(tokens));
                    fed.truncate(sequence.len);
                }
            }
            Op::Fork { index } => {
                let (sequence, tokens) = &self.live[index % count];
                let fork = (sequence.fork(), tokens.clone());
                self.live.push(fork);
            }
            Op::Restore { index, from } => {
                let (from, tokens) = &self.live[from % count];
                let (checkpoint, tokens) = (from.fork(), tokens.clone());
                self.live[index % count].0 = checkpoint.fork();
                self.live[index % count].1 = tokens;
            }
            Op::Truncate { index, by } => {
                let (sequence, tokens) = &mut self.live[index % count];
                let len = tokens.len().saturating_sub(by);
                let before = facts(&self.memory, sequence);
                match sequence.truncate(len) {
                    Ok(()) => {
                        assert!(self.memory.recurrent_count() == 0 || len == tokens.len());
                        tokens.truncate(len);
                    }
                    Err(Error::RecurrentCannotRewind { from, to }) => {
                        assert!(self.memory.recurrent_count() > 0);
                        assert_eq!((from, to), (tokens.len(), len));
                        assert_eq!(facts(&self.memory, sequence), before);
                    }
                    Err(Error::WindowReleased { layer, oldest, to }) => {
                        assert_eq!((layer == SLIDING || layer == 1, to), (true, len));
                        // (Going back twice may use up what is kept for drafts.)
                        assert!(oldest + WINDOW > len);
                        assert_eq!(facts(&self.memory, sequence), before);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Op::Release { index } => self.live[index % count].0.release_windows(KEEP),
            Op::Drop { index } => drop(self.live.swap_remove(index % count)),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    New { code: usize },
    Step { index: usize, tokens: usize },
    Abandon { index: usize, tokens: usize, advance: usize },
    Fork { index: usize },
    Restore { index: usize, from: usize },
    Truncate { index: usize, by: usize },
    Release { index: usize },
    Drop { index: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let tokens = prop_oneof![3 => 0..4usize, 2 => 1..=BLOCK, 1 => BLOCK..4 * BLOCK];
    let index = 0..8usize;
    prop_oneof![
        2 => (0..2usize).prop_map(|code| Op::New { code }),
        8 => (index.clone(), tokens.clone()).prop_map(|(index, tokens)| Op::Step { index, tokens }),
        2 => (index.clone(), tokens.clone(), 0..BLOCK)
            .prop_map(|(index, tokens, advance)| Op::Abandon { index, tokens, advance }),
        3 => index.clone().prop_map(|index| Op::Fork { index }),
        2 => (index.clone(), index.clone()).prop_map(|(index, from)| Op::Restore { index, from }),
        3 => (index.clone(), tokens).prop_map(|(index, by)| Op::Truncate { index, by }),
        3 => index.clone().prop_map(|index| Op::Release { index }),
        2 => index.prop_map(|index| Op::Drop { index }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_life_keeps_contents_apart_and_loses_nothing(
        recurrent: bool,
        coded: bool,
        tokens in 0..1500usize,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let layout = if coded { coded_layout(recurrent) } else { layout(recurrent) };
        let mut world = World::new(&layout, &capacity(tokens, 3, 2));
        for op in &ops {
            world.run(op);
            world.check();
        }
        world.live.clear();
        prop_assert_eq!(world.memory.free_bytes(), world.memory.bytes());
    }

    /// The promise of [`Capacity`]: any split of its positions fits, however the steps and checkpoints fall.
    #[test]
    fn the_promised_capacity_is_enough(
        sequences in 1..4usize,
        checkpoints in 0..4usize,
        tokens in 1..2000usize,
        steps in prop::collection::vec((0..8usize, 1..=2 * BLOCK, any::<bool>()), 1..80),
        code in prop::option::of(0..2usize),
    ) {
        let layout = match code {
            Some(code) => coded_layout(true).for_code(CodeId(code)),
            None => layout(true),
        };
        let mut world = World::new(&layout, &capacity(tokens, sequences, checkpoints));
        for _ in 0..sequences {
            world.run(&Op::New { code: code.unwrap_or(0) });
        }
        prop_assert_eq!(world.live.len(), sequences);
        let (mut left, mut kept) = (tokens, 0);
        for (index, count, checkpoint) in steps {
            let count = count.min(left);
            world.step(index % sequences, count).unwrap();
            left -= count;
            world.live[index % sequences].0.release_windows(BLOCK);
            if checkpoint && kept < checkpoints {
                world.run(&Op::Fork { index: index % sequences });
                kept += 1;
            }
        }
        world.check();
    }
}

#[test]
fn the_plan_and_the_memory_agree() {
    for (tokens, sequences, checkpoints) in [(0, 1, 0), (1000, 1, 0), (100_000, 4, 7)] {
        let capacity = capacity(tokens, sequences, checkpoints);
        let layout = layout(true);
        let memory = memory(&layout, &capacity);
        assert_eq!(memory.bytes(), layout.memory_bytes(&capacity));
        assert_eq!((memory.kv().len(), memory.recurrent_count()), (2, 2));
        assert_eq!(memory.free_bytes(), memory.bytes());
    }
}

#[test]
fn impossible_capacities_are_errors() {
    let huge = capacity(usize::MAX, 1, 0);
    let many = capacity(1 << 42, 1, 0);
    for (capacity, layout) in [(huge, layout(true)), (many, layout(false))] {
        let error = Memory::new(&layout, &capacity, &HostStore).unwrap_err();
        assert!(matches!(error, Error::TooMany { .. } | Error::Map { .. }), "{error}");
    }
}

#[test]
fn a_full_memory_says_so_and_recovers() {
    // Two sequences of a page: two pages a layer, three KV layers, two of which share an arena.
    let layout = Layout::new(vec![kv(1, 16, None), kv(1, 16, None), kv(2, 16, None)]).unwrap();
    let mut memory = memory(&layout, &capacity(2 * BLOCK, 1, 0));
    let mut a = memory.sequence().unwrap();
    let mut b = memory.sequence().unwrap();
    memory.prepare(&mut a, BLOCK + 1).unwrap();
    a.advance(BLOCK + 1);
    match memory.prepare(&mut b, 1) {
        Err(Error::OutOfPages { needed: 2, free: 0 }) => {}
        other => panic!("{other:?}"),
    }
    assert!(b.is_empty() && b.bytes() == 0);
    // A fork of a full-page prefix needs one page where the last one is partly filled.
    let fork = a.fork();
    assert!(matches!(memory.prepare(&mut a, 1), Err(Error::OutOfPages { needed: 2, free: 0 })));
    drop(fork);
    memory.prepare(&mut a, BLOCK - 1).unwrap();
    drop(a);
    memory.prepare(&mut b, 2 * BLOCK).unwrap();
    b.advance(2 * BLOCK);
    assert!(memory.prepare(&mut b, usize::MAX).is_err());
}

#[test]
fn reused_slots_start_at_zero() {
    let layout = Layout::new(vec![LayerKind::recurrent(3)]).unwrap();
    let mut memory = memory(&layout, &capacity(0, 1, 0));
    let a = memory.sequence().unwrap();
    let (arena, slot) = a.recurrent(0);
    memory.recurrent_mut(arena).slot_mut(slot).fill(7.0);
    assert!(matches!(memory.sequence(), Err(Error::OutOfSlots { needed: 1, free: 0 })));
    drop(a);
    let b = memory.sequence().unwrap();
    assert_eq!(b.recurrent(0), (arena, slot));
    assert_eq!(memory.recurrent(arena).slot(slot), [0.0; 3]);
}

#[test]
fn a_step_borrows_an_arena_and_several_sequences_at_once() {
    let mut memory = memory(&layout(false), &capacity(4 * BLOCK, 2, 0));
    let mut batch = [memory.sequence().unwrap(), memory.sequence().unwrap()];
    for sequence in &mut batch {
        memory.prepare(sequence, 3).unwrap();
    }
    let tables: Vec<_> = batch.iter().map(|sequence| sequence.kv(0)).collect();
    let arena = &mut memory.kv_mut()[tables[0].arena];
    for table in &tables {
        arena.write(table.shape, table.pages[0], 2, &[&[1.0; 32], &[2.0; 32]]);
    }
    batch.iter_mut().for_each(|sequence| sequence.advance(3));
}

#[test]
fn sliding_layers_release_what_no_draft_can_need() {
    let mut memory = memory(&layout(false), &capacity(40 * BLOCK, 1, 0));
    let mut sequence = memory.sequence().unwrap();
    memory.prepare(&mut sequence, 10 * BLOCK).unwrap();
    sequence.advance(10 * BLOCK);
    sequence.release_windows(KEEP);
    // 640 - 70 - 5 - 64 = 501: the pages below 448 go.
    let table = sequence.kv(SLIDING);
    assert_eq!((table.first_block, table.pages.len()), (7, 3));
    assert_eq!(sequence.kv(0).pages.len(), 10);
    // 70 positions before 518 begin at 448.
    sequence.truncate(518).unwrap();
    assert!(matches!(sequence.truncate(517), Err(Error::WindowReleased { oldest: 448, .. })));
    // Releasing again after going back takes nothing more; an empty sequence starts over.
    sequence.release_windows(KEEP);
    assert_eq!(sequence.kv(SLIDING).first_block, 7);
    sequence.truncate(0).unwrap();
    assert_eq!((sequence.kv(SLIDING).first_block, sequence.bytes()), (0, 0));
    assert_eq!(memory.free_bytes(), memory.bytes());
}

#[test]
fn sequences_are_dropped_on_other_threads() {
    let mut memory = memory(&layout(true), &capacity(64 * BLOCK, 2, 6));
    let mut sequence = memory.sequence().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..200 {
            let fork = sequence.fork();
            scope.spawn(move || drop(fork));
            while memory.prepare(&mut sequence, 1).is_err() {
                std::thread::yield_now();
            }
            sequence.advance(1);
        }
    });
    drop(sequence);
    assert_eq!(memory.free_bytes(), memory.bytes());
}

#[test]
#[should_panic(expected = "while a step writes it")]
fn forking_during_a_step_is_a_bug() {
    let mut memory = memory(&layout(true), &capacity(BLOCK, 1, 1));
    let mut sequence = memory.sequence().unwrap();
    memory.prepare(&mut sequence, 1).unwrap();
    sequence.fork();
}

#[test]
fn what_a_head_has_taken_in_follows_its_sequence() {
    let layout = Layout::new(vec![kv(1, 16, None)]).unwrap();
    let mut memory = memory(&layout, &capacity(300, 2, 0));
    let mut sequence = memory.sequence().unwrap();
    memory.prepare(&mut sequence, 100).unwrap();
    sequence.advance(100);
    assert_eq!(sequence.head_len(), 0);
    sequence.set_head_len(90);
    let checkpoint = sequence.fork();
    assert_eq!(checkpoint.head_len(), 90);
    // A draft comes and goes.
    memory.prepare(&mut sequence, 40).unwrap();
    sequence.advance(0);
    assert_eq!((sequence.len(), sequence.head_len()), (100, 90));
    sequence.truncate(95).unwrap();
    assert_eq!(sequence.head_len(), 90);
    sequence.truncate(33).unwrap();
    assert_eq!(sequence.head_len(), 33);
    sequence = checkpoint.fork();
    assert_eq!(sequence.head_len(), 90);
}

#[test]
#[should_panic(expected = "a head took in 1 positions of 0")]
fn a_head_cannot_be_ahead_of_its_sequence() {
    let layout = Layout::new(vec![kv(1, 16, None)]).unwrap();
    memory(&layout, &capacity(64, 1, 0)).sequence().unwrap().set_head_len(1);
}

#[test]
fn what_one_code_does_not_take_is_there_for_another() {
    let mut memory = memory(&coded_layout(false), &capacity(20 * BLOCK, 2, 0));
    assert_eq!(memory.kv().len(), 1);
    let mut fill = |code| {
        let mut sequence = memory.sequence_of(CodeId(code)).unwrap();
        let mut count = 0;
        while memory.prepare(&mut sequence, BLOCK).is_ok() {
            sequence.advance(BLOCK);
            sequence.release_windows(0);
            count += 1;
        }
        count
    };
    let alone = [fill(0), fill(1), fill(0)];
    // A block of the second code takes a page of three planes and a quarter of one beside it.
    assert!(alone[0] >= 20 && alone[0] == alone[2] && alone[1] < alone[0], "{alone:?}");
    let mut plain = memory.sequence_of(CodeId(0)).unwrap();
    memory.prepare(&mut plain, 10 * BLOCK).unwrap();
    plain.advance(10 * BLOCK);
    let mut coded = memory.sequence_of(CodeId(1)).unwrap();
    memory.prepare(&mut coded, 3 * BLOCK).unwrap();
    coded.advance(3 * BLOCK);
    let recent = coded.recent(1).unwrap();
    assert_eq!((recent.positions, recent.pages.pages.len()), (WINDOW, 3));
    assert_eq!((coded.kv(1).pages.len(), coded.others(1, 0).pages.len()), (3, 1));
    assert!(plain.recent(1).is_none() && coded.recent(0).is_none());
    let (grown, all) = ([(&plain, BLOCK), (&coded, BLOCK)], alone[0] * BLOCK);
    assert!(memory.can_hold(&grown, BLOCK));
    assert!(!memory.can_hold(&[(&plain, all), (&coded, all)], BLOCK));
}
