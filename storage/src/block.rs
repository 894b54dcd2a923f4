//! Blocks of the device pool: who holds which. The pool's memory is the kernels'; here are only its numbers.
//!
//! A block holds 16 tokens of every layer (PagedAttention, SOSP 2023, section 4). What may be done with a block is the type of
//! the guard that holds it, and dropping the guard gives the block back, so that nothing can be freed twice:
//!
//! ```text
//! allocate -> MutableBlock -complete-> CompleteBlock -share-> SharedBlock -downgrade-> WeakBlock
//!             one owner,               one owner,             any number,              finds the content
//!             being written            never written again    counted                  until it is reused
//!                 ^------------- try_own: the last SharedBlock may be written again -------'
//! ```
//!
//! A block that nobody holds is free. Its content stays findable through its weak handles until an allocation needs the
//! block: what nobody can find is reused first, then what was freed longest ago; a sequence gives its tail back before its
//! head. All counts are in one slot table under one lock ([`slots`]).
//!
//! A [`BlockTable`] is the blocks of one sequence: allocation is all or nothing, forks share, and whoever writes to a block
//! that others hold gets a copy of its own first ([`BlockCopy`]).

mod guard;
mod packed;
mod slots;
mod table;

pub use self::guard::{BlockAllocator, CompleteBlock, MutableBlock, SharedBlock, WeakBlock};
pub use self::packed::PackedTables;
pub use self::table::{BlockCopy, BlockTable};

/// Tokens in a block.
pub const BLOCK_TOKENS: usize = ragstone_kernels::pool::BLOCK_TOKENS;

/// The locks that `guard` is made with; `loom_tests` has others under the same name.
mod sync {
    pub(super) use std::sync::{Arc, Mutex, MutexGuard};
}

#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod tests;
