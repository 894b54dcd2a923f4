//! Steps of running answers, replayed as graphs: the bits of the same steps operation by operation, and few calls of the driver.

use ragstone_cuda::{CudaModel, GpuList, Queued};
use ragstone_kernels::ErrorKind;
use ragstone_kernels::backend::{Backend, KvBytes, Slots, StoredKv};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::error::Result;
use ragstone_kernels::forward::{Chunk, Forward, Interest, Next, Outcome, Places, Rider, Seen, Selector, Wanted};
use ragstone_kernels::model::LoadOptions;
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};

use crate::fixtures::names;
use crate::forward::counted;
use crate::parity::mixture;
use crate::standin::StandIn;

/// Sequences of a batch.
const SEQUENCES: usize = 3;

/// Which sequences are in a step, and with how many rows.
type Step<'a> = &'a [(usize, usize)];

/// Batches that grow and shrink, with a draft now and then. Each number of rows comes once, a second time, when it is captured, and again.
const STEPS: &[Step<'_>] = &[
    &[(0, 1)],
    &[(0, 1)],
    &[(0, 1), (1, 1)],
    &[(0, 1), (1, 1)],
    &[(1, 1), (2, 1)],
    &[(0, 1), (1, 1), (2, 1)],
    &[(2, 3)],
    &[(1, 2), (0, 1)],
    &[(0, 1), (2, 1), (1, 1)],
    &[(2, 1)],
    &[(2, 1), (0, 1)],
];

/// Tokens of the sequences before the first step. The first one meets a new block in the fourth step.
const LENGTHS: [usize; SEQUENCES] = [29, 17, 40];

/// Sequences in one pool.
struct Batch<'a> {
    model: &'a CudaModel,
    pool: <CudaModel as Backend>::Pool,
    sequences: [Sequence; SEQUENCES],
    /// Takes K and V out; nobody does where it is empty.
    keep: Vec<Keep>,
}

#[derive(Default)]
struct Sequence {
    blocks: Vec<BlockId>,
    key_positions: Vec<u32>,
    /// What positions of new tokens are ahead of their slots.
    gap: u32,
}

/// Takes the fresh K and V of rows out, as a running answer does: layer, K and V.
#[derive(Default)]
struct Keep(Vec<(usize, KvBytes)>);

impl<B: Backend> Selector<B> for Keep {
    fn interest(&self) -> Interest {
        Interest::FreshKv
    }

    fn take_fresh(&mut self, layer: usize, rows: usize, kv: KvBytes) {
        assert!(rows > 0);
        self.0.push((layer, kv));
    }

    fn take(&mut self, seen: &Seen<'_, B>, _: &mut B::Pool) -> Next {
        self.0.push((seen.layer, seen.export(0..seen.places.len())));
        Next::Go
    }
}

impl<'a> Batch<'a> {
    /// Empty sequences with room for so many tokens each, their blocks among each other, from the last to the first.
    fn new(model: &'a CudaModel, capacity: usize) -> Self {
        let each = capacity.div_ceil(BLOCK_TOKENS);
        let blocks = |sequence| (0..each).rev().map(|at| BlockId((at * SEQUENCES + sequence) as u32)).collect();
        let of = |sequence| Sequence { blocks: blocks(sequence), ..Sequence::default() };
        let sequences = [0, 1, 2].map(of);
        // One block is nobody's.
        Self { model, pool: model.new_pool(SEQUENCES * each + 1), sequences, keep: Vec::new() }
    }

    /// Sequences whose first tokens were computed as prompts are.
    fn prefilled(model: &'a CudaModel, lengths: [usize; SEQUENCES]) -> Self {
        let mut batch = Self::new(model, 80);
        for (sequence, length) in lengths.into_iter().enumerate() {
            batch.step(&[(sequence, length)]).unwrap();
        }
        batch
    }

    /// Puts stored K and V, made up, before a sequence.
    fn store(&mut self, sequence: usize, tokens: usize) {
        self.try_store(sequence, tokens).unwrap();
    }

    fn try_store(&mut self, sequence: usize, tokens: usize) -> Result<()> {
        let (layout, to) = (self.model.kv_layout(), &mut self.sequences[sequence]);
        to.key_positions = counted(tokens);
        let mut random = fastrand::Rng::with_seed(sequence as u64);
        for layer in 0..layout.layers {
            let mut values = || {
                let values: Vec<f32> = (0..tokens * layout.kv_dim()).map(|_| random.f32() - 0.5).collect();
                layout.dtype.encode(&values)
            };
            let (k, v) = (values(), values());
            let slots = Slots { blocks: &to.blocks, slots: &to.key_positions, positions: &to.key_positions };
            let stored = StoredKv { dtype: layout.dtype, k: &k, v: &v };
            self.model.place_stored(&mut self.pool, layer, slots, stored)?;
        }
        Ok(())
    }

    /// The logits of a step's rows.
    fn step(&mut self, step: Step<'_>) -> Result<Vec<f32>> {
        let vocabulary = self.model.config().vocab_size;
        let token = |sequence: usize, slot: usize| ((sequence * 31 + slot * slot * 7 + slot * 13) % vocabulary) as u32;
        let mut chunks = Vec::new();
        for (index, rows) in step {
            let Sequence { key_positions: keys, gap, .. } = &mut self.sequences[*index];
            let slots = keys.len()..keys.len() + rows;
            keys.extend(slots.clone().map(|slot| slot as u32 + *gap));
            let tokens: Vec<u32> = slots.clone().map(|slot| token(*index, slot)).collect();
            let places = Places::of(slots.map(|slot| slot as u32), keys);
            chunks.push((*index, Chunk::embed(self.model, &tokens, places, Wanted::All)?));
        }
        let mut keeps: Vec<Option<&mut Keep>> = self.keep.iter_mut().map(Some).collect();
        let riders = chunks.into_iter().map(|(index, chunk)| {
            let Sequence { blocks, key_positions, .. } = &self.sequences[index];
            let keep = keeps.get_mut(index).and_then(Option::take);
            Rider { chunk, blocks, key_positions, selector: keep.map(|keep| keep as &mut dyn Selector<CudaModel>) }
        });
        let riders = riders.collect();
        let mut passed = Forward::new(self.model, &mut self.pool).pass(riders);
        match passed.outcomes.pop() {
            Some(Outcome::Failed(error)) => Err(error),
            _ => Ok(passed.logits.into_vec()),
        }
    }

    fn steps(&mut self, steps: &[Step<'_>]) -> Vec<Vec<f32>> {
        steps.iter().map(|step| self.step(step).unwrap()).collect()
    }
}

/// What the driver is given to do meanwhile.
fn queued<R>(model: &CudaModel, doing: impl FnOnce() -> R) -> (R, Queued) {
    let before = model.queued();
    let done = doing();
    let Queued { kernels, graphs, copies, refused } = model.queued();
    let queued = Queued {
        kernels: kernels - before.kernels,
        graphs: graphs - before.graphs,
        copies: copies - before.copies,
        refused: refused - before.refused,
    };
    (done, queued)
}

fn config() -> ModelConfig {
    let config = r#"{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "head_dim": 8,
        "rope_theta": 10000.0, "max_position_embeddings": 8192, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "bfloat16"}"#;
    ModelConfig::from_json(config).unwrap()
}

fn random(dtype: KvDtype) -> CudaModel {
    CudaModel::random(config(), 7, 0, LoadOptions { kv_dtype: Some(dtype), ..Default::default() }).unwrap()
}

/// The same with graphs and without.
fn compared<R>(model: &CudaModel, mut doing: impl FnMut() -> R) -> [R; 2] {
    let (with, queued_with) = queued(model, &mut doing);
    assert!(queued_with.graphs > 0, "{queued_with:?}");
    model.replay_graphs(false);
    let (without, queued_without) = queued(model, &mut doing);
    assert_eq!(queued_without.graphs, 0);
    model.replay_graphs(true);
    [with, without]
}

#[test]
fn every_familys_steps_have_the_bits_of_those_without_graphs() {
    for (name, seed) in names().into_iter().zip(1..) {
        let standin = StandIn::new(seed);
        let model = standin.model(&name, KvDtype::F32, ComputeDtype::F32).unwrap();
        let [with, without] = compared(&model, || Batch::prefilled(&model, [29, 17, 17]).steps(STEPS));
        assert!(with == without, "{name}");
        drop(model);
        standin.assert_clean();
    }
}

/// In each type of K and V, which are taken out as well; under seeds that use freed memory again, and under those that do not.
#[test]
fn fresh_kv_that_is_taken_out_is_that_without_graphs() {
    for (dtype, seed) in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16].into_iter().cycle().take(6).zip(1..) {
        let standin = StandIn::new(seed);
        let model = random(dtype);
        let [with, without] = compared(&model, || {
            let mut batch = Batch::prefilled(&model, LENGTHS);
            batch.keep.resize_with(SEQUENCES, Keep::default);
            let logits = batch.steps(STEPS);
            (logits, batch.keep.into_iter().map(|keep| keep.0).collect::<Vec<_>>())
        });
        assert!(with == without, "{dtype:?}, seed {seed}");
        assert!(with.1.iter().all(|kept| kept.len() >= 6 && kept.iter().all(|(_, kv)| kv.is_finite)));
        drop(model);
        standin.assert_clean();
    }
}

fn of_8_bits(config: ModelConfig, gpus: GpuList) -> CudaModel {
    let options = LoadOptions { weights: Some(WeightFormat::Q8), ..Default::default() };
    CudaModel::random(config, 7, gpus, options).unwrap()
}

/// Also those of experts, and an embedding table that is the head's.
#[test]
fn steps_of_8_bit_weights_have_the_bits_of_those_without_graphs() {
    for (config, seed) in [config(), mixture(true)].into_iter().zip(2..) {
        let standin = StandIn::new(seed);
        let model = of_8_bits(config, 0.into());
        let [with, without] = compared(&model, || Batch::prefilled(&model, LENGTHS).steps(STEPS));
        assert!(with == without, "seed {seed}");
        drop(model);
        standin.assert_clean();
    }
}

/// Several GPUs take a step operation by operation.
#[test]
fn steps_on_two_gpus_have_the_bits_of_graphs_on_one() {
    for (config, seed) in [config(), mixture(false)].into_iter().zip(1..) {
        let standin = StandIn::with_devices(seed, 2);
        let models = [vec![0], vec![1, 0]].map(|gpus| of_8_bits(config.clone(), GpuList::new(gpus).unwrap()));
        let [(one, of_one), (two, of_two)] = models.each_ref().map(|model| {
            queued(model, || {
                let mut batch = Batch::prefilled(model, LENGTHS);
                batch.keep.resize_with(SEQUENCES, Keep::default);
                (batch.steps(STEPS), batch.keep.into_iter().map(|keep| keep.0).collect::<Vec<_>>())
            })
        });
        assert!(one == two, "seed {seed}");
        assert!(of_one.graphs > 0 && of_two.graphs == 0, "{of_one:?}, {of_two:?}");
        assert!(models[0].replays_graphs() && !models[1].replays_graphs());
        drop(models);
        standin.assert_clean();
    }
}

/// Slots 512 and 1,024 begin new segments: from none to two, and from two to three, for which there is room for four.
#[test]
fn a_context_that_grows_over_blocks_and_segments_has_the_same_bits() {
    for (dtype, seed) in [KvDtype::Bf16, KvDtype::F32].into_iter().zip(2..) {
        let standin = StandIn::new(seed);
        let model = random(dtype);
        let steps: Vec<Step<'_>> = [&[(0, 1)][..], &[(0, 1), (1, 1), (2, 1)]].into_iter().cycle().take(8).collect();
        let [with, without] = compared(&model, || {
            let mut batch = Batch::new(&model, 1040);
            [509, 1022, 25].into_iter().enumerate().for_each(|(sequence, tokens)| batch.store(sequence, tokens));
            batch.steps(&steps)
        });
        assert!(with == without, "{dtype:?}");
        drop(model);
        standin.assert_clean();
    }
}

/// The table of angles is made anew for positions that it has not, and lies elsewhere then.
#[test]
fn a_position_beyond_the_table_of_angles_has_the_same_bits() {
    let standin = StandIn::new(3);
    let model = random(KvDtype::F32);
    let [with, without] = compared(&model, || {
        let mut batch = Batch::prefilled(&model, LENGTHS);
        let mut logits = batch.steps(&STEPS[..2]);
        // As behind a long passage of which little was kept.
        batch.sequences[0].gap = 4_062;
        logits.extend(batch.steps(&[&[(0, 1)][..]; 6]));
        assert_eq!(batch.sequences[0].key_positions.last(), Some(&4_098));
        logits
    });
    assert!(with == without);
    drop(model);
    standin.assert_clean();
}

#[test]
fn a_step_is_one_graph_and_three_copies() {
    let standin = StandIn::new(2);
    let model = random(KvDtype::Bf16);
    let mut batch = Batch::prefilled(&model, LENGTHS);
    let all: Step<'_> = &[(0, 1), (1, 1), (2, 1)];
    let mut calls = || queued(&model, || batch.step(all).unwrap()).1;
    let (first, second, third) = (calls(), calls(), calls());
    assert!(first.graphs == 0 && first.kernels > 20, "it loads the kernels: {first:?}");
    assert_eq!(second, Queued { graphs: 1, ..first }, "it is captured");
    assert_eq!(third, Queued { kernels: 0, graphs: 1, copies: 3, refused: 0 });
    batch.keep.resize_with(SEQUENCES, Keep::default);
    assert_eq!(queued(&model, || batch.step(all).unwrap()).1, third, "also where K and V are taken out");
    drop(batch);
    drop(model);
    standin.assert_clean();
}

/// What was computed before a step, or beside it, is as it was afterwards: nobody else has the memory of a graph.
#[test]
fn a_graph_leaves_memory_of_others_alone() {
    for seed in 1..5 {
        let standin = StandIn::new(seed);
        let model = random(KvDtype::F32);
        let mut batch = Batch::prefilled(&model, LENGTHS);
        let all: Step<'_> = &[(0, 1), (1, 1), (2, 1)];
        batch.steps(&[all; 2]);
        // Of as many rows as a step has, and of more.
        let tokens = [counted(3), counted(16)];
        let others: Vec<_> = tokens
            .iter()
            .flat_map(|tokens| {
                let rows = model.embed(tokens, tokens).unwrap();
                (0..4).map(|_| (model.project(0, &rows), tokens.len())).collect::<Vec<_>>()
            })
            .collect();
        let exported = || others.iter().map(|(kv, rows)| model.export(kv, 0..*rows)).collect::<Vec<_>>();
        let before = exported();
        batch.steps(&[all; 2]);
        assert!(exported() == before, "seed {seed}");
        drop((others, batch));
        drop(model);
        standin.assert_clean();
    }
}

/// A sequence that is preempted goes out of its blocks, and into others.
#[test]
fn a_sequence_that_was_swapped_goes_on_with_the_same_bits() {
    let standin = StandIn::new(2);
    let model = random(KvDtype::F16);
    let [with, without] = compared(&model, || {
        let mut batch = Batch::prefilled(&model, LENGTHS);
        let mut logits = batch.steps(&[&[(1, 1)][..]; 3]);
        let (from, to) = (batch.sequences[1].blocks[0], BlockId(SEQUENCES as u32 * 5));
        let block = model.read_block(&batch.pool, from).unwrap();
        let others = vec![0xff; block.len()];
        model.write_block(&mut batch.pool, from, &others).unwrap();
        model.write_block(&mut batch.pool, to, &block).unwrap();
        batch.sequences[1].blocks[0] = to;
        logits.extend(batch.steps(&[&[(1, 1)][..]; 2]));
        logits
    });
    assert!(with == without);
    drop(model);
    standin.assert_clean();
}

/// Whether its launches are queued one by one, captured, or replayed: a step on a GPU that is lost fails, and one over a new pool is as before.
#[test]
fn a_gpu_that_is_lost_within_a_graph_fails_the_step_and_comes_back() {
    let standin = StandIn::new(1);
    let model = random(KvDtype::F32);
    let steps = [&[(0, 1), (1, 1)][..]; 4];
    let expected = Batch::prefilled(&model, LENGTHS).steps(&steps);
    for (before, launches) in [(0, 3), (1, 1), (1, 9), (2, 1), (2, 12), (3, 20)] {
        let mut batch = Batch::prefilled(&model, LENGTHS);
        assert!(batch.steps(&steps[..before]) == expected[..before]);
        standin.set("lost_after", &launches.to_string());
        let error = batch.step(steps[before]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "after {before} steps and {launches} launches: {error}");
        drop(batch);
    }
    let (again, calls) = queued(&model, || Batch::prefilled(&model, LENGTHS).steps(&steps));
    assert!(again == expected && calls.graphs > 0, "{calls:?}");
    drop(model);
    standin.assert_clean();
}

/// Graphs are those of one pool, which another does not disturb. They go where memory is needed; steps are recorded anew then.
#[test]
fn graphs_are_of_their_pool_and_go_where_memory_is_short() {
    for seed in [1, 2] {
        let standin = StandIn::new(seed);
        let model = random(KvDtype::F32);
        let steps = [&[(0, 1), (1, 1)][..]; 6];
        let expected = Batch::prefilled(&model, LENGTHS).steps(&steps);
        let mut batch = Batch::prefilled(&model, LENGTHS);
        assert!(batch.steps(&steps[..3]) == expected[..3]);
        let block = model.read_block(&batch.pool, BlockId(0)).unwrap();
        // Another pool that there is memory for, with another sequence in the same blocks.
        let mut other = Batch::prefilled(&model, [20, 30, 20]);
        other.steps(&steps[..3]);
        assert!(model.read_block(&batch.pool, BlockId(0)).unwrap() == block, "nothing was written to the first");
        let (logits, calls) = queued(&model, || batch.step(steps[3]).unwrap());
        assert!(logits == expected[3] && calls.graphs == 1, "{calls:?}");
        // And one that there is none for.
        drop(model.new_pool(1 << 24));
        assert_eq!(model.check().unwrap_err().kind(), ErrorKind::Full);
        let (logits, calls) = queued(&model, || batch.step(steps[4]).unwrap());
        assert!(logits == expected[4] && calls.graphs == 0, "{calls:?}");
        assert!(batch.step(steps[5]).unwrap() == expected[5]);
        drop((batch, other));
        drop(model);
        standin.assert_clean();
    }
}

/// In the least memory in which all of it can be done, with the stored KV first: what graphs and caches hold gives way.
#[test]
fn stored_kv_takes_the_memory_of_graphs_where_there_is_no_other() {
    const GRAIN: u64 = 64 << 10;
    let standin = StandIn::new(2);
    let model_of = |grains: u64| {
        standin.set("memory", &(grains * GRAIN).to_string());
        standin.set("reset", "");
        CudaModel::random(config(), 7, 0, LoadOptions { kv_dtype: Some(KvDtype::F32), ..Default::default() })
    };
    let stored = |batch: &mut Batch<'_>| {
        batch.try_store(2, 17)?;
        batch.step(&[(2, 3)])
    };
    let computed = |batch: &mut Batch<'_>| {
        let steps = [&[(0, LENGTHS[0])][..], &[(0, 1)], &[(0, 1)], &[(0, 1)]];
        steps.into_iter().map(|step| batch.step(step)).collect::<Result<Vec<_>>>()
    };
    let fits = |grains: u64| {
        let Ok(model) = model_of(grains) else { return false };
        let mut batch = Batch::new(&model, 80);
        model.check().is_ok() && stored(&mut batch).is_ok() && computed(&mut batch).is_ok()
    };
    let (mut too_few, mut enough) = (0, 1024);
    while enough - too_few > 1 {
        let grains = (too_few + enough) / 2;
        *(if fits(grains) { &mut enough } else { &mut too_few }) = grains;
    }
    let of = |grains: u64| {
        let model = model_of(grains).unwrap();
        let mut batch = Batch::new(&model, 80);
        (computed(&mut batch).unwrap(), stored(&mut batch).unwrap(), batch.step(&[(0, 1)]).unwrap())
    };
    let expected = of(1024);
    for grains in enough..enough + 8 {
        assert!(of(grains) == expected, "{grains} of {enough}");
    }
    standin.assert_clean();
}

#[test]
fn where_graphs_are_refused_the_launches_go_one_by_one() {
    let standin = StandIn::new(4);
    let model = random(KvDtype::Bf16);
    let expected = Batch::prefilled(&model, LENGTHS).steps(STEPS);
    drop(model);
    standin.assert_clean();
    // At its begin; or at the first launch within, after which it is to be ended all the same.
    for captures in ["no", "broken"] {
        standin.set("captures", captures);
        let model = random(KvDtype::Bf16);
        let (logits, calls) = queued(&model, || Batch::prefilled(&model, LENGTHS).steps(STEPS));
        assert!(logits == expected && calls.graphs == 0 && calls.refused > 0, "{captures}: {calls:?}");
        drop(model);
        standin.assert_clean();
    }
}

/// A prompt is computed on another thread (as a calibration's is), with loads of stored KV, while steps are recorded, captured and replayed.
#[test]
#[expect(clippy::disallowed_methods, reason = "a thread beside, as another user of the model has")]
fn what_another_thread_computes_is_not_taken_into_a_graph() {
    for seed in [1, 2] {
        let standin = StandIn::new(seed);
        let model = random(KvDtype::F32);
        let beside = |batch: &mut Batch<'_>| {
            batch.store(2, 17);
            batch.step(&[(2, 20)]).unwrap()
        };
        let steps = [&[(0, 1), (1, 1)][..]; 6];
        let expected = Batch::prefilled(&model, LENGTHS).steps(&steps);
        let expected_beside = beside(&mut Batch::new(&model, 80));
        let (mut batch, mut other) = (Batch::prefilled(&model, LENGTHS), Batch::new(&model, 80));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (0..6).map(|_| beside(&mut other)).collect::<Vec<_>>());
            assert!(batch.steps(&steps) == expected, "seed {seed}");
            assert!(other.join().unwrap().iter().all(|logits| *logits == expected_beside), "seed {seed}");
        });
        drop((batch, other));
        drop(model);
        standin.assert_clean();
    }
}

/// More sizes of batches than graphs are kept.
#[test]
fn the_graph_that_was_used_least_recently_goes_first() {
    let standin = StandIn::new(2);
    standin.set("mode", "relaxed");
    let model = random(KvDtype::Bf16);
    let mut pool = model.new_pool(70);
    let mut step = |rows: u32| {
        let blocks: Vec<[BlockId; 1]> = (0..rows).map(|block| [BlockId(block)]).collect();
        let rider = |blocks| {
            let places = Places { slots: vec![0], positions: vec![0] };
            let chunk = Chunk::embed(&model, &[7], places, Wanted::Last).unwrap();
            Rider { chunk, blocks, key_positions: &[0], selector: None }
        };
        let riders = blocks.iter().map(|blocks| rider(blocks)).collect();
        let (passed, calls) = queued(&model, || Forward::new(&model, &mut pool).pass(riders));
        let logits = passed.logits;
        assert!((0..rows as usize).all(|row| logits.row(row) == logits.row(0)), "each row is the same");
        (logits.row(0).to_vec(), calls.graphs)
    };
    let (expected, first) = step(1);
    assert_eq!((first, step(1).1, step(2).1, step(2).1), (0, 1, 0, 1));
    // With those two there are as many as are kept; then one more, while that of one row was used again.
    (3..=64).for_each(|rows| drop(step(rows)));
    assert_eq!(step(1), (expected.clone(), 1));
    assert_eq!(step(65), (expected.clone(), 0));
    assert_eq!(step(1), (expected.clone(), 1), "it stays");
    assert_eq!(step(2), (expected, 0), "it went");
    drop(pool);
    drop(model);
    standin.assert_clean();
}
