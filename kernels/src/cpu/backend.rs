//! The CPU as a [`Backend`]: rows are f32 matrices, KV too, and the pool is host memory.

use std::ops::Range;

use crate::backend::{Backend, KvBytes, RowGroup, Slots, StoredKv};
use crate::config::ModelConfig;
use crate::deviation::{Compared, kv_deviation};
use crate::error::Result;
use crate::matrix::Matrix;
use crate::model::{LayerKv, Model};
use crate::pool::{BlockId, KvData, KvLayout, KvPool, Part as PoolPart};
use crate::profile::Part;

impl Backend for Model {
    type Rows = Matrix;
    type Kv = LayerKv;
    type Pool = KvPool;

    fn config(&self) -> &ModelConfig {
        Self::config(self)
    }

    fn kv_layout(&self) -> KvLayout {
        Self::kv_layout(self)
    }

    fn new_pool(&self, blocks: usize) -> KvPool {
        Self::new_pool(self, blocks)
    }

    /// On a thread of the pool: a step that begins outside is handed over and waited for, and a decoded token has two in each layer.
    fn run_pass<R: Send>(&self, steps: impl FnOnce() -> R + Send) -> R {
        rayon::scope(|_| steps())
    }

    fn embed(&self, tokens: &[u32], positions: &[u32]) -> Result<Matrix> {
        self.profile().time(Part::Embed, || self.embed_tokens(tokens, positions))
    }

    fn gather(&self, parts: &[(&Matrix, &[usize])]) -> Matrix {
        let cols = Self::config(self).hidden_size;
        let rows = parts.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        let mut data = Vec::with_capacity(rows * cols);
        parts.iter().for_each(|(from, rows)| rows.iter().for_each(|row| data.extend_from_slice(from.row(*row))));
        Matrix::from_vec(rows, cols, data)
    }

    fn project(&self, layer: usize, rows: &Matrix) -> LayerKv {
        self.project_kv(layer, rows)
    }

    fn gather_kv(&self, kv: &LayerKv, rows: &[usize]) -> LayerKv {
        LayerKv { k: kv.k.select_rows(rows), v: kv.v.select_rows(rows) }
    }

    fn place(&self, pool: &mut KvPool, layer: usize, to: Slots<'_>, kv: &LayerKv, rows: Range<usize>) -> Result<()> {
        let dim = kv.k.cols();
        let part = |matrix| KvData::F32(&Matrix::as_slice(matrix)[rows.start * dim..rows.end * dim]);
        self.profile().time(Part::Place, || {
            pool.write(layer, self.rope(layer), to.blocks, to.slots, to.positions, part(&kv.k), part(&kv.v))
        })
    }

    fn place_stored(&self, pool: &mut KvPool, layer: usize, to: Slots<'_>, stored: StoredKv<'_>) -> Result<()> {
        let (k, v) = stored.data();
        self.profile()
            .time(Part::Place, || pool.write(layer, self.rope(layer), to.blocks, to.slots, to.positions, k, v))
    }

    fn place_all_stored(&self, pool: &mut KvPool, layer: usize, parts: &[(Slots<'_>, StoredKv<'_>)]) -> Result<()> {
        let parts: Vec<PoolPart<'_>> = parts
            .iter()
            .map(|(to, stored)| {
                let (k, v) = stored.data();
                PoolPart { to: *to, k, v }
            })
            .collect();
        let written = self.profile().time(Part::Place, || pool.write_parts(layer, self.rope(layer), &parts, &|_| true));
        written.map(drop)
    }

    fn finish(&self, layer: usize, rows: &mut Matrix, groups: &[RowGroup<'_>], pool: &KvPool) {
        self.finish_layer(layer, rows, groups, pool);
    }

    fn attention_weights(&self, layer: usize, rows: &Matrix, group: &RowGroup<'_>, pool: &KvPool) -> Matrix {
        Self::attention_weights(self, layer, rows, group, pool)
    }

    fn logits(&self, rows: &Matrix) -> Matrix {
        self.project_logits(rows)
    }

    fn deviation(
        &self,
        fresh: &LayerKv,
        stored: StoredKv<'_>,
        pairs: &[(usize, usize)],
        compared: Compared,
    ) -> Result<Vec<f32>> {
        let (k, v) = stored.data();
        kv_deviation(fresh, k, v, pairs.iter().copied(), compared)
    }

    fn export(&self, kv: &LayerKv, rows: Range<usize>) -> KvBytes {
        let (dtype, dim) = (Self::kv_layout(self).dtype, kv.k.cols());
        let part = |matrix: &Matrix| {
            let values = &matrix.as_slice()[rows.start * dim..rows.end * dim];
            (dtype.encode(values), values.iter().all(|value| value.is_finite()))
        };
        let ((k, k_is_finite), (v, v_is_finite)) = (part(&kv.k), part(&kv.v));
        KvBytes { k, v, is_finite: k_is_finite && v_is_finite }
    }

    fn copy_block(&self, pool: &mut KvPool, from: BlockId, to: BlockId) -> Result<()> {
        pool.copy_block(from, to)
    }

    fn read_block(&self, pool: &KvPool, block: BlockId) -> Result<Vec<u8>> {
        pool.read_block(block)
    }

    fn write_block(&self, pool: &mut KvPool, block: BlockId, bytes: &[u8]) -> Result<()> {
        pool.write_block(block, bytes)
    }
}

impl<'a> StoredKv<'a> {
    fn data(&self) -> (KvData<'a>, KvData<'a>) {
        (KvData::Bytes(self.dtype, self.k), KvData::Bytes(self.dtype, self.v))
    }
}
