//! `GET /v1/models`, `/v1/models/{name}`, and `/v1/embeddings`, which there are none of.
//!
//! Anthropic's clients request models at the same paths: entries and lists have the fields of both dialects.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::body::Posted;
use crate::error::ApiError;
use crate::fields::{Fields, Result, wrong};
use crate::model::Facts;
use crate::shared::ServerState;
use crate::time::rfc3339;

/// The one model there is.
pub(crate) async fn list(State(shared): State<Arc<ServerState>>) -> Result<Json<Value>> {
    let model = shared.model()?;
    Ok(Json(listed(&entry(&model.name, model.created, &model.facts))))
}

/// The model of this name.
pub(crate) async fn show(
    State(shared): State<Arc<ServerState>>,
    name: std::result::Result<Path<String>, PathRejection>,
) -> Result<Json<Value>> {
    let model = shared.model()?;
    // No model has a name that is no text.
    let name = name.as_ref().map_or("", |Path(name)| name);
    if name != model.name {
        let message = format!("there is no model {name:?} here, only {:?}", model.name);
        let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
        return Err(ApiError { param: Some("model".to_owned()), ..error });
    }
    Ok(Json(entry(&model.name, model.created, &model.facts)))
}

/// Says that there are none.
pub(crate) async fn embeddings(
    State(shared): State<Arc<ServerState>>,
    posted: Posted,
) -> Result<Json<Value>> {
    posted.read(check_input)?;
    let message = format!(
        "{} generates text and has no embeddings: use a model made for them",
        shared.model()?.name
    );
    Err(ApiError::bad_request("no_embeddings", message))
}

fn check_input(body: &Value) -> Result<()> {
    let fields = Fields::of_body(body)?;
    super::check_names(&fields)?;
    match fields.required("input")? {
        Value::String(text) if !text.is_empty() => Ok(()),
        Value::Array(items) if !items.is_empty() => Ok(()),
        Value::String(_) | Value::Array(_) => Err(fields.error("input", "is empty")),
        other => Err(wrong("input", "a string or an array", other)),
    }
}

fn listed(entry: &Value) -> Value {
    json!({
        "object": "list",
        "first_id": entry["id"],
        "last_id": entry["id"],
        "has_more": false,
        "data": [entry],
    })
}

fn entry(name: &str, created: u64, facts: &Facts) -> Value {
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": created,
        "created_at": rfc3339(created, 0),
        "owned_by": "millstream",
        "context_length": facts.context,
        "max_model_len": facts.context,
        "meta": {
            "parameters": facts.parameters,
            "bytes": facts.bytes,
            "quantization": facts.quantization,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_described() {
        let facts = Facts {
            model_type: "qwen3_moe".to_owned(),
            context: 4096,
            vocabulary: 100,
            parallel: 4,
            parameters: 30_000_000_000,
            bytes: 17_000_000_000,
            quantization: "4-bit".to_owned(),
            experts: None,
        };
        let entry = entry("maker/model", 7, &facts);
        assert_eq!(
            entry,
            json!({
                "id": "maker/model", "object": "model", "created": 7, "owned_by": "millstream",
                "type": "model", "display_name": "maker/model", "created_at": "1970-01-01T00:00:07.000000Z",
                "context_length": 4096, "max_model_len": 4096,
                "meta": {"parameters": 30_000_000_000u64, "bytes": 17_000_000_000u64, "quantization": "4-bit"},
            })
        );
        assert_eq!(
            listed(&entry),
            json!({
                "object": "list", "data": [entry],
                "first_id": "maker/model", "last_id": "maker/model", "has_more": false,
            })
        );
    }

    #[test]
    fn embeddings_need_an_input() {
        #[track_caller]
        fn check(body: &Value, param: Option<&str>) {
            let found = check_input(body).err().and_then(|error| error.param);
            assert_eq!(found.as_deref(), param);
        }
        check(&json!({"input": "text"}), None);
        check(&json!({"input": ["a", "b"]}), None);
        check(&json!({"input": [1, 2]}), None);
        check(&json!({}), Some("input"));
        check(&json!({"input": ""}), Some("input"));
        check(&json!({"input": []}), Some("input"));
        check(&json!({"input": {"a": 1}}), Some("input"));
        check(&json!({"input": "text", "model": 5}), Some("model"));
    }
}
