//! The prompts that a calibration asks: passages in shuffled orders, and a question over them.

use std::sync::Arc;
use std::time::Duration;

use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::segment::Segment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::trial::blends;
use crate::admission::caller::Caller;
use crate::admission::deadline::deadline_after;
use crate::answer::pipeline::Pipeline;
use crate::error::{Error, ErrorKind, Result};
use crate::prefill::splitmix64;
use crate::question::prompt::Task;
use crate::question::{Context, InlineDocument, Input, Question, Reuse, RootCut};

/// Questions over passages of real prose that this project wrote (`ops/fixtures/calibration_prose.py` makes them).
const BUNDLED: &str = include_str!("prose.json");
/// Passages of a prompt that is made of a collection's.
const PASSAGES: usize = 6;
/// What tokenizing one prompt may take beside everything else.
const DEADLINE: Duration = Duration::from_secs(120);
/// Words of a passage that a question about it quotes.
const QUOTED_WORDS: usize = 8;

/// A question and the passages that it is asked over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Asked {
    /// What is asked.
    pub question: String,
    /// At least one.
    #[serde(alias = "ctxs")]
    pub passages: Vec<InlineDocument>,
}

/// A question, and the passages that it is asked over.
#[derive(Debug, Clone)]
pub(super) struct Prompt {
    question: String,
    passages: Passages,
}

#[derive(Debug, Clone)]
enum Passages {
    /// To be written as the service writes them.
    Documents(Vec<InlineDocument>),
    /// Of the corpus, where they are written already.
    Tokens(Vec<Arc<[u32]>>),
}

impl Prompt {
    /// The prompt as the service would make it, its passages in their order.
    pub async fn segments(&self, pipeline: &Pipeline) -> Result<Vec<Segment>> {
        segments(pipeline, &self.question, self.passages.clone()).await
    }
}

/// Questions that somebody gave.
pub(super) fn given(asked: &[Asked]) -> Vec<Prompt> {
    let prompt = |asked: &Asked| Prompt {
        question: asked.question.clone(),
        passages: Passages::Documents(asked.passages.clone()),
    };
    asked.iter().map(prompt).collect()
}

/// The questions that come with ragstone.
pub(super) fn bundled() -> Result<Vec<Asked>> {
    #[derive(Deserialize)]
    struct Bundled {
        passages: Vec<InlineDocument>,
        questions: Vec<Over>,
    }
    #[derive(Deserialize)]
    struct Over {
        question: String,
        passages: Vec<usize>,
    }
    let unreadable =
        |error: String| Error::new(ErrorKind::Internal, format!("the bundled questions cannot be read: {error}"));
    let Bundled { passages, questions } =
        serde_json::from_str(BUNDLED).map_err(|error| unreadable(error.to_string()))?;
    let asked = |Over { question, passages: chosen }| {
        let passage =
            |index: usize| passages.get(index).cloned().ok_or_else(|| unreadable(format!("no passage {index}")));
        Ok(Asked { question, passages: chosen.into_iter().map(passage).collect::<Result<_>>()? })
    };
    questions.into_iter().map(asked).collect()
}

/// `count` prompts of `asked`, each with at most `most` of its passages, in another order; fewer where some do not fit into `context` tokens, or have nothing
/// to blend.
pub(super) async fn prompts(
    pipeline: &Pipeline,
    asked: &[Prompt],
    (count, most): (usize, usize),
    context: usize,
) -> Result<Vec<Vec<Segment>>> {
    let mut prompts = Vec::with_capacity(count);
    for index in 0..count {
        let Prompt { question, passages } = &asked[index % asked.len()];
        let passages = match passages {
            Passages::Documents(documents) => Passages::Documents(drawn(documents, index as u64, most)),
            Passages::Tokens(tokens) => Passages::Tokens(drawn(tokens, index as u64, most)),
        };
        match segments(pipeline, question, passages).await {
            Ok(prompt) => {
                let tokens: usize = prompt.iter().map(|segment| segment.tokens.len()).sum();
                prompts.extend(Some(prompt).filter(|prompt| tokens <= context && blends(prompt)));
            }
            Err(error) if error.kind() == ErrorKind::ContextLength => {}
            Err(error) => return Err(error),
        }
    }
    Ok(prompts)
}

/// The prompt as the service would make it.
async fn segments(pipeline: &Pipeline, question: &str, passages: Passages) -> Result<Vec<Segment>> {
    let (documents, tokens) = match passages {
        Passages::Documents(documents) => (documents, None),
        Passages::Tokens(tokens) => (Vec::new(), Some(tokens)),
    };
    let context = Some(Context { documents, ..Context::default() });
    let input =
        Input::Chat { messages: vec![ChatMessage::new("user", question)], tools: Vec::new(), thinks: None, context };
    let question = Arc::new(Question {
        input,
        sampling: SamplingParams::default(),
        answers: 1,
        reuse: Reuse::Off,
        ends_at_repeat: false,
        cites: false,
        drafts: None,
        selection: None,
        explain: false,
        root: RootCut::Whole,
        said: None,
        tenant: String::new(),
        caller: Caller::default(),
        deadline: DEADLINE,
    });
    let deadline = deadline_after(DEADLINE);
    let tokens = match tokens {
        Some(tokens) => tokens,
        None => pipeline.assembler.passages(&question, deadline).await?,
    };
    pipeline.assembler.assemble((&question, Task::Answer), tokens, pipeline.today(), deadline).await
}

/// Questions about a collection's passages, given with their text: what each of a few says, and what they have in common. Labels are
/// not wanted: what is compared is the model with itself.
pub(super) fn about(passages: &[(Arc<[u32]>, String)], count: usize) -> Vec<Prompt> {
    let places: Vec<usize> = (0..passages.len()).collect();
    let each = |index: usize| {
        let chosen: Vec<&(Arc<[u32]>, String)> =
            shuffled(&places, index as u64).into_iter().take(PASSAGES).map(|place| &passages[place]).collect();
        // From within: a passage begins with what is written before each.
        let words: Vec<&str> = chosen[index % chosen.len()].1.split_whitespace().collect();
        let quoted: Vec<&str> = words.iter().skip(words.len() / 3).take(QUOTED_WORDS).copied().collect();
        let question = match index % 3 {
            0 => format!("What is said about \"{}\"?", quoted.join(" ")),
            1 => "What do these passages have in common?".to_owned(),
            _ => format!("How does \"{}\" go on?", quoted.join(" ")),
        };
        Prompt { question, passages: Passages::Tokens(chosen.into_iter().map(|(tokens, _)| tokens.clone()).collect()) }
    };
    (0..count).map(each).collect()
}

/// At most so many of them, and their order, drawn from the seed.
fn drawn<T: Clone>(items: &[T], seed: u64, most: usize) -> Vec<T> {
    shuffled(items, seed).into_iter().take(most).collect()
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
        assert!(asked.len() >= 150);
        assert!(asked.iter().all(|it| it.passages.len() == 5 && !it.question.is_empty()));
    }

    #[test]
    fn questions_are_made_of_any_passages() {
        let text = |number: u32| format!("Passage: {number} has a few words of its own that a question quotes");
        let passages: Vec<(Arc<[u32]>, String)> = (0..20).map(|number| (Arc::from([number]), text(number))).collect();
        let of = |prompt: &Prompt| match &prompt.passages {
            Passages::Tokens(tokens) => tokens.clone(),
            Passages::Documents(_) => panic!("they are written already"),
        };
        let asked = about(&passages, 9);
        assert!(asked.iter().all(|it| of(it).len() == PASSAGES) && asked.len() == 9);
        assert_ne!(of(&asked[0]), of(&asked[1]));
        let question = &asked[0].question;
        assert!(question.contains("words of its own") && !question.contains("Passage:"), "{question}");
        assert_eq!(of(&about(&passages[..2], 2)[1]).len(), 2);
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
