//! Where the sums of a panel go.

use crate::activation::{Activation, gelu_of_erf};
use crate::aligned::SharedMut;
use crate::linear::activations::Halves;
use crate::linear::panels::{GATE_COLUMNS, PANEL};
use crate::simd::Vector;

/// The outputs of a product. Rows are `stride` (or `width`) apart.
#[derive(Clone, Copy)]
pub(crate) enum Sink {
    /// `to = sums`
    Store { to: SharedMut, stride: usize },
    /// `to += sums`
    Add { to: SharedMut, stride: usize },
    /// `to = activation(gate) * up`, f32.
    GateF32 { to: SharedMut, width: usize, activation: Activation },
    /// `to = activation(gate) * up`, bf16; only `width` values of a row are outputs.
    GateBf16 { to: SharedMut<u16>, places: Halves, width: usize, activation: Activation },
    /// `to = gelu(sums)`, bf16, with the GELU of encoders.
    GeluBf16 { to: SharedMut<u16>, places: Halves },
}

impl Sink {
    /// Takes one row's sums `[64]` of `panel`; `width` of them are columns of the matrix.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the outputs must be good for the row and the panel, and nobody
    /// else may use them meanwhile.
    #[inline(always)]
    pub(super) unsafe fn put<V: Vector>(self, row: usize, panel: usize, width: usize, sums: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Store { to, stride } => {
                    let to = to.at(row * stride + panel * PANEL);
                    if width == PANEL {
                        for start in (0..PANEL).step_by(V::LANES) {
                            V::load(sums.as_ptr().add(start)).store(to.add(start));
                        }
                    } else {
                        to.copy_from_nonoverlapping(sums.as_ptr(), width);
                    }
                }
                Self::Add { to, stride } => {
                    let to = to.at(row * stride + panel * PANEL);
                    let whole = width - width % V::LANES;
                    for start in (0..whole).step_by(V::LANES) {
                        let to = to.add(start);
                        V::load(to).add(V::load(sums.as_ptr().add(start))).store(to);
                    }
                    for (column, sum) in sums.iter().enumerate().take(width).skip(whole) {
                        *to.add(column) += sum;
                    }
                }
                Self::GateF32 { to, width, activation } => {
                    for (column, pair) in gate_columns(panel, width, sums) {
                        let values = gated::<V>(pair, activation);
                        let len = GATE_COLUMNS.min(width - column);
                        to.at(row * width + column).copy_from_nonoverlapping(values.as_ptr(), len);
                    }
                }
                Self::GateBf16 { to, places, width, activation } => {
                    for (column, pair) in gate_columns(panel, width, sums) {
                        let values = gated::<V>(pair, activation);
                        let mut halves = [0_u16; GATE_COLUMNS];
                        for start in (0..GATE_COLUMNS).step_by(V::LANES) {
                            V::load(values.as_ptr().add(start)).store_bf16(halves.as_mut_ptr().add(start));
                        }
                        let len = GATE_COLUMNS.min(width - column);
                        to.at(places.at(row, column)).copy_from_nonoverlapping(halves.as_ptr(), len);
                    }
                }
                Self::GeluBf16 { to, places } => {
                    // Halves that stand together, in tiles or not.
                    const TOGETHER: usize = 16;
                    for start in (0..width).step_by(TOGETHER) {
                        let mut halves = [0_u16; TOGETHER];
                        for vec in (0..TOGETHER).step_by(V::LANES) {
                            gelu_of_erf(V::load(sums.as_ptr().add(start + vec)))
                                .store_bf16(halves.as_mut_ptr().add(vec));
                        }
                        let len = TOGETHER.min(width - start);
                        let to = to.at(places.at(row, panel * PANEL + start));
                        to.copy_from_nonoverlapping(halves.as_ptr(), len);
                    }
                }
            }
        }
    }
}

/// The gated blocks of a panel that exist: the first column of each, and its sums, gate before up.
#[inline(always)]
fn gate_columns(panel: usize, width: usize, sums: &[f32]) -> impl Iterator<Item = (usize, &[f32])> {
    let first = panel * PANEL / 2;
    let blocks = sums.chunks_exact(2 * GATE_COLUMNS).enumerate();
    blocks.map(move |(block, pair)| (first + block * GATE_COLUMNS, pair)).take_while(move |(column, _)| *column < width)
}

/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
unsafe fn gated<V: Vector>(pair: &[f32], activation: Activation) -> [f32; GATE_COLUMNS] {
    let (gate, up) = pair.split_at(GATE_COLUMNS);
    let mut values = [0.0; GATE_COLUMNS];
    for start in (0..GATE_COLUMNS).step_by(V::LANES) {
        // SAFETY: vectors divide the columns.
        unsafe {
            let (gate, up) = (V::load(gate[start..].as_ptr()), V::load(up[start..].as_ptr()));
            activation.of(gate).mul(up).store(values[start..].as_mut_ptr());
        }
    }
    values
}
