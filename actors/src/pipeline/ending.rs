//! What ends an answer before its tokens do (docs/decisions/0099).

use super::Pipeline;
use crate::question::Question;

impl Pipeline {
    /// What ends an answer. A small model without a chat template writes the next question behind its line.
    pub(super) fn stop_texts(&self, question: &Question) -> Vec<String> {
        let mut stop = question.sampling.stop.clone();
        if self.ends_at_repeat(question) && self.assembler.chat_template().is_none() {
            stop.push("\n".to_owned());
        }
        stop
    }

    /// What has a form of its own may repeat itself.
    pub(super) fn ends_at_repeat(&self, question: &Question) -> bool {
        question.ends_at_repeat && self.manner.circles && question.sampling.grammar.is_none()
    }
}
