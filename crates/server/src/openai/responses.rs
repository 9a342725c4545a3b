//! `POST /v1/responses`, as Codex speaks it: nothing is kept between two requests.
//!
//! `request` and `items` read requests, `offers` what may be called, `reply` turns an answer into items
//! and events. What a client needs to continue (thinking included) is in the response itself.

mod input_text;
mod items;
mod offers;
mod reply;
mod request;

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::now_unix_s;
use crate::body::Posted;
use crate::fields::Result;
use crate::prepare;
use crate::reply::EventReply;
use crate::request::identifier;
use crate::shared::ServerState;
use reply::{Reply, ResponseHead};

/// Answers a conversation.
pub(crate) async fn respond(
    State(shared): State<Arc<ServerState>>,
    headers: HeaderMap,
    posted: Posted,
) -> Result<Response> {
    let (asked, share) = posted.read(request::read)?;
    let model = shared.model()?.name.clone();
    let answers =
        prepare::begin(&shared, vec![asked.request], share).await.map_err(Reply::in_own_words)?;
    let head =
        ResponseHead { suffix: identifier(""), created: now_unix_s(), model, echo: asked.echo };
    let reply = Reply::new(head, asked.offers, asked.extras);
    crate::reply::write(&shared, &headers, asked.streams, reply, answers).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;

    #[test]
    fn fields_are_named_as_this_path_does() {
        #[track_caller]
        fn check(error: ApiError, param: &str, message: &str) {
            let error = Reply::in_own_words(error);
            assert_eq!((error.param.as_deref(), error.message.as_str()), (Some(param), message));
        }
        check(ApiError::field("messages", "none"), "input", "input: none");
        check(
            ApiError::field("response_format", "too large"),
            "text.format",
            "text.format: too large",
        );
        check(ApiError::field("top_p", "no"), "top_p", "top_p: no");
        let error = crate::error::context_exceeded(9, 8);
        check(error.clone(), "input", &error.message);
    }
}
