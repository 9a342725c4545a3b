//! What each file of a copy will consist of, byte by byte, before anything is written.
//!
//! A recipe can produce any range of its file from the model, so writing, checking and resuming are all
//! "the bytes from here to there". Safetensors allows no holes: an expert's record is filled up to the next
//! multiple of [`ALIGNMENT`] with a tensor called `padding.…`, and the header with spaces.

use std::collections::BTreeMap;

use anyhow::Result;
use checkpoint::write::{Declaration, header};
use checkpoint::{Checkpoint, ExpertLayout, LinearSlice, Projection, Span, Tensor};
use model::DecoderSpec;
use serde_json::{Map, json};

use format::{Dtype, Encoding};

/// Records begin at multiples of this: what every disk of today accepts for direct reads.
pub(super) const ALIGNMENT: u64 = 4096;

/// Where a file of other weights ends and the next begins.
const SHARD_BYTES: u64 = 5_000_000_000;

/// One file of a copy.
pub(super) struct Recipe {
    pub(super) name: String,
    pub(super) len_bytes: u64,
    header: Vec<u8>,
    /// In the order of the file, without holes.
    parts: Vec<Part>,
}

/// One tensor.
struct Part {
    tensor: String,
    /// Its first byte, counted from the beginning of the file.
    offset: u64,
    len_bytes: u64,
    /// Where its bytes come from; zeros without.
    span: Option<Span>,
}

/// A file that is being put together.
#[derive(Default)]
struct Draft {
    declarations: Vec<Declaration>,
    spans: Vec<Option<Span>>,
    len_bytes: u64,
}

/// Every file of weights: first what is no routed expert, then a file a layer.
pub(super) fn recipes(
    checkpoint: &Checkpoint,
    spec: &DecoderSpec,
    identity: &str,
) -> Result<Vec<Recipe>> {
    let mut metadata = BTreeMap::from([("millstream_source".to_owned(), identity.to_owned())]);
    if let Some(format) = checkpoint.metadata("format") {
        metadata.insert("format".to_owned(), format.to_owned());
    }
    let mut recipes = Vec::new();
    for (index, draft) in resident(checkpoint, spec).into_iter().enumerate() {
        let name = format!("resident-{:05}.safetensors", index + 1);
        recipes.push(draft.finish(name, &metadata)?);
    }
    for (layer, moe) in spec.moe_layers() {
        let name = format!("experts-{layer:03}.safetensors");
        recipes.push(experts(layer, &moe.experts).finish(name, &metadata)?);
    }
    Ok(recipes)
}

/// Whether a file name is one that [`recipes`] gives.
pub(super) fn is_weights(name: &str) -> bool {
    let number = name
        .strip_prefix("resident-")
        .or_else(|| name.strip_prefix("experts-"))
        .and_then(|rest| rest.strip_suffix(".safetensors"));
    number.is_some_and(|number| number.len() >= 3 && number.bytes().all(|c| c.is_ascii_digit()))
}

/// The index of these files.
pub(super) fn index(recipes: &[Recipe]) -> Vec<u8> {
    let mut weight_map = Map::new();
    for recipe in recipes {
        for part in &recipe.parts {
            weight_map.insert(part.tensor.clone(), json!(recipe.name));
        }
    }
    let total: u64 = recipes.iter().flat_map(|recipe| &recipe.parts).map(|p| p.len_bytes).sum();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    format!("{index:#}\n").into_bytes()
}

/// The module of one expert's projection, in the form where every expert has tensors of its own.
pub(super) fn module(experts: &ExpertLayout, expert: usize, projection: Projection) -> String {
    let path = experts.path();
    let parent = ["experts.switch_glu", "switch_mlp", "switch_glu", "experts"]
        .iter()
        .find_map(|stack| path.strip_suffix(stack)?.strip_suffix('.'))
        .unwrap_or(path);
    format!("{parent}.experts.{expert}.{}", experts.separate_name(projection))
}

/// Everything but the routed experts, in the order of the model's files.
fn resident(checkpoint: &Checkpoint, spec: &DecoderSpec) -> Vec<Draft> {
    let experts = expert_ranges(spec);
    let mut tensors: Vec<&Tensor> =
        checkpoint.tensors().filter(|tensor| !is_within(&experts, tensor.span())).collect();
    tensors.sort_by_key(|tensor| tensor.span());
    let mut drafts: Vec<Draft> = Vec::new();
    for tensor in tensors {
        let fits = |draft: &Draft| draft.len_bytes + tensor.len_bytes <= SHARD_BYTES;
        if !drafts.last().is_some_and(fits) {
            drafts.push(Draft::default());
        }
        if let Some(draft) = drafts.last_mut() {
            draft.add(&tensor.name, tensor.dtype, &tensor.shape, Some(tensor.span()));
        }
    }
    drafts
}

/// The bytes of all routed experts, as few sorted ranges.
fn expert_ranges(spec: &DecoderSpec) -> Vec<Span> {
    let mut spans: Vec<Span> = spec
        .moe_layers()
        .flat_map(|(_, moe)| (0..moe.experts.experts()).flat_map(|e| moe.experts.spans(e)))
        .collect();
    spans.sort_unstable();
    let mut ranges: Vec<Span> = Vec::new();
    for span in spans {
        match ranges.last_mut() {
            Some(last) if last.file == span.file && last.offset + last.len_bytes == span.offset => {
                last.len_bytes += span.len_bytes;
            }
            _ => ranges.push(span),
        }
    }
    ranges
}

fn is_within(ranges: &[Span], span: Span) -> bool {
    let after =
        ranges.partition_point(|range| (range.file, range.offset) <= (span.file, span.offset));
    ranges[..after].last().is_some_and(|range| {
        range.file == span.file
            && span.len_bytes > 0
            && span.offset + span.len_bytes <= range.offset + range.len_bytes
    })
}

/// The experts of one layer, a record each: all weights, then all scales, biases and ordinary biases.
fn experts(layer: usize, layout: &ExpertLayout) -> Draft {
    let mut draft = Draft::default();
    for expert in 0..layout.experts() {
        let slices = Projection::ALL.map(|projection| {
            (module(layout, expert, projection), layout.slice(expert, projection))
        });
        for part in ["weight", "scales", "biases", "bias"] {
            for (module, slice) in &slices {
                if let Some((dtype, shape, span)) = stored(slice, part) {
                    draft.add(&format!("{module}.{part}"), dtype, &shape, Some(span));
                }
            }
        }
        let hole = draft.len_bytes.next_multiple_of(ALIGNMENT) - draft.len_bytes;
        if hole > 0 {
            draft.add(&format!("padding.{layer}.{expert}"), Dtype::U8, &[hole as usize], None);
        }
    }
    draft
}

/// Dtype, shape and place of one part of a matrix.
fn stored(slice: &LinearSlice, part: &str) -> Option<(Dtype, Vec<usize>, Span)> {
    let encoding = slice.encoding;
    let (rows, columns) = (slice.out_features, slice.in_features);
    let scales = || Some((encoding.scale_dtype()?, vec![rows, columns / encoding.group()?]));
    let (dtype, shape, span) = match part {
        "weight" if encoding.is_quantized() => {
            let words = columns * encoding.bits()? as usize / 32;
            (Dtype::U32, vec![rows, words], slice.weight)
        }
        "weight" => {
            let Encoding::Dense(float) = encoding else { return None };
            (float.dtype(), vec![rows, columns], slice.weight)
        }
        "bias" => (slice.bias_float?.dtype(), vec![rows], slice.bias?),
        _ => {
            let span = if part == "scales" { slice.scales? } else { slice.biases? };
            let (dtype, shape) = scales()?;
            (dtype, shape, span)
        }
    };
    assert_eq!(dtype.tensor_bytes(&shape), Some(span.len_bytes), "{part} of {slice:?}");
    Some((dtype, shape, span))
}

impl Draft {
    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], span: Option<Span>) {
        let len_bytes =
            span.map_or_else(|| shape.iter().product::<usize>() as u64, |s| s.len_bytes);
        self.declarations.push(Declaration::new(name, dtype, shape));
        self.spans.push(span);
        self.len_bytes += len_bytes;
    }

    fn finish(self, name: String, metadata: &BTreeMap<String, String>) -> Result<Recipe> {
        let header = header(&self.declarations, metadata, ALIGNMENT)?;
        let mut offset = header.len() as u64;
        let mut parts = Vec::with_capacity(self.spans.len());
        for (declaration, span) in self.declarations.into_iter().zip(self.spans) {
            let bytes = declaration.dtype.tensor_bytes(&declaration.shape);
            let len_bytes = bytes.unwrap_or_default();
            parts.push(Part { tensor: declaration.name, offset, len_bytes, span });
            offset += len_bytes;
        }
        Ok(Recipe { name, len_bytes: offset, header, parts })
    }
}

impl Recipe {
    /// Everything before the data.
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    /// Fills `out` with what the file has at `offset`. The model is read in the order of its own files.
    pub(super) fn fill(&self, checkpoint: &Checkpoint, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset + out.len() as u64;
        assert!(end <= self.len_bytes, "{offset}..{end} of {}", self.name);
        if let Some(header) = self.header.get(offset as usize..) {
            let len = header.len().min(out.len());
            out[..len].copy_from_slice(&header[..len]);
        }
        let first = self.parts.partition_point(|part| part.offset + part.len_bytes <= offset);
        let mut wanted: Vec<(Span, usize)> = Vec::new();
        for part in self.parts[first..].iter().take_while(|part| part.offset < end) {
            let (from, to) = (part.offset.max(offset), (part.offset + part.len_bytes).min(end));
            let (at, len_bytes) = ((from - offset) as usize, to - from);
            match part.span {
                Some(span) => {
                    let offset = span.offset + (from - part.offset);
                    wanted.push((Span { offset, len_bytes, ..span }, at));
                }
                None => out[at..at + len_bytes as usize].fill(0),
            }
        }
        wanted.sort_unstable();
        for (span, at) in wanted {
            checkpoint.read_span(span, &mut out[at..at + span.len_bytes as usize])?;
        }
        Ok(())
    }

    /// What lies at a byte of the file, for messages.
    pub(super) fn tensor_at(&self, offset: u64) -> &str {
        let after = self.parts.partition_point(|part| part.offset <= offset);
        self.parts[..after].last().map_or("the header", |part| &part.tensor)
    }
}
