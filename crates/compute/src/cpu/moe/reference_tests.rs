//! What the op computes, against f64 from the definition: few rows and many, experts in memory and experts
//! that come late and in another order, with and without a shared one, in several formats.
//!
//! Two things are checked of every case: the plainest run (scalar, one thread, all experts in memory) is
//! close to f64, and every other run has its bits.

use std::sync::Mutex;

use half::bf16;

use super::super::activation::testing::{Random, assert_same_bits, isas};
use super::super::dot::tests::{random_weight, row_values};
use super::*;
use crate::bank::{BiasPlace, ExpertPlace, ResidentBank, ResidentExpert};
use crate::{HostStore, Matrix, MatrixPlace, Store, Take, Tally, Weight, weight_memory};
use format::{BlockFormat, Encoding, Float};

/// Where there are tiles, as wide as their rows are at least; the shared expert's hidden rows are narrower.
const HIDDEN: usize = if cfg!(target_arch = "x86_64") { 512 } else { 128 };
const INTERMEDIATE: usize = if cfg!(target_arch = "x86_64") { 576 } else { 192 };
const SHARED_INTERMEDIATE: usize = 64;
const EXPERTS: usize = 7;
/// Experts of a row.
const K: usize = 3;

/// Most error against f64, in units of the largest value wanted of its row.
///
/// Rounding to integers is off by at most m / 65,024 in a block whose largest magnitude is m, which is
/// m / 112,600 in the mean square. Inputs are normal: m is some 2.5 of their deviations, and gate and up
/// are off by 2e-5 of theirs. Hidden values are products of two such, m is some 6 deviations, and down adds
/// 5e-5: about 6e-5 together. The worst of ten thousand is 4 to 5 times that, 3e-4 of the deviation of a
/// row's values, whose largest is more than twice it. An expert, row or weight taken for another is off by
/// about 1.
const INTEGER_TOLERANCE: f64 = 2e-4;

/// The same for unquantized weights: sums of up to 576 f32 terms in 16 lanes, and exponentials good to 3e-7.
const FLOAT_TOLERANCE: f64 = 3e-6;

const SWIGLU: Activation = Activation::SwiGlu;
/// A clamp that many values are beyond.
const CLAMPED: Activation = Activation::ClampedSwiGlu { limit: 0.7 };

const BF16: Encoding = Encoding::Dense(Float::Bf16);

const fn affine(bits: u8, group: usize, scale: Float) -> Encoding {
    Encoding::Affine { bits, group, scale }
}

/// One layer of experts.
#[derive(Clone, Copy, Debug)]
struct Case {
    activation: Activation,
    /// Of gate and up, and of down.
    encodings: [Encoding; 2],
    /// As gpt-oss has them: biases, and rows of gate and up that alternate.
    is_gpt_oss: bool,
    /// What the matrices of an expert are multiplied with.
    factors: [f32; 3],
    shared: Option<(Encoding, bool)>,
}

impl Case {
    fn new(activation: Activation, encoding: Encoding) -> Case {
        Case {
            activation,
            encodings: [encoding; 2],
            is_gpt_oss: false,
            factors: [1.0; 3],
            shared: None,
        }
    }

    /// With a shared expert, which has a gate or not.
    fn shared(self, encoding: Encoding, is_gated: bool) -> Case {
        Case { shared: Some((encoding, is_gated)), ..self }
    }

    fn tolerance(&self) -> f64 {
        let shared = self.shared.is_some_and(|(encoding, _)| encoding.is_integer());
        let integer = shared || self.encodings.iter().any(|encoding| encoding.is_integer());
        if integer { INTEGER_TOLERANCE } else { FLOAT_TOLERANCE }
    }
}

/// An expert's numbers, as f64.
struct Exact {
    gate: Vec<Vec<f64>>,
    up: Vec<Vec<f64>>,
    down: Vec<Vec<f64>>,
    biases: [Vec<f64>; 3],
}

fn rows_of(w: Matrix<'_>) -> Vec<Vec<f64>> {
    let scaled = |value| f64::from(w.factor) * value;
    (0..w.rows).map(|row| row_values(&w, row).into_iter().map(scaled).collect()).collect()
}

impl Exact {
    fn new(expert: &ResidentExpert, biases: [Vec<f64>; 3]) -> Exact {
        let Expert { gate, up, down, is_interleaved, .. } = expert.view();
        let [mut gate, mut up, down] = [gate, up, down].map(rows_of);
        let [mut gate_bias, mut up_bias, down_bias] = biases;
        if is_interleaved {
            // A gate, an up, a gate, …: the rows of both halves, one after another.
            let apart = |rows: Vec<Vec<f64>>, first: usize| -> Vec<Vec<f64>> {
                rows.into_iter().skip(first).step_by(2).collect()
            };
            let together = [gate, up].concat();
            (gate, up) = (apart(together.clone(), 0), apart(together, 1));
            let together = [gate_bias, up_bias].concat();
            gate_bias = together.iter().copied().step_by(2).collect();
            up_bias = together.iter().copied().skip(1).step_by(2).collect();
        }
        Exact { gate, up, down, biases: [gate_bias, up_bias, down_bias] }
    }

    fn apply(&self, activation: Activation, x: &[f64]) -> Vec<f64> {
        let product = |rows: &[Vec<f64>], bias: &[f64], x: &[f64]| -> Vec<f64> {
            let dot = |row: &Vec<f64>| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
            rows.iter().zip(bias).map(|(row, bias)| dot(row) + bias).collect()
        };
        let gates = product(&self.gate, &self.biases[0], x);
        let ups = product(&self.up, &self.biases[1], x);
        let both = gates.iter().zip(&ups);
        let hidden: Vec<f64> = both.map(|(&gate, &up)| activate(activation, gate, up)).collect();
        product(&self.down, &self.biases[2], &hidden)
    }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn activate(activation: Activation, gate: f64, up: f64) -> f64 {
    match activation {
        Activation::SwiGlu => gate * logistic(gate) * up,
        Activation::GeGlu => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            0.5 * gate * (1.0 + u.tanh()) * up
        }
        Activation::ClampedSwiGlu { limit } => {
            let limit = f64::from(limit);
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate * logistic(1.702 * gate) * (up + 1.0)
        }
    }
}

/// The experts of a case, all in memory, and the same as f64.
struct Layer {
    bank: ResidentBank,
    exact: Vec<Exact>,
    shared: Option<(ResidentExpert, Exact)>,
}

impl Layer {
    fn new(case: &Case, seed: u64) -> Layer {
        let mut random = Random::new(seed);
        let mut expert = |[first, second]: [Encoding; 2], width: usize, is_gpt_oss: bool| {
            let mut seed = || u64::from(random.bits());
            let projections = [
                random_weight(width, HIDDEN, first, seed()),
                random_weight(width, HIDDEN, first, seed()),
                random_weight(HIDDEN, width, second, seed()),
            ];
            let rows = projections.each_ref().map(Weight::rows);
            let mut exact = rows.map(|rows| vec![0.0; rows]);
            let mut biases = [const { None }; 3];
            if is_gpt_oss {
                biases = std::array::from_fn(|i| {
                    let values: Vec<bf16> =
                        (0..rows[i]).map(|_| bf16::from_f32(random.normal())).collect();
                    exact[i] = values.iter().map(|value| value.to_f64()).collect();
                    Some(values)
                });
            }
            let mut expert = together(&projections, &biases);
            expert.place.is_interleaved = is_gpt_oss;
            for (matrix, factor) in expert.place.projections.iter_mut().zip(case.factors) {
                matrix.factor = factor;
            }
            let exact = Exact::new(&expert, exact);
            (expert, exact)
        };
        let shared =
            case.shared.map(|(encoding, _)| expert([encoding; 2], SHARED_INTERMEDIATE, false));
        let (experts, exact) =
            (0..EXPERTS).map(|_| expert(case.encodings, INTERMEDIATE, case.is_gpt_oss)).unzip();
        // Layer 0 has no experts, as in models whose first layers are dense.
        let bank = ResidentBank::new(vec![Vec::new(), experts]);
        Layer { bank, exact, shared }
    }
}

/// An expert from its parts, one after another in one region.
fn together(projections: &[Weight; 3], biases: &[Option<Vec<bf16>>; 3]) -> ResidentExpert {
    let mut bytes = Vec::new();
    let places = projections.each_ref().map(|weight| {
        let view = weight.view();
        let at = bytes.len();
        bytes.extend([view.codes, view.scales, view.biases].concat());
        MatrixPlace::packed(at, view.rows, view.cols, view.encoding)
    });
    let biases = biases.each_ref().map(|values| {
        let start = bytes.len();
        let values = values.as_ref()?;
        bytes.extend(values.iter().flat_map(|value| value.to_bits().to_le_bytes()));
        Some(BiasPlace { start, float: Float::Bf16 })
    });
    let mut memory = weight_memory(bytes.len()).unwrap();
    memory[..bytes.len()].copy_from_slice(&bytes);
    let place = ExpertPlace { projections: places, biases, is_interleaved: false };
    ResidentExpert { region: HostStore.region(memory).unwrap(), place }
}

/// What a run is given.
struct Inputs {
    rows: usize,
    /// `[rows, HIDDEN]`
    x: Vec<f32>,
    routing: RoutingTable,
    /// `[rows]`
    gates: Vec<f32>,
}

impl Inputs {
    /// Each row has its own experts; most rows want the first, few the last.
    fn new(rows: usize, seed: u64) -> Inputs {
        let mut random = Random::new(seed);
        let mut routing = RoutingTable::default();
        for _ in 0..rows {
            let mut ids: Vec<u32> = Vec::new();
            while ids.len() < K {
                let id = (0..3).map(|_| random.below(EXPERTS)).min().unwrap_or(0) as u32;
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
            routing.ids.extend(ids);
            routing.weights.extend((0..K).map(|rank| (0.2 + random.unit()) / (rank + 1) as f32));
        }
        let x = random.normals(rows * HIDDEN).iter().map(|x| x * 0.3).collect();
        Inputs { rows, x, routing, gates: random.normals(rows) }
    }

    /// One row of them.
    fn row(&self, row: usize) -> Inputs {
        let routing = RoutingTable {
            ids: self.routing.ids[row * K..][..K].to_vec(),
            weights: self.routing.weights[row * K..][..K].to_vec(),
        };
        let x = self.x[row * HIDDEN..][..HIDDEN].to_vec();
        Inputs { rows: 1, x, routing, gates: vec![self.gates[row]] }
    }
}

/// The definition: experts' outputs times their weights, and the shared expert's times its gate.
fn reference(case: &Case, layer: &Layer, inputs: &Inputs) -> Vec<f64> {
    let mut out = Vec::new();
    for row in 0..inputs.rows {
        let x: Vec<f64> =
            inputs.x[row * HIDDEN..][..HIDDEN].iter().map(|&x| f64::from(x)).collect();
        let mut sum = vec![0.0; HIDDEN];
        let mut add = |exact: &Exact, weight: f64| {
            let values = exact.apply(case.activation, &x);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
        };
        for pair in row * K..(row + 1) * K {
            let id = inputs.routing.ids[pair] as usize;
            add(&layer.exact[id], f64::from(inputs.routing.weights[pair]));
        }
        if let (Some((_, exact)), Some((_, is_gated))) = (&layer.shared, case.shared) {
            add(exact, if is_gated { logistic(f64::from(inputs.gates[row])) } else { 1.0 });
        }
        out.extend(sum);
    }
    out
}

/// A run of the op, and the rows that failed.
fn run_op(
    isa: Isa,
    pool: &mut Pool,
    case: &Case,
    layer: &Layer,
    bank: &dyn ExpertBank,
    inputs: &Inputs,
) -> (Vec<f32>, Vec<usize>) {
    // Whatever was there before must not matter.
    let mut slots = vec![f32::NAN; inputs.rows * (K + 1) * HIDDEN];
    let mut out = vec![f32::NAN; inputs.rows * HIDDEN];
    let shared = layer.shared.as_ref().map(|(expert, _)| {
        let Expert { gate, up, down, .. } = expert.view();
        let is_gated = case.shared.is_some_and(|(_, is_gated)| is_gated);
        Shared { expert: Expert::new(gate, up, down), gate: is_gated.then_some(&inputs.gates[..]) }
    });
    let failures = run(
        isa,
        pool,
        &mut Scratch::default(),
        1,
        &inputs.x,
        inputs.rows,
        &inputs.routing,
        case.activation,
        &[],
        bank,
        shared.as_ref(),
        &mut slots,
        &mut out,
    );
    let mut failed: Vec<usize> = failures.iter().map(|failure| failure.row).collect();
    failed.sort_unstable();
    (out, failed)
}

/// A bank that hands over the least wanted experts first, one or two at a time, and has none at all
/// unless it is waited for. One of them may never come.
struct LateBank<'a> {
    resident: &'a ResidentBank,
    lost: Option<u32>,
}

impl ExpertBank for LateBank<'_> {
    fn tally(&self) -> &Tally {
        self.resident.tally()
    }

    fn visit<'a>(
        &'a self,
        layer: usize,
        wanted: &'a [u32],
        _rows: usize,
        _trials: &'a [Trial],
    ) -> Box<dyn Visit + 'a> {
        let (lost, coming) = wanted.iter().rev().partition(|&&id| Some(id) == self.lost);
        let state = Mutex::new(Coming { ids: coming, handed: 0 });
        Box::new(LateVisit { bank: self.resident, layer, lost, state })
    }
}

struct LateVisit<'a> {
    bank: &'a ResidentBank,
    layer: usize,
    lost: Vec<u32>,
    state: Mutex<Coming>,
}

struct Coming {
    ids: Vec<u32>,
    handed: usize,
}

impl Visit for LateVisit<'_> {
    fn next(&self, most: usize, wait: bool, take: Take<'_>) -> Turn {
        let ids: Vec<u32> = {
            let mut coming = self.state.lock().unwrap();
            match (coming.ids.is_empty(), wait) {
                (true, _) => return Turn::Finished,
                (false, false) => return Turn::Empty,
                (false, true) => {}
            }
            coming.handed += 1;
            let count = most.min(coming.ids.len()).min(1 + coming.handed % 2);
            coming.ids.drain(..count).collect()
        };
        let visit = self.bank.visit(self.layer, &ids, 1, &[]);
        assert_eq!(visit.next(usize::MAX, true, take), Turn::Served);
        Turn::Served
    }

    fn failures(&self) -> Vec<(u32, Error)> {
        let error = |expert: u32| {
            let source = Box::new(std::io::Error::other("gone"));
            (expert, Error::Expert { layer: self.layer, expert, source })
        };
        self.lost.iter().map(|&id| error(id)).collect()
    }
}

#[track_caller]
fn check(case: Case, rows: &[usize]) {
    let layer = Layer::new(&case, 5);
    let late = LateBank { resident: &layer.bank, lost: None };
    let banks: [&dyn ExpertBank; 2] = [&layer.bank, &late];
    let mut pools = [1, 2, 3].map(Pool::new);
    for &rows in rows {
        let inputs = Inputs::new(rows, rows as u64);
        let (plain, failed) =
            run_op(Isa::Scalar, &mut pools[0], &case, &layer, &layer.bank, &inputs);
        assert!(failed.is_empty());
        let want = reference(&case, &layer, &inputs);
        for (row, (got, want)) in plain.chunks(HIDDEN).zip(want.chunks(HIDDEN)).enumerate() {
            let largest = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for (&got, &want) in got.iter().zip(want) {
                let error = (f64::from(got) - want).abs() / largest;
                assert!(error < case.tolerance(), "{case:?}, row {row} of {rows}: {error:e}");
            }
        }
        for isa in isas() {
            // The scalar kernels are slow, and have been run once.
            let ways: &[_] = if isa == Isa::Scalar { &[(2, 1)] } else { &[(1, 0), (0, 1), (2, 1)] };
            for &(pool, bank) in ways {
                let (got, failed) =
                    run_op(isa, &mut pools[pool], &case, &layer, banks[bank], &inputs);
                assert!(failed.is_empty());
                assert_same_bits(&got, &plain);
            }
            // A row in company is the row alone.
            let row = rows - 1;
            let alone = inputs.row(row);
            let (got, _) = run_op(isa, &mut pools[1], &case, &layer, &layer.bank, &alone);
            assert_same_bits(&got, &plain[row * HIDDEN..]);
        }
    }
}

/// Few rows are cut by weight rows, 70 of them by expert.
const ROWS: [usize; 4] = [1, 3, 21, 70];

#[test]
fn every_format_agrees_with_f64() {
    for encoding in [
        affine(4, 32, Float::F32),
        affine(4, 64, Float::Bf16),
        affine(8, 64, Float::F16),
        affine(6, 64, Float::Bf16),
        Encoding::Mxfp4,
        Encoding::Nvfp4,
        // Offsets, and two scales a block.
        Encoding::Block(BlockFormat::Q5_1),
        Encoding::Block(BlockFormat::Nvfp4),
        BF16,
    ] {
        check(Case::new(SWIGLU, encoding), &ROWS);
    }
}

#[test]
fn every_activation_agrees_with_f64() {
    for activation in [SWIGLU, Activation::GeGlu, CLAMPED] {
        for encoding in [affine(4, 64, Float::Bf16), BF16] {
            check(Case::new(activation, encoding), &[2, 70]);
        }
    }
}

#[test]
fn shared_experts_are_added_with_and_without_a_gate() {
    let routed = affine(4, 64, Float::Bf16);
    for is_gated in [false, true] {
        check(Case::new(SWIGLU, routed).shared(affine(8, 32, Float::Bf16), is_gated), &ROWS);
        // One kind of product for the shared expert, another for the routed.
        check(Case::new(SWIGLU, routed).shared(BF16, is_gated), &[1, 70]);
        check(Case::new(SWIGLU, BF16).shared(routed, is_gated), &[1, 70]);
    }
}

#[test]
fn a_down_projection_may_have_another_format() {
    let (four, eight) = (affine(4, 64, Float::Bf16), affine(8, 64, Float::Bf16));
    let [q8_0, nvfp4, q4_k] =
        [BlockFormat::Q8_0, BlockFormat::Nvfp4, BlockFormat::Q4K].map(Encoding::Block);
    let mut pairs =
        vec![[four, eight], [eight, four], [four, BF16], [BF16, Encoding::Mxfp4], [nvfp4, four]];
    if HIDDEN.is_multiple_of(256) {
        pairs.extend([[q4_k, q8_0], [q4_k, nvfp4]]);
    }
    for encodings in pairs {
        check(Case { encodings, ..Case::new(SWIGLU, four) }, &[1, 70]);
    }
}

#[test]
fn biases_are_added_and_rows_that_alternate_are_told_apart() {
    for encoding in [Encoding::Mxfp4, BF16] {
        check(Case { is_gpt_oss: true, ..Case::new(CLAMPED, encoding) }, &ROWS);
    }
}

#[test]
fn factors_of_matrices_are_part_of_their_values() {
    let factors = [0.7, 1.3, 0.3];
    for encoding in [affine(4, 64, Float::Bf16), BF16] {
        let case = Case { factors, ..Case::new(SWIGLU, encoding) };
        check(case.shared(encoding, true), &ROWS);
        check(Case { is_gpt_oss: true, factors, ..Case::new(CLAMPED, encoding) }, &[1, 70]);
    }
}

#[test]
fn more_rows_than_one_piece_agree_with_f64() {
    let case = Case::new(SWIGLU, affine(4, 64, Float::Bf16));
    let rows = ROUTED_PIECE * 3 / 2;
    let most = Inputs::new(rows, rows as u64).routing.ids.iter().filter(|&&id| id == 0).count();
    assert!(most > ROUTED_PIECE, "{most} rows want the first expert");
    check(case.shared(affine(4, 32, Float::F16), true), &[rows]);
}

#[test]
fn an_expert_that_does_not_come_fails_its_rows_alone() {
    for encoding in [affine(4, 64, Float::Bf16), BF16] {
        let case = Case::new(SWIGLU, encoding).shared(encoding, true);
        let layer = Layer::new(&case, 6);
        let mut pool = Pool::new(2);
        for rows in [5, 70] {
            let inputs = Inputs::new(rows, 6);
            let isa = machine::cpu::isa();
            let (whole, _) = run_op(isa, &mut pool, &case, &layer, &layer.bank, &inputs);
            let lost = *inputs.routing.ids.iter().max().unwrap();
            let bank = LateBank { resident: &layer.bank, lost: Some(lost) };
            let (got, failed) = run_op(isa, &mut pool, &case, &layer, &bank, &inputs);
            let wants = |row: usize| inputs.routing.ids[row * K..][..K].contains(&lost);
            assert_eq!(failed, (0..rows).filter(|&row| wants(row)).collect::<Vec<_>>());
            assert!(failed.len() < rows, "every row wants expert {lost}");
            for row in (0..rows).filter(|&row| !wants(row)) {
                let part = row * HIDDEN..(row + 1) * HIDDEN;
                assert_same_bits(&got[part.clone()], &whole[part]);
            }
            assert!(got.iter().all(|x| x.is_finite()));
        }
    }
}
