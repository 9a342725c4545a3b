//! Measures attention of one row over a long context, in memory and in the cache.
//!
//! `cargo run --release -p millstream-compute --example attention [THREADS [HEADS [KV_HEADS [HEAD_DIM]]]]`
//!
//! Without arguments: a global layer of Gemma 4 26B-A4B. If the rate is the same for short contexts and for long
//! ones, arithmetic is what takes the time, and fewer bytes a key would not make it faster.

use std::time::Instant;

use compute::memory::{ArenaShape, KvFormat, PageId};
use compute::{AttentionShape, CpuBackend, HostStore, KvRun, PageTable, Step, Store};

fn main() {
    let argument = |index: usize, default: usize| {
        std::env::args().nth(index).and_then(|n| n.parse().ok()).unwrap_or(default)
    };
    let (threads, heads, kv_heads, head_dim) =
        (argument(1, 2), argument(2, 16), argument(3, 2), argument(4, 512));
    let isa = machine::cpu::isa();
    let shape = AttentionShape::new(heads, kv_heads, head_dim, head_dim);
    let pages = shape.pages(KvFormat::F16);
    let page = pages.bytes();
    println!(
        "{isa}, {threads} threads, {heads} heads on {kv_heads} of {head_dim}, {} bytes a position",
        page / 64
    );
    let most = 65_536;
    let mut arenas = [HostStore.kv(&ArenaShape::of(pages), most / 64).expect("memory")];
    let wave = |i: usize| (i * 7919 % 1000) as f32 / 500.0 - 1.0;
    let row: Vec<f32> = (0..kv_heads * head_dim).map(wave).collect();
    for position in 0..most {
        arenas[0].write(0, PageId((position / 64) as u32), position % 64, &[&row, &row]);
    }
    let q: Vec<f32> = (0..heads * head_dim).map(wave).collect();
    let pages: Vec<PageId> = (0..most / 64).map(|page| PageId(page as u32)).collect();
    for context in [1024, 4096, 16_384, 65_536] {
        let (first, count) = (context - 1, 65_536 / context * 4);
        let mut best = f64::MAX;
        for _ in 0..5 {
            let mut backend = CpuBackend::new(isa, threads, 1 << 20).expect("backend");
            let mut step = backend.begin();
            let q = step.upload(&q, heads * head_dim);
            let table = PageTable { arena: 0, shape: 0, pages: &pages, first_block: 0 };
            let run = KvRun { row: 0, count: 1, position: first, pages: table, recent: None };
            let start = Instant::now();
            for _ in 0..count {
                let mark = step.mark();
                std::hint::black_box(step.attend(q, &mut arenas, &[run], &shape, None, None));
                step.release(mark);
            }
            best = best.min(start.elapsed().as_secs_f64() / count as f64);
        }
        let position_ns = best * 1e9 * threads as f64 / context as f64;
        let gigabytes = (page / 64 * context) as f64 / best / 1e9;
        println!(
            "{context:6} positions: {:8.3} ms, {position_ns:5.1} ns of a thread each, {gigabytes:5.1} GB/s",
            best * 1e3
        );
    }
    let bandwidth = machine::probe::read_bandwidth(threads, 1 << 30).expect("memory");
    println!("plain read: {:.1} GB/s", bandwidth / 1e9);
}
