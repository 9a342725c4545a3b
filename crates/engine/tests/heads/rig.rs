//! A tiny target with a head, driven the way the engine does it.

use std::path::PathBuf;
use std::sync::Arc;

use checkpoint::Checkpoint;
use compute::memory::KvFormat;
use model::{Batch, HeadSpec, Logits, SegmentKind};
use runtime::{Features, HeadDraft, HeadOptions, HeadTokens, Options, Runner};
use state::Sequence;

use crate::weights::{DflashShape, Weights, dflash_config, file, minus_one};

/// A model with a head.
pub(crate) struct Rig {
    pub(crate) runner: Runner,
    target: Checkpoint,
}

/// A sequence and what was learned of it.
#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) sequence: Sequence,
    pub(crate) tokens: Vec<u32>,
    /// [tokens, width]
    pub(crate) features: Vec<f32>,
    /// Whether the last features are known to the next token: not after a prefix came from a cache.
    pub(crate) is_last_known: bool,
    pub(crate) width: usize,
}

impl Track {
    pub(crate) fn last(&self) -> Features {
        match self.is_last_known {
            true => Features::from_values(
                self.features[self.features.len() - self.width..].to_vec(),
                self.width,
            ),
            false => Features::default(),
        }
    }

    /// The same again, sharing all pages.
    pub(crate) fn fork(&self) -> Track {
        let (tokens, features) = (self.tokens.clone(), self.features.clone());
        Track { sequence: self.sequence.fork(), tokens, features, ..*self }
    }
}

pub(crate) fn folder(model: &str) -> PathBuf {
    golden::model(model)
}

/// A model's files, and one more of weights.
pub(crate) fn with_file(model: &str, weights: &Weights) -> Checkpoint {
    let read = |name: &str| std::fs::read(folder(model).join(name)).expect("a model's file");
    let files = vec![
        ("config.json".to_owned(), read("config.json")),
        ("model.safetensors".to_owned(), read("model.safetensors")),
        ("model-mtp.safetensors".to_owned(), file(weights)),
    ];
    Checkpoint::from_owned(files).expect("a checkpoint")
}

/// A draft in a checkpoint of its own.
pub(crate) fn draft_checkpoint(config: &serde_json::Value, weights: &Weights) -> Checkpoint {
    let files = vec![
        ("config.json".to_owned(), config.to_string().into_bytes()),
        ("model.safetensors".to_owned(), file(weights)),
    ];
    Checkpoint::from_owned(files).expect("a checkpoint")
}

pub(crate) fn options() -> Options {
    let kv = KvFormat::F32;
    Options { context: 320, sequences: 4, checkpoints: 2, threads: 2, kv, ..Options::default() }
}

pub(crate) fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 9) % 256)
        .collect()
}

impl Rig {
    /// With a head inside the model's checkpoint, its norms stored as in files MLX has not converted.
    pub(crate) fn mtp(model: &str, weights: &Weights) -> Rig {
        Rig::mtp_stored(model, &minus_one(weights), &options())
    }

    /// With a head inside the model's checkpoint, as it is.
    pub(crate) fn mtp_stored(model: &str, weights: &Weights, options: &Options) -> Rig {
        let target = with_file(model, weights);
        let spec = model::arch::spec(&target).expect("a spec");
        let head = HeadSpec::mtp(&target, &spec).expect("a head").expect("a head");
        Rig::new(target, HeadOptions { spec: Arc::new(head), checkpoint: None }, options)
    }

    /// With a draft in a checkpoint of its own.
    pub(crate) fn dflash(model: &str, shape: &DflashShape, weights: &Weights) -> Rig {
        Rig::dflash_with(model, shape, weights, &options())
    }

    pub(crate) fn dflash_with(
        model: &str,
        shape: &DflashShape,
        weights: &Weights,
        options: &Options,
    ) -> Rig {
        let target = Checkpoint::open(&folder(model)).expect("checkpoint");
        let spec = model::arch::spec(&target).expect("a spec");
        let draft = draft_checkpoint(&dflash_config(shape), weights);
        let head = HeadSpec::dflash(&draft, &spec).expect("a head");
        let head = HeadOptions { spec: Arc::new(head), checkpoint: Some(Arc::new(draft)) };
        Rig::new(target, head, options)
    }

    pub(crate) fn new(target: Checkpoint, head: HeadOptions, options: &Options) -> Rig {
        let options = Options { head: Some(head), ..options.clone() };
        let runner = Runner::load(&target, &options, &|_, _| {}).expect("a model");
        Rig { runner, target }
    }

    /// The target alone.
    pub(crate) fn without_head(&self) -> Runner {
        let options = Options { head: None, ..self.runner.options().clone() };
        Runner::load(&self.target, &options, &|_, _| {}).expect("a model")
    }

    pub(crate) fn track(&mut self) -> Track {
        let width = self.runner.head().expect("a head").spec().features().width;
        let sequence = self.runner.sequence().expect("a sequence");
        let (tokens, features) = (Vec::new(), Vec::new());
        Track { sequence, tokens, features, is_last_known: false, width }
    }

    /// Feeds tokens, in parts of the given sizes and the rest at once; the head takes each part in.
    pub(crate) fn feed(&mut self, track: &mut Track, tokens: &[u32], sizes: &[usize]) {
        let mut rest = tokens;
        let mut sizes = sizes.iter().copied();
        while !rest.is_empty() {
            let most = self.runner.options().chunk.min(rest.len());
            let count = sizes.next().unwrap_or(most).min(most);
            let part;
            (part, rest) = rest.split_at(count);
            let features = self.forward(track, part);
            self.take_in(track, part, features);
        }
    }

    /// Runs the target over tokens; returns the features.
    pub(crate) fn forward(&mut self, track: &mut Track, tokens: &[u32]) -> Vec<f32> {
        let mut batch = Batch::default();
        batch.push(0, track.sequence.len(), tokens, SegmentKind::Prefill, Logits::None);
        let failures =
            self.runner.forward(&batch, &mut [&mut track.sequence], |_, _| {}).expect("forward");
        assert!(failures.is_empty());
        self.runner.take_features().remove(0).values()
    }

    /// Runs the target over drafted tokens, of which the first `kept` stay; returns their features.
    pub(crate) fn verify(&mut self, track: &mut Track, tokens: &[u32], kept: usize) -> Vec<f32> {
        let mut batch = Batch::default();
        batch.push(0, track.sequence.len(), tokens, SegmentKind::Verify, Logits::All);
        let sequences = &mut [&mut track.sequence];
        let failures = self.runner.forward(&batch, sequences, |_, _| {}).expect("forward");
        assert!(failures.is_empty());
        self.runner.settle(&batch, &[kept], sequences);
        self.runner.take_features().remove(0).slice(0..kept).values()
    }

    /// Passes the tokens that stayed to the head.
    pub(crate) fn take_in(&mut self, track: &mut Track, tokens: &[u32], features: Vec<f32>) {
        let before = track.last();
        self.runner.head_take_in(&mut [HeadTokens {
            sequence: &mut track.sequence,
            tokens,
            features: &Features::from_values(features.clone(), track.width),
            before: &before,
        }]);
        track.tokens.extend_from_slice(tokens);
        track.features.extend(features);
        track.is_last_known = true;
        assert_eq!(track.sequence.head_len(), track.sequence.len());
    }

    /// Draft tokens, each with its logits.
    pub(crate) fn draft(
        &mut self,
        track: &mut Track,
        token: u32,
        count: usize,
    ) -> Vec<(u32, Vec<f32>)> {
        self.draft_all(&mut [track], &[(token, count)]).remove(0)
    }

    /// Drafts of several sequences at once: the token each continues from, and how many are wanted.
    pub(crate) fn draft_all(
        &mut self,
        tracks: &mut [&mut Track],
        wanted: &[(u32, usize)],
    ) -> Vec<Vec<(u32, Vec<f32>)>> {
        let features: Vec<Features> = tracks.iter().map(|track| track.last()).collect();
        let mut drafts: Vec<HeadDraft<'_>> = tracks
            .iter_mut()
            .zip(&features)
            .zip(wanted)
            .map(|((track, feature), &(token, count))| HeadDraft {
                sequence: &mut track.sequence,
                token,
                feature,
                count,
            })
            .collect();
        let mut logits: Vec<Vec<Vec<f32>>> = drafts.iter().map(|_| Vec::new()).collect();
        let drafted = self.runner.head_draft(&mut drafts, |index, row| {
            logits[index].push(row.to_vec());
            (argmax(row), 0.0)
        });
        let answer = |(drafted, logits): (Vec<(u32, f32)>, Vec<Vec<f32>>)| {
            drafted.into_iter().map(|(token, _)| token).zip(logits).collect()
        };
        drafted.into_iter().zip(logits).map(answer).collect()
    }

    /// The embedding table, row by row.
    pub(crate) fn embedding(&self) -> Vec<Vec<f64>> {
        self.rows("model.embed_tokens.weight")
    }

    /// The output head, row by row.
    pub(crate) fn head(&self) -> Vec<Vec<f64>> {
        self.rows("lm_head.weight")
    }

    /// The target's last norm, which its file stores minus one.
    pub(crate) fn last_norm(&self) -> Vec<f64> {
        let norm = self.target.tensor("model.norm.weight").expect("a norm");
        let values = self.target.read_f32(norm).expect("a norm");
        values.iter().map(|&x| 1.0 + f64::from(x)).collect()
    }

    fn rows(&self, name: &str) -> Vec<Vec<f64>> {
        let tensor = self.target.tensor(name).expect(name);
        let values = self.target.read_f32(tensor).expect(name);
        values.chunks(tensor.shape[1]).map(|row| row.iter().map(|&x| x.into()).collect()).collect()
    }
}

pub(crate) fn argmax(values: &[f32]) -> u32 {
    (0..values.len()).rev().max_by(|&a, &b| values[a].total_cmp(&values[b])).expect("logits") as u32
}
