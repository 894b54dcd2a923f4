//! What computes: the operations of a forward pass, on whatever memory a device has.
//!
//! Rows, keys and values, and the pool are the backend's own types: nothing here says that they lie in host memory or in
//! f32. What leaves a backend is what a host needs: logits, deviations, and KV as bytes to store.
//!
//! The processor is one ([`cpu`](crate::cpu)), CUDA another, in a package of its own (`kernels/cuda`). What a third one takes:
//!
//! - a [`Packer`](crate::model::Packer), by which [`load_parts`](crate::model::load_parts) and [`random_parts`](crate::model::random_parts)
//!   make its matrices of a checkpoint's: how each family's tensors are named and joined is not its affair;
//! - this trait, of which `check`, `run_pass`, `step` and `place_all_stored` need not be written;
//! - rows whose bits do not depend on the rows beside them, and slots that are checked before anything is written
//!   ([`check_slots`](crate::pool::check_slots), [`check_tokens`]);
//! - the tests of `kernels/cuda/tests/it`: every family beside transformers, pieces beside wholes, stored KV beside computed.

use std::fmt::Debug;
use std::ops::Range;

use crate::config::{ModelConfig, Positions};
use crate::deviation::Compared;
use crate::dtype::KvDtype;
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::pool::{BlockId, KvLayout};

/// The keys and values of one sequence. Slot s is token s % 16 of block `blocks[s / 16]`.
#[derive(Debug, Clone, Copy)]
pub struct SequenceView<'a> {
    pub blocks: &'a [BlockId],
    /// The true position of each filled slot, by slot. `u32::MAX` hides a slot from every query.
    pub key_positions: &'a [u32],
}

/// Query rows of one sequence.
#[derive(Debug, Clone)]
pub struct RowGroup<'a> {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// True positions, one a row.
    pub positions: &'a [u32],
    pub sequence: SequenceView<'a>,
}

impl<'a> RowGroup<'a> {
    /// What of it falls into `rows`, counted from their first; nothing where none does.
    pub fn clip(&self, rows: &Range<usize>) -> Option<RowGroup<'a>> {
        let (start, end) = (self.rows.start.max(rows.start), self.rows.end.min(rows.end));
        (start < end).then(|| RowGroup {
            rows: start - rows.start..end - rows.start,
            positions: &self.positions[start - self.rows.start..end - self.rows.start],
            sequence: self.sequence,
        })
    }
}

/// Where some tokens' KV goes: the blocks of their sequence, and for each token its slot there and its true position. Slot s is
/// token s % 16 of block `blocks[s / 16]`.
#[derive(Debug, Clone, Copy)]
pub struct Slots<'a> {
    pub blocks: &'a [BlockId],
    pub slots: &'a [u32],
    pub positions: &'a [u32],
}

/// One layer's stored K (before rotation) and V of some tokens: row-major `[tokens, kv_dim]`, little endian.
#[derive(Debug, Clone, Copy)]
pub struct StoredKv<'a> {
    pub dtype: KvDtype,
    pub k: &'a [u8],
    pub v: &'a [u8],
}

/// One layer's fresh K (before rotation) and V as they are stored: row-major `[tokens, kv_dim]`, little endian, in the layout's
/// dtype.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvBytes {
    pub k: Vec<u8>,
    pub v: Vec<u8>,
    /// Whether every value is a finite number.
    pub is_finite: bool,
}

/// Rows of one sequence in a [step](Backend::step).
#[derive(Debug)]
pub struct StepPart<'a, R> {
    /// What was [embedded](Backend::embed).
    pub rows: &'a R,
    /// Where their K and V go; one slot and one position a row.
    pub to: Slots<'a>,
    /// The true position of each slot of the sequence that is in place once the rows' are. `u32::MAX` hides a slot.
    pub key_positions: &'a [u32],
}

/// What a [step](Backend::step) computed.
#[derive(Debug)]
pub struct Stepped {
    /// `[rows, vocab]`, in the order of the parts.
    pub logits: Matrix,
    /// By layer, where they were wanted: fresh K (before rotation) and V of all rows as they are stored, row-major `[rows, kv_dim]`.
    pub kv: Vec<[Vec<u8>; 2]>,
}

/// A model on a device.
///
/// The bits of a row of any result depend on its token, its position and the keys it sees, not on the rows beside it.
pub trait Backend: Send + Sync + 'static {
    /// Hidden states of some tokens.
    type Rows: Debug + Send;
    /// Fresh K and V of some tokens in one layer.
    type Kv: Debug + Send;
    /// The paged memory of K and V.
    type Pool: Debug + Send;

    /// The model's shapes and rules.
    fn config(&self) -> &ModelConfig;

    /// The shape of its keys and values.
    fn kv_layout(&self) -> KvLayout;

    /// A pool of `blocks` blocks.
    fn new_pool(&self, blocks: usize) -> Self::Pool;

    /// Whether the operations before it did what they were asked. A device that works beside the host learns of an error late: what its
    /// operations gave since then means nothing. Asked at the end of a pass, before its results are used.
    ///
    /// # Errors
    /// `DeviceLost` where the memory is gone, until a new pool is asked for; otherwise what went wrong, once.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Runs the steps of one pass where they are cheapest to begin.
    fn run_pass<R: Send>(&self, steps: impl FnOnce() -> R + Send) -> R {
        steps()
    }

    /// The rows that enter the first layer, one a token, each at its position.
    ///
    /// # Errors
    /// `InvalidInput` for a token outside the vocabulary, and for a position that the model has not learned where it learns them.
    fn embed(&self, tokens: &[u32], positions: &[u32]) -> Result<Self::Rows>;

    /// A copy of rows of several, in the order given.
    fn gather(&self, parts: &[(&Self::Rows, &[usize])]) -> Self::Rows;

    /// K and V of the rows that enter `layer`.
    fn project(&self, layer: usize, rows: &Self::Rows) -> Self::Kv;

    /// A copy of the K and V of some rows.
    fn gather_kv(&self, kv: &Self::Kv, rows: &[usize]) -> Self::Kv;

    /// Writes the K and V of the rows `rows` of `kv` to their slots, K rotated to its position.
    ///
    /// # Errors
    /// `InvalidInput` if a slot or a block does not exist; nothing is written then.
    fn place(
        &self,
        pool: &mut Self::Pool,
        layer: usize,
        to: Slots<'_>,
        kv: &Self::Kv,
        rows: Range<usize>,
    ) -> Result<()>;

    /// Writes stored K and V to their slots, K rotated to its position.
    ///
    /// # Errors
    /// As [`Backend::place`], and where there are fewer stored values than slots.
    fn place_stored(&self, pool: &mut Self::Pool, layer: usize, to: Slots<'_>, stored: StoredKv<'_>) -> Result<()>;

    /// The same of several entries, one after the other. A device may take all of them on one way.
    ///
    /// # Errors
    /// As [`Backend::place_stored`]; those before the one that fails may be written.
    fn place_all_stored(&self, pool: &mut Self::Pool, layer: usize, parts: &[(Slots<'_>, StoredKv<'_>)]) -> Result<()> {
        parts.iter().try_for_each(|(to, stored)| self.place_stored(pool, layer, *to, *stored))
    }

    /// Takes rows from a layer's entry to its exit: attention over what the pool holds of each group's sequence, the output
    /// projection, and the feed-forward part. Every row is in one group; groups follow each other.
    fn finish(&self, layer: usize, rows: &mut Self::Rows, groups: &[RowGroup<'_>], pool: &Self::Pool);

    /// Takes a few rows through all layers at once, where nobody looks into a layer: the step of running answers. The same bits as by
    /// `project`, `place`, `finish` and `logits` of each layer. `None` where the device has no faster way than those, or it failed:
    /// then they are called, and say what is wrong. What was written by then may be written again.
    fn step(&self, parts: &[StepPart<'_, Self::Rows>], pool: &mut Self::Pool, wants_kv: bool) -> Option<Stepped> {
        let _ = (parts, pool, wants_kv);
        None
    }

    /// What the rows of `group`, of those that enter `layer`, look at: the softmax weights that each gives to each slot of its
    /// sequence, the mean over heads; `[rows, slots]`, in host memory. The layer's K is in place.
    fn attention_weights(&self, layer: usize, rows: &Self::Rows, group: &RowGroup<'_>, pool: &Self::Pool) -> Matrix;

    /// Logits `[rows, vocab]`, in host memory, of rows that left the last layer.
    fn logits(&self, rows: &Self::Rows) -> Matrix;

    /// How far stored K and V are from fresh ones, see [`kv_deviation`](crate::deviation::kv_deviation): one value a pair of
    /// (row of `fresh`, token of `stored`).
    ///
    /// # Errors
    /// `InvalidInput` if a pair names what is not there.
    fn deviation(
        &self,
        fresh: &Self::Kv,
        stored: StoredKv<'_>,
        pairs: &[(usize, usize)],
        compared: Compared,
    ) -> Result<Vec<f32>>;

    /// Fresh K and V of the rows `rows`, as they are stored.
    fn export(&self, kv: &Self::Kv, rows: Range<usize>) -> KvBytes;

    /// Copies a block, every layer of it, bit for bit.
    ///
    /// # Errors
    /// `InvalidInput` if a block does not exist; nothing is written then.
    fn copy_block(&self, pool: &mut Self::Pool, from: BlockId, to: BlockId) -> Result<()>;

    /// A block's bytes, every layer of it, as they are: rotated, in the device's own form. Only
    /// [`write_block`](Backend::write_block) of the same pool reads them.
    ///
    /// # Errors
    /// `InvalidInput` if the block does not exist.
    fn read_block(&self, pool: &Self::Pool, block: BlockId) -> Result<Vec<u8>>;

    /// Puts a block's bytes back, into the same block or another.
    ///
    /// # Errors
    /// `InvalidInput` if the block does not exist, or the bytes are not a block's; nothing is written then.
    fn write_block(&self, pool: &mut Self::Pool, block: BlockId, bytes: &[u8]) -> Result<()>;
}

/// Checks what [`Backend::embed`] is given.
///
/// # Errors
/// `InvalidInput` for an id outside the vocabulary, and for a position that a learned table does not have.
pub fn check_tokens(config: &ModelConfig, tokens: &[u32], positions: &[u32]) -> Result<()> {
    let (vocab, known) = (config.vocab_size, config.max_positions);
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(Error::invalid_input(format!(
            "token id {token} is outside the model's vocabulary of {vocab}; the tokenizer belongs to another model"
        )));
    }
    if let Some(position) = positions.iter().find(|position| **position as usize >= known)
        && config.positions == Positions::Learned
    {
        return Err(Error::invalid_input(format!(
            "position {position} is beyond the {known} that the model has learned; shorten the prompt"
        )));
    }
    Ok(())
}
