use proptest::prelude::*;

use super::outcome::Fate;
use super::reference::Slow;
use super::*;
use crate::cost::{CostGrid, CostModel, CostProfile, Costs, ReadCost};
use crate::policy::PolicyKind;
use crate::simulate::{Lengths, ServiceTiers};
use crate::store::AdmissionRule;

/// Bytes of a token.
const BYTES: u64 = 1000;

/// 400 microseconds a token; a microsecond of that from host memory, ten from the disk, twenty from the bucket and 5 ms.
fn costs() -> CostModel {
    let text = format!(
        r#"{{"source": "linear", "kv_bytes_per_token": {BYTES}, "layers": 4, "cached_tokens": [0], "new_tokens": [1, 512],
        "time_us": [[400, 204800]]}}"#
    );
    let mut costs = Costs::new(CostProfile::assumed().unwrap()).model();
    costs.prefill.grid = CostGrid::from_json(&text).unwrap().into();
    (costs.prefill.layers, costs.prefill.place_us_per_byte) = (4, 0.0);
    let read =
        |request_us: f64, us_per_token: f64| (ReadCost { request_us, us_per_byte: us_per_token / BYTES as f64 }, true);
    costs.reads = [read(0.0, 1.0), read(10.0, 10.0), read(5000.0, 20.0)];
    costs
}

fn fleet(nodes: usize, routing: Routing) -> Fleet {
    Fleet {
        nodes,
        routing,
        tiers: ServiceTiers { device_bytes: 0, host_bytes: 20_000 * BYTES, disk_bytes: 0, has_bucket: true },
        policy: PolicyKind::Lru,
        admission: AdmissionRule::Cost,
        blend: None,
        primer_tokens: 0,
        costs: costs(),
        most_answers: 8,
        most_waiting: 16,
        bucket: Bucket { bytes_per_s: 1e9, tail: 0.3, ..Bucket::default() },
        corpus: Corpus::default(),
        faults: Faults::default(),
        seed: 1,
    }
}

fn load(questions: usize, rate: f64) -> Load {
    Load {
        questions,
        rate,
        passages: 400,
        collections: 20,
        lengths: Lengths { mean_tokens: 100.0, sigma: 0.3, min_tokens: 20, max_tokens: 400 },
        top_k: 3,
        answer_tokens: [5, 20],
        ..Load::default()
    }
}

fn run<'a>(fleet: &'a Fleet, asked: &'a Asked) -> Run<'a, Fast> {
    Run::<Fast>::new(fleet, asked).unwrap().until_all_ended(&|_| ()).unwrap()
}

fn outcome(fleet: &Fleet, asked: &Asked) -> Outcome {
    replay_fleet(fleet, asked, &|_| ()).unwrap()
}

/// A question by itself takes what its plan says.
#[test]
fn one_question_is_told_by_hand() {
    let load =
        Load { passages: 2, collections: 1, top_k: 1, shuffled: 0.0, warm_up: 0.0, questions: 1, ..load(1, 1.0) };
    let asked = load.generate().unwrap();
    let tokens: u32 =
        asked.questions[0].segments.iter().map(|(_, tokens)| tokens).sum::<u32>() + asked.questions[0].tokens;
    let outcome = outcome(&fleet(1, Routing::Hash), &asked);
    assert!((outcome.ttft_ms_p50 - 0.4 * f64::from(tokens)).abs() < 1e-3, "{tokens} tokens: {outcome:?}");
    assert_eq!((outcome.answered, outcome.hit.computed), (1, 1.0));
}

/// Two at once on one engine: the second waits for the first, whose answer goes on beside.
#[test]
fn two_questions_are_told_by_hand() {
    let mut asked = load(2, 1.0).generate().unwrap();
    (asked.has_system_prompt, asked.warm) = (false, 0);
    for (at, question) in asked.questions.iter_mut().enumerate() {
        (question.at_us, question.segments, question.tokens, question.answer_tokens) = (at as f64, vec![], 100, 10);
    }
    let fleet = fleet(1, Routing::Random);
    let run = run(&fleet, &asked);
    let ttft = |at: usize| run.asking[at].answered.ttft_us;
    assert!((ttft(0) - 40_000.0).abs() < 0.1, "{}", ttft(0));
    // A step of 100 rows takes a row longer for the answer beside it.
    assert!((ttft(1) - (80_000.0 + 400.0 - 1.0)).abs() < 0.1, "{}", ttft(1));
    // The first answer got a token in that step, and then both get one every 800 us.
    assert!(
        (run.asking[0].answered.end_us - (80_400.0 + 9.0 * 800.0)).abs() < 0.1,
        "{}",
        run.asking[0].answered.end_us
    );
    assert!((run.asking[1].answered.end_us - (80_400.0 + 9.0 * 800.0 + 400.0)).abs() < 0.1);
}

/// Three transfers on a band for two and a half.
#[test]
fn transfers_share_the_band() {
    use super::kit::{Kit, Shares};
    fn ends<K: Kit>() -> Vec<(f64, char)> {
        let mut link = K::Link::<char>::of(5.0, 2.0);
        link.begin(0.0, 20.0, 'a');
        link.begin(0.0, 40.0, 'b');
        let c = link.begin(2.0, 40.0, 'c');
        let mut ends = Vec::new();
        while let Some(at_us) = link.next_us() {
            ends.extend(link.ended(at_us).into_iter().map(|what| (at_us, what)));
            if ends.len() == 2 {
                link.break_off(at_us, c);
            }
        }
        assert!((link.passed(100.0) - (20.0 + 40.0 + 36.0)).abs() < 1e-6, "{}", link.passed(100.0));
        ends
    }
    // Until 2: two at 2 each. Then three at 5/3: `a` has 16 left, and ends at 11.6; then two at 2 again.
    let fast = ends::<Fast>();
    assert_eq!(fast.len(), 2);
    assert!((fast[0].0 - 11.6).abs() < 1e-9 && fast[0].1 == 'a', "{fast:?}");
    assert!((fast[1].0 - 21.6).abs() < 1e-9 && fast[1].1 == 'b', "{fast:?}");
    assert_eq!(fast, ends::<Slow>());
}

/// Without affinity a node finds what it asked for itself; with it, the fleet's memory is one.
#[test]
fn affinity_keeps_the_hit_rate_of_memory_and_a_bucket_that_of_all() {
    let mut hits = std::collections::BTreeMap::new();
    for nodes in [1, 8] {
        let asked = load(600 * nodes, 4.0 * nodes as f64).generate().unwrap();
        for routing in Routing::ALL {
            let mut fleet = fleet(nodes, routing);
            let with = outcome(&fleet, &asked);
            fleet.tiers.has_bucket = false;
            let without = outcome(&fleet, &asked);
            assert_eq!(with.answered, asked.questions.len() / 2, "{with:?}");
            assert!(with.hit.exact() >= without.hit.exact() - 0.02, "{with:?} {without:?}");
            hits.insert((nodes, routing.name()), (without.hit.host, with.hit.exact()));
        }
    }
    let (hash, random) = (hits[&(8, "hash")], hits[&(8, "random")]);
    assert!(hash.0 > random.0 + 0.05, "{hits:?}");
    assert!(hits[&(8, "kv-aware")].0 > random.0 + 0.05, "{hits:?}");
    assert!(hash.1 - random.1 < 0.05, "the bucket makes them alike: {hits:?}");
}

/// Twice the nodes for twice the questions answer twice as many, until the bucket is full.
#[test]
fn what_limits_is_named() {
    let asked = load(1500, 100.0).generate().unwrap();
    let mut few = fleet(2, Routing::Random);
    few.most_waiting = 4;
    few.tiers.host_bytes = 2000 * BYTES;
    let full = outcome(&few, &asked);
    assert!(full.refused > 0 && full.limit.contains("engine"), "{full:?}");
    let enough = outcome(&Fleet { nodes: 16, ..few.clone() }, &asked);
    assert!(enough.refused == 0 && enough.limit.starts_with("nothing"), "{enough:?}");
    let mut narrow = Fleet { nodes: 16, most_waiting: 100, ..few.clone() };
    narrow.bucket.bytes_per_s = 2e6;
    let narrow = outcome(&narrow, &asked);
    assert!(narrow.limit.contains("bandwidth"), "{narrow:?}");
    // One collection alone stays where it is as far as the bound lets it.
    let one = Load { collections: 1, ..load(1500, 30.0) }.generate().unwrap();
    let skewed = outcome(&Fleet { nodes: 16, most_waiting: 100, routing: Routing::Hash, ..few }, &one);
    assert!(skewed.engine_most > 1.3 * skewed.engine, "{skewed:?}");
    // All write into one table.
    let changing = Load { collections: 1, changes: 20.0, ..load(600, 10.0) }.generate().unwrap();
    let writers = outcome(&fleet(16, Routing::Hash), &changing);
    assert!(writers.changes.conflicts > 50 && writers.limit.contains("commits"), "{writers:?}");
}

/// Until a node has looked three times in vain it may answer; then it says that it does not know.
#[test]
fn blind_nodes_answer_nothing() {
    let asked = Load { warm_up: 0.0, ..load(600, 10.0) }.generate().unwrap();
    let mut fleet = fleet(4, Routing::Random);
    fleet.faults.outages = vec![(20.0, 40.0)];
    let run = run(&fleet, &asked);
    for (question, asking) in asked.questions.iter().zip(&run.asking) {
        let at_s = question.at_us / 1e6;
        let is_blind = at_s > 23.1 && at_s < 40.0;
        let may_be = at_s > 21.9 && at_s < 41.2;
        assert!(!is_blind || asking.fate == Some(Fate::Refused), "{at_s}");
        assert!(may_be || asking.fate == Some(Fate::Answered), "{at_s}");
    }
}

/// A node that joins takes its part; one that fails takes nothing along but what it was saying.
#[test]
fn nodes_come_and_go() {
    let asked = Load { warm_up: 0.0, ..load(2000, 30.0) }.generate().unwrap();
    let mut fleet = fleet(4, Routing::Hash);
    fleet.faults = Faults { joins: vec![(3, 10.0)], fails: vec![(0, 20.0)], restart_s: 10.0, ..Faults::default() };
    let run = run(&fleet, &asked);
    let outcome = run.outcome();
    assert!(outcome.broken_off <= 8 && outcome.retried >= 1, "{outcome:?}");
    assert_eq!(outcome.answered + outcome.broken_off + outcome.refused, 2000, "{outcome:?}");
    assert!(outcome.refused < 20, "{outcome:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The plain lists tell the same story: every question has the same node, fate and times.
    #[test]
    fn the_slow_reference_agrees(
        seed in 0u64..1000,
        nodes in 1usize..6,
        routing in prop::sample::select(Routing::ALL.to_vec()),
        rate in 5.0f64..150.0,
        blends: bool,
        changes in prop::sample::select(vec![0.0, 2.0]),
        host_tokens in 500u64..20_000,
        failure in prop::option::of((0usize..6, 0.5f64..4.0)),
    ) {
        let asked = Load { seed, changes, ..load(150, rate) }.generate().unwrap();
        let mut fleet = fleet(nodes, routing);
        fleet.seed = seed;
        fleet.tiers.host_bytes = host_tokens * BYTES;
        fleet.blend = blends.then_some((0.15, 1));
        fleet.bucket.bytes_per_s = 5e7;
        fleet.faults = Faults { fails: failure.into_iter().filter(|(node, _)| *node < nodes).collect(), restart_s: 1.0, ..Faults::default() };
        let fast = run(&fleet, &asked);
        let slow = Run::<Slow>::new(&fleet, &asked).unwrap().until_all_ended(&|_| ()).unwrap();
        for (at, (one, other)) in fast.asking.iter().zip(&slow.asking).enumerate() {
            prop_assert_eq!((one.fate, one.node, one.attempt), (other.fate, other.node, other.attempt), "question {}", at);
            prop_assert_eq!(one.answered.in_tiers, other.answered.in_tiers, "question {}", at);
            let near = |one: f64, other: f64| (one - other).abs() <= 1e-6 * one.abs() + 1.0;
            prop_assert!(near(one.answered.ttft_us, other.answered.ttft_us), "question {}: {:?} {:?}", at, one.answered, other.answered);
            prop_assert!(near(one.answered.end_us, other.answered.end_us), "question {}: {:?} {:?}", at, one.answered, other.answered);
        }
        prop_assert_eq!(&fast.tables.acknowledged, &slow.tables.acknowledged);
    }

    /// What always holds, whatever goes wrong.
    #[test]
    fn nothing_is_lost_or_twice_or_too_much_or_too_late(
        seed in 0u64..1000,
        nodes in 1usize..8,
        routing in prop::sample::select(Routing::ALL.to_vec()),
        rate in 5.0f64..300.0,
        changes in 0.5f64..20.0,
        collections in 1usize..20,
        host_tokens in 300u64..10_000,
        disk_tokens in 0u64..10_000,
        device_tokens in 0u64..3_000,
        failures in prop::collection::vec((0usize..8, 0.1f64..20.0), 0..6),
        joins in prop::collection::vec((0usize..8, 0.1f64..5.0), 0..2),
        outage in prop::option::of((0.5f64..5.0, 0.5f64..10.0)),
        keeps_disk: bool,
        blends: bool,
    ) {
        let asked = Load { seed, changes, collections, warm_up: 0.0, ..load(250, rate) }.generate().unwrap();
        let mut fleet = fleet(nodes, routing);
        let token = |tokens: u64| tokens * BYTES;
        (fleet.tiers.host_bytes, fleet.tiers.disk_bytes, fleet.tiers.device_bytes) =
            (token(host_tokens), token(disk_tokens), token(device_tokens));
        fleet.blend = blends.then_some((0.15, 1));
        fleet.faults = Faults {
            fails: failures.into_iter().filter(|(node, _)| *node < nodes).collect(),
            joins: joins.into_iter().filter(|(node, _)| *node < nodes && *node > 0).collect(),
            outages: outage.map(|(from, lasts)| (from, from + lasts)).into_iter().collect(),
            restart_s: 2.0,
            keeps_disk,
            ..Faults::default()
        };
        let end = run(&fleet, &asked);
        // Every question ends once; every change is acknowledged or its writer is gone.
        prop_assert!(end.asking.iter().all(|asking| asking.fate.is_some()));
        prop_assert_eq!(end.tables.acknowledged.len() + end.tables.lost, asked.changes.len());
        prop_assert!(end.nodes.iter().all(|node| node.questions.is_empty()));
        prop_assert!(end.views.iter().all(|view| (view.waiting_tokens, view.active_tokens) == (0, 0)));
        // No tier holds more than its bound.
        for node in &end.nodes {
            let [host, disk] = node.service.tiers.kept_bytes();
            prop_assert!(host <= fleet.tiers.host_bytes && disk <= fleet.tiers.disk_bytes, "{} {}", host, disk);
        }
        // Nothing that was replaced was served after the stated time, and nothing of it is left where the node has heard of it.
        prop_assert_eq!(end.stale, 0, "{} ms", end.most_stale_us / 1e3);
        for (number, told) in end.tables.log.iter().enumerate() {
            for key in end.keys_of(told.label) {
                for node in end.nodes.iter().filter(|node| node.cursor > number) {
                    prop_assert!(!node.service.tiers.is_here(&key), "entry {} of the log", number);
                }
            }
        }
        // What was acknowledged is there for whoever looks.
        for number in &end.tables.acknowledged {
            prop_assert!(end.tables.version(asked.changes[*number].label, end.now_us) > 0);
        }
        // And a second run is the same.
        let once = end.outcome();
        let share = once.hit.exact() + once.hit.blended + once.hit.computed;
        prop_assert!(once.answered == 0 || (share - 1.0).abs() < 1e-9, "{:?}", once);
        prop_assert_eq!(once.answered + once.refused + once.broken_off, once.questions);
        prop_assert_eq!(outcome(&fleet, &asked), once);
    }
}
