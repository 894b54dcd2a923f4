//! What ends an answer before its tokens do (docs/decisions/0099).

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Asking, Pipeline};
use crate::admission::turns::Place;
use crate::answer::stream::{AnswerStream, Coming, Opened};
use crate::question::{Input, Question};
use crate::report::ReuseReport;
use crate::report::nothing_found::{self, Answered, NothingFound};

impl Pipeline {
    /// What ends an answer. A small model without a chat template writes the next question behind its line.
    pub(super) fn stop_texts(&self, question: &Question) -> Vec<String> {
        let mut stop = question.sampling.stop.clone();
        if self.ends_at_repeat(question) && self.assembler.chat_template().is_none() {
            stop.push("\n".to_owned());
        }
        stop
    }

    /// The answers to a question about which nothing was found, where that is the answer.
    pub(super) fn say_nothing_found(
        &self,
        asking: &Asking,
        report: &ReuseReport,
        admission: &Arc<Place>,
    ) -> Vec<AnswerStream> {
        metrics::histogram!("ragstone_ttft_seconds").record(report.ttft.total_ms / 1e3);
        let text = nothing_found::refusal(asked(&asking.question));
        let said = |_| {
            // Nobody decodes.
            let (_, tokens) = mpsc::channel(1);
            let opened = asking.opened(Coming::Here(tokens), report.clone(), admission);
            AnswerStream::said(opened, text.to_owned(), self.assembler.tokenizer().clone())
        };
        (0..asking.question.answers).map(said).collect()
    }

    /// What has a form of its own may repeat itself.
    pub(super) fn ends_at_repeat(&self, question: &Question) -> bool {
        question.ends_at_repeat && self.manner.circles && question.sampling.grammar.is_none()
    }
}

impl Asking {
    /// An answer whose text is all that comes: nothing is cited, cut off or wanted back.
    pub(super) fn opened(&self, coming: Coming, report: ReuseReport, admission: &Arc<Place>) -> Opened {
        Opened {
            coming,
            report,
            deadline: self.deadline,
            admission: admission.clone(),
            meter: self.meter.clone(),
            citations: Vec::new(),
            prompt_tokens: 0,
            drafts: Arc::default(),
            prompt: None,
            note: None,
            stop: Vec::new(),
            ends_at_repeat: false,
            cites: false,
            show_control: false,
        }
    }
}

/// Whether sentences of its answer end with the numbers of their passages.
pub(super) fn cites(question: &Question) -> bool {
    question.cites && is_text_alone(question)
}

/// Whether an answer is text and nothing else: none of a form, none that may be a call, none whose tokens are told one by one.
fn is_text_alone(question: &Question) -> bool {
    let may_call = matches!(&question.input, Input::Chat { tools, .. } if !tools.is_empty());
    !may_call && question.sampling.grammar.is_none() && question.sampling.logprobs.is_none()
}

/// What stands before an answer of the model's own, where nothing was found. What has a form, or may be a call, has no room for it: of that the
/// report tells.
pub(super) fn note(question: &Question, nothing: Option<NothingFound>) -> Option<String> {
    let has_room = matches!(question.input, Input::Chat { .. }) && is_text_alone(question);
    let is_own = nothing.is_some_and(|nothing| nothing.answered == Answered::WithoutPassages);
    (is_own && has_room).then(|| format!("{}\n\n", nothing_found::note(asked(question))))
}

/// What the user said last.
fn asked(question: &Question) -> &str {
    let Input::Chat { messages, .. } = &question.input else { return "" };
    messages.iter().rev().find(|message| message.role == "user").map_or("", |message| message.content.as_str())
}
