//! Random lives of a prefix cache against a plain list, over real sequences: what is handed out is read back from the
//! arenas.

use compute::HostStore;
use compute::memory::{BLOCK, KvFormat, PageShape, Plane, PlaneOrder};
use proptest::prelude::*;

use super::*;
use crate::{Capacity, LayerKind, Layout, Memory};

const WINDOW: usize = 40;
const CODE: CodeId = CodeId(0);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    Full,
    Sliding,
    Hybrid,
}

fn layout(model: Model) -> Layout {
    let keys = Plane { heads: 1, width: 16, order: PlaneOrder::Columns, format: KvFormat::F32 };
    let pages = PageShape::new(vec![keys, Plane { order: PlaneOrder::Panels, ..keys }]);
    let kv = |window| LayerKind::kv(pages.clone(), window);
    let second = match model {
        Model::Full => kv(None),
        Model::Sliding => kv(Some(WINDOW)),
        Model::Hybrid => LayerKind::recurrent(3),
    };
    Layout::new(vec![kv(None), second]).unwrap()
}

/// What a recurrent layer remembers of these tokens: order matters, and it is exact in f32.
fn integrate(state: f32, token: u32) -> f32 {
    ((state as u32 * 31 + token + 1) % 65_521) as f32
}

/// Appends tokens, a block at most at a time, as steps do.
fn feed(memory: &mut Memory, sequence: &mut Sequence, tokens: &[u32]) {
    for part in tokens.chunks(BLOCK) {
        memory.prepare(sequence, part.len()).unwrap();
        for layer in 0..2 {
            if layer == 1 && memory.recurrent_count() > 0 {
                let (arena, slot) = sequence.recurrent(layer);
                for state in memory.recurrent_mut(arena).slot_mut(slot) {
                    *state = part.iter().fold(*state, |state, &token| integrate(state, token));
                }
                continue;
            }
            let table = sequence.kv(layer);
            for (position, &token) in (sequence.len()..).zip(part) {
                let page = table.pages[position / BLOCK - table.first_block];
                let row = [token as f32; 16];
                let arena = &mut memory.kv_mut()[table.arena];
                arena.write(table.shape, page, position % BLOCK, &[&row, &row]);
            }
        }
        sequence.advance(part.len());
        sequence.release_windows(0);
    }
}

/// The sequence holds these tokens, as far back as its layers look.
fn check_contents(memory: &Memory, sequence: &Sequence, tokens: &[u32]) {
    assert_eq!(sequence.len(), tokens.len());
    for layer in 0..2 {
        if layer == 1 && memory.recurrent_count() > 0 {
            let (arena, slot) = sequence.recurrent(layer);
            let want = tokens.iter().fold(0.0, |state, &token| integrate(state, token));
            assert!(memory.recurrent(arena).slot(slot).iter().all(|&state| state == want));
            continue;
        }
        let table = sequence.kv(layer);
        let first = table.first_block * BLOCK;
        assert!(first == 0 || first + WINDOW <= tokens.len());
        for (position, &token) in tokens.iter().enumerate().skip(first) {
            let page = table.pages[position / BLOCK - table.first_block];
            let stored = memory.kv()[table.arena].read(table.shape, page, position % BLOCK, 0, 0);
            assert_eq!(stored, [token as f32; 16]);
        }
    }
}

/// An entry of the plain list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Plain {
    tokens: Vec<u32>,
    worth: Worth,
    used: u64,
}

struct World {
    model: Model,
    memory: Memory,
    cache: PrefixCache,
    plain: Vec<Plain>,
    clock: u64,
}

const LIMITS: CacheLimits = CacheLimits { entries: 5, tokens: 900 };

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u32>, bool),
    Find(Vec<u32>, usize),
    Evict,
    Clear,
}

impl World {
    fn new(model: Model) -> World {
        let layout = layout(model);
        let capacity = Capacity { tokens: 6000, sequences: 2, checkpoints: 20, step_tokens: BLOCK };
        let memory = Memory::new(&layout, &capacity, &HostStore).unwrap();
        let cache = PrefixCache::new(LIMITS, layout.is_rewindable());
        World { model, memory, cache, plain: Vec::new(), clock: 0 }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Insert(tokens, turn) => self.insert(tokens, *turn),
            Op::Find(tokens, most) => self.find(tokens, *most),
            Op::Evict => {
                assert_eq!(self.cache.evict(), !self.plain.is_empty());
                self.evict_plain();
            }
            Op::Clear => {
                self.cache.clear();
                self.plain.clear();
            }
        }
    }

    /// A prompt that begins with what is cached, as an engine would serve it, becomes an entry.
    fn insert(&mut self, tokens: &[u32], turn: bool) {
        let worth = if turn { Worth::Turn } else { Worth::Spaced };
        let mut sequence = match self.cache.best(CODE, tokens, tokens.len()) {
            Some((index, len)) => {
                let mut fork = self.cache.entries[index].sequence.fork();
                fork.truncate(len).unwrap();
                fork
            }
            None => self.memory.sequence().unwrap(),
        };
        let cached = sequence.len();
        feed(&mut self.memory, &mut sequence, &tokens[cached..]);
        self.cache.insert(tokens, sequence, worth);

        if tokens.is_empty() {
            return;
        }
        self.clock += 1;
        let is_full = self.model == Model::Full;
        let known = self
            .plain
            .iter_mut()
            .find(|entry| entry.tokens == tokens || (is_full && entry.tokens.starts_with(tokens)));
        if let Some(entry) = known {
            entry.used = self.clock;
            entry.worth = entry.worth.max(worth);
            return;
        }
        self.plain.retain(|entry| !(is_full && tokens.starts_with(&entry.tokens)));
        self.plain.push(Plain { tokens: tokens.to_vec(), worth, used: self.clock });
        while self.plain.len() > LIMITS.entries
            || self.plain.iter().map(|entry| entry.tokens.len()).sum::<usize>() > LIMITS.tokens
        {
            self.evict_plain();
        }
    }

    fn evict_plain(&mut self) {
        let bonus = |entry: &Plain| if entry.worth == Worth::Turn { TURN_USES } else { 0 };
        let least = self.plain.iter().map(|entry| entry.used + bonus(entry)).min();
        if let Some(index) =
            self.plain.iter().position(|entry| Some(entry.used + bonus(entry)) == least)
        {
            self.plain.remove(index);
        }
    }

    fn find(&mut self, tokens: &[u32], most: usize) {
        let common = |entry: &Plain| {
            (0..=entry.tokens.len().min(tokens.len()))
                .rev()
                .find(|&len| entry.tokens[..len] == tokens[..len])
                .unwrap()
        };
        let longest = self.plain.iter().map(common).max().unwrap_or(0);
        assert_eq!(self.cache.longest_common(CODE, tokens), longest);
        let whole = |entry: &&Plain| tokens.starts_with(&entry.tokens);
        let whole = self.plain.iter().filter(whole).map(|entry| entry.tokens.len());
        let whole = whole.filter(|&len| len <= most).max().unwrap_or(0);

        let reach = self.cache.reach(CODE, tokens, most);
        let found = self.cache.find(CODE, tokens, most);
        assert_eq!(found.as_ref().map_or(0, Sequence::len), reach);
        match self.model {
            Model::Full => assert_eq!(reach, longest.min(most)),
            Model::Hybrid => assert_eq!(reach, whole),
            Model::Sliding => assert!((whole..=longest.min(most)).contains(&reach)),
        }
        if let Some(mut sequence) = found {
            self.clock += 1;
            let used: Vec<&Entry> =
                self.cache.entries.iter().filter(|e| e.used == self.clock).collect();
            assert_eq!(used.len(), 1);
            let plain = self.plain.iter_mut().find(|entry| entry.tokens == used[0].tokens);
            plain.unwrap().used = self.clock;
            check_contents(&self.memory, &sequence, &tokens[..reach]);
            // Who goes on with it changes no entry.
            feed(&mut self.memory, &mut sequence, &[9; 70]);
        }
    }

    fn check(&self) {
        let mut entries: Vec<Plain> = Vec::new();
        for Entry { tokens, sequence, worth, used } in &self.cache.entries {
            check_contents(&self.memory, sequence, tokens);
            entries.push(Plain { tokens: tokens.clone(), worth: *worth, used: *used });
        }
        let mut plain = self.plain.clone();
        entries.sort();
        plain.sort();
        assert_eq!(entries, plain);
        let tokens = plain.iter().map(|entry| entry.tokens.len()).sum::<usize>();
        assert_eq!((self.cache.len(), self.cache.token_count()), (plain.len(), tokens));
        assert_eq!(self.cache.is_empty(), plain.is_empty());
    }
}

/// Few beginnings and lengths, so that prompts have much in common.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    let parts = prop::collection::vec((0..3u32, prop_oneof![Just(64usize), 1..70usize]), 0..5);
    parts.prop_map(|parts| {
        parts.into_iter().flat_map(|(token, count)| std::iter::repeat_n(token, count)).collect()
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (tokens(), any::<bool>()).prop_map(|(tokens, turn)| Op::Insert(tokens, turn)),
        6 => (tokens(), 0..300usize).prop_map(|(tokens, most)| Op::Find(tokens, most)),
        1 => Just(Op::Evict),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_life_keeps_and_finds_what_a_plain_list_does(
        model in prop_oneof![Just(Model::Full), Just(Model::Sliding), Just(Model::Hybrid)],
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new(model);
        for op in &ops {
            world.run(op);
            world.check();
        }
        world.cache.clear();
        prop_assert_eq!(world.memory.free_bytes(), world.memory.bytes());
    }
}

#[test]
fn a_sliding_model_goes_back_a_little() {
    let mut world = World::new(Model::Sliding);
    let tokens: Vec<u32> = (0..400).collect();
    world.insert(&tokens, true);
    // 400 - 40 - 64 = 296: pages from 256 on are held.
    assert_eq!(world.cache.reach(CODE, &tokens, 380), 380);
    assert_eq!(world.cache.reach(CODE, &tokens, 296), 296);
    assert_eq!(world.cache.reach(CODE, &tokens, 295), 0);
    assert_eq!(world.cache.longest_common(CODE, &tokens[..295]), 295);
}

#[test]
fn turns_outlive_places_on_the_way() {
    let mut world = World::new(Model::Hybrid);
    let tokens: Vec<u32> = (0..200).collect();
    world.insert(&tokens[..100], true);
    for len in 101..110 {
        world.insert(&tokens[..len], false);
    }
    assert_eq!(world.cache.reach(CODE, &tokens[..101], 100), 100);
    // Not for ever.
    for len in 110..140 {
        world.insert(&tokens[..len], false);
    }
    assert_eq!(world.cache.reach(CODE, &tokens[..101], 100), 0);
}

#[test]
fn a_cache_of_nothing_keeps_nothing() {
    let layout = layout(Model::Hybrid);
    let capacity = Capacity { tokens: 100, sequences: 1, checkpoints: 0, step_tokens: BLOCK };
    let mut memory = Memory::new(&layout, &capacity, &HostStore).unwrap();
    let limits = CacheLimits { entries: 0, tokens: 1000 };
    let mut cache = PrefixCache::new(limits, layout.is_rewindable());
    let mut sequence = memory.sequence().unwrap();
    feed(&mut memory, &mut sequence, &[1, 2, 3]);
    cache.insert(&[1, 2, 3], sequence, Worth::Turn);
    assert!(cache.is_empty() && !cache.evict());
    assert_eq!(memory.free_bytes(), memory.bytes());
}

#[test]
fn entries_of_another_code_are_not_found() {
    let keys = Plane { heads: 1, width: 16, order: PlaneOrder::Columns, format: KvFormat::F32 };
    let pages = |planes| LayerKind::kv(PageShape::new(vec![keys; planes]), None).pages().to_vec();
    let layer = LayerKind::Own { pages: [pages(1), pages(2)].concat(), floats: 0 };
    let layout = Layout::new(vec![layer]).unwrap();
    let capacity = Capacity { tokens: 1000, sequences: 2, checkpoints: 4, step_tokens: BLOCK };
    let mut memory = Memory::new(&layout, &capacity, &HostStore).unwrap();
    let mut cache = PrefixCache::new(LIMITS, layout.is_rewindable());
    let tokens: Vec<u32> = (0..50).collect();
    for code in [0, 1].map(CodeId) {
        let mut sequence = memory.sequence_of(code).unwrap();
        memory.prepare(&mut sequence, 50).unwrap();
        sequence.advance(50);
        assert!(cache.find(code, &tokens, 50).is_none());
        assert_eq!((cache.reach(code, &tokens, 50), cache.longest_common(code, &tokens)), (0, 0));
        cache.insert(&tokens, sequence, Worth::Turn);
        assert_eq!(cache.find(code, &tokens, 40).unwrap().code(), code);
        assert_eq!((cache.reach(code, &tokens, 50), cache.longest_common(code, &tokens)), (50, 50));
    }
    assert_eq!(cache.len(), 2);
}
