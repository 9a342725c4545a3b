//! `/metrics`: every number there is, under the names that docs/reference/metrics.md lists.
//!
//! The page is made from the same code, so it cannot say anything else.

use machine::memory::MemoryUsage;

use crate::metrics::{Exposition, Metrics};
use crate::model::Pulse;
use crate::shared::ServerState;
use crate::speculation::Speculating;

/// What numbers are taken from.
struct View<'a> {
    metrics: &'a Metrics,
    uptime_seconds: f64,
    viewers: usize,
    memory: MemoryUsage,
    /// Once it is loaded.
    model: Option<ModelView<'a>>,
}

/// The same of the model.
struct ModelView<'a> {
    name: &'a str,
    mode: &'a str,
    context: usize,
    parallel: usize,
    queue: usize,
    planned_bytes: u64,
    budget_bytes: u64,
    slots: usize,
    pulse: Pulse,
}

/// The numbers of a server.
pub(super) fn of(shared: &ServerState) -> String {
    let model = shared.model().ok().map(|model| ModelView {
        name: &model.name,
        mode: model.mode(),
        context: model.facts.context,
        parallel: model.facts.parallel,
        queue: shared.options.queue,
        planned_bytes: model.plan.total_bytes,
        budget_bytes: model.plan.budget_bytes,
        slots: model.plan.streaming.as_ref().map_or(0, |streaming| streaming.slots),
        pulse: model.pulse(),
    });
    let view = View {
        metrics: &shared.metrics,
        uptime_seconds: shared.started.elapsed().as_secs_f64(),
        viewers: shared.live.viewers(),
        memory: machine::memory::usage(),
        model,
    };
    write(&view)
}

fn write(view: &View<'_>) -> String {
    let mut out = Exposition::default();
    server(&mut out, view);
    if let Some(model) = &view.model {
        engine(&mut out, model);
        experts(&mut out, model);
        if let Some(speculation) = &model.pulse.speculation {
            speculation.expose(&mut out);
        }
    }
    out.into_text()
}

fn server(out: &mut Exposition, view: &View<'_>) {
    let View { metrics, memory, .. } = view;
    let version = [(env!("CARGO_PKG_VERSION").to_owned(), 1.0)];
    out.labelled("build_info", "The program's version.", "gauge", "version", &version);
    out.gauge(
        "model_loaded",
        "1 once requests are answered.",
        f64::from(u8::from(view.model.is_some())),
    );
    out.gauge("uptime_seconds", "Time since the server was started.", view.uptime_seconds);
    let class = |(index, count): (usize, &crate::metrics::Counter)| {
        (format!("{}xx", index + 1), count.get() as f64)
    };
    let classes: Vec<(String, f64)> = metrics.responses.iter().enumerate().map(class).collect();
    out.labelled(
        "responses_total",
        "HTTP responses by class of status.",
        "counter",
        "class",
        &classes,
    );
    let mut count = |name: &str, help: &str, counter: &crate::metrics::Counter| {
        out.counter(name, help, counter.get() as f64);
    };
    count("requests_begun_total", "Accepted requests to generate.", &metrics.requests_begun);
    count("requests_finished_total", "Answers that are complete.", &metrics.answers_finished);
    count("requests_failed_total", "Answers that could not continue.", &metrics.requests_failed);
    count(
        "requests_cancelled_total",
        "Answers whose client left before they were complete.",
        &metrics.requests_cancelled,
    );
    count(
        "requests_refused_total",
        "Requests refused because the queue was full.",
        &metrics.requests_refused,
    );
    count(
        "pauses_total",
        "Times an answer was paused because its client did not read.",
        &metrics.pauses,
    );
    count(
        "answer_prompt_tokens_total",
        "Tokens of prompts, as reported in usage.",
        &metrics.prompt_tokens,
    );
    count(
        "answer_cached_tokens_total",
        "Those of them that came from the prefix cache.",
        &metrics.cached_tokens,
    );
    count(
        "answer_completion_tokens_total",
        "Tokens of finished answers, as reported in usage.",
        &metrics.completion_tokens,
    );
    out.histogram(
        "first_token_seconds",
        "From a request to its first token, queueing included.",
        &metrics.first_token,
    );
    out.histogram(
        "between_tokens_seconds",
        "From one token of an answer to the next.",
        &metrics.between_tokens,
    );
    out.histogram(
        "request_seconds",
        "From a request to the end of its last answer.",
        &metrics.whole_request,
    );
    out.gauge("live_viewers", "Pages that watch the machine at work.", view.viewers as f64);
    out.gauge(
        "memory_resident_bytes",
        "Physical memory of the process.",
        memory.resident_bytes as f64,
    );
    out.gauge(
        "memory_peak_bytes",
        "The most physical memory it ever had.",
        memory.peak_resident_bytes as f64,
    );
    out.gauge(
        "memory_swap_bytes",
        "What of it the system has moved out to swap.",
        memory.swap_bytes as f64,
    );
    if let Some(bytes) = memory.group_file_bytes {
        out.gauge(
            "memory_group_file_bytes",
            "File pages, cached ones too, charged to the control group that limits the process; only where one does.",
            bytes as f64,
        );
    }
}

fn engine(out: &mut Exposition, model: &ModelView<'_>) {
    let (load, rates) = (&model.pulse.load, &model.pulse.rates);
    let counters = &load.counters;
    out.labelled(
        "model_info",
        "The model that is served.",
        "gauge",
        "model",
        &[(model.name.to_owned(), 1.0)],
    );
    let mode = [(model.mode.to_owned(), 1.0)];
    out.labelled("mode_info", "Whether all experts are in memory.", "gauge", "mode", &mode);
    let mut gauge = |name: &str, help: &str, value: usize| out.gauge(name, help, value as f64);
    gauge("context_tokens", "Positions that a conversation may have.", model.context);
    gauge("parallel", "Requests per batch.", model.parallel);
    gauge("queue_limit", "Queue limit, in answers.", model.queue);
    gauge("requests_active", "Requests being answered.", load.active);
    gauge("requests_prefilling", "Those of them whose prompt is being read.", load.prefilling);
    gauge("requests_waiting", "Queued requests.", load.queued);
    gauge("requests_paused", "Requests paused because the client is not reading.", load.paused);
    gauge("pages", "Pages of keys and values, over all layers.", load.pages);
    gauge("pages_free", "Those of them that are free.", load.free_pages);
    gauge("states", "Recurrent states there is room for.", load.states);
    gauge("states_free", "Those of them that are free.", load.free_states);
    gauge("cache_entries", "Beginnings that the prefix cache remembers.", load.cache_entries);
    gauge("cache_tokens", "Their tokens, shared ones counted again.", load.cache_tokens);
    out.gauge(
        "memory_planned_bytes",
        "Memory that the plan has given out.",
        model.planned_bytes as f64,
    );
    out.gauge("memory_budget_bytes", "Memory that may be used.", model.budget_bytes as f64);
    out.gauge("prefill_tokens_per_second", "Tokens of prompts a second, recently.", rates.prefill);
    out.gauge("decode_tokens_per_second", "Tokens of answers a second, recently.", rates.decode);
    out.counter("steps_total", "Forward passes.", counters.steps as f64);
    out.counter(
        "prompt_tokens_total",
        "Tokens of prompts that were computed, again after a preemption.",
        counters.prompt_tokens_computed as f64,
    );
    out.counter(
        "prompt_tokens_cached_total",
        "Tokens of prompts that came from the prefix cache.",
        counters.prompt_tokens_cached as f64,
    );
    out.counter("generated_tokens_total", "Tokens of answers.", counters.generated_tokens as f64);
    out.counter(
        "prefill_seconds_total",
        "Time in forward passes, the share of prompts.",
        counters.prefill_seconds,
    );
    out.counter(
        "decode_seconds_total",
        "Time in forward passes, the share of answers.",
        counters.decode_seconds,
    );
    out.counter(
        "requests_preempted_total",
        "Times a running request was preempted and began again.",
        counters.preemptions as f64,
    );
}

/// Only of a model whose experts stream.
fn experts(out: &mut Exposition, model: &ModelView<'_>) {
    let Some(experts) = &model.pulse.experts else { return };
    out.gauge("expert_slots", "Experts that can be kept in memory.", model.slots as f64);
    out.counter(
        "expert_hits_total",
        "Experts that were in memory when wanted.",
        experts.hits as f64,
    );
    out.counter("expert_misses_total", "Experts that had to be read.", experts.misses as f64);
    out.counter(
        "expert_read_bytes_total",
        "Bytes of experts that came from the disk.",
        experts.read_bytes as f64,
    );
    out.counter("expert_failures_total", "Experts that could not be read.", experts.failed as f64);
    out.counter(
        "expert_ahead_total",
        "Experts read before they were wanted.",
        experts.ahead as f64,
    );
    out.counter(
        "expert_ahead_used_total",
        "Those of them that then were.",
        experts.ahead_used as f64,
    );
    out.counter(
        "expert_wait_seconds_total",
        "Time that threads waited for reads.",
        experts.wait_seconds,
    );
    out.counter(
        "expert_read_busy_seconds_total",
        "Time with a read under way.",
        experts.busy_seconds,
    );
    out.buckets(
        "expert_read_seconds",
        "Reads of experts, from when they were requested; an expert may take several.",
        &experts.latency_buckets,
        experts.reads,
        experts.latency_seconds,
    );
}

/// The page of docs/reference that lists all names.
pub fn page() -> String {
    let pulse = Pulse {
        experts: Some(runtime::ExpertLoad::default()),
        speculation: Some(Speculating::example()),
        ..Pulse::default()
    };
    let model = ModelView {
        name: "pebble",
        mode: "streaming",
        context: 0,
        parallel: 0,
        queue: 0,
        planned_bytes: 0,
        budget_bytes: 0,
        slots: 0,
        pulse,
    };
    let metrics = Metrics::default();
    let memory = MemoryUsage { group_file_bytes: Some(0), ..MemoryUsage::default() };
    let model = Some(model);
    let text = write(&View { metrics: &metrics, uptime_seconds: 0.0, viewers: 0, memory, model });
    let mut page = String::from(
        "# Metrics\n\n\
         `GET /metrics` has these numbers in Prometheus' text format. Those of the model are there once it is \
         loaded, those of experts (`millstream_expert_…`) if they are read from the disk, those of drafts \
         (`millstream_speculation_…`) unless speculation is off. Totals only grow; \
         `rate(millstream_generated_tokens_total[1m])` is the throughput of all requests together.\n\n\
         | name | kind | what it is |\n|---|---|---|\n",
    );
    for family in families(&text) {
        page.push_str(&format!("| `{}` | {} | {} |\n", family.name, family.kind, family.help));
    }
    page
}

/// A name, its kind and its description.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
}

/// The names of an exposition.
fn families(text: &str) -> Vec<Family<'_>> {
    let mut families = Vec::new();
    let mut helps = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    for line in text.lines() {
        if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
            && let Some((_, help)) = helps.next()
        {
            families.push(Family { name, kind, help });
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use engine::{Counters, Load};
    use runtime::ExpertLoad;
    use std::collections::BTreeSet;

    fn model(pulse: Pulse) -> ModelView<'static> {
        ModelView {
            name: "a \"model\"",
            mode: "streaming",
            context: 4096,
            parallel: 4,
            queue: 256,
            planned_bytes: 5000,
            budget_bytes: 6000,
            slots: 64,
            pulse,
        }
    }

    fn text(pulse: Pulse) -> String {
        let metrics = Metrics::default();
        metrics.requests_refused.add(3);
        metrics.responses[3].add(2);
        let view = View {
            metrics: &metrics,
            uptime_seconds: 1.5,
            viewers: 1,
            memory: MemoryUsage {
                resident_bytes: 77,
                group_file_bytes: Some(88),
                ..MemoryUsage::default()
            },
            model: Some(model(pulse)),
        };
        write(&view)
    }

    #[track_caller]
    fn check(text: &str, line: &str) {
        assert!(text.lines().any(|other| other == format!("millstream_{line}")), "{line}\n{text}");
    }

    #[test]
    fn numbers_are_where_they_belong() {
        let counters = Counters { generated_tokens: 12, preemptions: 2, ..Counters::default() };
        let load =
            Load { active: 3, queued: 1, pages: 64, free_pages: 40, counters, ..Load::default() };
        let experts = ExpertLoad {
            hits: 9,
            misses: 1,
            reads: 3,
            latency_seconds: 0.25,
            latency_buckets: vec![(0.001, 1), (0.1, 2)],
            ..ExpertLoad::default()
        };
        let text = text(Pulse { load, experts: Some(experts), ..Pulse::default() });
        check(&text, &format!("build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")));
        check(&text, "model_info{model=\"a \\\"model\\\"\"} 1");
        check(&text, "requests_refused_total 3");
        check(&text, "responses_total{class=\"4xx\"} 2");
        check(&text, "requests_active 3");
        check(&text, "requests_waiting 1");
        check(&text, "requests_preempted_total 2");
        check(&text, "generated_tokens_total 12");
        check(&text, "pages_free 40");
        check(&text, "memory_resident_bytes 77");
        check(&text, "memory_group_file_bytes 88");
        check(&text, "memory_budget_bytes 6000");
        check(&text, "expert_hits_total 9");
        check(&text, "expert_slots 64");
        check(&text, "expert_read_seconds_bucket{le=\"0.1\"} 2");
        check(&text, "expert_read_seconds_bucket{le=\"+Inf\"} 3");
        check(&text, "expert_read_seconds_sum 0.25");
        check(&text, "expert_read_seconds_count 3");
        check(&text, "first_token_seconds_count 0");
    }

    #[test]
    fn every_line_is_a_number_of_a_family_that_is_described_once() {
        let text = text(Pulse {
            experts: Some(ExpertLoad::default()),
            speculation: Some(Speculating::example()),
            ..Pulse::default()
        });
        let families = families(&text);
        let names: BTreeSet<&str> = families.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), families.len(), "a name is described twice");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
            let name = name.split('{').next().unwrap();
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let known = names.contains(name) || family.is_some_and(|family| names.contains(family));
            assert!(known, "{line}");
        }
        for family in families {
            assert_eq!(
                family.kind == "counter",
                family.name.ends_with("_total"),
                "{}",
                family.name
            );
            assert!(family.help.ends_with('.'), "{}", family.help);
        }
    }

    #[test]
    fn a_server_without_a_model_has_numbers_too() {
        let text = of(&ServerState::new(Options::default()));
        check(&text, "model_loaded 0");
        assert!(!text.contains("millstream_requests_active"));
    }

    #[test]
    fn without_speculation_nothing_is_said_of_it() {
        assert!(!text(Pulse::default()).contains("speculation"));
    }

    #[test]
    fn the_page_lists_what_is_exposed() {
        let committed = include_str!("../../../../docs/reference/metrics.md");
        let written = page();
        // The program puts a line above it that says how it was written.
        assert!(committed.ends_with(&written), "run `cargo xtask reference`:\n{written}");
    }
}
