//! Prefill products in tiles: the arithmetic of [`super::dot`], 32 weight rows by 16 tokens at a time.
//!
//! Codes are unpacked once for all tokens, activations packed once for all rows. One block of columns
//! at a time is multiplied by the AMX unit or by VNNI ([`Unit`]: whichever a short probe finds faster
//! here), then scaled. Blocks are visited lane by lane, and lanes in the order that lets their sums be
//! added in halves with a short stack, so the bits equal those of the row-wise kernels.

mod amx;
mod vnni;

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use machine::cpu::Isa;

use super::dot::{Codes, FP4_CODES, FP4_ZERO, Row, Target, expand_avx512, unpack_codes};
use super::quantise::{Activations, BLOCK, LANE_BLOCKS, split};
use crate::weight::Matrix;

/// Tokens in a tile.
pub(crate) const TOKENS: usize = 16;
/// Weight rows multiplied together: two tiles share the loaded activations.
pub(crate) const ROWS: usize = 32;

/// Lanes in the order in which sums of neighbours on a stack are the sums of halves.
const LANE_ORDER: [usize; LANE_BLOCKS] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// What multiplies a block. Both give the same integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Amx,
    Vnni,
}

impl Unit {
    /// The unit for an instruction set; where there are two, the faster one, found once by a probe of
    /// about a millisecond. (AMX is several times faster on bare metal; on a virtual machine with a
    /// shared tile unit VNNI was, 15 Nov 2026.)
    pub(crate) fn of(isa: Isa) -> Unit {
        static FASTER: OnceLock<Unit> = OnceLock::new();
        if isa != Isa::Amx {
            return Unit::Vnni;
        }
        *FASTER.get_or_init(|| {
            let (amx, vnni) = (Unit::Amx.probe(), Unit::Vnni.probe());
            if amx <= vnni { Unit::Amx } else { Unit::Vnni }
        })
    }

    /// The best of a few rounds of 32 rows × 512 columns × 16 tokens.
    fn probe(self) -> Duration {
        let blocks = LANE_BLOCKS;
        let panel = Panel {
            codes: vec![7; blocks * ROWS * BLOCK],
            scales: vec![1.0; blocks * ROWS],
            biases: vec![1.0; blocks * ROWS],
            fp4: false,
            biased: true,
        };
        let tile = Tile {
            tokens: TOKENS,
            blocks,
            planes: vec![1; blocks * 1024],
            scale: vec![1.0; blocks * TOKENS],
            sum: vec![1.0; blocks * TOKENS],
            integer_sum: vec![1; blocks * TOKENS],
        };
        if self == Unit::Amx {
            amx::configure();
        }
        let mut best = Duration::MAX;
        for _ in 0..64 {
            let start = Instant::now();
            // SAFETY: only reached with AMX, which implies AVX-512 and VNNI; the buffers have the
            // sizes that pack and unpack give them.
            std::hint::black_box(unsafe { panel.product(self, &tile) });
            best = best.min(start.elapsed());
        }
        if self == Unit::Amx {
            machine::amx::release();
        }
        best
    }
}

/// Blocks are stored in the order in which they are visited, so that memory is read front to back.
#[derive(Clone, Copy)]
struct Visits {
    blocks: usize,
    /// How many blocks are visited before the first of each lane.
    before: [usize; LANE_BLOCKS],
}

impl Visits {
    fn new(blocks: usize) -> Visits {
        let mut before = [0; LANE_BLOCKS];
        let mut visited = 0;
        for lane in LANE_ORDER {
            before[lane] = visited;
            visited += Visits::in_lane(blocks, lane);
        }
        Visits { blocks, before }
    }

    /// Blocks of a row of `blocks` that fall into a lane.
    fn in_lane(blocks: usize, lane: usize) -> usize {
        blocks.saturating_sub(lane).div_ceil(LANE_BLOCKS)
    }

    /// When block `index` is visited.
    #[inline(always)]
    fn of(&self, index: usize) -> usize {
        debug_assert!(index < self.blocks);
        self.before[index % LANE_BLOCKS] + index / LANE_BLOCKS
    }
}

/// Order of a block's 32 columns in the tiles: as nibbles come out of bytes, or natural.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Paired,
    Natural,
}

impl Order {
    pub(crate) fn of(packing: Codes) -> Order {
        match packing {
            Codes::Nibbles | Codes::Fp4 => Order::Paired,
            Codes::Bytes | Codes::Stream(_) => Order::Natural,
        }
    }
}

/// Activations of up to 16 tokens in the layout of the right-hand tile.
#[derive(Default)]
pub(crate) struct Tile {
    /// Tokens that are real; the rest is zero.
    tokens: usize,
    blocks: usize,
    /// [visit][plane][quad of columns][token][4 bytes]
    planes: Vec<i8>,
    /// [visit][token]
    scale: Vec<f32>,
    sum: Vec<f32>,
    integer_sum: Vec<i32>,
}

impl Tile {
    /// Lays out the given rows of `x`, sixteen at most.
    pub(crate) fn pack(&mut self, x: &Activations, rows: &[u32], order: Order) {
        assert!(rows.len() <= TOKENS);
        let blocks = x.cols.div_ceil(BLOCK);
        (self.tokens, self.blocks) = (rows.len(), blocks);
        self.planes.resize(blocks * 1024, 0);
        self.scale.resize(blocks * TOKENS, 0.0);
        self.sum.resize(blocks * TOKENS, 0.0);
        self.integer_sum.resize(blocks * TOKENS, 0);
        if rows.len() < TOKENS {
            self.planes.fill(0);
            self.scale.fill(0.0);
            self.sum.fill(0.0);
            self.integer_sum.fill(0);
        }
        let visits = Visits::new(blocks);
        for (token, &row) in rows.iter().enumerate() {
            let row = row as usize;
            let values = x.row_values(row);
            for block in 0..blocks {
                let visit = visits.of(block);
                let values: &[i16; BLOCK] =
                    values[block * BLOCK..][..BLOCK].try_into().expect("a whole block");
                let planes = &mut self.planes[visit * 1024..][..1024];
                pack_block(values, planes, token, order);
                self.scale[visit * TOKENS + token] = x.row_scale(row)[block];
                self.sum[visit * TOKENS + token] = x.row_sum(row)[block];
                self.integer_sum[visit * TOKENS + token] = x.row_integer_sum(row)[block];
            }
        }
    }
}

#[inline(always)]
fn pack_block(values: &[i16; BLOCK], planes: &mut [i8], token: usize, order: Order) {
    let (mut high, mut low) = ([0i8; BLOCK], [0i8; BLOCK]);
    match order {
        Order::Natural => {
            for i in 0..BLOCK {
                (high[i], low[i]) = split(values[i]);
            }
        }
        Order::Paired => {
            for i in 0..BLOCK / 2 {
                (high[i], low[i]) = split(values[2 * i]);
                (high[16 + i], low[16 + i]) = split(values[2 * i + 1]);
            }
        }
    }
    let (high_plane, low_plane) = planes.split_at_mut(512);
    for quad in 0..BLOCK / 4 {
        let at = quad * 64 + token * 4;
        high_plane[at..at + 4].copy_from_slice(&high[quad * 4..quad * 4 + 4]);
        low_plane[at..at + 4].copy_from_slice(&low[quad * 4..quad * 4 + 4]);
    }
}

/// Codes of up to 32 weight rows in the layout of the left-hand tiles, and their scales as floats.
#[derive(Default)]
struct Panel {
    /// [visit][row][32 bytes]
    codes: Vec<u8>,
    /// [visit][row]
    scales: Vec<f32>,
    biases: Vec<f32>,
    fp4: bool,
    biased: bool,
}

thread_local! {
    /// Grows to the widest weight once and is kept.
    static PANEL: RefCell<Panel> = RefCell::new(Panel::default());
}

/// Products of weight rows `rows` with every token of `tiles`; token t of tile i is output row
/// `outputs[i · 16 + t]`.
///
/// # Safety
/// AVX-512 with VNNI, and AMX where `unit` says so. `out` must have room for every output row and column; no other
/// thread may touch the elements written meanwhile.
pub(crate) unsafe fn multiply_rows(
    unit: Unit,
    w: &Matrix<'_>,
    rows: std::ops::Range<usize>,
    tiles: &[Tile],
    outputs: &[u32],
    out: Target,
) {
    PANEL.with_borrow_mut(|panel| {
        if unit == Unit::Amx {
            amx::configure();
        }
        let mut first = rows.start;
        while first < rows.end {
            let count = ROWS.min(rows.end - first);
            // SAFETY: AMX implies AVX-512.
            unsafe { panel.unpack(w, first, count) };
            for (i, tile) in tiles.iter().enumerate() {
                assert_eq!(tile.blocks, w.cols.div_ceil(BLOCK));
                // SAFETY: as the caller promised; the panel and the tile have the same columns.
                unsafe {
                    let result = panel.product(unit, tile);
                    for t in 0..tile.tokens {
                        let row = outputs[i * TOKENS + t] as usize;
                        let to = out.start.add(row * out.stride + out.column + first - rows.start);
                        std::ptr::copy_nonoverlapping(result[t].as_ptr(), to, count);
                    }
                }
            }
            first += count;
        }
        if unit == Unit::Amx {
            machine::amx::release();
        }
    });
}

impl Panel {
    /// # Safety
    /// The machine must have AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
    unsafe fn unpack(&mut self, w: &Matrix<'_>, first: usize, count: usize) {
        let blocks = w.cols.div_ceil(BLOCK);
        let visits = Visits::new(blocks);
        self.codes.resize(blocks * ROWS * BLOCK, 0);
        self.scales.resize(blocks * ROWS, 0.0);
        self.biases.resize(blocks * ROWS, 0.0);
        if count < ROWS {
            self.codes.fill(0);
            self.scales.fill(0.0);
            self.biases.fill(0.0);
        }
        let sample = Row::new(w, first);
        self.fp4 = sample.packing == Codes::Fp4;
        self.biased = !sample.biases.is_empty();
        for start in (0..count).step_by(16) {
            let rows = first + start..first + count.min(start + 16);
            unpack_scales(w, rows.clone(), &visits, |row| row.scales, &mut self.scales[start..]);
            if self.biased {
                unpack_scales(w, rows, &visits, |row| row.biases, &mut self.biases[start..]);
            }
        }
        if matches!(sample.packing, Codes::Nibbles | Codes::Fp4) {
            // SAFETY: as promised.
            unsafe { self.unpack_nibbles(w, first, count, &visits) };
            return;
        }
        let block_bytes = w.encoding.row_bytes(w.cols) / blocks;
        for r in 0..count {
            let row = Row::new(w, first + r);
            for block in 0..blocks {
                let to = &mut self.codes[(visits.of(block) * ROWS + r) * BLOCK..][..BLOCK];
                unpack_codes(row.packing, &row.codes[block * block_bytes..], to);
            }
        }
    }

    /// # Safety
    /// The machine must have AVX-512 BW.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn unpack_nibbles(
        &mut self,
        w: &Matrix<'_>,
        first: usize,
        count: usize,
        visits: &Visits,
    ) {
        let row_bytes = w.encoding.row_bytes(w.cols);
        let mask = _mm512_set1_epi8(15);
        let low_pairs = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        let high_pairs = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        // SAFETY: sixteen bytes of a constant.
        let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(FP4_CODES.as_ptr().cast())) };
        // Four blocks of one row are 64 bytes of codes.
        for quad in 0..w.cols.div_ceil(4 * BLOCK) {
            let bytes = 64.min(row_bytes - quad * 64);
            let valid = if bytes == 64 { u64::MAX } else { (1u64 << bytes) - 1 };
            let mut visit = [0; 4];
            for (block, visit) in visit.iter_mut().enumerate().take(bytes / 16) {
                *visit = visits.of(quad * 4 + block);
            }
            for r in 0..count {
                let from = &w.codes[(first + r) * row_bytes + quad * 64..][..bytes];
                // SAFETY: the mask keeps the load within `from`; the stores below go to blocks
                // that exist (a block is 16 bytes of codes).
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(
                        from.as_ptr().wrapping_add(ROWS * row_bytes).cast(),
                    );
                    let packed = _mm512_maskz_loadu_epi8(valid, from.as_ptr().cast());
                    let mut even = _mm512_and_si512(packed, mask);
                    let mut odd = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask);
                    if self.fp4 {
                        even = _mm512_shuffle_epi8(table, even);
                        odd = _mm512_shuffle_epi8(table, odd);
                    }
                    let pairs = [
                        _mm512_permutex2var_epi64(even, low_pairs, odd),
                        _mm512_permutex2var_epi64(even, high_pairs, odd),
                    ];
                    for block in 0..bytes / 16 {
                        let pair = pairs[block / 2];
                        let half = if block % 2 == 0 {
                            _mm512_castsi512_si256(pair)
                        } else {
                            _mm512_extracti64x4_epi64::<1>(pair)
                        };
                        let to = self.codes.as_mut_ptr().add((visit[block] * ROWS + r) * BLOCK);
                        _mm256_storeu_si256(to.cast(), half);
                    }
                }
            }
        }
    }

    /// The products of the panel's 32 rows with a tile: [token][row].
    ///
    /// # Safety
    /// AMX must be configured by [`configure`], and the panel unpacked from a weight with the
    /// tile's number of columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    unsafe fn product(&self, unit: Unit, tile: &Tile) -> [[f32; ROWS]; TOKENS] {
        // Sums of lanes that wait for their other half: [depth][row][token].
        let mut stack = Sums([[[0.0f32; TOKENS]; ROWS]; 5]);
        let stack = &mut stack.0;
        let mut depth = 0;
        let mut integers = [Integers::ZERO, Integers::ZERO];
        // The tile unit runs one block ahead of the vector code: its results reach memory only when
        // its stores retire, and whoever reads them sooner waits for that.
        let multiply = |visit: usize, to: &mut Integers| {
            if unit == Unit::Amx && visit < tile.blocks {
                // SAFETY: the codes and the planes hold `blocks` panels of 1,024 bytes each.
                unsafe {
                    let codes = self.codes.as_ptr().add(visit * ROWS * BLOCK);
                    let planes = tile.planes.as_ptr().add(visit * 1024);
                    amx::products(codes, planes, to);
                }
            }
        };
        multiply(0, &mut integers[0]);
        let mut visit = 0;
        for (done, &lane) in LANE_ORDER.iter().enumerate() {
            let sums = &mut stack[depth];
            depth += 1;
            let count = Visits::in_lane(tile.blocks, lane);
            if count == 0 {
                sums.fill([0.0; TOKENS]);
            }
            for index in 0..count {
                let (even, odd) = integers.split_at_mut(1);
                let (now, next) = match visit % 2 {
                    0 => (&even[0], &mut odd[0]),
                    _ => (&odd[0], &mut even[0]),
                };
                multiply(visit + 1, next);
                // SAFETY: a block of both the panel and the tile.
                unsafe {
                    match (unit, index) {
                        (Unit::Amx, 0) => self.scale_block::<true>(tile, visit, now, sums),
                        (Unit::Amx, _) => self.scale_block::<false>(tile, visit, now, sums),
                        (Unit::Vnni, 0) => vnni::block::<true>(self, tile, visit, sums),
                        (Unit::Vnni, _) => vnni::block::<false>(self, tile, visit, sums),
                    }
                }
                visit += 1;
            }
            // Add halves: after an even number of finished lanes the two topmost sums belong together.
            let mut finished = done + 1;
            while finished % 2 == 0 {
                let (below, above) = stack.split_at_mut(depth - 1);
                for (a, b) in below[depth - 2].iter_mut().zip(&above[0]) {
                    for t in 0..TOKENS {
                        a[t] += b[t];
                    }
                }
                depth -= 1;
                finished /= 2;
            }
        }
        let mut out = [[0.0f32; ROWS]; TOKENS];
        for half in 0..ROWS / TOKENS {
            let square: &[[f32; TOKENS]; TOKENS] =
                stack[0][half * TOKENS..][..TOKENS].try_into().expect("sixteen rows");
            // SAFETY: AVX-512 is there.
            let turned = unsafe { transpose(square) };
            for t in 0..TOKENS {
                out[t][half * TOKENS..][..TOKENS].copy_from_slice(&turned[t]);
            }
        }
        out
    }

    /// Joins the planes of one block and adds it, scaled, to the sums (or begins them).
    ///
    /// # Safety
    /// AVX-512; `visit` is that of a block of both the panel and the tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    unsafe fn scale_block<const FIRST: bool>(
        &self,
        tile: &Tile,
        visit: usize,
        integers: &Integers,
        sums: &mut [[f32; TOKENS]; ROWS],
    ) {
        // SAFETY: all pointers are to sixteen elements inside the buffers sized by pack and unpack.
        unsafe {
            let x_scale = _mm512_loadu_ps(tile.scale.as_ptr().add(visit * TOKENS));
            let x_sum = _mm512_loadu_ps(tile.sum.as_ptr().add(visit * TOKENS));
            let zero = if self.fp4 {
                let sums = _mm512_loadu_si512(tile.integer_sum.as_ptr().add(visit * TOKENS).cast());
                _mm512_mullo_epi32(sums, _mm512_set1_epi32(FP4_ZERO))
            } else {
                _mm512_setzero_si512()
            };
            for r in 0..ROWS {
                let high = _mm512_load_si512(integers.0[0][r].as_ptr().cast());
                let low = _mm512_load_si512(integers.0[1][r].as_ptr().cast());
                let mut joined = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
                if self.fp4 {
                    joined = _mm512_sub_epi32(joined, zero);
                }
                let at = visit * ROWS + r;
                let scale = _mm512_set1_ps(*self.scales.as_ptr().add(at));
                let mut sum =
                    if FIRST { _mm512_setzero_ps() } else { _mm512_load_ps(sums[r].as_ptr()) };
                sum =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(joined), _mm512_mul_ps(scale, x_scale), sum);
                if self.biased {
                    let bias = _mm512_set1_ps(*self.biases.as_ptr().add(at));
                    sum = _mm512_fmadd_ps(bias, x_sum, sum);
                }
                _mm512_store_ps(sums[r].as_mut_ptr(), sum);
            }
        }
    }
}

/// Tile results: [plane][row][token].
#[repr(C, align(64))]
struct Integers([[[i32; TOKENS]; ROWS]; 2]);

impl Integers {
    const ZERO: Integers = Integers([[[0; TOKENS]; ROWS]; 2]);
}

/// Partial sums, aligned for whole-register access.
#[repr(C, align(64))]
struct Sums([[[f32; TOKENS]; ROWS]; 5]);

/// Scales (or biases) of up to 16 rows as floats: [visit][32 rows].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn unpack_scales(
    w: &Matrix<'_>,
    rows: std::ops::Range<usize>,
    visits: &Visits,
    part: for<'a> fn(&Row<'a>) -> &'a [u8],
    to: &mut [f32],
) {
    let sample = Row::new(w, rows.start);
    let (kind, group) = (sample.kind, sample.group);
    let size = sample.chunk_scales() * sample.scale_size();
    let mut parts: [&[u8]; 16] = [&[]; 16];
    for (bytes, index) in parts.iter_mut().zip(rows.clone()) {
        *bytes = part(&Row::new(w, index));
    }
    for chunk in 0..visits.blocks.div_ceil(LANE_BLOCKS) {
        let mut square = [[0.0f32; 16]; 16];
        for (values, bytes) in square.iter_mut().zip(&parts[..rows.len()]) {
            let from = &bytes[chunk * size..];
            let mut padded = [0u8; LANE_BLOCKS * 4];
            let whole = if from.len() >= size {
                &from[..size]
            } else {
                padded[..from.len()].copy_from_slice(from);
                &padded[..size]
            };
            let wide = expand_avx512(kind, group, whole);
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), wide) };
        }
        // SAFETY: AVX-512 is there.
        let turned = unsafe { transpose(&square) };
        let blocks = (visits.blocks - chunk * LANE_BLOCKS).min(LANE_BLOCKS);
        for (block, values) in turned.iter().enumerate().take(blocks) {
            let at = visits.of(chunk * LANE_BLOCKS + block) * ROWS;
            to[at..at + rows.len()].copy_from_slice(&values[..rows.len()]);
        }
    }
}

/// 16 × 16 transpose.
///
/// # Safety
/// The machine must have AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(from: &[[f32; 16]; 16]) -> [[f32; 16]; 16] {
    // SAFETY: sixteen rows of sixteen floats.
    unsafe {
        let r: [__m512; 16] = std::array::from_fn(|i| _mm512_loadu_ps(from[i].as_ptr()));
        let mut t = [_mm512_setzero_ps(); 16];
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let pd = |x| _mm512_castps_pd(x);
        let mut u = [_mm512_setzero_ps(); 16];
        for i in 0..4 {
            let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
            u[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(a), pd(c)));
            u[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(a), pd(c)));
            u[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(b), pd(d)));
            u[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(b), pd(d)));
        }
        // u[4g + j]: 128-bit lane k holds column 4k + j of rows 4g..4g + 4.
        let mut out = [[0.0f32; 16]; 16];
        for j in 0..4 {
            let a = _mm512_shuffle_f32x4::<0x88>(u[j], u[4 + j]);
            let b = _mm512_shuffle_f32x4::<0xdd>(u[j], u[4 + j]);
            let c = _mm512_shuffle_f32x4::<0x88>(u[8 + j], u[12 + j]);
            let d = _mm512_shuffle_f32x4::<0xdd>(u[8 + j], u[12 + j]);
            _mm512_storeu_ps(out[j].as_mut_ptr(), _mm512_shuffle_f32x4::<0x88>(a, c));
            _mm512_storeu_ps(out[8 + j].as_mut_ptr(), _mm512_shuffle_f32x4::<0xdd>(a, c));
            _mm512_storeu_ps(out[4 + j].as_mut_ptr(), _mm512_shuffle_f32x4::<0x88>(b, d));
            _mm512_storeu_ps(out[12 + j].as_mut_ptr(), _mm512_shuffle_f32x4::<0xdd>(b, d));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::dot::tests::{Random, encodings, random_weight};
    use super::super::dot::{Rows, multiply_rows as by_rows, packing};
    use super::*;

    #[test]
    fn tiles_equal_rows_to_the_bit() {
        if !machine::cpu::supports(Isa::Avx512) {
            println!("skipped: this machine has neither AVX-512 VNNI nor AMX");
            return;
        }
        let mut random = Random(11);
        for encoding in encodings().into_iter().filter(|e| e.is_integer()) {
            for (rows, cols, x_rows) in [(32, 512, 16), (70, 1152, 21), (5, 128, 3), (33, 2048, 40)]
            {
                let w = random_weight(rows, cols, encoding, random.next());
                let mut a = Activations::default();
                a.resize(Isa::Avx512, x_rows, cols, true);
                for r in 0..x_rows {
                    let x: Vec<f32> = (0..cols).map(|_| random.float()).collect();
                    a.fill(Isa::Avx512, r, &x);
                }
                let mut want = vec![0.0; rows * x_rows];
                let order = Order::of(packing(encoding).0);
                let outputs: Vec<u32> = (0..x_rows as u32).rev().collect();
                let tiles: Vec<Tile> = outputs
                    .chunks(TOKENS)
                    .map(|rows| {
                        let mut tile = Tile::default();
                        tile.pack(&a, rows, order);
                        tile
                    })
                    .collect();
                // SAFETY: both outputs have room for every row.
                unsafe {
                    let target = |start| Target { start, stride: rows, column: 0 };
                    let both = Rows { inputs: &outputs, outputs: &outputs };
                    let to = target(want.as_mut_ptr());
                    by_rows(Isa::Scalar, &w.view(), 0..rows, &a, both, to);
                }
                for (unit, isa) in [(Unit::Amx, Isa::Amx), (Unit::Vnni, Isa::Avx512)] {
                    if !machine::cpu::supports(isa) {
                        continue;
                    }
                    let mut got = vec![f32::NAN; rows * x_rows];
                    let to = Target { start: got.as_mut_ptr(), stride: rows, column: 0 };
                    // SAFETY: the output has room for every row.
                    unsafe { multiply_rows(unit, &w.view(), 0..rows, &tiles, &outputs, to) };
                    let same = want.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{unit:?}: {encoding:?} [{rows}, {cols}] × {x_rows}");
                }
            }
        }
    }
}
