//! Every interleaving of a few threads over the guards, with loom's locks in the place of the standard library's.

use loom::thread;

use self::guard::{BlockAllocator, SharedBlock, WeakBlock};
// `guard` asks its parent for these, here as in the normal build.
use super::{BLOCK_TOKENS, slots};

mod sync {
    pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
}

// The file is part of the crate once more, with other locks.
#[allow(clippy::duplicate_mod, dead_code)]
#[path = "guard.rs"]
mod guard;

fn shared(pool: &BlockAllocator) -> SharedBlock {
    pool.take_for_running(1).unwrap().pop().unwrap().complete().share()
}

#[test]
fn clones_and_drops_on_two_threads_leave_no_reference_and_lose_no_block() {
    loom::model(|| {
        let pool = BlockAllocator::new(2).unwrap();
        let block = shared(&pool);
        let other = block.clone();
        let thread = thread::spawn(move || {
            let again = other.clone();
            drop(other);
            drop(again);
        });
        drop(block.clone());
        assert!(block.holders() >= 1);
        drop(block);
        thread.join().unwrap();
        assert_eq!(pool.free_blocks(), 2);
        assert_eq!(pool.take_for_running(2).unwrap().len(), 2);
    });
}

#[test]
fn a_block_is_found_again_or_reused_and_never_both() {
    loom::model(|| {
        let pool = BlockAllocator::new(1).unwrap();
        let block = shared(&pool);
        let weak = block.downgrade();
        drop(block);
        let reuse = pool.clone();
        let taker = thread::spawn(move || reuse.take_for_running(1).ok());
        let found = weak.upgrade();
        let taken = taker.join().unwrap();
        assert!(found.is_some() != taken.is_some(), "one of them has the only block");
        drop((found, taken));
        assert_eq!(pool.free_blocks(), 1);
    });
}

#[test]
fn the_last_holder_writes_or_somebody_finds_it_and_never_both() {
    loom::model(|| {
        let pool = BlockAllocator::new(1).unwrap();
        let block = shared(&pool);
        let weak = block.downgrade();
        let finder = thread::spawn(move || weak.upgrade());
        let own = block.try_own();
        let found = finder.join().unwrap();
        assert!(own.is_err() || found.is_none(), "a block that is written has one owner");
        drop((own, found));
        assert_eq!(pool.free_blocks(), 1);
    });
}

#[test]
fn allocations_are_all_or_nothing_beside_each_other_and_beside_a_return() {
    loom::model(|| {
        let pool = BlockAllocator::new(3).unwrap();
        let held = pool.take_for_running(1).unwrap();
        let other = pool.clone();
        let taker = thread::spawn(move || other.take_for_running(2).map(|blocks| blocks.len()).unwrap_or(0));
        let mine = pool.take_for_running(2);
        drop(held);
        let count = taker.join().unwrap();
        assert!(count == 0 || count == 2);
        assert!(mine.is_ok() || count == 2, "two of three fit at least once");
        drop(mine);
        assert_eq!(pool.free_blocks(), 3);
    });
}

#[test]
fn a_chain_is_found_whole_or_not_at_all() {
    loom::model(|| {
        let pool = BlockAllocator::new(2).unwrap();
        let chain = [shared(&pool), shared(&pool)];
        let weak: Vec<WeakBlock> = chain.iter().map(SharedBlock::downgrade).collect();
        drop(chain);
        let other = pool.clone();
        let taker = thread::spawn(move || other.take_for_running(1).is_ok());
        let found = WeakBlock::upgrade_all(&weak);
        let is_taken = taker.join().unwrap();
        assert!(found.as_ref().is_none_or(|blocks| blocks.len() == 2));
        assert!(found.is_some() || is_taken);
        drop(found);
        assert_eq!(pool.free_blocks(), 2);
        assert_eq!(BLOCK_TOKENS, 16);
    });
}
