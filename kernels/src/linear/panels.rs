//! Packed weights.

use rayon::prelude::*;

use crate::aligned::Aligned;

/// Output features of a panel: four vectors of 512 bits.
pub(super) const PANEL: usize = 64;

/// The weights of a linear layer in panels of [`PANEL`] output features; within a panel, k is the slow index, so that a
/// kernel reads one stream. The last panel is padded with zeros.
///
/// ```text
/// F32   panel p:  k = 0: w[64p..64p+64][0]   k = 1: w[64p..64p+64][1]   …              f32
/// Bf16  panel p:  k = 0, 1: 64 pairs         k = 2, 3: 64 pairs         …              u32
///       a pair:   w[o][k] in the low half, w[o][k + 1] in the high half; an odd last k has a zero beside it
/// ```
#[derive(Debug)]
pub(super) struct Panels {
    in_features: usize,
    out_features: usize,
    pub(super) values: Values,
}

/// The element type of packed weights.
#[derive(Debug)]
pub(super) enum Values {
    F32(Aligned<f32>),
    Bf16(Aligned<u32>),
}

impl Panels {
    pub(super) fn pack_f32(out_features: usize, in_features: usize, weights: &[f32]) -> Self {
        check(out_features, in_features, weights.len());
        let mut packed = Aligned::zeros(out_features.div_ceil(PANEL) * PANEL * in_features);
        packed.par_chunks_mut(PANEL * in_features).enumerate().for_each(|(panel, packed)| {
            for (column, row) in panel_rows(weights, in_features, panel).enumerate() {
                for (k, weight) in row.iter().enumerate() {
                    packed[k * PANEL + column] = *weight;
                }
            }
        });
        Self { in_features, out_features, values: Values::F32(packed) }
    }

    pub(super) fn pack_bf16(out_features: usize, in_features: usize, weights: &[u16]) -> Self {
        check(out_features, in_features, weights.len());
        let pairs = in_features.div_ceil(2);
        let mut packed = Aligned::zeros(out_features.div_ceil(PANEL) * PANEL * pairs);
        packed.par_chunks_mut(PANEL * pairs).enumerate().for_each(|(panel, packed)| {
            for (column, row) in panel_rows(weights, in_features, panel).enumerate() {
                for (pair, values) in row.chunks(2).enumerate() {
                    let high = values.get(1).copied().unwrap_or(0);
                    packed[pair * PANEL + column] = u32::from(high) << 16 | u32::from(values[0]);
                }
            }
        });
        Self { in_features, out_features, values: Values::Bf16(packed) }
    }

    pub(super) fn in_features(&self) -> usize {
        self.in_features
    }

    pub(super) fn out_features(&self) -> usize {
        self.out_features
    }

    /// The number of panels.
    pub(super) fn count(&self) -> usize {
        self.out_features.div_ceil(PANEL)
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        4 * match &self.values {
            Values::F32(values) => values.len(),
            Values::Bf16(pairs) => pairs.len(),
        }
    }

    /// Weight row `row`, widened, to `out` `[in_features]`.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.out_features, "weight row {row} of {}", self.out_features);
        assert_eq!(out.len(), self.in_features, "a weight row's length");
        let (panel, column) = (row / PANEL, row % PANEL);
        match &self.values {
            Values::F32(values) => {
                let panel = &values[panel * PANEL * self.in_features..];
                for (k, out) in out.iter_mut().enumerate() {
                    *out = panel[k * PANEL + column];
                }
            }
            Values::Bf16(pairs) => {
                let panel = &pairs[panel * PANEL * self.in_features.div_ceil(2)..];
                for (pair, out) in out.chunks_mut(2).enumerate() {
                    let bits = panel[pair * PANEL + column];
                    out[0] = f32::from_bits(bits << 16);
                    if let Some(out) = out.get_mut(1) {
                        *out = f32::from_bits(bits & 0xffff_0000);
                    }
                }
            }
        }
    }
}

fn check(out_features: usize, in_features: usize, len: usize) {
    assert!(in_features > 0, "a linear layer needs inputs");
    assert_eq!(len, out_features * in_features, "weights [{out_features}, {in_features}]");
}

/// The weight rows of one panel; the last panel may have fewer than [`PANEL`].
fn panel_rows<T>(weights: &[T], in_features: usize, panel: usize) -> std::slice::ChunksExact<'_, T> {
    let rows = weights.len() / in_features;
    weights[panel * PANEL * in_features..rows.min((panel + 1) * PANEL) * in_features].chunks_exact(in_features)
}
