//! A model whose answer is prescribed: it computes everything, and says something else.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ragstone_kernels::Result;
use ragstone_kernels::backend::{Backend, KvBytes, RowGroup, Slots, StoredKv};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::deviation::Compared;
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::Model;
use ragstone_kernels::pool::{BlockId, KvLayout};

/// Above every logit of a model of random weights.
const SURE: f32 = 1e6;

/// The model, and the text that it is to say.
pub(super) struct Prescribed {
    model: Model,
    /// Prompt and answer.
    text: Mutex<Arc<[u32]>>,
}

/// Rows, and the position of each.
#[derive(Debug)]
pub(super) struct Rows {
    rows: <Model as Backend>::Rows,
    positions: Vec<u32>,
}

impl Prescribed {
    pub(super) fn new(model: Model) -> Self {
        Self { model, text: Mutex::new([].into()) }
    }

    /// From now on `answer` follows `prompt`.
    pub(super) fn prescribe(&self, prompt: &[u32], answer: &[u32]) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = [prompt, answer].concat().into();
    }
}

impl Backend for Prescribed {
    type Rows = Rows;
    type Kv = <Model as Backend>::Kv;
    type Pool = <Model as Backend>::Pool;

    fn config(&self) -> &ModelConfig {
        Backend::config(&self.model)
    }

    fn kv_layout(&self) -> KvLayout {
        Backend::kv_layout(&self.model)
    }

    fn new_pool(&self, blocks: usize) -> Self::Pool {
        self.model.new_pool(blocks)
    }

    fn embed(&self, tokens: &[u32], positions: &[u32]) -> Result<Rows> {
        Ok(Rows { rows: Backend::embed(&self.model, tokens, positions)?, positions: positions.to_vec() })
    }

    fn gather(&self, parts: &[(&Rows, &[usize])]) -> Rows {
        let positions = parts.iter().flat_map(|(part, rows)| rows.iter().map(|row| part.positions[*row])).collect();
        let parts: Vec<_> = parts.iter().map(|(part, rows)| (&part.rows, *rows)).collect();
        Rows { rows: self.model.gather(&parts), positions }
    }

    fn project(&self, layer: usize, rows: &Rows) -> Self::Kv {
        self.model.project(layer, &rows.rows)
    }

    fn gather_kv(&self, kv: &Self::Kv, rows: &[usize]) -> Self::Kv {
        self.model.gather_kv(kv, rows)
    }

    fn place(
        &self,
        pool: &mut Self::Pool,
        layer: usize,
        to: Slots<'_>,
        kv: &Self::Kv,
        rows: Range<usize>,
    ) -> Result<()> {
        self.model.place(pool, layer, to, kv, rows)
    }

    fn place_stored(&self, pool: &mut Self::Pool, layer: usize, to: Slots<'_>, stored: StoredKv<'_>) -> Result<()> {
        self.model.place_stored(pool, layer, to, stored)
    }

    fn finish(&self, layer: usize, rows: &mut Rows, groups: &[RowGroup<'_>], pool: &Self::Pool) {
        self.model.finish(layer, &mut rows.rows, groups, pool);
    }

    fn attention_weights(&self, layer: usize, rows: &Rows, group: &RowGroup<'_>, pool: &Self::Pool) -> Matrix {
        Backend::attention_weights(&self.model, layer, &rows.rows, group, pool)
    }

    /// What stands behind each row's position in the text is the likeliest.
    fn logits(&self, rows: &Rows) -> Matrix {
        let mut logits = Backend::logits(&self.model, &rows.rows);
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (row, position) in rows.positions.iter().enumerate() {
            if let Some(next) = text.get(*position as usize + 1) {
                logits.row_mut(row)[*next as usize] = SURE;
            }
        }
        logits
    }

    fn deviation(
        &self,
        fresh: &Self::Kv,
        stored: StoredKv<'_>,
        pairs: &[(usize, usize)],
        compared: Compared,
    ) -> Result<Vec<f32>> {
        self.model.deviation(fresh, stored, pairs, compared)
    }

    fn export(&self, kv: &Self::Kv, rows: Range<usize>) -> KvBytes {
        self.model.export(kv, rows)
    }

    fn copy_block(&self, pool: &mut Self::Pool, from: BlockId, to: BlockId) -> Result<()> {
        self.model.copy_block(pool, from, to)
    }

    fn read_block(&self, pool: &Self::Pool, block: BlockId) -> Result<Vec<u8>> {
        self.model.read_block(pool, block)
    }

    fn write_block(&self, pool: &mut Self::Pool, block: BlockId, bytes: &[u8]) -> Result<()> {
        self.model.write_block(pool, block, bytes)
    }
}
