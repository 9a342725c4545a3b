//! One run of the program: the options every command has, and the way from a name to a loaded model.

use std::path::PathBuf;

use anyhow::Result;
use checkpoint::{Checkpoint, Warning};
use engine::{Options, Plan, PlanRequest, Runner};
use hub::Location;
use model::DecoderSpec;

use crate::args::GlobalArgs;
use crate::builtin::Builtin;
use crate::console::Console;
use crate::report::Advised;
use crate::size;

/// What every command is given.
pub(crate) struct Invocation {
    /// Options of every command.
    pub(crate) global: GlobalArgs,
    /// Where to talk.
    pub(crate) console: Console,
    /// Where models may be.
    pub(crate) environment: hub::Environment,
}

/// A model whose headers are read and whose weights are not.
pub(crate) struct OpenModel {
    /// As it was asked for.
    pub(crate) name: String,
    /// Where it lies; `None` inside this program.
    pub(crate) folder: Option<PathBuf>,
    /// Its files.
    pub(crate) checkpoint: Checkpoint,
    /// What it is made of.
    pub(crate) spec: DecoderSpec,
}

impl Invocation {
    /// Finds a model by name and reads its headers; what is odd about it is logged.
    pub(crate) fn open(&self, name: &str) -> Result<OpenModel> {
        let model = self.open_quietly(name)?;
        for line in warning_lines(&model.checkpoint.warnings()) {
            tracing::warn!("{name}: {line}");
        }
        Ok(model)
    }

    /// The same, for who shows the warnings in another way.
    pub(crate) fn open_quietly(&self, name: &str) -> Result<OpenModel> {
        let (folder, checkpoint) = match hub::resolve(name, &self.environment)? {
            Location::Builtin(builtin) => match Builtin::find(builtin) {
                Some(builtin) => (None, builtin.open()),
                None => anyhow::bail!("this program was built without {builtin}"),
            },
            Location::Folder(folder) => {
                let checkpoint = Checkpoint::open(&folder);
                (Some(folder), checkpoint)
            }
        };
        let checkpoint = checkpoint.map_err(engine::Error::from)?;
        let spec = model::arch::spec(&checkpoint).map_err(engine::Error::from)?;
        Ok(OpenModel { name: name.to_owned(), folder, checkpoint, spec })
    }

    /// What the global options ask of a plan.
    pub(crate) fn plan_request(&self) -> PlanRequest {
        PlanRequest {
            memory_bytes: self.global.memory.map(|size| size.0),
            context: self.global.context,
            kv: Some(self.global.kv.into()),
            ..PlanRequest::default()
        }
    }

    /// Plans a model by the global options.
    pub(crate) fn plan(&self, model: &OpenModel) -> Result<Plan> {
        if let Some(context) = self.global.context
            && context > model.spec.context
        {
            let most = model.spec.context;
            tracing::warn!("{} was made for {most} positions: --context is {most}", model.name);
        }
        let mut plan = Plan::new(&model.spec, &self.plan_request())?;
        self.choose_kernels(&mut plan.options);
        Ok(plan)
    }

    /// The options of `--isa` and `--threads`.
    pub(crate) fn choose_kernels(&self, options: &mut Options) {
        options.isa = self.global.isa.unwrap_or(options.isa);
        options.threads = self.global.threads.unwrap_or(options.threads);
    }

    /// Plans and loads a model, unless it would not fit.
    pub(crate) fn load(&self, model: &OpenModel) -> Result<Runner> {
        let plan = self.plan(model)?;
        if !plan.fits {
            let message = format!(
                "{} needs {}, the budget is {}",
                model.name,
                size::bytes(plan.total_bytes),
                size::bytes(plan.budget_bytes)
            );
            return Err(Advised::with_hints(message, plan.hints).into());
        }
        self.load_with(model, &plan.options)
    }

    /// Loads a model with these options, showing a bar.
    pub(crate) fn load_with(&self, model: &OpenModel, options: &Options) -> Result<Runner> {
        tracing::info!(
            "loading {}: {} threads, {} kernels, context {}",
            model.name,
            options.threads,
            options.isa,
            options.context
        );
        let total_bytes = model.spec.resident_bytes() + model.spec.expert_bytes();
        let bar = self.console.byte_bar(&format!("loading {}", model.name), total_bytes);
        let progress = |done: u64, _total: u64| bar.set_position(done);
        let spec = model.spec.clone();
        let runner = Runner::load_spec(&model.checkpoint, spec, options, &progress);
        bar.finish_and_clear();
        Ok(runner?)
    }
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
