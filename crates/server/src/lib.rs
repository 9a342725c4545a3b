//! The only crate that knows HTTP: OpenAI, Anthropic and Ollama wire formats, metrics, the web page.
//!
//! [`Server::start`] binds and answers at once, with 503 while the model is loading; [`Server::run`]
//! gives it the model and steps the engine on the calling thread until a signal comes. Requests become
//! an `AnswerRequest`, whatever dialect they are in; `prepare` turns it into tokens, `engine_thread` feeds
//! the engine and hands out events, an `Answers` turns those back into text, and the dialect
//! writes them on the wire.
//!
//! Invariant: what a client sends, and how slowly or whether it reads, costs no other client anything.

#![forbid(unsafe_code)]

mod account;
mod answers;
mod app;
mod body;
mod budget;
mod connection;
mod continuation;
mod conversation;
mod engine_thread;
mod error;
mod fields;
mod guard;
mod hosts;
mod malformed;
mod metrics;
mod model;
mod options;
mod prepare;
mod reply;
mod request;
mod seats;
mod server;
mod shared;
mod socket;
mod speculation;
mod time;
mod turns;
mod wire;

mod anthropic;
mod inspect;
mod live;
mod live_sample;
mod ollama;
mod openai;
mod page;

pub use inspect::metrics_page;
pub use options::Options;
pub use server::{HEAD_BYTES, Loaded, Server, StartError};
