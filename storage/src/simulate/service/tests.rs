use std::cell::RefCell;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::catalog::Catalog;
use crate::cost::{CostGrid, CostProfile, Costs, ReadCost};
use crate::entry::tests::{LAYERS, MODEL, entry_behind};
use crate::prompt::primer::Primer;
use crate::prompt::residency::look_up_prompt;
use crate::segment::Segment;
use crate::simulate::{Capacity, Family, Replay, replay};
use crate::store::{KvStore, StoreOptions};
use crate::tier::Precision;
use crate::tier::conformance::ModelTier;
use crate::tree::TierOptions;
use ragstone_env::Env;

const SOON: Duration = Duration::from_secs(60);
const PLENTY: u64 = 1 << 40;

/// A millisecond a token, `bytes` a token; a hundred times as fast as that from the disk, as fast from the bucket.
fn costs(bytes: u64) -> CostModel {
    let text = format!(
        r#"{{"source": "linear", "kv_bytes_per_token": {bytes}, "cached_tokens": [0], "new_tokens": [1, 100000],
        "time_us": [[1000, 100000000]]}}"#
    );
    let mut costs = Costs::new(CostProfile::assumed().unwrap()).model();
    costs.prefill.grid = CostGrid::from_json(&text).unwrap().into();
    costs.prefill.layers = LAYERS;
    let read = |us_per_token: f64| (ReadCost { request_us: 0.0, us_per_byte: us_per_token / bytes as f64 }, true);
    costs.reads = [read(1.0), read(10.0), read(1000.0)];
    costs
}

fn run<'a>(workload: &'a Workload, costs: &'a CostModel, host_bytes: u64, disk_bytes: u64) -> ServiceReplay<'a> {
    ServiceReplay {
        workload,
        costs,
        tiers: ServiceTiers { device_bytes: 0, host_bytes, disk_bytes, has_bucket: false },
        policy: PolicyKind::Lru,
        admission: AdmissionRule::Always,
        options: reuse_options(None),
        primer_tokens: 0,
    }
}

fn outcome(run: &ServiceReplay<'_>) -> ServiceOutcome {
    replay_service(run, &|_| ()).unwrap()
}

/// Prompts of a system prompt and passages, each of two tokens, and a question of one.
fn of_passages(prompts: &[Vec<u64>], has_system_prompt: bool) -> Workload {
    let mut workload = Workload::new(has_system_prompt);
    for labels in prompts {
        let segments: Vec<(u64, u32)> = labels.iter().map(|label| (*label, 2)).collect();
        workload.push(&segments, 1).unwrap();
    }
    workload
}

/// What a node with room for everything in host memory saves is what the tree of one tier finds.
#[test]
fn host_memory_alone_is_a_tree_of_one_tier() {
    let (workload, costs) = (Family::Zipf.generate(1, 2000).unwrap(), costs(1));
    let simulated = outcome(&run(&workload, &costs, PLENTY, 0));
    let capacity = Capacity { device_bytes: 0, host_bytes: PLENTY };
    let (grid, policy) = (&*costs.prefill.grid, PolicyKind::Lru);
    let one = replay(&Replay { workload: &workload, grid, capacity, policy, max_nodes: 1 << 18 }, &|_| ()).unwrap();
    assert!((simulated.exact_tokens - one.token_hit_rate).abs() < 1e-9, "{simulated:?} {one:?}");
    // A load takes a thousandth of computing, and a little for its placing.
    assert!(simulated.saved < one.cost_hit_rate && simulated.saved > 0.9 * one.cost_hit_rate, "{simulated:?} {one:?}");
    assert_eq!((simulated.blended_tokens, simulated.background, simulated.read_bytes.disk), (0.0, 0.0, 0));
    assert_eq!(simulated.written_bytes.host, workload.summary().working_set_tokens);
}

/// Entries are written through: what host memory lets go is read from the disk, and nothing is computed twice.
#[test]
fn what_leaves_host_memory_is_on_the_disk() {
    let (workload, costs) = (Family::Cycle.generate(1, 2000).unwrap(), costs(1));
    let working_set = workload.summary().working_set_tokens;
    let all = outcome(&run(&workload, &costs, PLENTY, 0));
    let alone = outcome(&run(&workload, &costs, working_set / 10, 0));
    let with_disk = outcome(&run(&workload, &costs, working_set / 10, PLENTY));
    assert_eq!(with_disk.exact_tokens, all.exact_tokens);
    assert!(alone.exact_tokens < 0.1 * all.exact_tokens, "a cycle is the worst of LRU: {alone:?}");
    assert!(with_disk.read_bytes.disk > 0 && with_disk.written_bytes.disk == working_set, "{with_disk:?}");
    // From the device nothing is read.
    let mut run = run(&workload, &costs, working_set / 10, PLENTY);
    run.tiers.device_bytes = PLENTY;
    let on_device = outcome(&run);
    assert_eq!((on_device.exact_tokens, on_device.read_bytes), (all.exact_tokens, BytesIn::default()));
    assert!(on_device.saved > with_disk.saved);
}

/// Passages in another order are of no use exactly, and are blended, once their standalone entries were computed beside.
#[test]
fn shuffled_passages_are_blended() {
    let (workload, costs) = (Family::Shuffled.generate(1, 1500).unwrap(), costs(1));
    let exact = outcome(&run(&workload, &costs, PLENTY, 0));
    let blend = outcome(&ServiceReplay { options: reuse_options(Some((0.1, 0))), ..run(&workload, &costs, PLENTY, 0) });
    assert!(blend.blended_tokens > 0.4 && blend.background > 0.0, "{blend:?}");
    assert!(1.0 - blend.saved < 0.5 * (1.0 - exact.saved), "{blend:?} {exact:?}");
    let sum = blend.exact_tokens + blend.computed_tokens + 0.9 * blend.blended_tokens;
    assert!((sum - 1.0).abs() < 1e-4, "a tenth of what is blended is computed: {blend:?}");
    // Behind a primer an entry does not serve in the first place, which is computed more often.
    let options = reuse_options(Some((0.1, 0)));
    let primed = outcome(&ServiceReplay { options, primer_tokens: 3, ..run(&workload, &costs, PLENTY, 0) });
    assert!(primed.exact_tokens < blend.exact_tokens && primed.blended_tokens > 0.4, "{primed:?} {blend:?}");
    // Turns of conversations are text, which is never blended.
    let turns = Family::Sessions.generate(1, 500).unwrap();
    let blend = outcome(&ServiceReplay { options: reuse_options(Some((0.1, 0))), ..run(&turns, &costs, PLENTY, 0) });
    assert_eq!((blend.blended_tokens, blend.background), (0.0, 0.0));
}

/// A bucket from which loading takes longer than computing is of no use, and does no harm.
#[test]
fn slow_loads_are_declined() {
    let (workload, mut costs) = (Family::Zipf.generate(2, 1000).unwrap(), costs(1));
    costs.reads[2].0.us_per_byte *= 10.0;
    let nothing = outcome(&run(&workload, &costs, 0, 0));
    let mut with_bucket = run(&workload, &costs, 0, 0);
    with_bucket.tiers.has_bucket = true;
    let taken = outcome(&with_bucket);
    assert!(taken.saved < nothing.saved && taken.read_bytes.object > 0, "{taken:?}");
    let declined = outcome(&ServiceReplay { admission: AdmissionRule::Cost, ..with_bucket });
    assert_eq!((declined.saved, declined.read_bytes.object, declined.written_bytes.object), (nothing.saved, 0, 0));
}

/// A real store, driven as the service drives it.
struct Real {
    store: KvStore,
    primer: Primer,
    recurring: RefCell<Recurring>,
    _dir: TempDir,
}

impl Real {
    fn open(sizes: ServiceTiers, policy: PolicyKind, costs: &CostModel, primer: Primer) -> Self {
        let (dir, env) = (TempDir::new().unwrap(), Env::seeded(1, 1_000_000));
        let tier = |capacity_bytes| TierOptions { capacity_bytes, policy };
        let profile = CostProfile { prefill: costs.prefill.clone(), ..CostProfile::assumed().unwrap() };
        let options = StoreOptions {
            host: tier(sizes.host_bytes),
            disk: tier(sizes.disk_bytes),
            object: if sizes.has_bucket { Some(Arc::new(ModelTier::default())) } else { None },
            shape: None,
            admission: AdmissionRule::Always,
            costs: Costs::new(profile),
        };
        let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &env).unwrap());
        let store = KvStore::open(&dir.path().join("kv"), options, MODEL, env, catalog).unwrap();
        Self { store, primer, recurring: RefCell::default(), _dir: dir }
    }

    /// The plan of a prompt, made, loaded and kept.
    fn answer(&self, workload: &Workload, request: &Request, options: &PlanOptions, costs: &CostModel) -> LoadPlan {
        let store = &self.store;
        let kind =
            |index| if index == 0 && workload.has_system_prompt { SegmentKind::SystemPrompt } else { workload.kind };
        let label = |node: &u32| workload.nodes[*node as usize].label as u32;
        let tokens = request.path.iter().map(|node| [label(node), 7]).enumerate();
        let mut segments: Vec<Segment> = tokens
            .map(|(index, tokens)| Segment { kind: kind(index), tokens: tokens[..].into(), place: None })
            .collect();
        segments.push(Segment { kind: SegmentKind::Question, tokens: [1][..].into(), place: None });
        let residency = look_up_prompt(store, None, Precision::Exact, "", &self.primer, &segments).unwrap();
        let plan = plan(&residency, options, Some(costs)).unwrap();
        for segment in &plan.segments {
            let (Some(key), Some(tier)) = (segment.source.key(), segment.source.tier()) else { continue };
            let found = &residency.found[&key];
            let reader = if plan.is_well_kept_in(tier) { store.open_sparing(found) } else { store.open_found(found) };
            (0..LAYERS).for_each(|layer| drop(reader.layer(layer).unwrap()));
            assert!(store.drain(SOON));
        }
        crate::prompt::record_use(store, &plan);
        let wanted = self.recurring.borrow_mut().note(&residency.segments, &plan);
        let chain: Vec<_> = residency.segments[..wanted].iter().map(|at| (at.chain_key, at.parent)).collect();
        drop(residency.found);
        let in_bucket = |key: &KvKey, tokens: &[u32]| store.find_objects([(key, tokens)]).contains(key);
        let keep = |index: usize, parent| {
            let entry = entry_behind(parent, &segments[index].tokens);
            assert!(store.keep(entry, store.epoch()).unwrap() && store.drain(SOON));
        };
        plan.segments.iter().filter(|at| at.store_as.is_some()).for_each(|at| keep(at.segment, at.parent));
        let behind = self.primer.key(&MODEL, "", plan.root_key);
        plan.missing_standalone.iter().for_each(|index| keep(*index, behind));
        for (index, (key, parent)) in chain.into_iter().enumerate() {
            if key.is_some_and(|key| store.contains(&key).is_none() && !in_bucket(&key, &segments[index].tokens)) {
                keep(index, parent);
            }
        }
        plan
    }
}

/// The simulated node does, request by request, what the store does.
#[test]
fn the_simulated_node_plans_as_the_store_does() {
    let one = entry_behind(None, &[1, 7]).header().total_bytes();
    assert!(one.is_multiple_of(2), "two tokens an entry");
    let costs = costs(one / 2);
    let random = Env::seeded(7, 0);
    let draw = |below: u64| random.random_u64() % below;
    for case in 0..12 {
        let has_system_prompt = case % 3 != 0;
        let mut prompts = Vec::new();
        for _ in 0..60 {
            let mut passages: Vec<u64> = (10..10 + draw(4) + 1).map(|_| 10 + draw(9)).collect();
            passages.dedup();
            let root = has_system_prompt.then(|| draw(2));
            prompts.push(root.into_iter().chain(passages).collect::<Vec<u64>>());
        }
        let workload = of_passages(&prompts, has_system_prompt);
        let tiers = ServiceTiers {
            device_bytes: 0,
            host_bytes: one * (draw(8) + 1),
            disk_bytes: one * 8 * draw(4),
            has_bucket: case % 2 == 0,
        };
        let policy = [PolicyKind::Lru, PolicyKind::S3Fifo][case % 2];
        let blend = (case % 4 != 1).then_some((0.2, 1));
        let primer = Primer::new((case % 3 == 0).then_some(Arc::from([99, 98])));
        let run = ServiceReplay {
            tiers,
            policy,
            options: PlanOptions { ratio: Ratio::Fixed(0.2), ..reuse_options(blend) },
            primer_tokens: primer.tokens() as u32,
            ..run(&workload, &costs, 0, 0)
        };
        let mut simulated = Service::new(run.costs, &run.node(), Tiers::new(run.tiers, run.policy));
        let real = Real::open(tiers, policy, &costs, primer);
        for (number, request) in workload.requests.iter().enumerate() {
            let (planned, _) = simulated.answer(&workload, request).unwrap();
            let really = real.answer(&workload, request, &simulated.node.options, &simulated.costs);
            let sources = |plan: &LoadPlan| -> Vec<_> {
                let of =
                    |at: &SegmentPlan| (std::mem::discriminant(&at.source), at.source.tier(), at.store_as.is_some());
                plan.segments.iter().map(of).collect()
            };
            assert_eq!(sources(&planned), sources(&really), "case {case}, request {number}: {tiers:?} {policy:?}");
            assert_eq!(planned.missing_standalone, really.missing_standalone, "case {case}, request {number}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the tiers: every token is accounted for, no prompt takes longer than computing it by more than predictions are told apart,
    /// and a second run gives the same.
    #[test]
    fn it_adds_up(
        prompts in prop::collection::vec(prop::collection::vec(0u64..8, 1..5), 1..40),
        sizes in (0u64..40, 0u64..40, 0u64..80, any::<bool>()),
        blend in prop::option::of(0.0f32..=1.0),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
        has_system_prompt in any::<bool>(),
    ) {
        let (workload, costs) = (of_passages(&prompts, has_system_prompt), costs(1));
        let (device_bytes, host_bytes, disk_bytes, has_bucket) = sizes;
        let run = ServiceReplay {
            tiers: ServiceTiers { device_bytes, host_bytes, disk_bytes, has_bucket },
            policy,
            admission: AdmissionRule::Cost,
            options: reuse_options(blend.map(|ratio| (ratio, 1))),
            ..run(&workload, &costs, 0, 0)
        };
        let once = outcome(&run);
        let recomputed = once.computed_tokens + once.exact_tokens + once.blended_tokens;
        prop_assert!(recomputed >= 1.0 - 1e-9 && recomputed <= 1.0 + once.blended_tokens + 1e-9, "{once:?}");
        // Choosing costs a layer or two where all is recomputed.
        prop_assert!(once.saved > if blend.is_some() { -1.0 } else { -0.06 } && once.saved < 1.0, "{once:?}");
        prop_assert!(has_bucket || once.read_bytes.object == 0);
        prop_assert_eq!(outcome(&run), once);
    }
}
