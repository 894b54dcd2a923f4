//! The tree by hand, and against a naive one on random operations.

mod model;
mod parties;

use proptest::prelude::*;

use self::model::{Model, Step};
use super::*;

const TINY: u64 = 10;

fn tree(capacities: &[u64], policy: PolicyKind) -> KnowledgeTree<u64> {
    let tiers = capacities.iter().map(|&capacity_bytes| TierOptions { capacity_bytes, policy }).collect();
    KnowledgeTree::new(&TreeOptions { tiers, max_nodes: 1000, allow_orphans: false })
}

/// A request of the path `keys`, each node of [`TINY`] bytes, as the simulator does it.
fn request(tree: &mut KnowledgeTree<u64>, keys: &[u64]) -> Vec<Eviction> {
    let mut path = tree.match_path(keys);
    let cached = path.cached;
    for key in &keys[path.nodes.len()..] {
        path.nodes.push(tree.enter(path.nodes.last().copied(), *key, TINY));
    }
    path.nodes.iter().for_each(|node| tree.pin(*node));
    tree.access(&path.nodes, cached, 1.0);
    let mut evicted = Vec::new();
    for node in &path.nodes {
        if let Admission::Admitted(left) = tree.admit(*node, 0) {
            evicted.extend(left);
        }
    }
    path.nodes.iter().for_each(|node| tree.unpin(*node));
    evicted
}

fn keys_of(tree: &KnowledgeTree<u64>, evicted: &[Eviction]) -> Vec<u64> {
    evicted.iter().map(|eviction| tree.key(eviction.node)).collect()
}

#[test]
fn a_path_is_matched_from_its_root_up_to_what_is_known() {
    let mut tree = tree(&[100], PolicyKind::Lru);
    request(&mut tree, &[1, 12, 123]);
    request(&mut tree, &[2, 22]);
    let matched = tree.match_path(&[1, 12, 124]);
    assert_eq!((matched.nodes.len(), matched.cached), (2, 2));
    assert_eq!(matched.nodes.iter().map(|node| tree.key(*node)).collect::<Vec<_>>(), [1, 12]);
    assert_eq!(tree.match_path(&[3]), Matched::default());
    // 22 stands behind 2, not behind 1.
    assert_eq!(tree.match_path(&[1, 22]).nodes.len(), 1);
    let leaf = tree.find(&12).unwrap();
    tree.remove(leaf, 0);
    let matched = tree.match_path(&[1, 12, 123]);
    assert_eq!((matched.nodes.len(), matched.cached), (3, 1), "removal takes what stands behind along");
}

#[test]
fn only_leaves_leave_and_parents_outlive_their_children() {
    let mut tree = tree(&[3 * TINY], PolicyKind::Lru);
    request(&mut tree, &[1, 12, 123]);
    // 1 and 12 were used before 123, but 123 is the leaf; then 12 is.
    let evicted = request(&mut tree, &[2, 22]);
    assert_eq!(keys_of(&tree, &evicted), [123, 12]);
    let evicted = request(&mut tree, &[1]);
    assert!(evicted.is_empty());
    let evicted = request(&mut tree, &[3]);
    assert_eq!(keys_of(&tree, &evicted), [22], "2 is older, but has a child");
}

#[test]
fn pins_keep_a_node_and_its_ancestors() {
    let mut tree = tree(&[3 * TINY], PolicyKind::Lru);
    request(&mut tree, &[1, 12]);
    request(&mut tree, &[2]);
    let pinned = tree.find(&12).unwrap();
    tree.pin(pinned);
    tree.pin(pinned);
    assert!(tree.is_pinned(tree.find(&1).unwrap()));
    assert_eq!(tree.usage(0).evictable_bytes, TINY);
    let two = tree.enter(None, 3, 2 * TINY);
    assert_eq!(tree.admit(two, 0), Admission::NoRoom);
    assert_eq!(tree.usage(0).nodes, 3, "nothing was evicted for it");
    tree.unpin(pinned);
    assert!(tree.is_pinned(pinned));
    tree.unpin(pinned);
    let Admission::Admitted(evicted) = tree.admit(two, 0) else { panic!("there is room") };
    assert_eq!(keys_of(&tree, &evicted), [12, 1]);
}

#[test]
fn what_has_to_be_there_exceeds_the_bound_only_beside_pins() {
    let mut tree = tree(&[2 * TINY], PolicyKind::Lru);
    request(&mut tree, &[1, 12]);
    let roomy = tree.enter(None, 2, TINY);
    let evicted = tree.admit_regardless(roomy, 0);
    assert_eq!((keys_of(&tree, &evicted), tree.usage(0).bytes), (vec![12], 2 * TINY), "as any other, if there is room");
    tree.pin(roomy);
    let pinned = tree.enter(None, 3, 2 * TINY);
    tree.pin(pinned);
    let evicted = tree.admit_regardless(pinned, 0);
    assert_eq!((keys_of(&tree, &evicted), tree.usage(0).bytes), (vec![1], 3 * TINY), "all that can leaves");
    assert_eq!(tree.usage(0).evictable_bytes, 0);
    let other = tree.enter(None, 4, TINY);
    assert_eq!(tree.admit(other, 0), Admission::NoRoom);
    tree.unpin(pinned);
    let Admission::Admitted(evicted) = tree.admit(other, 0) else { panic!("there is room") };
    assert_eq!((keys_of(&tree, &evicted), tree.usage(0).bytes), (vec![3], 2 * TINY), "the bound holds again");
}

#[test]
fn what_is_larger_than_the_tier_or_has_no_parent_there_is_not_admitted() {
    let mut tree = tree(&[2 * TINY], PolicyKind::Lru);
    let root = tree.enter(None, 1, TINY);
    let child = tree.enter(Some(root), 12, TINY);
    assert_eq!(tree.admit(child, 0), Admission::Orphan);
    let huge = tree.enter(None, 2, 2 * TINY + 1);
    assert_eq!(tree.admit(huge, 0), Admission::NoRoom);
    assert_eq!(tree.admit(root, 0), Admission::Admitted(Vec::new()));
    assert_eq!(tree.admit(root, 0), Admission::AlreadyThere);
    // There is room only if the parent goes, and it must not.
    let wide = tree.enter(Some(root), 13, 2 * TINY);
    assert_eq!(tree.admit(wide, 0), Admission::NoRoom);
    assert!(tree.is_in(root, 0));
}

/// Copied down on the first eviction from the device, and never again while the host has it.
#[test]
fn a_node_is_swapped_out_once() {
    let mut tree = tree(&[2 * TINY, 100], PolicyKind::Lru);
    request(&mut tree, &[1, 12]);
    let (root, leaf) = (tree.find(&1).unwrap(), tree.find(&12).unwrap());
    let other = tree.enter(None, 2, TINY);
    let Admission::Admitted(evicted) = tree.admit(other, 0) else { panic!("there is room") };
    assert_eq!(evicted, [Eviction { node: leaf, bytes: TINY, copy_to: Some(1) }]);
    // The leaf takes its root along, so that the host can be used alone.
    let done = tree.swap_out(leaf, 1);
    assert_eq!((done.copied, done.is_there), (vec![root, leaf], true));
    assert_eq!(tree.usage(1).evictable_bytes, TINY, "the root's copy stays for as long as the device has it");
    // Back into the device for the other, out again: nothing to copy.
    tree.access(&[root], 1, 0.0);
    let Admission::Admitted(evicted) = tree.admit(leaf, 0) else { panic!("there is room") };
    assert_eq!(evicted, [Eviction { node: other, bytes: TINY, copy_to: Some(1) }]);
    let Some(evicted) = tree.make_room(0, 2 * TINY) else { panic!("there is room") };
    assert_eq!(evicted.iter().map(|left| (left.node, left.copy_to)).collect::<Vec<_>>(), [(leaf, None), (root, None)]);
    assert_eq!(tree.fastest_tier(leaf), Some(1));
}

#[test]
fn swapping_out_into_a_full_host_says_so() {
    let mut tree = tree(&[2 * TINY, TINY], PolicyKind::Lru);
    request(&mut tree, &[1, 12]);
    let leaf = tree.find(&12).unwrap();
    let evicted = tree.make_room(0, TINY).unwrap();
    assert_eq!(evicted[0].copy_to, Some(1));
    let done = tree.swap_out(leaf, 1);
    assert!(!done.is_there, "its root fills the host");
    assert_eq!(tree.fastest_tier(leaf), None);
}

#[test]
fn the_hottest_upper_nodes_come_with_their_parents() {
    let mut tree = tree(&[1000], PolicyKind::Lru);
    for (path, times) in [(&[1, 12][..], 5), (&[1, 13, 131], 3), (&[2, 21], 4), (&[3], 1)] {
        (0..times).for_each(|_| drop(request(&mut tree, path)));
    }
    let hottest = |bytes| tree.hottest(bytes).into_iter().map(|node| tree.key(node)).collect::<Vec<_>>();
    assert_eq!(hottest(4 * TINY), [1, 12, 2, 21]);
    assert_eq!(hottest(TINY - 1), Vec::<u64>::new());
    assert_eq!(hottest(1000), [1, 12, 2, 21, 13, 131, 3]);
}

#[test]
fn free_nodes_are_forgotten_beyond_the_bound_the_oldest_first() {
    let tiers = vec![TierOptions { capacity_bytes: 2 * TINY, policy: PolicyKind::Lru }];
    let mut tree = KnowledgeTree::new(&TreeOptions { tiers, max_nodes: 4, allow_orphans: false });
    for key in 1..=4 {
        request(&mut tree, &[key]);
    }
    assert_eq!((tree.len(), tree.usage(0).nodes), (4, 2));
    // 1 and 2 are free, and 1 was used since.
    tree.access(&[tree.find(&1).unwrap()], 0, 1.0);
    request(&mut tree, &[5]);
    assert_eq!((tree.len(), tree.find(&2)), (4, None));
    assert!(tree.find(&1).is_some());
}

#[test]
fn an_orphan_finds_its_parent_where_orphans_are_allowed() {
    let tiers = vec![TierOptions { capacity_bytes: 3 * TINY, policy: PolicyKind::Lru }];
    let mut tree = KnowledgeTree::new(&TreeOptions { tiers, max_nodes: 100, allow_orphans: true });
    let parent = tree.enter(None, 12, 0);
    let child = tree.enter(Some(parent), 123, TINY);
    assert_eq!(tree.admit(child, 0), Admission::Admitted(Vec::new()));
    let root = tree.enter(None, 1, TINY);
    assert_eq!(tree.enter(Some(root), 12, TINY), parent);
    assert_eq!((tree.parent(parent), tree.size_bytes(parent)), (Some(root), TINY));
    assert_eq!(tree.enter(Some(child), 1, TINY), root, "a circle is not closed");
    assert_eq!(tree.parent(root), None);
    tree.admit(parent, 0);
    assert_eq!(tree.make_room(0, 2 * TINY).unwrap()[0].node, child, "from now on it is its parent's child");
    tree.admit(child, 0);
    assert_eq!(tree.remove(parent, 0), [parent]);
    assert!(tree.is_in(child, 0));
}

/// After a restart every entry is a root; the first request that uses the path says what stands before what.
#[test]
fn entries_that_came_without_their_parents_are_linked_where_orphans_are_allowed() {
    let tiers = vec![TierOptions { capacity_bytes: 3 * TINY, policy: PolicyKind::Lru }];
    let mut tree = KnowledgeTree::new(&TreeOptions { tiers, max_nodes: 100, allow_orphans: true });
    let chain: Vec<NodeId> = [1, 12, 123].iter().map(|key| tree.enter(None, *key, TINY)).collect();
    for node in &chain {
        assert_eq!(tree.admit(*node, 0), Admission::Admitted(Vec::new()));
    }
    tree.pin(chain[2]);
    assert_eq!(tree.enter(Some(chain[1]), 123, 0), chain[2]);
    assert_eq!(tree.enter(Some(chain[0]), 12, 0), chain[1]);
    for behind in [chain[2], chain[0]] {
        assert_eq!(tree.enter(Some(behind), 1, 0), chain[0], "a circle is not closed");
    }
    let parents: Vec<Option<NodeId>> = chain.iter().map(|node| tree.parent(*node)).collect();
    assert_eq!(parents, [None, Some(chain[0]), Some(chain[1])]);
    assert_eq!((tree.size_bytes(chain[1]), tree.usage(0).evictable_bytes), (TINY, 0), "the pin keeps them all");
    tree.unpin(chain[2]);
    tree.access(&chain, 3, 0.0);
    let evicted = tree.make_room(0, 2 * TINY).unwrap();
    assert_eq!(keys_of(&tree, &evicted), [123, 12], "from its end");
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let path = || prop::collection::vec(1u64..4, 1..5);
    let tier = || 0usize..3;
    let step = prop_oneof![
        6 => path().prop_map(Step::Request),
        2 => (path(), tier()).prop_map(|(path, tier)| Step::Admit(path, tier)),
        2 => path().prop_map(Step::Pin),
        2 => any::<prop::sample::Index>().prop_map(Step::Unpin),
        1 => (path(), tier()).prop_map(|(path, tier)| Step::Remove(path, tier)),
        1 => (tier(), 1u64..60).prop_map(|(tier, bytes)| Step::MakeRoom(tier, bytes)),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_tree_does_what_the_naive_one_does(
        steps in steps(),
        capacities in prop::collection::vec(1u64..120, 1..4),
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        max_nodes in 1usize..60,
    ) {
        let mut model = Model::new(&capacities, kind, max_nodes, false);
        for step in &steps {
            model.run(step)?;
        }
    }

    #[test]
    fn a_tree_with_orphans_does_what_the_naive_one_does(
        steps in steps(),
        capacity in 1u64..120,
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        let mut model = Model::new(&[capacity], kind, 1000, true);
        for step in &steps {
            model.run(step)?;
        }
    }
}
