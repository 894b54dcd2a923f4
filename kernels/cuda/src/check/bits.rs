//! A whole model of random weights: the bits of its rows whatever they are computed beside, and its logits near the processor's.

use super::Check;
use super::compare::{Tolerance, difference};
use crate::CudaModel;
use ragstone_kernels::backend::{Backend, KvBytes, StoredKv};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::error::{Error, Result};
use ragstone_kernels::forward::{Chunk, Forward, Next, Outcome, Places, Rider, Seen, Selector, Wanted};
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};

/// Heads of 8 over few rows, so that this also takes seconds where kernels run on a processor.
const CONFIG: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "head_dim": 8,
    "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": true, "hidden_act": "silu",
    "torch_dtype": "bfloat16"}"#;

/// More than a segment of attention, so that a row by itself has its context split.
const TOKENS: usize = 530;

/// The tokens that are compared in pieces, and those whose KV is stored.
const SHORT: usize = 83;
const STORED: usize = 21;

/// What bf16 may put logits off, as a share of the greatest one.
const OFF: f64 = 0.03;
/// The same of weights of 8 bits: the processor rounds activations to 8 bits, too.
const Q8_OFF: f64 = 0.06;

pub(super) fn check(check: &mut Check, ordinal: usize) -> Result<()> {
    for (dtype, weights) in [
        (KvDtype::F32, WeightFormat::Stored),
        (KvDtype::F16, WeightFormat::Stored),
        (KvDtype::Bf16, WeightFormat::Stored),
        (KvDtype::Bf16, WeightFormat::Q8),
    ] {
        let compute = if dtype == KvDtype::Bf16 { ComputeDtype::Bf16 } else { ComputeDtype::F32 };
        let options =
            LoadOptions { kv_dtype: Some(dtype), weights: Some(weights), compute: Some(compute), ..Default::default() };
        let config = ModelConfig::from_json(CONFIG)?;
        let model = CudaModel::random(config.clone(), check.options.seed, ordinal, options)?;
        let (name, off) = match weights {
            WeightFormat::Q8 => (format!("a model of q8 with KV of {dtype}"), Q8_OFF),
            _ => (format!("a model with KV of {dtype}"), OFF),
        };
        of_model(check, (&name, dtype), &model)?;
        near_the_processor(check, (&name, off), &model, &Model::random(config, check.options.seed, options))?;
    }
    Ok(())
}

/// A sequence whose blocks lie in no order.
struct Run<'a, B: Backend> {
    model: &'a B,
    pool: B::Pool,
    blocks: Vec<BlockId>,
    positions: Vec<u32>,
    tokens: Vec<u32>,
}

impl<'a, B: Backend> Run<'a, B> {
    fn new(model: &'a B, count: usize) -> Self {
        let blocks: Vec<BlockId> = (0..count.div_ceil(BLOCK_TOKENS) as u32).rev().map(BlockId).collect();
        let (positions, tokens) = ((0..count as u32).collect(), (0..count as u32).map(|i| (i * i * 7 + i * 13) % 96));
        Self { model, pool: model.new_pool(blocks.len()), blocks, positions, tokens: tokens.collect() }
    }

    /// The logits of tokens `first` to `end`, what stands before them being there.
    fn logits<'s>(
        &'s mut self,
        first: usize,
        end: usize,
        selector: Option<&'s mut dyn Selector<B>>,
    ) -> Result<Vec<f32>> {
        let places = Places::of(first as u32..end as u32, &self.positions);
        let chunk = Chunk::embed(self.model, &self.tokens[first..end], places, Wanted::All)?;
        let rider = Rider { chunk, blocks: &self.blocks, key_positions: &self.positions[..end], selector };
        let mut passed = Forward::new(self.model, &mut self.pool).pass(vec![rider]);
        self.model.check()?;
        match passed.outcomes.pop() {
            Some(Outcome::Done(_)) => Ok(passed.logits.into_vec()),
            Some(Outcome::Failed(error)) => Err(error),
            _ => Err(Error::internal("a pass that nobody stops stopped")),
        }
    }
}

/// Keeps each layer's fresh KV of the first tokens.
struct Keep(Vec<KvBytes>);

impl<B: Backend> Selector<B> for Keep {
    fn take(&mut self, seen: &Seen<'_, B>, _: &mut B::Pool) -> Next {
        self.0.push(seen.export(0..STORED));
        Next::Go
    }
}

/// Puts stored KV of the first tokens into each layer; keeps what goes wrong.
struct Load<'a>(&'a [KvBytes], KvDtype, Result<()>);

impl<B: Backend> Selector<B> for Load<'_> {
    fn take(&mut self, seen: &Seen<'_, B>, pool: &mut B::Pool) -> Next {
        let counted: Vec<u32> = (0..STORED as u32).collect();
        let places = Places { slots: counted.clone(), positions: counted };
        let stored = StoredKv { dtype: self.1, k: &self.0[seen.layer].k, v: &self.0[seen.layer].v };
        if let Err(error) = seen.place_stored(pool, &places, stored) {
            self.2 = Err(error);
        }
        Next::Go
    }
}

fn of_model(check: &mut Check, (name, dtype): (&str, KvDtype), model: &CudaModel) -> Result<()> {
    let what = |ways: &str| format!("{name}: {ways}");
    let vocabulary = model.config().vocab_size;
    let mut kept = Keep(Vec::new());
    let whole = Run::new(model, SHORT).logits(0, SHORT, Some(&mut kept))?;
    for piece in [1, 17, 40] {
        let mut run = Run::new(model, SHORT);
        let mut rows = Vec::new();
        for first in (0..SHORT).step_by(piece) {
            rows.extend(run.logits(first, SHORT.min(first + piece), None)?);
        }
        check.same_bits(&what("a prompt whole and in pieces"), &format!("pieces of {piece}"), &rows, &whole);
    }

    let mut load = Load(&kept.0, dtype, Ok(()));
    let rest = Run::new(model, SHORT).logits(STORED, SHORT, Some(&mut load))?;
    load.2?;
    check.same_bits(&what("over fresh and over stored KV"), "rows behind it", &rest, &whole[STORED * vocabulary..]);

    let beside = beside_another(model)?;
    check.same_bits(&what("a prompt alone and beside another"), "all rows", &beside, &whole);

    let long = Run::new(model, TOKENS).logits(0, TOKENS, None)?;
    let mut run = Run::new(model, TOKENS);
    run.logits(0, TOKENS - 1, None)?;
    let last = run.logits(TOKENS - 1, TOKENS, None)?;
    let expected = &long[(TOKENS - 1) * vocabulary..];
    check.same_bits(&what("the context of a row whole and split"), "the last row", &last, expected);

    let (first, swapped) = (run.model.read_block(&run.pool, BlockId(0))?, BlockId(1));
    let second = run.model.read_block(&run.pool, swapped)?;
    run.model.write_block(&mut run.pool, swapped, &first)?;
    run.model.write_block(&mut run.pool, BlockId(0), &second)?;
    let count = run.blocks.len();
    run.blocks.swap(count - 1, count - 2);
    let moved = run.logits(TOKENS - 1, TOKENS, None)?;
    check.same_bits(&what("over blocks that were swapped out and in"), "the last row", &moved, expected);
    Ok(())
}

/// The logits of the short prompt, computed in one pass with another sequence of the same pool.
fn beside_another(model: &CudaModel) -> Result<Vec<f32>> {
    let (one, other) = (Run::new(model, SHORT), Run::new(model, 40));
    let others_blocks: Vec<BlockId> =
        (0..other.blocks.len()).map(|at| BlockId((one.blocks.len() + at) as u32)).collect();
    let mut pool = model.new_pool(one.blocks.len() + others_blocks.len());
    let all = |run: &Run<'_, CudaModel>| Places::of(0..run.positions.len() as u32, &run.positions);
    let rider = |run: &Run<'_, CudaModel>| Chunk::embed(model, &run.tokens, all(run), Wanted::All);
    let riders = vec![
        Rider { chunk: rider(&other)?, blocks: &others_blocks, key_positions: &other.positions, selector: None },
        Rider { chunk: rider(&one)?, blocks: &one.blocks, key_positions: &one.positions, selector: None },
    ];
    let passed = Forward::new(model, &mut pool).pass(riders);
    model.check()?;
    match &passed.outcomes[..] {
        [_, Outcome::Done(rows)] => {
            let width = passed.logits.cols();
            Ok(passed.logits.as_slice()[rows.start * width..rows.end * width].to_vec())
        }
        _ => Err(Error::internal("a pass that nobody stops stopped")),
    }
}

/// Other sums, so other bits; near all the same.
fn near_the_processor(check: &mut Check, (name, off): (&str, f64), model: &CudaModel, cpu: &Model) -> Result<()> {
    let ours = Run::new(model, SHORT).logits(0, SHORT, None)?;
    let theirs = Run::new(cpu, SHORT).logits(0, SHORT, None)?;
    let wanted: Vec<f64> = theirs.iter().map(|logit| f64::from(*logit)).collect();
    let greatest = wanted.iter().fold(0.0_f64, |greatest, logit| greatest.max(logit.abs()));
    let found = difference(&ours, &wanted, Tolerance::new(0.0, off * greatest));
    check.bits.push(super::BitCheck {
        what: format!("{name}: within {:.0} % of the processor's logits", 100.0 * off),
        problem: found.wrong,
    });
    Ok(())
}
