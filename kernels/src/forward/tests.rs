use super::*;
use crate::config::ModelConfig;
use crate::model::{LoadOptions, Model};
use crate::pool::KvPool;

const BLOCKS: usize = 12;

fn model() -> Model {
    let config = r#"{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "bfloat16"}"#;
    Model::random(ModelConfig::from_json(config).unwrap(), 7, LoadOptions::default())
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| (seed * 31 + i * i * 7 + i * 13) % 96).collect()
}

/// Every other block of the pool: those of one sequence of two.
fn blocks(sequence: u32) -> Vec<BlockId> {
    (0..BLOCKS as u32).rev().filter(|block| block % 2 == sequence).map(BlockId).collect()
}

fn counted(count: usize) -> Vec<u32> {
    (0..count as u32).collect()
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn alone(model: &Model, tokens: &[u32], positions: &[u32]) -> Vec<f32> {
    let mut pool = model.new_pool(BLOCKS);
    let places = Places { slots: counted(tokens.len()), positions: positions.to_vec() };
    let logits = Forward::new(model, &mut pool).logits(tokens, places, Wanted::All, &blocks(0), positions).unwrap();
    logits.into_vec()
}

/// Stops before each of some layers, the first time it is asked.
struct Halting(Vec<usize>);

impl Selector<Model> for Halting {
    fn before_layer(&mut self, layer: usize) -> Next {
        match self.0.iter().position(|halt| *halt == layer) {
            Some(index) => {
                self.0.remove(index);
                Next::Stop
            }
            None => Next::Go,
        }
    }
}

#[test]
fn chunks_that_stop_and_go_on_beside_others_have_the_bits_of_one_alone() {
    let model = model();
    let (long, short) = (tokens(70, 1), tokens(9, 2));
    let (expected, other) = (alone(&model, &long, &counted(70)), alone(&model, &short, &counted(9)));
    let (long_blocks, short_blocks) = (blocks(0), blocks(1));
    for halts in [vec![], vec![0], vec![3], vec![1, 2], vec![0, 1, 2, 3]] {
        let mut pool = model.new_pool(BLOCKS);
        let key_positions = counted(70);
        let mut rows = Vec::new();
        let mut next = 0;
        // Chunks of uneven length, and the other sequence token by token beside them.
        let mut others: Vec<Vec<f32>> = Vec::new();
        for length in [1, 30, 17, 22] {
            let range = next..next + length;
            next += length;
            let places = Places::of(range.start as u32..range.end as u32, &key_positions);
            let mut chunk = Some(Chunk::embed(&model, &long[range.clone()], places, Wanted::All).unwrap());
            let mut selector = Halting(halts.clone());
            while let Some(going) = chunk.take() {
                let mut riders = vec![Rider {
                    chunk: going,
                    blocks: &long_blocks,
                    key_positions: &key_positions[..range.end],
                    selector: Some(&mut selector),
                }];
                let at = others.len();
                if at < short.len() {
                    let places = Places { slots: vec![at as u32], positions: vec![at as u32] };
                    let chunk = Chunk::embed(&model, &short[at..=at], places, Wanted::Last).unwrap();
                    let key_positions = &key_positions[..=at];
                    riders.insert(0, Rider { chunk, blocks: &short_blocks, key_positions, selector: None });
                }
                let Passed { mut outcomes, logits, .. } = Forward::new(&model, &mut pool).pass(riders);
                match outcomes.pop().unwrap() {
                    Outcome::Stopped(stopped) => chunk = Some(stopped),
                    Outcome::Done(range) => range.for_each(|row| rows.extend_from_slice(logits.row(row))),
                    Outcome::Failed(error) => panic!("{error}"),
                }
                if let Some(Outcome::Done(range)) = outcomes.pop() {
                    others.push(logits.row(range.start).to_vec());
                }
            }
        }
        assert!(same_bits(&rows, &expected), "{halts:?}");
        assert!(same_bits(&others.concat(), &other[..others.len() * 96]), "{halts:?}: the other sequence");
    }
}

#[test]
fn where_a_row_lies_does_not_matter_and_gaps_in_positions_do() {
    let model = model();
    let text = tokens(40, 3);
    let gap: Vec<u32> = (0..40).map(|slot| if slot < 20 { slot } else { slot + 60 }).collect();
    let expected = alone(&model, &text, &gap);
    assert!(!same_bits(&expected, &alone(&model, &text, &counted(40))));
    // The second half first in memory, and in two passes.
    let order: Vec<u32> = (20..40).chain(0..20).collect();
    let key_positions: Vec<u32> = order.iter().map(|token| gap[*token as usize]).collect();
    let mut pool = model.new_pool(BLOCKS);
    let mut rows = Vec::new();
    for half in [0..20, 20..40] {
        let slots: Vec<u32> = (half.start as u32..half.end as u32).map(|token| (token + 20) % 40).collect();
        let places = Places { positions: gap[half.clone()].to_vec(), slots };
        // What is not in place yet is hidden.
        let visible: Vec<u32> = key_positions
            .iter()
            .map(|position| if *position <= gap[half.end - 1] { *position } else { u32::MAX })
            .collect();
        let mut forward = Forward::new(&model, &mut pool);
        let logits = forward.logits(&text[half], places, Wanted::All, &blocks(1), &visible).unwrap();
        rows.extend_from_slice(logits.as_slice());
    }
    let furthest = rows.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < 0.05, "another order of sums, and no more: {furthest}");
}

/// Keeps some rows from a layer on.
struct Dropping(usize, Vec<usize>);

impl Selector<Model> for Dropping {
    fn select(&mut self, seen: &Seen<'_, Model>) -> Keep {
        if seen.layer == self.0 { Keep::Rows(self.1.clone()) } else { Keep::All }
    }
}

#[test]
fn rows_that_are_dropped_leave_the_others_in_their_places() {
    let model = model();
    let text = tokens(33, 4);
    let (own, key_positions) = (blocks(0), counted(33));
    let mut pool = model.new_pool(BLOCKS);
    let chunk = Chunk::embed(&model, &text, Places::of(0..33, &key_positions), Wanted::All).unwrap();
    // Those that go on see each other, and nobody who was dropped.
    let mut selector = Dropping(3, vec![0, 1, 2, 3, 4]);
    let rider = Rider { chunk, blocks: &own, key_positions: &key_positions, selector: Some(&mut selector) };
    let passed = Forward::new(&model, &mut pool).pass(vec![rider]);
    assert!(matches!(&passed.outcomes[..], [Outcome::Done(rows)] if *rows == (0..5)));
    let expected = alone(&model, &text, &key_positions);
    assert!(same_bits(passed.logits.as_slice(), &expected[..5 * 96]));
}

#[test]
fn a_write_that_is_refused_fails_its_sequence_alone() {
    let model = model();
    let text = tokens(20, 5);
    let (own, none, key_positions) = (blocks(0), [BlockId(99), BlockId(98)], counted(20));
    let mut pool = model.new_pool(BLOCKS);
    let chunk = || Chunk::embed(&model, &text, Places::of(0..20, &key_positions), Wanted::All).unwrap();
    let riders = [&none[..], &own[..]].map(|blocks| {
        let key_positions = &key_positions[..];
        Rider { chunk: chunk(), blocks, key_positions, selector: None }
    });
    let passed = Forward::new(&model, &mut pool).pass(riders.into());
    assert!(matches!(&passed.outcomes[..], [Outcome::Failed(_), Outcome::Done(rows)] if *rows == (0..20)));
    assert!(same_bits(passed.logits.as_slice(), &alone(&model, &text, &key_positions)));
    let places = Places::of(0..2, &key_positions);
    assert!(Chunk::embed(&model, &[1], places, Wanted::All).is_err(), "two places for a token");
}

#[test]
fn a_block_that_was_taken_out_and_put_back_elsewhere_is_the_same() {
    let model = model();
    let text = tokens(48, 6);
    let key_positions = counted(48);
    let expected = alone(&model, &text, &key_positions);
    let mut pool: KvPool = model.new_pool(BLOCKS);
    let places = Places::of(0..40, &key_positions);
    Forward::new(&model, &mut pool)
        .logits(&text[..40], places, Wanted::Nothing, &blocks(0), &key_positions[..40])
        .unwrap();
    let away: Vec<Vec<u8>> = blocks(0).iter().map(|block| model.read_block(&pool, *block).unwrap()).collect();
    let mut other = model.new_pool(BLOCKS);
    for (block, bytes) in blocks(1).iter().zip(&away) {
        model.write_block(&mut other, *block, bytes).unwrap();
    }
    let places = Places::of(40..48, &key_positions);
    let logits = Forward::new(&model, &mut other).logits(&text[40..], places, Wanted::All, &blocks(1), &key_positions);
    assert!(same_bits(logits.unwrap().as_slice(), &expected[40 * 96..]));
    assert!(model.write_block(&mut other, BlockId(0), &[0; 3]).is_err());
    assert!(model.read_block(&other, BlockId(99)).is_err());
}

/// Keeps the rows that the last ones look at most, on one layer.
struct LookedAt {
    layer: usize,
    keep: usize,
    weights: Vec<f32>,
    kept: Vec<usize>,
}

impl Selector<Model> for LookedAt {
    fn select_by_attention(&mut self, seen: &Placed<'_, Model>) -> Keep {
        if seen.layer != self.layer {
            return Keep::All;
        }
        let rows = seen.places.len();
        let weights = seen.attention_weights(rows - 2..rows);
        assert_eq!((weights.rows(), weights.cols()), (2, 33));
        self.weights = (0..weights.cols()).map(|slot| weights.row(0)[slot] + weights.row(1)[slot]).collect();
        // Slots are rows here.
        let mut kept: Vec<usize> = (0..rows - 2).collect();
        kept.sort_by(|a, b| self.weights[*b].total_cmp(&self.weights[*a]));
        kept.truncate(self.keep);
        kept.sort_unstable();
        kept.extend([rows - 2, rows - 1]);
        self.kept = kept.clone();
        Keep::Rows(kept)
    }
}

#[test]
fn a_selector_sees_what_rows_look_at_beside_others() {
    let model = model();
    let text = tokens(33, 4);
    let (own, other_blocks, key_positions) = (blocks(0), blocks(1), counted(33));
    let run = |layer: usize, beside: bool| {
        let mut pool = model.new_pool(BLOCKS);
        let mut selector = LookedAt { layer, keep: 5, weights: Vec::new(), kept: Vec::new() };
        let chunk = Chunk::embed(&model, &text, Places::of(0..33, &key_positions), Wanted::All).unwrap();
        let mut riders =
            vec![Rider { chunk, blocks: &own, key_positions: &key_positions, selector: Some(&mut selector) }];
        if beside {
            let chunk = Chunk::embed(&model, &tokens(9, 2), Places::of(0..9, &key_positions), Wanted::All).unwrap();
            let key_positions = &key_positions[..9];
            riders.insert(0, Rider { chunk, blocks: &other_blocks, key_positions, selector: None });
        }
        let mut passed = Forward::new(&model, &mut pool).pass(riders);
        let Some(Outcome::Done(rows)) = passed.outcomes.pop() else { panic!("it ends") };
        assert_eq!(rows.len(), 7);
        let logits: Vec<f32> = rows.flat_map(|row| passed.logits.row(row).to_vec()).collect();
        (selector.weights, selector.kept, logits)
    };
    for layer in [0, 3] {
        let (weights, kept, logits) = run(layer, false);
        // Two rows, whose weights are one each; the last slot is hidden from the first of them.
        assert!((weights.iter().sum::<f32>() - 2.0).abs() < 1e-5, "{weights:?}");
        assert!(weights.iter().all(|weight| *weight > 0.0));
        assert_eq!((weights, kept.clone(), logits.clone()), run(layer, true), "what shares the pass does not matter");
        if layer == 3 {
            // All K and V of the last layer were in place before rows were dropped: what is left is as it would have been.
            let expected = alone(&model, &text, &key_positions);
            let expected: Vec<f32> = kept.iter().flat_map(|row| expected[row * 96..(row + 1) * 96].to_vec()).collect();
            assert!(same_bits(&logits, &expected));
        }
    }
}
