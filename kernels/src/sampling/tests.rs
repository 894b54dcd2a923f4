use super::*;

fn sampler(params: SamplingParams) -> Sampler {
    Sampler::new(params)
}

fn draws(params: SamplingParams, logits: &[f32], count: usize) -> Vec<u32> {
    let mut sampler = sampler(params);
    (0..count).map(|_| sampler.sample(logits).unwrap().id).collect()
}

#[test]
fn greedy_takes_the_lower_id_of_equals() {
    let sampled = sampler(SamplingParams::default()).sample(&[0.5, 2.0, 2.0, -1.0]).unwrap();
    assert_eq!(sampled.id, 1);
    assert!(sampled.top.is_empty());
}

#[test]
fn log_probabilities_are_those_of_the_unmodified_distribution() {
    let logits = [1.0f32, 2.0, 3.0, 0.0];
    let sum: f32 = logits.iter().map(|l| l.exp()).sum();
    let params = SamplingParams { temperature: 0.1, top_k: 1, logprobs: Some(2), ..Default::default() };
    let sampled = sampler(params).sample(&logits).unwrap();
    assert_eq!(sampled.id, 2);
    assert!((sampled.logprob - (3.0 - sum.ln())).abs() < 1e-6);
    assert_eq!(sampled.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 1]);
    assert!((sampled.top[1].1 - (2.0 - sum.ln())).abs() < 1e-6);
}

#[test]
fn more_alternatives_than_tokens_are_all_of_them_and_ties_go_by_id() {
    let params = SamplingParams { logprobs: Some(20), ..Default::default() };
    let sampled = sampler(params).sample(&[1.0, 1.0, 4.0]).unwrap();
    assert_eq!(sampled.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 0, 1]);
    let total: f32 = sampled.top.iter().map(|(_, logprob)| logprob.exp()).sum();
    assert!((total - 1.0).abs() < 1e-5);
}

#[test]
fn a_given_token_is_described_as_a_drawn_one_is() {
    let mut random = fastrand::Rng::with_seed(5);
    for vocabulary in [1usize, 3, 40, 300] {
        // Coarse values, so that there are ties; and what is not a number.
        let draw =
            |random: &mut fastrand::Rng| if random.u8(..) < 20 { f32::NAN } else { f32::from(random.i8(..)) / 16.0 };
        let mut logits: Vec<f32> = (0..vocabulary).map(|_| draw(&mut random)).collect();
        logits[0] = 0.25;
        for count in [0, 1, 5, 20] {
            let params = SamplingParams { logprobs: Some(count), ..Default::default() };
            let drawn = sampler(params).sample(&logits).unwrap();
            let scored = score(&logits, drawn.id, count);
            assert_eq!((scored.rank, &scored.token), (1, &drawn), "greedy takes the first");
            let order = most_likely(&logits, vocabulary);
            let ids: Vec<usize> = scored.token.top.iter().map(|(id, _)| *id as usize).collect();
            assert_eq!(ids, order[..usize::from(count).min(vocabulary)], "as a whole sort has them");
            for (place, id) in order.iter().enumerate() {
                let scored = score(&logits, *id as u32, count);
                assert_eq!(scored.rank as usize, place + 1);
                assert_eq!(
                    scored.token.logprob.to_bits(),
                    sampler(SamplingParams::default()).describe(&logits, *id as u32).logprob.to_bits()
                );
            }
        }
    }
    assert_eq!(score(&[1.0, 2.0], 7, 0).rank, 3, "one that there is not comes last");
}

#[test]
fn tokens_that_are_named_are_reported_in_their_order() {
    let logits = [1.0f32, 3.0, 2.0, f32::NEG_INFINITY];
    let params = SamplingParams { logprobs: Some(1), logprob_token_ids: vec![2, 0, 3, 9], ..Default::default() };
    let sampled = sampler(params).sample(&logits).unwrap();
    let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
    let [(2, second), (0, third), (3, none), (9, outside)] = sampled.top[..] else { panic!("{:?}", sampled.top) };
    assert!((second - (2.0 - sum.ln())).abs() < 1e-6 && (third - (1.0 - sum.ln())).abs() < 1e-6);
    assert_eq!((none, outside), (f32::NEG_INFINITY, f32::NEG_INFINITY));
}

#[test]
fn the_same_seed_repeats_and_another_differs() {
    let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32 * 0.1).collect();
    let params = |seed| SamplingParams { temperature: 1.0, seed, ..Default::default() };
    assert_eq!(draws(params(7), &logits, 40), draws(params(7), &logits, 40));
    assert_ne!(draws(params(7), &logits, 40), draws(params(8), &logits, 40));
}

#[test]
fn draws_follow_the_tempered_distribution() {
    let logits = [0.0f32, 1.0, 2.0];
    let params = SamplingParams { temperature: 2.0, seed: 3, ..Default::default() };
    let count = 20_000;
    let drawn = draws(params, &logits, count);
    let weights: Vec<f64> = logits.iter().map(|l| f64::from(l / 2.0).exp()).collect();
    let total: f64 = weights.iter().sum();
    for (id, weight) in weights.iter().enumerate() {
        let share = drawn.iter().filter(|d| **d == id as u32).count() as f64 / count as f64;
        assert!((share - weight / total).abs() < 0.015, "id {id}: {share} against {}", weight / total);
    }
}

#[test]
fn top_k_and_top_p_cut_the_tail() {
    let logits = [3.0f32, 2.9, 0.0, -1.0, -5.0];
    let top_k = SamplingParams { temperature: 2.0, top_k: 2, seed: 1, ..Default::default() };
    assert!(draws(top_k, &logits, 500).iter().all(|id| *id < 2));
    // The first two hold about 0.95 of the weight at temperature 1, so 0.9 needs both and no more.
    let top_p = SamplingParams { temperature: 1.0, top_p: 0.9, seed: 1, ..Default::default() };
    let drawn = draws(top_p, &logits, 500);
    assert!(drawn.iter().all(|id| *id < 2));
    assert!(drawn.contains(&0) && drawn.contains(&1));
    for top_p in [1e-6, 0.0] {
        let one = SamplingParams { temperature: 1.0, top_p, seed: 1, ..Default::default() };
        one.validate().unwrap();
        assert!(draws(one.clone(), &logits, 50).iter().all(|id| *id == 0));
        assert!(draws(one, &[0.3; 7], 50).iter().all(|id| *id == 0), "of equal ones the first");
    }
}

#[test]
fn equal_logits_leave_a_nucleus_of_the_lower_ids() {
    let params = SamplingParams { temperature: 1.0, top_p: 0.5, seed: 1, ..Default::default() };
    assert!(draws(params, &[1.0; 8], 300).iter().all(|id| *id < 4));
}

#[test]
fn nan_is_never_chosen() {
    let logits = [f32::NAN, 1.0, f32::NAN, 0.5, f32::NEG_INFINITY];
    let greedy = sampler(SamplingParams { logprobs: Some(5), ..Default::default() }).sample(&logits).unwrap();
    assert_eq!(greedy.id, 1);
    assert!(greedy.top.iter().all(|(_, logprob)| !logprob.is_nan()));
    for params in [
        SamplingParams { temperature: 1.5, seed: 2, ..Default::default() },
        SamplingParams { temperature: 1.5, top_k: 4, seed: 2, ..Default::default() },
        SamplingParams { temperature: 1.5, top_p: 0.99, seed: 2, ..Default::default() },
    ] {
        assert!(draws(params, &logits, 200).iter().all(|id| [1, 3].contains(id)));
    }
}

#[test]
fn logits_without_a_finite_maximum_are_an_error() {
    for logits in [&[][..], &[f32::NAN, f32::NAN], &[f32::NEG_INFINITY], &[1.0, f32::INFINITY]] {
        let error = sampler(SamplingParams::default()).sample(logits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    let cases = [
        (SamplingParams { temperature: -1.0, ..Default::default() }, "temperature"),
        (SamplingParams { temperature: f32::NAN, ..Default::default() }, "temperature"),
        (SamplingParams { top_p: -0.1, ..Default::default() }, "top_p"),
        (SamplingParams { top_p: f32::NAN, ..Default::default() }, "top_p"),
        (SamplingParams { logprobs: Some(21), ..Default::default() }, "logprobs"),
        (SamplingParams { prompt_logprobs: Some(21), ..Default::default() }, "prompt_logprobs"),
        (SamplingParams { min_p: 1.1, ..Default::default() }, "min_p"),
        (SamplingParams { repetition_penalty: 0.0, ..Default::default() }, "repetition_penalty"),
        (SamplingParams { frequency_penalty: 2.1, ..Default::default() }, "frequency_penalty"),
        (SamplingParams { presence_penalty: f32::NAN, ..Default::default() }, "presence_penalty"),
        (SamplingParams { logit_bias: vec![(0, 101.0)], ..Default::default() }, "logit_bias"),
        (SamplingParams { logit_bias: vec![(0, 1.0); 1025], ..Default::default() }, "logit_bias"),
        (SamplingParams { stop_token_ids: vec![0; 1025], ..Default::default() }, "stop_token_ids"),
        (SamplingParams { stop: vec!["a".into(); 17], ..Default::default() }, "stop"),
        (SamplingParams { stop: vec!["a".repeat(1025)], ..Default::default() }, "stop"),
    ];
    for (params, name) in cases {
        assert!(params.validate().unwrap_err().to_string().contains(name));
    }
    SamplingParams::default().validate().unwrap();
}

#[test]
fn min_p_drops_what_is_far_below_the_likeliest() {
    // Weights at temperature 1: 1, about 0.90, 0.05, 0.02.
    let logits = [3.0f32, 2.9, 0.0, -1.0];
    let params = |min_p| SamplingParams { temperature: 1.0, min_p, seed: 1, ..Default::default() };
    assert!(draws(params(0.1), &logits, 500).iter().all(|id| *id < 2));
    assert!(draws(params(0.03), &logits, 2000).contains(&2));
    assert!(!draws(params(0.03), &logits, 2000).contains(&3));
    assert!(draws(params(1.0), &logits, 100).iter().all(|id| *id == 0));
}

#[test]
fn penalties_change_the_choice_and_not_the_log_probability() {
    let logits = [2.0f32, 1.5, 0.0];
    let params = SamplingParams { presence_penalty: 1.0, ..Default::default() };
    assert_eq!(draws(params, &logits, 4), [0, 1, 0, 0]);
    let params = SamplingParams { logit_bias: vec![(0, -100.0)], logprobs: Some(1), ..Default::default() };
    let sampled = sampler(params).sample(&logits).unwrap();
    let sum: f32 = logits.iter().map(|l| l.exp()).sum();
    assert_eq!((sampled.id, sampled.top[0].0), (1, 0));
    assert!((sampled.logprob - (1.5 - sum.ln())).abs() < 1e-6);
    let repeats = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    assert_eq!(Sampler::answering(repeats, &[0], &[]).sample(&logits).unwrap().id, 1);
}

#[derive(serde::Deserialize)]
struct Reference {
    logits: Vec<f32>,
    prompt: Vec<u32>,
    answer: Vec<u32>,
    rules: Rules,
    left: Vec<(u32, f64)>,
}

#[derive(serde::Deserialize)]
struct Rules {
    temperature: f32,
    #[serde(default)]
    logit_bias: Vec<(u32, f32)>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    min_tokens: Option<usize>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
}

/// Every rule, alone and among others, against transformers' processors; `ops/fixtures/make_sampling.py` made the cases.
#[test]
fn what_is_drawn_from_is_what_transformers_draws_from() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sampling.json");
    let cases: Vec<Reference> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(cases.len() > 70);
    for (index, case) in cases.into_iter().enumerate() {
        let Rules { temperature, logit_bias, .. } = case.rules;
        let params = SamplingParams {
            temperature,
            logit_bias,
            repetition_penalty: case.rules.repetition_penalty.unwrap_or(1.0),
            frequency_penalty: case.rules.frequency_penalty.unwrap_or(0.0),
            presence_penalty: case.rules.presence_penalty.unwrap_or(0.0),
            min_tokens: case.rules.min_tokens.unwrap_or(0),
            top_k: case.rules.top_k.unwrap_or(0),
            top_p: case.rules.top_p.unwrap_or(1.0),
            min_p: case.rules.min_p.unwrap_or(0.0),
            ..Default::default()
        };
        let mut sampler = Sampler::answering(params, &case.prompt, &[2]);
        case.answer.iter().for_each(|id| sampler.history.note(*id));
        let mut left = sampler.distribution(&case.logits).unwrap();
        left.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(
            left.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
            case.left.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
            "case {index}"
        );
        for ((id, ours), (_, theirs)) in left.iter().zip(&case.left) {
            assert!((ours - theirs).abs() < 2e-6, "case {index}, token {id}: {ours} {theirs}");
        }
        assert!((left.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
    }
}

/// Whoever draws a thousand times draws each token about as often as the distribution says.
#[test]
fn draws_follow_the_distribution() {
    let params = SamplingParams { temperature: 1.3, top_k: 4, min_p: 0.05, seed: 7, ..Default::default() };
    let logits = [0.1, 2.0, 1.0, -3.0, 1.5, 0.0, f32::NAN];
    let sampler = sampler(params);
    let expected = sampler.distribution(&logits).unwrap();
    let mut sampler = sampler;
    let mut counts = [0u32; 7];
    (0..20_000).for_each(|_| counts[sampler.sample(&logits).unwrap().id as usize] += 1);
    for (id, count) in counts.into_iter().enumerate() {
        let share = expected.iter().find(|(other, _)| *other as usize == id).map_or(0.0, |(_, share)| *share);
        assert!((f64::from(count) / 20_000.0 - share).abs() < 0.015, "{id}: {count} {share}");
    }
}
