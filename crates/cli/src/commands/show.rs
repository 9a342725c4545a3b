//! `millstream show`: what a model is, from its headers and side files.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use checkpoint::gguf::{Field, Metadata};
use checkpoint::{Checkpoint, Projection};
use engine::SamplingParams;
use model::{DecoderSpec, LinearSpec, MixerSpec};
use serde::Serialize;
use text::ModelText;

use crate::args::ShowArgs;
use crate::console::{Align, print_json, table};
use crate::invocation::{Invocation, OpenModel, warning_lines};
use crate::size;

use format::Encoding;

/// A model in facts.
#[derive(Serialize)]
struct Facts {
    name: String,
    /// `None` for a model inside this program.
    folder: Option<String>,
    model_type: String,
    parameters: u64,
    active_parameters: u64,
    size_bytes: u64,
    resident_bytes: u64,
    expert_bytes: u64,
    bytes_per_token: u64,
    layers: usize,
    attention_layers: usize,
    recurrent_layers: usize,
    hidden: usize,
    experts: usize,
    experts_per_token: usize,
    context: usize,
    vocabulary: usize,
    weights: Vec<WeightKind>,
    /// Of a GGUF file, by type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<TensorKind>,
    tokenizer: Option<usize>,
    chat_template: bool,
    end_tokens: Vec<String>,
    sampling: BTreeMap<&'static str, f64>,
    /// What keeps text from working, if something does.
    text_error: Option<String>,
    warnings: Vec<String>,
}

/// All matrices that are stored alike.
#[derive(Serialize)]
struct WeightKind {
    encoding: String,
    bytes: u64,
    matrices: usize,
}

/// All tensors of a file that are of one type.
#[derive(Serialize)]
struct TensorKind {
    #[serde(rename = "type")]
    name: &'static str,
    bytes: u64,
    tensors: usize,
}

pub(crate) fn run(args: &ShowArgs, invocation: &Invocation) -> Result<()> {
    let model = invocation.open_quietly(&args.model)?;
    let facts = facts(&model);
    if args.json {
        return print_json(&facts);
    }
    std::io::stdout().write_all(text(&facts).as_bytes())?;
    Ok(())
}

fn facts(model: &OpenModel) -> Facts {
    let spec = &model.spec;
    let (parameters, active_parameters) = spec.parameters();
    let is_attention = |mixer: &MixerSpec| matches!(mixer, MixerSpec::Attention(_));
    let attention_layers = spec.layers.iter().filter(|layer| is_attention(&layer.mixer)).count();
    let moe = spec.moe_layers().next().map(|(_, moe)| moe);
    let metadata = model.checkpoint.gguf();
    let (text, text_error) = match engine::open_text(&model.checkpoint) {
        Ok(text) => (Some(text), None),
        Err(error) => {
            // With its causes: they say whether a file is missing, broken or could not be opened.
            let causes = || format!("{:#}", anyhow::Error::from(error));
            (None, Some(metadata.map_or_else(causes, inside)))
        }
    };
    let end_tokens = text.iter().flat_map(|text| {
        text.eos.iter().map(|&id| text.tokenizer.id_to_token(id).unwrap_or_else(|| id.to_string()))
    });
    Facts {
        name: model.name.clone(),
        folder: model.folder.as_ref().map(|folder| folder.display().to_string()),
        model_type: spec.model_type.clone(),
        parameters,
        active_parameters,
        size_bytes: model.checkpoint.total_bytes(),
        resident_bytes: spec.resident_bytes(),
        expert_bytes: spec.expert_bytes(),
        bytes_per_token: spec.bytes_per_token(),
        layers: spec.layers.len(),
        attention_layers,
        recurrent_layers: spec.layers.len() - attention_layers,
        hidden: spec.hidden,
        experts: moe.map_or(0, |moe| moe.experts.experts()),
        experts_per_token: moe.map_or(0, |moe| moe.experts_per_token()),
        context: spec.context,
        vocabulary: spec.vocab,
        weights: weight_kinds(spec),
        tensors: tensor_kinds(&model.checkpoint),
        tokenizer: text.as_ref().map(|text| text.tokenizer.vocab_size()),
        chat_template: text.as_ref().is_some_and(|text| text.template.is_some())
            || metadata.is_some_and(|metadata| metadata.str("tokenizer.chat_template").is_some()),
        end_tokens: end_tokens.collect(),
        sampling: text.as_ref().map(sampling).unwrap_or_default(),
        text_error,
        warnings: warning_lines(&model.checkpoint.warnings()),
    }
}

/// The vocabulary of a GGUF file whose text cannot be used.
fn inside(metadata: &Metadata) -> String {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let tokens = match metadata.get(&key("tokens")) {
        Some(Field::Texts(tokens)) => tokens.len(),
        _ => return "the file has no vocabulary".to_owned(),
    };
    let names = ["model", "pre"].map(|name| metadata.str(&key(name)).unwrap_or("unnamed"));
    format!("{tokens} tokens in the file ({}), not usable", names.join(", "))
}

/// Bytes of matrices by how they are stored, most first. Vectors (norms and the like) are not matrices.
fn weight_kinds(spec: &DecoderSpec) -> Vec<WeightKind> {
    let mut kinds: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    let mut add = |encoding: Encoding, bytes: u64, matrices: usize| {
        let kind = kinds.entry(encoding.to_string()).or_default();
        kind.0 += bytes;
        kind.1 += matrices;
    };
    let ends = [Some(&spec.embed), spec.head.as_ref()].into_iter().flatten();
    let layers = spec.layers.iter().flat_map(|layer| layer.linears());
    for linear in ends.chain(layers).filter(|linear: &&LinearSpec| !linear.slices.is_empty()) {
        add(linear.slices[0].encoding, linear.bytes(), 1);
    }
    for (_, moe) in spec.moe_layers() {
        let experts = moe.experts.experts();
        for projection in Projection::ALL {
            let bytes = moe.experts.slice(0, projection).bytes() * experts as u64;
            add(moe.experts.encoding(projection), bytes, experts);
        }
    }
    let mut kinds: Vec<WeightKind> = kinds
        .into_iter()
        .map(|(encoding, (bytes, matrices))| WeightKind { encoding, bytes, matrices })
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.bytes));
    kinds
}

/// Bytes of the tensors of a GGUF file by their type, most first.
fn tensor_kinds(checkpoint: &Checkpoint) -> Vec<TensorKind> {
    if checkpoint.gguf().is_none() {
        return Vec::new();
    }
    let mut kinds: BTreeMap<&'static str, (u64, usize)> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let kind = kinds.entry(tensor.dtype.name()).or_default();
        *kind = (kind.0 + tensor.len_bytes, kind.1 + 1);
    }
    let mut kinds: Vec<TensorKind> = kinds
        .into_iter()
        .map(|(name, (bytes, tensors))| TensorKind { name, bytes, tensors })
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.bytes));
    kinds
}

/// How most of the weights are stored.
pub(crate) fn main_encoding(spec: &DecoderSpec) -> String {
    weight_kinds(spec).into_iter().next().map(|kind| kind.encoding).unwrap_or_default()
}

/// What the model's makers sample with, where it is not the plain distribution.
fn sampling(text: &ModelText) -> BTreeMap<&'static str, f64> {
    let (own, plain) =
        (&SamplingParams::of_model(&text.generation_config), SamplingParams::default());
    let pairs = [
        ("temperature", own.temperature, plain.temperature),
        ("top-p", own.top_p, plain.top_p),
        ("top-k", own.top_k as f32, plain.top_k as f32),
        ("min-p", own.min_p, plain.min_p),
        ("repetition-penalty", own.repetition_penalty, plain.repetition_penalty),
    ];
    // Through text, or 0.7 would become 0.699999988079071.
    let decimal = |value: f32| value.to_string().parse().unwrap_or(f64::from(value));
    pairs.into_iter().filter(|p| p.1 != p.2).map(|p| (p.0, decimal(p.1))).collect()
}

/// End tokens that are shown, and characters of each: a file may name any number of any length.
const END_TOKENS: usize = 16;
const END_TOKEN_CHARS: usize = 40;

/// Characters of an error that are shown.
const ERROR_CHARS: usize = 1000;

/// The tokens that end an answer, as far as they fit in a line.
fn ends(tokens: &[String]) -> String {
    let mut shown: Vec<String> =
        tokens.iter().take(END_TOKENS).map(|token| one_line(token, END_TOKEN_CHARS)).collect();
    if tokens.len() > END_TOKENS {
        shown.push(format!("and {} more", tokens.len() - END_TOKENS));
    }
    shown.join(" ")
}

/// What a file says, without the control characters that a terminal would obey.
fn one_line(text: &str, most_chars: usize) -> String {
    let mut line = String::new();
    for character in text.chars().take(most_chars) {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    if text.chars().nth(most_chars).is_some() {
        line.push('…');
    }
    line
}

fn text(facts: &Facts) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![format!("  {name}"), value]);
    row("architecture", facts.model_type.clone());
    let active = match facts.active_parameters < facts.parameters {
        true => format!(", {} used by a token", size::count(facts.active_parameters)),
        false => String::new(),
    };
    row("parameters", format!("{}{active}", size::count(facts.parameters)));
    let layers = match (facts.attention_layers, facts.recurrent_layers) {
        (_, 0) => facts.layers.to_string(),
        (attention, recurrent) => {
            format!("{}: {attention} attention, {recurrent} recurrent", facts.layers)
        }
    };
    row("layers", layers);
    row("hidden size", facts.hidden.to_string());
    let experts = match facts.experts {
        0 => "none".to_owned(),
        count => format!("{count} a layer, {} used by a token", facts.experts_per_token),
    };
    row("experts", experts);
    row("context", format!("{} positions", facts.context));
    row("vocabulary", format!("{} tokens", facts.vocabulary));
    let tokenizer = match (facts.tokenizer, &facts.text_error) {
        (Some(size), _) => format!("{size} tokens, ends at {}", ends(&facts.end_tokens)),
        (None, error) => one_line(error.as_deref().unwrap_or_default(), ERROR_CHARS),
    };
    row("tokenizer", tokenizer);
    row("chat template", if facts.chat_template { "yes" } else { "no" }.to_owned());
    if !facts.sampling.is_empty() {
        let pairs = facts.sampling.iter().map(|(name, value)| format!("{name} {value}"));
        row("sampling", pairs.collect::<Vec<_>>().join(", "));
    }
    row("size", size::bytes(facts.size_bytes));
    row("every token", size::bytes(facts.resident_bytes));
    row("routed experts", size::bytes(facts.expert_bytes));
    row("read by a token", size::bytes(facts.bytes_per_token));
    let place = if facts.tensors.is_empty() { "folder" } else { "file" };
    row(place, facts.folder.clone().unwrap_or_else(|| "inside this program".to_owned()));
    let mut text = format!("{}\n\n", facts.name);
    text.push_str(&table(&[Align::Left, Align::Left], &rows));

    let matrices = facts.weights.iter().map(|kind| {
        let matrices = format!("{} matrices", kind.matrices);
        vec![format!("  {}", kind.encoding), size::bytes(kind.bytes), matrices]
    });
    let tensors = facts.tensors.iter().map(|kind| {
        let tensors = size::counted(kind.tensors, "tensor");
        vec![format!("  {}", kind.name), size::bytes(kind.bytes), tensors]
    });
    let kinds: Vec<Vec<String>> = match facts.tensors.is_empty() {
        true => matrices.collect(),
        false => tensors.collect(),
    };
    text.push_str("\nweights\n\n");
    text.push_str(&table(&[Align::Left, Align::Right, Align::Right], &kinds));
    for warning in &facts.warnings {
        text.push_str(&format!("\nwarning: {warning}\n"));
    }
    text
}
