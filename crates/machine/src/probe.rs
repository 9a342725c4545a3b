//! How fast the cores can read memory: the ceiling that a decode step is measured against.
//!
//! Every thread xors its own part of one huge-page buffer with the widest loads there are, prefetching ahead,
//! and the best of several passes counts. Nothing that also computes can read faster, so `bench` divides by
//! this. The buffer must be far larger than the last cache, or the answer is the cache's speed.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use crate::Result;
#[cfg(target_arch = "x86_64")]
use crate::cpu::{self, Isa};
use crate::facts::Facts;
use crate::pages::Pages;

/// Passes over the buffer, half of them as one stream per thread and half as [`STREAM_COUNT`]. Which is faster
/// depends on the processor's own prefetcher; the best pass counts.
const PASS_COUNT: usize = 6;

/// Places that a thread reads from in turn, like a kernel that works on several rows at once.
const STREAM_COUNT: usize = 4;

/// What one turn of the loop reads from one stream.
const BLOCK_BYTES: usize = 512;

/// How far ahead to prefetch into the second cache. On a shared 2-core Xeon in November 2026 this, half and
/// twice the distance, and the first cache all gave 13–17 GB/s on one core and 25–31 on two, a little above no
/// prefetch at all; the non-temporal hint gave 5 and 10.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 8 << 10;

/// A buffer size for [`read_bandwidth`]: 1 GiB, or four times the last cache if that is more, but never more
/// than half of what this process may take.
pub fn buffer_bytes(facts: &Facts) -> usize {
    let wanted_bytes = facts.last_cache_bytes().unwrap_or(0).saturating_mul(4).max(1 << 30);
    let budget_bytes = facts.memory.as_ref().map_or(u64::MAX, |memory| memory.budget_bytes());
    usize::try_from(wanted_bytes.min(budget_bytes / 2)).unwrap_or(usize::MAX)
}

/// Bytes per second that `threads` threads together read from a buffer of `bytes`.
/// Zero if the buffer is too small to give every thread something to read.
pub fn read_bandwidth(threads: usize, bytes: usize) -> Result<f64> {
    let threads = threads.max(1);
    // Whole blocks for every stream of every thread.
    let unit_bytes = BLOCK_BYTES * STREAM_COUNT;
    let part_bytes = bytes / threads / unit_bytes * unit_bytes;
    if part_bytes == 0 {
        return Ok(0.0);
    }
    let mut pages = Pages::new(part_bytes * threads)?;
    pages.prefault();

    let barrier = Barrier::new(threads);
    let read_part = |part: &[u8]| -> [(Instant, Instant); PASS_COUNT] {
        std::array::from_fn(|pass| {
            let stream_bytes = if pass % 2 == 0 { part.len() } else { part.len() / STREAM_COUNT };
            let streams: Vec<&[u8]> = part.chunks_exact(stream_bytes).collect();
            barrier.wait();
            let start = Instant::now();
            black_box(xor(&streams));
            (start, Instant::now())
        })
    };
    let timings: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            pages.chunks_exact(part_bytes).map(|part| scope.spawn(|| read_part(part))).collect();
        // A worker has no way to panic, and without its timing there is nothing to report of it.
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });

    // A pass takes from the first start to the last end.
    let fastest_seconds = (0..PASS_COUNT)
        .filter_map(|pass| {
            let start = timings.iter().map(|passes| passes[pass].0).min()?;
            let end = timings.iter().map(|passes| passes[pass].1).max()?;
            Some((end - start).as_secs_f64())
        })
        .fold(f64::INFINITY, f64::min);
    Ok((part_bytes * threads) as f64 / fastest_seconds.max(1e-9))
}

/// The xor of all eight-byte words of streams of equal length, a multiple of [`BLOCK_BYTES`].
fn xor(streams: &[&[u8]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if cpu::supports(Isa::Avx512) {
            // SAFETY: `supports` has checked for AVX-512.
            return unsafe { xor_avx512(streams) };
        }
        if cpu::supports(Isa::Avx2) {
            // SAFETY: `supports` has checked for AVX2.
            return unsafe { xor_avx2(streams) };
        }
    }
    xor_scalar(streams)
}

/// The blocks of all streams, taken from each stream in turn.
fn blocks<'a>(streams: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8; BLOCK_BYTES]> {
    let block_count = streams.first().map_or(0, |stream| stream.len() / BLOCK_BYTES);
    (0..block_count)
        .flat_map(move |block| streams.iter().map(move |stream| &stream.as_chunks().0[block]))
}

/// Eight independent sums, which compilers turn into vectors on every target.
fn xor_scalar(streams: &[&[u8]]) -> u64 {
    let mut sums = [0u64; 8];
    for block in blocks(streams) {
        for words in block.as_chunks::<64>().0 {
            for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
                *sum ^= u64::from_ne_bytes(*word);
            }
        }
    }
    sums.into_iter().fold(0, |all, sum| all ^ sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn xor_avx512(streams: &[&[u8]]) -> u64 {
    use std::arch::x86_64::*;
    let mut sums = [_mm512_setzero_si512(); 8];
    for block in blocks(streams) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            let line = block.as_ptr().wrapping_add(lane * 64);
            _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(PREFETCH_BYTES).cast());
            // SAFETY: 8 lines of 64 bytes lie inside the block of 512; the load needs no alignment.
            *sum = _mm512_xor_si512(*sum, unsafe { _mm512_loadu_si512(line.cast()) });
        }
    }
    let sum = sums.into_iter().fold(_mm512_setzero_si512(), |all, sum| _mm512_xor_si512(all, sum));
    let mut words = [0u64; 8];
    // SAFETY: the array is exactly one vector long; the store needs no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), sum) };
    words.into_iter().fold(0, |all, word| all ^ word)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn xor_avx2(streams: &[&[u8]]) -> u64 {
    use std::arch::x86_64::*;
    let mut sums = [_mm256_setzero_si256(); 8];
    for block in blocks(streams) {
        for lane in 0..16 {
            let half_line = block.as_ptr().wrapping_add(lane * 32);
            if lane % 2 == 0 {
                _mm_prefetch::<_MM_HINT_T1>(half_line.wrapping_add(PREFETCH_BYTES).cast());
            }
            // SAFETY: 16 times 32 bytes lie inside the block of 512; the load needs no alignment.
            let words = unsafe { _mm256_loadu_si256(half_line.cast()) };
            sums[lane % 8] = _mm256_xor_si256(sums[lane % 8], words);
        }
    }
    let sum = sums.into_iter().fold(_mm256_setzero_si256(), |all, sum| _mm256_xor_si256(all, sum));
    let mut words = [0u64; 4];
    // SAFETY: the array is exactly one vector long; the store needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), sum) };
    words.into_iter().fold(0, |all, word| all ^ word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len_bytes: usize) -> Vec<u8> {
        let mut state = 1u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(len_bytes).collect()
    }

    #[track_caller]
    fn check(stream_count: usize, stream_bytes: usize) {
        let part = bytes(stream_count * stream_bytes);
        let streams: Vec<&[u8]> = part.chunks(stream_bytes.max(1)).collect();
        let expected = part
            .chunks_exact(8)
            .fold(0, |all, word| all ^ u64::from_ne_bytes(word.try_into().unwrap()));
        assert_eq!(xor_scalar(&streams), expected);
        assert_eq!(xor(&streams), expected);
        #[cfg(target_arch = "x86_64")]
        if cpu::supports(Isa::Avx2) {
            // SAFETY: just checked.
            assert_eq!(unsafe { xor_avx2(&streams) }, expected);
        }
    }

    #[test]
    fn every_byte_is_read() {
        for stream_count in [1, 2, STREAM_COUNT] {
            for blocks in [0, 1, 2, 17, 64] {
                check(stream_count, blocks * BLOCK_BYTES);
            }
        }
    }

    #[test]
    fn bandwidth_is_a_finite_positive_number() {
        for (threads, len_bytes) in [(1, 1 << 20), (2, 4 << 20), (3, 12_345_678), (0, 1 << 20)] {
            let bandwidth = read_bandwidth(threads, len_bytes).unwrap();
            // Between 10 MB/s and 100 TB/s: no machine is outside.
            assert!((1e7..1e14).contains(&bandwidth), "{threads} {len_bytes} {bandwidth}");
        }
    }

    #[test]
    fn too_small_a_buffer_reads_nothing() {
        for (threads, len_bytes) in [(1, 0), (1, 2047), (4, 8191)] {
            assert_eq!(read_bandwidth(threads, len_bytes).unwrap(), 0.0);
        }
        assert!(read_bandwidth(1, usize::MAX).is_err());
    }

    #[test]
    fn the_buffer_is_larger_than_the_cache_and_within_the_budget() {
        let mut facts = Facts::gather();
        facts.caches = vec![crate::facts::Cache { level: 3, size_bytes: 1 << 30 }];
        facts.memory = None;
        assert_eq!(buffer_bytes(&facts), 4 << 30);
        facts.caches.clear();
        assert_eq!(buffer_bytes(&facts), 1 << 30);
        facts.memory = Facts::gather().memory.map(|memory| crate::memory::Memory {
            available_bytes: 1 << 30,
            limit_headroom_bytes: None,
            ..memory
        });
        if facts.memory.is_some() {
            assert_eq!(buffer_bytes(&facts), 3 << 27);
        }
    }

    /// Not a test of correctness: prints the machine's read ceiling.
    #[test]
    #[ignore = "a measurement; run with --ignored --nocapture"]
    fn measure() {
        let facts = Facts::gather();
        for threads in 1..=facts.core_count {
            let bandwidth = read_bandwidth(threads, buffer_bytes(&facts)).unwrap();
            println!("{threads} threads: {:.1} GB/s", bandwidth / 1e9);
        }
    }
}
