//! Anthropic's dialect: messages, as its clients and Claude Code send them.
//!
//! `request` reads requests, `reply` turns an answer into blocks and events, `messages` joins them.
//! `cut` reads calls that stop in the middle. Both ends are pure: neither knows of connections.

mod cut;
pub(crate) mod messages;
mod reply;
mod request;
mod tools;
