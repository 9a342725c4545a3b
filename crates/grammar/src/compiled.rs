//! Grammars that were compiled lately, the last used first.
//!
//! What is kept has seen no token, and every answer gets a copy: caches never grow in it, so whether an answer runs
//! into a limit does not depend on the requests before it. Its memory is held like that of answers, and given up when
//! they want it; together they are a small part of what answers may have, since they stay when no answer is left.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::worker::Standing;
use crate::{Before, Grammar};

/// Grammars that are kept.
const MOST: usize = 16;
/// What they hold together: this part of the most that one answer may have.
const PART: usize = 4;
/// The longest that is kept, in bytes of its text.
const LONGEST_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Compiled {
    entries: VecDeque<(Key, Arc<Standing>)>,
}

/// A grammar by its text: in a schema the order of properties counts, which comparing values would not see.
#[derive(PartialEq, Eq)]
pub(crate) struct Key {
    kind: u8,
    text: String,
    open: Vec<u32>,
    close: String,
    opener: Option<u32>,
}

impl Key {
    pub(crate) fn of(grammar: &Grammar, before: Before<'_>, opener: Option<u32>) -> Key {
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

    /// Whether its grammar is worth keeping.
    pub(crate) fn is_short(&self) -> bool {
        self.text.len() <= LONGEST_BYTES
    }
}

impl Compiled {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What they hold together.
    pub(crate) fn held_bytes(&self) -> usize {
        self.entries.iter().map(|(_, standing)| standing.bytes()).fold(0, usize::saturating_add)
    }

    /// Takes out the one that was used longest ago.
    pub(crate) fn pop(&mut self) -> Option<Arc<Standing>> {
        self.entries.pop_back().map(|(_, standing)| standing)
    }

    pub(crate) fn get(&mut self, key: &Key) -> Option<Arc<Standing>> {
        let at = self.entries.iter().position(|(kept, _)| kept == key)?;
        let entry = self.entries.remove(at)?;
        let standing = Arc::clone(&entry.1);
        self.entries.push_front(entry);
        Some(standing)
    }

    /// Keeps a grammar and returns those that are evicted, to be dropped outside of any lock.
    pub(crate) fn keep(
        &mut self,
        key: Key,
        standing: Arc<Standing>,
        most_bytes: usize,
    ) -> Vec<Arc<Standing>> {
        if self.get(&key).is_some() {
            return vec![standing];
        }
        self.entries.push_front((key, standing));
        let mut give_way = Vec::new();
        while self.entries.len() > MOST || self.held_bytes() > most_bytes / PART {
            give_way.extend(self.pop());
        }
        give_way
    }
}
