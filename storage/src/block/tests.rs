use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn pool(blocks: usize) -> BlockAllocator {
    BlockAllocator::new(blocks).unwrap()
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
    assert_eq!(small.extend(1).unwrap(), None);
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
    assert_eq!(copy.from, before[1]);
    assert_eq!(child.blocks(), [before[0], copy.to]);
    assert_eq!(parent.blocks(), before);
    assert_eq!(pool.free_blocks(), 5);
    assert_eq!(parent.extend(1).unwrap(), None, "it is its own now");
    assert_eq!(child.extend(1).unwrap(), None);
    drop(parent);
    assert_eq!(pool.free_blocks(), 6, "the first block is still shared");
    drop(child);
    assert_eq!(pool.free_blocks(), 8);
}

#[test]
fn an_append_to_an_aligned_shared_block_copies_none() {
    let pool = pool(8);
    let parent = pool.allocate(32).unwrap();
    let mut child = parent.fork();
    assert_eq!(child.extend(0).unwrap(), None);
    assert_eq!(child.extend(1).unwrap(), None);
    assert_eq!(child.blocks()[..2], *parent.blocks());
    assert_eq!(pool.free_blocks(), 5);
}

#[test]
fn a_failed_copy_on_write_changes_no_reference() {
    let pool = pool(2);
    let parent = pool.allocate(20).unwrap();
    let mut child = parent.fork();
    assert!(child.extend(1).is_err());
    assert_eq!(child.blocks(), parent.blocks());
    drop(child);
    assert_eq!(pool.free_blocks(), 0);
    drop(parent);
    assert_eq!(pool.free_blocks(), 2);
}

proptest! {
    /// Whatever happens, every block is free or held by exactly the tables that list it.
    #[test]
    fn blocks_are_never_lost_nor_shared_by_accident(
        steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>(), 0usize..70), 0..60)
    ) {
        const BLOCKS: usize = 12;
        let pool = pool(BLOCKS);
        let mut tables: Vec<BlockTable> = Vec::new();
        for (step, which, tokens) in steps {
            match step {
                0 => tables.extend(pool.allocate(tokens)),
                _ if tables.is_empty() => {}
                1 => { let index = which.index(tables.len()); tables.swap_remove(index); }
                2 => { let fork = which.get(&tables).fork(); tables.push(fork); }
                _ => { let index = which.index(tables.len()); drop(tables[index].extend(tokens)); }
            }
            let held: HashSet<BlockId> = tables.iter().flat_map(|table| table.blocks().iter().copied()).collect();
            prop_assert_eq!(pool.free_blocks() + held.len(), BLOCKS);
            for table in &tables {
                let own: HashSet<_> = table.blocks().iter().collect();
                prop_assert_eq!(own.len(), table.blocks().len());
                prop_assert!(table.capacity_tokens() >= table.tokens());
                prop_assert!(table.capacity_tokens() - table.tokens() < BLOCK_TOKENS);
            }
        }
        drop(tables);
        prop_assert_eq!(pool.free_blocks(), BLOCKS);
    }
}
