//! Answering passage by passage, as LangChain's chains do and the CacheBlend paper compares with (section 7.1): MapReduce asks something
//! of each passage and the question over what was said; MapRerank asks each passage the question, and takes the answer with
//! the highest score.
//!
//! LangChain has the model write its score behind its answer, 0 to 100. A small model cannot, so the score here is the mean natural
//! logarithm of the probabilities of the answer's tokens.

use ragstone_actors::{Answer, InlineDocument};

/// Where `--map-prompt` has the question.
const QUESTION: &str = "{question}";

/// What is asked of each passage before the answers are reduced.
pub fn map_question(prompt: &str, question: &str) -> String {
    prompt.replace(QUESTION, question)
}

/// What was said of each passage, as the passages that the question is asked over; passages of which nothing was said are left out.
pub fn reduced(documents: &[InlineDocument], said: &[Answer]) -> Vec<InlineDocument> {
    let of = |(document, said): (&InlineDocument, &Answer)| {
        let text = said.text.trim();
        (!text.is_empty()).then(|| InlineDocument { title: document.title.clone(), text: text.to_owned() })
    };
    documents.iter().zip(said).filter_map(of).collect()
}

/// The place of the answer with the highest score, of equals the first; `None` where there is none.
pub fn surest(answers: &[Answer]) -> Option<usize> {
    let scores = answers.iter().map(|answer| score(answer.tokens.iter().map(|token| token.logprob)));
    // Of equals `max_by` has the last.
    scores.enumerate().collect::<Vec<_>>().into_iter().rev().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}

/// The mean; minus infinity for an answer without tokens, and for one whose probabilities are no numbers.
fn score(logprobs: impl Iterator<Item = f32>) -> f64 {
    let (sum, count) = logprobs.fold((0.0, 0_u32), |(sum, count), logprob| (sum + f64::from(logprob), count + 1));
    let mean = sum / f64::from(count);
    if mean.is_nan() { f64::NEG_INFINITY } else { mean }
}

#[cfg(test)]
mod tests {
    use ragstone_actors::{Finish, FinishReason, ReuseReport, TokenEvent, Usage};

    use super::*;

    fn answer(text: &str, logprobs: &[f32]) -> Answer {
        let token = |logprob: &f32| TokenEvent { id: 0, text: String::new(), logprob: *logprob, top: Vec::new() };
        Answer {
            text: text.into(),
            citations: Vec::new(),
            tokens: logprobs.iter().map(token).collect(),
            finish: Finish {
                reason: FinishReason::Stop,
                usage: Usage::default(),
                report: ReuseReport::default(),
                stop: None,
                grounding: None,
                end_token: None,
            },
        }
    }

    #[test]
    fn the_surest_answer_is_that_with_the_best_mean() {
        let of = |answers: &[&[f32]]| surest(&answers.iter().map(|it| answer("a", it)).collect::<Vec<_>>());
        assert_eq!(of(&[&[-1.0, -1.0], &[-0.1, -1.2], &[-0.9]]), Some(1), "the mean, not the sum or the first");
        assert_eq!(of(&[&[-0.5], &[-0.25, -0.75]]), Some(0), "of equals the first");
        assert_eq!(of(&[&[], &[f32::NAN], &[-9.0]]), Some(2));
        assert_eq!((of(&[&[]]), of(&[])), (Some(0), None));
    }

    #[test]
    fn what_was_said_of_each_passage_keeps_its_title() {
        let document = |title: &str| InlineDocument { title: title.into(), text: "long".into() };
        let said = [answer(" 24 ", &[]), answer(" ", &[]), answer("x", &[])];
        let reduced = reduced(&[document("A"), document("B"), document("C")], &said);
        let pairs: Vec<(&str, &str)> = reduced.iter().map(|it| (it.title.as_str(), it.text.as_str())).collect();
        assert_eq!(pairs, [("A", "24"), ("C", "x")]);
        assert_eq!(map_question("What helps with: {question}", "Who?"), "What helps with: Who?");
    }
}
