//! Each policy against a slow, obvious one on random operations, and PGDSF against the paper by hand.

mod reference;
mod shares;
mod slow_adaptive;
mod slow_density;

use proptest::prelude::*;

use self::reference::{SlowRanked, SlowS3Fifo};
use self::slow_adaptive::SlowAdaptive;
use self::slow_density::SlowHitDensity;
use super::*;

fn hit(request: u64) -> Access {
    Access { is_cached: true, request, ..Access::default() }
}

fn miss(request: u64, cost_per_token: f64) -> Access {
    Access { cost_per_token, request, ..Access::default() }
}

/// Enters `id` as a request that computed it does.
fn enter(policy: &mut dyn Policy, id: u32, access: Access) {
    policy.access(Id(id), access);
    policy.insert(Id(id), 10);
    policy.set_evictable(Id(id), true);
}

/// Algorithm 1 and equations 1 to 3 with numbers worked out by hand.
#[test]
fn pgdsf_by_hand() {
    let mut policy = Pgdsf::default();
    enter(&mut policy, 1, miss(1, 4.0));
    enter(&mut policy, 2, miss(2, 1.0));
    enter(&mut policy, 3, miss(3, 2.0));
    // Equation 1 with the clock at 0: 1 · 4, 1 · 1, 1 · 2.
    assert_eq!([1, 2, 3].map(|id| policy.priority_of(Id(id))), [4.0, 1.0, 2.0]);
    policy.access(Id(2), hit(4));
    policy.access(Id(2), hit(5));
    // Three uses of cost 1; a hit adds no cost (line 4).
    assert_eq!(policy.priority_of(Id(2)), 3.0);
    assert_eq!(policy.victim(), Some(Id(3)));
    policy.evict(Id(3));
    // Equation 2: the clock stands at 2, and 1's next use makes 2 + 2 · 4.
    policy.access(Id(1), hit(6));
    assert_eq!(policy.priority_of(Id(1)), 10.0);
    // Equation 3: 3 is computed again, this time for 5: (2 + 5) / 2, and it was used twice: 2 + 2 · 3.5.
    enter(&mut policy, 3, miss(7, 5.0));
    assert_eq!(policy.priority_of(Id(3)), 9.0);
    // What was ranked before the clock moved keeps its priority: 2 stands at 3 and goes next; the clock moves to 3.
    assert_eq!(policy.victim(), Some(Id(2)));
    policy.evict(Id(2));
    policy.access(Id(3), hit(8));
    assert_eq!(policy.priority_of(Id(3)), 3.0 + 3.0 * 3.5);
    // Leaving by another way moves no clock; forgetting forgets.
    policy.remove(Id(1));
    policy.forget(Id(1));
    enter(&mut policy, 1, miss(9, 1.0));
    assert_eq!(policy.priority_of(Id(1)), 4.0);
}

#[test]
fn pgdsf_counts_within_its_window() {
    let mut policy = Pgdsf::with_window(20);
    for request in [0, 1, 9] {
        policy.access(Id(0), miss(request, 1.0));
    }
    assert_eq!(policy.priority_of(Id(0)), 3.0);
    policy.access(Id(0), hit(12));
    assert_eq!(policy.priority_of(Id(0)), 4.0, "the half window before still counts");
    policy.access(Id(0), hit(20));
    assert_eq!(policy.priority_of(Id(0)), 2.0, "requests 12 and 20");
    policy.access(Id(0), hit(45));
    assert_eq!(policy.priority_of(Id(0)), 1.0);
}

#[test]
fn gdsf_and_lfu_start_anew_when_an_entry_comes_back() {
    for kind in [PolicyKind::Lfu, PolicyKind::Gdsf] {
        let mut policy = kind.build(100);
        enter(&mut *policy, 1, miss(1, 1.0));
        policy.access(Id(1), hit(2));
        policy.access(Id(1), hit(3));
        assert_eq!(policy.victim(), Some(Id(1)));
        policy.evict(Id(1));
        enter(&mut *policy, 1, miss(4, 1.0));
        enter(&mut *policy, 2, miss(5, 1.0));
        policy.access(Id(2), hit(6));
        // 1 has one use again and 2 has two. GDSF's clock stands at 3 for both.
        assert_eq!(policy.victim(), Some(Id(1)), "{kind}");
        policy.access(Id(1), hit(7));
        policy.access(Id(1), hit(8));
        assert_eq!(policy.victim(), Some(Id(2)), "{kind}");
    }
}

#[test]
fn s3_fifo_by_hand() {
    // Small: 10 of 100 bytes, one entry. Ghosts: 90 bytes.
    let mut policy = S3Fifo::new(100);
    for id in 0..3 {
        enter(&mut policy, id, miss(0, 1.0));
    }
    policy.access(Id(0), hit(1));
    policy.access(Id(0), hit(1));
    policy.access(Id(1), hit(1));
    // 0 was used twice and goes on into the main queue; 1 once, so that it leaves and is a ghost.
    assert_eq!(policy.victim(), Some(Id(1)));
    policy.evict(Id(1));
    // A ghost comes back into the main queue, behind 0.
    enter(&mut policy, 1, miss(2, 1.0));
    assert_eq!(policy.victim(), Some(Id(2)), "the small queue is at its share");
    policy.evict(Id(2));
    // The small queue is empty now: the main queue in its order, an entry that was used round again.
    policy.access(Id(0), hit(3));
    assert_eq!(policy.victim(), Some(Id(1)));
    policy.set_evictable(Id(1), false);
    assert_eq!(policy.victim(), Some(Id(0)), "1 is passed over");
    policy.remove(Id(0));
    assert_eq!(policy.victim(), None);
}

#[test]
fn hit_density_prefers_what_is_used_again() {
    let mut policy = HitDensity::default();
    // Requests 10 apart use one of 8 entries at the start of a path in turn; entries behind something new are used once.
    for request in 1..6000 {
        policy.access(Id((request % 8) as u32), miss(request, 1.0));
        policy.access(Id(100 + request as u32), Access { parent_uses: 1, ..miss(request, 1.0) });
    }
    enter(&mut policy, 0, hit(6000));
    policy.access(Id(20_000), Access { parent_uses: 1, ..miss(6002, 1.0) });
    policy.insert(Id(20_000), 10);
    policy.set_evictable(Id(20_000), true);
    assert_eq!(policy.victim(), Some(Id(20_000)), "although it was used last, and costs the same");
    policy.access(Id(20_001), miss(6003, 1e6));
    policy.insert(Id(20_001), 10);
    policy.set_evictable(Id(20_001), true);
    policy.evict(Id(20_000));
    assert_eq!(policy.victim(), Some(Id(0)), "what costs a million times as much is kept");
}

/// A tree may come to know a parent after its child, and nobody need have used it.
#[test]
fn a_parent_may_have_the_greater_number_and_no_uses() {
    for kind in PolicyKind::ALL {
        let mut policy = kind.build(100);
        let access = Access { parent: Some(Id(7)), past_uses: 1, ..miss(0, 1.0) };
        enter(&mut *policy, 0, access);
        enter(&mut *policy, 1, miss(1, 1.0));
        policy.evict(Id(0));
        assert_eq!(policy.victim(), Some(Id(1)), "{kind}");
    }
}

#[test]
fn names_are_read_back() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        assert_eq!(kind.build(1).kind(), kind);
    }
    assert!("fifo".parse::<PolicyKind>().unwrap_err().to_string().contains("s3-fifo"));
}

#[derive(Debug, Clone)]
enum Step {
    Access { id: u32, is_cached: bool, cost: u32, requests_later: u64, past_uses: u32 },
    Insert { id: u32, bytes: u64 },
    SetEvictable { id: u32, is_evictable: bool },
    Evict,
    Remove(u32),
    Forget(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = || 0u32..12;
    let step = prop_oneof![
        6 => (id(), any::<bool>(), 0u32..5, 0u64..40, prop_oneof![9 => Just(0u32), 1 => 1u32..5]).prop_map(
            |(id, is_cached, cost, requests_later, past_uses)| Step::Access { id, is_cached, cost, requests_later, past_uses }
        ),
        4 => (id(), 1u64..20).prop_map(|(id, bytes)| Step::Insert { id, bytes }),
        6 => (id(), prop::bool::weighted(0.8)).prop_map(|(id, is_evictable)| Step::SetEvictable { id, is_evictable }),
        4 => Just(Step::Evict),
        1 => id().prop_map(Step::Remove),
        1 => id().prop_map(Step::Forget),
    ];
    prop::collection::vec(step, 0..200)
}

fn run(step: &Step, request: u64, policy: &mut dyn Policy) {
    match *step {
        Step::Access { id, is_cached, cost, past_uses, .. } => {
            // Halves are exact, so that sums do not depend on their order.
            let cost_per_token = f64::from(cost) / 2.0;
            let (parent_uses, parent) = (u64::from(id / 4), id.checked_sub(4).map(Id));
            let access = Access { is_cached, cost_per_token, request, parent_uses, parent, past_uses };
            policy.access(Id(id), access);
        }
        Step::Insert { id, bytes } => policy.insert(Id(id), bytes),
        Step::SetEvictable { id, is_evictable } => policy.set_evictable(Id(id), is_evictable),
        Step::Evict => {
            if let Some(victim) = policy.victim() {
                policy.evict(victim);
            }
        }
        Step::Remove(id) => policy.remove(Id(id)),
        // A tree forgets leaves: what stands behind it first.
        Step::Forget(id) => {
            (id..12).step_by(4).collect::<Vec<_>>().into_iter().rev().for_each(|id| policy.forget(Id(id)))
        }
    }
}

fn assert_same(steps: &[Step], fast: &mut dyn Policy, slow: &mut dyn Policy) -> Result<(), TestCaseError> {
    let mut request = 0;
    for (number, step) in steps.iter().enumerate() {
        if let Step::Access { requests_later, .. } = step {
            request += requests_later;
        }
        run(step, request, fast);
        run(step, request, slow);
        prop_assert_eq!(fast.victim(), slow.victim(), "after step {}: {:?}", number, step);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn ranked_policies_choose_as_the_slow_ones(steps in steps()) {
        for kind in [PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::Gdsf] {
            assert_same(&steps, &mut *kind.build(100), &mut SlowRanked::new(kind, u64::MAX))?;
        }
        assert_same(&steps, &mut Pgdsf::with_window(100), &mut SlowRanked::new(PolicyKind::Pgdsf, 100))?;
    }

    #[test]
    fn hit_density_chooses_as_the_slow_one(steps in steps()) {
        assert_same(&steps, &mut HitDensity::default(), &mut SlowHitDensity::default())?;
    }

    #[test]
    fn the_adaptive_policy_chooses_as_the_slow_one(steps in steps(), capacity in 20u64..120) {
        let (mut fast, mut slow) = (Adaptive::new(capacity), SlowAdaptive::new(capacity, pgdsf::WINDOW_REQUESTS));
        assert_same(&steps, &mut fast, &mut slow)?;
        prop_assert_eq!(fast.leader(), adaptive::KINDS[slow.leader()]);
    }

    #[test]
    fn s3_fifo_chooses_as_the_slow_one(steps in steps(), capacity in 20u64..200) {
        assert_same(&steps, &mut S3Fifo::new(capacity), &mut SlowS3Fifo::new(capacity))?;
    }

    #[test]
    fn the_order_is_that_of_a_sorted_list(puts in prop::collection::vec((0u32..20, 0u8..6, prop::bool::weighted(0.7)), 0..200)) {
        let mut order = Order::default();
        let mut list: Vec<(u8, u64, u32)> = Vec::new();
        for (tick, (id, priority, is_put)) in (0..).zip(puts) {
            let was_there = list.iter().any(|(_, _, other)| *other == id);
            list.retain(|(_, _, other)| *other != id);
            if is_put {
                list.push((priority, tick, id));
                order.put(Id(id), Rank { priority: f64::from(priority), tick });
            } else {
                prop_assert_eq!(order.remove(Id(id)), was_there);
            }
            prop_assert_eq!(order.first(), list.iter().min().map(|(_, _, id)| Id(*id)));
            prop_assert_eq!(order.len(), list.len());
            prop_assert_eq!(order.contains(Id(id)), is_put);
        }
    }
}
