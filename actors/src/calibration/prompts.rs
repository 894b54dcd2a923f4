//! The prompts that a calibration asks: passages in shuffled orders, and a question over them.

use std::sync::Arc;
use std::time::Duration;

use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::residency::Segment;
use serde::{Deserialize, Serialize};

use crate::caller::Caller;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Pipeline;
use crate::prefill::splitmix64;
use crate::question::{Context, InlineDocument, Input, Question, Reuse, RootCut};
use crate::stream::deadline_after;

/// Questions over passages of small worlds that no model has heard of: the links between their passages tell a model that reads
/// them together from one that does not (`ops/demo-model/sample.py` makes them).
const BUNDLED: &str = include_str!("bundled.json");
/// Passages of a prompt that is made of a collection's.
const PASSAGES: usize = 6;
/// What tokenizing one prompt may take beside everything else.
const DEADLINE: Duration = Duration::from_secs(120);
/// Words of a passage that a question about it quotes.
const QUOTED_WORDS: usize = 8;

/// A question and the passages that it is asked over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// What is asked.
    pub question: String,
    /// At least one.
    #[serde(alias = "ctxs")]
    pub passages: Vec<InlineDocument>,
}

/// The questions that come with ragstone.
pub(super) fn bundled() -> Result<Vec<Asked>> {
    serde_json::from_str(BUNDLED)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the bundled questions cannot be read: {error}")))
}

/// `count` prompts of `asked`, each with its passages in another order; fewer where some do not fit into `context` tokens.
pub(super) async fn prompts(
    pipeline: &Pipeline,
    asked: &[Asked],
    count: usize,
    context: usize,
) -> Result<Vec<Vec<Segment>>> {
    let mut prompts = Vec::with_capacity(count);
    for index in 0..count {
        let Asked { question, passages } = &asked[index % asked.len()];
        let passages = shuffled(passages, index as u64);
        match segments(pipeline, question, passages).await {
            Ok(prompt) if prompt.iter().map(|segment| segment.tokens.len()).sum::<usize>() <= context => {
                prompts.push(prompt);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ContextLength => {}
            Err(error) => return Err(error),
        }
    }
    Ok(prompts)
}

/// The prompt as the service would make it.
async fn segments(pipeline: &Pipeline, question: &str, documents: Vec<InlineDocument>) -> Result<Vec<Segment>> {
    let context = Some(Context { documents, ..Context::default() });
    let input = Input::Chat { messages: vec![ChatMessage::new("user", question)], context };
    let question = Arc::new(Question {
        input,
        sampling: SamplingParams::default(),
        answers: 1,
        reuse: Reuse::Off,
        selection: None,
        explain: false,
        root: RootCut::Whole,
        tenant: String::new(),
        caller: Caller::default(),
        deadline: DEADLINE,
    });
    let deadline = deadline_after(DEADLINE);
    let tokens = pipeline.assembler.passages(&question, deadline).await?;
    pipeline.assembler.assemble(&question, tokens, pipeline.today(), deadline).await
}

/// Questions about a collection's passages: what each of a few says, and what they have in common. Labels are not wanted: what is
/// compared is the model with itself.
pub(super) fn about(texts: &[String], count: usize) -> Vec<Asked> {
    if texts.is_empty() {
        return Vec::new();
    }
    let each = |index: usize| {
        let places: Vec<usize> = (0..texts.len()).collect();
        let chosen: Vec<&String> =
            shuffled(&places, index as u64).into_iter().take(PASSAGES).map(|place| &texts[place]).collect();
        let quoted: Vec<&str> = chosen[index % chosen.len()].split_whitespace().take(QUOTED_WORDS).collect();
        let question = match index % 3 {
            0 => format!("What is said about \"{}\"?", quoted.join(" ")),
            1 => "What do these passages have in common?".to_owned(),
            _ => format!("How does \"{}\" go on?", quoted.join(" ")),
        };
        let passages = chosen.into_iter().map(|text| InlineDocument { title: String::new(), text: text.clone() });
        Asked { question, passages: passages.collect() }
    };
    (0..count).map(each).collect()
}

/// In an order drawn from the seed.
fn shuffled<T: Clone>(items: &[T], seed: u64) -> Vec<T> {
    let mut tickets: Vec<(u64, usize)> =
        (0..items.len()).map(|index| (splitmix64(splitmix64(seed) ^ index as u64), index)).collect();
    tickets.sort_unstable();
    tickets.into_iter().map(|(_, index)| items[index].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_questions_can_be_read_and_need_several_passages() {
        let asked = bundled().unwrap();
        assert!(asked.len() >= 60);
        assert!(asked.iter().all(|it| it.passages.len() >= 2 && !it.question.is_empty()));
    }

    #[test]
    fn questions_are_made_of_any_passages() {
        let texts: Vec<String> =
            (0..20).map(|number| format!("passage {number} has a few words of its own to quote")).collect();
        let asked = about(&texts, 9);
        assert_eq!((asked.len(), about(&[], 9).len()), (9, 0));
        for it in &asked {
            assert_eq!(it.passages.len(), PASSAGES);
        }
        assert_ne!(asked[0].passages, asked[1].passages);
        assert!(asked[0].question.contains("passage"), "{}", asked[0].question);
        assert_eq!(about(&texts[..1], 2)[1].passages.len(), 1);
    }

    #[test]
    fn an_order_is_of_its_seed() {
        let items: Vec<u32> = (0..10).collect();
        let mut once = shuffled(&items, 3);
        assert_eq!(once, shuffled(&items, 3));
        assert_ne!(once, shuffled(&items, 4));
        once.sort_unstable();
        assert_eq!(once, items);
    }
}
