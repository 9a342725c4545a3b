//! A model of layers whose experts are whole blocks, so that each fault meets one expert alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use checkpoint::write::{Declaration, header};
use checkpoint::{Checkpoint, ExpertLayout, FileIndex, Projection};
use compute::{Expert, ExpertBank, HostStore, Trial, Turn, Visit};
use experts::device::{ALIGNMENT, Access, Device, Fault, Files, Rule};
use experts::reader::{Method, ReadEngine};
use experts::{BankOptions, ClassSlots, LayerExperts, Slots, StreamedBank};
use format::Dtype;

pub(crate) const LAYERS: usize = 2;
pub(crate) const EXPERTS: usize = 24;
/// Bytes of one projection of an expert: two blocks.
pub(crate) const PART: usize = 2 * ALIGNMENT;
pub(crate) const EXPERT_BYTES: usize = 3 * PART;

const ROWS: usize = 32;
const COLUMNS: usize = PART / 2 / ROWS;

/// Longer than anything here takes, and short enough to report what hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs something that may hang if it is wrong.
pub(crate) fn within_patience(test: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = sender.send(());
    });
    match receiver.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        // Done, or it panicked.
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// Bytes of a weight file that look alike in no two places; `version` distinguishes two files.
pub(crate) fn file(version: u64) -> Vec<u8> {
    let names = ["gate_proj", "up_proj", "down_proj"];
    let mut tensors = Vec::new();
    for layer in 0..LAYERS {
        for name in names {
            let shape = match name {
                "down_proj" => [EXPERTS, COLUMNS, ROWS],
                _ => [EXPERTS, ROWS, COLUMNS],
            };
            let name = format!("{layer}.mlp.switch_mlp.{name}.weight");
            tensors.push(Declaration::new(name, Dtype::BF16, &shape));
        }
    }
    let mut bytes = header(&tensors, &BTreeMap::new(), ALIGNMENT as u64).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ (version + 1);
    bytes.extend((0..LAYERS * EXPERTS * EXPERT_BYTES).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    }));
    bytes
}

/// The files of the model and where its experts are.
pub(crate) struct Model {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) layers: Vec<Option<LayerExperts>>,
    /// What the weight file holds.
    pub(crate) bytes: Vec<u8>,
}

impl Model {
    /// In memory.
    pub(crate) fn new() -> Model {
        let config = br#"{"model_type": "any"}"#.to_vec();
        let files =
            vec![("config.json".to_owned(), config), ("model.safetensors".to_owned(), file(0))];
        Model::of(Checkpoint::from_owned(files).unwrap())
    }

    /// On a disk.
    pub(crate) fn write(folder: &Path) -> Model {
        std::fs::write(folder.join("config.json"), r#"{"model_type": "any"}"#).unwrap();
        std::fs::write(folder.join("model.safetensors"), file(0)).unwrap();
        Model::of(Checkpoint::open(folder).unwrap())
    }

    fn of(checkpoint: Checkpoint) -> Model {
        let layer = |index: usize| {
            let prefix = index.to_string();
            let layout = ExpertLayout::find(&checkpoint, &prefix, EXPERTS, COLUMNS, ROWS).unwrap();
            Some(LayerExperts { layout, experts_per_token: 3 })
        };
        // The last layer has no experts.
        let layers = (0..LAYERS).map(layer).chain([None]).collect();
        Model { checkpoint, layers, bytes: file(0) }
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::new(Files::open(&self.checkpoint, Access::Buffered).unwrap())
    }

    pub(crate) fn layout(&self, layer: usize) -> &ExpertLayout {
        &self.layers[layer].as_ref().unwrap().layout
    }

    /// A rule for the reads of one projection of one expert.
    pub(crate) fn rule(
        &self,
        layer: usize,
        expert: u32,
        projection: Projection,
        fault: Fault,
    ) -> Rule {
        let span = self.layout(layer).slice(expert as usize, projection).weight;
        assert!(span.offset.is_multiple_of(ALIGNMENT as u64));
        let bytes = span.offset..span.offset + span.len_bytes;
        Rule { file: Some(FileIndex(0)), bytes, attempts: 0..u32::MAX, fault }
    }

    /// Whether an expert has its own bytes.
    fn is_right(&self, layer: usize, id: u32, expert: &Expert<'_>) -> bool {
        let parts = [expert.gate, expert.up, expert.down];
        Projection::ALL.into_iter().zip(parts).all(|(projection, matrix)| {
            let span = self.layout(layer).slice(id as usize, projection).weight;
            let start = span.offset as usize;
            matrix.codes == &self.bytes[start..start + span.len_bytes as usize]
                && matrix.scales.is_empty()
                && matrix.biases.is_empty()
        })
    }

    pub(crate) fn bank(&self, device: Arc<dyn Device>, settings: Settings) -> StreamedBank {
        let Settings { kept, staging, stall, depth } = settings;
        let classes = vec![ClassSlots { kept: LAYERS * kept, staging }];
        let bytes = ((LAYERS * kept + staging) * EXPERT_BYTES) as u64;
        let options = BankOptions {
            slots: Slots { classes, bytes },
            method: Method { queue: ReadEngine::Threads, depth },
            stall,
            look_ahead: true,
        };
        StreamedBank::new(self.layers.clone(), device, options, &HostStore).unwrap()
    }

    /// Visits a layer on some threads: what came, with the right bytes, and what did not.
    #[track_caller]
    pub(crate) fn visit(
        &self,
        bank: &StreamedBank,
        layer: usize,
        wanted: &[u32],
        rows: usize,
        threads: usize,
    ) -> Visited {
        self.visit_on_trial(bank, layer, wanted, rows, &[], threads)
    }

    /// The same in a step with drafted rows, if there are `trials`.
    #[track_caller]
    pub(crate) fn visit_on_trial(
        &self,
        bank: &StreamedBank,
        layer: usize,
        wanted: &[u32],
        rows: usize,
        trials: &[Trial],
        threads: usize,
    ) -> Visited {
        let visit = bank.visit(layer, wanted, rows, trials);
        let came = Mutex::new(Vec::new());
        let wrong = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (visit, came, wrong): (&dyn Visit, _, _) = (&*visit, &came, &wrong);
                scope.spawn(move || {
                    let mut take = |experts: &[(u32, Expert<'_>)]| {
                        for (id, expert) in experts {
                            came.lock().unwrap().push(*id);
                            if !self.is_right(layer, *id, expert) {
                                wrong.lock().unwrap().push(*id);
                            }
                        }
                    };
                    // Some take one at a time, some all there are; some poll before they wait.
                    let most = [usize::MAX, 1, 3][thread % 3];
                    loop {
                        let turn = visit.next(most, thread % 2 == 0, &mut take);
                        match turn {
                            Turn::Served => {}
                            Turn::Empty if visit.next(most, true, &mut take) == Turn::Finished => {
                                break;
                            }
                            Turn::Empty => {}
                            Turn::Finished => break,
                        }
                    }
                });
            }
        });
        let mut failed: Vec<(u32, String)> =
            visit.failures().into_iter().map(|(id, error)| (id, chain(&error))).collect();
        drop(visit);
        failed.sort_unstable();
        let mut came = came.into_inner().unwrap();
        came.sort_unstable();
        // Each expert once, here or there.
        let mut all: Vec<u32> = failed.iter().map(|(id, _)| *id).chain(came.clone()).collect();
        all.sort_unstable();
        let mut expected = wanted.to_vec();
        expected.sort_unstable();
        assert_eq!(all, expected, "came: {came:?}, failed: {failed:?}");
        let wrong = wrong.into_inner().unwrap();
        assert!(wrong.is_empty(), "other bytes than their own: {wrong:?} of layer {layer}");
        Visited { came, failed }
    }
}

/// Experts of a visit.
#[derive(Debug)]
pub(crate) struct Visited {
    pub(crate) came: Vec<u32>,
    /// With the whole chain of causes.
    pub(crate) failed: Vec<(u32, String)>,
}

impl Visited {
    /// Checks that these failed, each for a reason that contains `reason`.
    #[track_caller]
    pub(crate) fn check_failed(&self, experts: &[u32], reason: &str) {
        let failed: Vec<u32> = self.failed.iter().map(|(id, _)| *id).collect();
        assert_eq!(failed, experts, "{:?}", self.failed);
        for (_, why) in &self.failed {
            assert!(why.contains(reason), "`{why}` says nothing of `{reason}`");
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// Slots of each layer.
    pub(crate) kept: usize,
    pub(crate) staging: usize,
    pub(crate) stall: Duration,
    pub(crate) depth: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { kept: 8, staging: 0, stall: Duration::from_secs(20), depth: 4 }
    }
}

/// An error and its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Numbers that look random.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) % below as u64) as usize
    }

    /// The rows that want each of some experts in a step of eight rows: often none but drafted ones.
    pub(crate) fn trials(&mut self, count: usize) -> Vec<Trial> {
        let mut trial = || match self.roll(4) {
            0 => Trial::default(),
            depth => Trial { depth: depth as u8, rows: 1 + self.roll(255) as u64 },
        };
        (0..count).map(|_| trial()).collect()
    }

    /// Between 1 and `most` experts, in some order.
    pub(crate) fn experts(&mut self, most: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..EXPERTS as u32).collect();
        let count = 1 + self.roll(most);
        for index in 0..count {
            let other = index + self.roll(EXPERTS - index);
            all.swap(index, other);
        }
        all.truncate(count);
        all
    }
}
