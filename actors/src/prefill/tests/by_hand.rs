//! Blending between the two ends, against a selective recompute by hand: one pass over blocks that have everything stored.

use std::collections::BTreeSet;

use ragstone_kernels::forward::{Keep, Placed};

use super::*;

/// Computes every row before a layer, and from there on these slots; the K and V of that layer are everybody's.
struct Scripted {
    layer: usize,
    goes_on: BTreeSet<u32>,
}

impl Selector<Model> for Scripted {
    fn select_by_attention(&mut self, seen: &Placed<'_, Model>) -> Keep {
        if seen.layer != self.layer {
            return Keep::All;
        }
        let slots = seen.places.slots.iter().enumerate();
        Keep::Rows(slots.filter(|(_, slot)| self.goes_on.contains(slot)).map(|(row, _)| row).collect())
    }
}

/// What the rows from a slot on look at, added up over rows and layers.
struct Watching {
    layers: Vec<usize>,
    from: u32,
    weights: Vec<f32>,
}

impl Selector<Model> for Watching {
    fn select_by_attention(&mut self, seen: &Placed<'_, Model>) -> Keep {
        if self.layers.contains(&seen.layer) {
            let first = seen.places.slots.partition_point(|slot| *slot < self.from);
            let weights = seen.attention_weights(first..seen.places.len());
            self.weights.resize(weights.cols(), 0.0);
            for row in 0..weights.rows() {
                self.weights.iter_mut().zip(weights.row(row)).for_each(|(sum, weight)| *sum += weight);
            }
        }
        Keep::All
    }
}

/// The logits behind a prompt of which `first` is computed before `layer`, and `then` from there on.
fn by_hand(model: &Model, passages: &[Segment], layer: usize, first: &[u32], then: &[u32]) -> Vec<f32> {
    let (mut pool, blocks) = stored_by_hand(model, passages);
    let tokens = tokens_of(&prompt_of(passages));
    let key_positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let rows: Vec<u32> = first.iter().map(|slot| tokens[*slot as usize]).collect();
    let places = Places::of(first.iter().copied(), &key_positions);
    let chunk = Chunk::embed(model, &rows, places, Wanted::Last).unwrap();
    let mut selector = Scripted { layer, goes_on: then.iter().copied().collect() };
    let rider = Rider { chunk, blocks: &blocks, key_positions: &key_positions, selector: Some(&mut selector) };
    let passed = Forward::new(model, &mut pool).pass(vec![rider]);
    passed.logits.row(0).to_vec()
}

/// The first passage stands after the system prompt, and is exact; two are blended; then comes the question.
fn prompt() -> (Vec<Segment>, Vec<u32>, Vec<u32>) {
    let passages = cases().swap_remove(0);
    (passages, (9 + 33..9 + 33 + 16 + 40).collect(), (98..109).collect())
}

fn bench(passages: &[Segment]) -> Bench {
    let bench = Bench::new();
    passages.iter().for_each(|passage| bench.store_standalone(passage));
    bench
}

#[test]
fn a_choice_that_is_known_is_blended_as_by_hand_from_every_layer_on() {
    let (passages, blended, question) = prompt();
    let bench = bench(&passages);
    // 30 % of 56 are 17: eight of each passage, and one more of the first.
    let chosen: Vec<u32> = (42..51).chain(58..66).chain(question.clone()).collect();
    let all: Vec<u32> = blended.iter().chain(&question).copied().collect();
    for layer in 0..4 {
        let selection = Selection { layer, ..Selection::by(Rule::FirstK) };
        let options = PlanOptions::fixed(0.3, ReuseMode::Auto);
        let (done, _) = bench.ask_selecting(&prompt_of(&passages), options, false, selection);
        let first = if layer == 0 { &chosen } else { &all };
        let off = difference(&done.logits, &by_hand(&bench.model, &passages, layer, first, &chosen));
        assert!(off <= 1e-4, "layer {layer}: logits differ by {off}");
    }
}

#[test]
fn a_probe_chooses_what_the_question_looks_at_over_stored_kv() {
    let (passages, blended, question) = prompt();
    let bench = bench(&passages);
    let tokens = tokens_of(&prompt_of(&passages));
    let key_positions: Vec<u32> = (0..tokens.len() as u32).collect();
    for (selection, layers) in [
        (Selection { layer: 0, ..Selection::by(Rule::CriticalLayer) }, vec![0]),
        (Selection { layer: 2, ..Selection::by(Rule::CriticalLayer) }, vec![2]),
        (Selection { layer: 3, ..Selection::by(Rule::CriticalLayer) }, vec![3]),
        (Selection::by(Rule::TwoStage), vec![0, 1, 2, 3]),
    ] {
        let (mut pool, blocks) = stored_by_hand(&bench.model, &passages);
        let rows: Vec<u32> = question.iter().map(|slot| tokens[*slot as usize]).collect();
        let places = Places::of(question.iter().copied(), &key_positions);
        let chunk = Chunk::embed(&bench.model, &rows, places, Wanted::Nothing).unwrap();
        let mut watching = Watching { layers, from: 0, weights: Vec::new() };
        let rider = Rider { chunk, blocks: &blocks, key_positions: &key_positions, selector: Some(&mut watching) };
        Forward::new(&bench.model, &mut pool).pass(vec![rider]);
        let mut likely = blended.clone();
        likely.sort_by(|a, b| watching.weights[*b as usize].total_cmp(&watching.weights[*a as usize]));
        let mut chosen: Vec<u32> = likely[..17].iter().chain(&question).copied().collect();
        chosen.sort_unstable();
        let options = PlanOptions::fixed(0.3, ReuseMode::Auto);
        let (done, _) = bench.ask_selecting(&prompt_of(&passages), options, false, selection);
        let off = difference(&done.logits, &by_hand(&bench.model, &passages, 0, &chosen, &chosen));
        assert!(off <= 1e-4, "{}: logits differ by {off}", selection.name());
        let other: Vec<u32> =
            likely[1..18].iter().chain(&question).copied().collect::<BTreeSet<_>>().into_iter().collect();
        let off = difference(&done.logits, &by_hand(&bench.model, &passages, 0, &other, &other));
        assert!(off > 1e-4, "{}: another choice shows", selection.name());
    }
}

#[test]
fn the_question_chooses_in_a_layer_that_every_token_has_reached() {
    let (passages, blended, question) = prompt();
    let bench = bench(&passages);
    let tokens = tokens_of(&prompt_of(&passages));
    let key_positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let all: Vec<u32> = blended.iter().chain(&question).copied().collect();
    for layer in 0..4 {
        let (mut pool, blocks) = stored_by_hand(&bench.model, &passages);
        let rows: Vec<u32> = all.iter().map(|slot| tokens[*slot as usize]).collect();
        let chunk = Chunk::embed(&bench.model, &rows, Places::of(all.iter().copied(), &key_positions), Wanted::Nothing);
        let mut attention = Watching { layers: vec![layer], from: 98, weights: Vec::new() };
        let selector: &mut dyn Selector<Model> = &mut attention;
        let rider =
            Rider { chunk: chunk.unwrap(), blocks: &blocks, key_positions: &key_positions, selector: Some(selector) };
        Forward::new(&bench.model, &mut pool).pass(vec![rider]);
        let mut likely = blended.clone();
        likely.sort_by(|a, b| attention.weights[*b as usize].total_cmp(&attention.weights[*a as usize]));
        let chosen: Vec<u32> = likely[..17].iter().chain(&question).copied().collect();
        let selection = Selection { layer, ..Selection::by(Rule::QuestionAttention) };
        let options = PlanOptions::fixed(0.3, ReuseMode::Auto);
        let (done, _) = bench.ask_selecting(&prompt_of(&passages), options, false, selection);
        let off = difference(&done.logits, &by_hand(&bench.model, &passages, layer, &all, &chosen));
        assert!(off <= 1e-4, "layer {layer}: logits differ by {off}");
    }
}

/// How far the fresh K and V of a layer are from the stored ones, which stand in the blocks rotated: computed from the exported bytes.
struct Deviating {
    layer: usize,
    stored: Vec<(u32, KvBytes)>,
    deviations: Vec<f32>,
}

impl Selector<Model> for Deviating {
    fn select(&mut self, seen: &Seen<'_, Model>) -> Keep {
        if seen.layer == self.layer {
            let fresh = seen.export(0..seen.places.len());
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            };
            for (slot, stored) in &self.stored {
                let row = seen.places.slots.partition_point(|other| other < slot);
                let width = stored.k.len();
                let pairs = [(&fresh.k, &stored.k), (&fresh.v, &stored.v)];
                let squares = pairs.iter().flat_map(|(fresh, stored)| {
                    let fresh = floats(&fresh[row * width..][..width]);
                    fresh.into_iter().zip(floats(stored)).map(|(a, b)| (a - b) * (a - b)).collect::<Vec<_>>()
                });
                self.deviations.push(squares.sum());
            }
        }
        Keep::All
    }
}

#[test]
fn what_deviates_most_is_recomputed_and_the_choosing_layer_keeps_what_was_computed() {
    let (passages, blended, question) = prompt();
    let bench = bench(&passages);
    let tokens = tokens_of(&prompt_of(&passages));
    let key_positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let all: Vec<u32> = blended.iter().chain(&question).copied().collect();
    for layer in 1..4 {
        let stored = alone_by_hand(&bench.model, &passages[1..], layer);
        let stored = blended.iter().copied().zip(stored).collect();
        let (mut pool, blocks) = stored_by_hand(&bench.model, &passages);
        let rows: Vec<u32> = all.iter().map(|slot| tokens[*slot as usize]).collect();
        let places = Places::of(all.iter().copied(), &key_positions);
        let chunk = Chunk::embed(&bench.model, &rows, places, Wanted::Nothing).unwrap();
        let mut deviating = Deviating { layer, stored, deviations: Vec::new() };
        let selector: &mut dyn Selector<Model> = &mut deviating;
        let rider = Rider { chunk, blocks: &blocks, key_positions: &key_positions, selector: Some(selector) };
        Forward::new(&bench.model, &mut pool).pass(vec![rider]);
        let mut order: Vec<usize> = (0..blended.len()).collect();
        order.sort_by(|a, b| deviating.deviations[*b].total_cmp(&deviating.deviations[*a]));
        let chosen: Vec<u32> = order[..17].iter().map(|index| blended[*index]).chain(question.clone()).collect();
        let selection = Selection { layer, ..Selection::default() };
        let options = PlanOptions::fixed(0.3, ReuseMode::Auto);
        let (done, _) = bench.ask_selecting(&prompt_of(&passages), options, false, selection);
        let off = difference(&done.logits, &by_hand(&bench.model, &passages, layer, &all, &chosen));
        assert!(off <= 1e-4, "layer {layer}: logits differ by {off}");
    }
}

/// K and V of a layer, token by token, of passages each after the system prompt alone.
fn alone_by_hand(model: &Model, passages: &[Segment], layer: usize) -> Vec<KvBytes> {
    let each = |passage: &Segment| {
        let tokens: Vec<u32> = root().tokens.iter().chain(passage.tokens.iter()).copied().collect();
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        let own: Vec<BlockId> = (0..tokens.len().div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect();
        let mut pool = model.new_pool(own.len());
        let chunk = Chunk::embed(model, &tokens, Places::of(positions.clone(), &positions), Wanted::Nothing).unwrap();
        let mut taken = Taken(Vec::new());
        let rider = Rider { chunk, blocks: &own, key_positions: &positions, selector: Some(&mut taken) };
        Forward::new(model, &mut pool).pass(vec![rider]);
        let kv = &taken.0[layer];
        let width = kv.k.len() / tokens.len();
        let token = |at: usize| KvBytes {
            k: kv.k[at * width..][..width].to_vec(),
            v: kv.v[at * width..][..width].to_vec(),
            is_finite: true,
        };
        (root().tokens.len()..tokens.len()).map(token).collect::<Vec<_>>()
    };
    passages.iter().flat_map(each).collect()
}
