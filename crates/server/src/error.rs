//! One error for every dialect: a status, a code, a message, and the field that is wrong.
//!
//! A handler returns an [`ApiError`]; `app` renders it in the dialect of the path, and so it does with
//! the errors that no handler saw (no such path, wrong method, body too large).

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// When to try again after an answer found no memory for its grammar.
const SECONDS_UNTIL_MEMORY: u64 = 5;

/// What went wrong, as a client receives it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    /// The HTTP status.
    pub(crate) status: StatusCode,
    /// A word for programs, such as `context_length_exceeded`.
    pub(crate) code: &'static str,
    /// A sentence for people.
    pub(crate) message: String,
    /// The field that is wrong, such as `messages[2].role`.
    pub(crate) param: Option<String>,
    /// Seconds after which another try makes sense.
    pub(crate) retry_after: Option<u64>,
    /// Tokens that are needed and tokens there are, where the context is too short.
    pub(crate) context: Option<(usize, usize)>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        ApiError { status, code, message, param: None, retry_after: None, context: None }
    }

    /// The request makes no sense as a whole.
    pub(crate) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// A field makes no sense.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        let error = ApiError::bad_request("invalid_value", message);
        ApiError { param: Some(param), ..error }
    }

    /// The server cannot take it now.
    pub(crate) fn unavailable(
        code: &'static str,
        message: impl Into<String>,
        retry_after: u64,
    ) -> Self {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// The same, if it is about a field that another dialect calls by another name.
    pub(crate) fn renamed(self, other: &str, own: &str) -> Self {
        if self.param.as_deref() != Some(other) {
            return self;
        }
        let message = match self.message.strip_prefix(other).filter(|rest| rest.starts_with(':')) {
            Some(rest) => format!("{own}{rest}"),
            None => self.message,
        };
        ApiError { message, param: Some(own.to_owned()), ..self }
    }

    /// Our own fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }
}

/// Errors travel next to an empty response; `app` writes the body, for only it knows the dialect.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// What the engine says of one request.
impl From<engine::Error> for ApiError {
    fn from(error: engine::Error) -> ApiError {
        use engine::Error;
        use grammar::ConstraintError;
        match error {
            Error::EmptyPrompt => ApiError::field("messages", "the prompt is empty"),
            Error::Runtime(runtime::Error::Context { needed, context }) => {
                context_exceeded(needed, context)
            }
            Error::Runtime(runtime::Error::Token { token, vocab }) => ApiError::field(
                "prompt",
                format!("token {token} does not exist, the vocabulary has {vocab}"),
            ),
            Error::Sampling(error) => ApiError::from(error),
            Error::Text(error) => ApiError::from(error),
            Error::Field { field, reason } => ApiError::field(field, reason),
            Error::Constraint(error @ ConstraintError::NoMemory { .. }) => {
                ApiError::unavailable("memory_in_use", chain(&error), SECONDS_UNTIL_MEMORY)
            }
            error => ApiError::internal(chain(&error)),
        }
    }
}

/// What sampling refuses.
impl From<engine::SampleError> for ApiError {
    fn from(error: engine::SampleError) -> ApiError {
        use engine::SampleError;
        match error {
            SampleError::OutOfRange { field, allowed, got } => {
                ApiError::field(field, format!("must be {allowed}, got {got}"))
            }
            SampleError::UnknownToken { .. } => ApiError::field("logit_bias", error.to_string()),
            error => ApiError::internal(error.to_string()),
        }
    }
}

/// What a chat template refuses: its makers' rules about conversations, mostly.
impl From<text::Error> for ApiError {
    fn from(error: text::Error) -> ApiError {
        let message = chain(&error);
        let error = ApiError::bad_request("invalid_messages", message);
        ApiError { param: Some("messages".to_owned()), ..error }
    }
}

/// A prompt is longer than the context. Agents shorten a conversation when they read these words: many look at the
/// message and not at the code.
pub(crate) fn context_exceeded(needed: usize, context: usize) -> ApiError {
    let message = format!(
        "This model's maximum context length is {context} tokens. However, the request needs at least {needed} tokens. \
         Please reduce the length of the messages."
    );
    let error = ApiError::bad_request("context_length_exceeded", message);
    ApiError { param: Some("messages".to_owned()), context: Some((needed, context)), ..error }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}

/// Which way a path's clients expect errors to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
    /// `{"error": "…"}`
    Ollama,
}

impl ErrorShape {
    /// By the path that was requested; models are at one path for two dialects, of which only Anthropic's clients say
    /// which version of it they speak.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> ErrorShape {
        let is_under = |root: &str| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_versioned = headers.contains_key("anthropic-version");
        if is_under("/v1/messages") || (is_versioned && is_under("/v1/models")) {
            ErrorShape::Anthropic
        } else if is_under("/api") {
            ErrorShape::Ollama
        } else {
            ErrorShape::OpenAi
        }
    }

    /// The body of an error.
    pub(crate) fn body(self, error: &ApiError) -> Value {
        let ApiError { status, code, message, param, .. } = error;
        match self {
            ErrorShape::OpenAi => {
                let kind = match status.as_u16() {
                    401 => "authentication_error",
                    403 => "permission_error",
                    429 => "rate_limit_error",
                    400..=499 => "invalid_request_error",
                    503 => "overloaded_error",
                    _ => "server_error",
                };
                json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
            }
            ErrorShape::Anthropic => {
                let kind = match status.as_u16() {
                    401 => "authentication_error",
                    403 => "permission_error",
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    400..=499 => "invalid_request_error",
                    503 | 529 => "overloaded_error",
                    _ => "api_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
            ErrorShape::Ollama => json!({"error": message}),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn errors_are_shaped_by_path() {
        #[track_caller]
        fn check(path: &str, expect: &Value) {
            let error = ApiError::field("top_p", "must be 0 to 1, got 2");
            assert_eq!(ErrorShape::of(path, &HeaderMap::new()).body(&error), *expect);
        }
        let message = "top_p: must be 0 to 1, got 2";
        let kind = "invalid_request_error";
        check(
            "/v1/chat/completions",
            &json!({"error": {"message": message, "type": kind, "param": "top_p", "code": "invalid_value"}}),
        );
        check(
            "/v1/messages",
            &json!({"type": "error", "error": {"type": kind, "message": message}}),
        );
        check(
            "/v1/messages/count_tokens",
            &json!({"type": "error", "error": {"type": kind, "message": message}}),
        );
        check("/api/chat", &json!({"error": message}));
        check(
            "/v1/messagesx",
            &json!({"error": {"message": message, "type": kind, "param": "top_p", "code": "invalid_value"}}),
        );
    }

    #[test]
    fn errors_about_models_are_shaped_for_their_client() {
        #[track_caller]
        fn check(path: &str, header: &'static str, expect: ErrorShape) {
            let headers =
                [(HeaderName::from_static(header), HeaderValue::from_static("2023-06-01"))];
            assert_eq!(ErrorShape::of(path, &headers.into_iter().collect()), expect);
        }
        check("/v1/models", "anthropic-version", ErrorShape::Anthropic);
        check("/v1/models/maker/model", "anthropic-version", ErrorShape::Anthropic);
        check("/v1/models", "x-api-key", ErrorShape::OpenAi);
        check("/v1/modelsx", "anthropic-version", ErrorShape::OpenAi);
        check("/v1/chat/completions", "anthropic-version", ErrorShape::OpenAi);
        check("/api/tags", "anthropic-version", ErrorShape::Ollama);
    }
}
