use super::*;
use crate::backend::{Backend, KvBytes, Slots, StoredKv};
use crate::config::{
    Architecture, Experts, FeedForwardKind, NormKind, Positions, RopeConfig, RopeScaling, WeightDtype, alibi_slopes,
};
use crate::error::ErrorKind;
use crate::forward::{Chunk, Forward, Next, Places, Rider, Seen, Selector, Wanted};
use crate::numa::tests::divided;
use crate::pool::BlockId;

mod reference;

fn config() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        vocab_size: 97,
        hidden_size: 40,
        intermediate_size: 72,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        norm: NormKind::Rms,
        norm_eps: 1e-5,
        positions: Positions::Rotary(RopeConfig { theta: 10_000.0, scaling: RopeScaling::None }),
        positions_skipped: 0,
        max_positions: 512,
        feed_forward: FeedForwardKind::Gated,
        experts: None,
        embedding_norm: false,
        embedding_scale: 1.0,
        input_norms: true,
        output_norms: false,
        norm_weights_less_one: false,
        attention_scale: 0.25,
        residual_scale: 1.0,
        logits_scale: 1.0,
        tie_embeddings: false,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        qk_norm_of_rows: false,
        windows: vec![None; 3],
        rotated: 16,
        unrotated: Vec::new(),
        local_rope: None,
        torch_dtype: WeightDtype::F32,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

/// As BLOOM and GPT-2 have it.
fn plain(positions: Positions) -> ModelConfig {
    ModelConfig {
        norm: NormKind::Layer,
        feed_forward: FeedForwardKind::Plain,
        embedding_norm: positions == Positions::Alibi,
        positions,
        heads: 3,
        kv_heads: 3,
        qkv_bias: true,
        o_bias: true,
        mlp_bias: true,
        tie_embeddings: true,
        ..config()
    }
}

/// As Gemma 3 has it.
fn gemma() -> ModelConfig {
    ModelConfig {
        feed_forward: FeedForwardKind::GatedGelu,
        output_norms: true,
        embedding_scale: 40.0_f32.sqrt(),
        attention_scale: 0.3,
        tie_embeddings: true,
        qk_norm: true,
        windows: vec![Some(20), None, Some(3)],
        local_rope: Some(RopeConfig { theta: 100.0, scaling: RopeScaling::None }),
        ..config()
    }
}

/// As Qwen3-MoE has it, with one layer that has no experts.
fn mixture() -> ModelConfig {
    let experts = Experts { count: 7, per_row: 3, intermediate_size: 24, is_normalized: false, dense_layers: vec![1] };
    ModelConfig { experts: Some(experts), qk_norm: true, ..config() }
}

/// As Mixtral has it.
fn mixtral() -> ModelConfig {
    let experts = Experts { count: 4, per_row: 2, intermediate_size: 40, is_normalized: true, dense_layers: vec![] };
    ModelConfig { experts: Some(experts), windows: vec![Some(20); 3], ..config() }
}

/// As Granite has it.
fn granite() -> ModelConfig {
    ModelConfig { embedding_scale: 6.0, attention_scale: 0.1, residual_scale: 0.4, logits_scale: 0.25, ..config() }
}

/// As OLMo 2 has it.
fn olmo2() -> ModelConfig {
    ModelConfig { qk_norm: true, qk_norm_of_rows: true, input_norms: false, output_norms: true, ..config() }
}

/// As OPT has it.
fn opt() -> ModelConfig {
    ModelConfig { feed_forward: FeedForwardKind::PlainRelu, positions_skipped: 2, ..plain(Positions::Learned) }
}

/// One of everything that a config can ask for.
fn variants() -> Vec<ModelConfig> {
    let qwen2 = ModelConfig { qkv_bias: true, tie_embeddings: true, ..config() };
    vec![
        config(),
        ModelConfig { kv_heads: 4, o_bias: true, qkv_bias: true, mlp_bias: true, ..config() },
        ModelConfig { windows: vec![Some(20), None, Some(3)], ..config() },
        ModelConfig { torch_dtype: WeightDtype::Bf16, ..qwen2.clone() },
        ModelConfig { torch_dtype: WeightDtype::Bf16, ..config() },
        ModelConfig { qk_norm: true, head_dim: 24, rotated: 24, ..qwen2 },
        ModelConfig { rotated: 12, unrotated: vec![1], ..config() },
        gemma(),
        ModelConfig { torch_dtype: WeightDtype::Bf16, tie_embeddings: false, o_bias: true, ..gemma() },
        plain(Positions::Alibi),
        plain(Positions::Learned),
        ModelConfig { torch_dtype: WeightDtype::Bf16, tie_embeddings: false, ..plain(Positions::Learned) },
        mixture(),
        mixtral(),
        granite(),
        opt(),
        olmo2(),
        // Experts whose parts are plain, and norms of what is added: nobody has them, and nothing speaks against it.
        ModelConfig { experts: mixture().experts, torch_dtype: WeightDtype::Bf16, ..plain(Positions::Alibi) },
        ModelConfig { experts: mixtral().experts, residual_scale: 0.5, ..gemma() },
        // A few heads that share K and V, and a window: nobody has both, and nothing speaks against it.
        ModelConfig { heads: 4, kv_heads: 2, windows: vec![Some(20), None, Some(3)], ..plain(Positions::Alibi) },
    ]
}

fn tokens(count: usize) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(21);
    (0..count).map(|_| rng.u32(0..97)).collect()
}

fn model(config: ModelConfig, kv_dtype: KvDtype) -> Model {
    model_in(config, kv_dtype, WeightFormat::Stored, ComputeDtype::F32)
}

fn model_in(config: ModelConfig, kv_dtype: KvDtype, weights: WeightFormat, compute: ComputeDtype) -> Model {
    let options = LoadOptions {
        kv_dtype: Some(kv_dtype),
        weights: Some(weights),
        compute: Some(compute),
        ..LoadOptions::default()
    };
    Model::random(config, 7, options)
}

/// Every way to compute.
fn arithmetics() -> Vec<(KvDtype, WeightFormat, ComputeDtype)> {
    vec![
        (KvDtype::Bf16, WeightFormat::Stored, ComputeDtype::F32),
        (KvDtype::F16, WeightFormat::Bf16, ComputeDtype::F32),
        (KvDtype::Bf16, WeightFormat::Bf16, ComputeDtype::Bf16),
        (KvDtype::Bf16, WeightFormat::Q8, ComputeDtype::Bf16),
        (KvDtype::F32, WeightFormat::Q8, ComputeDtype::F32),
        (KvDtype::Bf16, WeightFormat::Q4, ComputeDtype::Bf16),
    ]
}

/// A sequence that is computed piece by piece.
struct Pass<'a> {
    model: &'a Model,
    pool: KvPool,
    blocks: Vec<BlockId>,
    positions: Vec<u32>,
    kept: Kept,
}

/// By layer, the K and V of every token so far, as fresh as they came.
#[derive(Default)]
struct Kept(Vec<KvBytes>);

impl Selector<Model> for Kept {
    fn take(&mut self, seen: &Seen<'_, Model>, _pool: &mut KvPool) -> Next {
        self.0.push(seen.export(0..seen.places.len()));
        Next::Go
    }
}

impl<'a> Pass<'a> {
    fn new(model: &'a Model) -> Self {
        let blocks = (0..10).rev().map(BlockId).collect();
        Self { model, pool: model.new_pool(10), blocks, positions: Vec::new(), kept: Kept::default() }
    }

    /// The logits of `tokens`, which follow what is there.
    fn extend(&mut self, tokens: &[u32]) -> Matrix {
        let first = self.positions.len() as u32;
        let slots: Vec<u32> = (first..first + tokens.len() as u32).collect();
        self.positions.extend(&slots);
        let places = Places::of(slots, &self.positions);
        let chunk = Chunk::embed(self.model, tokens, places, Wanted::All).unwrap();
        let (blocks, key_positions, selector) = (&self.blocks, &self.positions, Some(&mut self.kept as _));
        let rider = Rider { chunk, blocks, key_positions, selector };
        Forward::new(self.model, &mut self.pool).pass(vec![rider]).logits
    }
}

fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    assert!(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}");
}

#[test]
fn a_prefill_over_the_pool_agrees_with_a_dense_reference() {
    for config in variants() {
        let model = model(config, KvDtype::F32);
        let tokens = tokens(70);
        let logits = Pass::new(&model).extend(&tokens);
        let expected = reference::logits(&model, &tokens);
        let greatest = expected.iter().flatten().fold(0.0_f64, |a, b| a.max(b.abs()));
        assert!((0.5..50.0).contains(&greatest), "logits of a usual scale, not {greatest}");
        for (row, expected) in expected.iter().enumerate() {
            for (got, exact) in logits.row(row).iter().zip(expected) {
                assert!((f64::from(*got) - exact).abs() < 1e-4, "{:?} row {row}: {got}, {exact}", model.config);
            }
        }
    }
}

/// The errors of bf16 and of 8 bits are those of rounding: bounded by what a few roundings of half a unit in the last
/// place of 8 bits make of logits of a usual scale, and much smaller on average.
#[test]
fn rounded_arithmetic_stays_close_to_the_dense_reference() {
    let configs = [config(), gemma(), plain(Positions::Alibi), plain(Positions::Learned)];
    let each = configs.iter().flat_map(|config| arithmetics().into_iter().map(move |arithmetic| (config, arithmetic)));
    for (config, (_, weights, compute)) in each {
        let model = model_in(config.clone(), KvDtype::F32, weights, compute);
        let tokens = tokens(70);
        let logits = Pass::new(&model).extend(&tokens);
        let expected = reference::logits(&model, &tokens);
        let pairs = || logits.as_slice().iter().zip(expected.iter().flatten());
        let scale = (expected.iter().flatten().map(|x| x * x).sum::<f64>() / expected.len() as f64 / 97.0).sqrt();
        let error = (pairs().map(|(got, exact)| (f64::from(*got) - exact).powi(2)).sum::<f64>()
            / pairs().count() as f64)
            .sqrt();
        let bound = match (weights, compute) {
            // The reference computes with the weights as they were rounded; activations have 8 bits.
            (WeightFormat::Q8 | WeightFormat::Q4, _) | (_, ComputeDtype::Bf16) => 0.03,
            _ => 1e-4,
        };
        println!("{weights:?} {compute:?}: error {error:.2e} of {scale:.2}");
        assert!(error < bound * scale, "{weights:?} {compute:?}: {error} of {scale}");
    }
}

#[test]
fn pieces_and_single_tokens_give_the_bits_of_one_prefill() {
    let each = variants().into_iter().zip(arithmetics().into_iter().cycle());
    let each_arithmetic =
        |config: fn() -> ModelConfig| arithmetics().into_iter().map(move |arithmetic| (config(), arithmetic));
    let more = each_arithmetic(config).chain(each_arithmetic(mixture)).chain(each_arithmetic(mixtral));
    for (config, (kv_dtype, weights, compute)) in each.chain(more) {
        let model = model_in(config, kv_dtype, weights, compute);
        let tokens = tokens(90);
        let whole = Pass::new(&model).extend(&tokens);
        let mut halves = Pass::new(&model);
        let first = halves.extend(&tokens[..41]);
        let second = halves.extend(&tokens[41..]);
        assert_same_bits(first.as_slice(), &whole.as_slice()[..41 * 97], "the first piece");
        assert_same_bits(second.as_slice(), &whole.as_slice()[41 * 97..], "the second piece");
        let mut steps = Pass::new(&model);
        for (row, token) in tokens.iter().enumerate() {
            assert_same_bits(steps.extend(&[*token]).as_slice(), whole.row(row), "one token at a time");
        }
    }
}

/// What a model's passes come to: the logits of a prefill, of a piece after it and of single tokens; every K and V; and the pool's blocks.
fn passed(model: &Model) -> (Vec<Matrix>, Vec<KvBytes>, Vec<Vec<u8>>) {
    let tokens = tokens(100);
    let mut pass = Pass::new(model);
    let pieces = [&tokens[..70], &tokens[70..97]].into_iter().chain(tokens[97..].chunks(1));
    let logits = pieces.map(|piece| pass.extend(piece)).collect();
    pass.pool.copy_block(BlockId(9), BlockId(0)).unwrap();
    let blocks: Vec<Vec<u8>> = (0..10).map(|block| pass.pool.read_block(BlockId(block)).unwrap()).collect();
    assert!(blocks[0] == blocks[9] && blocks[0] != blocks[5] && blocks[5].iter().any(|byte| *byte != 0));
    (logits, pass.kept.0, blocks)
}

/// Models that are wide enough for a single row to be several tasks; their heads come out even at two and at three nodes, and at two alone.
#[test]
fn numa_nodes_change_no_bits() {
    let wide = |kv_heads: usize, of: ModelConfig| ModelConfig {
        hidden_size: 384,
        intermediate_size: 500,
        heads: 12,
        kv_heads,
        head_dim: 32,
        rotated: 32,
        layers: 2,
        windows: vec![None; 2],
        ..of
    };
    let configs = [wide(6, config()), wide(4, mixture()), wide(12, plain(Positions::Alibi))];
    let small = variants().into_iter().zip(arithmetics().into_iter().cycle());
    let each = configs.iter().flat_map(|config| arithmetics().into_iter().map(move |kind| (config.clone(), kind)));
    for (config, (kv_dtype, weights, compute)) in each.chain(small) {
        let with = |nodes| divided(nodes).install(|| passed(&model_in(config.clone(), kv_dtype, weights, compute)));
        let one = with(1);
        assert!([2, 3].into_iter().all(|nodes| with(nodes) == one), "{weights:?} {compute:?} {config:?}");
    }
}

/// What one node's pool gave, another number of nodes takes.
#[test]
fn blocks_come_and_go_between_numbers_of_numa_nodes() {
    let of = |nodes| divided(nodes).install(|| model(ModelConfig { kv_heads: 4, ..config() }, KvDtype::Bf16));
    let (one, two) = (of(1), of(2));
    let expected = passed(&one).2;
    let mut pool = divided(2).install(|| two.new_pool(10));
    assert_eq!(pool.heads().ranges().collect::<Vec<_>>(), [0..2, 2..4]);
    for (block, bytes) in expected.iter().enumerate() {
        pool.write_block(BlockId(block as u32), bytes).unwrap();
    }
    let back: Vec<Vec<u8>> = (0..10).map(|block| pool.read_block(BlockId(block)).unwrap()).collect();
    assert!(back == expected);
}

#[test]
fn numa_nodes_change_no_bits_of_what_a_gguf_file_has() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf/mixed.gguf");
    let with = |nodes| {
        divided(nodes).install(|| {
            let model = Model::load(&path, LoadOptions::default()).unwrap();
            let tokens: Vec<u32> = tokens(90).into_iter().map(|token| token % 64).collect();
            Pass::new(&model).extend(&tokens)
        })
    };
    assert!([2, 3].into_iter().all(|nodes| with(nodes) == with(1)));
}

#[test]
fn more_rows_than_go_through_together_change_nothing() {
    let model = model(ModelConfig { max_positions: 2048, ..config() }, KvDtype::F16);
    let tokens = tokens(ROWS_AT_ONCE + 40);
    let mut pass = Pass::new(&model);
    let blocks = tokens.len().div_ceil(16) as u32;
    (pass.pool, pass.blocks) = (model.new_pool(blocks as usize), (0..blocks).map(BlockId).collect());
    let whole = pass.extend(&tokens);
    let short = Pass::new(&model).extend(&tokens[..100]);
    assert_same_bits(short.as_slice(), &whole.as_slice()[..100 * 97], "the first rows");
    let mut other = Pass::new(&model);
    (other.pool, other.blocks) = (model.new_pool(blocks as usize), pass.blocks.clone());
    other.extend(&tokens[..ROWS_AT_ONCE - 5]);
    let last = other.extend(&tokens[ROWS_AT_ONCE - 5..]);
    assert_same_bits(last.as_slice(), &whole.as_slice()[(ROWS_AT_ONCE - 5) * 97..], "the last rows");
}

#[test]
fn kept_keys_and_values_give_the_bits_of_fresh_ones() {
    let configs = [
        ModelConfig { qkv_bias: true, ..config() },
        gemma(),
        plain(Positions::Alibi),
        plain(Positions::Learned),
        mixture(),
    ];
    let each = configs.iter().flat_map(|config| arithmetics().into_iter().map(move |arithmetic| (config, arithmetic)));
    for (config, (dtype, weights, compute)) in each {
        let model = model_in(config.clone(), dtype, weights, compute);
        let tokens = tokens(80);
        let mut fresh = Pass::new(&model);
        fresh.extend(&tokens[..50]);
        let expected = fresh.extend(&tokens[50..]);

        let mut loaded = Pass::new(&model);
        let slots: Vec<u32> = (0..50).collect();
        for layer in 0..3 {
            let kv = &fresh.kept.0[layer];
            let stored = StoredKv { dtype, k: &kv.k, v: &kv.v };
            let to = Slots { blocks: &loaded.blocks, slots: &slots, positions: &slots };
            model.place_stored(&mut loaded.pool, layer, to, stored).unwrap();
        }
        loaded.positions = slots;
        let logits = loaded.extend(&tokens[50..]);
        assert_same_bits(logits.as_slice(), expected.as_slice(), dtype.name());
    }
}

#[test]
fn an_id_outside_the_vocabulary_is_the_callers_fault() {
    let error = model(config(), KvDtype::F32).embed_tokens(&[3, 97], &[0, 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("token id 97"), "{error}");
}

#[test]
fn a_position_that_was_not_learned_is_refused_and_others_have_no_end() {
    let end = [0, 512];
    let error = model(plain(Positions::Learned), KvDtype::F32).embed_tokens(&[3, 4], &end).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("position 512 is beyond the 512"), "{error}");
    for config in [config(), plain(Positions::Alibi)] {
        assert!(model(config, KvDtype::F32).embed_tokens(&[3, 4], &end).is_ok());
    }
}

/// Where a whole prompt stands does not matter to ALiBi, bit for bit; to a learned table it does.
#[test]
fn only_distances_count_for_alibi() {
    let logits = |positions: Positions, first: u32| {
        let model = model(plain(positions), KvDtype::F32);
        let mut pass = Pass::new(&model);
        let slots: Vec<u32> = (0..40).collect();
        pass.positions = (first..first + 40).collect();
        let places = Places::of(slots, &pass.positions);
        let mut forward = Forward::new(&model, &mut pass.pool);
        forward.logits(&tokens(40), places, Wanted::All, &pass.blocks, &pass.positions).unwrap()
    };
    assert_same_bits(logits(Positions::Alibi, 0).as_slice(), logits(Positions::Alibi, 300).as_slice(), "moved");
    assert_ne!(logits(Positions::Learned, 0), logits(Positions::Learned, 300));
}

#[test]
fn the_same_seed_gives_the_same_model_and_reports_progress() {
    let last = std::sync::Mutex::new((0, 0));
    let progress = |done, total| *last.lock().unwrap() = (done, total);
    let a = Model::random(config(), 3, LoadOptions { progress: Some(&progress), ..LoadOptions::default() });
    let (done, total) = *last.lock().unwrap();
    assert!(done == total && total > 0, "{done} of {total}");
    let b = Model::random(config(), 3, LoadOptions::default());
    let c = Model::random(config(), 4, LoadOptions::default());
    let logits = |model: &Model| Pass::new(model).extend(&[1, 2, 3]);
    assert_eq!(logits(&a), logits(&b));
    assert_ne!(logits(&a), logits(&c));
    assert_eq!(a.kv_layout().dtype, KvDtype::F32, "as precise as the weights");
}
