//! Where every expert lies, by key: made once, for all reads and hand-overs.

use crate::geometry::Geometry;
use crate::record::{LayerExperts, Record};

/// The experts of a model.
#[derive(Debug)]
pub(crate) struct ExpertTable {
    layers: Vec<Option<LayerExperts>>,
    entries: Vec<Entry>,
}

/// One expert.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its layer.
    pub(crate) layer: usize,
    /// Which expert of the layer it is.
    pub(crate) expert: u32,
    /// Where its bytes are.
    pub(crate) record: Record,
}

impl ExpertTable {
    pub(crate) fn new(layers: Vec<Option<LayerExperts>>, geometry: &Geometry) -> ExpertTable {
        let mut entries = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let (Some(layer), Some((_, first_key))) = (layer, geometry.layer(index)) else {
                continue;
            };
            assert_eq!(entries.len(), first_key as usize, "keys follow the layers");
            entries.extend((0..layer.layout.experts()).map(|expert| Entry {
                layer: index,
                expert: expert as u32,
                record: Record::new(layer, expert),
            }));
        }
        ExpertTable { layers, entries }
    }

    /// The layers; `None` for those without experts.
    pub(crate) fn layers(&self) -> &[Option<LayerExperts>] {
        &self.layers
    }

    /// The expert with this key.
    pub(crate) fn entry(&self, key: u32) -> &Entry {
        &self.entries[key as usize]
    }
}
