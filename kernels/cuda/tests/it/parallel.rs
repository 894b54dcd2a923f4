//! One model on several GPUs gives the bits that it gives on one, and each reads what any of them stored.

use ragstone_cuda::{CudaModel, GpuList};
use ragstone_kernels::ErrorKind;
use ragstone_kernels::backend::{Backend, RowGroup, SequenceView, StoredKv};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::deviation::Compared;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::forward::{Forward, Places, Wanted};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::LoadOptions;
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};

use crate::fixtures::{Expected, folder, names};
use crate::forward::{Sequence, counted};
use crate::standin::StandIn;
use crate::stored::{Keep, Load, STORED, pass};

/// So many GPUs, the last one first: shares are not by number.
fn gpus(degree: usize) -> GpuList {
    GpuList::new((0..degree).rev().collect()).unwrap()
}

fn tiny(name: &str, degree: usize, kv: KvDtype) -> CudaModel {
    let options = LoadOptions { kv_dtype: Some(kv), compute: Some(ComputeDtype::F32), ..Default::default() };
    loaded(name, degree, options)
}

fn loaded(name: &str, degree: usize, options: LoadOptions<'_>) -> CudaModel {
    CudaModel::load(&folder(name), gpus(degree), options).unwrap()
}

/// Degrees beside one that a model of so many KV heads may be of.
fn degrees(kv_heads: usize) -> impl Iterator<Item = usize> {
    [2, 3, 4].into_iter().filter(move |degree| *degree <= kv_heads)
}

fn assert_same(a: &[f32], b: &[f32], what: &str) {
    let differs = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert!(differs == 0 && a.len() == b.len(), "{what}: {differs} of {} have other bits", a.len().max(b.len()));
}

/// The logits of all rows, and each layer's K and V of the first ones.
fn computed(model: &CudaModel, tokens: &[u32]) -> (Vec<f32>, Keep) {
    let mut kept = Keep::default();
    let logits = pass(model, tokens, 0, &mut kept);
    (logits, kept)
}

#[test]
fn every_family_has_the_same_bits_on_one_gpu_and_on_several() {
    let standin = StandIn::with_devices(1, 4);
    let mut compared = 0;
    for name in names() {
        let one = tiny(&name, 1, KvDtype::F32);
        let tokens = Expected::of(&name).tokens;
        let (logits, kept) = computed(&one, &tokens);
        for degree in degrees(one.config().kv_heads) {
            let several = tiny(&name, degree, KvDtype::F32);
            let (ours, own) = computed(&several, &tokens);
            assert_same(&ours, &logits, &format!("{name} on {degree}"));
            assert!(own == kept, "{name} on {degree}: stored KV");
            compared += 1;
        }
    }
    standin.assert_clean();
    assert!(compared >= 30, "{compared} compared");
}

/// A rank rounds its share of the outputs, each with a scale of its own: the bytes that one GPU has of them.
#[test]
fn every_family_of_8_bits_has_the_same_bits_on_two_gpus() {
    let standin = StandIn::with_devices(6, 2);
    let mut compared = 0;
    for name in names() {
        let options = || LoadOptions { weights: Some(WeightFormat::Q8), ..Default::default() };
        let one = loaded(&name, 1, options());
        if one.config().kv_heads == 1 {
            continue;
        }
        let (two, tokens) = (loaded(&name, 2, options()), Expected::of(&name).tokens);
        let ((logits, kept), (ours, own)) = (computed(&one, &tokens), computed(&two, &tokens));
        assert_same(&ours, &logits, &name);
        assert!(own == kept, "{name}: stored KV");
        assert_eq!(two.arithmetic().to_string(), "weights q8, compute bf16");
        compared += 1;
    }
    standin.assert_clean();
    assert!(compared >= 10, "{compared} compared");
}

/// Heads of 8, and outputs that fill no tile and come out even for no degree; a mixture where there are experts.
fn config(kv_heads: usize, experts: usize) -> ModelConfig {
    let (architecture, of_experts) = match experts {
        0 => ("Qwen2ForCausalLM", String::new()),
        _ => (
            "Qwen3MoeForCausalLM",
            format!(
                r#""num_experts": {experts}, "num_experts_per_tok": 2, "moe_intermediate_size": 37, "norm_topk_prob": true,
                "mlp_only_layers": [1],"#
            ),
        ),
    };
    let config = format!(
        r#"{{"architectures": ["{architecture}"], "vocab_size": 97, "hidden_size": 50, "intermediate_size": 83, {of_experts}
        "num_hidden_layers": 2, "num_attention_heads": {}, "num_key_value_heads": {kv_heads}, "rms_norm_eps": 1e-6, "head_dim": 8,
        "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "bfloat16"}}"#,
        2 * kv_heads
    );
    ModelConfig::from_json(&config).unwrap()
}

fn random(config: &ModelConfig, degree: usize, weights: WeightFormat, kv: KvDtype) -> CudaModel {
    let options = LoadOptions { weights: Some(weights), kv_dtype: Some(kv), ..Default::default() };
    CudaModel::random(config.clone(), 7, gpus(degree), options).unwrap()
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * i * 7 + i * 13) % 97).collect()
}

/// Five KV heads over two, three and four GPUs, in every type, in rows that take every tile; also without a link between GPUs.
#[test]
fn uneven_shares_have_the_same_bits_in_pieces_and_whole() {
    let types = [
        (WeightFormat::Bf16, KvDtype::Bf16),
        (WeightFormat::F32, KvDtype::F32),
        (WeightFormat::Bf16, KvDtype::F16),
        (WeightFormat::Q8, KvDtype::Bf16),
    ];
    for (seed, (weights, kv)) in types.into_iter().enumerate() {
        let standin = StandIn::with_devices(seed as u64, 4);
        standin.set("peers", if seed == 0 { "none" } else { "all" });
        let (config, tokens) = (config(5, 0), tokens(150));
        let expected = Sequence::new(&random(&config, 1, weights, kv), 150).append(&tokens, &counted(150));
        for degree in degrees(5) {
            let model = random(&config, degree, weights, kv);
            let mut sequence = Sequence::new(&model, 150);
            let mut rows = sequence.append(&tokens[..1], &[0]).into_vec();
            rows.extend(sequence.append(&tokens[1..20], &counted(20)[1..]).into_vec());
            rows.extend(sequence.append(&tokens[20..], &counted(150)[20..]).into_vec());
            assert_same(&rows, expected.as_slice(), &format!("{weights:?}, KV of {kv:?}, on {degree}"));
        }
        standin.assert_clean();
    }
}

/// Of three experts over four GPUs, one has no output of the router.
#[test]
fn experts_have_the_same_bits_on_several_gpus() {
    let standin = StandIn::with_devices(4, 4);
    for (experts, weights) in [(5, WeightFormat::Bf16), (3, WeightFormat::F32), (5, WeightFormat::Q8)] {
        let (config, tokens) = (config(4, experts), tokens(83));
        let expected = Sequence::new(&random(&config, 1, weights, KvDtype::Bf16), 83).append(&tokens, &counted(83));
        for degree in degrees(4) {
            let ours =
                Sequence::new(&random(&config, degree, weights, KvDtype::Bf16), 83).append(&tokens, &counted(83));
            assert_same(ours.as_slice(), expected.as_slice(), &format!("{experts} experts, {weights:?}, on {degree}"));
        }
    }
    standin.assert_clean();
}

/// Under several seeds, as a lost or unordered copy between GPUs gives other bits, or a problem.
#[test]
fn what_one_degree_stored_another_one_loads() {
    for seed in 0..8 {
        let standin = StandIn::with_devices(seed, 2);
        let kv = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16][seed as usize % 3];
        let models = [1, 2].map(|degree| tiny("qwen3", degree, kv));
        let tokens = Expected::of("qwen3").tokens;
        let stored = models.each_ref().map(|model| computed(model, &tokens));
        assert!(stored[0].1 == stored[1].1, "seed {seed}: what is stored");
        let expected = &stored[0].0[STORED * models[0].config().vocab_size..];
        for (model, (_, kept)) in models.iter().zip([&stored[1], &stored[0]]) {
            let rest = pass(model, &tokens, STORED, &mut Load(kept, kv));
            assert_same(&rest, expected, &format!("seed {seed}, {kv:?}"));
        }
        drop(models);
        standin.assert_clean();
    }
}

/// Deviations, and what rows look at: of all heads.
fn seen(model: &CudaModel, tokens: &[u32], kv: KvDtype) -> (Vec<f32>, Matrix) {
    let count = tokens.len();
    let positions = counted(count);
    let blocks: Vec<BlockId> = (0..count.div_ceil(16) as u32).rev().map(BlockId).collect();
    // A pool larger than the sequence, so that its blocks have places to be taken for.
    let mut pool = model.new_pool(blocks.len() + 3);
    let places = Places { slots: positions.clone(), positions: positions.clone() };
    let mut forward = Forward::new(model, &mut pool);
    forward.logits(tokens, places, Wanted::Last, &blocks, &positions).unwrap();
    let rows = model.embed(tokens, &positions).unwrap();
    let fresh = model.project(1, &rows);
    let stored = model.export(&model.project(0, &rows), 0..count);
    let stored = StoredKv { dtype: kv, k: &stored.k, v: &stored.v };
    let pairs: Vec<(usize, usize)> = (0..count).map(|row| (row, (row * 5 + 2) % count)).collect();
    let fresh = model.gather_kv(&fresh, &(0..count).rev().collect::<Vec<_>>());
    let mut deviations = Vec::new();
    for compared in [Compared::Keys, Compared::Values, Compared::Both] {
        deviations.extend(model.deviation(&fresh, stored, &pairs, compared).unwrap());
    }
    let sequence = SequenceView { blocks: &blocks, key_positions: &positions };
    let group = RowGroup { rows: 20..count, positions: &positions[20..], sequence };
    let weights = model.attention_weights(1, &rows, &group, &pool);
    model.check().unwrap();
    (deviations, weights)
}

#[test]
fn what_selects_tokens_to_blend_has_the_same_bits() {
    for seed in 0..4 {
        let standin = StandIn::with_devices(seed, 3);
        for (name, kv) in [("qwen2", KvDtype::F32), ("olmo2", KvDtype::Bf16), ("bloom", KvDtype::F16)] {
            let one = tiny(name, 1, kv);
            let tokens = &Expected::of(name).tokens;
            let (deviations, weights) = seen(&one, tokens, kv);
            assert!(deviations.iter().all(|of| *of > 0.0) && weights.row(0)[0] > 0.0);
            for degree in degrees(one.config().kv_heads).filter(|degree| *degree <= 3) {
                let (ours, own) = seen(&tiny(name, degree, kv), tokens, kv);
                assert_same(&ours, &deviations, &format!("{name} on {degree}: deviations"));
                assert_same(own.as_slice(), weights.as_slice(), &format!("{name} on {degree}: attention"));
            }
        }
        standin.assert_clean();
    }
}

#[test]
fn blocks_go_out_and_in_on_several_gpus() {
    let standin = StandIn::with_devices(1, 2);
    let model = tiny("qwen2", 2, KvDtype::Bf16);
    let tokens = &Expected::of("qwen2").tokens[..20];
    let (mut pool, blocks, positions) = (model.new_pool(6), [BlockId(4), BlockId(1)], counted(20));
    let places = |first: usize| Places { slots: positions[first..].to_vec(), positions: positions[first..].to_vec() };
    let mut forward = Forward::new(&model, &mut pool);
    let expected = forward.logits(tokens, places(0), Wanted::Last, &blocks, &positions).unwrap().into_vec();
    model.copy_block(&mut pool, BlockId(4), BlockId(5)).unwrap();
    let swapped = model.read_block(&pool, BlockId(1)).unwrap();
    let layout = model.kv_layout();
    assert_eq!(swapped.len(), 2 * layout.layers * BLOCK_TOKENS * layout.kv_dim() * layout.dtype.size_in_bytes());
    model.write_block(&mut pool, BlockId(0), &swapped).unwrap();
    let moved = [BlockId(5), BlockId(0)];
    let mut forward = Forward::new(&model, &mut pool);
    let logits = forward.logits(&tokens[19..], places(19), Wanted::Last, &moved, &positions).unwrap();
    assert_same(logits.as_slice(), &expected, "moved");
    let error = model.write_block(&mut pool, BlockId(0), &swapped[2..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    standin.assert_clean();
}

/// Whichever of them is lost, and wherever: the pass fails, and a new pool is on all of them again.
#[test]
fn with_one_gpu_the_model_is_lost_on_all_of_them() {
    let standin = StandIn::with_devices(2, 2);
    let model = tiny("qwen2", 2, KvDtype::F32);
    let tokens = &Expected::of("qwen2").tokens[..20];
    let run = |pool: &mut <CudaModel as Backend>::Pool| {
        let (positions, blocks) = (counted(20), [BlockId(0), BlockId(1)]);
        let places = Places { slots: positions.clone(), positions: positions.clone() };
        Forward::new(&model, pool).logits(tokens, places, Wanted::All, &blocks, &positions).map(Matrix::into_vec)
    };
    let mut pool = model.new_pool(2);
    let expected = run(&mut pool).unwrap();
    for launches in [1, 2, 3, 8, 21, 40, 41] {
        standin.set("lost_after", &launches.to_string());
        let error = run(&mut pool).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "after {launches} launches: {error}");
        assert_eq!(run(&mut pool).unwrap_err().kind(), ErrorKind::DeviceLost, "it stays lost");
        drop(pool);
        pool = model.new_pool(2);
        assert_eq!(run(&mut pool).unwrap(), expected, "after {launches} launches");
    }
    drop(pool);
    standin.assert_clean();
}

#[test]
fn a_pool_that_does_not_fit_one_of_them_is_told() {
    let standin = StandIn::with_devices(3, 2);
    let model = tiny("qwen2", 2, KvDtype::F32);
    drop(model.new_pool(1 << 24));
    assert_eq!(model.check().unwrap_err().kind(), ErrorKind::Full);
    // Half of it is on each.
    assert_eq!(2 * model.block_bytes_of_a_gpu(), model.kv_layout().block_bytes());
    assert_eq!(model.gpu(), "2 x Ragstone stand-in 1 + Ragstone stand-in 0");
    let one = tiny("qwen2", 1, KvDtype::F32);
    assert_eq!(model.size_in_bytes(), one.size_in_bytes(), "no matrix is there twice");
    standin.assert_clean();
}

#[test]
fn more_gpus_than_kv_heads_and_gpus_that_are_not_there_are_refused() {
    let standin = StandIn::with_devices(5, 4);
    let load = |ordinals: &[usize]| {
        CudaModel::load(&folder("qwen2"), GpuList::new(ordinals.to_vec()).unwrap(), LoadOptions::default()).unwrap_err()
    };
    let (many, missing) = (load(&[0, 1, 2]), load(&[0, 4]));
    assert!(many.kind() == ErrorKind::InvalidInput && many.to_string().contains("name at most 2"), "{many}");
    assert!(missing.kind() == ErrorKind::InvalidInput && missing.to_string().contains("no GPU 4"), "{missing}");
    standin.assert_clean();
}
