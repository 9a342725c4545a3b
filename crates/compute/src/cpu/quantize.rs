//! Activations as 16-bit integers, so that products with integer weight codes are exact.
//!
//! A row is cut into blocks of 32. A block's largest magnitude maps to ±32,512 = 127 · 256, so each
//! value is `256 · high + low` with two signed bytes: the form byte-wise dot-product instructions take.
//! Sums of code · integer are exact in 32 bits, whatever order an instruction set adds them in;
//! only the sum over blocks is in floats, in the one order given in [`super::dot`]. Measured error
//! of a 4-bit product against f64: about 2e-5 of its norm (a single int8 plane: 5e-3).

#[cfg(target_arch = "x86_64")]
mod fours;
mod transposed;

use std::marker::PhantomData;

use machine::cpu::Isa;

use self::transposed::split_transposed;
use super::lanes::{join_lanes, larger, versions};

/// Values that share an activation scale. The smallest weight group that has an integer form.
pub(crate) const BLOCK: usize = 32;
/// Blocks of one round of lanes: the float sum over blocks keeps this many partial sums.
pub(crate) const LANE_BLOCKS: usize = super::lanes::LANES;
/// Values in one round of lanes. Rows are padded to a multiple of this with blocks that have no scale.
pub(crate) const CHUNK: usize = BLOCK * LANE_BLOCKS;

/// What a block's largest magnitude becomes.
const MOST: i32 = 32_512;
const LARGEST: f32 = MOST as f32;

/// Added to a magnitude under 2^22, it leaves the nearest integer in the low bits, ties to even.
const MAGIC: f32 = 12_582_912.0;

/// What the kernels which will read activations want of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forms {
    /// [`Activations::values`]: quantizing leaves them anyway, but a caller that copies rows may leave them out.
    pub(crate) values: bool,
    /// [`Activations::planes`]
    pub(crate) natural: bool,
    /// [`Activations::paired`]
    pub(crate) paired: bool,
    /// [`Activations::first_sum`], whatever the instruction set.
    pub(crate) halves: bool,
}

impl Forms {
    pub(crate) const VALUES: Forms =
        Forms { values: true, natural: false, paired: false, halves: false };
    pub(crate) const ALL: Forms = Forms { values: true, natural: true, paired: true, halves: true };

    fn has_planes(self) -> bool {
        self.natural || self.paired
    }
}

/// Quantized rows. `planes` and `paired` hold the two bytes of each value in the orders that the
/// byte-wise kernels read them; they are filled only for instruction sets that use them, and as [`Forms`] say.
///
/// Scales and sums of padding are zero. Its bytes may be anything: they meet codes that are zero, or count nothing for want of a
/// scale.
#[derive(Default)]
pub(crate) struct Activations {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Blocks in a row, padding included.
    pub(crate) blocks: usize,
    /// `[rows, blocks · 32]`, natural order. Padding is zero, except with AVX-512 in rows that are shorter than a chunk.
    pub(crate) values: Vec<i16>,
    /// `[rows, blocks]`
    pub(crate) scale: Lines<f32>,
    /// `[rows, blocks]`: scale · Σ values, what a weight's bias is multiplied with.
    pub(crate) sum: Lines<f32>,
    /// `[rows, blocks]`: Σ values.
    pub(crate) integer_sum: Vec<i32>,
    /// `[rows, blocks]`: Σ values of the first half of each block, for weights with two scales a block.
    pub(crate) first_sum: Vec<i32>,
    /// Per 64 values: 64 high bytes, 64 low bytes.
    pub(crate) planes: Lines<i8>,
    /// Per 128 values: 64 high bytes of even elements, 64 of odd ones, then the low bytes likewise: the order in
    /// which the low and high nibbles of 64 code bytes come out. Transposed for several rows and for narrow ones: then per chunk and
    /// for each eighth value of its blocks and the seven after it, four bytes of each block, block after block.
    /// So a lane of 32 bits belongs to one block, which costs shuffles of codes once and saves them for each row.
    pub(crate) paired: Lines<i8>,
    /// Whether `paired` is transposed.
    pub(crate) transposed: bool,
    /// Which of the planes are filled, and whether copied rows have values.
    pub(crate) forms: Forms,
}

/// Numbers that begin on a cache line, in whole lines: a load that straddles two counts twice.
pub(crate) struct Lines<T> {
    lines: Vec<Line>,
    numbers: PhantomData<T>,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// Numbers that are zero when their bytes are, and may have any bytes.
pub(crate) trait Plain: Copy {}
impl Plain for i8 {}
impl Plain for f32 {}

impl<T: Plain> Lines<T> {
    /// Makes room for so many at least.
    fn grow(&mut self, count: usize) {
        let lines = (count * size_of::<T>()).div_ceil(64);
        if lines > self.lines.len() {
            self.lines.resize(lines, Line([0; 64]));
        }
    }

    fn count(&self) -> usize {
        self.lines.len() * 64 / size_of::<T>()
    }
}

impl<T> Default for Lines<T> {
    fn default() -> Lines<T> {
        Lines { lines: Vec::new(), numbers: PhantomData }
    }
}

impl<T: Plain> std::ops::Deref for Lines<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: lines are the bytes of so many plain numbers and nothing between.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count()) }
    }
}

impl<T: Plain> std::ops::DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.count()) }
    }
}

impl Activations {
    /// Sets the shape; contents are undefined until [`Activations::fill`]. Room is kept: experts have now one row and now
    /// four, and what would be given up and taken again would be zeroed each time.
    pub(crate) fn resize(&mut self, isa: Isa, rows: usize, cols: usize, forms: Forms) {
        (self.rows, self.cols, self.blocks) = (rows, cols, padded_blocks(cols));
        let values = rows * self.blocks * BLOCK;
        self.values.resize(values.max(self.values.len()), 0);
        self.scale.grow(rows * self.blocks);
        self.sum.grow(rows * self.blocks);
        self.integer_sum.resize((rows * self.blocks).max(self.integer_sum.len()), 0);
        if forms.halves {
            self.first_sum.resize((rows * self.blocks).max(self.first_sum.len()), 0);
        }
        self.forms = match isa {
            Isa::Avx512 | Isa::Amx => forms,
            _ => Forms { halves: forms.halves, ..Forms::VALUES },
        };
        let bytes = if self.forms.has_planes() { 2 * values } else { 0 };
        self.planes.grow(bytes);
        self.paired.grow(bytes);
        self.transposed = rows > 1 || cols < CHUNK;
    }

    /// Quantizes one row into place `row`.
    pub(crate) fn fill(&mut self, isa: Isa, row: usize, x: &[f32]) {
        // SAFETY: no other thread has the rows.
        unsafe { self.writer().fill(isa, row, x) };
    }

    /// Lets several tasks fill different rows at once.
    pub(crate) fn writer(&mut self) -> Writer<'_> {
        Writer {
            rows: self.rows,
            cols: self.cols,
            blocks: self.blocks,
            values: self.values.as_mut_ptr(),
            scale: self.scale.as_mut_ptr(),
            sum: self.sum.as_mut_ptr(),
            integer_sum: self.integer_sum.as_mut_ptr(),
            first_sum: self.first_sum.as_mut_ptr(),
            planes: self.planes.as_mut_ptr(),
            paired: self.paired.as_mut_ptr(),
            forms: self.forms,
            transposed: self.transposed,
            owner: PhantomData,
        }
    }

    pub(crate) fn row_values(&self, row: usize) -> &[i16] {
        &self.values[row * self.blocks * BLOCK..][..self.blocks * BLOCK]
    }

    pub(crate) fn row_scale(&self, row: usize) -> &[f32] {
        &self.scale[row * self.blocks..][..self.blocks]
    }

    pub(crate) fn row_sum(&self, row: usize) -> &[f32] {
        &self.sum[row * self.blocks..][..self.blocks]
    }

    pub(crate) fn row_integer_sum(&self, row: usize) -> &[i32] {
        &self.integer_sum[row * self.blocks..][..self.blocks]
    }

    pub(crate) fn row_first_sum(&self, row: usize) -> &[i32] {
        debug_assert!(self.forms.halves);
        &self.first_sum[row * self.blocks..][..self.blocks]
    }
}

/// Writes rows of [`Activations`] from several threads.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    rows: usize,
    cols: usize,
    blocks: usize,
    values: *mut i16,
    scale: *mut f32,
    sum: *mut f32,
    integer_sum: *mut i32,
    first_sum: *mut i32,
    planes: *mut i8,
    paired: *mut i8,
    forms: Forms,
    transposed: bool,
    owner: PhantomData<&'a mut Activations>,
}

// SAFETY: plain addresses; `fill` says which thread may write what.
unsafe impl Send for Writer<'_> {}
// SAFETY: as above.
unsafe impl Sync for Writer<'_> {}

impl Writer<'_> {
    /// Quantizes one row into place `row`.
    ///
    /// # Safety
    /// No other thread reads or writes that row meanwhile.
    pub(crate) unsafe fn fill(&self, isa: Isa, row: usize, x: &[f32]) {
        assert!(x.len() == self.cols && row < self.rows);
        let (b, v) = (self.blocks, self.blocks * BLOCK);
        // SAFETY: the buffers hold `rows` rows of these lengths, and this one is ours.
        unsafe {
            let values = std::slice::from_raw_parts_mut(self.values.add(row * v), v);
            let scale = std::slice::from_raw_parts_mut(self.scale.add(row * b), b);
            let sum = std::slice::from_raw_parts_mut(self.sum.add(row * b), b);
            let integers = std::slice::from_raw_parts_mut(self.integer_sum.add(row * b), b);
            quantize_row(isa, x, values, scale, sum, integers);
            if self.forms.halves {
                let first = std::slice::from_raw_parts_mut(self.first_sum.add(row * b), b);
                sum_first_halves(isa, values, first);
            }
            let part =
                |start: *mut i8| std::slice::from_raw_parts_mut(start.add(row * 2 * v), 2 * v);
            if self.forms.natural {
                // What is past the vector that a narrow row ends in meets codes that are zero.
                let used = if self.cols < CHUNK { self.cols.next_multiple_of(64) } else { v };
                split_planes(isa, &values[..used], part(self.planes));
            }
            match (self.forms.paired, self.transposed) {
                (false, _) => {}
                (true, true) => split_transposed(isa, self.cols, values, part(self.paired)),
                (true, false) => split_paired(isa, values, part(self.paired)),
            }
        }
    }
}

/// Blocks of a row of `cols` values, padded to whole rounds of lanes.
pub(crate) fn padded_blocks(cols: usize) -> usize {
    cols.div_ceil(CHUNK) * LANE_BLOCKS
}

/// Quantizes a row; what is left of the outputs is padding.
fn quantize_row(
    isa: Isa,
    x: &[f32],
    values: &mut [i16],
    scale: &mut [f32],
    sum: &mut [f32],
    integer_sum: &mut [i32],
) {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only there"))]
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if matches!(isa, Isa::Avx512 | Isa::Amx) {
        // SAFETY: the instruction set was detected before this `Isa` was handed out.
        done = unsafe { fours::quantize_fours(x, values, scale, sum, integer_sum) };
        let one_chunk = (scale.as_mut_array(), sum.as_mut_array(), integer_sum.as_mut_array());
        if let (Some(scale), Some(sum), Some(integer_sum)) = one_chunk
            && done * BLOCK == x.len()
        {
            // SAFETY: as above.
            unsafe { fours::end_after(done, scale, sum, integer_sum) };
            return;
        }
    }
    let (x, values) = (&x[done * BLOCK..], &mut values[done * BLOCK..]);
    let (scale, sum) = (&mut scale[done..], &mut sum[done..]);
    quantize_rest(isa, x, values, scale, sum, &mut integer_sum[done..]);
}

versions! {
    fn quantize_rest(x: &[f32], values: &mut [i16], scale: &mut [f32], sum: &mut [f32], integer_sum: &mut [i32]) = quantize_row_body
}

#[inline(always)]
fn quantize_row_body(
    x: &[f32],
    values: &mut [i16],
    scale: &mut [f32],
    sum: &mut [f32],
    integer_sum: &mut [i32],
) {
    let (blocks, tail) = x.as_chunks::<BLOCK>();
    let (out, _) = values.as_chunks_mut::<BLOCK>();
    let mut index = 0;
    for block in blocks {
        quantize_block(
            block,
            &mut out[index],
            &mut scale[index],
            &mut sum[index],
            &mut integer_sum[index],
        );
        index += 1;
    }
    if !tail.is_empty() {
        let mut block = [0.0; BLOCK];
        block[..tail.len()].copy_from_slice(tail);
        quantize_block(
            &block,
            &mut out[index],
            &mut scale[index],
            &mut sum[index],
            &mut integer_sum[index],
        );
        index += 1;
    }
    for i in index..scale.len() {
        out[i] = [0; BLOCK];
        (scale[i], sum[i], integer_sum[i]) = (0.0, 0.0, 0);
    }
}

#[inline(always)]
fn quantize_block(
    x: &[f32; BLOCK],
    values: &mut [i16; BLOCK],
    scale: &mut f32,
    sum: &mut f32,
    integer_sum: &mut i32,
) {
    let mut lanes = [0.0f32; BLOCK / 2];
    for half in x.as_chunks::<{ BLOCK / 2 }>().0 {
        for (lane, value) in lanes.iter_mut().zip(half) {
            *lane = larger(*lane, value.abs());
        }
    }
    // No lane is a NaN, so any order will do; that of vectors is the fastest.
    let largest = join_lanes(lanes, larger);
    let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
    let mut total = 0i32;
    for i in 0..BLOCK {
        let integer = (x[i] * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
        // A NaN or an infinity in the block may give anything; the clamp keeps it in range.
        let integer = integer.clamp(-MOST, MOST);
        values[i] = integer as i16;
        total += integer;
    }
    *scale = largest / LARGEST;
    *integer_sum = total;
    *sum = total as f32 * *scale;
}

versions! { fn sum_first_halves(values: &[i16], sums: &mut [i32]) = sum_first_halves_body }

#[inline(always)]
fn sum_first_halves_body(values: &[i16], sums: &mut [i32]) {
    for (sum, block) in sums.iter_mut().zip(values.as_chunks::<BLOCK>().0) {
        *sum = 0;
        for &value in &block[..BLOCK / 2] {
            *sum += i32::from(value);
        }
    }
}

/// The signed low byte and the high byte such that value = 256 · high + low.
#[inline(always)]
pub(crate) fn split(value: i16) -> (i8, i8) {
    let low = value as i8;
    let high = ((value as i32 - low as i32) >> 8) as i8;
    (high, low)
}

versions! { fn split_planes(values: &[i16], out: &mut [i8]) = split_planes_body }

#[inline(always)]
fn split_planes_body(values: &[i16], out: &mut [i8]) {
    let (values, _) = values.as_chunks::<64>();
    let (out, _) = out.as_chunks_mut::<128>();
    for (v, o) in values.iter().zip(out) {
        for i in 0..64 {
            let (high, low) = split(v[i]);
            o[i] = high;
            o[64 + i] = low;
        }
    }
}

versions! { fn split_paired(values: &[i16], out: &mut [i8]) = split_paired_body }

#[inline(always)]
fn split_paired_body(values: &[i16], out: &mut [i8]) {
    let (values, _) = values.as_chunks::<128>();
    let (out, _) = out.as_chunks_mut::<256>();
    for (v, o) in values.iter().zip(out) {
        for i in 0..64 {
            let (high, low) = split(v[2 * i]);
            (o[i], o[128 + i]) = (high, low);
            let (high, low) = split(v[2 * i + 1]);
            (o[64 + i], o[192 + i]) = (high, low);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_close_and_planes_agree() {
        let x: Vec<f32> = (0..700).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let mut a = Activations::default();
        a.resize(Isa::Avx512, 1, x.len(), Forms::ALL);
        a.fill(Isa::Scalar, 0, &x);
        let mut two = Activations::default();
        two.resize(Isa::Avx512, 2, x.len(), Forms::ALL);
        two.fill(Isa::Scalar, 0, &x);
        assert_eq!(a.blocks, 32);
        for (i, &want) in x.iter().enumerate() {
            let got = a.values[i] as f32 * a.scale[i / BLOCK];
            assert!((got - want).abs() <= 18.6 / 32_000.0, "{i}: {got} {want}");
        }
        for i in 0..a.values.len() {
            let high = a.planes[i / 64 * 128 + i % 64] as i32;
            let low = a.planes[i / 64 * 128 + 64 + i % 64] as i32;
            assert_eq!(256 * high + low, a.values[i] as i32);
            let at = i / 128 * 256 + i % 128 / 2 + 64 * (i % 2);
            assert_eq!(256 * a.paired[at] as i32 + a.paired[at + 128] as i32, a.values[i] as i32);
            let (block, inside) = (i / BLOCK % LANE_BLOCKS, i % BLOCK);
            let at = i / CHUNK * 2 * CHUNK + inside / 8 * 256 + inside % 2 * 64;
            let at = at + 4 * block + inside % 8 / 2;
            let joined = 256 * two.paired[at] as i32 + two.paired[at + 128] as i32;
            assert_eq!(joined, a.values[i] as i32);
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_numbers() {
        let isa = machine::cpu::isa();
        let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45, f32::MAX, -0.0];
        for cols in [32, 100, 128, 256, 300, 512, 1408] {
            for case in 0..2 + odd.len() {
                let mut x: Vec<f32> =
                    (0..cols).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37e-3).collect();
                match case {
                    0 => {}
                    1 => x.fill(0.0),
                    _ => x[cols / 2] = odd[case - 2],
                }
                let [want, got] = [Isa::Scalar, isa].map(|isa| {
                    let mut a = Activations::default();
                    a.resize(isa, 1, cols, Forms::ALL);
                    a.fill(isa, 0, &x);
                    let floats = [a.row_scale(0), a.row_sum(0)].concat();
                    let bits: Vec<u32> = floats.into_iter().map(f32::to_bits).collect();
                    (a.values, bits, a.integer_sum)
                });
                assert_eq!(want, got, "{cols} columns, case {case}, {isa}");
            }
        }
    }

    #[test]
    fn odd_numbers_do_not_panic() {
        let mut a = Activations::default();
        a.resize(Isa::Scalar, 1, 64, Forms::VALUES);
        for v in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45, f32::MAX, 0.0] {
            let mut x = [1.0; 64];
            x[5] = v;
            a.fill(Isa::Scalar, 0, &x);
            a.fill(machine::cpu::isa(), 0, &x);
        }
    }
}
