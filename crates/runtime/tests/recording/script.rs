//! Every operation of a step and every method of a store, called on both backends with the same inputs.

use std::sync::Mutex;

use compute::memory::{ArenaShape, KvFormat, PageId, SlotId};
use compute::{
    Activation, AttentionShape, Backend, BackendKind, DeltaShape, Error, ExpertPlace, Features,
    HeadRows, KvRun, Linear, Matrix, MatrixPlace, Norm, PageTable, RecentPages, ResidentBank,
    ResidentExpert, Rope, RouterShape, RowSource, SharedExpert, StateRun, Store, Tensor, Weight,
    weight_memory,
};
use format::{Encoding, Float};
use machine::cpu::Isa;

const HIDDEN: usize = 64;
const F32: Encoding = Encoding::Dense(Float::F32);

/// Values between -1 and 1.
fn values(seed: usize, count: usize) -> Vec<f32> {
    let value = |i: usize| {
        let bits = (i as u32 + 1).wrapping_mul(2_654_435_761) ^ (seed as u32).wrapping_mul(40_503);
        (bits.wrapping_mul(2_246_822_519) >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(value).collect()
}

fn weight(store: &dyn Store, rows: usize, cols: usize, factor: f32) -> Weight {
    let bytes: Vec<u8> = values(rows, rows * cols).iter().flat_map(|x| x.to_le_bytes()).collect();
    let matrix = Matrix::new(rows, cols, F32, &bytes, &[], &[]).expect("a matrix");
    Weight::from_parts(Matrix { factor, ..matrix }, store).expect("memory")
}

/// Rows of a file; the fifth cannot be read.
#[derive(Debug)]
struct BrokenRows;

impl RowSource for BrokenRows {
    fn rows(&self) -> usize {
        10
    }

    fn cols(&self) -> usize {
        HIDDEN
    }

    fn encoding(&self) -> Encoding {
        F32
    }

    fn read(&self, row: usize, out: &mut [u8]) -> compute::Result<()> {
        if row == 5 {
            return Err(Error::Row { row, source: "gone".into() });
        }
        for (to, value) in out.chunks_exact_mut(4).zip(values(row, HIDDEN)) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
}

/// Experts in one region, with factors.
fn experts(store: &dyn Store) -> ResidentBank {
    let width = 32;
    let bytes = F32.matrix_bytes(width, HIDDEN);
    let mut memory = weight_memory(4 * 3 * bytes).expect("memory");
    for (to, value) in memory.chunks_exact_mut(4).zip(values(3, 4 * 3 * bytes / 4)) {
        to.copy_from_slice(&value.to_le_bytes());
    }
    let region = store.region(memory).expect("a region");
    let expert = |index: usize| {
        let at = index * 3 * bytes;
        let mut projections = [
            MatrixPlace::packed(at, width, HIDDEN, F32),
            MatrixPlace::packed(at + bytes, width, HIDDEN, F32),
            MatrixPlace::packed(at + 2 * bytes, HIDDEN, width, F32),
        ];
        projections[index % 3].factor = 0.5 + index as f32;
        let place = ExpertPlace { projections, biases: [None; 3], is_interleaved: false };
        ResidentExpert { region: region.clone(), place }
    };
    ResidentBank::new(vec![(0..4).map(expert).collect()])
}

/// What a run left: tensors, failed rows, and logits by task.
#[derive(Debug, PartialEq)]
struct Outcome {
    tensors: Vec<Vec<u32>>,
    failed: Vec<usize>,
    logits: Vec<(usize, usize, Vec<u32>)>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All of it, in two steps.
fn outcome(kind: BackendKind) -> Outcome {
    let mut backend = Backend::new(kind, Isa::Scalar, 1, 1 << 16).expect("a backend");
    let store = backend.store();
    let norm = |width: usize| Norm { weight: store.vector(values(width, width)), eps: 1e-6 };
    let (row_norm, head_norm) = (norm(HIDDEN), norm(16));
    let table = weight(store, 10, HIDDEN, 1.0);
    let linear = Linear {
        weight: weight(store, HIDDEN, HIDDEN, 0.7),
        bias: Some(store.vector(values(9, HIDDEN))),
    };
    let router = Linear { weight: weight(store, 4, HIDDEN, 1.0), bias: None };
    let shared = [(32, HIDDEN), (32, HIDDEN), (HIDDEN, 32)]
        .map(|(rows, cols)| weight(store, rows, cols, 1.0));
    let (choice_bias, expert_scale) = (store.vector(values(1, 4)), store.vector(values(2, 4)));
    let sinks = store.vector(values(4, 4));
    let bank = experts(store);
    let attention = AttentionShape::new(4, 2, 16, 16);
    let mut pages = [store.kv(&ArenaShape::of(attention.pages(KvFormat::F16)), 4).expect("pages")];
    let delta = DeltaShape {
        key_heads: 1,
        value_heads: 2,
        key_dim: 16,
        value_dim: 16,
        taps: 4,
        conv_weight: store.vector(values(5, 4 * 64)),
        decay: store.vector(vec![-0.5, -0.1]),
        dt_bias: store.vector(vec![0.1, 0.2]),
    };
    let mut states = store.recurrent(delta.state_floats(), 3).expect("states");
    let mut tape = store.tape();
    let slab = store.slab(4096).expect("a slab");
    assert_eq!(slab.target(8).addr().get() - slab.target(0).addr().get(), 8);

    let mut seen: Vec<Tensor> = Vec::new();
    let mut tensors = Vec::new();
    let mut step = backend.begin();
    step.set_trials(&[0, 1, 2]);
    let h = step.embed(&table, &[3, 1, 4], 2.0);
    let rows = step.fetch(&BrokenRows, &[1, 5, 9], 0.5);
    let outside = step.upload(&values(7, 3 * HIDDEN), HIDDEN);
    let zeros = step.bring(&Features::zeros(3, HIDDEN));
    step.add(h, rows);
    step.add(h, outside);
    step.add(h, zeros);
    let x = step.norm(h, &row_norm);
    let projected = step.matmul(x, &[&linear, &linear]);
    let (q, k) = (projected[0], step.columns(projected[1], 0, 8, 16));
    let v = step.columns(projected[1], 8, 8, 16);
    step.head_norm(q, &head_norm);
    step.rope(q, 16, &Rope::linear(16, 10_000.0, 1.0), &[0, 1, 2]);
    let pages_of = [PageId(2)];
    let table_of = PageTable { arena: 0, shape: 0, pages: &pages_of, first_block: 0 };
    let newest = PageTable { pages: &[PageId(3)], ..table_of };
    let recent = Some(RecentPages { pages: newest, positions: 2 });
    let run = KvRun { row: 0, count: 3, position: 0, pages: table_of, recent };
    step.store(&[k, v], &mut pages, &[run]);
    let attended = step.attend(q, &mut pages, &[run], &attention, None, Some(&sinks));
    seen.push(attended);
    let mark = step.mark();
    let gated = step.sigmoid_gate(attended, x);
    let made = step.glu(gated, x, Activation::GeGlu);
    step.add(h, made);
    step.release(mark);
    step.scale(h, 0.3);
    step.softcap(h, 2.0);
    // A recurrent layer: two certain rows, and one that is tried.
    let qkv = step.concat(&[h]);
    let (a, b) = (step.columns(h, 0, 2, HIDDEN), step.columns(h, 2, 2, HIDDEN));
    let run = |row: usize, count: usize, slot: u32, is_trial: bool| StateRun {
        row,
        count,
        slot: SlotId(slot),
        is_trial,
    };
    step.keep(0, qkv, a, b, &mut tape);
    let runs = [run(0, 2, 0, false), run(2, 1, 1, true)];
    let o = step.delta(qkv, a, b, &delta, &mut states, &runs);
    let z = step.columns(h, 0, 32, HIDDEN);
    seen.push(step.gated_norm(o, z, &head_norm));
    let logits = step.matmul(h, &[&router]).remove(0);
    let shape = RouterShape::softmax_of_chosen(2);
    let routing = step.route(logits, &shape, Some(&choice_bias), None);
    step.expect(0, routing, &bank);
    let routing = step.route(logits, &shape, None, Some(&expert_scale));
    let [gate_proj, up_proj, down_proj] = &shared;
    let shared = SharedExpert { gate_proj, up_proj, down_proj, gate: None };
    seen.push(step.moe(0, h, routing, Activation::SwiGlu, &bank, Some(shared)));
    let last = step.select(h, &[2, 0]);
    let kept = step.retain(&[h, x], &[0..1, 1..3]);
    let fence = step.submit();
    let failed = step.failures(&fence).into_iter().map(|failure| failure.row).collect();
    tensors.extend(seen.drain(..).map(|x| bits(step.read(&fence, x))));
    let logits = Mutex::new(Vec::new());
    step.read_logits(&fence, last, &[0..1, 1..2], &|task, row, values| {
        logits.lock().expect("a list").push((task, row, bits(values.all())));
    });
    drop(step);

    // Between steps: a page and slots are copied, a slot is cleared; the tried row is right.
    pages[0].copy_page(0, PageId(2), PageId(0));
    states.copy(SlotId(0), SlotId(2));
    states.clear(SlotId(0));
    let mut step = backend.begin();
    step.replay(0, &tape, &delta, &mut states, &[run(2, 1, 1, false)]);
    let mut rows = kept[1].clone();
    rows.append(&Features::zeros(1, 2 * HIDDEN));
    rows.append(&kept[0]);
    seen.push(step.bring(&rows));
    let q = step.upload(&values(11, HIDDEN), HIDDEN);
    let pages_of = [PageId(0)];
    let table_of = PageTable { arena: 0, shape: 0, pages: &pages_of, first_block: 0 };
    let run_of = KvRun { row: 0, count: 1, position: 2, pages: table_of, recent: None };
    let scores = step.upload(&values(14, 2), 2);
    let selection = step.choose_blocks(scores, &[2], 2, 1);
    seen.push(step.attend(q, &mut pages, &[run_of], &attention, Some(selection), None));
    let heads = HeadRows { heads: 2, stride: 16, first: 8, count: 8 };
    let x = step.upload(&values(15, 3 * 16), 16);
    seen.push(step.matmul_transposed(x, shared.gate_proj, &heads));
    let qkv = step.upload(&values(12, 3 * 64), 64);
    let gates = step.upload(&values(13, 6), 2);
    let runs = [run(0, 1, 0, false), run(1, 1, 1, false), run(2, 1, 2, false)];
    seen.push(step.delta(qkv, gates, gates, &delta, &mut states, &runs));
    let fence = step.submit();
    assert!(step.failures(&fence).is_empty());
    tensors.extend(seen.drain(..).map(|x| bits(step.read(&fence, x))));
    let mut logits = logits.into_inner().expect("a list");
    logits.sort();
    Outcome { tensors, failed, logits }
}

#[test]
fn every_operation_is_the_same_on_both_backends() {
    let want = outcome(BackendKind::Cpu);
    assert_eq!(want.failed, [1]);
    assert!(want.tensors.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
    let got = outcome(BackendKind::Recording);
    for (index, (want, got)) in want.tensors.iter().zip(&got.tensors).enumerate() {
        assert!(want == got, "tensor {index}");
    }
    assert!(want == got);
}

#[test]
#[should_panic(expected = "read before it was submitted")]
fn a_value_is_not_there_before_it_was_computed() {
    let mut backend =
        Backend::new(BackendKind::Recording, Isa::Scalar, 1, 1 << 12).expect("a backend");
    let mut step = backend.begin();
    let fence = step.submit();
    let x = step.upload(&[1.0], 1);
    let _ = step.read(&fence, x);
}

#[test]
#[should_panic(expected = "the CPU was given an arena of a recording backend")]
fn memory_of_another_backend_is_refused() {
    let recording =
        Backend::new(BackendKind::Recording, Isa::Scalar, 1, 1 << 12).expect("a backend");
    let mut cpu = Backend::new(BackendKind::Cpu, Isa::Scalar, 1, 1 << 12).expect("a backend");
    let shape = AttentionShape::new(1, 1, 16, 16);
    let mut pages =
        [recording.store().kv(&ArenaShape::of(shape.pages(KvFormat::F32)), 1).expect("pages")];
    let mut step = cpu.begin();
    let x = step.upload(&[1.0; 16], 16);
    let pages_of = [PageId(0)];
    let table = PageTable { arena: 0, shape: 0, pages: &pages_of, first_block: 0 };
    step.store(
        &[x, x],
        &mut pages,
        &[KvRun { row: 0, count: 1, position: 0, pages: table, recent: None }],
    );
}

#[test]
#[should_panic(expected = "memory of a device is read by the host")]
fn weights_of_another_backend_are_refused() {
    let recording =
        Backend::new(BackendKind::Recording, Isa::Scalar, 1, 1 << 12).expect("a backend");
    let table = weight(recording.store(), 4, 16, 1.0);
    let mut cpu = Backend::new(BackendKind::Cpu, Isa::Scalar, 1, 1 << 12).expect("a backend");
    let _ = cpu.begin().embed(&table, &[1], 1.0);
}
