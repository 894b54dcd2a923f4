//! Answers with drafts through the whole pipeline, on the embedded model's weights: they are those without, as they stream, where a stop
//! string ends them, and where they conform to a grammar.

use std::sync::Arc;

use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::grammar::GrammarSpec;
use ragstone_storage::store::AdmissionRule;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::tests::{EVENING_UNIX_MS, answer, close, open, open_with, question, side_by_side};
use super::*;
use crate::question::Reuse;
use crate::question::prompt::PromptDate;
use crate::ragstone::Ragstone;
use crate::report::{Answer, Event, FinishReason};

/// A question that is answered greedily, at length; with drafts as the settings say, or without.
fn asked(drafts: bool, max_tokens: usize) -> Question {
    let (title, text) =
        ("Callux Motors".into(), "Callux Motors makes lamps. The chair of Callux Motors is Jomi Jorrud.".into());
    let input = Input::Chat {
        messages: vec![ChatMessage::new("user", "Who is the chair of Callux Motors?")],
        tools: Vec::new(),
        thinks: None,
        context: Some(Context { documents: vec![InlineDocument { title, text }], ..Context::default() }),
    };
    let mut asked = question(input, Reuse::Off, max_tokens);
    asked.drafts = if drafts { None } else { Some(0) };
    (asked.sampling.ignore_eos, asked.sampling.min_tokens) = (false, max_tokens);
    asked
}

fn ids(answer: &Answer) -> Vec<(u32, f32)> {
    answer.tokens.iter().map(|token| (token.id, token.logprob)).collect()
}

async fn opened() -> (TempDir, Ragstone) {
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    let ragstone = open(&folder, "qwen_2_5", PromptDate::Pinned, &env).await;
    (folder, ragstone)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_within_a_draft_ends_the_answer_there() {
    let (folder, ragstone) = opened().await;
    let whole = answer(&ragstone, asked(false, 200)).await;
    let places: Vec<usize> = whole.text.char_indices().map(|(at, _)| at).collect();
    let mut accepted = 0;
    assert!(places.len() > 40, "{:?}", whole.text);
    for at in (0..places.len() - 5).step_by(places.len().div_ceil(16)) {
        let stop = &whole.text[places[at]..places[at + 4]];
        let ask = |drafts| {
            let mut asked = asked(drafts, 200);
            asked.sampling.stop = vec![stop.to_owned()];
            asked
        };
        let (with, without) = (answer(&ragstone, ask(true)).await, answer(&ragstone, ask(false)).await);
        let before = whole.text.find(stop).unwrap();
        assert_eq!((&*with.text, with.finish.reason), (&whole.text[..before], FinishReason::Stop), "{stop:?}");
        assert_eq!((with.text.as_str(), ids(&with)), (without.text.as_str(), ids(&without)), "{stop:?}");
        let usage = |answer: &Answer| serde_json::to_value(answer.finish.usage).unwrap();
        assert_eq!(usage(&with), usage(&without), "{stop:?}");
        accepted += with.finish.report.drafts.map_or(0, |drafts| drafts.accepted);
    }
    assert!(accepted > 0, "drafts were right before they were cut off");
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_drafts_streams_in_order() {
    let (folder, ragstone) = opened().await;
    let whole = answer(&ragstone, asked(false, 200)).await;
    let mut stream = ragstone.answer(asked(true, 200)).await.unwrap();
    let (mut text, mut seen, mut accepted) = (String::new(), Vec::new(), None);
    while let Some(event) = stream.next().await {
        assert!(accepted.is_none(), "nothing comes behind the end");
        match event.unwrap() {
            Event::Token(token) => {
                text += &token.text;
                seen.push((token.id, token.logprob));
                assert!(whole.text.starts_with(&text), "{text:?}");
            }
            Event::Tail(tail) => text += &tail,
            Event::Finished(finish) => accepted = Some(finish.report.drafts.map_or(0, |drafts| drafts.accepted)),
        }
    }
    assert_eq!((text, seen), (whole.text.clone(), ids(&whole)));
    assert!(accepted > Some(0), "{accepted:?}");
    close(ragstone, &folder).await;
}

/// Three answers each to three questions, in a form that takes many tokens: alone, and all at once where there are blocks for one.
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_form_are_the_same_with_drafts_without_and_preempted() {
    let colours = json!({ "enum": ["red", "green", "blue", "white"] });
    let schema = json!({ "type": "array", "items": colours, "minItems": 12, "maxItems": 12 });
    let spec = Arc::new(GrammarSpec::JsonSchema(schema));
    let ask = |prompt: usize, drafts| {
        let mut asked = Question { answers: 3, ..asked(drafts, 130) };
        if let Input::Chat { messages, .. } = &mut asked.input {
            messages[0].content += &" Which colours?".repeat(1 + prompt);
        }
        asked.sampling.min_tokens = 0;
        (asked.sampling.temperature, asked.sampling.seed) = (0.8, 40 + prompt as u64);
        asked.sampling.grammar = Some(spec.clone());
        asked
    };
    let all = async |ragstone: &Ragstone, asked: Question| {
        let streams = ragstone.answers(asked).await.unwrap();
        let mut answers = Vec::new();
        for answer in futures::future::join_all(streams.into_iter().map(AnswerStream::collect)).await {
            answers.push(answer.unwrap());
        }
        answers
    };
    let (folder, ragstone) = opened().await;
    let (mut expected, mut drafted) = (Vec::new(), 0);
    for prompt in 0..3 {
        let (without, with) = (all(&ragstone, ask(prompt, false)).await, all(&ragstone, ask(prompt, true)).await);
        let bits = |answers: &[Answer]| answers.iter().map(ids).collect::<Vec<_>>();
        assert_eq!(bits(&with), bits(&without), "question {prompt}");
        for answer in &with {
            let value: Value = serde_json::from_str(&answer.text).unwrap_or_else(|e| panic!("{e}: {}", answer.text));
            assert_eq!((value.as_array().map(Vec::len), answer.finish.reason), (Some(12), FinishReason::Stop));
            drafted += answer.finish.report.drafts.map_or(0, |drafts| drafts.accepted);
        }
        expected.push(bits(&with));
    }
    assert!(drafted > 0, "some drafts were right");
    let block_bytes = 16 * ragstone.status().model.kv_bytes_per_token as u64;
    close(ragstone, &folder).await;
    let (folder, env) = (tempfile::tempdir().unwrap(), Env::seeded(7, EVENING_UNIX_MS));
    let settings = Settings {
        device_bytes: Some(48 * block_bytes),
        host_bytes: 64 << 20,
        kv_admission: AdmissionRule::Always,
        ..Settings::default()
    };
    let crowded = open_with(&folder, "qwen_2_5", settings, &env).await;
    let asked = (0..3).map(|prompt| all(&crowded, ask(prompt, true)));
    let found = side_by_side(&crowded, &env, asked).await;
    let found: Vec<Vec<_>> = found.iter().map(|answers| answers.iter().map(ids).collect()).collect();
    assert_eq!(found, expected);
    assert!(crowded.status().device.preemptions > 0, "there was no need to preempt");
    close(crowded, &folder).await;
}
