//! One run of the program: its options, and the way from a name to a loaded model.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use checkpoint::{Checkpoint, FileIndex, Source, Warning};
use experts::probe::Choice;
use hub::Location;
use machine::memory::Memory;
use model::DecoderSpec;
use runtime::{Options, Plan, PlanRequest, Runner, StreamPlan};
use text::ModelText;

use crate::args::{EngineArgs, GlobalArgs, MeasuringArgs, SpeculationArgs, StreamExperts};
use crate::builtin::Builtin;
use crate::commands::repack;
use crate::console::{Console, Tone, say};
use crate::drafting::Pair;
use crate::measured::{Measured, Place};
use crate::report::Advised;
use crate::size;

/// Checkpoints of a conversation: where its last question ends, and its last answer.
const CONVERSATION_CHECKPOINTS: usize = 2;

/// What every command is given.
pub(crate) struct Invocation {
    /// Options of every command.
    pub(crate) global: GlobalArgs,
    /// Options of the commands that load a model.
    pub(crate) engine: EngineArgs,
    /// What may draft.
    pub(crate) speculation: SpeculationArgs,
    /// Options of the commands that measure.
    pub(crate) measuring: MeasuringArgs,
    /// Where to talk.
    pub(crate) console: Console,
    /// Where models may be.
    pub(crate) environment: hub::Environment,
}

/// A model whose headers are read and whose weights are not.
pub(crate) struct OpenModel {
    /// As it was asked for.
    pub(crate) name: String,
    /// The folder or file it lies in; `None` inside this program, or where it is made.
    pub(crate) folder: Option<PathBuf>,
    /// Its files.
    pub(crate) checkpoint: Checkpoint,
    /// What it is made of.
    pub(crate) spec: DecoderSpec,
    /// `--experts-per-token`, where it takes effect.
    pub(crate) fewer_experts: Option<FewerExperts>,
}

/// Fewer experts than the model asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FewerExperts {
    used: usize,
    asked: usize,
}

impl OpenModel {
    /// Where experts come from that are not in memory.
    pub(crate) fn expert_source(&self) -> &'static str {
        match self.checkpoint.source(FileIndex(0)) {
            Source::Path(_) => "the disk",
            Source::Memory(_) => "inside the program",
            Source::Made(_) => "a generator",
        }
    }

    /// Its tokenizer and templates, unless it could not be run with them.
    pub(crate) fn text(&self) -> Result<ModelText> {
        Ok(engine::open_text(&self.checkpoint)?)
    }

    /// What reads of its experts have to do with; `None` where no disk is read.
    pub(crate) fn place(&self) -> Option<Place> {
        Some(Place::new(self.folder.as_deref()?, runtime::mean_read_bytes(&self.spec)))
    }
}

impl std::fmt::Display for FewerExperts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} experts of a layer instead of {}", self.used, self.asked)
    }
}

impl Invocation {
    /// Finds a model by name and reads its headers; what is odd about it is logged, or about what is asked of it.
    pub(crate) fn open(&self, name: &str) -> Result<OpenModel> {
        let model = self.open_draft(name)?;
        self.tell_of_vain_options(&model);
        Ok(model)
    }

    /// The same for a model in no file: so many layers of a shape that `synth` knows.
    pub(crate) fn open_synthetic(&self, shape: &str, layers: Option<usize>) -> Result<OpenModel> {
        let (name, checkpoint) = workbench::synth::made(shape, layers)?;
        let model = self.describe(name, None, checkpoint)?;
        tell_of_oddities(&model);
        self.tell_of_vain_options(&model);
        Ok(model)
    }

    /// The same for a model whose experts the options do not mean.
    pub(crate) fn open_draft(&self, name: &str) -> Result<OpenModel> {
        let model = self.open_quietly(name)?;
        tell_of_oddities(&model);
        Ok(model)
    }

    fn tell_of_vain_options(&self, model: &OpenModel) {
        for line in self.vain_options(&model.spec) {
            tracing::warn!("{}: {line}", model.name);
        }
    }

    /// Options that say something about experts and change nothing for this model.
    fn vain_options(&self, spec: &DecoderSpec) -> Vec<String> {
        let engine = &self.engine;
        let asked = spec.moe_layers().map(|(_, moe)| moe.experts_per_token()).max();
        let Some(asked) = asked else {
            let options = [
                ("--stream-experts always", engine.stream_experts == StreamExperts::Always),
                ("--expert-cache", engine.cache.expert_cache.is_some()),
                ("--expert-slots", self.measuring.slots.expert_slots.is_some()),
                ("--experts-per-token", engine.experts_per_token.is_some()),
            ];
            let given = options.iter().filter(|(_, is_given)| *is_given);
            return given
                .map(|(option, _)| format!("there are no experts: {option} changes nothing"))
                .collect();
        };
        let more = engine.experts_per_token.filter(|&used| used > asked);
        let line = |used| {
            format!(
                "each token uses {asked} experts of a layer: --experts-per-token {used} changes nothing"
            )
        };
        more.map(line).into_iter().collect()
    }

    /// Finds the files of a model, or of a part of one.
    pub(crate) fn find(&self, name: &str) -> Result<(Option<PathBuf>, Checkpoint)> {
        let (folder, checkpoint) = match hub::resolve(name, &self.environment)? {
            Location::Builtin(builtin) => (None, Builtin::find(builtin)?.open()),
            Location::Folder(folder) => {
                let folder = repack::found(&folder, name, &self.environment).unwrap_or(folder);
                let checkpoint = Checkpoint::open(&folder);
                (Some(folder), checkpoint)
            }
            Location::File(file) => {
                let checkpoint = Checkpoint::open(&file);
                (Some(file), checkpoint)
            }
        };
        Ok((folder, checkpoint.map_err(runtime::Error::from)?))
    }

    /// The same, for commands that show the warnings in another way.
    pub(crate) fn open_quietly(&self, name: &str) -> Result<OpenModel> {
        let (folder, checkpoint) = self.find(name)?;
        self.describe(name.to_owned(), folder, checkpoint)
    }

    fn describe(
        &self,
        name: String,
        folder: Option<PathBuf>,
        checkpoint: Checkpoint,
    ) -> Result<OpenModel> {
        let mut spec = model::arch::spec(&checkpoint).map_err(runtime::Error::from)?;
        let asked = spec.moe_layers().map(|(_, moe)| moe.experts_per_token()).max();
        let fewer_experts = match (self.engine.experts_per_token, asked) {
            (Some(used), Some(asked)) if used < asked => {
                spec.limit_experts_per_token(used);
                Some(FewerExperts { used, asked })
            }
            _ => None,
        };
        Ok(OpenModel { name, folder, checkpoint, spec, fewer_experts })
    }

    /// What the options ask of a plan.
    pub(crate) fn plan_request(&self) -> PlanRequest {
        PlanRequest {
            memory_bytes: self.global.memory.map(|size| size.0),
            context: self.global.context,
            kv: Some(self.engine.kv.into()),
            threads: self.global.threads,
            streaming: self.engine.stream_experts.into(),
            expert_cache_bytes: self.engine.cache.expert_cache.map(|size| size.0),
            expert_slots: self.measuring.slots.expert_slots,
            ..PlanRequest::default()
        }
    }

    /// Plans a model and what drafts for it, by the options.
    pub(crate) fn plan(&self, model: &OpenModel) -> Result<Pair> {
        self.warn_of_context(model);
        self.plan_pair(model, &self.plan_request())
    }

    /// The same with room for checkpoints, where a conversation's next turn could not begin with the one before
    /// otherwise; without them if it does not fit with them.
    pub(crate) fn plan_conversation(&self, model: &OpenModel) -> Result<Pair> {
        if model
            .spec
            .layout(&model::in_format(compute::memory::KvFormat::F16))
            .map_err(runtime::Error::from)?
            .is_rewindable()
        {
            return self.plan(model);
        }
        let request =
            PlanRequest { checkpoints: Some(CONVERSATION_CHECKPOINTS), ..self.plan_request() };
        let pair = self.plan_pair(model, &request)?;
        if !pair.plan.fits {
            return self.plan(model);
        }
        self.warn_of_context(model);
        Ok(pair)
    }

    fn warn_of_context(&self, model: &OpenModel) {
        if let Some(context) = self.global.context
            && context > model.spec.context
        {
            let most = model.spec.context;
            tracing::warn!("{} was made for {most} positions: --context is {most}", model.name);
        }
    }

    /// Plans a model for a command that knows how many positions it needs, and how many copies of a recurrent state.
    pub(crate) fn plan_for(
        &self,
        model: &OpenModel,
        positions: usize,
        checkpoints: usize,
    ) -> Result<Plan> {
        let positions = self.global.context.unwrap_or(0).max(positions).next_multiple_of(64);
        let request = PlanRequest {
            context: Some(positions),
            checkpoints: Some(checkpoints),
            ..self.plan_request()
        };
        let mut plan = self.plan_by(model, &request)?;
        plan.options.context = positions;
        Ok(plan)
    }

    /// Plans a model for a command that asks for more than the options do.
    pub(crate) fn plan_by(&self, model: &OpenModel, request: &PlanRequest) -> Result<Plan> {
        let mut plan = Plan::new(&model.spec, request)?;
        self.choose_kernels(&mut plan.options);
        Ok(plan)
    }

    /// The options of `--isa` and `--threads`.
    pub(crate) fn choose_kernels(&self, options: &mut Options) {
        options.isa = self.measuring.isa.unwrap_or(options.isa);
        options.threads = self.global.threads.unwrap_or(options.threads);
    }

    /// Loads a model as planned, showing a bar, unless it would not fit; records its routing, if that was asked for.
    pub(crate) fn load_planned(&self, model: &OpenModel, plan: Plan) -> Result<Runner> {
        let Some(path) = &self.measuring.record.record_routing else {
            return self.load_weights(model, plan);
        };
        if plan.fits {
            check_routing_log(path, &plan)?;
        }
        let slots = plan.options.slots.as_ref().map_or(0, |slots| slots.bytes);
        let fixed_bytes = plan.total_bytes - slots;
        let runner = self.load_weights(model, plan)?;
        if let Some(bank) = runner.streamed() {
            bank.record_routing(path, fixed_bytes)?;
        }
        Ok(runner)
    }

    /// The same for a model whose routing is not recorded.
    pub(crate) fn load_weights(&self, model: &OpenModel, mut plan: Plan) -> Result<Runner> {
        if !plan.fits {
            let [needs, budget] = machine::size::apart(plan.total_bytes, plan.budget_bytes);
            let message = format!("{} needs {needs}, the budget is {budget}", model.name);
            return Err(Advised::with_hints(message, plan.hints).into());
        }
        let memory = Memory::read().ok();
        let asked = self.global.memory.map(|size| size.0);
        if let Some(line) = memory.and_then(|memory| memory_warning(asked, &memory)) {
            tracing::warn!("{line}");
        }
        tracing::info!(
            "loading {}: {} threads, {} kernels, context {}",
            model.name,
            plan.options.threads,
            plan.options.isa,
            plan.options.context
        );
        let mut total_bytes = model.spec.resident_bytes();
        if let Some(streaming) = &plan.streaming {
            let choice = runtime::probe(&model.checkpoint, &model.spec)?;
            let engine = &self.engine;
            let asked = matches!(engine.stream_experts, StreamExperts::Always)
                || self.measuring.slots.expert_slots.is_some()
                || engine.cache.expert_cache.is_some();
            if let Some(place) = model.place() {
                Measured::of(&self.environment).keep_disk(&place, choice.clone());
            }
            for line in mode_lines(model, &plan, streaming, &choice, asked) {
                say!("{}", self.console.paint(Tone::Dim, &line));
            }
            plan.options.reading = Some(choice);
        } else {
            total_bytes += model.spec.expert_bytes();
            let (total, budget) = (size::bytes(plan.total_bytes), size::bytes(plan.budget_bytes));
            tracing::info!("everything is in memory: {total} of {budget}");
        }
        let bar = self.console.byte_bar(&format!("loading {}", model.name), total_bytes);
        let progress = |done: u64, _total: u64| bar.set_position(done);
        let spec = model.spec.clone();
        let runner = Runner::load_spec(&model.checkpoint, spec, &plan.options, &progress);
        bar.finish_and_clear();
        Ok(runner?)
    }
}

/// Logs what is odd about a model.
fn tell_of_oddities(model: &OpenModel) {
    let name = &model.name;
    for line in warning_lines(&model.checkpoint.warnings()) {
        tracing::warn!("{name}: {line}");
    }
    if let Some(fewer) = model.fewer_experts {
        tracing::warn!("{name}: each token uses {fewer}; answers differ from the model's own");
    }
}

/// Refuses to record what would not come or cannot be written, before gigabytes are loaded.
fn check_routing_log(path: &Path, plan: &Plan) -> Result<()> {
    if plan.streaming.is_none() {
        let message = "--record-routing records what is read, and nothing is";
        let hint = "--stream-experts always reads experts from the disk even if they would fit";
        return Err(Advised::new(message, hint).into());
    }
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

/// A `--memory` that this process cannot have, in words.
fn memory_warning(asked: Option<u64>, memory: &Memory) -> Option<String> {
    let limit = memory.limit.as_ref().map_or(u64::MAX, |limit| limit.bytes);
    let (most, whose) = match limit < memory.total_bytes {
        true => (limit, "its limit"),
        false => (memory.total_bytes, "the machine's"),
    };
    let asked = asked.filter(|&asked| asked > most)?;
    Some(format!(
        "--memory {} is more than there is ({whose} {}): once it is used the system swaps or ends the program",
        size::bytes(asked),
        size::bytes(most),
    ))
}

/// Notices when the system begins to swap.
pub(crate) struct SwapWatch {
    before: Option<u64>,
}

/// Less is a page or two of another process.
const SWAP_WORTH_TELLING_BYTES: u64 = 16 << 20;

impl SwapWatch {
    /// From now on.
    pub(crate) fn start() -> SwapWatch {
        SwapWatch { before: machine::memory::swap_traffic_bytes() }
    }

    /// Warns if there was any since the last call.
    pub(crate) fn check(&mut self) {
        let now = machine::memory::swap_traffic_bytes();
        if let (Some(before), Some(now)) = (self.before, now)
            && now.saturating_sub(before) > SWAP_WORTH_TELLING_BYTES
        {
            let (moved, own) =
                (size::bytes(now - before), size::bytes(machine::memory::usage().swap_bytes));
            tracing::warn!(
                "the system is swapping: {moved} moved, {own} of this program are out; \
                 a smaller --memory would be faster"
            );
        }
        self.before = now;
    }
}

/// Ends what was recorded of a run.
pub(crate) fn finish(runner: &Runner) -> Result<()> {
    if let Some(bank) = runner.streamed() {
        bank.finish_routing()?;
        let failed = bank.statistics().failed;
        if failed > 0 {
            tracing::warn!("{failed} experts could not be read");
        }
    }
    Ok(())
}

/// Which way a model runs, and why.
fn mode_lines(
    model: &OpenModel,
    plan: &Plan,
    streaming: &StreamPlan,
    choice: &Choice,
    asked: bool,
) -> Vec<String> {
    let hits = span(streaming.hit_rate.map(|rate| format!("{:.0}", 100.0 * rate)));
    let [most, least] = streaming.read_bytes_per_token.map(size::bytes);
    let read = span([least, most]);
    // In memory everything takes this and more: longer steps, a longer context.
    let all = plan.total_bytes + plan.would_stream_bytes;
    let budget = size::bytes(plan.budget_bytes);
    let why = match asked {
        true => "as asked".to_owned(),
        false if all > plan.budget_bytes => {
            format!("{} would not fit into {budget}", size::bytes(all))
        }
        false => format!("all of it would not fit into {budget}"),
    };
    let disk = match model.folder {
        Some(_) => format!("; disk: {}", disk_line(choice)),
        None => String::new(),
    };
    vec![
        format!(
            "experts come from {} ({why}): {} of {} at a time are in memory, in {} slots",
            model.expert_source(),
            size::bytes(plan.expert_bytes - plan.would_stream_bytes),
            size::bytes(plan.expert_bytes),
            streaming.slots + streaming.staging_slots,
        ),
        format!(
            "expecting {hits} % of a token's experts in memory, {read} read for the rest{disk}"
        ),
    ]
}

/// From one to the other, or one number if both read alike.
fn span([from, to]: [String; 2]) -> String {
    if from == to { from } else { format!("{from}–{to}") }
}

/// How a disk is read.
pub(crate) fn disk_line(choice: &Choice) -> String {
    let rate = match choice.bytes_per_second {
        0.0 => String::new(),
        rate => format!("{}/s, ", size::bytes(rate as u64)),
    };
    format!(
        "{rate}{} reads, {} at a time by {}",
        choice.access, choice.method.depth, choice.method.queue
    )
}

/// Warnings as lines. A file that lies about its bits does so in every layer: that is one line.
pub(crate) fn warning_lines(warnings: &[Warning]) -> Vec<String> {
    let is_quantization = |warning: &&Warning| matches!(warning, Warning::Quantization { .. });
    let mut lines: Vec<String> = warnings
        .iter()
        .filter(|warning| !is_quantization(warning))
        .map(ToString::to_string)
        .collect();
    let mut lies = warnings.iter().filter(is_quantization);
    if let Some(first) = lies.next() {
        let others = match lies.count() {
            0 => String::new(),
            1 => "; one other tensor differs too".to_owned(),
            count => format!("; {count} other tensors differ too"),
        };
        lines.push(format!("{first}{others}; the tensors are believed"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use machine::memory::{Limit, LimitSource};

    use super::*;

    #[test]
    fn equal_ends_are_one_number() {
        assert_eq!(span(["0".to_owned(), "0".to_owned()]), "0");
        assert_eq!(span(["1.0 MB".to_owned(), "1.2 MB".to_owned()]), "1.0 MB–1.2 MB");
    }

    #[test]
    fn more_memory_than_there_is_is_told() {
        #[track_caller]
        fn check(asked: Option<u64>, limit: Option<u64>, expect: Option<&str>) {
            let limit = limit.map(|bytes| Limit {
                bytes,
                used_bytes: 0,
                file_bytes: 0,
                source: LimitSource::CgroupV2,
                path: PathBuf::new(),
            });
            let memory = Memory {
                total_bytes: 8_000_000_000,
                available_bytes: 0,
                limit,
                limit_headroom_bytes: None,
                swap_total_bytes: 0,
                swap_free_bytes: 0,
            };
            let line = memory_warning(asked, &memory);
            assert_eq!(line.is_some(), expect.is_some(), "{line:?}");
            assert!(line.unwrap_or_default().contains(expect.unwrap_or_default()));
        }
        check(None, Some(1), None);
        check(Some(8_000_000_000), None, None);
        check(
            Some(9_000_000_000),
            None,
            Some("9.0 GB is more than there is (the machine's 8.0 GB)"),
        );
        check(Some(5_000_000_000), Some(6_000_000_000), None);
        check(Some(7_000_000_000), Some(6_000_000_000), Some("(its limit 6.0 GB)"));
    }
}
