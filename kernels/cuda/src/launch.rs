//! Each kernel with its parameters and its launch geometry, as `kernels/cuda/launch.md` has them.

pub(super) mod experts;
pub(super) mod hopper;
pub(super) mod quantized;

use super::session::{Argument, Launch, Shape};
use ragstone_kernels::activation::Activation;
use ragstone_kernels::dtype::KvDtype;

/// An element type in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    F16,
    Bf16,
}

impl Element {
    /// The suffix of kernels for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    pub(super) fn size_in_bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }
}

impl From<KvDtype> for Element {
    fn from(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F32 => Self::F32,
            KvDtype::F16 => Self::F16,
            KvDtype::Bf16 => Self::Bf16,
        }
    }
}

/// Query lines (rows by heads of one KV head) that a block of threads takes through attention.
pub(super) fn attention_lines(element: Element) -> u32 {
    if element == Element::F32 { 16 } else { 64 }
}

/// Slots of a segment of the context.
pub(super) const SEGMENT: u32 = 512;

/// The longest head that attention takes.
pub(super) const MOST_HEAD_DIM: usize = 256;

/// Rows of one sequence in an attention launch; the kernel's `AttentionTile`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct AttentionTile {
    pub(super) first_row: u32,
    pub(super) rows: u32,
    pub(super) blocks_start: u32,
    pub(super) keys_start: u32,
    pub(super) slots: u32,
}

/// How K is turned to its position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// `[positions][2][pairs]`, or null where nothing is turned.
    pub(super) angles: u64,
    pub(super) pairs: u32,
}

/// The shape of a launch of attention, and of what it works on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
}

impl Heads {
    /// Values of a row of Q.
    pub(super) fn query_dim(self) -> usize {
        (self.heads * self.head_dim) as usize
    }

    /// Values of a row of K, or V.
    pub(super) fn kv_dim(self) -> usize {
        (self.kv_heads * self.head_dim) as usize
    }
}

/// What attention reads beside q; pointers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) row_positions: u64,
    pub(super) tiles: u64,
    pub(super) blocks: u64,
    pub(super) key_positions: u64,
    /// Or null.
    pub(super) slopes: u64,
    /// 0 for none.
    pub(super) window: u32,
    /// Lines of the pool, for each of its tokens and KV heads one.
    pub(super) pool_lines: u32,
}

use Argument::{F32, Pointer as P, U32, U64};

fn of(name: impl Into<String>, grid: [u32; 3], block: u32, shared: u32, arguments: Vec<Argument>) -> Launch {
    Launch { name: name.into(), shape: Shape { grid, block, shared }, arguments }
}

/// One thread a value, 256 a block.
fn by_value(name: impl Into<String>, values: u64, arguments: Vec<Argument>) -> Launch {
    of(name, [values.div_ceil(256) as u32, 1, 1], 256, 0, arguments)
}

pub(super) fn embed(
    element: Element,
    (out, table, tokens): (u64, u64, u64),
    (positions, position_table, skipped): (u64, u64, u32),
    scale: f32,
    (rows, hidden): (u32, u32),
) -> Launch {
    let arguments = vec![
        P(out),
        P(table),
        P(tokens),
        P(positions),
        P(position_table),
        U32(skipped),
        F32(scale),
        U32(rows),
        U32(hidden),
    ];
    of(format!("embed_{}", element.name()), [rows, 1, 1], 256, 0, arguments)
}

pub(super) fn rms_norm(out: Element, to: u64, from: u64, weight: u64, epsilon: f32, rows: u32, width: u32) -> Launch {
    let arguments = vec![P(to), P(from), P(weight), F32(epsilon), U32(rows), U32(width)];
    of(format!("rms_norm_{}", out.name()), [rows, 1, 1], 256, 0, arguments)
}

pub(super) fn layer_norm(
    out: Element,
    to: u64,
    from: u64,
    (weight, bias): (u64, u64),
    epsilon: f32,
    (rows, width): (u32, u32),
) -> Launch {
    let arguments = vec![P(to), P(from), P(weight), P(bias), F32(epsilon), U32(rows), U32(width)];
    of(format!("layer_norm_{}", out.name()), [rows, 1, 1], 256, 0, arguments)
}

/// Norms each head of rows in place.
pub(super) fn head_norm(values: u64, weight: u64, epsilon: f32, rows: u32, heads: u32, head_dim: u32) -> Launch {
    let arguments = vec![P(values), P(weight), F32(epsilon), U32(rows), U32(heads), U32(head_dim)];
    of("head_norm", [(rows * heads).div_ceil(4), 1, 1], 128, 0, arguments)
}

/// Rounds f32 to another type.
pub(super) fn convert(to_element: Element, to: u64, from: u64, count: u64) -> Launch {
    by_value(format!("convert_{}", to_element.name()), count, vec![P(to), P(from), U64(count)])
}

/// Queries, turned and scaled.
pub(super) fn rotate(
    element: Element,
    (to, from, positions): (u64, u64, u64),
    turn: Turn,
    scale: f32,
    rows: u32,
    heads: Heads,
) -> Launch {
    let values = u64::from(rows) * u64::from(heads.heads) * u64::from(heads.head_dim - turn.pairs);
    let arguments = vec![
        P(to),
        P(from),
        P(positions),
        P(turn.angles),
        U32(turn.pairs),
        F32(scale),
        U32(rows),
        U32(heads.heads),
        U32(heads.head_dim),
    ];
    by_value(format!("rotate_{}", element.name()), values, arguments)
}

/// K and V into the pool, K turned.
pub(super) fn place(
    element: Element,
    (keys, values): (u64, u64),
    (k, v): (u64, u64),
    (blocks, slots, positions): (u64, u64, u64),
    turn: Turn,
    tokens: u32,
    heads: Heads,
) -> Launch {
    let count = u64::from(tokens) * u64::from(heads.kv_heads) * u64::from(heads.head_dim - turn.pairs);
    let arguments = vec![
        P(keys),
        P(values),
        P(k),
        P(v),
        P(blocks),
        P(slots),
        P(positions),
        P(turn.angles),
        U32(turn.pairs),
        U32(tokens),
        U32(heads.kv_heads),
        U32(heads.head_dim),
    ];
    by_value(format!("place_{}", element.name()), count, arguments)
}

/// Fresh rows of a step: Q turned, K and V rounded, and both into the pool, K turned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fresh {
    /// f32, as products give them: of Q, K and V.
    pub(super) from: [u64; 3],
    /// Of the pool's type: Q, turned and scaled; K before its turn; V.
    pub(super) to: [u64; 3],
    /// A layer's K and V in the pool.
    pub(super) pool: (u64, u64),
    pub(super) scale: f32,
}

/// The bits of `convert`, `rotate` and `place`.
pub(super) fn place_fresh(
    element: Element,
    fresh: Fresh,
    (blocks, slots, positions): (u64, u64, u64),
    turn: Turn,
    rows: u32,
    heads: Heads,
) -> Launch {
    let count = u64::from(rows) * u64::from(heads.heads + heads.kv_heads) * u64::from(heads.head_dim - turn.pairs);
    let pointers = fresh.to.into_iter().chain([fresh.pool.0, fresh.pool.1]).chain(fresh.from);
    let lists = [blocks, slots, positions, turn.angles];
    let mut arguments: Vec<Argument> = pointers.chain(lists).map(P).collect();
    arguments.extend([U32(turn.pairs), F32(fresh.scale), U32(rows)]);
    arguments.extend([heads.heads, heads.kv_heads, heads.head_dim].map(U32));
    by_value(format!("place_fresh_{}", element.name()), count, arguments)
}

/// Attention of rows. With `partial` (a pointer, not null) over `segments` of the context, to be combined.
#[allow(clippy::too_many_arguments)]
pub(super) fn attention(
    element: Element,
    out: u64,
    (partial, segments): (u64, u32),
    q: u64,
    context: Context,
    tiles: &[AttentionTile],
    rows: u32,
    heads: Heads,
) -> Launch {
    let group = heads.heads / heads.kv_heads;
    let lines = tiles.iter().map(|tile| tile.rows * group).max().unwrap_or(0);
    let chunks = lines.div_ceil(attention_lines(element)).max(1);
    let (name, shared) = match (element, heads.head_dim) {
        (Element::F32, _) => ("attention_f32".to_owned(), 0),
        (_, ..=64) => (format!("attention_{}_64", element.name()), 27_648),
        (_, ..=128) => (format!("attention_{}_128", element.name()), 52_224),
        _ => (format!("attention_{}_256", element.name()), 67_584),
    };
    let arguments = vec![
        P(out),
        P(partial),
        P(q),
        P(context.keys),
        P(context.values),
        P(context.row_positions),
        P(context.tiles),
        P(context.blocks),
        P(context.key_positions),
        P(context.slopes),
        U32(context.window),
        U32(rows),
        U32(heads.heads),
        U32(heads.kv_heads),
        U32(heads.head_dim),
    ];
    of(name, [tiles.len() as u32, heads.kv_heads * chunks, segments], 128, shared, arguments)
}

/// Puts segments together.
///
/// `to` is f32 or bf16.
pub(super) fn attention_combine(
    (out, to): (u64, Element),
    partial: u64,
    tiles: (u64, u32),
    rows: u32,
    heads: Heads,
) -> Launch {
    let arguments = vec![
        P(out),
        P(partial),
        P(tiles.0),
        U32(rows),
        U32(heads.heads),
        U32(heads.head_dim),
        U32((to == Element::Bf16).into()),
    ];
    of("attention_combine", [tiles.1, heads.heads, 1], 128, 0, arguments)
}

/// Softmax weights, the mean over heads; of one sequence.
pub(super) fn attention_weights(
    element: Element,
    out: u64,
    q: u64,
    context: Context,
    (rows, slots): (u32, u32),
    heads: Heads,
) -> Launch {
    let arguments = vec![
        P(out),
        P(q),
        P(context.keys),
        P(context.row_positions),
        P(context.blocks),
        P(context.key_positions),
        P(context.slopes),
        U32(context.window),
        U32(rows),
        U32(slots),
        U32(heads.heads),
        U32(heads.kv_heads),
        U32(heads.head_dim),
    ];
    of(format!("attention_weights_{}", element.name()), [rows, 1, 1], 256, 0, arguments)
}

/// What a block of threads computes of a product, and with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProductTile {
    /// Their type, as kernels are called by it.
    weights: &'static str,
    pub(super) rows: u32,
    outputs: u32,
    block: u32,
    shared: u32,
}

impl ProductTile {
    /// That of a product of so many rows.
    pub(super) fn of(element: Element, rows: u32) -> Self {
        let (rows, outputs, block, shared) = match (element, rows) {
            (Element::F32, ..=16) => (16, 32, 128, 0),
            (Element::F32, _) => (64, 64, 256, 0),
            (_, ..=16) => (16, 32, 64, 49_152),
            (_, ..=64) => (64, 64, 128, 49_152),
            _ => (128, 128, 128, 49_152),
        };
        Self { weights: element.name(), rows, outputs, block, shared }
    }

    /// A product's launch. `tiles` is those over its rows.
    fn launch(self, kernel: &str, tiles: u32, outputs: u32, arguments: Vec<Argument>) -> Launch {
        let name = format!("{kernel}_{}_{}", self.weights, self.rows);
        of(name, [tiles, outputs.div_ceil(self.outputs), 1], self.block, self.shared, arguments)
    }
}

/// `out (+)= x w^T + bias`; `bias` may be null.
pub(super) fn gemm(
    element: Element,
    (out, x, w, bias): (u64, u64, u64, u64),
    shape @ (rows, ..): (u32, u32, u32),
    adds: bool,
) -> Launch {
    product(ProductTile::of(element, rows), &[out, x, w, bias], shape, adds)
}

fn product(tile: ProductTile, pointers: &[u64], (rows, outputs, inputs): (u32, u32, u32), adds: bool) -> Launch {
    let shape = [U32(rows), U32(outputs), U32(inputs), U32(adds.into())];
    let arguments = pointers.iter().map(|at| P(*at)).chain(shape).collect();
    tile.launch("gemm", rows.div_ceil(tile.rows), outputs, arguments)
}

/// `activation(gate) * up` of rows `[gate, up]`.
pub(super) fn gated(activation: Activation, out: Element, to: u64, from: u64, rows: u32, width: u32) -> Launch {
    let name = if activation == Activation::Silu { "silu" } else { "gelu" };
    let arguments = vec![P(to), P(from), U32(rows), U32(width)];
    by_value(format!("gated_{name}_{}", out.name()), u64::from(rows) * u64::from(width), arguments)
}

/// GELU, or what is rectified.
pub(super) fn activate(is_relu: bool, out: Element, to: u64, from: u64, count: u64) -> Launch {
    let name = if is_relu { "relu" } else { "gelu" };
    by_value(format!("activate_{name}_{}", out.name()), count, vec![P(to), P(from), U64(count)])
}

/// `to += scale * from`
pub(super) fn add_scaled(to: u64, from: u64, scale: f32, count: u64) -> Launch {
    by_value("add_scaled", count, vec![P(to), P(from), F32(scale), U64(count)])
}

pub(super) fn scale_values(values: u64, by: f32, count: u64) -> Launch {
    by_value("scale_values", count, vec![P(values), F32(by), U64(count)])
}

/// Some rows, in the order given.
pub(super) fn gather_rows(to: u64, from: u64, rows: u64, count: u32, row_bytes: u32) -> Launch {
    of("gather_rows", [count, 1, 1], 128, 0, vec![P(to), P(from), P(rows), U32(count), U32(row_bytes)])
}

/// Equal pieces from one stride to another.
pub(super) fn copy_parts(to: (u64, u64), from: (u64, u64), parts: u32, bytes: u64) -> Launch {
    let grid = [bytes.div_ceil(4096) as u32, parts, 1];
    of("copy_parts", grid, 256, 0, vec![P(to.0), U64(to.1), P(from.0), U64(from.1), U32(parts), U64(bytes)])
}

/// Squared differences of fresh and stored rows. `compared`: 1 K, 2 V, 3 both.
pub(super) fn deviation(
    element: Element,
    out: u64,
    fresh: (u64, u64),
    stored: (u64, u64),
    pairs: (u64, u32),
    kv_dim: u32,
    compared: u32,
) -> Launch {
    let arguments = vec![
        P(out),
        P(fresh.0),
        P(fresh.1),
        P(stored.0),
        P(stored.1),
        P(pairs.0),
        U32(pairs.1),
        U32(kv_dim),
        U32(compared),
    ];
    of(format!("deviation_{}", element.name()), [pairs.1.div_ceil(4), 1, 1], 128, 0, arguments)
}
