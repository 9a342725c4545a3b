//! One expert's three products: gate and up, their activation, down. Each is followed by its bias, if the
//! expert has biases.
//!
//! Where rows of gate and up alternate in the file (gpt-oss as published), the two matrices are the halves
//! of those rows, multiplied as any others; gates and ups are told apart before the activation. A half has
//! whole pairs only, so the first half of the hidden values comes from one product and the second from the
//! other.

use std::cell::RefCell;
use std::ops::Range;

use machine::cpu::Isa;

use super::super::activation;
use super::super::dense;
use super::super::dot::{self, Rows, Target};
use super::super::matmul::{SharedMut, multiply_in_task, uses_tiles};
use super::super::quantize::{Activations, Forms};
use super::{Call, Job};
use crate::bank::{Bias, Expert};
use crate::step::Activation;

/// What one thread needs to run one expert; grows once and is kept.
#[derive(Default)]
struct Buffers {
    gathered: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    hidden: Vec<f32>,
    bias: Vec<f32>,
    /// Gates and ups of a row, told apart.
    apart: Vec<f32>,
    activations: Activations,
    /// 0, 1, 2, …
    numbers: Vec<u32>,
    #[cfg(target_arch = "x86_64")]
    tiles: super::super::matmul::TileSets,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers::default());
}

/// Gate and up rows of one range for all rows of a job, and their activation.
pub(super) fn gate_up_in_task(
    isa: Isa,
    job: &Job<'_>,
    range: Range<usize>,
    x: &Activations,
    hidden: SharedMut<f32>,
    stride: usize,
    activation: Activation,
) {
    let Expert { gate, up, biases, is_interleaved, .. } = job.expert;
    BUFFERS.with_borrow_mut(|buffers| {
        let (count, width) = (job.rows.len(), range.len());
        let outputs: Vec<u32> = (0..count as u32).collect();
        let rows = Rows { inputs: &job.rows, outputs: &outputs };
        let products = [(gate, biases[0], &mut buffers.gate), (up, biases[1], &mut buffers.up)];
        for (w, bias, to) in products {
            to.resize(to.len().max(count * width), 0.0);
            let target = Target { start: to.as_mut_ptr(), stride: width, column: 0 };
            // SAFETY: the buffer is this thread's and has room for [count, width].
            unsafe {
                dot::multiply_rows(isa, &w, range.clone(), x, rows, target);
                finish(isa, w.factor, bias, range.clone(), &mut buffers.bias, &outputs, target);
            }
        }
        for (i, &slot) in job.slots.iter().enumerate() {
            let part = i * width..(i + 1) * width;
            let (gates, ups) = (&buffers.gate[part.clone()], &buffers.up[part]);
            // SAFETY: slots and ranges of tasks do not overlap.
            let to = |column: usize, count: usize| unsafe {
                let start = hidden.at(slot as usize * stride + column);
                std::slice::from_raw_parts_mut(start, count)
            };
            if is_interleaved {
                let apart = &mut buffers.apart;
                let (first, half) = (range.start / 2, gate.rows / 2);
                glu_of_pairs(isa, activation, gates, apart, to(first, width / 2));
                glu_of_pairs(isa, activation, ups, apart, to(half + first, width / 2));
            } else {
                glu(isa, activation, gates, ups, to(range.start, width));
            }
        }
    });
}

/// Down rows of one range for hidden values that are quantized already.
///
/// # Safety
/// As [`dot::multiply_rows`]; `out` begins with the first row of the weight.
pub(super) unsafe fn down_in_task(
    isa: Isa,
    expert: &Expert<'_>,
    range: Range<usize>,
    x: &Activations,
    rows: Rows<'_>,
    out: Target,
) {
    let target = out.shifted(range.start);
    // SAFETY: the caller's promise.
    unsafe { dot::multiply_rows(isa, &expert.down, range.clone(), x, rows, target) };
    let (bias, factor) = (expert.biases[2], expert.down.factor);
    if bias.is_some() || factor != 1.0 {
        BUFFERS.with_borrow_mut(|buffers| {
            // SAFETY: the caller's promise.
            unsafe { finish(isa, factor, bias, range, &mut buffers.bias, rows.outputs, target) };
        });
    }
}

/// What follows rows of a product, whose first column is that of the range: the weight's factor, and the values `range` of
/// a bias.
///
/// # Safety
/// As [`dot::multiply_rows`].
unsafe fn finish(
    isa: Isa,
    factor: f32,
    bias: Option<Bias<'_>>,
    range: Range<usize>,
    values: &mut Vec<f32>,
    rows: &[u32],
    target: Target,
) {
    if bias.is_none() && factor == 1.0 {
        return;
    }
    values.clear();
    values.resize(range.len(), 0.0);
    if let Some(bias) = bias {
        let size = bias.float.bytes();
        dense::floats(bias.float, &bias.bytes[range.start * size..range.end * size], values);
    }
    for &row in rows {
        // SAFETY: the caller's promise.
        let out = unsafe {
            let start = target.start.add(row as usize * target.stride + target.column);
            std::slice::from_raw_parts_mut(start, values.len())
        };
        if factor != 1.0 {
            activation::scale_assign(isa, out, factor);
        }
        if bias.is_some() {
            activation::add_assign(isa, out, values);
        }
    }
}

/// Applies the activation of a gated feed-forward layer.
pub(crate) fn glu(isa: Isa, kind: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match kind {
        Activation::SwiGlu => activation::silu_mul(isa, gate, up, out),
        Activation::GeGlu => activation::gelu_tanh_mul(isa, gate, up, out),
        Activation::ClampedSwiGlu { limit } => {
            activation::clamped_swiglu(isa, gate, up, limit, out);
        }
    }
}

/// The same where gates and ups alternate.
fn glu_of_pairs(isa: Isa, kind: Activation, pairs: &[f32], apart: &mut Vec<f32>, out: &mut [f32]) {
    apart.resize(apart.len().max(pairs.len()), 0.0);
    let (gates, rest) = apart.split_at_mut(out.len());
    let ups = &mut rest[..out.len()];
    for (i, &[gate, up]) in pairs.as_chunks().0.iter().enumerate() {
        (gates[i], ups[i]) = (gate, up);
    }
    glu(isa, kind, gates, ups, out);
}

/// One expert on one thread, from rows of the activations to slots of the output.
pub(super) fn whole_expert(
    call: &Call<'_>,
    expert: &Expert<'_>,
    Rows { inputs, outputs: slots }: Rows<'_>,
    activations: &Activations,
) {
    let (isa, activation, x, out) = (call.isa, call.activation, call.x, call.target);
    let Expert { gate, up, down, biases, is_interleaved } = *expert;
    let (count, width, cols) = (inputs.len(), gate.rows, gate.cols);
    BUFFERS.with_borrow_mut(|buffers| {
        for buffer in [&mut buffers.gate, &mut buffers.up, &mut buffers.hidden] {
            buffer.resize(buffer.len().max(count * width), 0.0);
        }
        let numbers = &mut buffers.numbers;
        numbers.extend(numbers.len() as u32..count as u32);
        let outputs = &numbers[..count];
        let rows = Rows { inputs, outputs };
        #[cfg(target_arch = "x86_64")]
        let tiles = uses_tiles(isa, count, cols);
        if !(gate.encoding.is_integer() && up.encoding.is_integer()) {
            buffers.gathered.resize(buffers.gathered.len().max(count * cols), 0.0);
            for (to, &row) in buffers.gathered.chunks_exact_mut(cols).zip(inputs) {
                to.copy_from_slice(&x[row as usize * cols..][..cols]);
            }
        }
        #[cfg(target_arch = "x86_64")]
        if tiles {
            buffers.tiles.pack(activations, inputs, &[gate, up]);
        }
        let products = [(&gate, biases[0], &mut buffers.gate), (&up, biases[1], &mut buffers.up)];
        for (w, bias, to) in products {
            let target = Target { start: to.as_mut_ptr(), stride: width, column: 0 };
            // SAFETY: the buffer is this thread's and has room for [count, width].
            unsafe {
                if w.encoding.is_integer() {
                    #[cfg(target_arch = "x86_64")]
                    let sets = tiles.then_some(&buffers.tiles);
                    multiply_in_task(
                        isa,
                        w,
                        0..width,
                        activations,
                        rows,
                        #[cfg(target_arch = "x86_64")]
                        sets,
                        target,
                    );
                } else {
                    let x = &buffers.gathered[..count * cols];
                    dense::multiply_rows(isa, w, 0..width, x, outputs, target);
                }
                finish(isa, w.factor, bias, 0..width, &mut buffers.bias, outputs, target);
            }
        }
        let size = count * width;
        let (gates, ups) = (&buffers.gate[..size], &buffers.up[..size]);
        let hidden = &mut buffers.hidden[..size];
        if is_interleaved {
            let rows = gates.chunks_exact(width).zip(ups.chunks_exact(width));
            for (to, (gates, ups)) in hidden.chunks_exact_mut(width).zip(rows) {
                let (first, second) = to.split_at_mut(width / 2);
                glu_of_pairs(isa, activation, gates, &mut buffers.apart, first);
                glu_of_pairs(isa, activation, ups, &mut buffers.apart, second);
            }
        } else {
            glu(isa, activation, gates, ups, hidden);
        }
        let tiles = uses_tiles(isa, count, width);
        // SAFETY: every slot is written by one thread.
        unsafe {
            if down.encoding.is_integer() {
                let forms = if tiles { Forms::VALUES } else { dot::forms([down.encoding]) };
                buffers.activations.resize(isa, count, width, forms);
                for i in 0..count {
                    buffers.activations.fill(isa, i, &buffers.hidden[i * width..][..width]);
                }
                #[cfg(target_arch = "x86_64")]
                if tiles {
                    buffers.tiles.pack(&buffers.activations, outputs, &[down]);
                }
                #[cfg(target_arch = "x86_64")]
                let sets = tiles.then_some(&buffers.tiles);
                multiply_in_task(
                    isa,
                    &down,
                    0..down.rows,
                    &buffers.activations,
                    Rows { inputs: outputs, outputs: slots },
                    #[cfg(target_arch = "x86_64")]
                    sets,
                    out,
                );
            } else {
                let x = &buffers.hidden[..size];
                dense::multiply_rows(isa, &down, 0..down.rows, x, slots, out);
            }
            let (range, values) = (0..down.rows, &mut buffers.bias);
            finish(isa, down.factor, biases[2], range, values, slots, out);
        }
    });
}
