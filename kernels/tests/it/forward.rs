//! The way of a prompt through a model, as the engine walks it.

use ragstone_kernels::backend::Backend;
use ragstone_kernels::forward::{Forward, Places, Wanted};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};

/// One sequence in a pool of its own.
pub struct Sequence<'a, B: Backend> {
    model: &'a B,
    pool: B::Pool,
    blocks: Vec<BlockId>,
    key_positions: Vec<u32>,
}

impl<'a, B: Backend> Sequence<'a, B> {
    /// An empty sequence with room for `capacity` tokens. Its blocks lie in the pool from the last to the first, so
    /// that nothing can rely on their order.
    pub fn new(model: &'a B, capacity: usize) -> Self {
        let count = capacity.div_ceil(BLOCK_TOKENS);
        let blocks = (0..count as u32).rev().map(BlockId).collect();
        Self { model, pool: model.new_pool(count), blocks, key_positions: Vec::new() }
    }

    /// Appends tokens at `positions` and returns their logits, `[tokens, vocab]`.
    pub fn append(&mut self, tokens: &[u32], positions: &[u32]) -> Matrix {
        let first = self.key_positions.len() as u32;
        let slots: Vec<u32> = (first..first + tokens.len() as u32).collect();
        self.key_positions.extend(positions);
        self.compute(tokens, positions, &slots)
    }

    /// Computes tokens into given slots; `positions[i]` must be what `key_positions` says of `slots[i]`.
    fn compute(&mut self, tokens: &[u32], positions: &[u32], slots: &[u32]) -> Matrix {
        let places = Places { slots: slots.to_vec(), positions: positions.to_vec() };
        let mut forward = Forward::new(self.model, &mut self.pool);
        forward.logits(tokens, places, Wanted::All, &self.blocks, &self.key_positions).unwrap()
    }

    /// A whole prompt in one pass, its tokens spread over the slots in a shuffled order.
    pub fn shuffled(model: &'a B, tokens: &[u32]) -> Matrix {
        let count = tokens.len() as u32;
        // 7 is prime to the count, so this visits every slot once.
        assert!(!count.is_multiple_of(7));
        let slots: Vec<u32> = (0..count).map(|i| (i * 7 + 3) % count).collect();
        let positions: Vec<u32> = (0..count).collect();
        let mut sequence = Self::new(model, tokens.len());
        sequence.key_positions = vec![0; tokens.len()];
        for (slot, position) in slots.iter().zip(&positions) {
            sequence.key_positions[*slot as usize] = *position;
        }
        sequence.compute(tokens, &positions, &slots)
    }
}

/// Positions 0 to `count` - 1.
pub fn counted(count: usize) -> Vec<u32> {
    (0..count as u32).collect()
}
