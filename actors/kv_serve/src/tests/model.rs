//! Random requests against a dictionary.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Store(usize, Vec<u64>),
    Load(usize, Vec<u64>),
    Has(usize, Vec<u64>, bool),
    Release(usize, Vec<u64>),
    Evict(usize),
    Reconnect(usize),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = || prop::collection::hash_set(0_u64..24, 1..6).prop_map(|ids| ids.into_iter().collect::<Vec<_>>());
    let client = || 0..3_usize;
    let step = prop_oneof![
        6 => (client(), ids()).prop_map(|(of, ids)| Step::Store(of, ids)),
        6 => (client(), ids()).prop_map(|(of, ids)| Step::Load(of, ids)),
        4 => (client(), ids(), any::<bool>()).prop_map(|(of, ids, pin)| Step::Has(of, ids, pin)),
        2 => (client(), ids()).prop_map(|(of, ids)| Step::Release(of, ids)),
        1 => client().prop_map(Step::Evict),
        1 => client().prop_map(Step::Reconnect),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// Two engines of one namespace, one of another. The store holds some of what they store: what it gives is right, and what was never stored, or evicted, is
/// never there.
fn run(place: &Place, steps: &[Step], keeps_all: bool) {
    let namespaces = [namespace(), namespace(), Namespace { dtype: "float16".into(), ..namespace() }];
    let digests: Vec<String> = namespaces.iter().map(|namespace| hex::encode(namespace.digest())).collect();
    let connect = |of: usize| place.engine(&format!("engine-{of}"), &namespaces[of]);
    let mut daemon = Some(place.daemon());
    let mut engines: Vec<Engine> = (0..3).map(connect).collect();
    let mut stored: HashMap<&str, HashSet<u64>> = HashMap::new();
    let mut pinned: Vec<HashSet<u64>> = vec![HashSet::new(); 3];
    for step in steps {
        match step {
            Step::Store(of, ids) => {
                engines[*of].store(ids);
                stored.entry(&digests[*of]).or_default().extend(ids);
            }
            Step::Load(of, ids) => {
                let loaded = engines[*of].load(ids);
                let known = stored.entry(&digests[*of]).or_default();
                for (id, loaded) in ids.iter().zip(loaded) {
                    assert!(!loaded || known.contains(id), "{id} was never stored");
                    let must = (keeps_all && known.contains(id)) || pinned[*of].remove(id);
                    assert!(loaded || !must, "{id} is pinned, or nothing was evicted");
                }
            }
            Step::Has(of, ids, pin) => {
                let has = engines[*of].has(ids, *pin);
                let known = stored.entry(&digests[*of]).or_default();
                for (id, has) in ids.iter().zip(has) {
                    assert!(!has || known.contains(id), "{id} was never stored");
                    assert!(has || !keeps_all || !known.contains(id), "{id} is lost");
                    if has && *pin && keeps_all {
                        pinned[*of].insert(*id);
                    }
                }
            }
            Step::Release(of, ids) => {
                engines[*of].release(ids);
                pinned[*of].retain(|id| !ids.contains(id));
            }
            Step::Evict(of) => {
                engines[*of].evict(&digests[*of], None).unwrap();
                stored.remove(digests[*of].as_str());
                for other in (0..3).filter(|other| digests[*other] == digests[*of]) {
                    pinned[other].clear();
                }
            }
            Step::Reconnect(of) => {
                engines[*of] = connect(*of);
                pinned[*of].clear();
            }
            Step::Restart => {
                drop(daemon.take());
                daemon = Some(place.daemon());
                engines = (0..3).map(connect).collect();
                pinned.iter_mut().for_each(HashSet::clear);
            }
        }
    }
    // What is being removed from the disk counts until it is.
    let blocks = daemon.as_ref().unwrap().blocks();
    assert!(blocks.inner().drain(Duration::from_secs(60)));
    let status = engines[0].status().store;
    assert_eq!((status.token_mismatches, status.late_misses), (0, 0));
    for tier in [status.host, status.disk] {
        assert!(tier.bytes <= tier.capacity_bytes, "{tier:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bounded_store_gives_what_was_stored_or_nothing(steps in steps(), host in 0_u64..8, disk in 0_u64..12) {
        run(&Place::new(host * 4600, disk * 4600), &steps, false);
    }

    #[test]
    fn a_store_with_room_gives_all_that_was_stored(steps in steps()) {
        run(&Place::new(PLENTY, PLENTY), &steps, true);
    }
}
