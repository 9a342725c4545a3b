//! What viewers receive of the machine at work, and the channel that it comes through.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use engine::Load;
use runtime::ExpertActivity;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::model::Rates;
use crate::speculation::Speculating;

/// Samples that a viewer may be behind.
const SAMPLES: usize = 4;
/// The longest list of a sample.
const MOST_CELLS: usize = 4096;

/// Where the engine's thread and viewers meet.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) viewers: AtomicUsize,
    /// `None` is the end.
    pub(crate) samples: broadcast::Sender<Option<Arc<LiveSample>>>,
}

impl Default for Live {
    fn default() -> Live {
        Live { viewers: AtomicUsize::new(0), samples: broadcast::channel(SAMPLES).0 }
    }
}

impl Live {
    /// How many viewers there are.
    pub(crate) fn viewers(&self) -> usize {
        self.viewers.load(Ordering::Relaxed)
    }
}

/// What happened since the sample before.
#[derive(Debug, Default)]
pub(crate) struct LiveSample {
    /// Since the server started.
    pub(crate) seconds: f64,
    pub(crate) rates: Rates,
    pub(crate) load: Load,
    pub(crate) limit: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes_per_second: Option<f64>,
    pub(crate) grid: Option<ExpertActivity>,
    pub(crate) speculation: Option<Speculating>,
    /// Written by the first viewer that needs it.
    pub(crate) value: OnceLock<Value>,
}

impl LiveSample {
    pub(crate) fn value(&self) -> &Value {
        self.value.get_or_init(|| {
            let LiveSample { rates, load, .. } = self;
            json!({
                "t": self.seconds,
                "prefill_tok_s": rates.prefill,
                "decode_tok_s": rates.decode,
                "active": load.active,
                "prefilling": load.prefilling,
                "queued": load.queued,
                "limit": self.limit,
                "pool": {"pages": load.pages, "free": load.free_pages},
                "cache": {"entries": load.cache_entries, "tokens": load.cache_tokens},
                "memory_bytes": self.memory_bytes,
                "hit_rate": rates.hits,
                "read_bytes_s": rates.read_bytes,
                "disk_bytes_s": self.disk_bytes_per_second,
                "grid": self.grid.as_ref().map(grid_json),
                "speculation": self.speculation.as_ref().and_then(Speculating::sample),
            })
        })
    }
}

fn grid_json(grid: &ExpertActivity) -> Value {
    let uses = grid
        .uses
        .iter()
        .take(MOST_CELLS)
        .map(|&(layer, expert, rows)| json!([layer, expert, rows]));
    let reads = grid.reads.iter().take(MOST_CELLS).map(|&(layer, expert)| json!([layer, expert]));
    json!({
        "resident": base64::encode(&grid.resident),
        "hits": uses.collect::<Vec<_>>(),
        "reads": reads.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_has_what_the_page_draws() {
        let load = Load {
            active: 3,
            prefilling: 1,
            queued: 2,
            pages: 64,
            free_pages: 40,
            ..Load::default()
        };
        let sample = LiveSample {
            seconds: 1.5,
            rates: Rates { prefill: 10.0, decode: 4.0, hits: Some(0.75), read_bytes: Some(1e6) },
            load,
            limit: 256,
            memory_bytes: 77,
            disk_bytes_per_second: Some(2e9),
            grid: Some(ExpertActivity {
                uses: vec![(0, 3, 2)],
                reads: vec![(1, 9)],
                // Layer 0 with 12 experts has experts 0 and 9; layer 1 has expert 1: bit 13.
                resident: vec![0b0000_0001, 0b0010_0010],
            }),
            speculation: Some(Speculating::example()),
            value: OnceLock::new(),
        };
        let expect = json!({
            "t": 1.5, "prefill_tok_s": 10.0, "decode_tok_s": 4.0, "active": 3, "prefilling": 1, "queued": 2,
            "limit": 256, "pool": {"pages": 64, "free": 40}, "cache": {"entries": 0, "tokens": 0},
            "memory_bytes": 77, "hit_rate": 0.75, "read_bytes_s": 1e6, "disk_bytes_s": 2e9,
            "grid": {"resident": "ASI=", "hits": [[0, 3, 2]], "reads": [[1, 9]]},
            "speculation": {"acceptance": 0.75, "gain": 1.5},
        });
        assert_eq!(*sample.value(), expect);
        let plain = LiveSample::default();
        assert_eq!(plain.value()["grid"], Value::Null);
        assert_eq!(plain.value()["speculation"], Value::Null);
        assert_eq!(plain.value()["hit_rate"], Value::Null);
        assert_eq!(plain.value()["disk_bytes_s"], Value::Null);
    }

    #[test]
    fn lists_are_cut() {
        let many = ExpertActivity {
            uses: (0..5000).map(|expert| (0, expert, 1)).collect(),
            reads: (0..5000).map(|expert| (0, expert)).collect(),
            resident: Vec::new(),
        };
        let grid = grid_json(&many);
        assert_eq!(grid["hits"].as_array().unwrap().len(), MOST_CELLS);
        assert_eq!(grid["reads"].as_array().unwrap().len(), MOST_CELLS);
    }
}
