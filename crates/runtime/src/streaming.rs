//! From a spec to a streamed bank: which experts, how to read them, what to expect of a cache.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::Checkpoint;
use compute::Store;
use experts::device::Files;
use experts::probe::{self, Choice, Sample};
use experts::reader::Method;
use experts::{BankOptions, Device, Geometry, LayerExperts, LayerSize, Slots, StreamedBank};
use machine::pages::Pages;
use model::DecoderSpec;

use crate::{Options, Result};

/// How long the disk may be tried before a model is loaded.
const PROBE_TIME: Duration = Duration::from_millis(400);

/// Memory the probe reads into.
const PROBE_BYTES: usize = 32 << 20;

/// Experts whose reads the probe may use: a few gigabytes at most.
const PROBE_EXPERTS: usize = 512;

/// Published hit rates of one LRU over a model's experts while it decodes: share of the bank that is kept,
/// share of experts found. One for each layer finds a little more. Qwen3.6-35B up to 16 %, Qwen3.5-122B above.
const PUBLISHED: [(f64, f64); 9] = [
    (0.0, 0.0),
    (0.02, 0.20),
    (0.08, 0.52),
    (0.11, 0.56),
    (0.16, 0.63),
    (0.44, 0.81),
    (0.66, 0.90),
    (0.84, 0.93),
    (1.0, 1.0),
];

/// The experts of each layer.
pub(crate) fn layers(spec: &DecoderSpec) -> Vec<Option<LayerExperts>> {
    let mut layers: Vec<Option<LayerExperts>> = spec.layers.iter().map(|_| None).collect();
    for (index, moe) in spec.moe_layers() {
        layers[index] = Some(LayerExperts {
            layout: moe.experts.clone(),
            experts_per_token: moe.experts_per_token(),
        });
    }
    layers
}

/// What the experts need of slots.
pub(crate) fn geometry(spec: &DecoderSpec) -> Geometry {
    let size = |layer: &Option<LayerExperts>| layer.as_ref().map(LayerSize::new);
    Geometry::new(&layers(spec).iter().map(size).collect::<Vec<_>>())
}

/// The reads of some experts spread over the model, each expert's together.
pub fn samples(layers: &[Option<LayerExperts>]) -> Vec<Sample> {
    let all: usize = layers.iter().flatten().map(|layer| layer.layout.experts()).sum();
    let mut owners = layers
        .iter()
        .flatten()
        .flat_map(|layer| (0..layer.layout.experts()).map(move |expert| (layer, expert)));
    // A stride that shares no factor with the count visits each expert once, in no order a disk likes.
    let owners: Vec<_> = owners.by_ref().collect();
    let stride = (all * 618 / 1000..).find(|&stride| gcd(stride.max(1), all.max(1)) == 1);
    let stride = stride.unwrap_or(1).max(1);
    (0..all.min(PROBE_EXPERTS))
        .flat_map(|index| {
            let (layer, expert) = owners[index * stride % all];
            experts::reads_of(layer, expert)
        })
        .map(|region| (region.file, region.offset, region.len))
        .collect()
}

/// The mean length of the reads that bring an expert; 0 for a model without experts. How fast a disk is
/// depends on it.
pub fn mean_read_bytes(spec: &DecoderSpec) -> u64 {
    let samples = samples(&layers(spec));
    let bytes: u64 = samples.iter().map(|sample| sample.2 as u64).sum();
    bytes.checked_div(samples.len() as u64).unwrap_or(0)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Tries the disk below a model.
pub fn probe(checkpoint: &Checkpoint, spec: &DecoderSpec) -> Result<Choice> {
    let open = |access| Ok(Arc::new(Files::open(checkpoint, access)?) as Arc<dyn Device>);
    let bytes = PROBE_BYTES;
    let mut scratch =
        Pages::new(bytes).map_err(|source| experts::Error::Memory { bytes, source })?;
    Ok(probe::choose(&open, &samples(&layers(spec)), &mut scratch, PROBE_TIME)?)
}

/// Opens the files of a model for reading experts, as was chosen or as a probe chooses now.
pub(crate) fn open(
    checkpoint: &Checkpoint,
    spec: &DecoderSpec,
    chosen: Option<&Choice>,
) -> Result<(Arc<dyn Device>, Method)> {
    let probed;
    let choice = match chosen {
        Some(choice) => choice,
        None => {
            probed = probe(checkpoint, spec)?;
            &probed
        }
    };
    tracing::info!("reading experts: {choice}");
    let access = choice.access;
    Ok((Arc::new(Files::open(checkpoint, access)?), choice.method))
}

/// A bank with these slots.
pub(crate) fn bank(
    spec: &DecoderSpec,
    slots: &Slots,
    device: Arc<dyn Device>,
    method: Method,
    options: &Options,
    store: &dyn Store,
) -> Result<StreamedBank> {
    let slots = slots.clone();
    let Options { stall, look_ahead, .. } = *options;
    let options = BankOptions { slots, method, stall, look_ahead };
    Ok(StreamedBank::new(layers(spec), device, options, store)?)
}

/// The hit rate that published measurements suggest for a cache of this share of the bank. Where it holds
/// less than one token's experts (`working_set`, a share too), which has not been published, it is taken to
/// hit in proportion. That is cautious: 16, 36 and 69 kept experts of 12 layers of the 35B shape with the
/// tuned router, where a token uses 96, hit 7, 14 and 25 % (simulated, 15 Nov 2026), and this says 4, 10
/// and 19 %.
pub(crate) fn published_hit_rate(share: f64, working_set: f64) -> f64 {
    if share < working_set {
        return share / working_set * published_hit_rate(working_set, working_set);
    }
    let above = PUBLISHED.iter().position(|&(x, _)| x >= share).unwrap_or(PUBLISHED.len() - 1);
    let ((x0, y0), (x1, y1)) = (PUBLISHED[above.saturating_sub(1)], PUBLISHED[above]);
    if x1 <= x0 { y1 } else { y0 + (y1 - y0) * (share - x0) / (x1 - x0) }
}
