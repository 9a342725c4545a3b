//! Tensors as byte streams: parts that can fill any of their rows, made by several threads and
//! handed on in order. A few megabytes a thread are in memory, however large the file.

use std::ops::Range;
use std::sync::mpsc;

use super::draw::{self, BLOCK, BLOCK_BYTES, Fill, Flat, Key};
use super::tensors::{Content, Order, Tensor};
use super::{BITS, Error, Values};

/// Bytes that a thread makes at a time.
const CHUNK_BYTES: usize = 2 << 20;

/// Finished chunks a thread may be ahead by.
const CHUNKS_AHEAD: usize = 2;

/// Q4_1: scale, bias and codes of 32 weights.
const Q4_1_BYTES: usize = 4 + BLOCK_BYTES;

/// Receives how many of how many bytes are written; an error ends it.
pub type Progress<'a> = &'a dyn Fn(u64, u64) -> Result<(), Error>;

/// A tensor of a file.
pub(crate) struct Part {
    pub(crate) name: String,
    rows: usize,
    row_bytes: usize,
    /// Fills the bytes of a row.
    fill: FillRow,
}

impl Part {
    pub(crate) fn bytes(&self) -> u64 {
        self.rows as u64 * self.row_bytes as u64
    }

    /// The bytes from `offset` on.
    pub(crate) fn fill(&self, offset: u64, out: &mut [u8]) {
        let row_bytes = self.row_bytes;
        let (mut row, skipped) =
            ((offset / row_bytes as u64) as usize, (offset % row_bytes as u64) as usize);
        let mut rest = out;
        if skipped > 0 {
            let (head, after) = rest.split_at_mut(rest.len().min(row_bytes - skipped));
            head.copy_from_slice(&self.chunk(row..row + 1)[skipped..skipped + head.len()]);
            (row, rest) = (row + 1, after);
        }
        let mut rows = rest.chunks_exact_mut(row_bytes);
        for out in &mut rows {
            (self.fill)(row, out);
            row += 1;
        }
        let tail = rows.into_remainder();
        if !tail.is_empty() {
            tail.copy_from_slice(&self.chunk(row..row + 1)[..tail.len()]);
        }
    }

    /// The bytes of some rows.
    pub(crate) fn chunk(&self, rows: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; rows.len() * self.row_bytes];
        for (row, out) in rows.zip(bytes.chunks_exact_mut(self.row_bytes)) {
            (self.fill)(row, out);
        }
        bytes
    }
}

/// The parts of an MLX file that hold a tensor: codes, scales and biases, or plain values.
pub(crate) fn mlx_parts(tensor: &Tensor, values: Values) -> Vec<Part> {
    let Some(name) = tensor.mlx.clone() else { return Vec::new() };
    let key = Key::new(values.seed, &name);
    let (rows, cols, group) = (tensor.rows, tensor.cols, values.group);
    match tensor.content {
        Content::Affine { std, flat, bits } => {
            let codes = codes(&name, key, rows, cols, bits);
            let scales = |name: String, bias: bool| Part {
                name,
                rows,
                row_bytes: cols / group * 2,
                fill: Box::new(move |row, out| {
                    let row_key = key.row(row);
                    for (index, out) in out.chunks_exact_mut(2).enumerate() {
                        let (scale, offset) =
                            flat.scale(row, index * group).unwrap_or_else(|| match bits {
                                BITS => draw::scale(row_key, index, std),
                                _ => draw::byte_scale(row_key, index, std),
                            });
                        out.copy_from_slice(&if bias { offset } else { scale }.to_le_bytes());
                    }
                }),
            };
            let [first, second] = ["scales", "biases"].map(|part| format!("{name}.{part}"));
            vec![codes, scales(first, false), scales(second, true)]
        }
        Content::Plain(fill) | Content::NegativeExp(fill) => {
            let row_bytes = cols * 4;
            vec![Part { name, rows, row_bytes, fill: plain(key, fill, [Order::Same; 2], false) }]
        }
        Content::Mxfp4 { std, flat } => {
            let scales = Part {
                name: format!("{name}.scales"),
                rows,
                row_bytes: cols / BLOCK,
                fill: Box::new(move |row, out| {
                    for (index, out) in out.iter_mut().enumerate() {
                        // A flat group can only be zero here, or next to it.
                        let is_flat = flat.scale(row, index * BLOCK).is_some();
                        *out = if is_flat { 0 } else { draw::exponent(std) };
                    }
                }),
            };
            vec![codes(&name, key, rows, cols, BITS), scales]
        }
        Content::Half(fill) => {
            let fill = Box::new(move |row: usize, out: &mut [u8]| {
                let row = key.row(row);
                for (column, out) in out.chunks_exact_mut(2).enumerate() {
                    let value = half::bf16::from_f32(draw::value(row, column, fill));
                    out.copy_from_slice(&value.to_le_bytes());
                }
            });
            vec![Part { name, rows, row_bytes: cols * 2, fill }]
        }
        Content::Router { std, columns, ref popularity } => {
            let fill = router(key, std, columns, popularity.clone());
            vec![Part { name, rows, row_bytes: cols * 4, fill }]
        }
        Content::Fixed(_) => Vec::new(),
    }
}

/// So many bits for each weight.
fn codes(name: &str, key: Key, rows: usize, cols: usize, bits: usize) -> Part {
    Part {
        name: format!("{name}.weight"),
        rows,
        row_bytes: cols * bits / 8,
        fill: Box::new(move |row, out| {
            let row = key.row(row);
            for (block, out) in out.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                out.copy_from_slice(&draw::codes(row, block));
            }
        }),
    }
}

/// The part of a GGUF file that holds a tensor.
pub(crate) fn gguf_part(tensor: &Tensor, values: Values) -> Part {
    let key = Key::new(values.seed, tensor.mlx.as_deref().unwrap_or_default());
    let (rows, cols) = (tensor.rows, tensor.cols);
    let orders = [tensor.row_order, tensor.col_order];
    let (row_bytes, fill) = match &tensor.content {
        &Content::Affine { std, flat, .. } => {
            (cols / BLOCK * Q4_1_BYTES, q4_1(key, std, flat, orders, values))
        }
        &Content::Plain(fill) => (cols * 4, plain(key, fill, orders, false)),
        &Content::NegativeExp(fill) => (cols * 4, plain(key, fill, orders, true)),
        Content::Router { std, columns, popularity } => {
            (cols * 4, router(key, *std, *columns, popularity.clone()))
        }
        Content::Fixed(values) => (cols * 4, fixed(values.clone())),
        Content::Mxfp4 { .. } | Content::Half(_) => unreachable!("shapes with these have no GGUF"),
    };
    Part { name: tensor.gguf.clone(), rows, row_bytes, fill }
}

type FillRow = Box<dyn Fn(usize, &mut [u8]) + Send + Sync>;

fn q4_1(
    key: Key,
    std: f32,
    flat: Flat,
    [row_order, col_order]: [Order; 2],
    values: Values,
) -> FillRow {
    Box::new(move |row, out| {
        let row = row_order.source(row);
        let row_key = key.row(row);
        for (block, out) in out.chunks_exact_mut(Q4_1_BYTES).enumerate() {
            // Heads are whole blocks, so a block stays one wherever it goes.
            let column = col_order.source(block * BLOCK);
            let (scale, bias) = flat
                .scale(row, column)
                .unwrap_or_else(|| draw::scale(row_key, column / values.group, std));
            out[..2].copy_from_slice(&scale.to_le_bytes());
            out[2..4].copy_from_slice(&bias.to_le_bytes());
            let codes = draw::codes(row_key, column / BLOCK);
            out[4..].copy_from_slice(&draw::split_halves(codes));
        }
    })
}

fn plain(key: Key, fill: Fill, [row_order, col_order]: [Order; 2], negative_exp: bool) -> FillRow {
    Box::new(move |row, out| {
        let row = key.row(row_order.source(row));
        for (column, out) in out.chunks_exact_mut(4).enumerate() {
            let value = draw::value(row, col_order.source(column), fill);
            let value = if negative_exp { -value.exp() } else { value };
            out.copy_from_slice(&value.to_le_bytes());
        }
    })
}

fn router(key: Key, std: f32, columns: usize, popularity: Vec<f32>) -> FillRow {
    Box::new(move |row, out| {
        let row_key = key.row(row);
        for (column, out) in out.chunks_exact_mut(4).enumerate() {
            let value = match column < columns {
                true => popularity[row],
                false => draw::value(row_key, column, Fill::Normal { std }),
            };
            out.copy_from_slice(&value.to_le_bytes());
        }
    })
}

fn fixed(values: Vec<f32>) -> FillRow {
    Box::new(move |_, out| {
        for (value, out) in values.iter().zip(out.chunks_exact_mut(4)) {
            out.copy_from_slice(&value.to_le_bytes());
        }
    })
}

/// Makes all parts and hands their bytes to `write` in order, a chunk at a time.
pub(crate) fn stream(
    parts: &[Part],
    threads: usize,
    mut write: impl FnMut(&str, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let chunks: Vec<(&Part, Range<usize>)> = parts.iter().flat_map(chunks).collect();
    std::thread::scope(|scope| {
        // Thread t makes chunks t, t + threads, …; taking turns restores the order.
        let threads = threads.max(1);
        let receivers: Vec<_> = (0..threads)
            .map(|thread| {
                let (sender, receiver) = mpsc::sync_channel(CHUNKS_AHEAD);
                let own = chunks.iter().skip(thread).step_by(threads);
                scope.spawn(move || {
                    for (part, rows) in own {
                        // The other side hangs up when it cannot write.
                        if sender.send(part.chunk(rows.clone())).is_err() {
                            return;
                        }
                    }
                });
                receiver
            })
            .collect();
        for (index, (part, _)) in chunks.iter().enumerate() {
            // A thread that ends early has panicked, and the scope panics with it.
            let Ok(bytes) = receivers[index % threads].recv() else { return Ok(()) };
            write(&part.name, &bytes)?;
        }
        Ok(())
    })
}

fn chunks(part: &Part) -> impl Iterator<Item = (&Part, Range<usize>)> {
    let step = (CHUNK_BYTES / part.row_bytes.max(1)).max(1);
    (0..part.rows).step_by(step).map(move |first| (part, first..(first + step).min(part.rows)))
}
