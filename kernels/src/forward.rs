//! The layer loop: rows of many sequences through a model's layers, in one pass over its weights.
//!
//! ```text
//! rows = embed(tokens, positions)
//! for each layer:  before_layer        stop here? (stored KV of the layer is not there yet)
//!                  kv = project(rows)  K before rotation, V
//!                  select              which rows go on? stop here?
//!                  take                stored KV into the blocks, fresh KV out to keep
//!                  place(kv)           each row's at its slot, rotated to its position
//!                  select_by_attention which rows go on, by what they look at
//!                  finish(rows)        attention over the sequence's blocks, feed-forward
//! logits(rows)
//! ```
//!
//! A [`Chunk`] is rows of one sequence between two layers. A pass takes chunks along from the layer where each stands, so that
//! prefill chunks, chosen rows of a blend and single rows of decoding sequences share every product. A chunk that stops is
//! handed back, and goes on from there in a later pass. The bits of a row do not depend on what shares its passes.
//!
//! Where nobody looks into a layer, as while answers run, a device may take the rows through all of them at once ([`Backend::step`]).

mod at_once;
mod pass;

use std::ops::Range;

use crate::backend::{Backend, KvBytes, RowGroup, SequenceView, Slots, StoredKv};
use crate::deviation::Compared;
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::pool::BlockId;
use pass::Pass;

/// A pass over a model's layers.
#[derive(Debug)]
pub struct Forward<'a, B: Backend> {
    backend: &'a B,
    pool: &'a mut B::Pool,
}

/// Rows of one sequence on their way through the layers.
#[derive(Debug)]
pub struct Chunk<B: Backend> {
    places: Places,
    hidden: B::Rows,
    layer: usize,
    logits: Wanted,
}

/// Where rows' KV lies and where the rows stand; one slot and one position a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    pub slots: Vec<u32>,
    pub positions: Vec<u32>,
}

/// Of which rows of a chunk the logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Of none: their K and V are.
    Nothing,
    /// Of the last one.
    Last,
    /// Of each.
    All,
}

/// A chunk that a pass takes along.
pub struct Rider<'a, B: Backend> {
    pub chunk: Chunk<B>,
    /// The blocks of its sequence.
    pub blocks: &'a [BlockId],
    /// The true position of each slot that is in place once the chunk's are. `u32::MAX` hides a slot.
    pub key_positions: &'a [u32],
    /// Who is asked on the way; nobody where every row is computed and nothing is stored.
    pub selector: Option<&'a mut dyn Selector<B>>,
}

/// Whether a chunk goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Go,
    /// It leaves the pass before this layer, and waits.
    Stop,
}

/// What a selector wants of each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// To be asked: it may stop rows, leave some out, or write stored KV.
    Asked,
    /// The fresh K and V of its rows, and nothing else: they may come when all layers are done.
    FreshKv,
    /// Nothing.
    Nothing,
}

/// Which rows go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keep {
    /// Every row.
    All,
    /// These, as indices into the chunk's rows, ascending.
    Rows(Vec<usize>),
    /// The chunk leaves the pass before this layer with every row.
    Stop,
}

/// What a sequence decides while its rows pass the layers: which tokens are recomputed, whether what a layer needs is there.
/// What goes wrong in a selector it keeps to itself, and stops.
pub trait Selector<B: Backend>: Send {
    /// What it wants of the layers of this pass. Only one that is to be asked is asked by the other functions; the others may
    /// be, and must do then what they say here.
    fn interest(&self) -> Interest {
        Interest::Asked
    }

    /// Given the fresh K and V of its chunk's rows in each layer, first layer first, where that is its only interest and the layers were
    /// computed at once.
    fn take_fresh(&mut self, layer: usize, rows: usize, kv: KvBytes) {
        let _ = (layer, rows, kv);
    }

    /// Asked before `layer`, for rows that would enter it.
    fn before_layer(&mut self, layer: usize) -> Next {
        let _ = layer;
        Next::Go
    }

    /// Asked with the fresh K and V of the rows in this layer, before its attention.
    fn select(&mut self, seen: &Seen<'_, B>) -> Keep {
        let _ = seen;
        Keep::All
    }

    /// Asked once all K and V of the layer are in place, before its attention. The fresh K and V of rows that do not go on stay
    /// in this layer.
    fn select_by_attention(&mut self, seen: &Placed<'_, B>) -> Keep {
        let _ = seen;
        Keep::All
    }

    /// Told of the rows that go on, before their K and V are written: the place to write stored K and V of the layer, and to take
    /// fresh ones out.
    fn take(&mut self, seen: &Seen<'_, B>, pool: &mut B::Pool) -> Next {
        let _ = (seen, pool);
        Next::Go
    }
}

/// What a selector sees of one layer.
#[derive(Debug)]
pub struct Seen<'a, B: Backend> {
    backend: &'a B,
    kv: &'a B::Kv,
    first: usize,
    /// The layer that the rows enter.
    pub layer: usize,
    /// The chunk's rows.
    pub places: &'a Places,
    /// The blocks of the sequence.
    pub blocks: &'a [BlockId],
}

/// What a selector sees of one layer whose K and V are in place.
#[derive(Debug)]
pub struct Placed<'a, B: Backend> {
    backend: &'a B,
    hidden: &'a B::Rows,
    pool: &'a B::Pool,
    first: usize,
    sequence: SequenceView<'a>,
    /// The layer that the rows enter.
    pub layer: usize,
    /// The chunk's rows.
    pub places: &'a Places,
}

/// What became of a chunk.
#[derive(Debug)]
pub enum Outcome<B: Backend> {
    /// It left the last layer; its logits are these rows of the pass's.
    Done(Range<usize>),
    /// It stopped.
    Stopped(Chunk<B>),
    /// A write was refused.
    Failed(Error),
}

/// What a pass computed.
#[derive(Debug)]
pub struct Passed<B: Backend> {
    /// One for each rider.
    pub outcomes: Vec<Outcome<B>>,
    /// `[rows, vocab]`; no rows where nobody wanted any.
    pub logits: Matrix,
    /// By rider: the rows that it had in each layer, added up.
    pub layer_rows: Vec<usize>,
}

impl Places {
    /// `rows`, each at the position that its slot has in `key_positions`.
    pub fn of(rows: impl IntoIterator<Item = u32>, key_positions: &[u32]) -> Self {
        let slots: Vec<u32> = rows.into_iter().collect();
        let positions = slots.iter().map(|slot| key_positions[*slot as usize]).collect();
        Self { slots, positions }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn pick(&self, rows: &[usize]) -> Self {
        let of = |all: &[u32]| rows.iter().map(|row| all[*row]).collect();
        Self { slots: of(&self.slots), positions: of(&self.positions) }
    }

    fn extend(&mut self, more: &Self) {
        self.slots.extend(&more.slots);
        self.positions.extend(&more.positions);
    }
}

impl<B: Backend> Chunk<B> {
    /// Tokens before the first layer.
    ///
    /// # Errors
    /// `InvalidInput` where [`Backend::embed`] refuses, or if there are not as many places as tokens, or none.
    pub fn embed(backend: &B, tokens: &[u32], places: Places, logits: Wanted) -> Result<Self> {
        if tokens.is_empty() || tokens.len() != places.slots.len() || tokens.len() != places.positions.len() {
            let message = format!("{} places for {} tokens", places.len(), tokens.len());
            return Err(Error::invalid_input(message));
        }
        let hidden = backend.embed(tokens, &places.positions)?;
        Ok(Self { places, hidden, layer: 0, logits })
    }

    /// Some rows of chunks that stand before the same layer, as one chunk.
    ///
    /// # Panics
    /// If there is no chunk, or they stand before different layers.
    pub fn join(backend: &B, parts: &[(&Self, Vec<usize>)], logits: Wanted) -> Self {
        let layer = parts[0].0.layer;
        assert!(parts.iter().all(|(chunk, _)| chunk.layer == layer), "chunks before one layer");
        let mut places = Places::default();
        parts.iter().for_each(|(chunk, rows)| places.extend(&chunk.places.pick(rows)));
        let rows: Vec<(&B::Rows, &[usize])> = parts.iter().map(|(chunk, rows)| (&chunk.hidden, &rows[..])).collect();
        Self { places, hidden: backend.gather(&rows), layer, logits }
    }

    /// Its rows.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The layer that it enters next.
    pub fn layer(&self) -> usize {
        self.layer
    }
}

impl<B: Backend> Seen<'_, B> {
    /// How far stored K and V are from the chunk's fresh ones: one value a pair of (row of the chunk, token of `stored`).
    ///
    /// # Errors
    /// `InvalidInput` if a pair names what is not there.
    pub fn deviation(
        &self,
        stored: StoredKv<'_>,
        pairs: impl IntoIterator<Item = (usize, usize)>,
        compared: Compared,
    ) -> Result<Vec<f32>> {
        let pairs: Vec<_> = pairs.into_iter().map(|(row, token)| (self.first + row, token)).collect();
        self.backend.deviation(self.kv, stored, &pairs, compared)
    }

    /// Fresh K and V of rows of the chunk, as they are stored.
    pub fn export(&self, rows: Range<usize>) -> KvBytes {
        self.backend.export(self.kv, self.first + rows.start..self.first + rows.end)
    }

    /// Writes stored K and V of this layer into the sequence's blocks, those of several entries.
    ///
    /// # Errors
    /// As [`Backend::place_all_stored`].
    pub fn place_all_stored(&self, pool: &mut B::Pool, parts: &[(Places, StoredKv<'_>)]) -> Result<()> {
        let parts: Vec<_> = parts
            .iter()
            .map(|(places, stored)| {
                let to = Slots { blocks: self.blocks, slots: &places.slots, positions: &places.positions };
                (to, *stored)
            })
            .collect();
        self.backend.place_all_stored(pool, self.layer, &parts)
    }

    /// Writes stored K and V of this layer into the sequence's blocks.
    ///
    /// # Errors
    /// As [`Backend::place_stored`].
    pub fn place_stored(&self, pool: &mut B::Pool, places: &Places, stored: StoredKv<'_>) -> Result<()> {
        let to = Slots { blocks: self.blocks, slots: &places.slots, positions: &places.positions };
        self.backend.place_stored(pool, self.layer, to, stored)
    }
}

impl<B: Backend> Placed<'_, B> {
    /// What rows of the chunk look at in this layer: the softmax weights that each gives to each slot of the sequence, the mean
    /// over heads; `[rows, slots]`.
    pub fn attention_weights(&self, rows: Range<usize>) -> Matrix {
        let group = RowGroup {
            positions: &self.places.positions[rows.clone()],
            rows: self.first + rows.start..self.first + rows.end,
            sequence: self.sequence,
        };
        self.backend.attention_weights(self.layer, self.hidden, &group, self.pool)
    }
}

impl<'a, B: Backend> Forward<'a, B> {
    /// A forward over a pool.
    pub fn new(backend: &'a B, pool: &'a mut B::Pool) -> Self {
        Self { backend, pool }
    }

    /// Takes all chunks as far as they go.
    pub fn pass(&mut self, riders: Vec<Rider<'_, B>>) -> Passed<B> {
        self.backend.run_pass(|| self.steps(riders))
    }

    fn steps(&mut self, mut riders: Vec<Rider<'_, B>>) -> Passed<B> {
        if let Some(passed) = self.at_once(&mut riders) {
            return passed;
        }
        let layers = self.backend.config().layers;
        let mut pass = Pass::new(self.backend, riders);
        let first = pass.first_layer().unwrap_or(layers);
        for layer in first..layers {
            pass.board(layer);
            if pass.is_empty() {
                continue;
            }
            let kv = self.backend.project(layer, pass.hidden());
            let kv = pass.select(layer, kv);
            pass.place(layer, &kv, self.pool);
            pass.select_by_attention(layer, self.pool);
            if layer + 1 == layers {
                pass.leave_wanted(layer);
            }
            if !pass.is_empty() {
                pass.finish(layer, self.pool);
            }
        }
        pass.end()
    }

    /// The logits of `tokens` of one sequence, computed at once: `[tokens, vocab]`, or of the last one alone.
    ///
    /// # Errors
    /// `InvalidInput` where [`Chunk::embed`] or the pool refuses.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        places: Places,
        logits: Wanted,
        blocks: &[BlockId],
        key_positions: &[u32],
    ) -> Result<Matrix> {
        let chunk = Chunk::embed(self.backend, tokens, places, logits)?;
        let mut passed = self.pass(vec![Rider { chunk, blocks, key_positions, selector: None }]);
        match passed.outcomes.pop() {
            Some(Outcome::Failed(error)) => Err(error),
            _ => Ok(passed.logits),
        }
    }
}

#[cfg(test)]
mod tests;
