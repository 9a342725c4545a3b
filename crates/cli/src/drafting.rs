//! A model together with what drafts for it: whether both fit, whether it can pay, and loading the pair.
//!
//! A draft takes memory that experts could have. Where experts come from the disk that costs hits on every
//! token, and no draft makes up for much of that: then it is left out, in numbers, and the model runs without.

use std::sync::Arc;

use anyhow::Result;
use engine::Engine;
use model::HeadSpec;
use runtime::{HeadOptions, Options, Plan, PlanRequest, Streaming};
use speculation::Speculation;
use text::Tokenizer;

use crate::args::{OWN_DFLASH, SpeculationArgs, When};
use crate::invocation::{Invocation, OpenModel};
use crate::report::Advised;
use crate::size;

/// How much more a token may read from the disk for the sake of a draft.
const MORE_READ: f64 = 1.10;

/// Conversations that a draft model remembers in addition to those that run.
const REMEMBERED: usize = 4;

/// A model's plan, and what drafts for it.
pub(crate) struct Pair {
    /// How the memory is shared.
    pub(crate) plan: Plan,
    draft: Option<Draft>,
}

struct Draft {
    model: OpenModel,
    plan: Plan,
}

impl Invocation {
    /// Plans a model together with the draft that the options name, unless the draft cannot pay.
    pub(crate) fn plan_pair(&self, model: &OpenModel, request: &PlanRequest) -> Result<Pair> {
        let alone = self.plan_by(model, request)?;
        let asked = &self.speculation;
        if asked.speculation == When::Off {
            return Ok(Pair { plan: alone, draft: None });
        }
        let mut pair = Pair { plan: alone, draft: None };
        if let Some(head) = self.open_head(model, asked)? {
            let name = format!("the {} head", head.spec.name());
            let mut both = Plan::with_head(&model.spec, request, Some(head))?;
            self.choose_kernels(&mut both.options);
            if self.pays(model, &name, &pair.plan, &both) {
                pair.plan = both;
            }
        }
        if let Some(name) = &asked.draft_model {
            let draft = self.open_draft(name)?;
            check_tokenizers(model, &draft)?;
            let own = draft_plan(&draft, &pair.plan)?;
            let request = PlanRequest { draft_bytes: own.model_bytes(), ..*request };
            let mut both = Plan::with_head(&model.spec, &request, pair.plan.options.head.clone())?;
            self.choose_kernels(&mut both.options);
            if self.pays(model, name, &pair.plan, &both) {
                // The pair may have room for a shorter context only.
                let mut plan = draft_plan(&draft, &both)?;
                self.choose_kernels(&mut plan.options);
                pair = Pair { plan: both, draft: Some(Draft { model: draft, plan }) };
            }
        }
        Ok(pair)
    }

    /// Loads a model and what drafts for it.
    pub(crate) fn load_pair(&self, model: &OpenModel, pair: Pair) -> Result<Engine> {
        self.load_with(model, pair, Speculation::default())
    }

    /// The same with more to say about speculation than the options do.
    pub(crate) fn load_with(
        &self,
        model: &OpenModel,
        pair: Pair,
        mut speculation: Speculation,
    ) -> Result<Engine> {
        let asked = &self.speculation;
        let runner = self.load_planned(model, pair.plan)?;
        if asked.speculation == When::Off {
            return Ok(Engine::new(runner));
        }
        if let Some(Draft { model, plan }) = pair.draft {
            speculation.draft_model = Some(self.load_weights(&model, plan)?);
        }
        Ok(Engine::speculating(runner, speculation)?)
    }

    /// The head that the options name.
    fn open_head(&self, model: &OpenModel, asked: &SpeculationArgs) -> Result<Option<HeadOptions>> {
        if asked.mtp && asked.dflash.is_some() {
            let message = "--mtp and --dflash each require a head, and a model has one at a time";
            let hint = "leave --mtp out to draft blocks with DFlash, or --dflash to draft with the model's own head; \
                        `bench --pairs 10` with either says which is faster here";
            return Err(Advised::usage(message, hint).into());
        }
        if asked.mtp {
            let Some(spec) = HeadSpec::mtp(&model.checkpoint, &model.spec)? else {
                let message = format!("{} has no MTP head", model.name);
                let hint = "conversions often drop the mtp.* tensors; leave --mtp out, or try --draft-model";
                return Err(Advised::new(message, hint).into());
            };
            return Ok(Some(HeadOptions { spec: Arc::new(spec), checkpoint: None }));
        }
        let Some(name) = &asked.dflash else { return Ok(None) };
        let name = if name == OWN_DFLASH { published_dflash(&model.name) } else { name.clone() };
        let (_, checkpoint) = self.find(&name)?;
        let spec = HeadSpec::dflash(&checkpoint, &model.spec)?;
        Ok(Some(HeadOptions { spec: Arc::new(spec), checkpoint: Some(Arc::new(checkpoint)) }))
    }

    /// Whether a model is better off with a draft; if not, says why in numbers.
    fn pays(&self, model: &OpenModel, draft: &str, alone: &Plan, both: &Plan) -> bool {
        let draft_bytes = extra_bytes(alone, both);
        let [together, budget] = machine::size::apart(both.total_bytes, both.budget_bytes);
        let numbers = format!(
            "{} takes {}, {draft} {}, together {together} of {budget}",
            model.name,
            size::bytes(alone.total_bytes),
            size::bytes(draft_bytes),
        );
        if !both.fits {
            if alone.fits {
                tracing::warn!(
                    "continuing without {draft}: {numbers}; a larger --memory, a smaller --context or a smaller \
                     draft would fit"
                );
            }
            return false;
        }
        let reads = |plan: &Plan| plan.streaming.as_ref().map_or(0, |s| s.read_bytes_per_token[1]);
        let (before, after) = (reads(alone), reads(both));
        if (after as f64) <= before as f64 * MORE_READ {
            tracing::info!("{numbers}");
            return true;
        }
        let hits = |plan: &Plan| plan.streaming.as_ref().map_or(1.0, |s| s.hit_rate[1]);
        let slots = |plan: &Plan| plan.streaming.as_ref().map(|s| s.slots);
        let lost = match (slots(alone), slots(both)) {
            (Some(alone), Some(both)) => {
                format!("{} of {alone} expert slots", alone - both.min(alone))
            }
            _ => "having all experts in memory".to_owned(),
        };
        tracing::warn!(
            "continuing without {draft}: {numbers}. It would cost {lost}: a token would find {:.0} % of its experts \
             in memory instead of {:.0} %, and read {} instead of {}. A larger --memory or a smaller draft would pay",
            100.0 * hits(both),
            100.0 * hits(alone),
            size::bytes(after),
            size::bytes(before),
        );
        false
    }
}

/// What a draft adds to the rows that are not experts.
fn extra_bytes(alone: &Plan, both: &Plan) -> u64 {
    let drafting = |plan: &Plan| {
        let rows = plan.rows.iter().filter(|row| row.name.starts_with("draft"));
        rows.map(|row| row.bytes).sum::<u64>()
    };
    drafting(both).saturating_sub(drafting(alone))
}

/// Everything of a draft model in memory, for as many conversations of the same length as its target's.
fn draft_plan(draft: &OpenModel, target: &Plan) -> Result<Plan> {
    let Options { context, sequences, pool_tokens, threads, kv, chunk, .. } = target.options;
    let request = PlanRequest {
        memory_bytes: Some(u64::MAX),
        context: Some(context.min(draft.spec.context)),
        kv: Some(kv),
        sequences: Some(sequences),
        pool_tokens,
        // A fork of each that runs, and those that are remembered.
        checkpoints: Some(sequences + REMEMBERED),
        chunk: Some(chunk.min(512)),
        threads: Some(threads),
        streaming: Streaming::Never,
        ..PlanRequest::default()
    };
    Ok(Plan::new(&draft.spec, &request)?)
}

/// Refuses a draft whose tokens mean something else.
fn check_tokenizers(model: &OpenModel, draft: &OpenModel) -> Result<()> {
    let tokenizer = |of: &OpenModel| -> Result<Option<Tokenizer>> {
        let file = of.checkpoint.read_file("tokenizer.json")?;
        Ok(file.map(|bytes| Tokenizer::from_bytes(&bytes)).transpose()?)
    };
    let (Some(own), Some(other)) = (tokenizer(model)?, tokenizer(draft)?) else {
        let message = format!("{} or {} has no tokenizer.json", model.name, draft.name);
        return Err(
            Advised::new(message, "both are needed to tell whether tokens are the same").into()
        );
    };
    let count = own.vocab_size().max(other.vocab_size()) as u32;
    let differs = |&id: &u32| own.id_to_token(id) != other.id_to_token(id);
    let Some(id) = (0..count).find(differs) else { return Ok(()) };
    let say = |token: Option<String>| token.map_or("nothing".to_owned(), |t| format!("{t:?}"));
    let message = format!(
        "{} cannot draft for {}: token {id} is {} there and {} here",
        draft.name,
        model.name,
        say(other.id_to_token(id)),
        say(own.id_to_token(id)),
    );
    Err(Advised::new(message, "a draft model must have the same tokenizer").into())
}

/// The name under which the makers of DFlash publish the draft of a model.
fn published_dflash(model: &str) -> String {
    if model.eq_ignore_ascii_case(crate::builtin::DEFAULT) {
        return "pebble-dflash".to_owned();
    }
    let base = model.rsplit('/').next().unwrap_or(model);
    let quantizations = ["-4bit", "-8bit", "-6bit", "-5bit", "-3bit", "-bf16", "-mxfp4", "-MLX"];
    let base = quantizations.iter().fold(base, |base, end| base.strip_suffix(end).unwrap_or(base));
    format!("z-lab/{base}-DFlash")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_drafts_have_the_name_of_their_model() {
        #[track_caller]
        fn check(model: &str, draft: &str) {
            assert_eq!(published_dflash(model), draft);
        }
        check("pebble", "pebble-dflash");
        check("mlx-community/Qwen3.5-35B-A3B-4bit", "z-lab/Qwen3.5-35B-A3B-DFlash");
        check("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash");
        check("/models/Qwen3.5-4B-MLX-8bit", "z-lab/Qwen3.5-4B-DFlash");
    }
}
