//! The rows that go into linear layers, in the form that the layer's products take.

use rayon::prelude::*;

use super::groups::{HALF, HALVES};
use super::panels::QUANT_GROUP;
use crate::aligned::Aligned;
use crate::scratch::Scratch;
use crate::simd::{self, Kernel, Path, Vector, Work, amx};

/// Values that one thread encodes at a time.
const VALUES_PER_TASK: usize = 1 << 14;

/// What the products of a linear layer read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// f32 values: products and sums are f32.
    F32,
    /// Values rounded to bf16: products of pairs, summed in f32.
    Bf16,
    /// Values rounded to 8 bits, each group of 128 with a scale of its own (its greatest magnitude / 127): products and
    /// sums within a group are exact integers, the groups are summed in f32.
    Q8,
}

impl Format {
    /// What makes products of it.
    pub(super) fn path(self) -> Path {
        Path::of(match self {
            Self::F32 => Work::F32Products,
            Self::Bf16 => Work::Bf16Products,
            Self::Q8 => Work::ByteProducts,
        })
    }

    /// Elements of a row in memory, in f32 or in words of 32 bits. Words are padded with zeros to whole steps.
    fn stride(self, width: usize) -> usize {
        match self {
            Self::F32 => width,
            Self::Bf16 => width.next_multiple_of(2 * amx::WORDS) / 2,
            Self::Q8 => width.next_multiple_of(QUANT_GROUP) / 4,
        }
    }
}

/// Where the halves of rows of bf16 stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Halves {
    /// In tiles for [`amx`]: by 16 rows, `[stride / 32][16][32]`. Else row by row.
    pub(super) is_tiled: bool,
    /// Of a row, its padding included.
    pub(super) stride: usize,
}

impl Halves {
    /// The place of a half of a row. Sixteen from a multiple of sixteen on stand together.
    #[inline(always)]
    pub(super) fn at(self, row: usize, column: usize) -> usize {
        const WIDTH: usize = 2 * amx::WORDS;
        match self.is_tiled {
            true => {
                let tile = row / amx::ROWS * amx::ROWS * self.stride + column / WIDTH * amx::ROWS * WIDTH;
                tile + row % amx::ROWS * WIDTH + column % WIDTH
            }
            false => row * self.stride + column,
        }
    }
}

/// Rows `[rows, width]` in a [`Format`]. Keeps its memory from one use to the next.
#[derive(Debug, Default)]
pub struct Activations {
    format: Option<Format>,
    is_tiled: bool,
    rows: usize,
    width: usize,
    /// F32: `[rows][width]`.
    values: Aligned<f32>,
    /// Bf16: `[rows][stride]` pairs, the lower k in the low half, as [`Halves`] says. Q8: `[rows][stride]` quads of bytes, 128 added so that
    /// they are unsigned; what pads a row is 128 there.
    words: Aligned<u32>,
    /// Q8: `[rows][groups]`.
    scales: Aligned<f32>,
    /// Q8: `[rows][groups][8]`: of 16 values each, without the 128 that is added to them.
    sums: Aligned<i32>,
}

/// Rows as a linear layer reads them.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub(super) format: Format,
    /// Of bf16: whether rows stand in tiles.
    pub(super) is_tiled: bool,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) values: &'a [f32],
    pub(super) words: &'a [u32],
    pub(super) scales: &'a [f32],
    pub(super) sums: &'a [i32],
}

impl<'a> Input<'a> {
    /// f32 rows `[rows, width]`, row-major, for a layer that reads [`Format::F32`].
    ///
    /// # Panics
    /// If the length does not fit.
    pub fn f32(x: &'a [f32], rows: usize) -> Self {
        let width = x.len().checked_div(rows).unwrap_or(0);
        assert_eq!(x.len(), rows * width, "{rows} rows of equal length");
        Self { format: Format::F32, is_tiled: false, rows, width, values: x, words: &[], scales: &[], sums: &[] }
    }

    /// Elements between two rows.
    pub(super) fn stride(&self) -> usize {
        self.format.stride(self.width)
    }
}

impl<'a> From<&'a Activations> for Input<'a> {
    fn from(x: &'a Activations) -> Self {
        let format = x.format.unwrap_or(Format::F32);
        let (is_tiled, rows, width) = (x.is_tiled, x.rows, x.width);
        Self { format, is_tiled, rows, width, values: &x.values, words: &x.words, scales: &x.scales, sums: &x.sums }
    }
}

impl Activations {
    /// Makes these the rows that `make` writes, `[rows, width]`; it gets a row's index and its place, with any values in
    /// it. Rows are made in parallel.
    pub fn fill(&mut self, format: Format, rows: usize, width: usize, make: impl Fn(usize, &mut [f32]) + Sync) {
        let path = format.path();
        self.fill_with(path, path == Path::Amx, format, rows, width, make);
    }

    /// [`Activations::fill`] on a given instruction set; `has_tiles` says whether rows of bf16 are for [`amx`].
    fn fill_with(
        &mut self,
        path: Path,
        has_tiles: bool,
        format: Format,
        rows: usize,
        width: usize,
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        self.reshape(format, has_tiles, rows, width);
        if rows == 0 || width == 0 {
            return;
        }
        let stride = format.stride(width);
        let rows_per_task = (VALUES_PER_TASK / width).max(1);
        match format {
            Format::F32 => {
                let chunks = self.values[..rows * width].par_chunks_mut(rows_per_task * width).enumerate();
                chunks.for_each(|(chunk, values)| {
                    for (row, values) in values.chunks_exact_mut(width).enumerate() {
                        make(chunk * rows_per_task + row, values);
                    }
                });
            }
            Format::Bf16 => {
                let halves = Halves { is_tiled: self.is_tiled, stride: 2 * stride };
                // Whole tiles, whether or not there are any.
                let rows_per_task = rows_per_task.next_multiple_of(amx::ROWS);
                let words = &mut self.words[..rows.next_multiple_of(amx::ROWS) * stride];
                words.par_chunks_mut(rows_per_task * stride).enumerate().for_each(|(chunk, words)| {
                    let mut values = Scratch::take(2 * stride);
                    values[width..].fill(0.0);
                    for row in 0..rows_per_task.min(rows - chunk * rows_per_task) {
                        make(chunk * rows_per_task + row, &mut values[..width]);
                        simd::dispatch(path, RoundRow { values: &values, row, halves, words });
                    }
                });
            }
            Format::Q8 => {
                let groups = width.div_ceil(QUANT_GROUP);
                let words = self.words[..rows * stride].par_chunks_mut(rows_per_task * stride);
                let scales = self.scales[..rows * groups].par_chunks_mut(rows_per_task * groups);
                let sums = self.sums[..rows * groups * HALVES].par_chunks_mut(rows_per_task * groups * HALVES);
                words.zip(scales).zip(sums).enumerate().for_each(|(chunk, ((words, scales), sums))| {
                    let mut values = Scratch::take(4 * stride);
                    values[width..].fill(0.0);
                    let rows = words.chunks_exact_mut(stride).zip(scales.chunks_exact_mut(groups));
                    for (row, ((words, scales), sums)) in rows.zip(sums.chunks_exact_mut(groups * HALVES)).enumerate() {
                        make(chunk * rows_per_task + row, &mut values[..width]);
                        simd::dispatch(path, QuantizeRow { values: &values, words, scales, sums });
                    }
                });
            }
        }
    }

    /// Makes these the rows `x`, `[rows, width]`.
    ///
    /// # Panics
    /// If the length does not fit.
    pub fn encode(&mut self, format: Format, x: &[f32], rows: usize) {
        self.encode_on(format.path(), format, x, rows);
    }

    /// [`Activations::encode`] on a given instruction set.
    pub(crate) fn encode_on(&mut self, path: Path, format: Format, x: &[f32], rows: usize) {
        self.encode_with(path, path == Path::Amx, format, x, rows);
    }

    /// `has_tiles` says whether rows of bf16 are for [`amx`].
    pub(super) fn encode_with(&mut self, path: Path, has_tiles: bool, format: Format, x: &[f32], rows: usize) {
        let width = Input::f32(x, rows).width;
        let copy = |row: usize, out: &mut [f32]| out.copy_from_slice(&x[row * width..(row + 1) * width]);
        self.fill_with(path, has_tiles, format, rows, width, copy);
    }

    /// The values of [`Format::F32`] rows, `[rows * width]`.
    pub(super) fn f32_rows(&self) -> &[f32] {
        &self.values
    }

    /// Makes room for `[rows, width]`; the values are any.
    fn reshape(&mut self, format: Format, has_tiles: bool, rows: usize, width: usize) {
        let size = |rows: usize, stride: usize| rows.checked_mul(stride).expect("rows that no memory holds");
        match format {
            Format::F32 => self.values.grow(size(rows, width)),
            // Tiles read whole blocks of rows.
            Format::Bf16 => self.words.grow(size(rows.next_multiple_of(amx::ROWS), format.stride(width))),
            Format::Q8 => {
                self.words.grow(size(rows, format.stride(width)));
                self.scales.grow(size(rows, width.div_ceil(QUANT_GROUP)));
                self.sums.grow(size(rows, width.div_ceil(QUANT_GROUP) * HALVES));
            }
        }
        // Last: if there is no memory, this still says what there was before.
        (self.format, self.is_tiled) = (Some(format), has_tiles && format == Format::Bf16);
        (self.rows, self.width) = (rows, width);
    }

    /// As [`Activations::reshape`] for f32 or bf16, with the place of the values: f32 of rows `width` long, or bf16 of
    /// rows twice the stride long. Padding is zero.
    pub(super) fn reshape_raw(&mut self, format: Format, has_tiles: bool, rows: usize, width: usize) -> RawRows<'_> {
        self.reshape(format, has_tiles, rows, width);
        let stride = format.stride(width);
        match format {
            Format::F32 => RawRows::F32(&mut self.values[..rows * width]),
            Format::Bf16 => {
                let places = Halves { is_tiled: self.is_tiled, stride: 2 * stride };
                let words = &mut self.words[..rows.next_multiple_of(amx::ROWS) * stride];
                // SAFETY: a word is two halves, with the alignment of at least one.
                let halves =
                    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u16>(), 2 * words.len()) };
                for row in 0..rows {
                    (width..2 * stride).for_each(|column| halves[places.at(row, column)] = 0);
                }
                RawRows::Bf16 { halves, places }
            }
            Format::Q8 => unreachable!("groups are quantised from whole rows"),
        }
    }
}

/// The place of rows, for a kernel that writes them in pieces.
pub(super) enum RawRows<'a> {
    F32(&'a mut [f32]),
    Bf16 { halves: &'a mut [u16], places: Halves },
}

/// Rounds a row to bf16, its padding included.
struct RoundRow<'a> {
    values: &'a [f32],
    row: usize,
    halves: Halves,
    words: &'a mut [u32],
}

impl Kernel for RoundRow<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let Self { values, row, halves, words } = self;
        assert_eq!(values.len(), halves.stride);
        assert!(halves.stride == 0 || halves.at(row, halves.stride - 1) < 2 * words.len());
        let to = words.as_mut_ptr().cast::<u16>();
        // SAFETY: rows are padded to a multiple of every vector's length, and no vector is longer than what stands together; on
        // a little-endian machine the first of two halves is the low one.
        unsafe {
            for start in (0..values.len()).step_by(V::LANES) {
                V::load(values.as_ptr().add(start)).store_bf16(to.add(halves.at(row, start)));
            }
        }
    }
}

/// Rounds a row to bytes with a scale a group. A value that is not a number, or infinite, makes its group's scale NaN,
/// so that it reaches the output. The same bits on every path.
struct QuantizeRow<'a> {
    values: &'a [f32],
    words: &'a mut [u32],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Kernel for QuantizeRow<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let Self { values, words, scales, sums } = self;
        let groups = values.chunks_exact(QUANT_GROUP).zip(words.chunks_exact_mut(QUANT_GROUP / 4));
        for ((values, words), scale) in groups.zip(scales) {
            let mut greatest = [0.0_f32; 16];
            let mut differences = [0.0_f32; 16];
            for lanes in values.as_chunks::<16>().0 {
                for ((greatest, difference), value) in greatest.iter_mut().zip(&mut differences).zip(lanes) {
                    *greatest = greatest.max(value.abs());
                    // Zero for numbers, NaN for everything else.
                    *difference += 0.0 * value;
                }
            }
            let greatest = greatest.into_iter().fold(0.0, f32::max);
            let inverse = 127.0 / greatest;
            // Neither of zeros nor of what is too small or not finite.
            let inverse = if inverse.is_finite() { inverse } else { 0.0 };
            *scale = greatest / 127.0 + differences.into_iter().sum::<f32>();
            for (values, word) in values.as_chunks::<4>().0.iter().zip(words) {
                let bytes = values.map(|value| ((value * inverse).round_ties_even() as i32 + 128) as u8);
                *word = u32::from_le_bytes(bytes);
            }
        }
        for (words, sum) in words.chunks_exact(HALF / 4).zip(sums) {
            // Two sums of eight bytes in the halves of a word.
            let pairs = words.iter().fold(0, |sum, word| sum + (word & 0x00ff_00ff) + (word >> 8 & 0x00ff_00ff));
            *sum = (pairs & 0xffff) as i32 + (pairs >> 16) as i32 - 128 * HALF as i32;
        }
    }
}
