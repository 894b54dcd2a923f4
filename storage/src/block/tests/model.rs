//! Random operations on the pool and on a naive one: every block's holders, listed.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;

use super::*;

const BLOCKS: usize = 14;

/// Blocks kept behind a sequence, as the device tier keeps them.
struct Kept {
    blocks: Vec<SharedBlock>,
    tokens: usize,
}

/// A path somebody found, and what its blocks held then.
struct Seen {
    weak: Vec<WeakBlock>,
    blocks: Vec<u32>,
    tokens: usize,
    stamps: Vec<u64>,
}

#[derive(Default)]
struct World {
    tables: Vec<BlockTable>,
    kept: Vec<Kept>,
    seen: Vec<Seen>,
    /// What was last written into each block, by whom it was owned then: a number that no two writings share.
    stamps: Vec<u64>,
    next: u64,
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize),
    Fork(prop::sample::Index),
    Extend(prop::sample::Index, usize),
    Drop(prop::sample::Index),
    /// Keeps the blocks of a table's first tokens.
    Keep(prop::sample::Index, usize),
    Evict(prop::sample::Index),
    /// Weak handles on what is kept.
    Find(prop::sample::Index),
    /// A new sequence behind what was found.
    Take(prop::sample::Index, usize),
    OwnSlot(prop::sample::Index, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (0usize..70).prop_map(Step::Allocate),
        index().prop_map(Step::Fork),
        (index(), 0usize..40).prop_map(|(index, tokens)| Step::Extend(index, tokens)),
        index().prop_map(Step::Drop),
        (index(), 1usize..70).prop_map(|(index, tokens)| Step::Keep(index, tokens)),
        index().prop_map(Step::Evict),
        index().prop_map(Step::Find),
        (index(), 0usize..40).prop_map(|(index, tokens)| Step::Take(index, tokens)),
        (index(), 0usize..70).prop_map(|(index, slot)| Step::OwnSlot(index, slot)),
    ]
}

impl World {
    /// Every block that a table may write to gets a new content.
    fn write(&mut self) {
        for table in &self.tables {
            for (index, block) in table.blocks().iter().enumerate() {
                if table.is_writable(index * BLOCK_TOKENS) {
                    self.next += 1;
                    self.stamps[block.0 as usize] = self.next;
                }
            }
        }
    }

    fn copy(&mut self, copy: Option<BlockCopy>) {
        if let Some(copy) = copy {
            assert_ne!(copy.from(), copy.to());
            self.stamps[copy.to().0 as usize] = self.stamps[copy.from().0 as usize];
        }
    }

    fn holders(&self, block: u32) -> usize {
        let of_tables = self.tables.iter().flat_map(|table| table.blocks());
        let of_kept = self.kept.iter().flat_map(|kept| &kept.blocks).map(SharedBlock::id);
        of_tables.copied().chain(of_kept).filter(|held| held.0 == block).count()
    }

    fn apply(&mut self, pool: &BlockAllocator, step: Step) {
        let free = pool.free_blocks();
        match step {
            Step::Allocate(tokens) => match pool.allocate(tokens) {
                Ok(table) => self.tables.push(table),
                Err(_) => assert!(free < tokens.div_ceil(BLOCK_TOKENS)),
            },
            Step::Keep(index, tokens) if !self.tables.is_empty() => {
                let table = index.get(&self.tables).tokens();
                let at = index.index(self.tables.len());
                let tokens = tokens.min(table);
                let blocks = self.tables[at].share(tokens);
                self.kept.push(Kept { blocks, tokens });
            }
            Step::Fork(index) if !self.tables.is_empty() => {
                let at = index.index(self.tables.len());
                let fork = self.tables[at].fork();
                assert_eq!(pool.free_blocks(), free, "a fork allocates nothing");
                self.tables.push(fork);
            }
            Step::Extend(index, tokens) if !self.tables.is_empty() => self.extend(pool, &index, tokens),
            Step::OwnSlot(index, slot) if !self.tables.is_empty() => {
                let at = index.index(self.tables.len());
                let before = self.tables[at].blocks().to_vec();
                match self.tables[at].own_slot(slot) {
                    Ok(copy) => self.copy(copy),
                    Err(_) => assert_eq!((pool.free_blocks(), self.tables[at].blocks()), (0, before.as_slice())),
                }
            }
            Step::Drop(index) if !self.tables.is_empty() => {
                self.tables.swap_remove(index.index(self.tables.len()));
            }
            Step::Evict(index) if !self.kept.is_empty() => {
                self.kept.swap_remove(index.index(self.kept.len()));
            }
            Step::Find(index) if !self.kept.is_empty() => self.find(&index),
            Step::Take(index, tokens) if !self.seen.is_empty() => self.take(pool, &index, tokens),
            _ => {}
        }
    }

    fn extend(&mut self, pool: &BlockAllocator, index: &prop::sample::Index, tokens: usize) {
        let at = index.index(self.tables.len());
        let (free, before) = (pool.free_blocks(), self.tables[at].blocks().to_vec());
        let old = self.tables[at].tokens();
        let last = before.last().filter(|_| tokens > 0 && !old.is_multiple_of(BLOCK_TOKENS));
        let copies = usize::from(last.is_some_and(|block| self.holders(block.0) > 1));
        let added = (old + tokens).div_ceil(BLOCK_TOKENS) - before.len();
        match self.tables[at].extend(tokens) {
            Ok(copy) => {
                assert_eq!(usize::from(copy.is_some()), copies, "a shared partial block is copied, and nothing else");
                assert_eq!(pool.free_blocks(), free - added - copies);
                self.copy(copy);
            }
            Err(_) => {
                assert!(free < added + copies);
                assert_eq!((pool.free_blocks(), self.tables[at].blocks()), (free, before.as_slice()));
            }
        }
    }

    fn find(&mut self, index: &prop::sample::Index) {
        let kept = index.get(&self.kept);
        let blocks: Vec<u32> = kept.blocks.iter().map(|block| block.id().0).collect();
        let stamps = blocks.iter().map(|block| self.stamps[*block as usize]).collect();
        let weak = kept.blocks.iter().map(SharedBlock::downgrade).collect();
        self.seen.push(Seen { weak, blocks, tokens: kept.tokens, stamps });
    }

    fn take(&mut self, pool: &BlockAllocator, index: &prop::sample::Index, tokens: usize) {
        let seen = index.get(&self.seen);
        let Some(blocks) = WeakBlock::upgrade_all(&seen.weak) else { return };
        let now: Vec<u64> = seen.blocks.iter().map(|block| self.stamps[*block as usize]).collect();
        assert_eq!(now, seen.stamps, "what is found is what was there");
        let (tokens, behind) = (seen.tokens + tokens, seen.tokens);
        if let Ok((table, copy)) = pool.allocate_behind(blocks, behind, tokens) {
            assert_eq!(table.blocks().len(), tokens.div_ceil(BLOCK_TOKENS));
            assert!(behind.is_multiple_of(BLOCK_TOKENS) || table.is_writable(behind));
            self.tables.push(table);
            self.copy(copy);
        }
    }

    fn check(&self, pool: &BlockAllocator) {
        let held: HashSet<u32> = (0..BLOCKS as u32).filter(|block| self.holders(*block) > 0).collect();
        assert_eq!(pool.free_blocks() + held.len(), BLOCKS, "no block is both free and held, none is lost");
        for kept in self.kept.iter().flat_map(|kept| &kept.blocks) {
            assert_eq!(kept.holders() as usize, self.holders(kept.id().0));
        }
        let mut writable = BTreeSet::new();
        for table in &self.tables {
            let own: HashSet<_> = table.blocks().iter().collect();
            assert_eq!(own.len(), table.blocks().len());
            assert!(table.capacity_tokens() >= table.tokens());
            assert!(table.capacity_tokens() - table.tokens() < BLOCK_TOKENS);
            for (index, block) in table.blocks().iter().enumerate() {
                if table.is_writable(index * BLOCK_TOKENS) {
                    assert_eq!(self.holders(block.0), 1, "a block that is written has one owner");
                    assert!(writable.insert(block.0));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens, every block is free or held by exactly those that list it, and nobody sees what others write.
    #[test]
    fn blocks_are_never_lost_nor_shared_by_accident(steps in prop::collection::vec(step(), 0..80)) {
        let pool = pool(BLOCKS);
        let mut world = World { stamps: vec![0; BLOCKS], ..World::default() };
        for step in steps {
            world.apply(&pool, step);
            world.check(&pool);
            world.write();
        }
        drop(world);
        prop_assert_eq!(pool.free_blocks(), BLOCKS);
        prop_assert_eq!(order_of_reuse(&pool).into_iter().collect::<BTreeSet<_>>().len(), BLOCKS);
    }
}
