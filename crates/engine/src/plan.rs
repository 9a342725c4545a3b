//! The memory plan: what is resident, what a context costs, and whether it fits, from headers alone.

use compute::memory::KvFormat;
use model::DecoderSpec;
use serde::Serialize;

use crate::runner::{arena_floats, capacity};
use crate::{Options, Result};

/// What the program, its tokenizer and its threads take besides the model. Measured with a 35B-A3B-shaped
/// model's tokenizer (248k entries) on Linux, 15 Nov 2026; rounded up.
const PROGRAM_BYTES: u64 = 192 << 20;

/// The longest context planned unasked.
const DEFAULT_CONTEXT: usize = 32_768;

/// What the plan is made from.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanRequest {
    /// Memory that may be used; a safe share of what the system allows if `None`.
    pub memory_bytes: Option<u64>,
    /// Positions of a sequence; as many as fit, up to the model's own, if `None`.
    pub context: Option<usize>,
    /// How keys and values are kept.
    pub kv: Option<KvFormat>,
    /// Sequences at once.
    pub sequences: Option<usize>,
    /// Rows of a prefill step.
    pub chunk: Option<usize>,
}

/// One line of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What it is.
    pub name: &'static str,
    /// How much.
    pub bytes: u64,
    /// How it comes about.
    pub note: String,
}

/// Where the memory goes.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The parts.
    pub rows: Vec<Row>,
    /// Their sum.
    pub total_bytes: u64,
    /// What may be used.
    pub budget_bytes: u64,
    /// Whether the sum is within the budget.
    pub fits: bool,
    /// Bytes of routed experts, part of the sum.
    pub expert_bytes: u64,
    /// Bytes of experts that would not fit and would have to be read from the disk.
    pub would_stream_bytes: u64,
    /// Bytes of weights one token's forward pass reads.
    pub bytes_per_token: u64,
    /// Positions planned for.
    pub context: usize,
    /// The model's own limit.
    pub model_context: usize,
    /// What to do if it does not fit.
    pub hints: Vec<String>,
    /// Options that carry the plan out.
    #[serde(skip)]
    pub options: Options,
}

impl Plan {
    /// Plans a model.
    pub fn new(spec: &DecoderSpec, request: &PlanRequest) -> Result<Plan> {
        let budget_bytes = match request.memory_bytes {
            Some(bytes) => bytes,
            None => {
                machine::memory::Memory::read().map_or(u64::MAX, |memory| memory.budget_bytes())
            }
        };
        let mut options = Options::default();
        options.kv = request.kv.unwrap_or(options.kv);
        options.sequences = request.sequences.unwrap_or(options.sequences).max(1);
        options.chunk = request.chunk.unwrap_or(options.chunk);
        let largest = spec.context.max(1);
        match request.context {
            Some(context) => {
                options.context = context.clamp(1, largest);
                Plan::with(spec, options, budget_bytes)
            }
            None => {
                // The longest power of two that fits beside the weights.
                options.context = largest.min(DEFAULT_CONTEXT);
                loop {
                    let plan = Plan::with(spec, options, budget_bytes)?;
                    if plan.fits || options.context <= 2048 {
                        return Ok(plan);
                    }
                    options.context = (options.context / 2).next_power_of_two().max(2048);
                }
            }
        }
    }

    fn with(spec: &DecoderSpec, options: Options, budget_bytes: u64) -> Result<Plan> {
        let layout = spec.layout()?;
        let (resident, experts) = (spec.resident_bytes(), spec.expert_bytes());
        let state = layout.memory_bytes(options.kv, &capacity(&options)) as u64;
        let recurrent = (layout.recurrent_bytes() * options.sequences) as u64;
        let kv = state.saturating_sub(recurrent);
        // Quantised copies of the activations and thread-local buffers come to about the arena again.
        let arena = 2 * 4 * arena_floats(spec, &options) as u64;
        let per_token = layout.kv_bytes_per_token(options.kv);
        let mut rows = vec![Row {
            name: "weights every token uses",
            bytes: resident,
            note: format!("{} layers", spec.layers.len()),
        }];
        if let Some((_, moe)) = spec.moe_layers().next() {
            rows.push(Row {
                name: "routed experts",
                bytes: experts,
                note: format!(
                    "{} layers × {} experts, {} a token",
                    spec.moe_layers().count(),
                    moe.experts.experts(),
                    moe.experts_per_token
                ),
            });
        }
        if per_token > 0 {
            let note = format!("{} positions, {per_token} bytes each", options.context);
            rows.push(Row { name: "keys and values", bytes: kv, note });
        }
        if recurrent > 0 {
            let note = format!("{} sequence(s)", options.sequences);
            rows.push(Row { name: "recurrent state", bytes: recurrent, note });
        }
        let note = format!("prefill {} tokens at a time", options.chunk);
        rows.push(Row { name: "activations", bytes: arena, note });
        let note = "tokenizer, threads, program".to_string();
        rows.push(Row { name: "program", bytes: PROGRAM_BYTES, note });
        let total_bytes = rows.iter().map(|row| row.bytes).sum::<u64>();
        let over = total_bytes.saturating_sub(budget_bytes);
        let fits = over == 0;
        let mut hints = Vec::new();
        if !fits && kv > 0 && over < kv && options.context > 512 {
            let spare = kv - over;
            let context = (spare as usize / per_token.max(1) / 64 * 64).max(64);
            hints.push(format!("--context {context} would fit"));
        }
        if !fits {
            hints.push(format!("--memory {} would fit", round_up(total_bytes)));
        }
        Ok(Plan {
            rows,
            total_bytes,
            budget_bytes,
            fits,
            expert_bytes: experts,
            would_stream_bytes: over.min(experts),
            bytes_per_token: spec.bytes_per_token(),
            context: options.context,
            model_context: spec.context,
            hints,
            options,
        })
    }
}

/// A size a person would type.
fn round_up(bytes: u64) -> String {
    let mega = bytes.div_ceil(1 << 20);
    if mega < 4096 { format!("{mega}M") } else { format!("{}G", mega.div_ceil(1024)) }
}
