//! Fusion against full prefill and against plain reuse, on a small random model and a real store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ragstone_env::Env;
use ragstone_kernels::backend::{KvBytes, Slots, StoredKv};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::WeightFormat;
use ragstone_kernels::forward::{Next, Seen, Selector};
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::pool::BLOCK_TOKENS;
use ragstone_kernels::sampling::score;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::{CostProfile, Costs};
use ragstone_storage::key::Fingerprint;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::prompt::plan::{PlanOptions, ReuseMode, Source};
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::segment::{Segment, SegmentKind};
use ragstone_storage::store::{AdmissionRule, KvStore, StoreOptions, TierOptions};
use ragstone_storage::tier::Tier;
use ragstone_storage::tier::device::{DeviceOptions, DeviceTier};
use tokio::runtime::{Handle, Runtime};

mod by_hand;
mod lost;

use super::*;
use crate::error::ErrorKind;
use crate::eviction::{Evictor, FreshKv};
use crate::fusion::{Fuse, Fused, Fusor, ReadAhead};
use crate::worker::Service;

const TENANT: &str = "tests";

/// A store, a model and what runs them.
struct Bench {
    chunk_rows: usize,
    runtime: Runtime,
    model: Model,
    store: KvStore,
    folder: tempfile::TempDir,
}

fn model() -> Model {
    let config = r#"{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "float32"}"#;
    let config = ModelConfig::from_json(config).expect("a valid config");
    Model::random(config, 7, LoadOptions::default())
}

/// With ALiBi, layer norms and a plain feed-forward part.
fn bloom() -> Model {
    let config = r#"{"architectures": ["BloomForCausalLM"], "vocab_size": 96, "hidden_size": 48, "n_layer": 4, "n_head": 6,
        "torch_dtype": "float32"}"#;
    Model::random(ModelConfig::from_json(config).expect("a valid config"), 7, LoadOptions::default())
}

/// With experts in every second layer.
fn mixture() -> Model {
    let config = r#"{"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "decoder_sparse_step": 2, "norm_topk_prob": true, "torch_dtype": "float32"}"#;
    Model::random(ModelConfig::from_json(config).expect("a valid config"), 7, LoadOptions::default())
}

/// With experts in every layer, in 8 bits.
fn mixtral() -> Model {
    let config = r#"{"architectures": ["MixtralForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 40,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "num_local_experts": 4, "num_experts_per_tok": 2, "torch_dtype": "float32"}"#;
    let options = LoadOptions { weights: Some(WeightFormat::Q8), ..LoadOptions::default() };
    Model::random(ModelConfig::from_json(config).expect("a valid config"), 7, options)
}

/// With factors.
fn granite() -> Model {
    let config = r#"{"architectures": ["GraniteForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "embedding_multiplier": 12.0, "attention_multiplier": 0.3, "residual_multiplier": 0.22, "logits_scaling": 8.0,
        "torch_dtype": "float32"}"#;
    Model::random(ModelConfig::from_json(config).expect("a valid config"), 7, LoadOptions::default())
}

/// Whose KV has its positions in it.
fn opt() -> Model {
    let config = r#"{"architectures": ["OPTForCausalLM"], "vocab_size": 96, "hidden_size": 48, "ffn_dim": 80,
        "num_hidden_layers": 4, "num_attention_heads": 6, "max_position_embeddings": 512, "torch_dtype": "float32"}"#;
    Model::random(ModelConfig::from_json(config).expect("a valid config"), 7, LoadOptions::default())
}

/// Families that differ in what blending and reuse go through.
const MODELS: [fn() -> Model; 5] = [model, bloom, mixture, mixtral, granite];

impl Bench {
    fn new() -> Self {
        Self::over(model())
    }

    fn over(model: Model) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        Self { chunk_rows: usize::MAX, runtime, model, store, folder }
    }

    /// Looks up, plans and prefills; what `keep` says about the fresh KV is done.
    fn ask(&self, segments: &[Segment], reuse: ReuseMode, ratio: f32, keep: bool) -> (Prefilled, LoadPlan) {
        self.ask_selecting(segments, PlanOptions::fixed(ratio, reuse), keep, Selection::default())
    }

    fn ask_selecting(
        &self,
        segments: &[Segment],
        options: PlanOptions,
        keep: bool,
        selection: Selection,
    ) -> (Prefilled, LoadPlan) {
        let options = PlanOptions { choosing: selection.choosing(self.model.config().layers), ..options };
        let segments: Arc<[Segment]> = segments.into();
        let tokens: Vec<u32> = segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
        let (plan, loads) = self.planned(segments, options);
        let handle: Handle = self.runtime.handle().clone();
        let mut pool = self.model.new_pool(tokens.len().div_ceil(BLOCK_TOKENS));
        let blocks: Vec<BlockId> = (0..pool.blocks() as u32).rev().map(BlockId).collect();
        let prompt = self.prompt(&tokens, &plan, loads, selection);
        let mut done = prefill(&self.model, &mut pool, prompt, &blocks, self.chunk_rows).expect("prefilled");
        if keep {
            let segments = std::mem::take(&mut done.fresh);
            let evictor =
                Arc::new(Evictor { store: self.store.clone(), layout: self.model.kv_layout(), runtime: handle });
            let keep = FreshKv { tenant: TENANT.into(), segments, planned_in: plan.epoch };
            self.runtime.block_on(evictor.handle(keep)).expect("kept");
            assert!(self.store.drain(std::time::Duration::from_secs(60)));
        }
        let sum = done.account.total();
        assert_eq!(sum as usize, tokens.len(), "the account adds up");
        (done, plan)
    }

    fn planned(&self, segments: Arc<[Segment]>, options: PlanOptions) -> (LoadPlan, LayerLoads) {
        let fuse = Fuse {
            segments,
            tenant: TENANT.into(),
            primer: Primer::none(),
            options,
            on_device: false,
            explain: false,
            speculative: false,
        };
        let handle: Handle = self.runtime.handle().clone();
        let fusor = Arc::new(Fusor::new(self.store.clone(), no_device(), handle, ReadAhead::default()));
        let Fused { plan, loads, .. } = self.runtime.block_on(fusor.handle(fuse)).expect("planned");
        (plan, loads)
    }

    /// With what the model thinks of each token, so many alternatives beside it.
    fn described(&self, tokens: &[u32], alternatives: u8) -> Prefilled {
        let (plan, loads) = self.planned([text(tokens)].into(), PlanOptions::fixed(0.0, ReuseMode::Off));
        let mut pool = self.model.new_pool(tokens.len().div_ceil(BLOCK_TOKENS));
        let blocks: Vec<BlockId> = (0..pool.blocks() as u32).map(BlockId).collect();
        let prompt = Prompt { scores: Some(alternatives), ..self.prompt(tokens, &plan, loads, Selection::default()) };
        prefill(&self.model, &mut pool, prompt, &blocks, self.chunk_rows).expect("prefilled")
    }

    fn prompt(&self, tokens: &[u32], plan: &LoadPlan, loads: LayerLoads, selection: Selection) -> Prompt {
        let (env, is_wanted) = (self.store.env().clone(), Arc::new(|| true));
        Prompt {
            tokens: tokens.into(),
            plan: plan.clone(),
            loads,
            selection,
            env,
            files_answer: false,
            is_wanted,
            scores: None,
        }
    }

    fn full(&self, segments: &[Segment]) -> Vec<f32> {
        let (done, _) = self.ask(segments, ReuseMode::Off, 0.15, false);
        assert_eq!(done.account.computed as usize, tokens_of(segments).len());
        assert!(done.fresh.is_empty(), "without reuse nothing is kept");
        done.logits
    }

    /// Stores `passage` after the system prompt alone.
    fn store_standalone(&self, passage: &Segment) {
        self.ask(&[root(), passage.clone()], ReuseMode::ExactOnly, 0.0, true);
    }

    fn reopen(&mut self) {
        self.store.flush().expect("flushed");
        let elsewhere = tempfile::tempdir().expect("a folder");
        // The old store must be gone before its folder can be opened again.
        self.store = open(elsewhere.path());
        self.store = open(self.folder.path());
    }
}

/// These tests are about the store: each prompt has blocks of its own.
fn no_device() -> DeviceTier {
    let options = DeviceOptions { blocks: 0, block_bytes: 1, policy: PolicyKind::Lru, cache: false };
    DeviceTier::new(options).expect("a tier")
}

fn open(folder: &std::path::Path) -> KvStore {
    let env = Env::seeded(1, 1_700_000_000_000);
    let catalog = Arc::new(Catalog::open(&folder.join("catalog"), &env).expect("a catalog"));
    let tier = TierOptions { capacity_bytes: 64 << 20, policy: PolicyKind::Lru };
    let (admission, costs) = (AdmissionRule::Always, Costs::new(CostProfile::assumed().expect("read")));
    let options = StoreOptions { host: tier, disk: tier, object: None, shape: None, admission, costs };
    KvStore::open(&folder.join("kv"), options, Fingerprint([3; 32]), env, catalog).expect("a store")
}

fn segment(kind: SegmentKind, seed: u32, length: u32) -> Segment {
    let tokens: Vec<u32> = (0..length).map(|i| (seed * 31 + i * i * 7 + i * 13) % 96).collect();
    Segment { kind, tokens: tokens.into(), place: None }
}

fn root() -> Segment {
    segment(SegmentKind::SystemPrompt, 1, 9)
}

fn passage(seed: u32, length: u32) -> Segment {
    segment(SegmentKind::Passage, seed, length)
}

fn prompt_of(passages: &[Segment]) -> Vec<Segment> {
    let mut segments = vec![root()];
    segments.extend_from_slice(passages);
    segments.push(segment(SegmentKind::Question, 5, 11));
    segments
}

fn text(tokens: &[u32]) -> Segment {
    Segment { kind: SegmentKind::Text, tokens: tokens.into(), place: None }
}

fn tokens_of(segments: &[Segment]) -> Vec<u32> {
    segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Passage lists that the rules must hold for: several, the same twice, an empty one, one token.
fn cases() -> Vec<Vec<Segment>> {
    vec![
        vec![passage(2, 33), passage(3, 16), passage(4, 40)],
        vec![passage(2, 33), passage(2, 33)],
        vec![passage(3, 17), passage(9, 0), passage(4, 20)],
        vec![passage(6, 1), passage(7, 15), passage(6, 1)],
        vec![],
    ]
}

#[test]
fn ratio_one_equals_full_prefill_however_much_is_cached() {
    for (model, passages) in MODELS.iter().flat_map(|model| cases().into_iter().map(move |passages| (model, passages)))
    {
        let segments = prompt_of(&passages);
        for cached in 0..=passages.len() {
            let bench = Bench::over(model());
            passages[..cached].iter().for_each(|passage| bench.store_standalone(passage));
            let (done, plan) = bench.ask(&segments, ReuseMode::Auto, 1.0, false);
            assert_eq!(done.account.blended, 0);
            assert_eq!(done.account.recomputed, plan.blended_tokens);
            let off = difference(&done.logits, &bench.full(&segments));
            assert!(off <= 1e-4, "{cached} of {} cached: logits differ by {off}", passages.len());
        }
    }
}

/// Blocks with every passage's KV as it is after the system prompt, rotated to its place: all of the prompt but the question.
fn stored_by_hand(model: &Model, passages: &[Segment]) -> (<Model as Backend>::Pool, Vec<BlockId>) {
    let segments = prompt_of(passages);
    let total = tokens_of(&segments).len();
    let blocks: Vec<BlockId> = (0..total.div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
    let mut pool = model.new_pool(blocks.len());
    // KV of `tokens` after the system prompt, layer by layer, and the hidden rows that go with it.
    let standalone = |extra: &[u32]| -> Vec<KvBytes> {
        let tokens: Vec<u32> = root().tokens.iter().chain(extra).copied().collect();
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        let own: Vec<BlockId> = (0..tokens.len().div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
        let mut pool = model.new_pool(own.len());
        let places = Places::of(positions.clone(), &positions);
        let chunk = Chunk::embed(model, &tokens, places, Wanted::Nothing).expect("known tokens");
        let mut taken = Taken(Vec::new());
        let rider = Rider { chunk, blocks: &own, key_positions: &positions, selector: Some(&mut taken) };
        Forward::new(model, &mut pool).pass(vec![rider]);
        taken.0
    };
    let mut at = 0u32;
    for (index, segment) in segments[..segments.len() - 1].iter().enumerate() {
        let (layers, first) = match index {
            0 => (standalone(&[]), 0),
            _ => (standalone(&segment.tokens), root().tokens.len()),
        };
        let slots: Vec<u32> = (at..at + segment.tokens.len() as u32).collect();
        let bytes = model.kv_layout().kv_dim() * model.kv_layout().dtype.size_in_bytes();
        let own = first * bytes..(first + slots.len()) * bytes;
        for (layer, kv) in layers.iter().enumerate() {
            let stored = StoredKv { dtype: model.kv_layout().dtype, k: &kv.k[own.clone()], v: &kv.v[own.clone()] };
            let to = Slots { blocks: &blocks, slots: &slots, positions: &slots };
            model.place_stored(&mut pool, layer, to, stored).expect("room");
        }
        at += slots.len() as u32;
    }
    (pool, blocks)
}

/// Plain reuse by hand: only the question is computed.
fn plain_reuse(model: &Model, passages: &[Segment]) -> Vec<f32> {
    let (mut pool, blocks) = stored_by_hand(model, passages);
    let tokens = tokens_of(&prompt_of(passages));
    let question = prompt_of(passages).pop().expect("a question").tokens;
    let rows: Vec<u32> = ((tokens.len() - question.len()) as u32..tokens.len() as u32).collect();
    let key_positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let places = Places::of(rows, &key_positions);
    let mut forward = Forward::new(model, &mut pool);
    let logits = forward.logits(&question, places, Wanted::Last, &blocks, &key_positions).expect("known tokens");
    logits.row(0).to_vec()
}

/// The fresh K and V of every layer.
struct Taken(Vec<KvBytes>);

impl Selector<Model> for Taken {
    fn take(&mut self, seen: &Seen<'_, Model>, _pool: &mut <Model as Backend>::Pool) -> Next {
        self.0.push(seen.export(0..seen.places.len()));
        Next::Go
    }
}

#[test]
fn ratio_zero_equals_plain_reuse() {
    for (model, passages) in MODELS.iter().flat_map(|model| cases().into_iter().map(move |passages| (model, passages)))
    {
        let bench = Bench::over(model());
        passages.iter().for_each(|passage| bench.store_standalone(passage));
        let (done, _) = bench.ask(&prompt_of(&passages), ReuseMode::Auto, 0.0, false);
        assert_eq!(done.account.recomputed, 0);
        let off = difference(&done.logits, &plain_reuse(&bench.model, &passages));
        assert!(off <= 1e-4, "{} passages: logits differ by {off}", passages.len());
    }
}

#[test]
fn plain_reuse_of_several_passages_is_not_full_prefill() {
    for model in MODELS {
        let bench = Bench::over(model());
        let passages = &cases()[0];
        passages.iter().for_each(|passage| bench.store_standalone(passage));
        let full = bench.full(&prompt_of(passages));
        let off = |ratio| difference(&bench.ask(&prompt_of(passages), ReuseMode::Auto, ratio, false).0.logits, &full);
        let (none, half) = (off(0.0), off(0.5));
        assert!(none > 1e-3, "the test model must show what reuse costs, but differs by {none} only");
        assert!(half < none, "recomputing half must come nearer than nothing: {half} against {none}");
    }
}

#[test]
fn the_share_that_is_recomputed_is_the_ratio_of_the_blended_tokens() {
    let bench = Bench::new();
    let passages = &cases()[0];
    passages.iter().for_each(|passage| bench.store_standalone(passage));
    let (done, plan) = bench.ask(&prompt_of(passages), ReuseMode::Auto, 0.15, false);
    assert_eq!(plan.blended_tokens, 56, "the first passage stands after the system prompt: exact");
    assert_eq!(done.account.recomputed, 9, "15 % of 56, rounded up");
    assert_eq!(done.account.exact, 9 + 33);
    assert_eq!(done.account.computed, 11, "the question does not compete");
}

#[test]
fn exact_reuse_has_the_bits_of_a_cold_prefill_also_after_a_restart() {
    MODELS.into_iter().for_each(|model| check_exact_reuse(Bench::over(model()), ReuseMode::Auto));
    check_exact_reuse(Bench::over(opt()), ReuseMode::SamePositions);
}

fn check_exact_reuse(mut bench: Bench, reuse: ReuseMode) {
    let segments = prompt_of(&cases()[0]);
    let full = bench.full(&segments);
    let (cold, _) = bench.ask(&segments, reuse, 0.15, true);
    let (warm, plan) = bench.ask(&segments, reuse, 0.15, false);
    assert_eq!(plan.computed_tokens, 11);
    assert_eq!(warm.account.exact, 9 + 33 + 16 + 40);
    bench.reopen();
    let (again, _) = bench.ask(&segments, reuse, 0.15, false);
    assert_eq!(again.account, warm.account);
    assert!(again.loads.iter().all(|load| load.tier == Tier::Disk), "{:?}", again.loads);
    for logits in [&cold.logits, &warm.logits, &again.logits] {
        assert_eq!(*logits, full, "bit for bit");
    }
}

#[test]
fn what_was_blended_or_stands_behind_it_is_never_kept() {
    let bench = Bench::new();
    let passages = [passage(2, 33), passage(3, 16), passage(4, 40)];
    bench.store_standalone(&passages[1]);
    let (done, plan) = bench.ask(&prompt_of(&passages), ReuseMode::Auto, 0.15, false);
    assert_eq!(plan.blended_tokens, 16);
    let kept: Vec<usize> = done.fresh.iter().map(|segment| segment.tokens.len()).collect();
    assert_eq!(kept, [33], "the passage before the blended one only");
}

#[test]
fn what_is_exact_behind_a_hole_gives_the_bits_of_a_full_prefill() {
    let bench = Bench::new();
    let segments = prompt_of(&cases()[0]);
    let (full, _) = bench.ask(&segments, ReuseMode::Off, 0.0, false);
    let (_, plan) = bench.ask(&segments, ReuseMode::Auto, 0.15, true);
    for hole in 0..segments.len() - 1 {
        let key = plan.segments[hole].store_as.expect("it was kept");
        let found = bench.store.look_up(&key, &segments[hole].tokens).expect("it is there");
        bench.store.late_miss(&found.header.id(), found.tier, ErrorKind::NotFound);
        drop(found);
        bench.store.late_miss(&bench.store.id(&key, &segments[hole].tokens), Tier::Disk, ErrorKind::NotFound);
        let (again, planned) = bench.ask(&segments, ReuseMode::ExactOnly, 0.0, true);
        assert!(matches!(planned.segments[hole].source, Source::Compute), "{hole}: {planned:?}");
        let loads = planned.segments.iter().filter(|segment| matches!(segment.source, Source::Load { .. })).count();
        assert_eq!(loads, segments.len() - 2, "{hole}: all but the hole and the question");
        assert_eq!(again.logits, full.logits, "{hole}");
        assert_eq!(planned.segments[hole].store_as, Some(key), "it is filed again");
    }
}

#[test]
fn a_prompt_that_nobody_waits_for_is_left_at_the_next_layer() {
    let bench = Bench::new();
    let segments = prompt_of(&cases()[0]);
    let (_, plan) = bench.ask(&segments, ReuseMode::Off, 0.15, false);
    let (tokens, asked) = (tokens_of(&segments), Arc::new(AtomicUsize::new(0)));
    let mut pool = bench.model.new_pool(tokens.len().div_ceil(BLOCK_TOKENS));
    let blocks: Vec<BlockId> = (0..pool.blocks() as u32).map(BlockId).collect();
    // The caller leaves while the first layer computes.
    let counted = asked.clone();
    let mut prompt = bench.prompt(&tokens, &plan, LayerLoads::none(), Selection::default());
    prompt.is_wanted = Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) == 0);
    match prefill(&bench.model, &mut pool, prompt, &blocks, usize::MAX) {
        Err(PrefillError::Failed(error)) => assert_eq!(error.kind(), ErrorKind::Cancelled),
        _ => panic!("it must end"),
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2, "at the second layer");
}

#[test]
fn every_way_of_choosing_has_its_own_tokens_and_the_same_ends() {
    let bench = Bench::new();
    let segments = prompt_of(&cases()[0]);
    cases()[0].iter().for_each(|passage| bench.store_standalone(passage));
    let ask = |ratio, selection| {
        bench.ask_selecting(&segments, PlanOptions::fixed(ratio, ReuseMode::Auto), false, selection).0
    };
    let gradual = |rule| Selection { schedule: Schedule::Gradual, ..Selection::by(rule) };
    let random = |seed| Selection { seed, ..Selection::by(Rule::Random) };
    let ways = [
        Selection::default(),
        Selection::by(Rule::CacheblendK),
        Selection::by(Rule::CacheblendV),
        random(1),
        random(2),
        Selection { layer: 2, ..random(1) },
        gradual(Rule::Cacheblend),
        gradual(Rule::Random),
        Selection::by(Rule::FirstK),
        Selection::by(Rule::QuestionAttention),
        Selection { layer: 0, ..Selection::by(Rule::QuestionAttention) },
        Selection::by(Rule::CriticalLayer),
        Selection { layer: 3, ..Selection::by(Rule::CriticalLayer) },
        Selection::by(Rule::TwoStage),
        Selection { layer: 1, ..Selection::default() },
        Selection { layer: 99, ..Selection::default() },
    ];
    let chosen = ask(0.3, ways[0]);
    for (index, way) in ways.iter().enumerate() {
        let done = ask(0.3, *way);
        // A gradual schedule rounds up on each layer.
        let (one, other) = (done.account.recomputed, chosen.account.recomputed);
        assert!(one.abs_diff(other) <= u32::from(way.schedule == Schedule::Gradual), "{way:?}: {one}, not {other}");
        assert_eq!(done.logits, ask(0.3, *way).logits, "{way:?} repeats");
        for earlier in &ways[..index] {
            assert_ne!(done.logits, ask(0.3, *earlier).logits, "{way:?} is not {earlier:?}");
        }
        // Where nothing is left to choose, the choice does not matter.
        for ratio in [0.0, 1.0] {
            assert_eq!(ask(ratio, *way).logits, ask(ratio, ways[0]).logits);
        }
    }
}

/// Every mode, in chunks of every kind of length: what is cut has the bits of what is not.
#[test]
fn where_a_prompt_is_cut_does_not_show() {
    for passages in cases() {
        let segments = prompt_of(&passages);
        for (reuse, ratio) in
            [(ReuseMode::Off, 0.0), (ReuseMode::ExactOnly, 0.0), (ReuseMode::Auto, 0.3), (ReuseMode::Auto, 1.0)]
        {
            let mut bench = Bench::new();
            passages.iter().for_each(|passage| bench.store_standalone(passage));
            let gradual = Selection { schedule: Schedule::Gradual, ..Selection::default() };
            for selection in Rule::ALL.into_iter().map(Selection::by).chain([gradual]) {
                let mut ask = |chunk_rows| {
                    bench.chunk_rows = chunk_rows;
                    bench.ask_selecting(&segments, PlanOptions::fixed(ratio, reuse), false, selection).0
                };
                let whole = ask(usize::MAX);
                for rows in [1, 2, 7, 16, 33, 64] {
                    let cut = ask(rows);
                    assert_eq!(cut.logits, whole.logits, "{rows} rows, {reuse:?} {ratio} {selection:?}");
                    assert_eq!(cut.account, whole.account, "{rows} rows, {reuse:?} {ratio} {selection:?}");
                    let kept =
                        |done: &Prefilled| done.fresh.iter().map(|fresh| fresh.layers.clone()).collect::<Vec<_>>();
                    assert_eq!(kept(&cut), kept(&whole), "{rows} rows, {reuse:?} {ratio} {selection:?}");
                }
            }
        }
    }
}

/// Wherever chunks are cut, and whatever the family: each row's logits are those behind the prompt that ends there.
#[test]
fn what_is_thought_of_a_prompts_tokens_has_the_bits_of_shorter_prompts() {
    for model in MODELS {
        let mut bench = Bench::over(model());
        let tokens: Vec<u32> = (0..40).map(|at| (at * 29 + 3) % 96).collect();
        let logits: Vec<Vec<f32>> = (1..tokens.len()).map(|length| bench.full(&[text(&tokens[..length])])).collect();
        let expected: Vec<Scored> =
            logits.iter().zip(&tokens[1..]).map(|(logits, next)| score(logits, *next, 4)).collect();
        let last = bench.full(&[text(&tokens)]);
        for chunk_rows in [1, 7, 16, usize::MAX] {
            bench.chunk_rows = chunk_rows;
            let done = bench.described(&tokens, 4);
            assert_eq!(done.scores, expected, "{chunk_rows}");
            assert_eq!(done.logits, last, "{chunk_rows}");
        }
    }
}

#[test]
fn a_prompt_that_is_described_reuses_nothing() {
    let bench = Bench::new();
    let passage = passage(1, 20);
    bench.store_standalone(&passage);
    let segments: Arc<[Segment]> = [root(), passage].into();
    let tokens = tokens_of(&segments);
    let options = PlanOptions::fixed(0.0, ReuseMode::ExactOnly);
    let (plan, loads) = bench.planned(segments, options);
    assert!(plan.exact_tokens > 0);
    let prompt = Prompt { scores: Some(0), ..bench.prompt(&tokens, &plan, loads, Selection::default()) };
    let mut pool = bench.model.new_pool(tokens.len().div_ceil(BLOCK_TOKENS));
    let blocks: Vec<BlockId> = (0..pool.blocks() as u32).map(BlockId).collect();
    let failed = prefill(&bench.model, &mut pool, prompt, &blocks, usize::MAX).err().expect("it is refused");
    assert!(matches!(failed, PrefillError::Failed(error) if error.kind() == ErrorKind::Internal));
}
