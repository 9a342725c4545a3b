//! What each layer of a model keeps of a sequence, and the bytes that takes.
//!
//! The planner asks here before anything is allocated; [`Memory`](crate::Memory) maps exactly
//! [`Layout::memory_bytes`].

use compute::memory::{ArenaShape, BLOCK, PageShape, slot_bytes};

use crate::{Error, Result};

/// What one layer keeps of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Pages, a state of fixed size that integrates every position, or both.
    Own {
        /// For each code that a sequence may have, how its pages are; nothing if there are no pages.
        pages: Vec<LayerPages>,
        /// Size of the recurrent state; 0 if there is none.
        floats: usize,
    },
    /// Nothing of its own: it looks at the keys and values of an earlier layer.
    Shared(usize),
}

/// The pages of one layer of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerPages {
    /// Keys and values.
    pub keys: PageGroup,
    /// The newest keys and values once more, with the window as its size: rows find there what they see last, perhaps
    /// more exactly.
    pub recent: Option<PageGroup>,
    /// Whatever else the layer keeps in pages.
    pub others: Vec<PageGroup>,
}

/// Pages that come and go together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageGroup {
    /// What a page holds.
    pub pages: PageShape,
    /// Positions a row looks at, its own included; all if `None`.
    pub window: Option<usize>,
    /// Positions that share an entry: a page holds [`BLOCK`] entries.
    pub rate: usize,
}

/// How a sequence keeps keys and values, where a layout has several ways: index of [`LayerPages`] in each layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeId(pub usize);

/// What the layers of a model keep, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    layers: Vec<LayerKind>,
    code: CodeId,
}

/// How much a [`Memory`](crate::Memory) holds.
///
/// Any `tokens` positions spread over `sequences` sequences of the layout's code fit, with `checkpoints` of them forked at any length:
/// partly filled pages and the copies that forks cause are provided on top. A position that several sequences
/// share counts once. Sliding layers are sized for sequences that call
/// [`Sequence::release_windows`](crate::Sequence::release_windows) after each step with at most a block of draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Positions over all sequences, in each layer.
    pub tokens: usize,
    /// Live sequences.
    pub sequences: usize,
    /// States kept besides those of the live sequences.
    pub checkpoints: usize,
    /// The most positions one step adds, over all its sequences: the prefill chunk. Sliding layers hold them all
    /// until the step has run.
    pub step_tokens: usize,
}

impl LayerKind {
    /// Keys and values of every position, or of the last `window`, in one kind of pages.
    pub fn kv(pages: PageShape, window: Option<usize>) -> LayerKind {
        let keys = PageGroup { pages, window, rate: 1 };
        let pages = LayerPages { keys, recent: None, others: Vec::new() };
        LayerKind::Own { pages: vec![pages], floats: 0 }
    }

    /// A recurrent state and nothing else.
    pub fn recurrent(floats: usize) -> LayerKind {
        LayerKind::Own { pages: Vec::new(), floats }
    }

    /// Its pages, for each code.
    pub fn pages(&self) -> &[LayerPages] {
        match self {
            LayerKind::Own { pages, .. } => pages,
            LayerKind::Shared(_) => &[],
        }
    }

    /// Size of its recurrent state.
    pub fn floats(&self) -> usize {
        match *self {
            LayerKind::Own { floats, .. } => floats,
            LayerKind::Shared(_) => 0,
        }
    }
}

impl LayerPages {
    /// All groups: keys and values, the newest of them, the others.
    pub fn groups(&self) -> impl Iterator<Item = &PageGroup> {
        std::iter::once(&self.keys).chain(&self.recent).chain(&self.others)
    }
}

impl PageGroup {
    /// What is wrong with it.
    fn fault(&self) -> Option<&'static str> {
        let planes = self.pages.planes();
        let faults = [
            (planes.is_empty(), "it keeps nothing"),
            (planes.iter().any(|plane| plane.heads == 0), "it has no kv heads"),
            (planes.iter().any(|plane| plane.width == 0), "its heads have no dimensions"),
            (self.window == Some(0), "its window is empty"),
            (self.rate == 0, "its entries have no positions"),
            (self.rate > 1 && self.window.is_some(), "it has a window over shared entries"),
        ];
        faults.into_iter().find_map(|(is_wrong, fault)| is_wrong.then_some(fault))
    }

    /// Bytes of a page.
    fn page_bytes(&self) -> usize {
        self.pages.bytes()
    }
}

impl Layout {
    /// A layout of these layers, if it makes sense, for sequences of the first code.
    pub fn new(layers: Vec<LayerKind>) -> Result<Layout> {
        let codes = layers.iter().map(|kind| kind.pages().len()).max().unwrap_or(0);
        for (layer, kind) in layers.iter().enumerate() {
            let wrong = |reason| Err(Error::Layout { layer, reason });
            match *kind {
                LayerKind::Own { ref pages, floats } => {
                    if pages.is_empty() && floats == 0 {
                        return wrong("its state is empty");
                    }
                    if !pages.is_empty() && pages.len() != codes {
                        return wrong("it knows fewer codes than other layers");
                    }
                    let mut groups = pages.iter().flat_map(LayerPages::groups);
                    if let Some(fault) = groups.find_map(PageGroup::fault) {
                        return wrong(fault);
                    }
                    let is_endless = |pages: &LayerPages| {
                        pages.recent.as_ref().is_some_and(|recent| recent.window.is_none())
                    };
                    if pages.iter().any(is_endless) {
                        return wrong("its newest positions have no window");
                    }
                }
                LayerKind::Shared(target) => {
                    if layers[..layer].get(target).is_none_or(|kind| kind.pages().is_empty()) {
                        return wrong("it shares with a layer that is not an earlier KV layer");
                    }
                }
            }
        }
        Ok(Layout { layers, code: CodeId::default() })
    }

    /// The same for sequences of another code: what they are promised, and what is counted.
    ///
    /// # Panics
    /// If the layers have no such code.
    pub fn for_code(mut self, code: CodeId) -> Layout {
        assert!(code.0 < self.code_count(), "a layout without code {}", code.0);
        self.code = code;
        self
    }

    /// The layers, in order.
    pub fn layers(&self) -> &[LayerKind] {
        &self.layers
    }

    /// The code of sequences that ask for none.
    pub fn code(&self) -> CodeId {
        self.code
    }

    /// How many codes sequences may have.
    pub(crate) fn code_count(&self) -> usize {
        self.layers.iter().map(|kind| kind.pages().len()).max().unwrap_or(0)
    }

    /// The groups of pages of all layers that a sequence of this code has.
    pub(crate) fn groups(&self, code: CodeId) -> impl Iterator<Item = &PageGroup> {
        let pages = self.layers.iter().filter_map(move |kind| kind.pages().get(code.0));
        pages.flat_map(LayerPages::groups)
    }

    /// Whether every sequence can be truncated to any length: no state integrates positions and no window lets go
    /// of them.
    pub fn is_rewindable(&self) -> bool {
        let mut pages = self.layers.iter().flat_map(LayerKind::pages);
        pages.all(|pages| pages.groups().all(|group| group.window.is_none()))
            && self.layers.iter().all(|kind| kind.floats() == 0)
    }

    /// Bytes of pages one sequence of `tokens` positions holds. A sliding layer counts no more than its window, a
    /// block, and a draft of a block, wherever page boundaries fall.
    pub fn kv_bytes(&self, tokens: usize) -> usize {
        self.sum_pages(|group| {
            let pages = tokens.div_ceil(BLOCK.saturating_mul(group.rate));
            group.window.map_or(pages, |window| pages.min(window_pages(window)))
        })
    }

    /// Bytes by which one more position lengthens a long sequence: those of the layers without a window.
    pub fn kv_bytes_per_token(&self) -> usize {
        let lasting = self.groups(self.code).filter(|group| group.window.is_none());
        lasting.fold(0, |sum, group| sum.saturating_add(group.page_bytes() / (BLOCK * group.rate)))
    }

    /// Bytes of the windows of the sliding layers of one sequence: what they look at, without what pages round up.
    pub fn window_bytes(&self) -> usize {
        self.groups(self.code).fold(0, |sum, group| {
            let positions = group.window.unwrap_or(0);
            sum.saturating_add((group.page_bytes() / BLOCK).saturating_mul(positions))
        })
    }

    /// Bytes of the recurrent states of one sequence (or one checkpoint).
    pub fn recurrent_bytes(&self) -> usize {
        self.layers.iter().fold(0, |sum, kind| sum.saturating_add(slot_bytes(kind.floats())))
    }

    /// Bytes that a [`Memory`](crate::Memory) of this capacity maps.
    pub fn memory_bytes(&self, capacity: &Capacity) -> usize {
        let arenas = self.page_arenas(capacity);
        let kv = arenas.iter().fold(0, |sum: usize, (arena, chunks)| {
            sum.saturating_add(arena.chunk_bytes().saturating_mul(*chunks))
        });
        kv.saturating_add(self.recurrent_bytes().saturating_mul(capacity.slots()))
    }

    /// The arenas of a [`Memory`](crate::Memory) of this capacity, and how many chunks each has.
    ///
    /// Pages of one shape have an arena of their own. Where sequences may have different codes, all pages share one, so
    /// that what one code does not take is there for another.
    pub(crate) fn page_arenas(&self, capacity: &Capacity) -> Vec<(ArenaShape, usize)> {
        let mut shapes: Vec<(PageShape, usize)> = Vec::new(); // shape, pages
        for code in (0..self.code_count()).map(CodeId) {
            for group in self.groups(code) {
                let count = if code == self.code { capacity.pages(group) } else { 0 };
                add_shape(&mut shapes, &group.pages, count);
            }
        }
        if self.code_count() <= 1 {
            let arena = |(shape, pages)| (ArenaShape::of(shape), pages);
            return shapes.into_iter().map(arena).collect();
        }
        let arena = ArenaShape::mixed(shapes.iter().map(|(shape, _)| shape.clone()).collect());
        let chunks = shapes.iter().enumerate().fold(0, |sum: usize, (index, (_, pages))| {
            sum.saturating_add(pages.div_ceil(arena.chunk_pages(index).max(1)))
        });
        vec![(arena, chunks)]
    }

    /// Bytes of `count(group)` pages of each group.
    fn sum_pages(&self, count: impl Fn(&PageGroup) -> usize) -> usize {
        self.groups(self.code).fold(0, |sum, group| {
            sum.saturating_add(group.page_bytes().saturating_mul(count(group)))
        })
    }
}

/// Adds so many pages of a shape.
fn add_shape(shapes: &mut Vec<(PageShape, usize)>, shape: &PageShape, count: usize) {
    match shapes.iter_mut().find(|(known, _)| known == shape) {
        Some((_, pages)) => *pages = pages.saturating_add(count),
        None => shapes.push((shape.clone(), count)),
    }
}

impl Capacity {
    /// Pages of one group of a layer.
    pub(crate) fn pages(&self, group: &PageGroup) -> usize {
        // Each sequence but one may begin a page that the division by BLOCK did not count, and each checkpoint may
        // pin a partly filled page that its sequence has to copy.
        let all = (self.tokens.div_ceil(BLOCK.saturating_mul(group.rate)))
            .saturating_add(self.sequences.saturating_sub(1))
            .saturating_add(self.checkpoints);
        let Some(window) = group.window else { return all };
        let holders = self.sequences.saturating_add(self.checkpoints);
        let sliding = holders.saturating_mul(window_pages(window));
        all.min(sliding.saturating_add(self.step_tokens.div_ceil(BLOCK)))
    }

    /// Slots of one recurrent layer.
    pub(crate) fn slots(&self) -> usize {
        self.sequences.saturating_add(self.checkpoints)
    }
}

/// Pages that a sliding layer of one sequence holds between steps: window, BLOCK and a draft of at most BLOCK,
/// beginning and ending anywhere in a page.
pub(crate) fn window_pages(window: usize) -> usize {
    window.div_ceil(BLOCK).saturating_add(3)
}

#[cfg(test)]
mod tests {
    use compute::memory::KvFormat::{self, F16, F32};
    use compute::memory::{Plane, PlaneOrder};

    use super::*;

    fn kv(heads: usize, width: usize, format: KvFormat, window: Option<usize>) -> LayerKind {
        let plane = |order| Plane { heads, width, order, format };
        let pages = PageShape::new(vec![plane(PlaneOrder::Columns), plane(PlaneOrder::Panels)]);
        LayerKind::kv(pages, window)
    }

    fn full(heads: usize, width: usize) -> LayerKind {
        kv(heads, width, F16, None)
    }

    #[test]
    fn bytes_are_what_the_design_says() {
        // Qwen3.5-35B-A3B: 30 gated-delta layers (32 × 128 × 128 and 3 × 8192), 10 full ones of 2 × 256.
        let delta = LayerKind::recurrent(32 * 128 * 128 + 3 * 8192);
        let of = |format| {
            let full = kv(2, 256, format, None);
            let layer = |i: usize| if i % 4 == 3 { full.clone() } else { delta.clone() };
            Layout::new((0..40).map(layer).collect()).unwrap()
        };
        let layout = of(F16);
        assert!(!layout.is_rewindable());
        assert_eq!(layout.kv_bytes_per_token(), 20_480);
        assert_eq!(layout.kv_bytes(64), 64 * 20_480);
        assert_eq!(of(F32).kv_bytes(65), 2 * 128 * 20_480);
        assert_eq!(layout.kv_bytes(0), 0);
        // 62.9 MB of matrices, and the convolutions' rows.
        assert_eq!(layout.recurrent_bytes(), 62_914_560 + 30 * 3 * 8192 * 4);
    }

    #[test]
    fn windows_stop_growing_and_shared_layers_cost_nothing() {
        let sliding = kv(8, 256, F16, Some(1024));
        let layout = Layout::new(vec![sliding, full(2, 512), LayerKind::Shared(0)]).unwrap();
        let bytes = |tokens| layout.kv_bytes(tokens);
        assert_eq!(bytes(64), 64 * (8192 + 4096));
        assert_eq!(bytes(1 << 20) - bytes(1 << 19), (1 << 19) * 4096);
        assert_eq!(layout.kv_bytes_per_token(), 4096);
        assert_eq!(layout.window_bytes(), 1024 * 8192);
        assert_eq!(layout.recurrent_bytes(), 0);
        assert!(!layout.is_rewindable());
        assert!(Layout::new(vec![full(2, 512), LayerKind::Shared(0)]).unwrap().is_rewindable());
    }

    #[test]
    fn sizes_saturate() {
        let huge = [(usize::MAX, 3), (1, usize::MAX / 2)];
        let layers = huge.map(|(heads, width)| kv(heads, width, F32, None));
        let layout = Layout::new(layers.to_vec()).unwrap();
        assert_eq!(layout.kv_bytes(usize::MAX), usize::MAX);
        let most = usize::MAX;
        let capacity =
            Capacity { tokens: most, sequences: most, checkpoints: most, step_tokens: most };
        assert_eq!(layout.memory_bytes(&capacity), usize::MAX);
    }

    #[test]
    fn impossible_layers_are_refused() {
        #[track_caller]
        fn check(layers: Vec<LayerKind>, at: usize) {
            match Layout::new(layers) {
                Err(Error::Layout { layer, .. }) => assert_eq!(layer, at),
                other => panic!("{other:?}"),
            }
        }
        check(vec![full(1, 8), full(0, 8)], 1);
        check(vec![full(1, 0)], 0);
        check(vec![kv(1, 8, F16, Some(0))], 0);
        check(vec![LayerKind::kv(PageShape::new(Vec::new()), None)], 0);
        check(vec![LayerKind::recurrent(0)], 0);
        check(vec![LayerKind::Shared(0)], 0);
        check(vec![LayerKind::Shared(1), full(1, 8)], 0);
        check(vec![LayerKind::recurrent(1), LayerKind::Shared(0)], 1);
        check(vec![full(1, 8), LayerKind::Shared(0), LayerKind::Shared(1)], 2);
    }
}
