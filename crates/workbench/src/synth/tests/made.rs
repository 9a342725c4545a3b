//! A model in memory is the one that would be written, and it runs resident and streamed.

use checkpoint::Span;
use runtime::{Options, Plan, PlanRequest, Runner, Streaming};

use super::*;
use crate::synth::made;

#[test]
fn every_byte_is_that_of_the_written_file() {
    for like in TINY.into_iter().chain(["tiny-gpt-oss", "tiny-gemma-4"]) {
        let folder = tempfile::tempdir().expect("a folder");
        let request = request(like, Format::Mlx, folder.path().join("model"));
        let written = Checkpoint::open(&synth(&request)).expect("opens");
        let made = made::checkpoint(&request).expect("a model");
        assert!(made.tensors().eq(written.tensors()), "{like}");
        for name in ["config.json", "tokenizer.json", "chat_template.jinja", mlx::INDEX] {
            let [ours, theirs] = [&made, &written].map(|checkpoint| checkpoint.read_file(name));
            assert_eq!(ours.expect(name), theirs.expect(name), "{like}: {name}");
        }
        for tensor in written.tensors() {
            let read = |checkpoint: &Checkpoint, span: Span| {
                let mut bytes = vec![0; span.len_bytes as usize];
                checkpoint.read_span(span, &mut bytes).expect("bytes");
                bytes
            };
            let whole = read(&made, tensor.span());
            assert_eq!(whole, read(&written, tensor.span()), "{like}: {}", tensor.name);
            // Pieces that begin and end within rows, and in other tensors.
            let before = tensor.offset.min(37);
            let odd = Span {
                offset: tensor.offset - before,
                len_bytes: tensor.len_bytes.min(5001) + before,
                ..tensor.span()
            };
            assert_eq!(read(&made, odd), read(&written, odd), "{like}: {}", tensor.name);
        }
    }
}

#[test]
fn shared_reads_give_the_same_bytes() {
    let (_, made) = made("qwen3-0.6b", Some(1)).expect("a model");
    let table = made.tensor("model.embed_tokens.weight").expect("a table");
    assert!(table.len_bytes > 32 << 20);
    let mut whole = vec![0; table.len_bytes as usize];
    made.read_span(table.span(), &mut whole).expect("bytes");
    let mut piece = vec![0; 1001];
    for offset in (0..table.len_bytes - 1001).step_by(1_234_567) {
        made.read(table, offset, &mut piece).expect("bytes");
        assert_eq!(piece, whole[offset as usize..][..1001], "at {offset}");
    }
}

/// The logits of a few tokens.
fn logits(checkpoint: &Checkpoint, options: &Options) -> Vec<f32> {
    let mut runner = Runner::load(checkpoint, options, &|_, _| {}).expect("loads");
    let mut sequence = runner.sequence().expect("a sequence");
    let mut all = Vec::new();
    let row = |_: usize, logits: &[f32]| all.extend_from_slice(logits);
    runner.feed(&mut sequence, &[1, 70, 900, 70, 3], model::Logits::All, row).expect("runs");
    assert_eq!(runner.streamed().is_some(), options.slots.is_some());
    all
}

#[test]
fn it_is_planned_as_if_written_and_runs_resident_and_streamed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut request = request("tiny-qwen3-moe", Format::Mlx, folder.path().join("model"));
    request.values = Values::default();
    let written = Checkpoint::open(&synth(&request)).expect("opens");
    let (description, made) = made("Tiny-Qwen3-MoE", None).expect("a model");
    assert_eq!(description, "4 layers of tiny-qwen3-moe");
    let plan = |checkpoint: &Checkpoint, streaming| {
        let spec = model::arch::spec(checkpoint).expect("a spec");
        let request = PlanRequest {
            context: Some(64),
            streaming,
            expert_slots: (streaming == Streaming::Always).then_some(24),
            memory_bytes: Some(1 << 30),
            ..PlanRequest::default()
        };
        (spec.bytes_per_token(), Plan::new(&spec, &request).expect("a plan"))
    };
    let mut answers = Vec::new();
    for streaming in [Streaming::Never, Streaming::Always] {
        let (bytes_per_token, ours) = plan(&made, streaming);
        let (expect, theirs) = plan(&written, streaming);
        assert_eq!(bytes_per_token, expect);
        assert_eq!(ours.total_bytes, theirs.total_bytes);
        answers.push(logits(&made, &ours.options));
        answers.push(logits(&written, &theirs.options));
    }
    assert!(answers[0].iter().all(|logit| logit.is_finite()));
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}
