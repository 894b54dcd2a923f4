//! Parties that share a tier: nobody's share is taken, nobody exceeds its limit, and without terms all is as it was.

use proptest::prelude::*;

use super::super::*;
use crate::policy::shares::{Holding, Terms};

const CAPACITY: u64 = 60;

#[derive(Debug, Clone)]
enum Step {
    /// A party's request of a path.
    Request(Party, Vec<u64>),
    Pin(Party, Vec<u64>),
    Unpin(prop::sample::Index),
    Remove(Party, Vec<u64>),
    Terms(Party, Terms),
}

fn tree(kind: PolicyKind) -> KnowledgeTree<u64> {
    let tiers = vec![TierOptions { capacity_bytes: CAPACITY, policy: kind }];
    KnowledgeTree::new(&TreeOptions { tiers, max_nodes: 1000, allow_orphans: true })
}

fn keys(party: Party, path: &[u64]) -> Vec<u64> {
    let mut key = u64::from(party);
    path.iter()
        .map(|digit| {
            key = key * 10 + digit;
            key
        })
        .collect()
}

fn size(key: u64) -> u64 {
    3 + key % 7
}

/// Everything that is in the tier, as (party, bytes).
fn held(tree: &KnowledgeTree<u64>, party: Party) -> u64 {
    let own = tree.nodes.iter().filter(|node| node.party == party && node.resident.contains(0));
    own.map(|node| node.size_bytes).sum()
}

fn step() -> impl Strategy<Value = Step> {
    let path = || prop::collection::vec(1u64..4, 1..4);
    let party = || 1u32..4;
    let bytes = || prop_oneof![2 => 0u64..CAPACITY, 1 => Just(0), 1 => Just(u64::MAX)];
    prop_oneof![
        8 => (party(), path()).prop_map(|(party, path)| Step::Request(party, path)),
        1 => (party(), path()).prop_map(|(party, path)| Step::Pin(party, path)),
        1 => any::<prop::sample::Index>().prop_map(Step::Unpin),
        1 => (party(), path()).prop_map(|(party, path)| Step::Remove(party, path)),
        1 => (party(), bytes(), bytes())
            .prop_map(|(party, share_bytes, limit_bytes)| Step::Terms(party, Terms { share_bytes, limit_bytes })),
    ]
}

/// A request, and what left for it; every promise is checked at each admission.
fn request(tree: &mut KnowledgeTree<u64>, party: Party, path: &[u64]) -> Result<Vec<u64>, TestCaseError> {
    let keys = keys(party, path);
    let mut nodes = Vec::new();
    for key in &keys {
        nodes.push(tree.enter_of(party, nodes.last().copied(), *key, size(*key)));
    }
    tree.access(&nodes, 0, 2.0);
    let mut evicted = Vec::new();
    for node in nodes {
        let before: Vec<Holding> = (0..4).map(|party| tree.holding(0, party)).collect();
        match tree.admit(node, 0) {
            Admission::Admitted(left) => {
                evicted.extend(left.iter().map(|eviction| tree.key(eviction.node)));
                for other in (1..4).filter(|other| *other != party) {
                    let (before, now) = (before[other as usize], tree.holding(0, other));
                    prop_assert!(now.bytes >= before.bytes.min(before.terms.share_bytes), "{before:?} {now:?}");
                }
                let now = tree.holding(0, party);
                prop_assert!(now.bytes <= now.terms.limit_bytes, "{now:?}");
                prop_assert!(tree.usage(0).bytes <= CAPACITY);
            }
            Admission::NoRoom => {
                let now: Vec<Holding> = (0..4).map(|party| tree.holding(0, party)).collect();
                prop_assert_eq!(before, now, "nothing has changed");
            }
            Admission::AlreadyThere | Admission::Orphan => {}
        }
    }
    Ok(evicted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn shares_and_limits_hold_whatever_happens(
        steps in prop::collection::vec(step(), 0..120),
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        let mut tree = tree(kind);
        let mut pins = Vec::new();
        for step in &steps {
            match step {
                Step::Request(party, path) => drop(request(&mut tree, *party, path)?),
                Step::Pin(party, path) => {
                    if let Some(node) = keys(*party, path).last().and_then(|key| tree.find(key)) {
                        tree.pin(node);
                        pins.push(node);
                    }
                }
                Step::Unpin(which) => {
                    if !pins.is_empty() {
                        let node = pins.swap_remove(which.index(pins.len()));
                        tree.unpin(node);
                    }
                }
                Step::Remove(party, path) => {
                    if let Some(node) = keys(*party, path).last().and_then(|key| tree.find(key)) {
                        tree.remove(node, 0);
                    }
                }
                Step::Terms(party, terms) => tree.set_terms(0, *party, *terms),
            }
            for party in 0..4 {
                prop_assert_eq!(tree.holding(0, party).bytes, held(&tree, party));
            }
            let evictable: u64 = (0..4).map(|party| tree.holding(0, party).evictable_bytes).sum();
            prop_assert_eq!(evictable, tree.usage(0).evictable_bytes);
        }
    }

    /// Terms that bind nobody change nothing: who leaves is the policy's choice alone.
    #[test]
    fn with_terms_that_bind_nobody_the_same_leave(
        requests in prop::collection::vec((1u32..4, prop::collection::vec(1u64..4, 1..4)), 0..60),
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        let (mut plain, mut bound) = (tree(kind), tree(kind));
        bound.set_terms(0, 3, Terms { share_bytes: 0, limit_bytes: u64::MAX - 1 });
        for (party, path) in &requests {
            prop_assert_eq!(request(&mut plain, *party, path)?, request(&mut bound, *party, path)?);
        }
    }
}

#[test]
fn a_greedy_party_evicts_its_own_once_others_have_no_more_than_their_share() {
    let mut tree = tree(PolicyKind::Lru);
    let request = |tree: &mut KnowledgeTree<u64>, party, digit| request(tree, party, &[digit]).unwrap();
    tree.set_terms(0, 1, Terms { share_bytes: 14, ..Terms::default() });
    // 11, 12, 13 have 7, 8 and 9 bytes.
    (1..4).for_each(|digit| drop(request(&mut tree, 1, digit)));
    assert_eq!(tree.holding(0, 1).bytes, 24);
    let mut left = Vec::new();
    for digit in 1..200 {
        left.extend(request(&mut tree, 2, digit));
    }
    let of_first: Vec<u64> = left.iter().filter(|key| (11..=13).contains(*key)).copied().collect();
    assert_eq!((of_first, tree.holding(0, 1).bytes), (vec![11], 17), "what is above its share goes, oldest first");
    // For its own sake it may.
    tree.set_terms(0, 1, Terms { share_bytes: 14, limit_bytes: 17 });
    assert_eq!(request(&mut tree, 1, 4), [12], "its limit");
}
