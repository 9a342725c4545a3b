//! What a draft head needs of the model's batches: weights in addition to the model's, hidden states kept beyond a step.

use checkpoint::Checkpoint;
use compute::{Features, Step, Store, Tensor};
use model::{Batch, Caching, Head, Output, Progress};

use crate::{Options, Result};

/// Loads the head that the options name.
pub(crate) fn load_head(
    checkpoint: &Checkpoint,
    options: &Options,
    store: &dyn Store,
    caching: Caching,
    progress: Progress<'_>,
) -> Result<Option<Head>> {
    let Some(head) = &options.head else { return Ok(None) };
    let checkpoint = head.checkpoint.as_deref().unwrap_or(checkpoint);
    Ok(Some(Head::load(checkpoint, &head.spec, store, caching, progress)?))
}

/// The batch, with requests for what the head needs.
pub(crate) fn asking(head: &Head, batch: &Batch) -> Batch {
    let mut batch = batch.clone();
    head.spec().features().ask(&mut batch);
    batch
}

/// Features of each segment's rows, kept beyond the step.
pub(crate) fn of_segments(
    head: &Head,
    batch: &Batch,
    output: &Output,
    step: &mut dyn Step,
) -> Vec<Features> {
    let needed = head.spec().features();
    // Taps come in the order of layers, features in that of the head.
    let place = |layer: &usize| {
        let before: std::collections::BTreeSet<usize> =
            needed.taps.iter().copied().filter(|tap| tap < layer).collect();
        output.taps[before.len()]
    };
    let parts: Vec<Tensor> = match output.hidden {
        Some(hidden) if needed.hidden => vec![hidden],
        _ => needed.taps.iter().map(place).collect(),
    };
    let rows = batch.segments.iter().map(|segment| segment.row..segment.row + segment.count);
    step.retain(&parts, &rows.collect::<Vec<_>>())
}
