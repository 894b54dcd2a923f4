//! The device tier under the real engine, on a small random model: what is taken from there has the bits of a cold prefill.

use std::time::Duration;

use ragstone_env::FailMode;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::{CostProfile, Costs};
use ragstone_storage::entry::EntryShape;
use ragstone_storage::key::{Fingerprint, KvKey};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::prompt::plan::{PlanOptions, ReuseMode, Source};
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::prompt::residency::prompt_keys;
use ragstone_storage::segment::{Segment, SegmentKind};
use ragstone_storage::store::{AdmissionRule, KvStore, StoreOptions, TierOptions};
use ragstone_storage::tier::device::DeviceOptions;
use ragstone_storage::tier::disk::{DiskTier, Remembered};
use ragstone_storage::tier::{Tier, TierStatus};
use tokio::runtime::Runtime;

use super::*;
use crate::admission::deadline::deadline_after;
use crate::answer::background::{Background, Workers};
use crate::answer::runner::{Dropping, Run, Runner};
use crate::eviction::{Evictor, FreshKv};
use crate::fusion::{Fuse, Fused, Fusor, ReadAhead};
use crate::worker::{Service, Supervised};

mod background;
mod sequences;
mod speculation;

const TENANT: &str = "tests";
const MODEL: Fingerprint = Fingerprint([3; 32]);

/// What an answer is to the last bit: every token, its log-probability and the 20 greatest beside it.
pub(super) type Bits = Vec<Sampled>;

pub(super) struct Bench {
    runtime: Runtime,
    model: Arc<Model>,
    store: KvStore,
    tier: DeviceTier,
    engine: Engine,
    _folder: tempfile::TempDir,
}

impl Bench {
    /// Waits until the workers, which end on threads of their own, have closed the store: RocksDB's threads and its global
    /// destructors do not bear each other when the process ends.
    pub(super) fn close(self) {
        let Self { runtime, store, engine, _folder: folder, .. } = self;
        drop((store, engine));
        runtime.shutdown_timeout(Duration::from_secs(60));
        let (begun, kv) = (Stopwatch::start(), folder.path().join("kv"));
        let options = TierOptions { capacity_bytes: 1 << 30, policy: PolicyKind::Lru };
        while let Err(error) = DiskTier::open(&kv, options, Env::seeded(0, 0), &Remembered::default()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
            std::thread::yield_now();
        }
    }
}

/// An answer under way.
pub(super) struct Asked {
    pub(super) plan: LoadPlan,
    prefill: PrefillReport,
    decoded: mpsc::Receiver<Decoded>,
}

fn segment(kind: SegmentKind, seed: u32, length: u32) -> Segment {
    let tokens: Vec<u32> = (0..length).map(|i| (seed * 31 + i * i * 7 + i * 13) % 96).collect();
    Segment { kind, tokens: tokens.into(), place: None }
}

pub(super) fn root(length: u32) -> Segment {
    segment(SegmentKind::SystemPrompt, 1, length)
}

pub(super) fn passage(seed: u32, length: u32) -> Segment {
    segment(SegmentKind::Passage, seed, length)
}

pub(super) fn question(length: u32) -> Segment {
    segment(SegmentKind::Question, 5, length)
}

impl Bench {
    fn new(blocks: usize) -> Self {
        Self::with(blocks, true)
    }

    fn with(blocks: usize, cache: bool) -> Self {
        Self::on(blocks, cache, |model| model)
    }

    /// On a device made of the model.
    pub(super) fn on<B: Backend>(blocks: usize, cache: bool, device: impl FnOnce(Arc<Model>) -> Arc<B>) -> Self {
        let config = r#"{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 96, "hidden_size": 48,
            "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": true,
            "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;
        let config = ModelConfig::from_json(config).expect("a valid config");
        let model = Arc::new(Model::random(config, 7, LoadOptions::default()));
        let folder = tempfile::tempdir().expect("a folder");
        let env = Env::seeded(1, 1_700_000_000_000);
        let catalog = Arc::new(Catalog::open(&folder.path().join("catalog"), &env).expect("a catalog"));
        let slower = TierOptions { capacity_bytes: 64 << 20, policy: PolicyKind::Lru };
        let options = StoreOptions {
            host: slower,
            disk: slower,
            object: None,
            shape: EntryShape::of(&model.kv_layout()),
            admission: AdmissionRule::Always,
            costs: Costs::new(CostProfile::assumed().expect("read")),
        };
        let store = KvStore::open(&folder.path().join("kv"), options, MODEL, env.clone(), catalog).expect("a store");
        let block_bytes = model.kv_layout().block_bytes();
        let options = DeviceOptions { blocks, block_bytes, policy: PolicyKind::HitDensity, cache };
        let tier = DeviceTier::new(options).expect("a tier");
        let load_deadline = Duration::from_secs(60);
        let options =
            EngineOptions { max_queued: 8, max_batch: 4, inter_token_ms: 0.0, reorder_window: 32, load_deadline };
        let engine = Engine::start(device(model.clone()), tier.clone(), options, env).expect("started");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime");
        Self { runtime, model, store, tier, engine, _folder: folder }
    }

    pub(super) fn fuse(&self, segments: &[Segment], reuse: ReuseMode) -> Fused {
        let (store, device) = (self.store.clone(), self.tier.clone());
        let fusor = Arc::new(Fusor::new(store, device, self.runtime.handle().clone(), ReadAhead::default()));
        let options = PlanOptions::fixed(0.15, reuse);
        let fuse = Fuse {
            segments: segments.into(),
            tenant: TENANT.into(),
            primer: Primer::none(),
            options,
            on_device: true,
            explain: false,
            speculative: false,
        };
        self.runtime.block_on(fusor.handle(fuse)).expect("planned")
    }

    /// Queues a planned prompt; `more` tokens are generated, or with 0 its KV is computed only.
    pub(super) fn submit(&self, segments: &[Segment], fused: Fused, more: usize) -> (Reply, mpsc::Receiver<Decoded>) {
        self.submit_held(segments, fused, more, None)
    }

    /// As [`submit`](Self::submit); with a hold, speculatively.
    pub(super) fn submit_held(
        &self,
        segments: &[Segment],
        fused: Fused,
        more: usize,
        hold: Option<Hold>,
    ) -> (Reply, mpsc::Receiver<Decoded>) {
        let urgency = if hold.is_some() { Urgency::Speculative } else { Urgency::Answer };
        self.submit_as(segments, fused, more, hold, urgency)
    }

    fn submit_as(
        &self,
        segments: &[Segment],
        fused: Fused,
        more: usize,
        hold: Option<Hold>,
        urgency: Urgency,
    ) -> (Reply, mpsc::Receiver<Decoded>) {
        let tokens: Arc<[u32]> = segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
        let (output, decoded) = mpsc::channel(more + 1);
        let params = SamplingParams { max_tokens: more, logprobs: Some(20), ..SamplingParams::default() };
        let sampler = Sampler::new(params);
        let decode = (more > 0).then(|| DecodeSpec {
            sampler,
            max_tokens: more,
            end_tokens: [].into(),
            file: None,
            resume: None,
            lookup: Lookup::default(),
            is_begun: false,
            output,
        });
        let decode = decode.into_iter().collect();
        let (reply, prefilled) = oneshot::channel();
        let Fused { plan, loads, device, .. } = fused;
        let (selection, queued, tenant) = (Selection::default(), Stopwatch::start(), TENANT.into());
        let job = Job {
            tokens,
            plan,
            loads,
            device,
            selection,
            decode,
            caller: Caller::default(),
            tenant,
            reply,
            queued,
            within: Duration::from_secs(600),
            hold,
            computed: ComputeTime::default(),
        };
        self.engine.submit(job, urgency).expect("queued");
        (prefilled, decoded)
    }

    /// Asks and files what is fresh; the answer goes on.
    fn start(&self, segments: &[Segment], reuse: ReuseMode, more: usize) -> Asked {
        let fused = self.fuse(segments, reuse);
        let plan = fused.plan.clone();
        let (reply, decoded) = self.submit(segments, fused, more);
        let Ok(Ok(mut prefill)) = reply.blocking_recv() else { panic!("not prefilled") };
        let fresh = std::mem::take(&mut prefill.fresh);
        let (store, layout) = (self.store.clone(), self.model.kv_layout());
        let evictor = Arc::new(Evictor { store, layout, runtime: self.runtime.handle().clone() });
        let keep = FreshKv { tenant: TENANT.into(), segments: fresh, planned_in: plan.epoch };
        self.runtime.block_on(evictor.handle(keep)).expect("kept");
        Asked { plan, prefill, decoded }
    }

    /// The whole answer.
    pub(super) fn ask(&self, segments: &[Segment], reuse: ReuseMode) -> (Bits, Asked) {
        let mut asked = self.start(segments, reuse, 6);
        (drain(&mut asked.decoded), asked)
    }

    /// The answer of a cold prefill.
    fn cold(&self, segments: &[Segment]) -> Bits {
        let (bits, asked) = self.ask(segments, ReuseMode::Off);
        assert_eq!(asked.prefill.account.exact, 0);
        bits
    }

    /// Waits until the engine has let go of what ended: it takes the next prompt behind that.
    fn settle(&self) {
        let nothing = [question(1)];
        let (reply, _decoded) = self.submit(&nothing, self.fuse(&nothing, ReuseMode::Off), 0);
        assert!(matches!(reply.blocking_recv(), Ok(Ok(_))));
    }

    fn status(&self) -> DeviceStatus {
        self.settle();
        self.engine.status()
    }

    /// What runs prompts, and files what is fresh.
    fn workers(&self) -> Workers {
        let runtime = self.runtime.handle().clone();
        let (store, device, engine) = (self.store.clone(), self.tier.clone(), self.engine.clone());
        let (layout, to_evict, to_fuse, evicting) =
            (self.model.kv_layout(), store.clone(), store.clone(), runtime.clone());
        let fuse = move || Fusor::new(to_fuse.clone(), device.clone(), runtime.clone(), ReadAhead::default());
        let evict = move || Evictor { store: to_evict.clone(), layout, runtime: evicting.clone() };
        let fusor = Supervised::start(4, fuse);
        let prefiller = Supervised::start(4, move || Prefiller { engine: engine.clone() });
        let evictor = Supervised::start(4, evict);
        Workers { runner: Runner { fusor, prefiller, store, upstream: None }, evictor }
    }

    fn key(&self, segments: &[Segment], index: usize) -> KvKey {
        prompt_keys(&MODEL, TENANT, &Primer::none(), segments).expect("keys")[index].chain_key.expect("a key")
    }
}

pub(super) type Reply = oneshot::Receiver<Result<PrefillReport, PrefillError>>;

fn drain(decoded: &mut mpsc::Receiver<Decoded>) -> Bits {
    let mut bits = Vec::new();
    while let Some(item) = decoded.blocking_recv() {
        match item {
            Decoded::EndToken(_) => {}
            Decoded::Token(sampled) => bits.push(sampled),
            Decoded::End(_) => break,
            Decoded::Failed(error) => panic!("{error}"),
        }
    }
    bits
}

/// Where each segment came from, one letter: D(evice), H(ost), B(lend), C(ompute).
pub(super) fn letters(plan: &LoadPlan) -> String {
    let letter = |source: Source| match source {
        Source::Load { tier: Tier::Device, .. } => 'D',
        Source::Load { .. } => 'H',
        Source::Blend { .. } => 'B',
        Source::Compute => 'C',
    };
    plan.segments.iter().map(|segment| letter(segment.source)).collect()
}

#[test]
fn a_question_asked_again_loads_nothing_and_has_the_same_bits() {
    let bench = Bench::new(64);
    let segments = [root(9), passage(2, 33), passage(3, 20), question(11)];
    let cold = bench.cold(&segments);
    assert_eq!(bench.tier.status().entries, 0, "without reuse nothing is kept");
    let (first, asked) = bench.ask(&segments, ReuseMode::Auto);
    assert_eq!((letters(&asked.plan).as_str(), &first), ("CCCC", &cold));
    let (second, asked) = bench.ask(&segments, ReuseMode::Auto);
    assert_eq!((letters(&asked.plan).as_str(), &second), ("DDDC", &cold));
    assert!(asked.prefill.loads.is_empty());
    let expected = TokenAccount { exact: 62, computed: 11, ..TokenAccount::default() };
    assert_eq!(asked.prefill.account, expected);
    let status = bench.status();
    // 62 tokens are 4 blocks, and both sequences are gone.
    assert_eq!((status.cache.entries, status.cache.hits, status.cache.misses), (3, 3, 1));
    assert_eq!((status.free_blocks, status.cached_blocks), (60, 4));
}

#[test]
fn without_reuse_the_device_is_neither_asked_nor_filled() {
    let bench = Bench::new(64);
    let segments = [root(9), passage(2, 33), question(11)];
    bench.ask(&segments, ReuseMode::ExactOnly);
    let before = bench.tier.status();
    assert_eq!(before.entries, 2);
    let other = [root(12), passage(2, 33), question(11)];
    for segments in [&segments, &other] {
        let (_, asked) = bench.ask(segments, ReuseMode::Off);
        assert_eq!(letters(&asked.plan), "CCC");
    }
    assert_eq!(bench.tier.status(), before);
}

#[test]
fn the_border_may_fall_on_every_slot_of_a_block() {
    for length in 1..=17 {
        let bench = Bench::new(64);
        // Questions of one token leave the border's block to the sequence that goes on in it.
        for (tail, ask) in [(passage(2, 5), 1), (passage(3, 30), 1), (passage(4, 1), 20), (passage(2, 5), 3)] {
            let segments = [root(length), tail.clone(), question(ask)];
            let cold = bench.cold(&segments);
            let (warm, _) = bench.ask(&segments, ReuseMode::ExactOnly);
            assert_eq!(warm, cold, "root of {length}");
            let (again, asked) = bench.ask(&segments, ReuseMode::ExactOnly);
            assert_eq!((letters(&asked.plan).as_str(), again), ("DDC", cold), "root of {length}");
            assert_eq!(asked.plan.device_tokens(), length + tail.tokens.len() as u32);
        }
        assert_eq!(bench.tier.status().entries, 4);
    }
}

#[test]
fn the_device_goes_before_the_host_and_the_host_goes_on_where_it_ends() {
    let bench = Bench::new(64);
    let segments = [root(9), passage(2, 33), passage(3, 20), passage(4, 7), question(11)];
    let cold = bench.cold(&segments);
    bench.ask(&segments, ReuseMode::Auto);
    assert!(bench.tier.remove(&bench.key(&segments, 2)), "and what stands behind it");
    let (mixed, asked) = bench.ask(&segments, ReuseMode::Auto);
    assert_eq!((letters(&asked.plan).as_str(), &mixed), ("DDHHC", &cold));
    assert!(asked.prefill.loads.iter().all(|load| load.tier == Tier::Host));
    let (again, asked) = bench.ask(&segments, ReuseMode::Auto);
    assert_eq!((letters(&asked.plan).as_str(), &again), ("DDDDC", &cold), "what was loaded is there, too");
    // The device is lost: nothing is missed but time.
    bench.tier.clear();
    let (restored, asked) = bench.ask(&segments, ReuseMode::Auto);
    assert_eq!((letters(&asked.plan).as_str(), &restored), ("HHHHC", &cold));
}

#[test]
fn blended_kv_and_what_stands_behind_it_never_enters() {
    let bench = Bench::new(64);
    bench.ask(&[root(9), passage(4, 40), question(3)], ReuseMode::Auto);
    bench.ask(&[root(9), passage(2, 33), question(3)], ReuseMode::Auto);
    let segments = [root(9), passage(2, 33), passage(4, 40), passage(6, 20), question(11)];
    for _ in 0..2 {
        let (_, asked) = bench.ask(&segments, ReuseMode::Auto);
        assert_eq!(letters(&asked.plan), "DDBCC");
        let held = [0, 1, 2, 3].map(|index| bench.tier.contains(&bench.key(&segments, index)));
        assert_eq!(held, [true, true, false, false]);
    }
    // The exact prefix of a blended prompt is kept like any other.
    bench.tier.clear();
    bench.ask(&segments, ReuseMode::Auto);
    assert_eq!(bench.tier.status().entries, 2);
}

#[test]
fn eviction_under_pressure_costs_time_only() {
    // Each prompt takes 6 blocks while it runs; 11 blocks hold one of them and half of another.
    let bench = Bench::new(11);
    let prompts: Vec<[Segment; 4]> =
        (0..4).map(|seed| [root(9), passage(10 + seed, 33), passage(20 + seed, 30), question(10)]).collect();
    let cold: Vec<Bits> = prompts.iter().map(|prompt| bench.cold(prompt)).collect();
    for round in 0..3 {
        for (prompt, cold) in prompts.iter().zip(&cold) {
            assert_eq!(bench.ask(prompt, ReuseMode::ExactOnly).0, *cold, "round {round}");
            let status = bench.status();
            assert_eq!(status.free_blocks + status.cached_blocks, 11);
            assert!(status.cache.bytes <= status.cache.capacity_bytes);
        }
    }
    let status = bench.tier.status();
    assert!(status.evicted > 6 && status.hits > 6, "{status:?}");
}

#[test]
fn sequences_that_share_blocks_do_not_see_each_other() {
    let bench = Bench::new(64);
    let first = [root(9), passage(2, 33), question(2)];
    let second = [root(9), passage(2, 33), question(4)];
    let third = [root(9), passage(2, 33), passage(3, 30), question(2)];
    let alone: Vec<Bits> = [&first[..], &second, &third]
        .map(|segments| drain(&mut bench.start(segments, ReuseMode::Off, 60).decoded))
        .into();
    // The first decodes while the others come, take its path, and decode beside it.
    let mut running: Vec<Asked> =
        [&first[..], &second, &third].map(|segments| bench.start(segments, ReuseMode::ExactOnly, 60)).into();
    assert_eq!(running.iter().map(|asked| letters(&asked.plan)).collect::<Vec<_>>(), ["CCC", "DDC", "DDCC"]);
    for (asked, alone) in running.iter_mut().zip(&alone) {
        assert_eq!(drain(&mut asked.decoded), *alone);
    }
}

#[test]
fn what_was_found_and_had_to_go_is_planned_again() {
    let bench = Bench::new(12);
    let segments = [root(9), passage(2, 33), question(11)];
    let cold = bench.cold(&segments);
    bench.ask(&segments, ReuseMode::Auto);
    let found = bench.fuse(&segments, ReuseMode::Auto);
    assert_eq!(letters(&found.plan), "DDC");
    // It needs the whole pool, and no sequence runs whose end it could wait for.
    bench.ask(&[root(186)], ReuseMode::Off);
    let (reply, _decoded) = bench.submit(&segments, found, 6);
    assert!(matches!(reply.blocking_recv().expect("answered"), Err(PrefillError::DeviceMiss)));
    let (again, asked) = bench.ask(&segments, ReuseMode::Auto);
    assert_eq!((letters(&asked.plan).as_str(), again), ("HHC", cold));
}

#[test]
fn a_device_that_was_lost_gets_its_hottest_paths_back_from_the_host() {
    // Half of 20 blocks: room for the path that was used most, not for both.
    let bench = Bench::new(20);
    let (hot, cold) = ([root(9), passage(2, 33), passage(3, 30), question(11)], [root(9), passage(4, 80), question(3)]);
    for segments in [&hot[..], &hot, &hot, &cold] {
        bench.ask(segments, ReuseMode::ExactOnly);
    }
    let bits = bench.cold(&hot);
    let background = Background::start(bench.workers(), bench.runtime.handle().clone());
    let (tell, told) = std::sync::mpsc::channel();
    let env = bench.store.env().clone();
    bench.engine.when_lost(Arc::new(move |paths| {
        env.set_fail_point("engine.device", FailMode::Off, 1);
        tell.send(paths).expect("the test waits");
    }));
    // It is lost in a pass of a prompt, which is to be planned again.
    let unavailable = FailMode::Error(ErrorKind::Unavailable);
    bench.store.env().set_fail_point("engine.device", unavailable, 1);
    let other = [root(9), question(1)];
    let (reply, _decoded) = bench.submit(&other, bench.fuse(&other, ReuseMode::Off), 1);
    assert!(matches!(reply.blocking_recv().expect("answered"), Err(PrefillError::Interrupted(Interruption::Broken))));
    let lost = told.recv().expect("it is lost");
    assert_eq!((lost.len(), lost[0].segments.len(), bench.status().cache.entries), (1, 3, 0));
    let lost_in = bench.store.epoch();
    lost.into_iter().for_each(|path| background.restore(path, lost_in));
    bench.runtime.block_on(background.settle());
    assert_eq!(bench.status().cache.entries, 3);
    let (again, asked) = bench.ask(&hot, ReuseMode::ExactOnly);
    assert_eq!((letters(&asked.plan).as_str(), again), ("DDDC", bits));
    assert_eq!(letters(&bench.ask(&cold, ReuseMode::ExactOnly).1.plan), "DHC");
    drop(background);
    bench.close();
}

/// What could not be read is deleted on a disk that hangs; the answer has come by then.
#[test]
fn an_answer_does_not_wait_for_entries_that_are_dropped() {
    let bench = Bench::with(64, false);
    let segments = [root(9), passage(2, 33), question(11)];
    let (bits, _) = bench.ask(&segments, ReuseMode::ExactOnly);
    assert!(bench.store.drain(Duration::from_secs(60)));
    for (index, segment) in segments[..2].iter().enumerate() {
        let id = bench.store.id(&bench.key(&segments, index), &segment.tokens);
        bench.store.evict(&id, Tier::Host).expect("evicted");
    }
    let env = bench.store.env().clone();
    let unavailable = FailMode::Error(ErrorKind::Unavailable);
    env.set_fail_point("disk.read_frame", unavailable, 1);
    env.set_fail_point("disk.delete", FailMode::Hang, 1);
    let run = Run {
        segments: segments.clone().into(),
        caller: Caller::default(),
        tenant: TENANT.into(),
        primer: Primer::none(),
        options: PlanOptions::fixed(0.0, ReuseMode::ExactOnly),
        selection: Selection::default(),
        found_in: bench.store.epoch(),
        urgency: Urgency::Answer,
        deadline: deadline_after(Duration::from_secs(60)),
        explain: false,
        hold: None,
        computed: ComputeTime::default(),
    };
    let workers = bench.workers();
    let ran = bench.runtime.block_on(workers.runner.run(&run, |_, _| (Vec::new(), ())));
    let ran = ran.unwrap_or_else(|error| panic!("{error}"));
    let dropping = ran.dropping.expect("entries failed");
    assert!(!dropping.is_over(), "the disk hangs");
    assert_eq!((ran.late_misses, ran.prefill.account.computed), (2, 53));
    env.set_fail_point("disk.delete", FailMode::Off, 1);
    bench.runtime.block_on(Dropping::end(Some(dropping)));
    env.set_fail_point("disk.read_frame", FailMode::Off, 1);
    let (again, asked) = bench.ask(&segments, ReuseMode::ExactOnly);
    assert_eq!((letters(&asked.plan).as_str(), again), ("CCC", bits), "they are gone");
    drop(workers);
    bench.close();
}

#[test]
fn switched_off_the_device_keeps_nothing() {
    let bench = Bench::with(64, false);
    let segments = [root(9), passage(2, 33), question(11)];
    for expected in ["CCC", "HHC", "HHC"] {
        assert_eq!(letters(&bench.ask(&segments, ReuseMode::Auto).1.plan), expected);
    }
    let capacity_bytes = bench.tier.status().capacity_bytes;
    assert_eq!(bench.tier.status(), TierStatus { capacity_bytes, ..TierStatus::default() });
    assert_eq!(bench.status().free_blocks, 64);
}

#[test]
fn a_panic_in_a_prefill_leaves_nothing_behind() {
    let bench = Bench::new(64);
    let env = bench.store.env();
    let segments = [root(9), passage(2, 33), question(11)];
    let cold = bench.cold(&segments);
    env.set_fail_point("engine.prefill", ragstone_env::FailMode::Panic, 1);
    let fused = bench.fuse(&segments, ReuseMode::Auto);
    let (reply, _decoded) = bench.submit(&segments, fused, 6);
    assert!(matches!(reply.blocking_recv().expect("answered"), Err(PrefillError::Failed(_))));
    env.set_fail_point("engine.prefill", ragstone_env::FailMode::Off, 1);
    assert_eq!((bench.tier.status().entries, bench.status().free_blocks), (0, 64));
    assert_eq!(bench.ask(&segments, ReuseMode::Auto).0, cold);
}
