//! Measures products against their floors: bytes of weights over the bandwidth of a plain read.
//!
//! `cargo run --release -p millstream-compute --example kernels [THREADS [ROWS [ISA [WIDTH [COUNT [NAMES]]]]]]`, the names as in
//! `Q4_K,affine 4`.

use std::time::Instant;

use compute::{CpuBackend, HostStore, Linear, MatrixPlace, Step, Store, Weight};
use format::{BlockFormat, Encoding, Float};
use machine::pages::Pages;

fn main() {
    let threads: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let named = std::env::args().nth(3).and_then(|name| name.parse().ok());
    let isa = named.filter(|&isa| machine::cpu::supports(isa)).unwrap_or(machine::cpu::isa());
    let width = std::env::args().nth(4).and_then(|n| n.parse().ok()).unwrap_or(2048);
    // Few weights stay in a cache.
    let count: usize = std::env::args().nth(5).and_then(|n| n.parse().ok()).unwrap_or(256);
    let (cols, rows) = (width, width);
    println!("{isa}, {threads} threads, {count} weights of [{rows}, {cols}]");
    let only: Option<usize> = std::env::args().nth(2).and_then(|n| n.parse().ok());
    let planes = [
        Encoding::Affine { bits: 4, group: 32, scale: Float::F16 },
        Encoding::Affine { bits: 4, group: 64, scale: Float::Bf16 },
        Encoding::Affine { bits: 8, group: 64, scale: Float::Bf16 },
        Encoding::Mxfp4,
        Encoding::Dense(Float::Bf16),
        Encoding::Dense(Float::F32),
    ];
    // The encodings whose names contain one of these.
    let names = std::env::args().nth(6).unwrap_or_default();
    let blocks = BlockFormat::ALL.iter().map(|&format| Encoding::Block(format));
    for encoding in planes.into_iter().chain(blocks) {
        if !names.split(',').any(|name| encoding.to_string().contains(name)) {
            continue;
        }
        let bytes = encoding.matrix_bytes(rows, cols);
        let mut memory = Pages::new(bytes * count).expect("memory");
        // Any codes, and scales between 2^-14 and 1 in every type: as exponents of numbers too small for it,
        // bytes like those of the floats would measure how long the processor takes for subnormals.
        for (i, word) in memory.chunks_exact_mut(2).enumerate() {
            let bits = (i as u16).wrapping_mul(40_503) & 0x03ff;
            let word_of = match encoding {
                Encoding::Mxfp4 | Encoding::Block(BlockFormat::Mxfp4) => bits & 0x0303 | 0x7878,
                _ => bits | 0x3800,
            };
            word.copy_from_slice(&word_of.to_le_bytes());
        }
        let region = HostStore.region(memory).expect("a region");
        let weights: Vec<Linear> = (0..count)
            .map(|i| {
                let place = MatrixPlace::packed(i * bytes, rows, cols, encoding);
                Linear { weight: Weight::new(region.clone(), place), bias: None }
            })
            .collect();
        for x_rows in
            [1usize, 2, 4, 6, 16, 64, 512].into_iter().filter(|r| only.is_none_or(|o| o == *r))
        {
            let mut backend =
                CpuBackend::new(isa, threads, x_rows * (rows + cols) + 4096).expect("backend");
            let used = if x_rows > 16 { count.min(16) } else { count };
            let mut best = f64::MAX;
            for _ in 0..(1024 / used).max(4) {
                let mut step = backend.begin();
                let row: Vec<f32> = (0..cols).map(|i| (i % 17) as f32 - 8.0).collect();
                let x = step.upload(&row.repeat(x_rows), cols);
                let start = Instant::now();
                for w in &weights[..used] {
                    let mark = step.mark();
                    std::hint::black_box(step.matmul(x, &[w]));
                    step.release(mark);
                }
                best = best.min(start.elapsed().as_secs_f64());
            }
            let gigabytes = (bytes * used) as f64 / best / 1e9;
            let gigaflops = 2.0 * (rows * cols * used * x_rows) as f64 / best / 1e9;
            // What a thread takes for a chunk of 512 columns and all activation rows.
            let chunk_ns = best * 1e9 * threads as f64 / (rows * cols * used) as f64 * 512.0;
            println!(
                "{encoding} × {x_rows:3} rows: {gigabytes:6.1} GB/s, {gigaflops:7.0} GFLOP/s, {chunk_ns:5.1} ns"
            );
        }
    }
    let bandwidth = machine::probe::read_bandwidth(threads, 1 << 30).expect("memory");
    println!("plain read: {:.1} GB/s", bandwidth / 1e9);
}
