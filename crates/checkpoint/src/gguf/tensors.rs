//! Tensors by the names and in the shapes that architectures look for.
//!
//! Nothing is read or moved: a tensor with the rows of three becomes three ranges of its bytes, and dimensions of one
//! that the file left out come back. What is no part of the model is counted in warnings.

use std::collections::BTreeMap;

use super::architecture::Family;
use super::conversion::{Conversion, FactorLayers, FrequencyFactors, HeadOrder, Rate, RotaryPairs};
use super::names::{self, DELTA_INPUT, Form, GLOBAL, HEAD, Name, Suffix};
use super::outline::Outline;
use crate::{Error, Result, Tensor, Warning, layout};

/// The tensors of a model, and what is to be known about them.
pub(super) struct Placed {
    /// Sorted by name.
    pub(super) tensors: Vec<Tensor>,
    pub(super) conversion: Conversion,
    pub(super) warnings: Vec<Warning>,
}

/// Divisors of the rotation's frequencies.
const FREQUENCY_FACTORS: &str = "rope_freqs.weight";

/// Gives every tensor of the model its name and shape.
pub(super) fn place(outline: &Outline<'_>) -> Result<Placed> {
    let mut placed =
        Placed { tensors: Vec::new(), conversion: conversion(outline)?, warnings: Vec::new() };
    let mut skipped: BTreeMap<&'static str, (usize, u64)> = BTreeMap::new();
    let mut unread: Vec<&Tensor> = Vec::new();
    for tensor in outline.tensors {
        if tensor.name == FREQUENCY_FACTORS {
            placed.tensors.push(tensor.clone());
        } else if let Some((_, part)) =
            names::PARTS.iter().find(|(start, _)| tensor.name.starts_with(start))
        {
            let (count, bytes) = skipped.entry(part).or_default();
            (*count, *bytes) = (*count + 1, *bytes + tensor.len_bytes);
        } else if !placed.add(outline, tensor)? && !tensor.name.ends_with(".input_scale") {
            // Scales of inputs are for activations of four bits, which nothing here has.
            unread.push(tensor);
        }
    }
    let path = outline.metadata.path();
    layout::check_names(&placed.tensors, path)?;
    placed.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    for (part, (count, bytes)) in skipped {
        placed.warnings.push(Warning::Skipped { part, count, bytes });
    }
    if let Some(first) = unread.first() {
        placed.warnings.push(Warning::UnknownTensors {
            count: unread.len(),
            bytes: unread.iter().map(|tensor| tensor.len_bytes).sum(),
            first: first.name.clone(),
        });
    }
    Ok(placed)
}

/// What cannot be undone here.
fn conversion(outline: &Outline<'_>) -> Result<Conversion> {
    let is_hybrid =
        matches!(outline.family(), Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe);
    let factors = outline.tensor(FREQUENCY_FACTORS).cloned();
    let layers = match outline.family() {
        Family::Gemma4 => FactorLayers::Full,
        _ => FactorLayers::All,
    };
    Ok(Conversion {
        rotary_pairs: match outline.family() {
            Family::Llama => RotaryPairs::Neighbours,
            _ => RotaryPairs::Halves,
        },
        norms_are_multipliers: true,
        value_heads: value_heads(outline)?,
        rate: if is_hybrid { Rate::Negative } else { Rate::Logarithm },
        frequency_factors: factors.map(|tensor| FrequencyFactors { tensor, layers }),
        output_scales: Vec::new(),
    })
}

/// The first files of Ollama's converter had value heads as published; later ones say that they have not.
fn value_heads(outline: &Outline<'_>) -> Result<HeadOrder> {
    if !matches!(outline.family(), Family::Qwen35 | Family::Qwen35Moe) {
        return Ok(HeadOrder::Grouped);
    }
    let is_reordered = outline.metadata.bool(&outline.key("ssm.v_head_reordered"))?;
    let is_ollamas = || outline.tensors.iter().any(|tensor| tensor.name.ends_with(".ssm_dt"));
    Ok(match is_reordered.unwrap_or_else(|| !is_ollamas()) {
        true => HeadOrder::Tiled,
        false => HeadOrder::Grouped,
    })
}

impl Placed {
    /// Takes a tensor in; false if its name is not known.
    fn add(&mut self, outline: &Outline<'_>, tensor: &Tensor) -> Result<bool> {
        let Some((layer, rest)) = names::layer(&tensor.name) else {
            let Some((entry, suffix)) = names::find(&[GLOBAL], &tensor.name) else {
                return Ok(false);
            };
            self.push(tensor, String::new(), entry, suffix);
            return Ok(true);
        };
        let is_head = layer >= outline.layers;
        if layer >= outline.layers + outline.head_layers {
            return Ok(false);
        }
        let of_head = is_head.then(|| names::find(&[HEAD], rest)).flatten();
        if let Some((entry, suffix)) = of_head {
            let number = layer - outline.layers;
            // All that is read has one.
            let prefix = if number == 0 { "mtp.".into() } else { format!("mtp.heads.{number}.") };
            self.push(tensor, prefix, entry, suffix);
            return Ok(true);
        }
        let Some((mut entry, suffix)) = names::find(outline.architecture.names, rest) else {
            return Ok(false);
        };
        let prefix = match is_head {
            true => format!("mtp.layers.{}.", layer - outline.layers),
            false => format!("model.layers.{layer}."),
        };
        if entry.2 == Form::QueryKeyValue {
            if !outline.is_delta(layer) {
                self.split(outline, tensor, &format!("{prefix}{}", entry.1), suffix, layer)?;
                return Ok(true);
            }
            entry = DELTA_INPUT;
        }
        self.push(tensor, prefix, entry, suffix);
        Ok(true)
    }

    fn push(&mut self, tensor: &Tensor, prefix: String, (_, path, form): Name, suffix: Suffix) {
        let form = match suffix {
            Suffix::None | Suffix::Weight => form,
            Suffix::Bias | Suffix::Scale => Form::Plain,
        };
        let name = prefix + path + suffix.ending();
        let tensor = Tensor { name, ..shaped(tensor, form) };
        if suffix == Suffix::Scale {
            self.conversion.output_scales.push(tensor.clone());
        }
        self.tensors.push(tensor);
    }

    /// Queries, keys and values of one tensor, as ranges of its rows. Values may be missing where keys serve as such.
    fn split(
        &mut self,
        outline: &Outline<'_>,
        tensor: &Tensor,
        path: &str,
        suffix: Suffix,
        layer: usize,
    ) -> Result<()> {
        let named = |name: &str| format!("{path}.{name}{}", suffix.ending());
        if suffix == Suffix::Scale {
            // One for all three.
            for name in ["q_proj", "k_proj", "v_proj"] {
                let tensor = Tensor { name: named(name), ..tensor.clone() };
                self.conversion.output_scales.push(tensor.clone());
                self.tensors.push(tensor);
            }
            return Ok(());
        }
        let heads = outline.attention[layer];
        let of = |count: usize| count.saturating_mul(heads.head_dim);
        let query_rows = of(heads.heads).saturating_mul(if outline.is_gated() { 2 } else { 1 });
        let key_rows = of(heads.kv_heads);
        let rows = tensor.shape.first().copied().unwrap_or(0);
        let both = query_rows.saturating_add(key_rows);
        let value_rows = if rows == both { 0 } else { key_rows };
        let mut expected = vec![both.saturating_add(value_rows)];
        if suffix != Suffix::Bias {
            expected.push(tensor.shape.get(1).copied().unwrap_or(outline.hidden()?));
        }
        let (path, name) = (outline.metadata.path().to_owned(), tensor.name.clone());
        if tensor.shape != expected || rows == 0 {
            return Err(Error::Shape { path, tensor: name, expected, got: tensor.shape.clone() });
        }
        if suffix == Suffix::Bias && !tensor.dtype.is_float() {
            // In blocks, values of a row cannot be told apart by their bytes.
            let expected = "an F32, F16 or BF16 bias";
            return Err(Error::WrongDtype { path, tensor: name, expected, got: tensor.dtype });
        }
        let mut first = 0;
        for (name, count) in [("q_proj", query_rows), ("k_proj", key_rows), ("v_proj", value_rows)]
        {
            let span = tensor.span().rows(first, count, rows);
            let mut part = tensor.clone();
            part.shape[0] = count;
            (part.offset, part.len_bytes) = (span.offset, span.len_bytes);
            part.name = named(name);
            first += count;
            if count > 0 {
                self.tensors.push(part);
            }
        }
        Ok(())
    }
}

/// The tensor with the dimensions that its form has; what does not fit stays, and its reader says so.
fn shaped(tensor: &Tensor, form: Form) -> Tensor {
    let mut tensor = tensor.clone();
    let dimensions = match form {
        Form::Plain => return tensor,
        Form::Matrix | Form::QueryKeyValue => 2,
        Form::Stack => 3,
        Form::Kernel => {
            match *tensor.shape {
                [channels, taps] | [channels, 1, taps] => tensor.shape = vec![channels, taps, 1],
                _ => {}
            }
            return tensor;
        }
    };
    while tensor.shape.len() < dimensions {
        tensor.shape.insert(0, 1);
    }
    tensor
}
