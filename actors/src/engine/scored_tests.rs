//! What the model thinks of a prompt's own tokens, through the engine.

use super::tests::{alone, drain, env, job, start, wait_for_blocks};
use super::*;
use ragstone_kernels::sampling::SamplingParams;

type Asked = (oneshot::Receiver<Result<PrefillReport, PrefillError>>, mpsc::Receiver<Decoded>);

/// Asks with so many alternatives beside each token of the prompt.
fn ask(engine: &Engine, (seed, length, max_tokens): (u32, u32, usize), end_tokens: &[u32]) -> Asked {
    let (mut job, reply, decoded) = job(seed, length, max_tokens);
    let params = SamplingParams { prompt_logprobs: Some(3), logprobs: Some(3), ..SamplingParams::default() };
    for spec in &mut job.decode {
        spec.sampler = Sampler::new(params.clone());
        spec.end_tokens = end_tokens.into();
    }
    engine.submit(job, Urgency::Answer).expect("queued");
    (reply, decoded)
}

/// What one step says of `next` behind the first `length` tokens of the prompt.
fn stepped(engine: &Engine, seed: u32, length: u32, next: u32) -> Sampled {
    let (mut job, _reply, mut decoded) = job(seed, length, 1);
    // Whatever the model would say: log-probabilities are those before any rule.
    let params = SamplingParams { logit_bias: vec![(next, 100.0)], logprobs: Some(3), ..SamplingParams::default() };
    job.decode[0].sampler = Sampler::new(params);
    engine.submit(job, Urgency::Answer).expect("queued");
    match decoded.blocking_recv().expect("a token") {
        Decoded::Token(sampled) => sampled,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_prompts_tokens_have_the_bits_that_single_steps_report() {
    let engine = start(64, &env());
    let (seed, length) = (2, 37);
    // Others decode beside it.
    let others: Vec<_> = (5..7).map(|seed| job(seed, 9, 40)).collect();
    let mut running = Vec::new();
    for (job, reply, decoded) in others {
        engine.submit(job, Urgency::Answer).expect("queued");
        running.push((reply, decoded));
    }
    let (reply, decoded) = ask(&engine, (seed, length, 12), &[]);
    let scores = reply.blocking_recv().expect("answered").expect("prefilled").scores;
    assert_eq!(drain(decoded).0, alone(seed, length, 12), "what follows is what follows without");
    for (at, (_reply, decoded)) in running.into_iter().enumerate() {
        assert_eq!(drain(decoded).0, alone(5 + at as u32, 9, 40), "nor are others disturbed");
    }
    let tokens = job(seed, length, 1).0.tokens;
    assert_eq!(scores.len(), tokens.len() - 1);
    for (at, scored) in scores.iter().enumerate() {
        let next = tokens[at + 1];
        let expected = stepped(&engine, seed, at as u32 + 1, next);
        assert_eq!(scored.token, expected, "token {at}");
        assert_eq!(scored.token.logprob.to_bits(), expected.logprob.to_bits());
        let place = scored.token.top.iter().position(|(id, _)| *id == next);
        assert!(place.map_or(scored.rank > 3, |place| scored.rank as usize == place + 1), "{scored:?}");
    }
    wait_for_blocks(&engine, 64);
}

#[test]
fn a_prompt_alone_can_be_wanted() {
    let engine = start(32, &env());
    let (reply, decoded) = ask(&engine, (3, 21, 0), &[]);
    assert_eq!(reply.blocking_recv().expect("answered").expect("prefilled").scores.len(), 20);
    assert_eq!(drain(decoded), (Vec::new(), Some(FinishReason::Length)));
    let (job, reply, decoded) = job(3, 21, 0);
    engine.submit(job, Urgency::Answer).expect("queued");
    assert!(reply.blocking_recv().expect("answered").expect("prefilled").scores.is_empty(), "nobody asked");
    assert_eq!(drain(decoded), (Vec::new(), Some(FinishReason::Length)));
    wait_for_blocks(&engine, 32);
}

/// Whoever measures a text wants the token that ends it, too.
#[test]
fn the_token_that_ends_an_answer_is_told_where_the_prompts_are() {
    let engine = start(32, &env());
    let said = alone(1, 9, 4);
    // Its first one, where that does not come before.
    let end = said[1];
    let before = said.iter().position(|id| *id == end).expect("it is there");
    let (_reply, mut decoded) = ask(&engine, (1, 9, 4), &[end]);
    let mut items = Vec::new();
    while let Some(item) = decoded.blocking_recv() {
        items.push(item);
    }
    let tokens = items.iter().filter(|item| matches!(item, Decoded::Token(_))).count();
    assert_eq!(tokens, before);
    assert!(
        matches!(&items[before..], [Decoded::EndToken(sampled), Decoded::End(FinishReason::Stop)] if sampled.id == end),
        "{items:?}"
    );
    let (mut job, _reply, decoded) = job(1, 9, 4);
    job.decode[0].end_tokens = [end].into();
    engine.submit(job, Urgency::Answer).expect("queued");
    assert_eq!(drain(decoded), (said[..before].to_vec(), Some(FinishReason::Stop)));
}
