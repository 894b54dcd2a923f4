//! Kernels of mixtures of experts.

use super::super::session::Argument::{Pointer as P, U32};
use super::super::session::Launch;
use super::{Element, ProductTile, by_value, of};

/// The most experts that `route` takes.
pub(crate) const MOST_EXPERTS: usize = 4096;

/// How many rows, experts, and experts a row goes through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) rows: u32,
    pub(crate) experts: u32,
    pub(crate) per_row: u32,
}

/// The tables that group choices by expert; pointers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Groups {
    /// `[experts]`
    pub(crate) counts: u64,
    /// `[experts + 1]`
    pub(crate) starts: u64,
    /// `[experts + 1]`
    pub(crate) tile_starts: u64,
    /// `[choices]`, of each place.
    pub(crate) rows: u64,
    /// `[choices]`, of each choice.
    pub(crate) places: u64,
}

impl Mix {
    pub(crate) fn choices(self) -> u32 {
        self.rows * self.per_row
    }

    /// Those that an expert has on average.
    pub(super) fn rows_of_expert(self) -> u32 {
        self.choices().div_ceil(self.experts)
    }

    /// The tile of products of as many rows as an expert has.
    pub(crate) fn tile(self, element: Element) -> ProductTile {
        ProductTile::of(element, self.rows_of_expert())
    }

    /// The most tiles that there may be: each expert that has rows has a last tile, of one row or more.
    fn most_tiles(self, tile_rows: u32) -> u32 {
        let used = self.choices().min(self.experts);
        (self.choices() + used * (tile_rows - 1)) / tile_rows
    }
}

/// Each row's experts and their weights, `[rows, per_row]`, of scores `[rows, experts]`.
pub(crate) fn route((chosen, weights): (u64, u64), scores: u64, mix: Mix, is_normalized: bool) -> Launch {
    let shape = [U32(mix.rows), U32(mix.experts), U32(mix.per_row), U32(is_normalized.into())];
    let arguments = [P(chosen), P(weights), P(scores)].into_iter().chain(shape).collect();
    of("route", [mix.rows, 1, 1], 128, 0, arguments)
}

/// Groups choices by expert.
pub(crate) fn group_choices(to: Groups, chosen: u64, mix: Mix, tile: ProductTile) -> [Launch; 2] {
    let grid = [mix.experts, 1, 1];
    let counting = vec![P(to.counts), P(chosen), U32(mix.choices()), U32(mix.experts)];
    let grouping = vec![
        P(to.starts),
        P(to.tile_starts),
        P(to.rows),
        P(to.places),
        P(to.counts),
        P(chosen),
        U32(mix.choices()),
        U32(mix.experts),
        U32(mix.per_row),
        U32(tile.rows),
    ];
    [of("count_choices", grid, 256, 0, counting), of("group_choices", grid, 256, 0, grouping)]
}

/// Products of each expert's rows with its own matrix, by place: `[choices, outputs]`. `list` says which row of `x` is at a place; it and
/// `bias` may be null. `shape` is that of an expert's matrix.
pub(crate) fn expert_gemm(
    tile: ProductTile,
    (out, x, list): (u64, u64, u64),
    (w, bias): (u64, u64),
    groups: Groups,
    mix: Mix,
    shape: (u32, u32),
) -> Launch {
    grouped(tile, &[out, x, list, w, bias], groups, mix, shape)
}

/// `pointers` are those that come first.
pub(super) fn grouped(
    tile: ProductTile,
    pointers: &[u64],
    groups: Groups,
    mix: Mix,
    (outputs, inputs): (u32, u32),
) -> Launch {
    let pointers = pointers.iter().chain([&groups.starts, &groups.tile_starts]).map(|at| P(*at));
    let arguments = pointers.chain([U32(mix.experts), U32(outputs), U32(inputs)]).collect();
    tile.launch("expert_gemm", mix.most_tiles(tile.rows), outputs, arguments)
}

/// What a row's experts made of it, times their weights.
pub(crate) fn combine_experts(out: u64, from: u64, weights: u64, places: u64, mix: Mix, width: u32) -> Launch {
    let arguments = vec![P(out), P(from), P(weights), P(places), U32(mix.rows), U32(width), U32(mix.per_row)];
    by_value("combine_experts", u64::from(mix.rows) * u64::from(width), arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_tiles_than_the_grid_has() {
        let most = |rows, experts, per_row, tile| Mix { rows, experts, per_row }.most_tiles(tile);
        // One row: a tile for each of its experts.
        assert_eq!((most(1, 128, 8, 16), most(1, 8, 2, 128), most(1, 1, 1, 64)), (8, 2, 1));
        // All but a few rows to one expert, one to each other: 1 + ... + 1 + as many as are full, and a last one.
        assert_eq!((most(100, 4, 1, 16), most(2048, 8, 2, 128)), (10, 39));
    }

    #[test]
    fn a_tile_has_as_many_rows_as_experts_have() {
        let rows = |rows, element| Mix { rows, experts: 8, per_row: 2 }.tile(element).rows;
        assert_eq!([1, 64, 65, 256, 257].map(|count| rows(count, Element::Bf16)), [16, 16, 64, 64, 128]);
        assert_eq!([1, 64, 65, 2048].map(|count| rows(count, Element::F32)), [16, 16, 64, 64]);
    }
}
