//! How many slots a budget buys.
//!
//! Experts of one size share slots of one size; a model of mixed precision has a few sizes, and the
//! budget is split between them by the bytes of their experts. A slot is a whole number of 4 KiB blocks:
//! the largest footprint of its class, since a range that straddles a block costs one more. The layers of
//! a class share its slots alike, each its own; a few in addition, for staging, serve all layers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cache::{ListSize, Partition};
use crate::record::{LayerExperts, Record};
use crate::{Error, Result};

/// Bytes of staging a class aims for: enough for the disk's queue and for the experts being multiplied.
const STAGING_BYTES: usize = 32 << 20;

/// Slots of staging at least and at most, where the budget has room.
const STAGING_SLOTS: std::ops::RangeInclusive<usize> = 8..=24;

/// What one layer's experts need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSize {
    /// Experts it has.
    pub experts: usize,
    /// Experts each token uses.
    pub experts_per_token: usize,
    /// Bytes of an expert.
    pub expert_bytes: u64,
    /// Bytes of a slot that holds any of them.
    pub slot_bytes: usize,
}

impl LayerSize {
    /// Of a layer of a checkpoint.
    pub fn new(layer: &LayerExperts) -> LayerSize {
        let experts = layer.layout.experts();
        let records = (0..experts).map(|expert| Record::new(layer, expert).slot_bytes());
        LayerSize {
            experts,
            experts_per_token: layer.experts_per_token,
            expert_bytes: layer.layout.bytes_per_expert(),
            slot_bytes: records.max().unwrap_or(0),
        }
    }
}

/// Experts of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Bytes of an expert.
    pub expert_bytes: u64,
    /// Layers it has.
    pub layers: usize,
    /// Experts in all these layers.
    pub experts: usize,
    /// The most experts a token uses in one of them.
    pub experts_per_token: usize,
}

/// What a model's experts need of slots.
#[derive(Clone, Debug)]
pub struct Geometry {
    classes: Vec<Class>,
    layers: Vec<Option<Layer>>,
    keys: usize,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    class: u16,
    /// The key of its first expert.
    first: u32,
    experts: usize,
}

impl Layer {
    fn keys(&self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.experts
    }
}

/// Slots of each class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// By class.
    pub classes: Vec<ClassSlots>,
    /// Memory of them all.
    pub bytes: u64,
}

/// Slots of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSlots {
    /// Slots that keep experts, of all its layers.
    pub kept: usize,
    /// Slots that experts pass through: a prompt's, and a token's where a layer keeps too few.
    pub staging: usize,
}

impl Slots {
    /// Slots that keep experts.
    pub fn kept(&self) -> usize {
        self.classes.iter().map(|class| class.kept).sum()
    }

    /// Slots that experts pass through.
    pub fn staging(&self) -> usize {
        self.classes.iter().map(|class| class.staging).sum()
    }
}

impl Geometry {
    /// Of the layers of a model; `None` for those without experts.
    pub fn new(layers: &[Option<LayerSize>]) -> Geometry {
        let mut by_size: BTreeMap<u64, Class> = BTreeMap::new();
        for layer in layers.iter().flatten() {
            let class = by_size.entry(layer.expert_bytes).or_insert(Class {
                slot_bytes: 0,
                expert_bytes: layer.expert_bytes,
                layers: 0,
                experts: 0,
                experts_per_token: 0,
            });
            class.slot_bytes = class.slot_bytes.max(layer.slot_bytes);
            class.layers += 1;
            class.experts += layer.experts;
            class.experts_per_token = class.experts_per_token.max(layer.experts_per_token);
        }
        let sizes: Vec<u64> = by_size.keys().copied().collect();
        let mut keys = 0;
        let place = |layer: &Option<LayerSize>| {
            let layer = layer.as_ref()?;
            let class = sizes.binary_search(&layer.expert_bytes).ok()?;
            let first = keys;
            keys += layer.experts;
            Some(Layer { class: class as u16, first: first as u32, experts: layer.experts })
        };
        let layers = layers.iter().map(place).collect();
        Geometry { classes: by_size.into_values().collect(), layers, keys }
    }

    /// The sizes there are.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Experts of all layers.
    pub fn experts(&self) -> usize {
        self.keys
    }

    /// Experts one token uses in all layers: its working set.
    pub fn experts_per_token(&self) -> usize {
        self.classes.iter().map(Class::working_set).sum()
    }

    /// The class of a layer and the key of its first expert.
    pub fn layer(&self, layer: usize) -> Option<(u16, u32)> {
        let layer = self.layers.get(layer).copied().flatten()?;
        Some((layer.class, layer.first))
    }

    /// A list for each layer, with its share of its class's slots. What does not divide goes to the first
    /// layers; none has more slots than experts.
    pub fn layered(&self, slots: &Slots) -> Partition {
        let layers: Vec<Layer> = self.layers.iter().flatten().copied().collect();
        let mut lists: Vec<ListSize> =
            layers.iter().map(|layer| ListSize { class: layer.class, kept: 0 }).collect();
        // By class: slots left, and layers that have none yet.
        let classes = self.classes.iter().zip(&slots.classes);
        let mut left: Vec<(usize, usize)> =
            classes.map(|(class, slots)| (slots.kept, class.layers)).collect();
        // What layers of few experts have no use for is shared by the others.
        let mut order: Vec<usize> = (0..layers.len()).collect();
        order.sort_by_key(|&list| layers[list].experts);
        for list in order {
            let (slots, sharers) = &mut left[layers[list].class as usize];
            lists[list].kept = slots.div_ceil(*sharers).min(layers[list].experts);
            *slots -= lists[list].kept;
            *sharers -= 1;
        }
        let mut list_of = vec![0; self.keys];
        for (list, layer) in layers.iter().enumerate() {
            list_of[layer.keys()].fill(list as u16);
        }
        let staging = slots.classes.iter().map(|class| class.staging).collect();
        Partition { lists, staging, list_of }
    }

    /// One list for all layers of a class.
    pub fn pooled(&self, slots: &Slots) -> Partition {
        let list = |(class, slots): (usize, &ClassSlots)| ListSize {
            class: class as u16,
            kept: slots.kept,
        };
        let mut list_of = vec![0; self.keys];
        for layer in self.layers.iter().flatten() {
            list_of[layer.keys()].fill(layer.class);
        }
        let staging = slots.classes.iter().map(|class| class.staging).collect();
        Partition { lists: slots.classes.iter().enumerate().map(list).collect(), staging, list_of }
    }

    /// The most slots that fit a budget, but no more than there are experts; `None` if not even one
    /// token's experts of one layer do.
    pub fn fit(&self, budget_bytes: u64) -> Option<Slots> {
        // Each class gets what it needs, and its share of the rest.
        let total: u64 = self.classes.iter().map(Class::bank_bytes).sum::<u64>().max(1);
        let rest = u128::from(budget_bytes.checked_sub(self.least_bytes())?);
        let count = |class: &Class| {
            let share = rest * u128::from(class.bank_bytes()) / u128::from(total);
            class.experts_per_token + (share / class.slot_bytes as u128) as usize
        };
        self.with_counts(&self.classes.iter().map(count).collect::<Vec<_>>()).ok()
    }

    /// This many slots in all, split between the classes by the bytes of their experts.
    pub fn with_total(&self, slots: usize) -> Result<Slots> {
        let needed: usize = self.classes.iter().map(|class| class.experts_per_token).sum();
        if slots < needed {
            return Err(Error::TooFewSlots { slots, needed });
        }
        // Each class gets what it needs, and its share of the rest.
        let total: u64 = self.classes.iter().map(Class::bank_bytes).sum::<u64>().max(1);
        let rest = (slots - needed) as u128;
        let count = |class: &Class| {
            let share = rest * u128::from(class.bank_bytes()) / u128::from(total);
            class.experts_per_token + share as usize
        };
        self.with_counts(&self.classes.iter().map(count).collect::<Vec<_>>())
    }

    /// The fewest bytes of slots that run the model.
    pub fn least_bytes(&self) -> u64 {
        let class = |class: &Class| class.experts_per_token as u64 * class.slot_bytes as u64;
        self.classes.iter().map(class).sum()
    }

    fn with_counts(&self, counts: &[usize]) -> Result<Slots> {
        let mut slots = Slots { classes: Vec::new(), bytes: 0 };
        for (class, &count) in self.classes.iter().zip(counts) {
            let needed = class.experts_per_token;
            if count < needed {
                return Err(Error::TooFewSlots { slots: count, needed });
            }
            let wanted = STAGING_BYTES
                .div_ceil(class.slot_bytes)
                .clamp(*STAGING_SLOTS.start(), *STAGING_SLOTS.end());
            let mut staging = wanted.min(count / 4).min(count - needed);
            if count - staging < class.working_set() {
                // A layer keeps fewer than a token wants of it: the others must not wait for one another.
                staging = staging.max(needed);
            }
            let kept = (count - staging).min(class.experts);
            slots.classes.push(ClassSlots { kept, staging });
            slots.bytes += ((kept + staging) * class.slot_bytes) as u64;
        }
        Ok(slots)
    }
}

impl Class {
    /// Experts one token uses in all its layers.
    pub fn working_set(&self) -> usize {
        // Where layers differ, not all of them have so many.
        (self.layers * self.experts_per_token).min(self.experts)
    }

    /// Bytes of its experts.
    pub fn bank_bytes(&self) -> u64 {
        self.expert_bytes * self.experts as u64
    }
}

#[cfg(test)]
#[path = "geometry_tests.rs"]
mod tests;
