//! How large the intersections of regular expressions in a schema may become.
//!
//! Where several expressions must match one text, the library pairs every branch of each with every branch of the
//! others before it counts what that cost, so the product of their lengths is bounded here. Expressions meet where
//! schemas apply to the same value: those of `allOf` and behind `$ref`, and those for the same property of objects
//! that are merged.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::limits::resolve;

/// What a format counts as: it is an expression of the library's.
const FORMAT_LENGTH: usize = 64;

/// The size of what may meet in one text: expressions meet only where there are several.
pub(super) fn largest(root: &Value) -> usize {
    let mut intersections = Intersections { root, behind: BTreeMap::new() };
    intersections.met(root).largest()
}

/// Products of lengths of expressions.
#[derive(Clone, Copy)]
struct Met {
    /// For the value itself.
    here: usize,
    /// For any value inside it.
    inside: usize,
}

const NOTHING: Met = Met { here: 1, inside: 1 };

impl Met {
    /// Both apply.
    fn and(self, other: Met) -> Met {
        Met {
            here: self.here.saturating_mul(other.here),
            inside: self.inside.saturating_mul(other.inside),
        }
    }

    /// One of the two applies.
    fn or(self, other: Met) -> Met {
        Met { here: self.here.max(other.here), inside: self.inside.max(other.inside) }
    }

    fn largest(self) -> usize {
        self.here.max(self.inside)
    }

    /// The same, seen from the value around it.
    fn within(self) -> Met {
        Met { here: 1, inside: self.largest() }
    }
}

struct Intersections<'a> {
    root: &'a Value,
    /// What is met behind each reference; nothing while it is being found, where a circle closes.
    behind: BTreeMap<&'a str, Met>,
}

impl<'a> Intersections<'a> {
    fn met(&mut self, schema: &'a Value) -> Met {
        let Value::Object(keywords) = schema else { return NOTHING };
        let mut met = self.own(keywords);
        for (keyword, value) in keywords {
            let more = match (keyword.as_str(), value) {
                ("allOf", Value::Array(all)) => self.each(all, Met::and),
                ("anyOf" | "oneOf", Value::Array(options)) => self.each(options, Met::or),
                ("$ref", Value::String(reference)) => self.behind(reference),
                ("items", Value::Array(items)) | ("prefixItems", Value::Array(items)) => {
                    self.each(items, Met::or).within()
                }
                ("items" | "additionalProperties", schema) => self.met(schema).within(),
                _ => continue,
            };
            met = met.and(more);
        }
        met
    }

    /// What this schema says itself of a text and of the properties of an object.
    fn own(&mut self, keywords: &'a Map<String, Value>) -> Met {
        let length = |keyword: &str| {
            keywords.get(keyword).and_then(Value::as_str).map_or(1, |text| text.len().max(1))
        };
        let format = if keywords.contains_key("format") { FORMAT_LENGTH } else { 1 };
        let mut met = Met { here: length("pattern").saturating_mul(format), inside: 1 };
        let values = |keyword: &str| keywords.get(keyword).and_then(Value::as_object);
        let named =
            values("properties").map_or(NOTHING, |named| self.each(named.values(), Met::or));
        met = met.and(named.within());
        // A property may have a name and match patterns; and patterns are compared with each other.
        if let Some(patterns) = values("patternProperties") {
            met = met.and(self.each(patterns.values(), Met::and).within());
            let mut lengths: Vec<usize> = patterns.keys().map(String::len).collect();
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            let compared = lengths.iter().take(2).fold(1usize, |p, &l| p.saturating_mul(l.max(1)));
            met = met.or(Met { here: 1, inside: compared });
        }
        met
    }

    fn each(
        &mut self,
        schemas: impl IntoIterator<Item = &'a Value>,
        combine: impl Fn(Met, Met) -> Met,
    ) -> Met {
        schemas.into_iter().fold(NOTHING, |met, schema| combine(met, self.met(schema)))
    }

    fn behind(&mut self, reference: &'a str) -> Met {
        if let Some(&met) = self.behind.get(reference) {
            return met;
        }
        self.behind.insert(reference, NOTHING);
        let met = resolve(self.root, reference).map_or(NOTHING, |target| self.met(target));
        self.behind.insert(reference, met);
        met
    }
}
