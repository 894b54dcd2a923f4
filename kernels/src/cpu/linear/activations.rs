//! The rows that go into linear layers, in the form that the layer's products take.

use super::groups::{GROUP, HALF, HALVES};
use super::panels::QUANT_GROUP;
use crate::aligned::Aligned;
use crate::crew;
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
    /// The same with groups of 32: those of the weights that it is multiplied with.
    Q8By32,
}

impl Format {
    /// What makes products of it.
    pub(super) fn path(self) -> Path {
        Path::of(match self {
            Self::F32 => Work::F32Products,
            Self::Bf16 => Work::Bf16Products,
            Self::Q8 | Self::Q8By32 => Work::ByteProducts,
        })
    }

    /// Values that share a scale; zero where there are no scales.
    const fn group(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Q8 => QUANT_GROUP,
            Self::Q8By32 => GROUP,
        }
    }

    /// Whether values are rounded to 8 bits: whole groups at a time.
    pub(super) const fn is_quantized(self) -> bool {
        self.group() > 0
    }

    /// Scales of a row, its padding included.
    pub(super) fn scales(self, width: usize) -> usize {
        width.next_multiple_of(QUANT_GROUP).checked_div(self.group()).unwrap_or(0)
    }

    /// Elements of a row in memory, in f32 or in words of 32 bits. Words are padded with zeros to whole steps.
    fn stride(self, width: usize) -> usize {
        match self {
            Self::F32 => width,
            Self::Bf16 => width.next_multiple_of(2 * amx::WORDS) / 2,
            Self::Q8 | Self::Q8By32 => width.next_multiple_of(QUANT_GROUP) / 4,
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
    /// Q8: `[rows][blocks][8]`: of 16 bytes each, without the 128 that is added to them.
    sums: Aligned<i32>,
    /// Q8: `[rows][groups]`: of a group's values, as rounded.
    group_sums: Aligned<f32>,
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
    pub(super) group_sums: &'a [f32],
}

impl<'a> Input<'a> {
    /// f32 rows `[rows, width]`, row-major, for a layer that reads [`Format::F32`].
    ///
    /// # Panics
    /// If the length does not fit.
    pub fn f32(x: &'a [f32], rows: usize) -> Self {
        let width = x.len().checked_div(rows).unwrap_or(0);
        assert_eq!(x.len(), rows * width, "{rows} rows of equal length");
        let (format, is_tiled) = (Format::F32, false);
        Self { format, is_tiled, rows, width, values: x, words: &[], scales: &[], sums: &[], group_sums: &[] }
    }

    /// Elements between two rows.
    pub(super) fn stride(&self) -> usize {
        self.format.stride(self.width)
    }
}

impl<'a> From<&'a Activations> for Input<'a> {
    fn from(x: &'a Activations) -> Self {
        let format = x.format.unwrap_or(Format::F32);
        Self {
            format,
            is_tiled: x.is_tiled,
            rows: x.rows,
            width: x.width,
            values: &x.values,
            words: &x.words,
            scales: &x.scales,
            sums: &x.sums,
            group_sums: &x.group_sums,
        }
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
                let chunks = self.values[..rows * width].chunks_mut(rows_per_task * width);
                crew::for_each_part(chunks, |chunk, values| {
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
                crew::for_each_part(words.chunks_mut(rows_per_task * stride), |chunk, words| {
                    let mut values = Scratch::take(2 * stride);
                    values[width..].fill(0.0);
                    for row in 0..rows_per_task.min(rows - chunk * rows_per_task) {
                        make(chunk * rows_per_task + row, &mut values[..width]);
                        simd::dispatch(path, RoundRow { values: &values, row, halves, words });
                    }
                });
            }
            Format::Q8 | Format::Q8By32 => self.quantize(path, format, rows_per_task, make),
        }
    }

    /// [`Activations::fill_with`] of 8 bits, once there is room.
    fn quantize(&mut self, path: Path, format: Format, rows_per_task: usize, make: impl Fn(usize, &mut [f32]) + Sync) {
        let (rows, width) = (self.rows, self.width);
        let (stride, groups, halves) = (format.stride(width), format.scales(width), half_sums(width));
        let words = self.words[..rows * stride].chunks_mut(rows_per_task * stride);
        let scales = self.scales[..rows * groups].chunks_mut(rows_per_task * groups);
        let group_sums = self.group_sums[..rows * groups].chunks_mut(rows_per_task * groups);
        let sums = self.sums[..rows * halves].chunks_mut(rows_per_task * halves);
        let tasks = words.zip(scales).zip(group_sums.zip(sums));
        crew::for_each_part(tasks, |chunk, ((words, scales), (group_sums, sums))| {
            let mut values = Scratch::take(4 * stride);
            values[width..].fill(0.0);
            for (row, words) in words.chunks_exact_mut(stride).enumerate() {
                make(chunk * rows_per_task + row, &mut values[..width]);
                let (scales, group_sums) =
                    (&mut scales[row * groups..][..groups], &mut group_sums[row * groups..][..groups]);
                let sums = &mut sums[row * halves..][..halves];
                let group = format.group();
                simd::dispatch(path, QuantizeRow { values: &values, group, words, scales, group_sums, sums });
            }
        });
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
            Format::Q8 | Format::Q8By32 => {
                self.words.grow(size(rows, format.stride(width)));
                self.scales.grow(size(rows, format.scales(width)));
                self.group_sums.grow(size(rows, format.scales(width)));
                self.sums.grow(size(rows, half_sums(width)));
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
            Format::Q8 | Format::Q8By32 => unreachable!("groups are quantised from whole rows"),
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

/// Sums of 16 bytes of a row, its padding included.
pub(super) const fn half_sums(width: usize) -> usize {
    width.div_ceil(QUANT_GROUP) * HALVES
}

/// Rounds a row to bytes with a scale a group. A value that is not a number, or infinite, makes its group's scale NaN,
/// so that it reaches the output. The same bits on every path.
struct QuantizeRow<'a> {
    values: &'a [f32],
    /// Values that share a scale.
    group: usize,
    words: &'a mut [u32],
    scales: &'a mut [f32],
    group_sums: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Kernel for QuantizeRow<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let Self { values, group, words, scales, group_sums, sums } = self;
        let groups = values.chunks_exact(group).zip(words.chunks_exact_mut(group / 4));
        let groups = groups.zip(sums.chunks_exact_mut(group / HALF));
        for (((values, words), sums), (scale, group_sum)) in groups.zip(scales.iter_mut().zip(group_sums)) {
            let greatest = greatest(values);
            let inverse = 127.0 / greatest;
            // Neither of zeros nor of what is too small or not finite.
            let inverse = if inverse.is_finite() { inverse } else { 0.0 };
            *scale = greatest / 127.0;
            let mut total = 0;
            let halves = values.as_chunks::<HALF>().0.iter().zip(words.as_chunks_mut::<{ HALF / 4 }>().0);
            for ((values, words), sum) in halves.zip(sums) {
                // The low byte of the sum is the nearest integer's, ties to even.
                let bytes = values.map(|value| (value * inverse + INTEGER_STEPS).to_bits() as u8 ^ 0x80);
                words.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(word, of)| *word = u32::from_le_bytes(*of));
                *sum = bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>() as i32 - 128 * HALF as i32;
                total += *sum;
            }
            *group_sum = total as f32 * *scale;
        }
    }
}

/// 1.5 * 2^23: what lies around it in f32 are integers.
const INTEGER_STEPS: f32 = 12_582_912.0;

/// The greatest magnitude; NaN if a value is not finite.
#[inline(always)]
fn greatest(values: &[f32]) -> f32 {
    // As bits: they are in the order of magnitudes, what is not finite last, and their greatest is found in any order.
    let mut greatest = [0_u32; 16];
    for lanes in values.as_chunks::<16>().0 {
        greatest.iter_mut().zip(lanes).for_each(|(most, value)| *most = (*most).max(value.to_bits() & 0x7fff_ffff));
    }
    let greatest = greatest.into_iter().fold(0, u32::max);
    if greatest < f32::INFINITY.to_bits() { f32::from_bits(greatest) } else { f32::NAN }
}
