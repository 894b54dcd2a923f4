//! Kernels for compute capability 9.0 (`kernels/cuda/hopper/`): faster ones, with the bits of the others. `trial` says which of them are used.

use super::super::driver::{TensorMap, Tiled};
use super::super::session::Argument::{Map as M, Pointer as P, U32};
use super::super::session::{Argument, Launch};
use super::{AttentionTile, Context, Element, Heads, of};
use ragstone_kernels::activation::Activation;
use ragstone_kernels::error::Result;

/// The kernels, as the machine code of compute capability 9.0. Made by `ops/cuda/ptx`.
pub(crate) const CUBIN: &[u8] = include_bytes!("../../hopper.cubin");

/// Whether a kernel of that name is one of these.
pub(crate) fn is_kernel(name: &str) -> bool {
    name.starts_with("wide_") || name.starts_with("narrow_")
}

/// Query lines of a block of threads.
pub(crate) const ATTENTION_LINES: u32 = 128;

/// A product: pointers, of which `bias` may be null, and `(rows, outputs, inputs)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub(crate) out: u64,
    pub(crate) x: u64,
    pub(crate) w: u64,
    pub(crate) bias: u64,
    pub(crate) shape: (u32, u32, u32),
}

/// What a block of threads computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    name: &'static str,
    rows: u32,
    outputs: u32,
    threads: u32,
    shared: u32,
    /// Blocks that a multiprocessor has at once.
    at_once: u32,
}

const NARROW_16: Tile =
    Tile { name: "narrow_gemm_bf16_16_32", rows: 16, outputs: 32, threads: 96, shared: 99_328, at_once: 2 };
const NARROW_32: Tile =
    Tile { name: "narrow_gemm_bf16_32_32", rows: 32, outputs: 32, threads: 96, shared: 99_328, at_once: 2 };
const NARROW_64: Tile =
    Tile { name: "narrow_gemm_bf16_64_32", rows: 64, outputs: 32, threads: 160, shared: 197_632, at_once: 1 };
const WIDE_128: Tile =
    Tile { name: "wide_gemm_bf16_128", rows: 128, outputs: 128, threads: 384, shared: 197_632, at_once: 1 };
const WIDE_256: Tile =
    Tile { name: "wide_gemm_bf16_256", rows: 128, outputs: 256, threads: 384, shared: 197_632, at_once: 1 };

impl Tile {
    /// The fastest for a shape.
    fn of((rows, outputs, _): (u32, u32, u32), multiprocessors: u32) -> Self {
        match rows {
            ..=16 => NARROW_16,
            17..=32 => NARROW_32,
            33..=64 => NARROW_64,
            _ => {
                // A tile of 256 outputs takes 1.6 times as long as one of 128, where nothing else is in the way (docs/results/cuda.md).
                let rounds = |tile: Self| tile.count(rows, outputs).div_ceil(multiprocessors);
                if 16 * rounds(WIDE_256) <= 10 * rounds(WIDE_128) { WIDE_256 } else { WIDE_128 }
            }
        }
    }

    fn count(self, rows: u32, outputs: u32) -> u32 {
        rows.div_ceil(self.rows) * outputs.div_ceil(self.outputs)
    }
}

impl Product {
    /// Whether these kernels take it.
    pub(crate) fn fits(self) -> bool {
        let (rows, outputs, inputs) = self.shape;
        let is_aligned = (self.x | self.w).is_multiple_of(16) && (self.out | self.bias).is_multiple_of(8);
        rows > 0 && outputs > 0 && outputs.is_multiple_of(2) && inputs > 0 && inputs.is_multiple_of(8) && is_aligned
    }

    /// As [`gemm`](super::gemm) of bf16.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn launch(self, adds: bool, multiprocessors: u32) -> Result<Launch> {
        self.by(Tile::of(self.shape, multiprocessors), adds, multiprocessors)
    }

    fn by(self, tile: Tile, adds: bool, multiprocessors: u32) -> Result<Launch> {
        let (rows, outputs, inputs) = self.shape;
        let x = map(self.x, (rows, inputs), tile.rows)?;
        let w = map(self.w, (outputs, inputs), tile.outputs)?;
        let arguments = vec![P(self.out), x, w, P(self.bias), U32(rows), U32(outputs), U32(inputs), U32(adds.into())];
        let blocks = tile.count(rows, outputs).min(tile.at_once * multiprocessors);
        Ok(of(tile.name, [blocks, 1, 1], tile.threads, tile.shared, arguments))
    }

    /// Every kernel that takes it, for the trial: the last ones only take few rows.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn each(self, adds: bool, multiprocessors: u32) -> Result<Vec<Launch>> {
        let takes = |tile: &Tile| tile.rows >= 128 || self.shape.0 <= tile.rows;
        let tiles = [WIDE_128, WIDE_256, NARROW_16, NARROW_32, NARROW_64].into_iter().filter(takes);
        tiles.map(|tile| self.by(tile, adds, multiprocessors)).collect()
    }

    /// `activation(gate) * up` of rows times a matrix that has gates and ups, as bf16: the bits of a product, then [`gated`](super::gated).
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn gated(self, activation: Activation, multiprocessors: u32) -> Result<Launch> {
        let tile = match self.shape.0 {
            ..=16 => NARROW_16,
            17..=64 => NARROW_64,
            _ => WIDE_256,
        };
        self.gated_by(tile, activation, multiprocessors)
    }

    /// In tiles as large as those of a product, of which half the outputs are gates.
    fn gated_by(self, tile: Tile, activation: Activation, multiprocessors: u32) -> Result<Launch> {
        let (rows, outputs, inputs) = self.shape;
        let (width, values) = (outputs / 2, tile.outputs / 2);
        let by = if activation == Activation::Silu { "silu" } else { "gelu" };
        let name =
            if tile.rows == 128 { format!("wide_gated_{by}") } else { format!("narrow_gated_{by}_{}", tile.rows) };
        let x = map(self.x, (rows, inputs), tile.rows)?;
        let w = map(self.w, (outputs, inputs), values)?;
        let blocks = (rows.div_ceil(tile.rows) * width.div_ceil(values)).min(tile.at_once * multiprocessors);
        let arguments = vec![P(self.out), x, w, P(self.bias), U32(rows), U32(width), U32(inputs)];
        Ok(of(name, [blocks, 1, 1], tile.threads, tile.shared, arguments))
    }

    /// As [`each`](Self::each), of [`gated`](Self::gated).
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn each_gated(self, activation: Activation, multiprocessors: u32) -> Result<Vec<Launch>> {
        let takes = |tile: &Tile| tile.rows >= 128 || self.shape.0 <= tile.rows;
        let tiles = [WIDE_256, NARROW_16, NARROW_64].into_iter().filter(takes);
        tiles.map(|tile| self.gated_by(tile, activation, multiprocessors)).collect()
    }

    /// Whether [`gated`](Self::gated) takes it.
    pub(crate) fn fits_gated(self) -> bool {
        self.fits() && self.shape.1.is_multiple_of(4)
    }
}

fn map(start: u64, (lines, values): (u32, u32), tile_lines: u32) -> Result<Argument> {
    let of = Tiled { start, lines, values, tile_lines, is_f16: false };
    TensorMap::new(of).map(|map| M(Box::new(map)))
}

/// Whether [`attention`] takes heads of that shape.
pub(crate) fn attends(element: Element, heads: Heads) -> bool {
    element != Element::F32 && heads.head_dim <= 128 && heads.head_dim.is_multiple_of(8)
}

/// Rows that [`products`] takes at most.
pub(crate) const PRODUCTS_ROWS: u32 = NARROW_16.rows;

/// Products of the same few rows with three matrices, in one launch: the bits of three.
///
/// # Errors
/// The driver's.
pub(crate) fn products(of: [Product; 3], multiprocessors: u32) -> Result<Launch> {
    let (tile, [(rows, _, inputs), ..]) = (NARROW_16, of.map(|of| of.shape));
    let mut arguments = vec![map(of[0].x, (rows, inputs), tile.rows)?];
    for of in of {
        arguments.push(map(of.w, (of.shape.1, inputs), tile.outputs)?);
    }
    arguments.extend(of.map(|of| P(of.out)));
    arguments.extend(of.map(|of| P(of.bias)));
    arguments.extend(of.map(|of| U32(of.shape.1)));
    arguments.extend([U32(rows), U32(inputs)]);
    let tiles: u32 = of.iter().map(|of| tile.count(rows, of.shape.1)).sum();
    let blocks = tiles.min(tile.at_once * multiprocessors);
    Ok(super::of("narrow_gemms_bf16_16_32", [blocks, 1, 1], tile.threads, tile.shared, arguments))
}

/// As [`attention`](super::attention), to f32 or bf16. Tiles have up to [`ATTENTION_LINES`] lines for each KV head.
///
/// # Errors
/// The driver's.
#[allow(clippy::too_many_arguments)]
pub(crate) fn attention(
    element: Element,
    (out, to): (u64, Element),
    (partial, segments): (u64, u32),
    q: u64,
    context: Context,
    tiles: &[AttentionTile],
    rows: u32,
    heads: Heads,
) -> Result<Launch> {
    let mut launch = super::attention(element, out, (partial, segments), q, context, tiles, rows, heads);
    let lines = tiles.iter().map(|tile| tile.rows * (heads.heads / heads.kv_heads)).max().unwrap_or(0);
    let (width, shared) = if heads.head_dim <= 64 { (64, 115_712) } else { (128, 164_864) };
    let split = if partial == 0 { "" } else { "_split" };
    launch.name = format!("wide_attention{split}_{}_{width}", element.name());
    launch.shape.grid[1] = heads.kv_heads * lines.div_ceil(ATTENTION_LINES).max(1);
    (launch.shape.block, launch.shape.shared) = (384, shared);
    for start in [context.keys, context.values] {
        let of = Tiled {
            start,
            lines: context.pool_lines,
            values: heads.head_dim,
            tile_lines: 16,
            is_f16: element == Element::F16,
        };
        launch.arguments.push(M(Box::new(TensorMap::new(of)?)));
    }
    launch.arguments.push(U32((to == Element::Bf16).into()));
    Ok(launch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_are_in_the_machine_code() {
        let names = [NARROW_16, NARROW_32, NARROW_64, WIDE_128, WIDE_256].map(|tile| tile.name.to_owned());
        let gated = ["silu", "gelu"].into_iter().flat_map(|by| {
            [format!("wide_gated_{by}"), format!("narrow_gated_{by}_16"), format!("narrow_gated_{by}_64")]
        });
        let attention = ["bf16_64", "bf16_128", "f16_64", "f16_128"].into_iter();
        let attention = attention.flat_map(|of| [format!("wide_attention_{of}"), format!("wide_attention_split_{of}")]);
        let several = ["narrow_gemms_bf16_16_32".to_owned()];
        for name in names.into_iter().chain(gated).chain(attention).chain(several) {
            let section = format!(".text.{name}\0");
            assert!(is_kernel(&name) && CUBIN.windows(section.len()).any(|at| at == section.as_bytes()), "{name}");
        }
    }

    #[test]
    fn few_rows_are_narrow_and_tiles_fill_the_multiprocessors() {
        let name = |rows, outputs| Tile::of((rows, outputs, 3584), 132).name;
        assert_eq!([1, 16, 17, 33, 64].map(|rows| Tile::of((rows, 64, 64), 132).rows), [16, 16, 32, 64, 64]);
        // 56 large tiles would leave most of 132 multiprocessors idle.
        assert_eq!((name(512, 3584), name(2048, 3584)), ("wide_gemm_bf16_128", "wide_gemm_bf16_256"));
        assert_eq!((name(2048, 37_888), name(100, 4608)), ("wide_gemm_bf16_256", "wide_gemm_bf16_128"));
    }

    #[test]
    fn what_is_not_aligned_or_odd_is_not_taken() {
        let product = Product { out: 256, x: 256, w: 512, bias: 0, shape: (3, 8, 16) };
        assert!(product.fits() && product.fits_gated());
        for wrong in [
            Product { x: 258, ..product },
            Product { w: 520, ..product },
            Product { out: 260, ..product },
            Product { shape: (3, 7, 16), ..product },
            Product { shape: (3, 8, 12), ..product },
        ] {
            assert!(!wrong.fits(), "{wrong:?}");
        }
        assert!(!Product { shape: (3, 6, 16), ..product }.fits_gated());
    }
}
