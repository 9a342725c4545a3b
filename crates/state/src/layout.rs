//! What each layer of a model keeps of a sequence, and the bytes that takes.
//!
//! The planner asks here before anything is allocated; [`Memory`](crate::Memory) maps exactly
//! [`Layout::memory_bytes`].

use compute::memory::{BLOCK, PageShape, slot_bytes};

use crate::{Error, Result};

/// What one layer keeps of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Keys and values of every position, or of the last `window`.
    Kv {
        /// What a page holds.
        pages: PageShape,
        /// Positions a row looks at, its own included; all if `None`.
        window: Option<usize>,
    },
    /// A state of fixed size that integrates every position.
    Recurrent {
        /// Size of the state.
        floats: usize,
    },
    /// Nothing of its own: it looks at the keys and values of an earlier layer.
    Shared(usize),
}

/// What the layers of a model keep, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout(Vec<LayerKind>);

/// How much a [`Memory`](crate::Memory) holds.
///
/// Any `tokens` positions spread over `sequences` sequences fit, with `checkpoints` of them forked at any length:
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

impl Layout {
    /// A layout of these layers, if it makes sense.
    pub fn new(layers: Vec<LayerKind>) -> Result<Layout> {
        for (layer, kind) in layers.iter().enumerate() {
            let wrong = |reason| Err(Error::Layout { layer, reason });
            match *kind {
                LayerKind::Kv { window: Some(0), .. } => return wrong("its window is empty"),
                LayerKind::Kv { ref pages, .. } => {
                    let planes = pages.planes();
                    if planes.is_empty() {
                        return wrong("it keeps nothing");
                    }
                    if planes.iter().any(|plane| plane.heads == 0) {
                        return wrong("it has no kv heads");
                    }
                    if planes.iter().any(|plane| plane.width == 0) {
                        return wrong("its heads have no dimensions");
                    }
                }
                LayerKind::Recurrent { floats: 0 } => return wrong("its state is empty"),
                LayerKind::Shared(target) => {
                    if !matches!(layers[..layer].get(target), Some(LayerKind::Kv { .. })) {
                        return wrong("it shares with a layer that is not an earlier KV layer");
                    }
                }
                LayerKind::Recurrent { .. } => {}
            }
        }
        Ok(Layout(layers))
    }

    /// The layers, in order.
    pub fn layers(&self) -> &[LayerKind] {
        &self.0
    }

    /// Whether every sequence can be truncated to any length: no state integrates positions and no window lets go
    /// of them.
    pub fn is_rewindable(&self) -> bool {
        self.0.iter().all(|kind| match kind {
            LayerKind::Kv { window, .. } => window.is_none(),
            LayerKind::Recurrent { .. } => false,
            LayerKind::Shared(_) => true,
        })
    }

    /// Bytes of pages one sequence of `tokens` positions holds. A sliding layer counts no more than its window, a
    /// block, and a draft of a block, wherever page boundaries fall.
    pub fn kv_bytes(&self, tokens: usize) -> usize {
        self.sum_pages(|window| {
            let pages = tokens.div_ceil(BLOCK);
            window.map_or(pages, |window| pages.min(window_pages(window)))
        })
    }

    /// Bytes by which one more position lengthens a long sequence: those of the layers without a window.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.sum_pages(|window| usize::from(window.is_none())) / BLOCK
    }

    /// Bytes of the windows of the sliding layers of one sequence: what they look at, without what pages round up.
    pub fn window_bytes(&self) -> usize {
        self.0.iter().fold(0, |sum, kind| match kind {
            LayerKind::Kv { pages, window: Some(window) } => {
                sum.saturating_add((pages.bytes() / BLOCK).saturating_mul(*window))
            }
            LayerKind::Kv { .. } | LayerKind::Recurrent { .. } | LayerKind::Shared(_) => sum,
        })
    }

    /// Bytes of the recurrent states of one sequence (or one checkpoint).
    pub fn recurrent_bytes(&self) -> usize {
        self.0.iter().fold(0, |sum, kind| match *kind {
            LayerKind::Recurrent { floats } => sum.saturating_add(slot_bytes(floats)),
            LayerKind::Kv { .. } | LayerKind::Shared(_) => sum,
        })
    }

    /// Bytes that a [`Memory`](crate::Memory) of this capacity maps.
    pub fn memory_bytes(&self, capacity: &Capacity) -> usize {
        let kv = self.sum_pages(|window| capacity.pages(window));
        kv.saturating_add(self.recurrent_bytes().saturating_mul(capacity.slots()))
    }

    /// Bytes of `count(window)` pages in each KV layer.
    fn sum_pages(&self, count: impl Fn(Option<usize>) -> usize) -> usize {
        self.0.iter().fold(0, |sum, kind| match kind {
            LayerKind::Kv { pages, window } => {
                sum.saturating_add(pages.bytes().saturating_mul(count(*window)))
            }
            LayerKind::Recurrent { .. } | LayerKind::Shared(_) => sum,
        })
    }
}

impl Capacity {
    /// Pages of one KV layer.
    pub(crate) fn pages(&self, window: Option<usize>) -> usize {
        // Each sequence but one may begin a page that the division by BLOCK did not count, and each checkpoint may
        // pin a partly filled page that its sequence has to copy.
        let all = (self.tokens.div_ceil(BLOCK))
            .saturating_add(self.sequences.saturating_sub(1))
            .saturating_add(self.checkpoints);
        let Some(window) = window else { return all };
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
        LayerKind::Kv { pages, window }
    }

    fn full(heads: usize, width: usize) -> LayerKind {
        kv(heads, width, F16, None)
    }

    #[test]
    fn bytes_are_what_the_design_says() {
        // Qwen3.5-35B-A3B: 30 gated-delta layers (32 × 128 × 128 and 3 × 8192), 10 full ones of 2 × 256.
        let delta = LayerKind::Recurrent { floats: 32 * 128 * 128 + 3 * 8192 };
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
        check(vec![LayerKind::Kv { pages: PageShape::new(Vec::new()), window: None }], 0);
        check(vec![LayerKind::Recurrent { floats: 0 }], 0);
        check(vec![LayerKind::Shared(0)], 0);
        check(vec![LayerKind::Shared(1), full(1, 8)], 0);
        check(vec![LayerKind::Recurrent { floats: 1 }, LayerKind::Shared(0)], 1);
        check(vec![full(1, 8), LayerKind::Shared(0), LayerKind::Shared(1)], 2);
    }
}
