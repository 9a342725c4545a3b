//! Prefill products in tiles: the arithmetic of [`super::dot`], 32 weight rows by 16 tokens at a time.
//!
//! Codes are unpacked once for all tokens, activations packed once for all rows. One block of columns
//! at a time is multiplied by the AMX unit or by VNNI ([`Unit`]: whichever a short probe finds faster
//! here), then scaled. Blocks are visited lane by lane, and lanes in the order that lets their sums be
//! added in halves with a short stack, so the bits equal those of the row-wise kernels.

mod amx;
mod panel;
mod vnni;

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use machine::cpu::Isa;

use self::panel::{Panel, transpose};
use super::dot::{Codes, Target, packing};
use super::quantize::{Activations, BLOCK, LANE_BLOCKS, split};
use crate::weight::Matrix;
use format::Encoding;

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
            biased: true,
            ..Panel::default()
        };
        let tile = Tile {
            tokens: TOKENS,
            blocks,
            planes: vec![1; blocks * 1024],
            scale: vec![1.0; blocks * TOKENS],
            sum: vec![1.0; blocks * TOKENS],
            integer_sum: vec![1; blocks * TOKENS],
            first_sum: Vec::new(),
        };
        if self == Unit::Amx {
            amx::configure();
        }
        let mut work = Box::default();
        let mut best = Duration::MAX;
        for _ in 0..64 {
            let start = Instant::now();
            // SAFETY: only reached with AMX, which implies AVX-512 and VNNI; the buffers have the
            // sizes that pack and unpack give them.
            std::hint::black_box(unsafe { panel.product(self, &tile, &mut work) });
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
    /// The order that weights of an integer encoding want.
    pub(crate) fn of(encoding: Encoding) -> Order {
        if let Encoding::Block(_) = encoding {
            return Order::Natural;
        }
        match packing(encoding).0 {
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
    /// The sums of the first halves of blocks, if asked for.
    first_sum: Vec<i32>,
}

impl Tile {
    /// Lays out the given rows of `x`, sixteen at most; `halves` for weights with two scales a block.
    pub(crate) fn pack(&mut self, x: &Activations, rows: &[u32], order: Order, halves: bool) {
        assert!(rows.len() <= TOKENS);
        debug_assert!(x.forms.values);
        let blocks = x.cols.div_ceil(BLOCK);
        (self.tokens, self.blocks) = (rows.len(), blocks);
        self.planes.resize(blocks * 1024, 0);
        self.scale.resize(blocks * TOKENS, 0.0);
        self.sum.resize(blocks * TOKENS, 0.0);
        self.integer_sum.resize(blocks * TOKENS, 0);
        self.first_sum.resize(if halves { blocks * TOKENS } else { 0 }, 0);
        if rows.len() < TOKENS {
            self.planes.fill(0);
            self.scale.fill(0.0);
            self.sum.fill(0.0);
            self.integer_sum.fill(0);
            self.first_sum.fill(0);
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
                if halves {
                    let first = values[..BLOCK / 2].iter().map(|&value| i32::from(value)).sum();
                    self.first_sum[visit * TOKENS + token] = first;
                }
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

thread_local! {
    /// The panel grows to the widest weight once and is kept.
    static SCRATCH: RefCell<(Panel, Box<Work>)> = RefCell::default();
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
    SCRATCH.with_borrow_mut(|(panel, work)| {
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
                assert!(!panel.halved || !tile.first_sum.is_empty());
                // SAFETY: as the caller promised; the panel and the tile have the same columns.
                unsafe {
                    let result = panel.product(unit, tile, work);
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
    /// The products of the panel's 32 rows with a tile: [token][row].
    ///
    /// # Safety
    /// AMX must be configured by [`configure`], and the panel unpacked from a weight with the
    /// tile's number of columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    unsafe fn product(&self, unit: Unit, tile: &Tile, work: &mut Work) -> [[f32; ROWS]; TOKENS] {
        // The tile unit adds up whole blocks.
        let unit = if self.halved { Unit::Vnni } else { unit };
        let Work { sums: Sums(stack), integers } = work;
        let mut depth = 0;
        // The tile unit runs one block ahead of the vector code: its results reach memory only when
        // its stores retire, and a load that comes sooner waits for that.
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
                add_sums(&mut below[depth - 2], &above[0]);
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
            let zero = if self.zero != 0 {
                let sums = _mm512_loadu_si512(tile.integer_sum.as_ptr().add(visit * TOKENS).cast());
                _mm512_mullo_epi32(sums, _mm512_set1_epi32(self.zero))
            } else {
                _mm512_setzero_si512()
            };
            for r in 0..ROWS {
                let high = _mm512_load_si512(integers.0[0][r].as_ptr().cast());
                let low = _mm512_load_si512(integers.0[1][r].as_ptr().cast());
                let mut joined = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
                if self.zero != 0 {
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

/// Adds sums to others, row by row: left to itself the compiler gathers and scatters tokens of sixteen rows at a time.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_sums(sums: &mut [[f32; TOKENS]; ROWS], more: &[[f32; TOKENS]; ROWS]) {
    for (sums, more) in sums.iter_mut().zip(more) {
        // SAFETY: sixteen floats each.
        unsafe {
            let sum = _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), _mm512_loadu_ps(more.as_ptr()));
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}

/// What a product writes before it reads it: kept from one to the next instead of being cleared, 18 KB of it.
#[derive(Default)]
struct Work {
    sums: Sums,
    /// Of the block that is scaled and of the next.
    integers: [Integers; 2],
}

/// Tile results: [plane][row][token].
#[repr(C, align(64))]
#[derive(Default)]
struct Integers([[[i32; TOKENS]; ROWS]; 2]);

/// Sums of lanes that wait for their other half, aligned for whole-register access: [depth][row][token].
#[repr(C, align(64))]
#[derive(Default)]
struct Sums([[[f32; TOKENS]; ROWS]; 5]);

#[cfg(test)]
#[path = "tiles_tests.rs"]
mod tests;
