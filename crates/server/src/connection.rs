//! The requests of one connection, one after the other: each takes a request slot (`Seats`), and keeps it until its answer
//! is written.
//!
//! Bodies are watched on their way through, since only they know when a request is there as a whole, when it never will
//! be, and when its answer is complete.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use tower::Service;

use crate::seats::Place;

/// What answers the requests of one connection.
pub(crate) struct Requests {
    router: Router,
    place: Place,
    /// How long a request may wait for a slot.
    patience: Duration,
}

impl Requests {
    pub(crate) fn new(router: Router, place: Place, patience: Duration) -> Requests {
        Requests { router, place, patience }
    }
}

impl hyper::service::Service<Request<Incoming>> for Requests {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (mut router, place) = (self.router.clone(), self.place.clone());
        let patience = self.patience;
        Box::pin(async move {
            place.ask().await;
            let mut refusal = None;
            if is_brief(request.uri().path()) {
                place.stand();
            } else {
                refusal = place.sit(patience).await.err();
            }
            let mut request = request.map(|body| Body::new(RequestBody::new(body, place.clone())));
            let is_refused = refusal.is_some();
            if let Some(error) = refusal {
                request.extensions_mut().insert(error);
            }
            let mut response = router.call(request).await?;
            if is_refused || place.has_rest() {
                let headers = response.headers_mut();
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Body::new(ResponseBody { body, place })))
        })
    }
}

/// Paths that say at once how the server is doing.
fn is_brief(path: &str) -> bool {
    matches!(path, "/health" | "/metrics")
}

/// A request's body, which reports when it is complete.
struct RequestBody {
    body: Incoming,
    place: Place,
    is_complete: bool,
}

impl RequestBody {
    fn new(body: Incoming, place: Place) -> RequestBody {
        let mut body = RequestBody { body, place, is_complete: false };
        if body.is_end_stream() {
            body.complete();
        }
        body
    }

    fn complete(&mut self) {
        if !self.is_complete {
            self.is_complete = true;
            self.place.received(false);
        }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let is_last = match &frame {
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            Poll::Ready(None) => true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if is_last {
            self.complete();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.is_complete {
            self.place.received(true);
        }
    }
}

/// An answer's body, which reports when it has been handed over.
struct ResponseBody {
    body: Body,
    place: Place,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.place.answered();
    }
}
