//! The block pool by hand, with what vLLM's block manager promises, and against a naive model on random operations.

mod model;

use super::*;
use crate::ErrorKind;

fn pool(blocks: usize) -> BlockAllocator {
    BlockAllocator::new(blocks).unwrap()
}

fn numbers(table: &BlockTable) -> Vec<u32> {
    table.blocks().iter().map(|block| block.0).collect()
}

/// The numbers of the blocks, in the order they would be reused in.
fn order_of_reuse(pool: &BlockAllocator) -> Vec<u32> {
    let taken = pool.take_for_running(pool.free_blocks()).unwrap();
    taken.iter().map(|block| block.id().0).collect()
}

#[test]
fn tables_waste_less_than_a_block_and_give_back_on_drop() {
    let pool = pool(10);
    for tokens in [0, 1, 15, 16, 17, 160] {
        let table = pool.allocate(tokens).unwrap();
        assert_eq!(table.tokens(), tokens);
        assert!(table.capacity_tokens() - tokens < BLOCK_TOKENS);
        assert_eq!(pool.free_blocks() + table.blocks().len(), 10);
        drop(table);
        assert_eq!(pool.free_blocks(), 10);
    }
}

#[test]
fn allocation_is_all_or_nothing() {
    let pool = pool(4);
    let held = pool.allocate(33).unwrap();
    let error = pool.allocate(17).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(pool.free_blocks(), 1);
    let mut small = pool.allocate(16).unwrap();
    assert_eq!(small.extend(1).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!((small.tokens(), small.blocks().len()), (16, 1), "a failed extension changes nothing");
    drop(held);
    assert!(small.extend(1).unwrap().is_none());
    assert_eq!(small.blocks().len(), 2);
}

#[test]
fn a_fork_allocates_nothing_and_an_append_to_a_shared_partial_block_copies_exactly_one() {
    let pool = pool(8);
    let mut parent = pool.allocate(20).unwrap();
    let mut child = parent.fork();
    assert_eq!(pool.free_blocks(), 6);
    let before = child.blocks().to_vec();
    let copy = child.extend(1).unwrap().expect("the shared last block is partly filled");
    assert_eq!(copy.from(), before[1]);
    assert_eq!(child.blocks(), [before[0], copy.to()]);
    assert_eq!(parent.blocks(), before);
    assert_eq!(pool.free_blocks(), 5);
    drop(copy);
    assert!(parent.extend(1).unwrap().is_none(), "it is its own now");
    assert!(child.extend(1).unwrap().is_none());
    drop(parent);
    assert_eq!(pool.free_blocks(), 6, "the first block is still shared");
    drop(child);
    assert_eq!(pool.free_blocks(), 8);
}

#[test]
fn an_append_to_an_aligned_shared_block_copies_none() {
    let pool = pool(8);
    let mut parent = pool.allocate(32).unwrap();
    let mut child = parent.fork();
    assert!(child.extend(0).unwrap().is_none());
    assert!(child.extend(1).unwrap().is_none());
    assert_eq!(child.blocks()[..2], *parent.blocks());
    assert_eq!(pool.free_blocks(), 5);
    assert!(!child.is_writable(31) && child.is_writable(32) && !parent.is_writable(0));
}

#[test]
fn a_failed_copy_on_write_changes_no_reference() {
    let pool = pool(2);
    let mut parent = pool.allocate(20).unwrap();
    let mut child = parent.fork();
    assert!(child.extend(1).is_err());
    assert_eq!(child.own_slot(17).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(child.blocks(), parent.blocks());
    let holders: Vec<u32> = parent.share(20).iter().map(SharedBlock::holders).collect();
    assert_eq!(holders, [3, 3], "both tables and the guards just made");
    drop(child);
    assert_eq!(pool.free_blocks(), 0);
    drop(parent);
    assert_eq!(pool.free_blocks(), 2);
}

#[test]
fn a_copy_keeps_its_source_until_it_was_made() {
    let pool = pool(4);
    let mut parent = pool.allocate(20).unwrap();
    let copy = parent.fork().own_slot(19).unwrap().expect("shared");
    let parents = parent.blocks().to_vec();
    drop(parent);
    assert_eq!((copy.from(), pool.free_blocks()), (parents[1], 3), "nobody else can write to it meanwhile");
    drop(copy);
    assert_eq!(pool.free_blocks(), 4);
}

#[test]
fn every_remainder_of_a_block_copies_one_block_unless_it_is_full() {
    for tokens in 1..=48 {
        let pool = pool(12);
        let mut first = pool.allocate(48).unwrap();
        let kept = first.share(tokens);
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        let (second, copy) = pool.allocate_behind(kept, tokens, 60).unwrap();
        let full = tokens / BLOCK_TOKENS;
        assert_eq!(copy.is_some(), !tokens.is_multiple_of(BLOCK_TOKENS), "{tokens}");
        assert_eq!(numbers(&second)[..full], numbers(&first)[..full], "{tokens}");
        assert_eq!((second.blocks().len(), pool.free_blocks()), (4, 12 - 3 - (4 - full)), "{tokens}");
        assert!((0..48).all(|slot| first.is_writable(slot) == (slot / BLOCK_TOKENS >= blocks)), "{tokens}");
        assert!((0..60).all(|slot| second.is_writable(slot) == (slot / BLOCK_TOKENS >= full)), "{tokens}");
        if let Some(copy) = copy {
            assert_eq!((copy.from(), copy.to()), (first.blocks()[full], second.blocks()[full]), "{tokens}");
        }
    }
}

#[test]
fn a_partial_block_that_nobody_else_holds_is_taken_over_and_its_old_content_is_found_no_more() {
    let pool = pool(3);
    let mut table = pool.allocate(40).unwrap();
    let kept = table.share(40);
    let weak: Vec<WeakBlock> = kept.iter().map(SharedBlock::downgrade).collect();
    drop(table);
    let (table, copy) = pool.allocate_behind(kept, 40, 41).unwrap();
    assert!(copy.is_none() && table.is_writable(40) && !table.is_writable(31));
    assert!(weak[0].upgrade().is_some() && weak[2].upgrade().is_none());
    assert!(WeakBlock::upgrade_all(&weak).is_none());
}

#[test]
fn what_was_freed_is_found_until_it_is_reused_and_the_tail_of_a_chain_goes_first() {
    let pool = pool(6);
    let mut table = pool.allocate(64).unwrap();
    let chain = numbers(&table);
    let weak: Vec<WeakBlock> = table.share(64).iter().map(SharedBlock::downgrade).collect();
    drop(table);
    assert_eq!(pool.free_blocks(), 6);
    // Two blocks hold nothing that anybody could find; then the chain from its end.
    let expected = [4, 5, chain[3], chain[2], chain[1], chain[0]];
    assert_eq!(order_of_reuse(&pool).into_iter().skip(2).collect::<Vec<_>>(), expected[2..]);
    assert!(weak[0].upgrade().is_none(), "all were reused");

    let mut table = pool.allocate(64).unwrap();
    let weak: Vec<WeakBlock> = table.share(64).iter().map(SharedBlock::downgrade).collect();
    let head = numbers(&table)[0];
    drop(table);
    let others = pool.take_for_running(5).unwrap();
    assert!(others.iter().all(|block| block.id().0 != head));
    assert!(WeakBlock::upgrade_all(&weak).is_none(), "a chain is found whole or not at all");
    assert_eq!(pool.free_blocks(), 1, "looking for it held nothing");
    let found = weak[0].upgrade().expect("the head is still there");
    assert_eq!((found.id().0, found.holders(), pool.free_blocks()), (head, 1, 0));
    drop(found);
    drop(others);
    assert_eq!(pool.free_blocks(), 6);
}

#[test]
fn finding_a_freed_block_again_takes_it_out_of_the_free_list() {
    let pool = pool(3);
    let mut tables: Vec<BlockTable> = (0..3).map(|_| pool.allocate(16).unwrap()).collect();
    let weak: Vec<WeakBlock> = tables.iter_mut().map(|table| table.share(16)[0].downgrade()).collect();
    drop(tables);
    // From the middle, the end and the front of the list.
    let held: Vec<SharedBlock> = [1, 2, 0].iter().map(|index| weak[*index].upgrade().unwrap()).collect();
    assert_eq!(pool.free_blocks(), 0);
    assert_eq!(pool.take_for_running(1).unwrap_err().kind(), ErrorKind::Full);
    drop(held);
    assert_eq!(order_of_reuse(&pool).len(), 3);
}

#[test]
fn admission_leaves_one_percent_to_running_sequences() {
    let pool = pool(300);
    assert_eq!((pool.watermark_blocks(), pool.usable_blocks()), (3, 297));
    assert_eq!(pool.allocate(298 * 16).unwrap_err().kind(), ErrorKind::Full);
    let mut running = pool.allocate(297 * 16).unwrap();
    assert_eq!(pool.allocate(1).unwrap_err().kind(), ErrorKind::Full);
    assert!(running.extend(48).unwrap().is_none(), "they may use it");
    assert_eq!(running.extend(1).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(BlockAllocator::new(99).unwrap().watermark_blocks(), 0);
}

/// Whether a type can be cloned, decided by the compiler: the inherent method comes first where its bound holds.
struct Probe<T>(std::marker::PhantomData<T>);
trait Otherwise {
    fn can_be_cloned(&self) -> bool {
        false
    }
}
impl<T> Otherwise for Probe<T> {}
impl<T: Clone> Probe<T> {
    fn can_be_cloned(&self) -> bool {
        true
    }
}

#[test]
fn a_block_that_is_written_cannot_have_two_owners_nor_be_freed_twice() {
    // Dropping takes the guard; a guard that cannot be cloned is dropped once.
    assert!(!Probe::<MutableBlock>(std::marker::PhantomData).can_be_cloned());
    assert!(!Probe::<CompleteBlock>(std::marker::PhantomData).can_be_cloned());
    assert!(!Probe::<BlockTable>(std::marker::PhantomData).can_be_cloned());
    assert!(Probe::<SharedBlock>(std::marker::PhantomData).can_be_cloned());
    let pool = pool(1);
    let block = pool.take_for_running(1).unwrap().pop().unwrap().complete();
    assert_eq!(block.id().0, 0);
    let shared = block.share();
    let other = shared.clone();
    let shared = shared.try_own().expect_err("another holds it");
    drop(other);
    let own = shared.try_own().expect("the last one");
    drop(own);
    assert_eq!(pool.free_blocks(), 1);
}

#[test]
fn a_pool_without_blocks_gives_none() {
    let pool = pool(0);
    assert_eq!((pool.free_blocks(), pool.total_blocks()), (0, 0));
    assert!(pool.allocate(0).unwrap().blocks().is_empty());
    assert_eq!(pool.allocate(1).unwrap_err().kind(), ErrorKind::Full);
}

#[test]
fn what_was_packed_comes_back_in_the_same_shape() {
    let pool = pool(12);
    let mut parent = pool.allocate(40).unwrap();
    let mut child = parent.fork();
    drop(child.extend(20).unwrap());
    let (distinct, packed) = PackedTables::of([&parent, &child]);
    assert_eq!((distinct.len(), packed.blocks()), (5, 5), "two shared, the third twice, one more");
    let tokens = (parent.tokens(), child.tokens());
    drop((parent, child));
    let hog = pool.allocate(16 * 8).unwrap();
    assert_eq!(pool.unpack(&packed).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(pool.free_blocks(), 4, "nothing has changed");
    drop(hog);
    let (blocks, tables) = pool.unpack(&packed).unwrap();
    assert_eq!((blocks.len(), pool.free_blocks()), (5, 7));
    assert_eq!((tables[0].tokens(), tables[1].tokens()), tokens);
    assert_eq!(tables[0].blocks()[..2], tables[1].blocks()[..2]);
    assert!(!tables[0].is_writable(0) && tables[0].is_writable(39) && tables[1].is_writable(59));
    let again = PackedTables::of(&tables);
    assert_eq!(again, (blocks, packed));
    drop(tables);
    assert_eq!(pool.free_blocks(), 12);
}
