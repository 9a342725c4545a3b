//! Requests of Ollama's clients about models: the one there is, listed and shown. Nothing is fetched or changed.

use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::body::Posted;
use crate::error::ApiError;
use crate::fields::{Fields, Result};
use crate::model::{Facts, Model};
use crate::ollama::request;
use crate::shared::ServerState;
use crate::time::rfc3339;

/// The version of Ollama whose interface this is. Editors refuse what looks older than they need.
const SPOKEN_VERSION: &str = "0.13.5";

/// A model that is not unloaded expires in a hundred years.
const NEVER_SECONDS: u64 = 100 * 365 * 86_400;

/// `GET /api/version`
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": SPOKEN_VERSION, "millstream": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`
pub(crate) async fn tags(State(shared): State<Arc<ServerState>>) -> Result<Json<Value>> {
    let model = shared.model()?;
    let mut entry = listed(&model.name, model.facts.bytes, &model.facts);
    entry["modified_at"] = rfc3339(model.created, 0).into();
    Ok(Json(json!({"models": [entry]})))
}

/// `GET /api/ps`
pub(crate) async fn ps(State(shared): State<Arc<ServerState>>) -> Result<Json<Value>> {
    let model = shared.model()?;
    let mut entry = listed(&model.name, model.plan.total_bytes, &model.facts);
    entry["expires_at"] = rfc3339(model.created + NEVER_SECONDS, 0).into();
    entry["size_vram"] = 0.into();
    entry["context_length"] = model.facts.context.into();
    Ok(Json(json!({"models": [entry]})))
}

/// `POST /api/show`
pub(crate) async fn show(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Json<Value>> {
    let model = shared.model()?;
    // A client that requests another model needs to know that it is not here.
    let (name, _) = posted.read(|body| request::name(&Fields::of_body(body)?))?;
    if let Some(name) = name
        && !is_called(model, &name)
    {
        let message = format!("there is no model {name:?} here, only {:?}", tagged(&model.name));
        return Err(ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message));
    }
    Ok(Json(shown(model)))
}

/// `POST /api/pull`: many programs fetch a model before they use it, and the one that is here need not be fetched.
pub(crate) async fn pull(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Response> {
    let ((name, streams), _) = posted.read(|body| {
        let fields = Fields::of_body(body)?;
        Ok((request::name(&fields)?, fields.bool("stream")?.unwrap_or(true)))
    })?;
    if !name.is_some_and(|name| shared.model().is_ok_and(|model| is_called(model, &name))) {
        return Err(refuse().await);
    }
    let done = json!({"status": "success"});
    if !streams {
        return Ok(Json(done).into_response());
    }
    let lines = format!("{}\n{done}\n", json!({"status": "pulling manifest"}));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response())
}

/// `POST /api/embed` and `POST /api/embeddings`
pub(crate) async fn embed() -> ApiError {
    ApiError::bad_request("not_supported", "this model answers and has no embeddings")
}

/// Whatever would fetch, make, copy or remove models.
pub(crate) async fn refuse() -> ApiError {
    let message = "millstream serves one model, the one it was started with: \
                   models are not fetched, made, copied or removed over HTTP";
    ApiError::new(StatusCode::BAD_REQUEST, "not_supported", message)
}

fn is_called(model: &Model, name: &str) -> bool {
    tagged(name) == tagged(&model.name)
}

/// A model's name as Ollama has them: with a tag.
pub(super) fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') { name.to_owned() } else { format!("{name}:latest") }
}

fn listed(name: &str, bytes: u64, facts: &Facts) -> Value {
    let tagged = tagged(name);
    json!({
        "name": tagged,
        "model": tagged,
        "size": bytes,
        "digest": digest(name, facts.bytes),
        "details": details(facts),
    })
}

fn details(facts: &Facts) -> Value {
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": facts.model_type,
        "families": [facts.model_type],
        "parameter_size": parameter_size(facts.parameters),
        "quantization_level": facts.quantization,
    })
}

fn shown(model: &Model) -> Value {
    let (facts, text) = (&model.facts, &model.session.text);
    let mut capabilities = vec!["completion"];
    if text.tools.is_some() {
        capabilities.push("tools");
    }
    let template = text.template.as_ref().map_or("", |template| template.source());
    if thinks(template) {
        capabilities.push("thinking");
    }
    json!({
        "modelfile": "",
        "license": "",
        "parameters": parameters(&model.session.defaults),
        "template": template,
        "details": details(facts),
        "model_info": model_info(facts),
        "capabilities": capabilities,
        "modified_at": rfc3339(model.created, 0),
    })
}

/// Whether a chat template knows of thinking.
fn thinks(template: &str) -> bool {
    let signs = ["enable_thinking", "reasoning_content", "reasoning_effort", "<think>"];
    signs.iter().any(|sign| template.contains(sign))
}

/// The model's own defaults, a line each.
fn parameters(defaults: &engine::SamplingParams) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, value: &dyn Display| {
        let separator = if lines.is_empty() { "" } else { "\n" };
        let _ = write!(lines, "{separator}{name:<30} {value}");
    };
    line("temperature", &defaults.temperature);
    line("top_k", &defaults.top_k);
    line("top_p", &defaults.top_p);
    line("min_p", &defaults.min_p);
    line("repeat_penalty", &defaults.repetition_penalty);
    lines
}

fn model_info(facts: &Facts) -> Map<String, Value> {
    let family = &facts.model_type;
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), family.as_str().into());
    info.insert("general.parameter_count".to_owned(), facts.parameters.into());
    info.insert(format!("{family}.context_length"), facts.context.into());
    info.insert(format!("{family}.vocab_size"), facts.vocabulary.into());
    if let Some((_, experts, experts_per_token)) = facts.experts {
        info.insert(format!("{family}.expert_count"), experts.into());
        info.insert(format!("{family}.expert_used_count"), experts_per_token.into());
    }
    info
}

/// Such as `35.1B`.
fn parameter_size(parameters: u64) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")];
    let number = parameters as f64;
    match units.iter().find(|unit| number >= unit.0) {
        Some((size, unit)) => format!("{:.1}{unit}", number / size),
        None => parameters.to_string(),
    }
}

/// A name for the model that stays the same, in the shape of a digest. It is made from the model's name and
/// size, not from its bytes: a download cannot be checked with it.
fn digest(name: &str, bytes: u64) -> String {
    let mut text = String::with_capacity(64);
    for part in 0..4u64 {
        // FNV-1a, begun four times.
        let mut hash = 0xcbf2_9ce4_8422_2325 ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in name.bytes().chain(bytes.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let _ = write!(text, "{hash:016x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            model_type: "qwen3_5_moe".to_owned(),
            context: 4096,
            vocabulary: 5000,
            parallel: 4,
            parameters: 35_123_000_000,
            bytes: 1000,
            quantization: "4-bit".to_owned(),
            experts: Some((40, 256, 8)),
        }
    }

    #[test]
    fn names_have_a_tag() {
        #[track_caller]
        fn check(name: &str, expect: &str) {
            assert_eq!(tagged(name), expect);
        }
        check("pebble", "pebble:latest");
        check("pebble:4bit", "pebble:4bit");
        check("mlx-community/Qwen3.5-35B", "mlx-community/Qwen3.5-35B:latest");
        check("localhost:80/model", "localhost:80/model:latest");
    }

    #[test]
    fn sizes_are_said_shortly() {
        #[track_caller]
        fn check(parameters: u64, expect: &str) {
            assert_eq!(parameter_size(parameters), expect);
        }
        check(12, "12");
        check(2_240_000, "2.2M");
        check(35_123_000_000, "35.1B");
        check(1_040_000_000_000, "1.0T");
    }

    #[test]
    fn a_digest_is_stable_and_distinguishes_models() {
        let one = digest("pebble", 1000);
        assert_eq!(one, digest("pebble", 1000));
        assert_ne!(one, digest("pebble", 1001));
        assert_ne!(one, digest("pebbles", 1000));
        assert!(one.len() == 64 && one.bytes().all(|b| b.is_ascii_hexdigit()));
    }

    #[test]
    fn a_listed_model() {
        let expect = json!({
            "name": "m:latest", "model": "m:latest", "size": 77, "digest": digest("m", 1000),
            "details": {"parent_model": "", "format": "safetensors", "family": "qwen3_5_moe",
                "families": ["qwen3_5_moe"], "parameter_size": "35.1B", "quantization_level": "4-bit"},
        });
        assert_eq!(listed("m", 77, &facts()), expect);
        let info = model_info(&facts());
        assert_eq!(info["qwen3_5_moe.context_length"], 4096);
        assert_eq!(info["qwen3_5_moe.expert_used_count"], 8);
    }

    #[test]
    fn defaults_are_listed_a_line_each() {
        let text = parameters(&engine::SamplingParams::default());
        assert!(text.starts_with("temperature                    "), "{text}");
        assert_eq!(text.lines().count(), 5);
    }
}
