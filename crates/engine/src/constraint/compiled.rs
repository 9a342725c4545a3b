//! Grammars that were compiled lately, the last used first.
//!
//! What is kept has seen no token, and everybody gets a copy: nobody's caches grow in it, and whether an answer runs
//! into a limit does not depend on who asked before.

use std::collections::VecDeque;
use std::sync::Arc;

use super::worker::Slot;
use super::{Before, Grammar};

/// Grammars that are kept.
const MOST: usize = 16;
/// The longest that is kept, in bytes of its text.
const LONGEST_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Compiled {
    entries: VecDeque<(Key, Arc<Slot>)>,
}

/// A grammar by its text: in a schema the order of properties counts, which comparing values would not see.
#[derive(PartialEq, Eq)]
pub(super) struct Key {
    kind: u8,
    text: String,
    open: Vec<u32>,
    close: String,
    opener: Option<u32>,
}

impl Key {
    pub(super) fn of(grammar: &Grammar, before: Before<'_>, opener: Option<u32>) -> Key {
        let (kind, text) = match grammar {
            Grammar::JsonObject => (0, String::new()),
            Grammar::JsonSchema(schema) => (1, schema.to_string()),
            Grammar::Regex(regex) => (2, regex.clone()),
            Grammar::Lark(lark) => (3, lark.clone()),
        };
        let (open, close) = match before {
            Before::Nothing => (Vec::new(), ""),
            Before::Thinking { close } => (Vec::new(), close),
            Before::MaybeThinking { open, close } => (open.to_vec(), close),
        };
        Key { kind, text, open, close: close.to_owned(), opener }
    }
}

impl Compiled {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<Arc<Slot>> {
        let at = self.entries.iter().position(|(kept, _)| kept == key)?;
        let entry = self.entries.remove(at)?;
        let slot = Arc::clone(&entry.1);
        self.entries.push_front(entry);
        Some(slot)
    }

    pub(super) fn keep(&mut self, key: Key, slot: Arc<Slot>) {
        if key.text.len() <= LONGEST_BYTES && self.get(&key).is_none() {
            self.entries.push_front((key, slot));
            self.entries.truncate(MOST);
        }
    }
}
