//! The device tier over a memory that remembers, for every lane of every block, which prefix its KV belongs to.

mod engine;

use proptest::prelude::*;

use self::engine::{Engine, Sequence};
use super::*;
use crate::ErrorKind;
use crate::block::BLOCK_TOKENS;
use crate::prompt::primer::Primer;
use crate::prompt::residency::prompt_keys;
use crate::segment::{Segment, SegmentKind};

const MODEL: Fingerprint = Fingerprint([7; 32]);
const BLOCK_BYTES: usize = 100;

fn tier(blocks: usize) -> DeviceTier {
    DeviceTier::new(DeviceOptions { blocks, block_bytes: BLOCK_BYTES, policy: PolicyKind::Lru, cache: true }).unwrap()
}

/// `lengths` of segments; segments of one seed and length are the same.
fn prompt(segments: &[(u32, usize)], question: usize) -> Vec<Segment> {
    let segment = |kind, seed: u32, length: usize| Segment { kind, tokens: vec![seed; length].into(), place: None };
    let path = segments.iter().enumerate().map(|(index, (seed, length))| {
        segment(if index == 0 { SegmentKind::SystemPrompt } else { SegmentKind::Passage }, *seed, *length)
    });
    path.chain([segment(SegmentKind::Question, 999, question)]).collect()
}

fn key(segments: &[Segment], index: usize) -> KvKey {
    prompt_keys(&MODEL, "t", &Primer::none(), segments).unwrap()[index].chain_key.unwrap()
}

#[test]
fn a_prompt_that_begins_alike_takes_the_blocks_and_computes_the_rest() {
    let mut engine = Engine::new(tier(40));
    let first = prompt(&[(1, 10), (2, 33), (3, 20)], 7);
    let sequence = engine.ask(&first, 5).unwrap();
    assert_eq!(sequence.taken, 0);
    let before = engine.tier.allocator().free_blocks();
    let second = prompt(&[(1, 10), (2, 33), (4, 16)], 9);
    let other = engine.ask(&second, 5).unwrap();
    assert_eq!(other.taken, 43, "root and first passage");
    // 73 tokens are 5 blocks; two full ones are shared, the third is the one copy.
    assert_eq!((other.table.blocks()[..2].to_vec(), engine.copies), (sequence.table.blocks()[..2].to_vec(), 1));
    assert_eq!(before - engine.tier.allocator().free_blocks(), 3);
    assert_eq!(engine.ask(&first, 5).unwrap().taken, 63, "everything but the question");
    let status = engine.tier.status();
    assert_eq!((status.entries, status.hits, status.misses), (4, 2 + 3, 1 + 1));
}

#[test]
fn the_border_may_fall_anywhere_in_a_block() {
    for length in 1..=48 {
        let mut engine = Engine::new(tier(40));
        for (path, question) in [
            (vec![(1, length)], 3),
            (vec![(1, length), (2, 5)], 30),
            (vec![(1, length), (3, 1), (2, 5)], 1),
            (vec![(1, length), (3, 1), (4, 2), (5, 3)], 16),
            (vec![(1, length), (2, 5)], 2),
        ] {
            // The engine checks every lane that is taken, and the tier's every lane after each step.
            let mut sequence = engine.ask(&prompt(&path, question), 20).unwrap();
            engine.decode(&mut sequence, 20);
            engine.check(&[sequence]);
        }
        let again = engine.ask(&prompt(&[(1, length), (3, 1), (4, 2), (5, 3)], 1), 1).unwrap();
        assert_eq!(again.taken, length + 6);
        assert_eq!(engine.tier.status().entries, 6);
    }
}

#[test]
fn a_sequence_that_goes_on_in_a_kept_block_writes_to_its_own() {
    let mut engine = Engine::new(tier(12));
    // 20 tokens and a question of 2: the second block is kept, and decoding goes on in it.
    let first = prompt(&[(1, 20)], 2);
    let mut running = engine.ask(&first, 8).unwrap();
    assert_eq!(engine.copies, 1);
    let mut second = engine.ask(&first, 8).unwrap();
    assert_eq!((second.taken, engine.copies), (20, 2), "one copy of the border; the kept block is another by now");
    engine.decode(&mut running, 8);
    engine.decode(&mut second, 8);
    drop((running, second));
    assert_eq!(engine.tier.allocator().free_blocks(), 10);
    // Alone with its block, and no free one: what was kept of it leaves instead.
    let mut engine = Engine::new(tier(2));
    let mut running = engine.ask(&first, 8).unwrap();
    assert_eq!((engine.copies, engine.tier.status().entries), (0, 0));
    engine.decode(&mut running, 8);
}

#[test]
fn the_tail_of_a_path_leaves_first_and_only_as_much_as_is_needed() {
    let mut engine = Engine::new(tier(10));
    let path = prompt(&[(1, 16), (2, 32), (3, 32)], 16);
    drop(engine.ask(&path, 0).unwrap());
    assert_eq!((engine.tier.allocator().free_blocks(), engine.tier.evictable_blocks()), (5, 5));
    drop(engine.ask(&prompt(&[], 96), 0).unwrap());
    let left: Vec<bool> = (0..3).map(|index| engine.tier.contains(&key(&path, index))).collect();
    assert_eq!(left, [true, true, false]);
    let again = engine.ask(&path, 0).unwrap();
    assert_eq!(again.taken, 48, "the rest is computed again");
    assert_eq!(engine.tier.status().evicted, 1);
}

#[test]
fn what_cannot_be_had_changes_nothing() {
    let mut engine = Engine::new(tier(10));
    let path = prompt(&[(1, 16), (2, 32)], 16);
    let running = engine.ask(&path, 16).unwrap();
    drop(engine.ask(&prompt(&[(5, 32)], 4), 0).unwrap());
    let before = engine.tier.status();
    let free = engine.tier.allocator().free_blocks();
    assert_eq!((free, engine.tier.evictable_blocks()), (3, 2));
    let (found, refused) = engine.begin(&prompt(&[(1, 16), (9, 80)], 1), 0, false);
    assert!(matches!(refused, Err(Refused::Full(error)) if error.kind() == ErrorKind::Full));
    assert_eq!((found.segments(), found.tokens()), (1, 16));
    let after = engine.tier.status();
    assert_eq!((after.entries, after.evicted), (before.entries, before.evicted));
    assert_eq!(engine.tier.allocator().free_blocks(), free);
    drop((running, found));
    assert_eq!(engine.ask(&prompt(&[(1, 16), (9, 80)], 1), 0).unwrap().taken, 16);
}

#[test]
fn what_a_waiting_prompt_found_is_spared_while_others_can_go() {
    let mut engine = Engine::new(tier(10));
    let (old, young) = (prompt(&[(1, 48)], 16), prompt(&[(2, 48)], 16));
    drop(engine.ask(&old, 0).unwrap());
    drop(engine.ask(&young, 0).unwrap());
    let waiting = engine.find(&old);
    drop(engine.ask(&prompt(&[], 96), 0).unwrap());
    assert!(engine.tier.contains(&key(&old, 0)) && !engine.tier.contains(&key(&young, 0)), "not the oldest");
    assert!(engine.tier.begin(Some(&waiting), 48, 64, false).is_ok());
    // With no sequence to wait for, waiting prompts do not hold up another.
    let big = prompt(&[], 160);
    assert!(matches!(engine.begin(&big, 0, false).1, Err(Refused::Full(_))));
    let running = engine.ask(&big, 0).unwrap();
    assert!(matches!(engine.tier.begin(Some(&waiting), 48, 64, false), Err(Refused::Gone)));
    drop(running);
    assert!(matches!(engine.tier.begin(Some(&waiting), 48, 64, true), Err(Refused::Gone)), "others were there since");
}

#[test]
fn a_sequence_that_needs_the_whole_pool_takes_over_the_block_on_the_border() {
    let mut engine = Engine::new(tier(4));
    drop(engine.ask(&prompt(&[(1, 20)], 12), 0).unwrap());
    let second = engine.ask(&prompt(&[(1, 20)], 12), 32).unwrap();
    assert_eq!((second.taken, second.table.blocks().len(), engine.copies), (20, 4, 1), "there was room for a copy");
    // Its own path has the block in which it goes on, and there is no other.
    let mut engine = Engine::new(tier(2));
    let only = engine.ask(&prompt(&[(1, 20)], 1), 5).unwrap();
    assert_eq!((only.table.blocks().len(), engine.copies, engine.tier.status().entries), (2, 0, 0));
}

#[test]
fn what_was_invalidated_is_not_found_and_not_kept_by_who_planned_before() {
    let mut engine = Engine::new(tier(40));
    let path = prompt(&[(1, 16), (2, 20), (3, 20)], 4);
    drop(engine.ask(&path, 0).unwrap());
    let (seen, begun) = engine.begin(&path, 0, true);
    let mut table = begun.unwrap().0;
    let digest = SegmentDigest::of(&MODEL, &path[1].tokens);
    assert_eq!(engine.tier.invalidate(&MODEL, None, &[digest]).len(), 2, "it, and what was computed after it");
    assert!(engine.tier.contains(&key(&path, 0)) && !engine.tier.contains(&key(&path, 1)));
    let kept = engine.tier.keep(&seen, &engine::kept(&path), &mut table, 1.0);
    drop((table, seen, kept));
    assert!(!engine.tier.contains(&key(&path, 1)), "planned before");
    assert_eq!(engine.ask(&path, 0).unwrap().taken, 16);
    assert!(engine.tier.contains(&key(&path, 1)), "planned after");
    assert!(engine.tier.remove(&key(&path, 1)) && !engine.tier.remove(&key(&path, 1)));
}

#[test]
fn tenants_and_other_tokens_find_nothing() {
    let mut engine = Engine::new(tier(40));
    let path = prompt(&[(1, 16), (2, 20)], 4);
    drop(engine.ask(&path, 0).unwrap());
    let keys = prompt_keys(&MODEL, "other", &Primer::none(), &path).unwrap();
    let mine = prompt_keys(&MODEL, "t", &Primer::none(), &path).unwrap();
    assert!(keys.iter().zip(&mine).all(|(other, mine)| other.chain_key.is_none() || other.chain_key != mine.chain_key));
    let found = |keys: &[crate::prompt::residency::SegmentResidency], path: &[Segment]| {
        let path = keys.iter().zip(path).filter_map(|(at, segment)| Some((at.chain_key?, segment)));
        engine.tier.find("t", path).segments()
    };
    assert_eq!((found(&keys, &path), found(&mine, &path)), (0, 2));
    // The right key with other tokens: a collision. Never a hit.
    assert_eq!(found(&mine, &prompt(&[(1, 16), (3, 20)], 4)), 1);
}

#[test]
fn without_the_cache_nothing_is_kept() {
    let options = DeviceOptions { blocks: 40, block_bytes: BLOCK_BYTES, policy: PolicyKind::Lru, cache: false };
    let mut engine = Engine::new(DeviceTier::new(options).unwrap());
    for _ in 0..2 {
        assert_eq!(engine.ask(&prompt(&[(1, 16), (2, 20)], 4), 0).unwrap().taken, 0);
    }
    assert_eq!(engine.tier.allocator().free_blocks(), 40);
    assert_eq!(engine.tier.status(), TierStatus { capacity_bytes: 4000, ..TierStatus::default() });
}

#[test]
fn the_hottest_paths_are_named_before_the_device_is_lost() {
    let mut engine = Engine::new(tier(60));
    let (hot, cold) = (prompt(&[(1, 16), (2, 32)], 4), prompt(&[(1, 16), (3, 32)], 4));
    let other_root = prompt(&[(8, 16)], 4);
    for path in [&hot, &hot, &hot, &cold, &cold, &other_root] {
        drop(engine.ask(path, 0).unwrap());
    }
    let named = |bytes: usize| -> Vec<Vec<u32>> {
        let paths = engine.tier.hottest(bytes as u64);
        assert!(paths.iter().all(|path| &*path.tenant == "t"));
        paths.iter().map(|path| path.segments.iter().map(|segment| segment.tokens[0]).collect()).collect()
    };
    assert_eq!(named(3 * BLOCK_BYTES), [[1, 2]], "two blocks and the root's");
    assert_eq!(named(5 * BLOCK_BYTES), [vec![1, 2], vec![1, 3]]);
    assert_eq!(named(9 * BLOCK_BYTES), [vec![1, 2], vec![1, 3], vec![8]]);
    let mut running = engine.ask(&hot, 4).unwrap();
    engine.tier.clear();
    assert_eq!((engine.tier.status().entries, engine.tier.evictable_blocks()), (0, 0));
    assert!(engine.tier.hottest(1 << 20).is_empty());
    engine.decode(&mut running, 4);
    drop(running);
    assert_eq!(engine.tier.allocator().free_blocks(), 60);
    assert_eq!(engine.ask(&hot, 0).unwrap().taken, 0);
    assert_eq!(engine.ask(&hot, 0).unwrap().taken, 48);
}

/// A prompt that waits has found blocks whose memory is gone; a forgotten node's blocks would still be right.
#[test]
fn what_was_found_before_the_device_was_lost_is_not_found_after() {
    let mut engine = Engine::new(tier(10));
    let path = prompt(&[(1, 48)], 16);
    drop(engine.ask(&path, 0).unwrap());
    let waiting = engine.find(&path);
    engine.tier.clear();
    assert!(engine.tier.begin(Some(&waiting), 48, 64, false).is_ok(), "only forgotten");
    drop(engine.ask(&path, 0).unwrap());
    let waiting = engine.find(&path);
    assert_eq!(waiting.tokens(), 48);
    engine.tier.lose();
    assert!(matches!(engine.tier.begin(Some(&waiting), 48, 64, false), Err(Refused::Gone)));
    assert_eq!(engine.tier.allocator().free_blocks(), 10);
}

/// One thing that happens to the engine.
#[derive(Debug, Clone)]
enum Step {
    /// A prompt comes; with `true` it is found now and begins later.
    Ask(Vec<(u32, usize)>, usize, usize, bool),
    /// A prompt that was found begins.
    Begin(prop::sample::Index),
    Decode(prop::sample::Index, usize),
    End(prop::sample::Index),
    Remove(prop::sample::Index),
    Invalidate(u32),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    // Few seeds of few lengths: paths share beginnings, and borders fall everywhere in a block.
    let segment = (0u32..3).prop_map(|seed| (seed, [16, 5, 23][seed as usize]));
    let path = prop::collection::vec(segment, 0..5);
    prop_oneof![
        10 => (path, 1usize..20, 0usize..20, any::<bool>()).prop_map(|(a, b, c, d)| Step::Ask(a, b, c, d)),
        4 => index().prop_map(Step::Begin),
        4 => (index(), 1usize..20).prop_map(|(index, tokens)| Step::Decode(index, tokens)),
        6 => index().prop_map(Step::End),
        1 => index().prop_map(Step::Remove),
        1 => (0u32..3).prop_map(Step::Invalidate),
        1 => Just(Step::Clear),
    ]
}

/// What happened so far.
struct World {
    engine: Engine,
    running: Vec<Sequence>,
    waiting: Vec<(Vec<Segment>, DevicePath, usize)>,
    asked: Vec<Vec<Segment>>,
}

impl World {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Ask(path, question, more, waits) => {
                let segments = prompt(&path, question);
                self.asked.push(segments.clone());
                let found = self.engine.find(&segments);
                match waits {
                    true => self.waiting.push((segments, found, more)),
                    false => self.start(&segments, found, more),
                }
            }
            Step::Begin(index) if !self.waiting.is_empty() => {
                let (segments, found, more) = self.waiting.swap_remove(index.index(self.waiting.len()));
                self.start(&segments, found, more);
            }
            Step::Decode(index, tokens) if !self.running.is_empty() => {
                let at = index.index(self.running.len());
                self.engine.decode(&mut self.running[at], tokens);
            }
            Step::End(index) if !self.running.is_empty() => {
                self.running.swap_remove(index.index(self.running.len()));
            }
            Step::Remove(index) if !self.asked.is_empty() => {
                let segments = index.get(&self.asked);
                let last = index.index(segments.len());
                if segments[last].kind != SegmentKind::Question {
                    self.engine.tier.remove(&key(segments, last));
                    assert!(!self.engine.tier.contains(&key(segments, last)));
                }
            }
            Step::Invalidate(seed) => {
                let digest = SegmentDigest::of(&MODEL, &vec![seed; [16, 5, 23][seed as usize]]);
                self.engine.tier.invalidate(&MODEL, None, &[digest]);
            }
            Step::Clear => self.engine.tier.clear(),
            _ => {}
        }
    }

    fn start(&mut self, segments: &[Segment], found: DevicePath, more: usize) {
        let free = self.engine.tier.allocator().free_blocks();
        let entries = self.engine.tier.status().entries;
        let is_alone = self.running.is_empty();
        match self.engine.start(segments, found, more, is_alone) {
            Ok(sequence) => self.running.push(sequence),
            Err(Refused::Gone) => {}
            Err(Refused::Full(_)) => {
                let tokens = segments.iter().map(|segment| segment.tokens.len()).sum::<usize>();
                let usable = self.engine.tier.allocator().usable_blocks();
                assert!(!is_alone || tokens.div_ceil(BLOCK_TOKENS) > usable, "alone, what fits the pool is served");
                assert!(is_alone || self.engine.tier.allocator().free_blocks() == free);
                assert!(is_alone || self.engine.tier.status().entries == entries);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever happens: no sequence sees a lane that is not of its own prefix, counts add up, parents outlive children.
    #[test]
    fn every_lane_is_of_its_prefix_whatever_happens(
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let options = DeviceOptions { blocks: 13, block_bytes: BLOCK_BYTES, policy, cache: true };
        let engine = Engine::new(DeviceTier::new(options).unwrap());
        let mut world = World { engine, running: Vec::new(), waiting: Vec::new(), asked: Vec::new() };
        for step in steps {
            world.apply(step);
            world.engine.check(&world.running);
        }
        world.running.clear();
        world.waiting.clear();
        world.engine.check(&[]);
        prop_assert!(world.engine.tier.make_room(13), "nobody holds anything any more");
        prop_assert_eq!(world.engine.tier.status().entries, 0);
        prop_assert_eq!(world.engine.tier.allocator().free_blocks(), 13);
    }
}
