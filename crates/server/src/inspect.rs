//! Looking inside: whether the server lives and how it is doing, numbers for Prometheus, tokens and templates.

mod numbers;
mod tokens;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub use numbers::page as metrics_page;
pub(crate) use tokens::{apply_template, detokenize, tokenize};

use crate::guard::may_see_all;
use crate::live::plan_json;
use crate::model::Model;
use crate::shared::ServerState;
use crate::speculation::Speculating;

/// What there is, for programs.
const OPENAPI: &str = include_str!("../openapi.json");

/// `GET /health`: for all clients whether it lives, for those with the key how it is doing.
pub(crate) async fn health(State(shared): State<Arc<ServerState>>, headers: HeaderMap) -> Response {
    let Ok(model) = shared.model() else {
        let mut response = Json(json!({"status": "loading"})).into_response();
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        return response;
    };
    let status = if shared.is_draining() { "draining" } else { "ok" };
    if !may_see_all(&shared, &headers) {
        return Json(json!({"status": status})).into_response();
    }
    Json(condition(&shared, model, status)).into_response()
}

fn condition(shared: &ServerState, model: &Model, status: &str) -> Value {
    let pulse = model.pulse();
    let (load, memory) = (&pulse.load, machine::memory::usage());
    let experts = pulse.experts.as_ref().map(|experts| {
        json!({
            "hit_rate": experts.hit_rate(),
            "hits": experts.hits,
            "misses": experts.misses,
            "read_bytes": experts.read_bytes,
            "read_seconds_p50": experts.latency_seconds_p50,
            "read_seconds_p99": experts.latency_seconds_p99,
            "slots": model.plan.streaming.as_ref().map(|streaming| streaming.slots),
        })
    });
    json!({
        "status": status,
        "model": model.name,
        "mode": model.mode(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": shared.started.elapsed().as_secs_f64(),
        "context": model.facts.context,
        "parallel": model.facts.parallel,
        "plan": plan_json(&model.plan),
        "memory": {
            "resident_bytes": memory.resident_bytes,
            "peak_bytes": memory.peak_resident_bytes,
            "file_bytes": memory.file_bytes,
            "swap_bytes": memory.swap_bytes,
            "group_file_bytes": memory.group_file_bytes,
        },
        "requests": {
            "active": load.active,
            "queued": load.queued,
            "limit": shared.options.queue,
        },
        "rates": {
            "prefill_tok_s": pulse.rates.prefill,
            "decode_tok_s": pulse.rates.decode,
        },
        "pool": {"pages": load.pages, "free": load.free_pages},
        "prefix_cache": {"entries": load.cache_entries, "tokens": load.cache_tokens},
        "experts": experts,
        "speculation": pulse.speculation.as_ref().map(Speculating::health),
    })
}

/// `GET /metrics`
pub(crate) async fn metrics(State(shared): State<Arc<ServerState>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, numbers::of(&shared)).into_response()
}

/// `GET /openapi.json`
pub(crate) async fn openapi(State(shared): State<Arc<ServerState>>) -> Json<Value> {
    let vocabulary = shared.model().ok().map(|model| model.facts.vocabulary);
    Json(described(vocabulary, !shared.options.api_keys.is_empty()))
}

/// The description, with what only a running server knows: its version, which tokens there are, and whether it
/// wants a key.
fn described(vocabulary: Option<usize>, has_keys: bool) -> Value {
    let mut description: Value = serde_json::from_str(OPENAPI).unwrap_or_default();
    if let Some(version) = description.pointer_mut("/info/version") {
        *version = env!("CARGO_PKG_VERSION").into();
    }
    let last = "/components/schemas/Token/maximum";
    if let (Some(maximum), Some(vocabulary)) = (description.pointer_mut(last), vocabulary) {
        *maximum = vocabulary.saturating_sub(1).into();
    }
    if let Some(description) = description.as_object_mut().filter(|_| !has_keys) {
        description.shift_remove("security");
    }
    description
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Method and path of each `.route("/path", method(…))` in the router's source.
    fn routes() -> BTreeSet<(String, String)> {
        let calls = include_str!("app.rs").split(".route(").skip(1);
        let route = |call: &str| {
            let mut parts = call.splitn(3, '"');
            let path = parts.nth(1).unwrap().replace("{*", "{");
            let method = parts.next().unwrap().trim_start_matches([',', ' ', '\n']);
            (method.split('(').next().unwrap().to_owned(), path)
        };
        calls.map(route).collect()
    }

    #[test]
    fn every_path_is_described_and_every_description_has_its_path() {
        let description = described(None, false);
        let paths = description["paths"].as_object().unwrap();
        let described: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(move |method| (method.clone(), path.clone()))
            })
            .collect();
        assert!(described.len() > 25, "{described:?}");
        assert_eq!(routes(), described);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn walk(root: &Value, value: &Value, seen: &mut usize) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(root.pointer(pointer).is_some(), "{reference}");
                        *seen += 1;
                    }
                    map.values().for_each(|value| walk(root, value, seen));
                }
                Value::Array(items) => items.iter().for_each(|value| walk(root, value, seen)),
                _ => {}
            }
        }
        let (description, mut seen) = (described(None, false), 0);
        walk(&description, &description, &mut seen);
        assert!(seen > 50);
    }

    #[test]
    fn fields_that_are_read_are_described() {
        #[track_caller]
        fn check(schema: &str, fields: &[&str]) {
            let description = described(None, false);
            let properties = &description["components"]["schemas"][schema]["properties"];
            for field in fields {
                assert!(properties.get(field).is_some(), "{schema} has no {field}");
            }
        }
        let sampling = [
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
            "seed",
            "user",
            "model",
            "stream",
            "stream_options",
        ];
        let guides = ["response_format", "guided_json", "guided_choice", "structured_outputs"];
        let tools = ["tools", "tool_choice", "functions", "function_call"];
        let thinking = ["reasoning_effort", "enable_thinking", "chat_template_kwargs"];
        for schema in ["ChatRequest", "CompletionRequest", "ResponsesRequest"] {
            check(schema, &sampling);
        }
        for schema in ["ChatRequest", "CompletionRequest"] {
            check(schema, &guides);
            check(schema, &["n", "stop", "logprobs", "max_tokens"]);
        }
        for schema in ["ChatRequest", "ApplyTemplateRequest"] {
            check(schema, &tools);
            check(schema, &thinking);
        }
        check("CompletionRequest", &["prompt", "echo", "best_of", "suffix"]);
        check("ResponsesRequest", &["tools", "tool_choice", "text", "reasoning", "include"]);
    }

    #[test]
    fn bodies_may_be_refused_by_their_encoding() {
        let description = described(None, false);
        let operations = description["paths"].as_object().unwrap().values();
        for operation in operations.flat_map(|path| path.as_object().unwrap().values()) {
            let takes_a_body = operation.get("requestBody").is_some();
            assert_eq!(operation["responses"].get("415").is_some(), takes_a_body, "{operation}");
        }
    }

    #[test]
    fn the_description_knows_the_vocabulary() {
        let last = "/components/schemas/Token/maximum";
        assert_eq!(described(Some(5000), false).pointer(last), Some(&json!(4999)));
        assert_eq!(described(None, false)["info"]["version"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn the_description_wants_a_key_only_where_the_server_does() {
        let (open, locked) = (described(None, false), described(None, true));
        assert_eq!(open.get("security"), None);
        let schemes = locked["components"]["securitySchemes"].as_object().unwrap();
        let wanted = locked["security"].as_array().unwrap().iter();
        let names: Vec<&String> = wanted.flat_map(|one| one.as_object().unwrap().keys()).collect();
        assert_eq!(names, schemes.keys().collect::<Vec<_>>());
    }
}
