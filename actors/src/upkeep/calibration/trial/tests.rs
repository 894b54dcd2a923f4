//! Trials on a small random model.

use ragstone_kernels::backend::KvBytes;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::forward::{Chunk, Next, Rider, Seen, Selector};
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_storage::cost::CostProfile;

use super::*;
use crate::prefill::Rule;

fn model() -> Arc<Model> {
    let config = r#"{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "float32"}"#;
    Arc::new(Model::random(ModelConfig::from_json(config).unwrap(), 7, LoadOptions::default()))
}

fn segment(kind: SegmentKind, seed: u32, length: u32) -> Segment {
    Segment { kind, tokens: (0..length).map(|i| (seed * 31 + i * i * 7 + i * 13) % 96).collect(), place: None }
}

fn prompt() -> Vec<Segment> {
    let passage = |seed, length| segment(SegmentKind::Passage, seed, length);
    let root = segment(SegmentKind::SystemPrompt, 1, 9);
    vec![root, passage(2, 33), passage(3, 16), passage(4, 40), segment(SegmentKind::Question, 5, 11)]
}

fn trials(is_wanted: Arc<dyn Fn() -> bool + Send + Sync>) -> Trials<Model> {
    let prompts = (vec![prompt(), prompt()[..2].to_vec()], fillers());
    Trials::new(model(), Env::seeded(1, 0), prompts, (vec![0], 6), is_wanted, 0.25)
}

fn fillers() -> Primer {
    Primer::new([8, 9].map(|seed| segment(SegmentKind::Passage, seed, 20).tokens))
}

fn way(selection: Selection, ratio: f32) -> Way {
    Way { selection, ratio, primer: 0, cost: 0.0 }
}

fn mean(outcome: &Outcome) -> f32 {
    outcome.divergences.iter().sum::<f32>() / outcome.divergences.len() as f32
}

#[test]
fn what_is_recomputed_in_full_answers_as_a_full_prefill_does_and_what_is_not_does_not() {
    let mut trials = trials(Arc::new(|| true));
    let all = trials.trial(&way(Selection::by(Rule::All), 0.5), 0).unwrap();
    assert!(!all.differs && mean(&all) < 1e-6, "{all:?}");
    let one = trials.trial(&way(Selection::default(), 1.0), 0).unwrap();
    assert!(!one.differs && mean(&one) < 1e-6, "{one:?}");
    let none = trials.trial(&way(Selection::by(Rule::None), 0.0), 0).unwrap();
    assert!(mean(&none) > 1e-3, "{none:?}");
    let some = trials.trial(&way(Selection::default(), 0.5), 0).unwrap();
    assert!(mean(&some) < mean(&none) && mean(&some) > 1e-6, "{some:?} lies between");
    assert_eq!(trials.trial(&way(Selection::default(), 0.5), 0).unwrap(), some, "again is the same");
    // Behind a primer it is other KV.
    let primed = trials.trial(&Way { primer: 2, ..way(Selection::by(Rule::None), 0.0) }, 0).unwrap();
    assert!(mean(&primed) > 1e-4 && primed != none, "{primed:?}");
    let all = trials.trial(&Way { primer: 1, ..way(Selection::default(), 1.0) }, 0).unwrap();
    assert!(!all.differs && mean(&all) < 1e-6, "recomputed in full it does not matter: {all:?}");
    // A prompt whose only passage stands where it was computed has nothing to blend.
    let exact = trials.trial(&way(Selection::default(), 0.5), 1).unwrap();
    assert!(!exact.differs && mean(&exact) < 1e-6, "{exact:?}");
}

/// K and V of every row and layer, by a plain forward.
fn kv_of(segments: &[Segment]) -> Vec<KvBytes> {
    struct Take(Vec<KvBytes>);
    impl Selector<Model> for Take {
        fn take(&mut self, seen: &Seen<'_, Model>, _: &mut <Model as Backend>::Pool) -> Next {
            self.0.push(seen.export(0..seen.places.len()));
            Next::Go
        }
    }
    let (model, tokens) = (model(), tokens_of(segments));
    let mut pool = Backend::new_pool(&*model, 16);
    let blocks: Vec<BlockId> = (0..16).map(BlockId).collect();
    let key_positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let places = Places::of(0..tokens.len() as u32, &key_positions);
    let chunk = Chunk::embed(&*model, &tokens, places, Wanted::Last).unwrap();
    let mut take = Take(Vec::new());
    let rider = Rider { chunk, blocks: &blocks, key_positions: &key_positions, selector: Some(&mut take) };
    Forward::new(&*model, &mut pool).pass(vec![rider]);
    take.0
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect()
}

#[test]
fn deviation_of_kv_is_that_of_two_plain_forwards() {
    let prompt = prompt();
    let full = kv_of(&prompt);
    let deviation = trials(Arc::new(|| true)).deviation(0, &[]).unwrap();
    let behind: Vec<Segment> = fillers().prompt(Some(&prompt[0]), prompt[1].clone());
    let behind = &behind[..3];
    // The first passage is exact.
    let mut begin = 9 + 33;
    let mut wanted = vec![Vec::new(); full.len()];
    for passage in &prompt[2..4] {
        let alone = kv_of(&[behind, std::slice::from_ref(passage)].concat());
        for (layer, wanted) in wanted.iter_mut().enumerate() {
            let rows = |kv: &KvBytes| [floats(&kv.k), floats(&kv.v)];
            let (full, alone) = (rows(&full[layer]), rows(&alone[layer]));
            let width = alone[0].len() / (49 + passage.tokens.len());
            for token in 0..passage.tokens.len() {
                let of = |values: &[f32], row: usize| values[row * width..(row + 1) * width].to_vec();
                let squares = full.iter().zip(&alone).flat_map(|(full, alone)| {
                    let pair = of(full, begin + token).into_iter().zip(of(alone, 49 + token));
                    pair.map(|(a, b)| f64::from(a - b).powi(2)).collect::<Vec<_>>()
                });
                wanted.push(squares.sum::<f64>().sqrt());
            }
        }
        begin += passage.tokens.len();
    }
    assert_eq!(deviation.kv.len(), 4);
    for (layer, (seen, wanted)) in deviation.kv.iter().zip(&wanted).enumerate() {
        assert_eq!(seen.len(), 16 + 40);
        let near = seen.iter().zip(wanted).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-3 * b.max(1e-2));
        assert!(near, "layer {layer}: {seen:?} {wanted:?}");
        assert_eq!(seen.iter().all(|value| *value < 1e-6), layer == 0, "K and V of layer 0 come from the tokens alone");
    }
}

#[test]
fn deviation_of_attention_falls_with_what_is_recomputed() {
    let mut trials = trials(Arc::new(|| true));
    let by = |rule, ratio| (Selection::by(rule), ratio);
    let ways = [by(Rule::None, 0.5), by(Rule::Cacheblend, 0.3), by(Rule::Cacheblend, 1.0), by(Rule::All, 0.5)];
    let deviation = trials.deviation(0, &ways).unwrap();
    let sum = |way: usize| deviation.attention[way].iter().sum::<f32>();
    assert!(deviation.attention.iter().all(|layers| layers.len() == 4));
    assert!(sum(0) > 1.2 * sum(1) && sum(1) > 0.0, "{:?}", deviation.attention);
    assert!(sum(2) < 1e-5 && sum(3) < 1e-5, "{:?}", deviation.attention);
    assert_eq!(trials.deviation(0, &ways).unwrap(), deviation, "again is the same");
    // What is looked at is what the prompt's own prefill looked at: its last token comes out bit for bit.
    let segments = prompt();
    let (plan, loads) = trials.fused(&segments, Selection::default(), 0.3, &fillers()).unwrap();
    let done = trials.prefill(&segments, plan, loads, Selection::default()).unwrap();
    let again = trials.forward(&segments[4].tokens, 9 + 33 + 16 + 40, Wanted::Last).unwrap();
    assert_eq!(again, done.logits);
}

#[test]
fn whoever_is_not_wanted_any_more_ends() {
    let mut trials = trials(Arc::new(|| false));
    assert_eq!(trials.trial(&way(Selection::default(), 0.5), 0).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_tie_is_no_difference() {
    let likely = |logits: &[f32]| likeliest(logits).unwrap();
    let compare = |reference: &Reference, logits: &[f32]| compare(reference, logits, 0.25);
    let reference = |logits: &[f32]| Reference { tokens: vec![likely(logits)[0].0], likely: vec![likely(logits)] };
    let full = [3.0, 2.9, 0.0, -1.0];
    assert!(!compare(&reference(&full), &full).differs);
    assert!(mean(&compare(&reference(&full), &full)) < 1e-6);
    // The second likeliest takes its place: full prefill itself could not tell them apart.
    assert!(!compare(&reference(&full), &[2.9, 3.0, 0.0, -1.0]).differs);
    assert!(compare(&reference(&full), &[0.0, 0.0, 3.0, -1.0]).differs);
    let sure = [3.0, 2.0, 0.0, -1.0];
    assert!(compare(&reference(&sure), &[2.0, 3.0, 0.0, -1.0]).differs);
    assert!(compare(&reference(&sure), &[f32::NAN; 4]).differs);
    assert!(likeliest(&[f32::NAN, 1.0]).is_err());
    // KL of two distributions over two tokens, by hand.
    let (p, q) = (0.75_f32, 0.5_f32);
    let nats = f64::from(p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - q)).ln());
    let outcome = compare(&reference(&[p.ln(), (1.0 - p).ln()]), &[q.ln(), (1.0 - q).ln()]);
    assert!((f64::from(mean(&outcome)) - nats).abs() < 1e-6, "{outcome:?}");
}

#[test]
fn a_way_costs_what_it_computes() {
    let costs = CostProfile::assumed().unwrap();
    let costs = ragstone_storage::cost::Costs::new(costs).model();
    let of = |selection: Selection, ratio| cost(&costs, 24, selection, ratio).unwrap();
    let at = |layer| Selection { layer, ..Selection::default() };
    assert!(of(Selection::by(Rule::None), 0.0) < of(Selection::by(Rule::FirstK), 0.05));
    assert!(of(Selection::by(Rule::FirstK), 0.05) < of(at(1), 0.05), "no layer computes everything");
    assert!(of(at(1), 0.05) < of(at(2), 0.05) && of(at(2), 0.05) < of(at(2), 0.4));
    assert!(of(Selection::by(Rule::FirstK), 0.05) < of(Selection::by(Rule::TwoStage), 0.05), "a probe is paid");
    assert!(of(at(2), 1.0) > 0.9 && of(at(2), 0.4) < 0.7);
}
