//! A batch in parts: how it is cut, and that every row has the bits that it has on one thread.

use std::path::Path;

use checkpoint::Checkpoint;
use model::{Logits, SegmentKind};

use super::*;
use crate::{Options, Runner};

/// Each architecture: experts or none, attention with windows, recurrent layers, embeddings by layer, biases.
const MODELS: [&str; 10] = [
    "qwen3_5_moe-4bit",
    "qwen3_5_moe-f32",
    "qwen3_5-4bit",
    "qwen3_next-8bit",
    "qwen3_moe-nvfp4",
    "mixtral-mxfp4",
    "llama-bf16",
    "gpt_oss-published",
    "gemma4-mixed",
    "gemma4_e-4bit",
];

fn batch(counts: &[usize]) -> Batch {
    let mut batch = Batch::default();
    for (sequence, &count) in counts.iter().enumerate() {
        let kind = if count > 1 { SegmentKind::Prefill } else { SegmentKind::Decode };
        batch.push(sequence, 0, &vec![0; count], kind, Logits::Last);
    }
    batch
}

#[test]
fn parts_are_even_or_there_are_none() {
    let parts = |counts: &[usize], threads| parts(&batch(counts), threads);
    assert_eq!(parts(&[1; 16], 2), Some(vec![0..8, 8..16]));
    assert_eq!(parts(&[1; 16], 3), Some(vec![0..5, 5..10, 10..16]));
    assert_eq!(parts(&[1; 5], 16), Some(vec![0..2, 2..5]));
    assert_eq!(parts(&[1; 3], 2), None);
    assert_eq!(parts(&[1; 16], 1), None);
    // A prompt as long as the answers beside it, and one that is longer.
    let mut counts = vec![1; 15];
    counts.push(20);
    assert_eq!(parts(&counts, 2), Some(vec![0..15, 15..16]));
    counts[15] = 40;
    assert_eq!(parts(&counts, 2), None);
    assert_eq!(parts(&[1; 300], 2), None);
    // A row more than twice the threads.
    assert_eq!(parts(&[1; 17], 8).map(|parts| parts.len()), Some(8));
}

/// Prompts, answers and a verification of six sequences: the bits of all logits.
fn logits(model: &str, threads: usize) -> Vec<Vec<u32>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(model);
    let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
    let options = Options { context: 256, sequences: 6, threads, ..Options::default() };
    let mut runner = Runner::load(&checkpoint, &options, &|_, _| {}).expect("model");
    assert!(runner.is_narrow, "{model} is no longer small");
    let mut sequences: Vec<Sequence> = (0..6).map(|_| runner.sequence().unwrap()).collect();
    let mut all = Vec::new();
    let token = |sequence: usize, position: usize| ((sequence * 53 + position * 31) % 200) as u32;
    // (rows of each sequence, those of a verification that are right)
    let steps: [([usize; 6], Option<usize>); 6] = [
        ([5, 3, 4, 6, 2, 5], None),
        ([1; 6], None),
        ([4, 1, 1, 3, 4, 1], Some(2)),
        ([1; 6], None),
        // Past the end of a page.
        ([61, 60, 59, 60, 61, 58], None),
        ([1; 6], None),
    ];
    for (counts, right) in steps {
        let mut batch = Batch::default();
        for (index, &count) in counts.iter().enumerate() {
            let position = sequences[index].len();
            let tokens: Vec<u32> = (position..position + count).map(|p| token(index, p)).collect();
            let (kind, wanted) = match (count, right) {
                (1, _) => (SegmentKind::Decode, Logits::Last),
                (_, Some(_)) => (SegmentKind::Verify, Logits::All),
                (_, None) => (SegmentKind::Prefill, Logits::Last),
            };
            batch.push(index, position, &tokens, kind, wanted);
        }
        let is_large = batch.rows.len() > MOST_ROWS;
        assert_eq!(parts(&batch, threads).is_some(), threads > 1 && !is_large, "{counts:?}");
        let rows: usize = batch.logit_rows().len();
        let seen: Vec<Mutex<Vec<u32>>> = (0..rows).map(|_| Mutex::default()).collect();
        let read = |segment: usize, row: usize, values: &[f32]| {
            assert!(segment < 6);
            let mut bits = seen[row].lock().unwrap();
            assert!(bits.is_empty(), "a row that is read twice");
            bits.extend(values.iter().map(|value| value.to_bits()));
        };
        let mut refs: Vec<&mut Sequence> = sequences.iter_mut().collect();
        let failed = runner.forward_for(&batch, &mut refs, Reader::AtOnce(&read)).unwrap();
        assert!(failed.is_empty());
        if let Some(right) = right {
            let counts: Vec<usize> = counts.iter().map(|&count| count.min(right)).collect();
            runner.settle(&batch, &counts, &mut refs);
        }
        all.extend(seen.into_iter().map(|bits| bits.into_inner().unwrap()));
    }
    all
}

#[test]
fn rows_have_the_same_bits_in_parts() {
    for model in MODELS {
        let want = logits(model, 1);
        assert!(want.iter().all(|row| !row.is_empty()));
        for threads in [2, 3] {
            let got = logits(model, threads);
            let wrong = want.iter().zip(&got).filter(|(want, got)| want != got).count();
            assert_eq!((wrong, got.len()), (0, want.len()), "{model} on {threads} threads");
        }
    }
}
