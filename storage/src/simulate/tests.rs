mod families;

use proptest::prelude::*;

use super::*;
use crate::cost::CostGrid;
use crate::policy::PolicyKind;

/// `T(cached, new) = new` microseconds, a byte a token.
fn linear() -> CostGrid {
    let text = r#"{"source": "linear", "kv_bytes_per_token": 1, "cached_tokens": [0], "new_tokens": [1, 1000000],
        "time_us": [[1, 1000000]]}"#;
    CostGrid::from_json(text).unwrap()
}

/// Attention: `T(cached, new)` grows with what is cached.
fn quadratic() -> CostGrid {
    let text = r#"{"source": "quadratic", "kv_bytes_per_token": 2, "cached_tokens": [0, 1000], "new_tokens": [1, 1000],
        "time_us": [[1, 3000], [2, 5000]]}"#;
    CostGrid::from_json(text).unwrap()
}

fn run(workload: &Workload, grid: &CostGrid, device_bytes: u64, host_bytes: u64, policy: PolicyKind) -> Outcome {
    let capacity = Capacity { device_bytes, host_bytes };
    replay(&Replay { workload, grid, capacity, policy, max_nodes: 1 << 16 }, &|_| ()).unwrap()
}

fn sample() -> RagWorkload {
    RagWorkload {
        seed: 3,
        requests: 4000,
        documents: 1000,
        lengths: Lengths { mean_tokens: 500.0, sigma: 0.7, min_tokens: 20, max_tokens: 4000 },
        skew: Skew { top: 0.03, serves: 0.60 },
        top_k: vec![1, 3, 5],
        neighbours: 8,
        shuffled: 0.2,
        drift: Drift { every: 1000, share: 0.01 },
        system_prompts: 2,
        system_tokens: 30,
        question_tokens: [10, 20],
    }
}

#[test]
fn a_trace_is_read_block_by_block() {
    let text = r#"
{"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [7, 8, 9]}

{"timestamp": 5, "input_length": 1024, "output_length": 5, "hash_ids": [7, 8], "another": 1}
{"timestamp": 9, "input_length": 100, "output_length": 5, "hash_ids": [10]}
"#;
    let workload = read_trace(text).unwrap();
    let requests: Vec<_> =
        workload.requests.iter().map(|request| (&request.path[..], request.question_tokens)).collect();
    // The second prompt ends with a whole block: its last token has to be computed, so that the block is its question.
    assert_eq!(requests, [(&[0, 1][..], 276), (&[0], 512), (&[], 100)]);
    let summary = workload.summary();
    assert_eq!((summary.prompt_tokens, summary.working_set_tokens, summary.nodes), (2424, 1024, 2));
    assert_eq!(workload.nodes[1], PathNode { parent: Some(0), label: 8, tokens: TRACE_BLOCK_TOKENS });
}

#[test]
fn a_bad_line_is_named() {
    let good = r#"{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [7, 8]}"#;
    for bad in [
        "x",
        "{}",
        "[]",
        r#"{"input_length": 513, "hash_ids": [7]}"#,
        r#"{"input_length": 512, "hash_ids": [7, 8]}"#,
        r#"{"input_length": 0, "hash_ids": []}"#,
        r#"{"input_length": -1, "hash_ids": []}"#,
        r#"{"input_length": 513, "hash_ids": [7, -8]}"#,
        r#"{"input_length": 4294967296, "hash_ids": []}"#,
        r#"{"input_length": 513, "hash_ids": "#,
    ] {
        let error = read_trace(&format!("{good}\n\n{bad}\n{good}")).unwrap_err().to_string();
        assert!(error.starts_with("line 3: "), "{bad}: {error}");
    }
    assert!(read_trace("\n\n").unwrap_err().to_string().contains("no request"));
}

#[test]
fn the_generator_keeps_to_its_description() {
    let described = RagWorkload { requests: 30_000, drift: Drift { every: 0, share: 0.0 }, shuffled: 0.0, ..sample() };
    let workload = described.generate().unwrap();
    let first = |request: &Request| workload.nodes[request.path[1] as usize];
    assert!(
        workload
            .requests
            .iter()
            .all(|request| request.path.len() > 1 && first(request).parent == Some(request.path[0]))
    );
    // Uses of the first documents, whichever system prompt they stand behind.
    let mut uses = std::collections::HashMap::new();
    let mut by_k = std::collections::BTreeMap::new();
    for request in &workload.requests {
        assert!((10..=20).contains(&request.question_tokens));
        *by_k.entry(request.path.len() - 1).or_insert(0) += 1;
        *uses.entry(request.path[1]).or_insert(0) += 1;
    }
    assert_eq!(by_k.keys().copied().collect::<Vec<_>>(), [1, 3, 5]);
    assert!(by_k.values().all(|count| (9_500..10_500).contains(count)), "{by_k:?}");
    let mut uses: Vec<usize> = uses.into_values().collect();
    uses.sort_unstable_by(|a, b| b.cmp(a));
    // Two nodes a document, one behind each system prompt.
    let top: usize = uses[..60].iter().sum();
    assert!((top as f64 / 30_000.0 - 0.60).abs() < 0.02, "{top}");
    // All documents, weighted by their use: within a tenth of the mean.
    let lengths: Vec<f64> =
        workload.nodes.iter().filter(|node| node.parent.is_some()).map(|node| f64::from(node.tokens)).collect();
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    assert!((mean / 500.0 - 1.0).abs() < 0.1, "{mean}");
    assert!(lengths.iter().all(|length| (20.0..=4000.0).contains(length)));
    assert_eq!(described.generate().unwrap(), workload, "a seed replays it");
    assert_ne!(RagWorkload { seed: 4, ..described }.generate().unwrap(), workload);
}

#[test]
fn no_document_comes_twice_in_a_question() {
    for shuffled in [0.0, 1.0] {
        let workload = RagWorkload { shuffled, system_prompts: 0, neighbours: 4, ..sample() }.generate().unwrap();
        for request in &workload.requests {
            // Distinct documents have distinct lengths often enough for a repetition to show.
            let chain: std::collections::HashSet<u32> = request.path.iter().copied().collect();
            assert_eq!(chain.len(), request.path.len());
        }
        assert!(!workload.has_system_prompt);
    }
}

#[test]
fn what_cannot_be_generated_is_named() {
    let bad: [(&str, RagWorkload); 8] = [
        ("requests", RagWorkload { requests: 0, ..sample() }),
        ("documents", RagWorkload { documents: 1, ..sample() }),
        ("top_k", RagWorkload { top_k: vec![], ..sample() }),
        ("top_k", RagWorkload { top_k: vec![1, 0], ..sample() }),
        ("neighbours", RagWorkload { neighbours: 3, ..sample() }),
        ("shuffled", RagWorkload { shuffled: f64::NAN, ..sample() }),
        ("skew.serves", RagWorkload { skew: Skew { top: 0.5, serves: 0.4 }, ..sample() }),
        ("question_tokens", RagWorkload { question_tokens: [5, 4], ..sample() }),
    ];
    for (key, workload) in bad {
        assert!(workload.generate().unwrap_err().to_string().contains(&format!("`{key}`")), "{key}");
    }
}

/// Three requests with one cache of two entries, by hand.
#[test]
fn a_replay_by_hand() {
    let mut workload = Workload::new(true);
    workload.push(&[(0, 10), (1, 20)], 5).unwrap();
    workload.push(&[(0, 10), (2, 20)], 5).unwrap();
    workload.push(&[(0, 10), (1, 20)], 5).unwrap();
    // All fits: 10 of 35, then 30 of 35 tokens.
    let all = run(&workload, &linear(), 0, 50, PolicyKind::Lru);
    assert!((all.token_hit_rate - 40.0 / 105.0).abs() < 1e-9 && (all.cost_hit_rate - 40.0 / 105.0).abs() < 1e-9);
    assert!((all.document_hit_rate - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!((all.bytes_stored, all.bytes_loaded, all.nodes), (50, 40, 3));
    // Only the root and one document fit: each document pushes the other out.
    let one = run(&workload, &linear(), 0, 30, PolicyKind::Lru);
    assert!((one.token_hit_rate - 20.0 / 105.0).abs() < 1e-9);
    assert_eq!((one.bytes_stored, one.bytes_loaded), (70, 20));
    // A device of that size before a host for all: the first document goes down once and comes back; the root goes along.
    let two = run(&workload, &linear(), 30, 50, PolicyKind::Lru);
    assert_eq!(two.token_hit_rate, all.token_hit_rate);
    assert_eq!((two.bytes_stored, two.bytes_loaded, two.evictions_without_copy), (50, 20, 0));
}

#[test]
fn the_second_eviction_from_the_device_moves_nothing() {
    let mut workload = Workload::new(false);
    for label in [1, 2, 1, 2, 1] {
        workload.push(&[(label, 10)], 1).unwrap();
    }
    let outcome = run(&workload, &linear(), 10, 20, PolicyKind::Lru);
    // Each is copied at its first eviction; the third and the fourth are free.
    assert_eq!((outcome.bytes_stored, outcome.bytes_loaded, outcome.evictions_without_copy), (20, 30, 2));
}

#[test]
fn the_bound_by_hand() {
    let mut workload = Workload::new(false);
    // Uses of 1 at 0, 1, 4 and of 2 at 2, 3: stays of 10 bytes for 1, 3 and 1 gaps.
    for label in [1, 1, 2, 2, 1] {
        workload.push(&[(label, 10)], 10).unwrap();
    }
    // Ten bytes for four gaps hold both short stays and two thirds of the long one.
    let expected = (10.0 + 10.0 + 10.0 * 2.0 / 3.0) / 100.0;
    let found = bound(&workload, &linear(), 10);
    assert!((found.token_hit_rate - expected).abs() < 1e-9 && (found.cost_hit_rate - expected).abs() < 1e-9);
    assert_eq!(bound(&workload, &linear(), 20).token_hit_rate, 0.3);
    assert_eq!(bound(&workload, &linear(), 0).token_hit_rate, 0.0);
}

/// Two uses of a passage are far apart and two of another overlap with none of them: each part of the trace has room for one.
#[test]
fn the_tight_bound_sees_when_the_room_is_wanted() {
    let mut workload = Workload::new(false);
    // Ten passages of ten bytes at once and then again; after that nothing is used twice for long.
    for label in (0..10).chain(0..10).chain(100..200) {
        workload.push(&[(label, 10)], 10).unwrap();
    }
    // The room of 119 gaps holds all ten stays of ten gaps; but in the ninth gap there is room for one passage only.
    assert_eq!(bound(&workload, &linear(), 10).token_hit_rate, 100.0 / 2400.0);
    let tight = tight_bound(&workload, &linear(), 10).token_hit_rate;
    assert!((10.0 / 2400.0..30.0 / 2400.0).contains(&tight), "{}", tight * 2400.0);
}

/// The acceptance in small, with the order that the sample workload shows at full size.
#[test]
fn policies_keep_their_order_on_the_retrieval_workload() {
    let workload = RagWorkload { requests: 8000, ..sample() }.generate().unwrap();
    let comparison = Comparison {
        policies: PolicyKind::ALL.to_vec(),
        capacities: vec![0.01, 0.05, 0.1, 0.25, 0.5],
        device: 0.0,
        max_nodes: 1 << 16,
    };
    let report = compare(&workload, &CostGrid::measured_default().unwrap(), &comparison, &|_, _| ()).unwrap();
    for at in &report.capacities {
        let of = |kind| at.policies.iter().find(|policy| policy.policy == kind).unwrap().outcome.cost_hit_rate;
        assert!(of(PolicyKind::Pgdsf) > of(PolicyKind::Lru), "{at:?}");
        assert!(at.tight_bound.cost_hit_rate <= at.bound.cost_hit_rate + 1e-9, "{at:?}");
        for kind in PolicyKind::ALL {
            assert!(of(PolicyKind::HitDensity) >= 0.995 * of(kind), "{kind} at {}", at.capacity);
            assert!(of(PolicyKind::Adaptive) >= 0.98 * of(kind), "{kind} at {}", at.capacity);
            assert!(of(kind) <= at.tight_bound.cost_hit_rate, "{kind} at {}", at.capacity);
        }
    }
}

#[test]
fn shares_that_are_none_are_refused() {
    let workload = sample().generate().unwrap();
    let good = Comparison { policies: vec![PolicyKind::Lru], capacities: vec![0.5], device: 0.0, max_nodes: 100 };
    for bad in [0.0, -0.1, 1.1, f64::NAN] {
        let bad = Comparison { capacities: vec![0.5, bad], ..good.clone() };
        assert!(compare(&workload, &linear(), &bad, &|_, _| ()).is_err());
    }
    assert!(compare(&workload, &linear(), &Comparison { device: 1.1, ..good.clone() }, &|_, _| ()).is_err());
    let last = std::cell::Cell::new((0, 0));
    compare(&workload, &linear(), &good, &|done, total| last.set((done, total))).unwrap();
    assert_eq!(last.get().1, 4000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Whatever the policy, the tiers and the requests: no more than the bound; and with room for everything, all of it.
    #[test]
    fn nothing_exceeds_the_bound_and_everything_fits_into_the_working_set(
        requests in prop::collection::vec((prop::collection::vec(0u64..5, 1..5), 1u32..50), 1..80),
        capacity in 0u64..3000,
        device in prop::option::of(1u64..500),
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        let mut workload = Workload::new(false);
        for (labels, question) in &requests {
            let segments: Vec<(u64, u32)> = labels.iter().map(|label| (*label, 10 + 37 * *label as u32)).collect();
            workload.push(&segments, *question).unwrap();
        }
        let device = device.unwrap_or(0);
        let outcome = run(&workload, &quadratic(), device, capacity, kind);
        let most = bound(&workload, &quadratic(), capacity + device);
        prop_assert!(outcome.token_hit_rate <= most.token_hit_rate + 1e-9);
        prop_assert!(outcome.cost_hit_rate <= most.cost_hit_rate + 1e-9);
        let tight = tight_bound(&workload, &quadratic(), capacity + device);
        prop_assert!(outcome.token_hit_rate <= tight.token_hit_rate + 1e-9);
        prop_assert!(outcome.cost_hit_rate <= tight.cost_hit_rate + 1e-9);
        let all = workload.summary().working_set_tokens * quadratic().kv_bytes_per_token();
        let outcome = run(&workload, &quadratic(), 0, all, kind);
        let most = bound(&workload, &quadratic(), all);
        prop_assert!((outcome.token_hit_rate - most.token_hit_rate).abs() < 1e-9);
        prop_assert!((outcome.cost_hit_rate - most.cost_hit_rate).abs() < 1e-9);
    }
}
