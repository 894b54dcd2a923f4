//! Answers with drafts against answers without: token for token and bit for bit, whoever runs beside them and however they end. What a
//! pass takes here is chance, so which drafts are verified is, too; what comes out is not.

use ragstone_kernels::sampling::SamplingParams;

use super::tests::{env, job, start, wait_for_blocks};
use super::*;

pub(super) fn lookup() -> Lookup {
    Lookup { most: 7, least_match: 1, most_match: 4, counts: Arc::default() }
}

/// How tokens are chosen: greedily, or by chance among few, so that drafts are right now and then.
fn ways() -> [SamplingParams; 3] {
    let of = |temperature, top_k, repetition_penalty| SamplingParams {
        temperature,
        top_k,
        repetition_penalty,
        logprobs: Some(3),
        ..SamplingParams::default()
    };
    [of(0.0, 0, 1.0), of(0.7, 3, 1.0), of(1.5, 8, 1.1)]
}

struct Case {
    prompt: (u32, u32),
    max_tokens: usize,
    sampling: SamplingParams,
    end_tokens: Vec<u32>,
    answers: usize,
}

type Whole = (Vec<Sampled>, Option<FinishReason>);

fn drain(mut decoded: mpsc::Receiver<Decoded>) -> Whole {
    let mut tokens = Vec::new();
    while let Some(item) = decoded.blocking_recv() {
        match item {
            Decoded::EndToken(_) => {}
            Decoded::Token(sampled) => tokens.push(sampled),
            Decoded::End(reason) => return (tokens, Some(reason)),
            Decoded::Failed(error) => panic!("{error}"),
        }
    }
    (tokens, None)
}

/// The answers of a case, with drafts or without.
fn submit(engine: &Engine, case: &Case, lookup: &Lookup) -> Vec<mpsc::Receiver<Decoded>> {
    let (seed, length) = case.prompt;
    let (mut group, reply, _) = job(seed, length, case.max_tokens);
    std::mem::forget(reply);
    let mut outputs = Vec::new();
    group.decode.clear();
    for index in 0..case.answers {
        let (one, _, decoded) = job(seed, length, case.max_tokens);
        let sampling = SamplingParams { seed: 100 + index as u64, ..case.sampling.clone() };
        let sampler = Sampler::answering(sampling, &one.tokens, &case.end_tokens);
        let end_tokens = case.end_tokens.clone().into();
        group.decode.extend(one.decode.into_iter().map(|spec| DecodeSpec {
            sampler: sampler.clone(),
            end_tokens: Arc::clone(&end_tokens),
            lookup: lookup.clone(),
            ..spec
        }));
        outputs.push(decoded);
    }
    engine.submit(group, Urgency::Answer).expect("queued");
    outputs
}

/// All cases at once, in a pool of so many blocks.
fn answers(cases: &[Case], lookup: &Lookup, blocks: usize) -> (Vec<Vec<Whole>>, u64) {
    let engine = start(blocks, &env());
    let outputs: Vec<_> = cases.iter().map(|case| submit(&engine, case, lookup)).collect();
    let answers = outputs.into_iter().map(|outputs| outputs.into_iter().map(drain).collect()).collect();
    wait_for_blocks(&engine, blocks);
    (answers, engine.status().preemptions)
}

/// Of each alone, without drafts.
fn expected(cases: &[Case]) -> Vec<Vec<Whole>> {
    let none = Lookup::default();
    cases.iter().flat_map(|case| answers(std::slice::from_ref(case), &none, 32).0).collect()
}

fn case(seed: u32, max_tokens: usize, sampling: SamplingParams) -> Case {
    Case { prompt: (seed, 20 + seed), max_tokens, sampling, end_tokens: Vec::new(), answers: 1 }
}

#[test]
fn answers_with_drafts_are_those_without_alone_and_in_a_batch() {
    let mut seen = (0, 0);
    for sampling in ways() {
        let cases: Vec<Case> = (0..4).map(|seed| case(seed, 80, sampling.clone())).collect();
        let expected = expected(&cases);
        let together = lookup();
        assert_eq!(answers(&cases, &together, 64).0, expected);
        for (case, expected) in cases.into_iter().zip(expected) {
            let lookup = lookup();
            assert_eq!(answers(&[case], &lookup, 32).0, [expected]);
            let (drafted, accepted) = lookup.counts.get();
            assert!(accepted <= drafted);
            seen = (seen.0 + drafted, seen.1 + accepted);
        }
        let (drafted, accepted) = together.counts.get();
        seen = (seen.0 + drafted, seen.1 + accepted);
    }
    assert!(seen.0 > 20 && seen.1 > 10 && seen.1 < seen.0, "drafts are right, and wrong: {seen:?}");
}

#[test]
fn an_answer_of_any_length_ends_where_it_would() {
    let whole = &expected(&[case(3, 60, ways()[0].clone())])[0][0].0;
    for max_tokens in 1..40 {
        let (answers, _) = answers(&[case(3, max_tokens, ways()[0].clone())], &lookup(), 32);
        assert_eq!(answers[0][0], (whole[..max_tokens].to_vec(), Some(FinishReason::Length)));
    }
}

#[test]
fn an_end_token_ends_an_answer_in_the_middle_of_a_draft() {
    for sampling in ways() {
        let whole = &expected(&[case(2, 80, sampling.clone())])[0][0].0;
        // Each token that the answer has, from the last on.
        for end in whole.iter().rev().step_by(9).map(|sampled| sampled.id) {
            let mut case = case(2, 80, sampling.clone());
            case.end_tokens = vec![end];
            let cases = [case];
            let (found, expected) = (answers(&cases, &lookup(), 32).0, expected(&cases));
            assert_eq!(found, expected);
            assert_eq!(found[0][0].1, Some(FinishReason::Stop));
        }
    }
}

#[test]
fn groups_and_those_who_are_preempted_have_the_answers_that_they_have_alone() {
    let mut cases: Vec<Case> = (0..4).map(|seed| case(seed, 100, ways()[seed as usize % 3].clone())).collect();
    let expected_alone = expected(&cases);
    let (found, preemptions) = answers(&cases, &lookup(), 12);
    assert_eq!(found, expected_alone);
    assert!(preemptions > 2, "{preemptions}");
    cases.truncate(2);
    cases.iter_mut().for_each(|case| (case.answers, case.max_tokens) = (3, 40));
    assert_eq!(answers(&cases, &lookup(), 32).0, expected(&cases));
}

#[test]
fn whoever_leaves_in_the_middle_of_a_draft_leaves_no_block() {
    let engine = start(32, &env());
    for tokens in 1..12 {
        let mut outputs = submit(&engine, &case(1, 100, ways()[0].clone()), &lookup());
        (0..tokens).for_each(|_| drop(outputs[0].blocking_recv().expect("a token")));
        drop(outputs);
        wait_for_blocks(&engine, 32);
    }
}

/// Prompts that are prefilled in chunks while others draft: both are what they are alone.
#[test]
fn prefills_beside_drafts_change_nothing_and_are_not_changed() {
    let drafting: Vec<Case> = (0..2).map(|seed| case(seed, 100, ways()[0].clone())).collect();
    let begun: Vec<Case> = (0..4)
        .map(|seed| Case { prompt: (10 + seed, 90 + seed), ..case(seed, 20, ways()[seed as usize % 3].clone()) })
        .collect();
    let (expected_drafting, expected_begun) = (expected(&drafting), expected(&begun));
    let (engine, lookup) = (start(64, &env()), lookup());
    let mut running: Vec<_> = drafting.iter().map(|case| submit(&engine, case, &lookup).remove(0)).collect();
    let mut said = vec![Vec::new(); running.len()];
    // One prompt after the other, each while the answers go on.
    let mut beside = Vec::new();
    for case in &begun {
        for (running, said) in running.iter_mut().zip(&mut said) {
            (0..8).for_each(|_| match running.blocking_recv() {
                Some(Decoded::Token(sampled)) => said.push(sampled),
                other => panic!("{other:?}"),
            });
        }
        beside.push(submit(&engine, case, &lookup).remove(0));
    }
    for ((running, said), expected) in running.into_iter().zip(said).zip(expected_drafting) {
        let (rest, reason) = drain(running);
        assert_eq!(([said, rest].concat(), reason), expected[0]);
    }
    for (beside, expected) in beside.into_iter().zip(expected_begun) {
        assert_eq!(drain(beside), expected[0]);
    }
    assert!(lookup.counts.get().1 > 0);
    wait_for_blocks(&engine, 64);
}
