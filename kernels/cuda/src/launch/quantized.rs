//! Kernels for weights of 8 bits.

use super::super::session::Argument::{F32, Pointer as P, U32};
use super::super::session::Launch;
use super::experts::{Groups, Mix, grouped};
use super::{Element, ProductTile, of, product};

/// A matrix or a table of 8 bits; pointers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Q8 {
    pub(crate) lines: u64,
    pub(crate) scales: u64,
}

impl ProductTile {
    /// That of a product of bf16 with weights of 8 bits.
    pub(crate) fn of_q8(rows: u32) -> Self {
        Self { weights: "q8", ..Self::of(Element::Bf16, rows) }
    }
}

impl Mix {
    /// As [`Mix::tile`], of weights of 8 bits.
    pub(crate) fn tile_q8(self) -> ProductTile {
        ProductTile::of_q8(self.rows_of_expert())
    }
}

/// As [`gemm`](super::gemm).
pub(crate) fn gemm_q8(
    (out, x, bias): (u64, u64, u64),
    w: Q8,
    shape @ (rows, ..): (u32, u32, u32),
    adds: bool,
) -> Launch {
    product(ProductTile::of_q8(rows), &[out, x, w.lines, w.scales, bias], shape, adds)
}

/// As [`expert_gemm`](super::experts::expert_gemm).
pub(crate) fn expert_gemm_q8(
    tile: ProductTile,
    (out, x, list): (u64, u64, u64),
    (w, bias): (Q8, u64),
    groups: Groups,
    mix: Mix,
    shape: (u32, u32),
) -> Launch {
    grouped(tile, &[out, x, list, w.lines, w.scales, bias], groups, mix, shape)
}

/// As [`embed`](super::embed).
pub(crate) fn embed_q8(
    (out, table, tokens): (u64, Q8, u64),
    (positions, position_table, skipped): (u64, u64, u32),
    scale: f32,
    (rows, hidden): (u32, u32),
) -> Launch {
    let pointers = [out, table.lines, table.scales, tokens, positions, position_table].map(P);
    let arguments = [U32(skipped), F32(scale), U32(rows), U32(hidden)];
    of("embed_q8", [rows, 1, 1], 256, 0, pointers.into_iter().chain(arguments).collect())
}
