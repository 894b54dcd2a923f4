//! Each kernel on its own, over data of the sizes that models have.

use std::hint::black_box;
use std::sync::Arc;

use super::{Case, random};
use crate::attention::{AttentionOptions, RowGroup, SequenceView, attend_on, attention_weights_with};
use crate::deviation::{Compared, kv_deviation};
use crate::dtype::{ComputeDtype, KvDtype};
use crate::linear::{
    Activations, Bits, GroupRow, GroupedRows, Grouping, Input, Linear, Output, Precision, Scales, Weights,
};
use crate::matrix::Matrix;
use crate::model::LayerKv;
use crate::pool::{BLOCK_TOKENS, BlockId, KvData, KvLayout, KvPool};
use crate::rope::Rope;
use crate::simd::Path;

/// A layout like that of Qwen2.5-0.5B: 14 query heads over 2 KV heads of 64.
const QUERY_HEADS: usize = 14;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

/// Weights that one row goes through are more than caches hold, as a model's are.
const COLD_BYTES: usize = 256 << 20;
/// Rows up to which time goes into reading the weights.
const FEW_ROWS: usize = 12;

/// Copies of a layer, at most.
const MOST_COPIES: usize = 64;

/// Layers of random weights and rows for them, shared by the cases of several paths. A few rows go through many such
/// layers in turn, so that the weights come from memory.
pub struct Layers {
    /// What a report calls the weights' form.
    name: &'static str,
    shape: [usize; 3],
    layers: Vec<Linear>,
    x: Vec<f32>,
}

impl Layers {
    /// For `rows` rows of `inputs` values, and `outputs` of each.
    pub fn new(precision: Precision, rows: usize, inputs: usize, outputs: usize) -> Arc<Self> {
        let weights = random(1, inputs * outputs);
        let name = match precision {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Q8 => "q8",
            Precision::Q4 => "q4",
        };
        let layer = || Linear::new(outputs, inputs, Weights::F32(&weights), None, precision);
        Self::of(name, layer, [rows, inputs, outputs])
    }

    /// As [`Layers::new`], of one layer: its weights stay in caches.
    pub(super) fn once(precision: Precision, rows: usize, inputs: usize, outputs: usize) -> Arc<Self> {
        let weights = random(1, inputs * outputs);
        let layer = Linear::new(outputs, inputs, Weights::F32(&weights), None, precision);
        Arc::new(Self { name: "", shape: [rows, inputs, outputs], layers: vec![layer], x: random(2, rows * inputs) })
    }

    /// As [`Layers::new`] of blocks as GGUF files have them.
    pub fn of_blocks(name: &'static str, grouping: Grouping, rows: usize, inputs: usize, outputs: usize) -> Arc<Self> {
        let fill = |output: usize, row: &mut GroupRow| {
            let mut rng = fastrand::Rng::with_seed(output as u64);
            rng.fill(&mut row.quants);
            // As many bits as there are of those that are random; one, and 1/1024 as an f16.
            let bits = match grouping.bits {
                Bits::Four => 15,
                Bits::Six => 63,
                Bits::Eight => 255,
            };
            row.quants.iter_mut().for_each(|quant| *quant &= bits);
            let scale = match grouping.scales {
                Scales::Nested => 1,
                Scales::Pair => 128 + 1,
                Scales::Symmetric | Scales::Min | Scales::Steps => 0x1400,
            };
            row.scales.fill(scale);
            row.outer.fill([0x1400, 0x1400]);
        };
        let blocks = GroupedRows { grouping, fill: Box::new(fill) };
        Self::of(name, || Linear::grouped(outputs, inputs, &blocks, None), [rows, inputs, outputs])
    }

    fn of(name: &'static str, layer: impl Fn() -> Linear, shape: [usize; 3]) -> Arc<Self> {
        let [rows, inputs, _] = shape;
        let mut layers = vec![layer()];
        if rows <= FEW_ROWS {
            let copies = (COLD_BYTES / layers[0].size_in_bytes().max(1)).min(MOST_COPIES);
            layers.extend((0..copies).map(|_| layer()));
        }
        let x = random(2, rows * inputs);
        Arc::new(Self { name, shape, layers, x })
    }
}

/// Rows through a layer; their encoding is not counted. Bytes are those of the weights.
pub fn linear(path: Path, layers: &Arc<Layers>) -> Case {
    let layers = layers.clone();
    let [rows, inputs, outputs] = layers.shape;
    let mut out = vec![0.0; rows * outputs];
    let mut x = Activations::default();
    x.encode_on(path, layers.layers[0].format(), &layers.x, rows);
    let products = 2.0 * (rows * inputs * outputs) as f64;
    let bytes = layers.layers[0].size_in_bytes() as f64;
    let mut turn = 0;
    Case::new("linear", path, layers.name, format!("{rows}x{inputs}x{outputs}"), (products, bytes), move || {
        let layer = &layers.layers[turn % layers.layers.len()];
        layer.forward_on(path, Input::from(&x), Output::Store(&mut out));
        turn += 1;
    })
}

/// The last queries of a sequence, in one layer.
struct Queries {
    pool: KvPool,
    blocks: Vec<BlockId>,
    positions: Vec<u32>,
    q: Matrix,
}

impl Queries {
    fn new(dtype: KvDtype, rows: usize, tokens: usize) -> Self {
        let layout = KvLayout { layers: 1, kv_heads: KV_HEADS, head_dim: HEAD_DIM, dtype };
        let blocks: Vec<BlockId> = (0..tokens.div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
        let mut pool = KvPool::new(layout, blocks.len());
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let kv = random(3, tokens * layout.kv_dim());
        let data = KvData::F32(&kv);
        pool.write(0, &rope(), &blocks, &positions, &positions, data, data).expect("the pool has these blocks");
        let q = Matrix::from_vec(rows, QUERY_HEADS * HEAD_DIM, random(4, rows * QUERY_HEADS * HEAD_DIM));
        Self { pool, blocks, positions, q }
    }

    fn group(&self) -> RowGroup<'_> {
        let sequence = SequenceView { blocks: &self.blocks, key_positions: &self.positions };
        let rows = self.q.rows();
        RowGroup { rows: 0..rows, positions: &self.positions[self.positions.len() - rows..], sequence }
    }

    /// Additions and multiplications of a product with K or V, of visible keys only.
    fn operations(&self) -> f64 {
        let visible: f64 = self.group().positions.iter().map(|position| f64::from(position + 1)).sum();
        2.0 * visible * self.q.cols() as f64
    }

    /// Of K or V.
    fn bytes(&self) -> f64 {
        let layout = self.pool.layout();
        (self.positions.len() * layout.kv_dim() * layout.dtype.size_in_bytes()) as f64
    }
}

/// The last `rows` queries of a sequence of `tokens`, in one layer. Counts the products of visible keys only.
///
/// # Panics
/// If there are more rows than tokens.
pub fn attention(path: Path, dtype: KvDtype, rows: usize, tokens: usize) -> Case {
    let queries = Queries::new(dtype, rows, tokens);
    let mut out = Matrix::zeros(rows, queries.q.cols());
    let compute = if dtype == KvDtype::Bf16 { ComputeDtype::Bf16 } else { ComputeDtype::F32 };
    let options = AttentionOptions { window: None, scale: 0.125, compute, slopes: None };
    let work = (2.0 * queries.operations(), 2.0 * queries.bytes());
    Case::new("attention", path, dtype.name(), format!("{rows} of {tokens}"), work, move || {
        attend_on(path, &queries.pool, 0, &queries.q, &[queries.group()], options, &mut out);
    })
}

/// What the last `rows` queries of a sequence of `tokens` look at, in one layer: softmax weights as such. Products of bf16
/// where they are faster, as a model computes. Counts the products of visible keys only.
///
/// # Panics
/// If there are more rows than tokens.
pub fn weights(path: Path, dtype: KvDtype, rows: usize, tokens: usize) -> Case {
    let queries = Queries::new(dtype, rows, tokens);
    let is_bf16 = dtype == KvDtype::Bf16 && path.has_bf16_products();
    let compute = if is_bf16 { ComputeDtype::Bf16 } else { ComputeDtype::F32 };
    let options = AttentionOptions { window: None, scale: 0.125, compute, slopes: None };
    let work = (queries.operations(), queries.bytes());
    Case::new("attention weights", path, dtype.name(), format!("{rows} of {tokens}"), work, move || {
        let (pool, q) = (&queries.pool, &queries.q);
        black_box(attention_weights_with(path, path == Path::Amx, pool, 0, q, &queries.group(), options));
    })
}

/// What else a token costs in a layer, on the best path: placing reused K and V (rotation included), and their
/// deviation from fresh ones.
pub fn elementwise(tokens: usize) -> Vec<Case> {
    let layout = KvLayout { layers: 1, kv_heads: KV_HEADS, head_dim: HEAD_DIM, dtype: KvDtype::Bf16 };
    let dim = layout.kv_dim();
    let stored = KvDtype::Bf16.encode(&random(5, tokens * dim));
    let shape = || format!("{tokens}x{dim}");
    let path = Path::best();
    let place = {
        let blocks: Vec<BlockId> = (0..tokens.div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
        let mut pool = KvPool::new(layout, blocks.len());
        let (rope, slots, stored) = (rope(), (0..tokens as u32).collect::<Vec<_>>(), stored.clone());
        // K and V, read and written.
        let bytes = (4 * tokens * dim * 2) as f64;
        Case::new("rotate and place", path, "bf16", shape(), (0.0, bytes), move || {
            let data = KvData::Bytes(KvDtype::Bf16, &stored);
            pool.write(0, &rope, &blocks, &slots, &slots, data, data).expect("the pool has these blocks");
        })
    };
    let deviation = {
        let matrix = |seed| Matrix::from_vec(tokens, dim, random(seed, tokens * dim));
        let fresh = LayerKv { k: matrix(6), v: matrix(7) };
        let bytes = (2 * tokens * dim * 6) as f64;
        Case::new("KV deviation", path, "bf16", shape(), (0.0, bytes), move || {
            let data = KvData::Bytes(KvDtype::Bf16, &stored);
            let all = (0..tokens).map(|token| (token, token));
            black_box(kv_deviation(&fresh, data, data, all, Compared::Both)).expect("the shapes agree");
        })
    };
    vec![place, deviation]
}

fn rope() -> Rope {
    let frequencies = (0..HEAD_DIM / 2).map(|pair| 1e6_f32.powf(-(pair as f32) / (HEAD_DIM / 2) as f32)).collect();
    Rope::from_frequencies(frequencies, 1.0, 32_768)
}
