//! Whether a search found nothing, and what is done then.

use crate::question::{Context, Input, Question};
use crate::report::nothing_found::{Answered, MinSimilarity, NothingFound, OnNothingFound};
use crate::retrieval::Retrieved;

/// Of what a search found; `None` where something was. `given` passages came with the question: those are there, whatever is found.
pub(super) fn judge(
    (question, context): (&Question, &Context),
    found: &Retrieved,
    (min_similarity, on_nothing_found): (MinSimilarity, OnNothingFound),
    given: usize,
) -> Option<NothingFound> {
    let is_nothing = match min_similarity {
        MinSimilarity::Off => false,
        MinSimilarity::Auto => found.is_relevant == Some(false),
        MinSimilarity::Least(_) => found.hits.is_empty(),
    };
    if given > 0 || !is_nothing {
        return None;
    }
    let answered = match context.on_nothing_found.unwrap_or(on_nothing_found) {
        OnNothingFound::Say if may_be_said(question) => Answered::Said,
        OnNothingFound::Answer => Answered::WithoutPassages,
        OnNothingFound::Say | OnNothingFound::AsUsual => Answered::AsUsual,
    };
    Some(NothingFound { answered, best_similarity: found.best_similarity })
}

/// Whether a sentence is an answer to a question: not where it must have a form, or may be a call; nor in a conversation, which may have the
/// answer itself.
fn may_be_said(question: &Question) -> bool {
    let Input::Chat { messages, tools, .. } = &question.input else { return false };
    let asked =
        messages.iter().filter(|message| matches!(message.role.as_str(), "user" | "assistant" | "tool")).count();
    let sampling = &question.sampling;
    asked == 1 && tools.is_empty() && sampling.grammar.is_none() && sampling.prompt_logprobs.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(is_relevant: Option<bool>, hits: usize) -> Retrieved {
        let hit = ragstone_corpus::Hit {
            passage: ragstone_corpus::Passage::default(),
            score: 1.0,
            similarity: None,
            also_in: Vec::new(),
        };
        Retrieved { hits: vec![hit; hits], search_ms: 0.0, words_only: false, is_relevant, best_similarity: Some(0.1) }
    }

    #[test]
    fn nothing_is_what_the_bound_says() {
        let question = Question::chat_for_tests(&[("user", "How far is the moon?")]);
        let context = Context::default();
        let of = |min, found: &Retrieved, given| {
            judge((&question, &context), found, (min, OnNothingFound::Say), given).map(|nothing| nothing.answered)
        };
        let (auto, off, least) = (MinSimilarity::Auto, MinSimilarity::Off, MinSimilarity::Least(0.5));
        assert_eq!(of(auto, &found(Some(false), 2), 0), Some(Answered::Said));
        assert_eq!(of(auto, &found(Some(false), 2), 1), None, "a document came with the question");
        assert_eq!(of(auto, &found(None, 2), 0), None, "nothing is known");
        assert_eq!(of(auto, &found(Some(true), 2), 0), None);
        assert_eq!(of(off, &found(Some(false), 0), 0), None);
        assert_eq!(of(least, &found(Some(true), 0), 0), Some(Answered::Said));
        assert_eq!(of(least, &found(Some(false), 1), 0), None, "the number judges");
    }

    #[test]
    fn who_asks_says_what_is_done_and_a_conversation_is_answered() {
        let answered = |messages: &[(&str, &str)], wanted| {
            let question = Question::chat_for_tests(messages);
            let context = Context { on_nothing_found: wanted, ..Context::default() };
            let settings = (MinSimilarity::Auto, OnNothingFound::Say);
            judge((&question, &context), &found(Some(false), 2), settings, 0).unwrap().answered
        };
        let first = [("system", "Be brief."), ("user", "How far is the moon?")];
        assert_eq!(answered(&first, None), Answered::Said);
        assert_eq!(answered(&first, Some(OnNothingFound::Answer)), Answered::WithoutPassages);
        assert_eq!(answered(&first, Some(OnNothingFound::AsUsual)), Answered::AsUsual);
        let later = [("user", "Hello"), ("assistant", "Hello!"), ("user", "Thank you")];
        assert_eq!(answered(&later, None), Answered::AsUsual);
    }
}
