//! Sequences that keep their keys and values in different ways, in one memory and one batch.

use checkpoint::Checkpoint;
use compute::memory::{KvCode, KvFormat};
use compute::{CpuBackend, HostStore, Step};
use machine::cpu::isa;
use model::{Batch, Caching, Decoder, DecoderSpec, Logits, Pass, SegmentKind, in_format};
use state::{Capacity, CodeId, Layout, Memory, Sequence};

const TOKENS: usize = 300;

struct Model {
    spec: DecoderSpec,
    decoder: Decoder,
}

impl Model {
    fn load(name: &str) -> Model {
        let folder = golden::repository(&format!("testdata/models/{name}"));
        let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
        let spec = model::arch::spec(&checkpoint).expect("spec");
        let decoder = Decoder::load(&checkpoint, &spec, &HostStore, Caching::Keep, &|_, _| {});
        Model { spec, decoder: decoder.expect("model") }
    }

    fn tokens(&self, seed: u32) -> Vec<u32> {
        let vocab = self.spec.vocab as u32;
        let token = |i: u32| ((i + 1009 * seed).wrapping_mul(2_654_435_761) >> 9) % vocab;
        (0..TOKENS as u32).map(token).collect()
    }

    /// The bits of all logits of sequences of these codes, each fed so many tokens at a time, all in one batch.
    fn logits(&self, layout: &Layout, codes: &[usize], chunk: usize) -> Vec<Vec<u32>> {
        let sequences = codes.len();
        let tokens = 4 * TOKENS * sequences;
        let capacity = Capacity { tokens, sequences, checkpoints: 0, step_tokens: tokens };
        let mut memory = Memory::new(layout, &capacity, &HostStore).expect("memory");
        let rows = chunk * sequences;
        let floats = rows * (self.spec.activation_floats() + self.spec.vocab + self.spec.hidden);
        let mut backend = CpuBackend::new(isa(), 2, floats + 8192).expect("backend");
        let all: Vec<Vec<u32>> = (0..sequences).map(|seed| self.tokens(seed as u32)).collect();
        let mut sequences: Vec<Sequence> =
            codes.iter().map(|&code| memory.sequence_of(CodeId(code)).expect("sequence")).collect();
        let mut seen = vec![Vec::new(); codes.len()];
        for start in (0..TOKENS).step_by(chunk) {
            let end = (start + chunk).min(TOKENS);
            let mut batch = Batch::default();
            for (index, sequence) in sequences.iter_mut().enumerate() {
                memory.prepare(sequence, end - start).expect("room");
                let tokens = &all[index][start..end];
                batch.push(index, start, tokens, SegmentKind::Prefill, Logits::All);
            }
            let shared: Vec<&Sequence> = sequences.iter().collect();
            let mut step = backend.begin();
            let output = self.decoder.forward(&mut Pass {
                step: &mut step,
                batch: &batch,
                memory: &mut memory,
                sequences: &shared,
                bank: None,
                tape: None,
            });
            let fence = step.submit();
            let logits = output.logits.expect("logits");
            let bits = step.read(&fence, logits).iter().map(|value| value.to_bits());
            let bits: Vec<u32> = bits.collect();
            let width = bits.len() / codes.len();
            for (seen, bits) in seen.iter_mut().zip(bits.chunks(width)) {
                seen.extend(bits);
            }
            for sequence in &mut sequences {
                sequence.advance(end - start);
                sequence.release_windows(0);
            }
        }
        seen
    }
}

#[test]
fn codes_mix_in_a_batch_and_no_chunk_changes_a_bit() {
    let model = Model::load("llama-4bit");
    let plain = KvCode::plain(KvFormat::F32);
    let coded = KvCode { all: KvFormat::F16, recent: Some((100, KvFormat::F32)) };
    // The second code keeps the last layer plain.
    let last = model.spec.layers.len() - 1;
    let codes = |layer| vec![plain, if layer < last { coded } else { plain }];
    let layout = model.spec.layout(&codes).expect("layout");
    let simple = |format| model.spec.layout(&in_format(format)).expect("layout");

    let want = model.logits(&layout, &[0, 1, 1], 1);
    for chunk in [7, 64, 150, TOKENS] {
        assert!(model.logits(&layout, &[0, 1, 1], chunk) == want, "chunks of {chunk}");
    }
    // The first code is what a memory without codes does; the second is it while all is new, and near it later.
    let exact = model.logits(&simple(KvFormat::F32), &[0, 0, 0], 64);
    let rounded = model.logits(&simple(KvFormat::F16), &[0, 0, 0], 64);
    assert!(want[0] == exact[0]);
    let new = 64 * model.spec.vocab;
    assert!(want[1][..new] == exact[1][..new] && want[1][..new] != rounded[1][..new]);
    assert!(want[1] != exact[1] && want[1] != rounded[1]);
    let error = |other: &[u32]| {
        let pairs = want[1].iter().zip(other);
        pairs.map(|(&a, &b)| (f32::from_bits(a) - f32::from_bits(b)).abs()).fold(0.0, f32::max)
    };
    assert!(error(&exact[1]) < 0.01, "{}", error(&exact[1]));
}
