//! From a spec to weights in memory: positioned reads straight into huge pages, no copy between.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use checkpoint::{Checkpoint, LinearSlice, Projection, Span};
use compute::{
    BiasPlace, ExpertPlace, Linear, MatrixPlace, Norm, ResidentBank, ResidentExpert, RowSource,
    Store, Vector, Weight, weight_memory,
};
use format::Encoding;

use crate::Result;
use crate::spec::{DecoderSpec, FeedForwardSpec, LayerSpec, LinearSpec, VectorSpec};

/// Receives how many of how many bytes are loaded.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Reads weights into a backend's memory and counts bytes.
pub(crate) struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    store: &'a dyn Store,
    total_bytes: u64,
    /// Of every norm.
    eps: f32,
    loaded_bytes: AtomicU64,
    progress: Progress<'a>,
    caching: Caching,
}

/// What loading leaves behind in the system's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// The files, so that the next start is quick.
    Keep,
    /// Next to nothing: the memory is needed for something else.
    Forget,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        store: &'a dyn Store,
        total_bytes: u64,
        eps: f32,
        progress: Progress<'a>,
        caching: Caching,
    ) -> Self {
        let loaded_bytes = AtomicU64::new(0);
        Loader { checkpoint, store, total_bytes, eps, loaded_bytes, progress, caching }
    }

    fn read_span(&self, span: Span, out: &mut [u8]) -> Result<()> {
        if self.caching == Caching::Keep {
            return Ok(self.checkpoint.read_span(span, out)?);
        }
        self.checkpoint.read_span_uncached(span, out)?;
        Ok(())
    }

    /// A vector, for the backend.
    pub(crate) fn vector(&self, spec: &VectorSpec) -> Result<Vector> {
        Ok(self.store.vector(self.values(spec)?))
    }

    /// Values that were made of others.
    pub(crate) fn place(&self, values: Vec<f32>) -> Vector {
        self.store.vector(values)
    }

    /// An RMS norm.
    pub(crate) fn norm(&self, spec: &VectorSpec) -> Result<Norm> {
        Ok(Norm { weight: self.vector(spec)?, eps: self.eps })
    }

    /// An RMS norm without weights.
    pub(crate) fn plain_norm(&self, width: usize) -> Norm {
        Norm { weight: self.place(vec![1.0; width]), eps: self.eps }
    }

    /// A vector as f32.
    pub(crate) fn values(&self, spec: &VectorSpec) -> Result<Vec<f32>> {
        let mut values = self.checkpoint.read_f32(&spec.tensor)?;
        if spec.plus != 0.0 || spec.times != 1.0 {
            values.iter_mut().for_each(|value| *value = (*value + spec.plus) * spec.times);
        }
        self.count(spec.tensor.len_bytes);
        Ok(values)
    }

    /// A weight matrix in memory of its own.
    pub(crate) fn linear(&self, spec: &LinearSpec) -> Result<Linear> {
        let first = &spec.slices[0];
        let (rows, cols) = (spec.rows(), first.in_features);
        let encoding = first.encoding;
        let bytes = encoding.matrix_bytes(rows, cols);
        let mut memory = weight_memory(bytes)?;
        self.read_matrix(&mut memory[..bytes], rows, &spec.slices)?;
        let bias = self.bias(spec)?;
        let place = MatrixPlace::packed(0, rows, cols, encoding);
        Ok(Linear { weight: Weight::new(self.store.region(memory)?, place), bias })
    }

    /// The rows of a matrix, which stays in its file.
    pub(crate) fn rows(&self, spec: &LinearSpec) -> StoredRows {
        let matrix = &spec.slices[0];
        StoredRows {
            rows: self.checkpoint.rows(matrix),
            cols: matrix.in_features,
            encoding: matrix.encoding,
        }
    }

    fn bias(&self, spec: &LinearSpec) -> Result<Option<Vector>> {
        let Some(tensor) = &spec.bias else { return Ok(None) };
        let whole = self.checkpoint.read_f32(tensor)?;
        let rows = spec.ranges.iter().flat_map(|&(first, count)| &whole[first..first + count]);
        Ok(Some(self.place(rows.copied().collect())))
    }

    /// Codes of all slices, then scales, then biases: the layout of [`Weight`].
    fn read_matrix(&self, out: &mut [u8], rows: usize, slices: &[LinearSlice]) -> Result<()> {
        let encoding = slices[0].encoding;
        let cols = slices[0].in_features;
        let codes = rows * encoding.row_bytes(cols);
        let scales = rows * encoding.scale_bytes(cols);
        let (code_part, rest) = out.split_at_mut(codes);
        let (scale_part, bias_part) = rest.split_at_mut(scales);
        type Part = fn(&LinearSlice) -> Option<Span>;
        let parts: [(&mut [u8], Part); 3] = [
            (code_part, |s| Some(s.weight)),
            (scale_part, |s| s.scales),
            (bias_part, |s| s.biases),
        ];
        for (part, span_of) in parts {
            let mut at = 0;
            for span in slices.iter().filter_map(span_of) {
                let len = span.len_bytes as usize;
                self.read_span(span, &mut part[at..at + len])?;
                self.count(span.len_bytes);
                at += len;
            }
        }
        Ok(())
    }

    fn count(&self, bytes: u64) {
        let loaded = self.loaded_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(loaded.min(self.total_bytes), self.total_bytes);
    }
}

/// A table that stays in its file.
#[derive(Debug)]
pub(crate) struct StoredRows {
    rows: checkpoint::Rows,
    cols: usize,
    encoding: Encoding,
}

impl RowSource for StoredRows {
    fn rows(&self) -> usize {
        self.rows.count()
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn read(&self, row: usize, out: &mut [u8]) -> compute::Result<()> {
        let failed = |source| compute::Error::Row { row, source: Box::new(source) };
        self.rows.read(row, out).map_err(failed)
    }
}

/// All experts of a model in a backend's memory.
pub fn resident_bank(
    checkpoint: &Checkpoint,
    spec: &DecoderSpec,
    store: &dyn Store,
    progress: Progress<'_>,
) -> Result<Option<ResidentBank>> {
    let bytes = spec.expert_bytes();
    let loader = Loader::new(checkpoint, store, bytes, spec.eps, progress, Caching::Keep);
    bank_of_layers(&loader, &spec.layers, spec.hidden)
}

/// The experts of some layers in memory, if one of them has any.
pub(crate) fn bank_of_layers(
    loader: &Loader<'_>,
    specs: &[LayerSpec],
    hidden: usize,
) -> Result<Option<ResidentBank>> {
    let mut layers: Vec<Vec<ResidentExpert>> = specs.iter().map(|_| Vec::new()).collect();
    let mut has_experts = false;
    for (layer, spec) in specs.iter().enumerate() {
        let FeedForwardSpec::Moe(moe) = &spec.feed_forward else { continue };
        has_experts = true;
        let layout = &moe.experts;
        let shapes = moe.shapes(hidden);
        let sizes = shapes.map(|(rows, cols, encoding)| encoding.matrix_bytes(rows, cols));
        let bias_types = Projection::ALL.map(|part| layout.bias_float(part));
        // The three matrices, then the biases there are.
        let record = layout.bytes_per_expert() as usize;
        let mut memory = weight_memory(record * layout.experts())?;
        let records: Vec<&mut [u8]> =
            memory[..record * layout.experts()].chunks_exact_mut(record).collect();
        parallel(records, |expert, out| {
            let mut at = 0;
            for (projection, size) in Projection::ALL.into_iter().zip(sizes) {
                let slice = layout.slice(expert, projection);
                loader.read_matrix(&mut out[at..at + size], slice.out_features, &[slice])?;
                at += size;
            }
            for span in Projection::ALL.iter().filter_map(|&part| layout.slice(expert, part).bias) {
                let len = span.len_bytes as usize;
                loader.read_span(span, &mut out[at..at + len])?;
                loader.count(span.len_bytes);
                at += len;
            }
            Ok(())
        })?;
        let region = loader.store.region(memory)?;
        layers[layer] = (0..layout.experts())
            .map(|expert| {
                let mut at = expert * record;
                let projections = shapes.map(|(rows, cols, encoding)| {
                    let place = MatrixPlace::packed(at, rows, cols, encoding);
                    at += place.bytes();
                    place
                });
                let biases = [0, 1, 2].map(|part| {
                    let (start, float) = (at, bias_types[part]?);
                    at += shapes[part].0 * float.bytes();
                    Some(BiasPlace { start, float })
                });
                let is_interleaved = layout.is_interleaved();
                let place = ExpertPlace { projections, biases, is_interleaved };
                ResidentExpert { region: region.clone(), place }
            })
            .collect();
    }
    Ok(has_experts.then(|| ResidentBank::new(layers)))
}

/// Runs `f` for each item on a few threads; reading is a wait as much as it is work.
fn parallel<T: Send>(items: Vec<T>, f: impl Fn(usize, T) -> Result<()> + Sync) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).clamp(1, 8);
    let next = AtomicUsize::new(0);
    let items: Vec<std::sync::Mutex<Option<T>>> =
        items.into_iter().map(|item| std::sync::Mutex::new(Some(item))).collect();
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(index) else { return Ok(()) };
                let item = item.lock().ok().and_then(|mut slot| slot.take());
                if let Some(item) = item {
                    f(index, item)?;
                }
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut outcome = Ok(());
        for thread in threads {
            match thread.join() {
                Ok(result) => outcome = outcome.and(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        outcome
    })
}
