//! Random lives of sequences against a plain model: the list of tokens each of them was fed. What pages and slots
//! hold is read back from the arenas.

use std::collections::BTreeSet;

use compute::HostStore;
use compute::memory::{BLOCK, KvFormat, PageId, Plane, PlaneOrder, SlotId};
use proptest::prelude::*;

use super::*;

const SLIDING: usize = 2;
const WINDOW: usize = 70;
const KEEP: usize = 5;

fn kv(heads: usize, width: usize, window: Option<usize>) -> LayerKind {
    let plane = |order| Plane { heads, width, order, format: KvFormat::F32 };
    let pages = PageShape::new(vec![plane(PlaneOrder::Columns), plane(PlaneOrder::Panels)]);
    LayerKind::Kv { pages, window }
}

/// Two KV arenas and, if `recurrent`, two recurrent ones; layer 2 slides, the last layer shares.
fn layout(recurrent: bool) -> Layout {
    let mut layers =
        vec![kv(2, 16, None), kv(1, 16, None), kv(1, 16, Some(WINDOW)), LayerKind::Shared(1)];
    if recurrent {
        layers.extend([37, 37, 5].map(|floats| LayerKind::Recurrent { floats }));
    }
    Layout::new(layers).unwrap()
}

fn capacity(tokens: usize, sequences: usize, checkpoints: usize) -> Capacity {
    Capacity { tokens, sequences, checkpoints, step_tokens: 2 * BLOCK }
}

fn memory(layout: &Layout, capacity: &Capacity) -> Memory {
    Memory::new(layout, capacity, &HostStore).unwrap()
}

/// What layer `layer` stores of `token`, for all kv heads: different for every layer, position, head and dimension,
/// and exact in f32.
fn kv_row(layer: usize, position: usize, token: u32, width: usize) -> (Vec<f32>, Vec<f32>) {
    let facts = [layer as f32, position as f32, token as f32];
    let k: Vec<f32> = (0..width).map(|i| facts[i % 3] + (i << 15) as f32).collect();
    let v = k.iter().map(|k| -k).collect();
    (k, v)
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
}

/// Everything an operation that fails must leave alone.
fn facts(memory: &Memory, sequence: &Sequence) -> impl PartialEq + std::fmt::Debug + use<> {
    let tables: Vec<_> = sequence
        .layers
        .iter()
        .map(|state| match state {
            LayerState::Kv(pages) => (pages.table().first_block, pages.table().pages.to_vec()),
            LayerState::Recurrent(slot) => (slot.id().0 as usize, vec![]),
            LayerState::Shared(target) => (*target, vec![]),
        })
        .collect();
    let free_pages: Vec<_> = (0..memory.kv().len()).map(|a| memory.free_pages(a)).collect();
    let free_slots: Vec<_> = (0..memory.recurrent_count()).map(|a| memory.free_slots(a)).collect();
    (tables, free_pages, free_slots, sequence.len, sequence.prepared)
}

impl World {
    fn new(layout: &Layout, capacity: &Capacity) -> World {
        let memory = memory(layout, capacity);
        World { memory, live: Vec::new(), next_token: 1 }
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
        for (layer, state) in sequence.layers.iter().enumerate() {
            match state {
                LayerState::Kv(_) => {
                    let table = sequence.kv(layer);
                    let arena = &mut self.memory.kv_mut()[table.arena];
                    for (position, &token) in (sequence.len..).zip(&new) {
                        let page = table.pages[position / BLOCK - table.first_block];
                        let Plane { heads, width, .. } = arena.shape().planes()[0];
                        let (k, v) = kv_row(layer, position, token, heads * width);
                        arena.write(page, position % BLOCK, &[&k, &v]);
                    }
                }
                LayerState::Recurrent(_) => {
                    let (arena, slot) = sequence.recurrent(layer);
                    for state in self.memory.recurrent_mut(arena).slot_mut(slot) {
                        *state = new.iter().fold(*state, |s, &t| integrate(s, layer, t));
                    }
                }
                LayerState::Shared(_) => {}
            }
        }
        sequence.advance(count);
        tokens.extend(new);
        Ok(())
    }

    /// Nobody else holds what the next `count` positions will write.
    fn check_exclusive(&self, index: usize, count: usize) {
        let sequence = &self.live[index].0;
        for (layer, state) in sequence.layers.iter().enumerate() {
            for (_, (other, _)) in self.live.iter().enumerate().filter(|(i, _)| *i != index) {
                match state {
                    LayerState::Kv(_) => {
                        let table = sequence.kv(layer);
                        let first = sequence.len / BLOCK - table.first_block;
                        let end = (sequence.len + count).div_ceil(BLOCK) - table.first_block;
                        for page in &table.pages[first..end] {
                            assert!(!other.kv(layer).pages.contains(page));
                        }
                    }
                    LayerState::Recurrent(_) => {
                        assert_ne!(sequence.recurrent(layer), other.recurrent(layer));
                    }
                    LayerState::Shared(_) => {}
                }
            }
        }
    }

    /// Every sequence remembers its tokens, and every page and slot is either free or held.
    fn check(&self) {
        let mut pages: BTreeSet<(usize, PageId)> = BTreeSet::new();
        let mut slots: BTreeSet<(usize, SlotId)> = BTreeSet::new();
        for (sequence, tokens) in &self.live {
            assert_eq!(sequence.len(), tokens.len());
            let mut bytes = 0;
            for (layer, state) in sequence.layers().iter().enumerate() {
                match state {
                    LayerState::Kv(_) => {
                        let table = sequence.kv(layer);
                        assert!(layer == SLIDING || table.first_block == 0);
                        let first = table.first_block * BLOCK;
                        assert!(first == 0 || first + WINDOW <= tokens.len());
                        let arena = &self.memory.kv()[table.arena];
                        let Plane { heads, width: dim, .. } = arena.shape().planes()[0];
                        for (position, &token) in tokens.iter().enumerate().skip(first) {
                            let page = table.pages[position / BLOCK - table.first_block];
                            let (k, v) = kv_row(layer, position, token, heads * dim);
                            for head in 0..heads {
                                let stored =
                                    [0, 1].map(|p| arena.read(page, position % BLOCK, p, head));
                                let columns = head * dim..(head + 1) * dim;
                                assert_eq!(stored, [&k[columns.clone()], &v[columns]]);
                            }
                        }
                        pages.extend(table.pages.iter().map(|&page| (table.arena, page)));
                        bytes += table.pages.len() * arena.page_bytes();
                    }
                    LayerState::Recurrent(_) => {
                        let (arena, slot) = sequence.recurrent(layer);
                        let want = tokens.iter().fold(0.0, |s, &t| integrate(s, layer, t));
                        let stored = self.memory.recurrent(arena).slot(slot);
                        assert!(stored.iter().all(|&state| state == want));
                        slots.insert((arena, slot));
                        bytes += self.memory.recurrent(arena).slot_bytes();
                    }
                    LayerState::Shared(target) => {
                        assert_eq!(sequence.kv(layer).pages, sequence.kv(*target).pages);
                    }
                }
            }
            assert_eq!(sequence.bytes(), bytes);
        }
        let mut free_bytes = self.memory.bytes();
        for arena in 0..self.memory.kv().len() {
            let used = pages.iter().filter(|page| page.0 == arena).count();
            let count = self.memory.kv()[arena].page_count();
            assert_eq!(used + self.memory.free_pages(arena), count);
            free_bytes -= used * self.memory.kv()[arena].page_bytes();
        }
        for arena in 0..self.memory.recurrent_count() {
            let used = slots.iter().filter(|slot| slot.0 == arena).count();
            let count = self.memory.recurrent(arena).slot_count();
            assert_eq!(used + self.memory.free_slots(arena), count);
            free_bytes -= used * self.memory.recurrent(arena).slot_bytes();
        }
        assert_eq!(self.memory.free_bytes(), free_bytes);
    }

    fn run(&mut self, op: &Op) {
        let count = self.live.len();
        match *op {
            Op::New => match self.memory.sequence() {
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
                        assert_eq!((layer, to), (SLIDING, len));
                        // (Who goes back twice may have used up what is kept for drafts.)
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
    New,
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
        2 => Just(Op::New),
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
        tokens in 0..1500usize,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new(&layout(recurrent), &capacity(tokens, 3, 2));
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
    ) {
        let mut world = World::new(&layout(true), &capacity(tokens, sequences, checkpoints));
        for _ in 0..sequences {
            world.run(&Op::New);
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
    let layout = Layout::new(vec![LayerKind::Recurrent { floats: 3 }]).unwrap();
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
        arena.write(table.pages[0], 2, &[&[1.0; 32], &[2.0; 32]]);
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
