//! Linear layers: `out = x W^T + bias`, with the weights packed once into panels.
//!
//! What every path MUST keep is **row invariance**: an output element's sum takes the products in the same order
//! whatever stands around its row, so that its bits do not depend on which other rows are in the batch, on blocking, or
//! on the number of threads.

mod activations;
mod groups;
mod panels;
mod product;

use std::borrow::Cow;

pub use activations::{Activations, Format, Input};
pub use groups::{Bits, FillRow, GroupRow, GroupedRows, Grouping, Scales};

use crate::activation::Activation;
use crate::aligned::{Aligned, SharedMut};
use crate::dtype::bf16_bits;
use crate::simd::{self, Kernel, Path, Vector, amx};
use activations::RawRows;
pub(crate) use groups::ROUNDED;
pub use panels::round_to_q8;
pub(crate) use panels::{GATE_COLUMNS, grouped_bytes, packed_bytes};
use panels::{PANEL, Panels};
use product::{Sink, Task};

/// Rows that one task takes through all its panels: their sums for one panel stay in the L2 cache.
const ROW_BLOCK: usize = 512;
/// Products below which a second thread costs more than it saves.
const PRODUCTS_PER_TASK: usize = 1 << 17;

/// Weights of a linear layer as a checkpoint has them, `[out_features, in_features]`, row-major.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    F32(&'a [f32]),
    /// The upper halves of f32 bits.
    Bf16(&'a [u16]),
}

impl Weights<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(bits) => bits.len(),
        }
    }
}

/// How a layer's weights are kept, and what its products are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// The weights as they are; f32 products. Loses nothing: bf16 weights are widened on the fly.
    F32,
    /// Weights and activations in bf16, f32 sums.
    Bf16,
    /// Weights in 8 bits with a scale for each output feature, activations in 8 bits with a scale for each group of 128;
    /// sums of a group are exact, those over groups in f32.
    Q8,
    /// Weights in 4 bits with a step and a least value for each group of 32 inputs, activations as in [`Precision::Q8`].
    Q4,
}

/// A linear layer with packed weights.
#[derive(Debug)]
pub struct Linear {
    panels: Panels,
    format: Format,
    /// Padded with zeros to whole panels; absent where the layer has none.
    bias: Option<Aligned<f32>>,
    /// Of columns that are those of gate and up in turn, see [`Linear::gate_up`].
    gate: Option<Activation>,
}

/// Where a layer's outputs go, `[rows, out_features]`.
pub enum Output<'a> {
    /// `out = …`
    Store(&'a mut [f32]),
    /// `out += …`
    Add(&'a mut [f32]),
}

impl Linear {
    /// Packs weights and an optional bias `[out_features]`.
    ///
    /// # Panics
    /// If the lengths do not fit the shape, or `in_features` is zero.
    pub fn new(
        out_features: usize,
        in_features: usize,
        weights: Weights<'_>,
        bias: Option<&[f32]>,
        precision: Precision,
    ) -> Self {
        check(out_features, in_features, weights, bias);
        let panels = pack(out_features, in_features, precision, |output| Some((weights, output)));
        let bias = bias.map(|bias| padded(bias.iter().copied()));
        Self { panels, format: format(precision), bias, gate: None }
    }

    /// [`Linear::new`] of rows that are in groups already, and stay as they are. Activations are in 8 bits, with a scale for each group too.
    ///
    /// # Panics
    /// If the bias is of another length, or `in_features` is zero.
    pub fn grouped(out_features: usize, in_features: usize, rows: &GroupedRows<'_>, bias: Option<&[f32]>) -> Self {
        check_bias(out_features, in_features, bias);
        let panels = Panels::pack_groups(out_features, in_features, rows.grouping, |output, row| {
            (rows.fill)(output, row);
            true
        });
        let bias = bias.map(|bias| padded(bias.iter().copied()));
        Self { panels, format: rows.grouping.format(), bias, gate: None }
    }

    /// Two layers of one shape, the gate and the up projection of a gated feed-forward part, packed so that
    /// [`Linear::forward_gated`] has both sums of a column at hand.
    ///
    /// # Panics
    /// As [`Linear::new`].
    pub fn gate_up(
        out_features: usize,
        in_features: usize,
        weights: [Weights<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        precision: Precision,
        activation: Activation,
    ) -> Self {
        for (index, weights) in weights.into_iter().enumerate() {
            check(out_features, in_features, weights, bias.map(|bias| bias[index]));
        }
        let (columns, place) = (gate_columns(out_features), gate_place(out_features));
        let panels = pack(columns, in_features, precision, |column| {
            let (layer, output) = place(column)?;
            Some((weights[layer], output))
        });
        let bias = bias.map(|bias| gate_bias(out_features, bias));
        Self { panels, format: format(precision), bias, gate: Some(activation) }
    }

    /// [`Linear::gate_up`] of rows that are in groups already, and stay as they are. Activations are as for [`Linear::grouped`].
    ///
    /// # Panics
    /// If the two are not grouped alike, and as [`Linear::grouped`].
    pub fn grouped_gate_up(
        out_features: usize,
        in_features: usize,
        rows: [&GroupedRows<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        activation: Activation,
    ) -> Self {
        (0..2).for_each(|index| check_bias(out_features, in_features, bias.map(|bias| bias[index])));
        let grouping = rows[0].grouping;
        assert_eq!(grouping, rows[1].grouping, "gate and up are grouped alike");
        let (columns, place) = (gate_columns(out_features), gate_place(out_features));
        let panels = Panels::pack_groups(columns, in_features, grouping, |column, row| {
            let found = place(column);
            found.into_iter().for_each(|(layer, output)| (rows[layer].fill)(output, row));
            found.is_some()
        });
        let bias = bias.map(|bias| gate_bias(out_features, bias));
        Self { panels, format: grouping.format(), bias, gate: Some(activation) }
    }

    /// Values of an input row.
    pub fn in_features(&self) -> usize {
        self.panels.in_features()
    }

    /// Values of an output row; of a [gated](Linear::gate_up) layer the packed columns of both.
    pub fn out_features(&self) -> usize {
        self.panels.out_features()
    }

    /// The form that the layer's inputs must have.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes of the packed weights.
    pub fn size_in_bytes(&self) -> usize {
        self.panels.size_in_bytes() + self.bias.as_ref().map_or(0, |bias| bias.len() * 4)
    }

    /// Writes weight row `row`, widened to f32, to `out` `[in_features]`: the embedding of token `row`, where the
    /// output head and the embedding table are the same tensor.
    ///
    /// # Panics
    /// If there is no such row or `out` is of another length.
    pub fn weight_row(&self, row: usize, out: &mut [f32]) {
        self.panels.row(row, out);
    }

    /// The bias of output `row`.
    #[cfg(test)]
    pub(crate) fn bias(&self, row: usize) -> f32 {
        self.bias.as_ref().map_or(0.0, |bias| bias[row])
    }

    /// `x W^T + bias` to `out`.
    ///
    /// # Panics
    /// If a shape or the input's format does not fit.
    pub fn forward<'a>(&self, x: impl Into<Input<'a>>, out: Output<'_>) {
        self.forward_on(self.format.path(), x.into(), out);
    }

    /// [`Linear::forward`] on a given instruction set.
    pub(crate) fn forward_on(&self, path: Path, x: Input<'_>, out: Output<'_>) {
        assert!(self.gate.is_none(), "a gated layer has no plain outputs");
        self.forward_columns_on(path, x, out);
    }

    /// [`Linear::forward`]; of a [gated](Linear::gate_up) layer the sums of both, in the order in which [`Linear::gate_row`] reads them.
    pub(crate) fn forward_columns(&self, x: Input<'_>, out: Output<'_>) {
        self.forward_columns_on(self.format.path(), x, out);
    }

    fn forward_columns_on(&self, path: Path, x: Input<'_>, out: Output<'_>) {
        let (values, sink): (_, fn(_, _) -> _) = match out {
            Output::Store(values) => (values, |to, stride| Sink::Store { to, stride }),
            Output::Add(values) => (values, |to, stride| Sink::Add { to, stride }),
        };
        assert_eq!(Some(values.len()), x.rows.checked_mul(self.out_features()), "output of {} rows", x.rows);
        self.run(path, path == Path::Amx, x, sink(SharedMut::new(values), self.out_features()));
    }

    /// `activation(gate) * up` of a row of [`Linear::forward_columns`].
    ///
    /// # Panics
    /// If the layer is not gated, or a length does not fit.
    pub(crate) fn gate_row(&self, columns: &[f32], out: &mut [f32]) {
        let activation = self.gate.expect("a plain layer has no gate");
        assert_eq!(columns.len(), gate_columns(out.len()), "columns of a row");
        simd::dispatch(Path::best(), GateRow { columns, out, activation });
    }

    /// `activation(x G^T) * (x U^T)` of a [gated](Linear::gate_up) layer ("GLU Variants Improve Transformer", equation 6),
    /// as rows `[rows, width]` in the format that the next layer reads.
    ///
    /// # Panics
    /// If a shape or the input's format does not fit.
    pub fn forward_gated<'a>(
        &self,
        x: impl Into<Input<'a>>,
        format: Format,
        width: usize,
        out: &mut Activations,
        spare: &mut Activations,
    ) {
        self.forward_gated_on([self.format.path(), format.path()], x.into(), format, width, out, spare);
    }

    /// [`Linear::forward_gated`] on given instruction sets: that of these products, and that of those which read `out`.
    pub(crate) fn forward_gated_on(
        &self,
        [path, next]: [Path; 2],
        x: Input<'_>,
        format: Format,
        width: usize,
        out: &mut Activations,
        spare: &mut Activations,
    ) {
        let activation = self.gate.expect("a plain layer has no gate");
        assert_eq!(2 * width.next_multiple_of(GATE_COLUMNS), self.out_features(), "width of the gated outputs");
        let (rows, has_tiles) = (x.rows, next == Path::Amx);
        // A group of 8-bit values shares a scale, which is not known before the whole group is.
        let direct = if format.is_quantized() { &mut *spare } else { &mut *out };
        let kept = if format.is_quantized() { Format::F32 } else { format };
        let sink = match direct.reshape_raw(kept, has_tiles, rows, width) {
            RawRows::F32(values) => Sink::GateF32 { to: SharedMut::new(values), width, activation },
            RawRows::Bf16 { halves, places } => {
                Sink::GateBf16 { to: SharedMut::new(halves), places, width, activation }
            }
        };
        self.run(path, path == Path::Amx, x, sink);
        if format.is_quantized() {
            out.encode_on(next, format, &spare.f32_rows()[..rows * width], rows);
        }
    }

    /// `gelu(x W^T + bias)` with the GELU of encoders, as rows of bf16.
    ///
    /// # Panics
    /// If a shape or the input's format does not fit.
    pub(crate) fn forward_gelu(&self, x: Input<'_>, out: &mut Activations) {
        self.forward_gelu_on([self.format.path(), Format::Bf16.path()], x, out);
    }

    /// [`Linear::forward_gelu`] on given instruction sets: that of these products, and that of those which read `out`.
    fn forward_gelu_on(&self, [path, next]: [Path; 2], x: Input<'_>, out: &mut Activations) {
        assert!(self.gate.is_none(), "a gated layer has an activation of its own");
        let raw = out.reshape_raw(Format::Bf16, next == Path::Amx, x.rows, self.out_features());
        let RawRows::Bf16 { halves, places } = raw else { unreachable!("rows of bf16 were asked for") };
        self.run(path, path == Path::Amx, x, Sink::GeluBf16 { to: SharedMut::new(halves), places });
    }

    /// `has_tiles` says whether products of bf16 and of bytes are made by [`amx`].
    fn run(&self, path: Path, has_tiles: bool, x: Input<'_>, sink: Sink) {
        assert_eq!(x.format, self.format, "the input's format");
        assert_eq!(x.is_tiled, has_tiles && x.format == Format::Bf16, "rows for tiles, and tiles for them");
        assert!(x.rows == 0 || x.width == self.in_features(), "rows of {} for {}", x.width, self.in_features());
        let rows = x.rows;
        let (row_blocks, panel_groups) = self.split(rows);
        // Blocks of rows begin where tiles do.
        let height = rows.div_ceil(row_blocks.max(1)).next_multiple_of(amx::ROWS);
        self.panels.shares().run_groups(row_blocks, panel_groups, |row_block, group| {
            simd::dispatch(
                path,
                Task {
                    panels: &self.panels,
                    bias: self.bias.as_deref(),
                    x,
                    rows: rows.min(row_block * height)..rows.min((row_block + 1) * height),
                    group,
                    has_tiles,
                    // Tasks write disjoint places: each has its own rows or its own panels.
                    sink,
                },
            );
        });
    }

    /// How many blocks of rows by groups of panels the work is cut into. Decides speed only, never bits.
    fn split(&self, rows: usize) -> (usize, usize) {
        let row_blocks = rows.div_ceil(ROW_BLOCK);
        let products = rows * self.in_features() * self.out_features();
        let wanted = (4 * rayon::current_num_threads()).min(products.div_ceil(PRODUCTS_PER_TASK));
        let panel_groups = wanted.div_ceil(row_blocks.max(1)).clamp(1, self.panels.count().max(1));
        (row_blocks, panel_groups)
    }
}

/// See [`Linear::gate_row`].
struct GateRow<'a> {
    columns: &'a [f32],
    out: &'a mut [f32],
    activation: Activation,
}

impl Kernel for GateRow<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let blocks = self.columns.as_chunks::<{ 2 * GATE_COLUMNS }>().0;
        for (block, out) in blocks.iter().zip(self.out.chunks_mut(GATE_COLUMNS)) {
            let mut values = [0.0; GATE_COLUMNS];
            for start in (0..GATE_COLUMNS).step_by(V::LANES) {
                // SAFETY: the caller's promise about the machine; a block is whole vectors of gates, then as many of ups.
                unsafe {
                    let gate = V::load(block.as_ptr().add(start));
                    let up = V::load(block.as_ptr().add(GATE_COLUMNS + start));
                    self.activation.of(gate).mul(up).store(values.as_mut_ptr().add(start));
                }
            }
            out.copy_from_slice(&values[..out.len()]);
        }
    }
}

fn format(precision: Precision) -> Format {
    match precision {
        Precision::F32 => Format::F32,
        Precision::Bf16 => Format::Bf16,
        Precision::Q8 | Precision::Q4 => Format::Q8,
    }
}

/// Columns of two layers that are packed together.
fn gate_columns(out_features: usize) -> usize {
    2 * out_features.next_multiple_of(GATE_COLUMNS)
}

/// Which of the two layers, and which of its outputs, a column has.
fn gate_place(out_features: usize) -> impl Fn(usize) -> Option<(usize, usize)> {
    move |column| {
        let (block, within) = (column / (2 * GATE_COLUMNS), column % (2 * GATE_COLUMNS));
        let output = block * GATE_COLUMNS + within % GATE_COLUMNS;
        (output < out_features).then_some((within / GATE_COLUMNS, output))
    }
}

fn gate_bias(out_features: usize, bias: [&[f32]; 2]) -> Aligned<f32> {
    let place = gate_place(out_features);
    let value = |column| place(column).map_or(0.0, |(layer, output): (usize, usize)| bias[layer][output]);
    padded((0..gate_columns(out_features)).map(value))
}

/// Packs columns, each an output of some weights.
fn pack<'a>(
    columns: usize,
    in_features: usize,
    precision: Precision,
    source: impl Fn(usize) -> Option<(Weights<'a>, usize)> + Sync,
) -> Panels {
    let range = |output: usize| output * in_features..(output + 1) * in_features;
    let f32 = |column| {
        let (weights, output) = source(column)?;
        Some(match weights {
            Weights::F32(values) => Cow::Borrowed(&values[range(output)]),
            Weights::Bf16(bits) => {
                bits[range(output)].iter().map(|bits| f32::from_bits(u32::from(*bits) << 16)).collect()
            }
        })
    };
    let bf16 = |column| {
        let (weights, output) = source(column)?;
        Some(match weights {
            Weights::F32(values) => values[range(output)].iter().map(|value| bf16_bits(*value)).collect(),
            Weights::Bf16(bits) => Cow::Borrowed(&bits[range(output)]),
        })
    };
    // Of two layers that are packed together one may be f32, and must not be rounded because the other is bf16.
    let is_bf16 = (0..columns).filter_map(&source).all(|(weights, _)| matches!(weights, Weights::Bf16(_)));
    match precision {
        Precision::Q8 => Panels::pack_q8(columns, in_features, f32),
        Precision::Q4 => Panels::pack_groups(columns, in_features, groups::OWN, |column, row| {
            let weights = f32(column);
            weights.iter().for_each(|weights| row.round_to_four(weights));
            weights.is_some()
        }),
        Precision::F32 if !is_bf16 => Panels::pack_f32(columns, in_features, f32),
        Precision::F32 | Precision::Bf16 => Panels::pack_bf16(columns, in_features, bf16),
    }
}

fn padded(bias: impl ExactSizeIterator<Item = f32>) -> Aligned<f32> {
    let mut padded = Aligned::zeros(bias.len().next_multiple_of(PANEL));
    padded.iter_mut().zip(bias).for_each(|(to, from)| *to = from);
    padded
}

fn check(out_features: usize, in_features: usize, weights: Weights<'_>, bias: Option<&[f32]>) {
    check_bias(out_features, in_features, bias);
    assert_eq!(weights.len(), out_features * in_features, "weights [{out_features}, {in_features}]");
}

fn check_bias(out_features: usize, in_features: usize, bias: Option<&[f32]>) {
    assert!(in_features > 0, "a linear layer needs inputs");
    assert!(bias.is_none_or(|bias| bias.len() == out_features), "a bias has one value an output feature");
}

#[cfg(test)]
mod tests;
