//! The memory plan: what is resident, what a context costs, how many experts are kept, from headers alone.
//!
//! The plan fixes every size before anything is loaded. If all experts fit they are all in memory; if not,
//! everything else is, and what is left buys slots. A plan for serving shares the positions of all sequences,
//! and keeps room for prompts and answers of the past.

use compute::memory::{BLOCK, KvFormat};
use experts::{Geometry, Slots};
use machine::size::counted;
use model::DecoderSpec;
use serde::Serialize;
use state::Capacity;

use crate::runner::{arena_floats, capacity, layout, scratch_bytes};
use crate::{HeadOptions, Options, Result, streaming};

/// Name of the row that is there without a model too.
const PROGRAM: &str = "program";

/// What the program, its tokenizer and its threads take in addition to the model. Measured with a 35B-A3B-shaped
/// model's tokenizer (248k entries) on Linux, 15 Nov 2026; rounded up.
const PROGRAM_BYTES: u64 = 192 << 20;

/// What a server keeps in addition for each token of the vocabulary, so that answers can be made to follow a
/// grammar: about 130 MB more for 250,000 tokens, with the masks of a few answers. Measured on Linux,
/// 15 Nov 2026.
const GRAMMAR_BYTES_PER_TOKEN: u64 = 600;

/// Name of the row that [`Plan::request_bytes`] reads.
const REQUESTS: &str = "requests";

/// What a server needs at least for what requests hold (bodies, parsed values, rendered prompts, grammars): a
/// conversation that fills the context has to pass, and small ones in addition. More than that where it is there.
const LEAST_REQUEST_BYTES: u64 = 20 << 20;
const USUAL_REQUEST_BYTES: u64 = 32 << 20;
const REQUEST_BYTES_PER_TOKEN: u64 = 1 << 10;

/// What it is given: a share of the budget, where everything else leaves it. Slots for experts have a better use for memory.
const REQUEST_SHARE_RESIDENT: u64 = 16;
const REQUEST_SHARE_STREAMED: u64 = 64;
const MOST_REQUEST_BYTES: u64 = 512 << 20;

/// The same for a program that reads one prompt at a time: what a template may take for a context (4 MiB, and 256 bytes
/// for each token of it), and what encoding takes of a text with six bytes for each token, a hundred times its length.
const PROMPT_BYTES: u64 = 8 << 20;
const PROMPT_BYTES_PER_TOKEN: u64 = 640;

/// Name of the row of what connections hold before anything is known of their requests.
const CONNECTIONS: &str = "connections";

/// The longest context planned unasked.
const DEFAULT_CONTEXT: usize = 32_768;

/// The shortest context planned unasked.
const LEAST_CONTEXT: usize = 2048;

/// Rows of a prefill step that are tried, the longest first, for a model that streams: each step reads
/// every expert its rows are routed to.
const CHUNKS: [usize; 6] = [2048, 1024, 512, 256, 128, 64];

/// What keys and values, or activations, of a model that streams may take of what the weights leave; when
/// serving, also what the pool of positions and the checkpoints may take unasked.
const SHARE_OF_REST: u64 = 8;

/// Checkpoints of the prefix cache planned unasked when serving, where sequences cannot be rewound.
const LEAST_CHECKPOINTS: usize = 4;
const MOST_CHECKPOINTS: usize = 64;

/// Whether experts are read when they are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streaming {
    /// If they do not fit.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

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
    /// Whether positions are shared among the sequences, and the past is kept: what is left out below is then
    /// chosen by what there is, not by the worst case of every sequence.
    pub serving: bool,
    /// What connections may hold in addition to what requests do.
    pub connection_bytes: u64,
    /// Positions over all sequences and the prefix cache, at least one sequence's.
    pub pool_tokens: Option<usize>,
    /// States of the prefix cache in addition to those of the sequences.
    pub checkpoints: Option<usize>,
    /// Rows of a prefill step.
    pub chunk: Option<usize>,
    /// Compute threads: each has buffers of its own.
    pub threads: Option<usize>,
    /// Whether experts are read when they are wanted.
    pub streaming: Streaming,
    /// Memory for experts, if it is not to be what is left.
    pub expert_cache_bytes: Option<u64>,
    /// Slots for experts, if they are to be this many.
    pub expert_slots: Option<usize>,
    /// What a model that drafts for this one takes, with all its memory.
    pub draft_bytes: u64,
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

/// What reading experts from the disk is expected to come to.
#[derive(Clone, Debug, Serialize)]
pub struct StreamPlan {
    /// Slots that keep experts.
    pub slots: usize,
    /// Slots that experts pass through.
    pub staging_slots: usize,
    /// Share of all experts that the slots keep.
    pub kept_share: f64,
    /// Share of a token's experts expected in memory: if all are equally likely, and as published for
    /// real models.
    pub hit_rate: [f64; 2],
    /// Bytes a token is expected to read: at the first hit rate, at the second.
    pub read_bytes_per_token: [u64; 2],
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
    /// Bytes of all routed experts.
    pub expert_bytes: u64,
    /// Bytes of experts that are not in memory at once.
    pub would_stream_bytes: u64,
    /// How experts come from the disk; null if all are in memory.
    pub streaming: Option<StreamPlan>,
    /// Bytes of weights one token's forward pass reads.
    pub bytes_per_token: u64,
    /// Positions planned for a sequence.
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
    /// What the model takes in addition to a program that is there already.
    pub fn model_bytes(&self) -> u64 {
        let rows =
            self.rows.iter().filter(|row| ![PROGRAM, REQUESTS, CONNECTIONS].contains(&row.name));
        rows.fold(0, |sum, row| sum.saturating_add(row.bytes))
    }

    /// What all requests may hold together: their bodies, what is read from them, and their prompts as text.
    pub fn request_bytes(&self) -> u64 {
        let rows = self.rows.iter().filter(|row| row.name == REQUESTS);
        rows.fold(0, |sum, row| sum.saturating_add(row.bytes))
    }

    /// Plans a model.
    pub fn new(spec: &DecoderSpec, request: &PlanRequest) -> Result<Plan> {
        Plan::with_head(spec, request, None)
    }

    /// Plans a model with a draft head: its weights, what it keeps of each position, and its activations.
    pub fn with_head(
        spec: &DecoderSpec,
        request: &PlanRequest,
        head: Option<HeadOptions>,
    ) -> Result<Plan> {
        let budget_bytes = match request.memory_bytes {
            Some(bytes) => bytes,
            None => {
                machine::memory::Memory::read().map_or(u64::MAX, |memory| memory.budget_bytes())
            }
        };
        let mut options = Options { head, ..Options::default() };
        options.kv = request.kv.unwrap_or(options.kv);
        options.sequences = request.sequences.unwrap_or(options.sequences).max(1);
        options.chunk = request.chunk.unwrap_or(options.chunk);
        options.threads = request.threads.unwrap_or(options.threads);
        options.checkpoints = request.checkpoints.unwrap_or(options.checkpoints);
        let planner = Planner::new(spec, request, budget_bytes)?;
        let longest = spec.context.max(1);
        let asked = request.context.map(|context| context.clamp(1, longest));
        // The longest context that fits together with everything in memory.
        let mut context = asked.unwrap_or(longest.min(DEFAULT_CONTEXT));
        if planner.may_be_resident() {
            loop {
                options.context = context;
                let plan = planner.resident(options.clone())?;
                if plan.fits
                    || (!planner.may_stream() && (asked.is_some() || context <= LEAST_CONTEXT))
                {
                    return Ok(plan);
                }
                if asked.is_some() || context <= LEAST_CONTEXT {
                    break;
                }
                context = (context / 2).next_power_of_two().max(LEAST_CONTEXT);
            }
        }
        planner.streamed(options, asked, request.chunk)
    }
}

/// What stays the same while a plan is sought.
struct Planner<'a> {
    spec: &'a DecoderSpec,
    request: &'a PlanRequest,
    budget_bytes: u64,
    /// `None` for a model without routed experts.
    geometry: Option<Geometry>,
}

impl<'a> Planner<'a> {
    fn new(spec: &'a DecoderSpec, request: &'a PlanRequest, budget_bytes: u64) -> Result<Self> {
        let geometry = spec.moe_layers().next().map(|_| streaming::geometry(spec));
        Ok(Planner { spec, request, budget_bytes, geometry })
    }

    fn may_stream(&self) -> bool {
        self.geometry.is_some() && self.request.streaming != Streaming::Never
    }

    /// Whether all experts may be in memory. A given number of slots forces slots.
    fn may_be_resident(&self) -> bool {
        let sized =
            self.request.expert_cache_bytes.is_some() || self.request.expert_slots.is_some();
        !self.may_stream() || (self.request.streaming == Streaming::Auto && !sized)
    }

    fn resident(&self, options: Options) -> Result<Plan> {
        let options = self.share(options, self.spec.expert_bytes())?;
        let mut rows = self.fixed_rows(&options)?;
        if let Some((_, moe)) = self.spec.moe_layers().next() {
            let note = format!(
                "{} × {}, {} a token",
                counted(self.spec.moe_layers().count(), "layer"),
                counted(moe.experts.experts(), "expert"),
                moe.experts_per_token()
            );
            rows.insert(1, Row { name: "routed experts", bytes: self.spec.expert_bytes(), note });
        }
        self.give_requests(&mut rows, &options, REQUEST_SHARE_RESIDENT, 0);
        self.plan(rows, None, options)
    }

    /// Everything but the experts in memory, and slots for what is left.
    fn streamed(
        &self,
        mut options: Options,
        context: Option<usize>,
        chunk: Option<usize>,
    ) -> Result<Plan> {
        let Some(geometry) = &self.geometry else { return self.resident(options) };
        // Unasked, the context and the activations take at most a share each of what the weights leave.
        let fixed = self.resident_bytes(&options) + self.program_bytes() + self.request.draft_bytes;
        let rest = self.budget_bytes.saturating_sub(fixed);
        let share = rest / SHARE_OF_REST;
        options.context = match context {
            Some(context) => context,
            None => {
                let layout = layout(self.spec, &options)?;
                let mut context = self.spec.context.clamp(1, DEFAULT_CONTEXT);
                while context > LEAST_CONTEXT
                    && layout.kv_bytes_per_token() as u64 * context as u64 > share
                {
                    context = (context / 2).next_power_of_two().max(LEAST_CONTEXT);
                }
                context
            }
        };
        if chunk.is_none() {
            let fits = |&&chunk: &&usize| {
                let options = Options { chunk, ..options.clone() };
                chunk < 2 * options.context && self.activation_bytes(&options) <= share
            };
            let chunks = CHUNKS.iter();
            options.chunk = chunks.clone().find(fits).copied().unwrap_or(CHUNKS[CHUNKS.len() - 1]);
        }
        let mut options = self.share(options, geometry.least_bytes())?;
        let mut rows = self.fixed_rows(&options)?;
        let least = geometry.least_bytes();
        self.give_requests(&mut rows, &options, REQUEST_SHARE_STREAMED, least);
        let fixed = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.bytes));
        let left = self.budget_bytes.saturating_sub(fixed);
        let slots = match (self.request.expert_slots, self.request.expert_cache_bytes) {
            (Some(count), _) => Some(geometry.with_total(count)?),
            (None, Some(bytes)) => {
                Some(geometry.fit(bytes).ok_or_else(|| too_little(geometry, bytes))?)
            }
            (None, None) => geometry.fit(left),
        };
        let bytes = slots.as_ref().map_or(geometry.least_bytes(), |slots| slots.bytes);
        let note = match &slots {
            Some(slots) => format!(
                "{} kept of {}, {} to pass through",
                slots.kept(),
                geometry.experts(),
                slots.staging()
            ),
            None => "one token's of one layer".to_owned(),
        };
        rows.insert(1, Row { name: "expert slots", bytes, note });
        options.slots = Some(slots.unwrap_or(Slots { classes: Vec::new(), bytes }));
        self.plan(rows, Some(geometry), options)
    }

    /// Positions and checkpoints that all sequences share, chosen by what everything else leaves.
    fn share(&self, mut options: Options, expert_bytes: u64) -> Result<Options> {
        let PlanRequest { serving, pool_tokens, checkpoints, .. } = *self.request;
        options.pool_tokens = pool_tokens.map(|tokens| tokens.max(options.context));
        if !serving {
            return Ok(options);
        }
        let layout = layout(self.spec, &options)?;
        let state = |options: &Options| layout.memory_bytes(&capacity(options)) as u64;
        let other = self.resident_bytes(&options)
            + expert_bytes
            + self.program_bytes()
            + self.least_request_bytes(&options)
            + self.request.connection_bytes
            + self.request.draft_bytes
            + self.activation_bytes(&options);
        let left = |taken| self.budget_bytes.saturating_sub(other).saturating_sub(taken);
        let share = |taken| left(taken) / SHARE_OF_REST;
        if pool_tokens.is_none() {
            // As many as each sequence at its longest could use.
            let most = options.context.saturating_mul(options.sequences);
            let per_token = layout.kv_bytes_per_token() as u64;
            let bought = share(0).checked_div(per_token).map_or(most, |tokens| tokens as usize);
            options.pool_tokens = Some(most.min(bought / BLOCK * BLOCK).max(options.context));
        }
        if checkpoints.is_none() && !layout.is_rewindable() {
            let without = state(&options);
            // All that fit, if the least do not.
            let fits = |&checkpoints: &usize| {
                let bytes = state(&Options { checkpoints, ..options.clone() }) - without;
                let is_least = checkpoints <= LEAST_CHECKPOINTS;
                bytes <= share(without) || (is_least && bytes <= left(without))
            };
            options.checkpoints = (0..=MOST_CHECKPOINTS).rev().find(fits).unwrap_or(0);
        }
        Ok(options)
    }

    /// All but the experts.
    fn fixed_rows(&self, options: &Options) -> Result<Vec<Row>> {
        let layout = layout(self.spec, options)?;
        let state = |checkpoints| {
            let capacity = Capacity { checkpoints, ..capacity(options) };
            layout.memory_bytes(&capacity) as u64
        };
        let recurrent = (layout.recurrent_bytes() * options.sequences) as u64;
        let kv = state(0).saturating_sub(recurrent);
        let cache = state(options.checkpoints).saturating_sub(state(0));
        let per_token = layout.kv_bytes_per_token();
        let mut rows = vec![Row {
            name: "weights every token uses",
            bytes: self.spec.resident_bytes(),
            note: counted(self.spec.layers.len(), "layer"),
        }];
        if let Some(per_layer) = &self.spec.per_layer {
            let (all, row) = (machine::size::bytes(per_layer.table.bytes()), per_layer.row_bytes());
            let note = format!("{all} stay on the disk, {row} bytes a token are read");
            rows.push(Row { name: "embeddings of layers", bytes: 0, note });
        }
        if let Some(head) = &options.head {
            let layers = counted(head.spec.stack.len(), "layer");
            let note = format!("{}, {layers}", head.spec.name());
            rows.push(Row { name: "draft head", bytes: head.spec.bytes(), note });
        }
        if kv > 0 {
            let mut note = match options.pool_tokens {
                None => {
                    format!("{}, {per_token} bytes each", counted(options.context, "position"))
                }
                Some(_) => format!(
                    "{} for {} of at most {}, {per_token} bytes each",
                    counted(options.pool_positions(), "position"),
                    counted(options.sequences, "sequence"),
                    options.context
                ),
            };
            let windows = layout.window_bytes();
            if windows > 0 {
                note += &format!(", windows of {}", machine::size::bytes(windows as u64));
            }
            rows.push(Row { name: "keys and values", bytes: kv, note });
        }
        if recurrent > 0 {
            let note = counted(options.sequences, "sequence");
            rows.push(Row { name: "recurrent state", bytes: recurrent, note });
        }
        if cache > 0 {
            let note = format!("{} of past prompts", counted(options.checkpoints, "checkpoint"));
            rows.push(Row { name: "prefix cache", bytes: cache, note });
        }
        let note = format!("prefill {} at a time", counted(options.chunk, "token"));
        rows.push(Row { name: "activations", bytes: self.activation_bytes(options), note });
        if self.request.draft_bytes > 0 {
            let (name, bytes) = ("draft model", self.request.draft_bytes);
            rows.push(Row { name, bytes, note: "its weights, memory and activations".to_owned() });
        }
        let note = if self.request.serving {
            "bodies, what is read from them, prompts as text"
        } else {
            "the prompt as text"
        };
        let (name, bytes, note) = (REQUESTS, self.least_request_bytes(options), note.to_owned());
        rows.push(Row { name, bytes, note });
        if self.request.connection_bytes > 0 {
            let (name, bytes) = (CONNECTIONS, self.request.connection_bytes);
            rows.push(Row { name, bytes, note: "heads of requests".to_owned() });
        }
        let (note, bytes) = ("tokenizer, threads, program".to_owned(), self.program_bytes());
        rows.push(Row { name: PROGRAM, bytes, note });
        Ok(rows)
    }

    /// What requests need at least: with less, no prompt that fits the context could be taken.
    fn least_request_bytes(&self, options: &Options) -> u64 {
        let least = if self.request.serving { LEAST_REQUEST_BYTES } else { PROMPT_BYTES };
        least + self.request_bytes_per_token() * options.context as u64
    }

    fn request_bytes_per_token(&self) -> u64 {
        if self.request.serving { REQUEST_BYTES_PER_TOKEN } else { PROMPT_BYTES_PER_TOKEN }
    }

    /// Lets requests have more than the least, of what the other rows and `others` leave.
    fn give_requests(&self, rows: &mut [Row], options: &Options, share: u64, others: u64) {
        if !self.request.serving {
            return;
        }
        let taken = rows.iter().fold(others, |sum, row| sum.saturating_add(row.bytes));
        let left = self.budget_bytes.saturating_sub(taken);
        let usual = self.least_request_bytes(options) - LEAST_REQUEST_BYTES + USUAL_REQUEST_BYTES;
        let most = (self.budget_bytes / share).clamp(usual, MOST_REQUEST_BYTES.max(usual));
        for row in rows.iter_mut().filter(|row| row.name == REQUESTS) {
            row.bytes = most.min(row.bytes.saturating_add(left));
        }
    }

    /// Weights that every step uses: the model's and the head's.
    fn resident_bytes(&self, options: &Options) -> u64 {
        self.spec.resident_bytes() + options.head.as_ref().map_or(0, |head| head.spec.bytes())
    }

    fn program_bytes(&self) -> u64 {
        let tokens = if self.request.serving { self.spec.vocab as u64 } else { 0 };
        PROGRAM_BYTES + tokens * GRAMMAR_BYTES_PER_TOKEN
    }

    fn activation_bytes(&self, options: &Options) -> u64 {
        4 * arena_floats(self.spec, options) as u64 + scratch_bytes(self.spec, options)
    }

    fn plan(&self, rows: Vec<Row>, geometry: Option<&Geometry>, options: Options) -> Result<Plan> {
        let experts = self.spec.expert_bytes();
        let total_bytes = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.bytes));
        let fits = total_bytes <= self.budget_bytes;
        let streaming = match (geometry, &options.slots) {
            (Some(geometry), Some(slots)) => Some(self.expect(geometry, slots)),
            _ => None,
        };
        let in_memory = match &options.slots {
            Some(slots) => slots.bytes.min(experts),
            None => experts,
        };
        let hints = if fits { Vec::new() } else { self.hints(total_bytes, &options)? };
        Ok(Plan {
            rows,
            total_bytes,
            budget_bytes: self.budget_bytes,
            fits,
            expert_bytes: experts,
            would_stream_bytes: experts - in_memory,
            streaming,
            bytes_per_token: self.spec.bytes_per_token(),
            context: options.context,
            model_context: self.spec.context,
            hints,
            options,
        })
    }

    fn expect(&self, geometry: &Geometry, slots: &Slots) -> StreamPlan {
        let experts = geometry.experts().max(1) as f64;
        let kept_share = slots.kept() as f64 / experts;
        let working_set = geometry.experts_per_token() as f64 / experts;
        let hit_rate = [kept_share, streaming::published_hit_rate(kept_share, working_set)];
        let all: u64 = geometry
            .classes()
            .iter()
            .map(|class| class.expert_bytes * (class.layers * class.experts_per_token) as u64)
            .sum();
        StreamPlan {
            slots: slots.kept(),
            staging_slots: slots.staging(),
            kept_share,
            hit_rate,
            read_bytes_per_token: hit_rate.map(|rate| ((1.0 - rate) * all as f64) as u64),
        }
    }

    /// What would make it run, each for itself.
    fn hints(&self, total_bytes: u64, options: &Options) -> Result<Vec<String>> {
        let mut hints = Vec::new();
        let over = total_bytes - self.budget_bytes;
        // A shorter context helps by the positions that go with it, not by what each sequence needs anyway.
        let per_token = layout(self.spec, options)?.kv_bytes_per_token();
        let positions = options.pool_positions();
        let copies = positions.div_ceil(options.context.max(1));
        // What requests need goes with the context too.
        let of_requests = self.request_bytes_per_token() as usize;
        let all = (per_token * positions + of_requests * options.context) as u64;
        let left = all.saturating_sub(over) as usize;
        let context = left / (per_token * copies + of_requests).max(1) / BLOCK * BLOCK;
        if context > 0 && options.context > 512 && self.request.pool_tokens.is_none() {
            hints.push(format!("--context {context} would fit"));
        }
        hints.push(format!("--memory {} would fit", round_up(total_bytes)));
        let Some(geometry) = &self.geometry else { return Ok(hints) };
        // What everything but the experts leaves.
        let experts = options.slots.as_ref().map_or(self.spec.expert_bytes(), |slots| slots.bytes);
        let left = self.budget_bytes.saturating_sub(total_bytes - experts);
        match &options.slots {
            None if left >= geometry.least_bytes() => {
                hints.push("--stream-experts auto would read experts from the disk".to_owned());
            }
            None => {}
            // They were requested.
            Some(slots) if !slots.classes.is_empty() => {
                let mega = left >> 20;
                if geometry.fit(mega << 20).is_some() {
                    hints.push(format!("--expert-cache {mega}M would fit"));
                }
            }
            // Not even a token's experts of a layer: each class of experts needs its own.
            Some(_) => {
                let classes = geometry.classes().iter();
                let most = classes.clone().map(|class| class.experts_per_token).max().unwrap_or(0);
                let each: u64 = classes.map(|class| class.slot_bytes as u64).sum();
                let fewer = (most as u64).saturating_sub(over.div_ceil(each.max(1)));
                if fewer > 0 {
                    hints.push(format!(
                        "--experts-per-token {fewer} would fit, and change what the model says"
                    ));
                }
            }
        }
        Ok(hints)
    }
}

/// Memory for experts that holds not even one token's of one layer.
fn too_little(geometry: &Geometry, bytes: u64) -> experts::Error {
    let needed = geometry.classes().iter().map(|class| class.experts_per_token).sum();
    experts::Error::TooLittleCache { bytes, needed, needed_bytes: geometry.least_bytes() }
}

/// A size a person would type.
fn round_up(bytes: u64) -> String {
    let mega = bytes.div_ceil(1 << 20);
    if mega < 4096 { format!("{mega}M") } else { format!("{}G", mega.div_ceil(1024)) }
}
