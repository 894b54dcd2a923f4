//! Which questions are let in.

use super::Pipeline;
use crate::admission::caller::Caller;
use crate::admission::tenant::check_tenant;
use crate::admission::turns::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::question::{Input, MAX_ANSWERS, Question, Reuse};

impl Pipeline {
    /// Checks a question and takes places for its answers.
    pub(super) fn admit(&self, question: &Question) -> Result<Place> {
        question.sampling.validate()?;
        check_tenant(&question.tenant)?;
        if !(1..=MAX_ANSWERS).contains(&question.answers) {
            let message = format!("{} answers; ask for 1 to {MAX_ANSWERS}", question.answers);
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let vocabulary = self.engine.vocabulary();
        if let Some((id, _)) = question.sampling.logit_bias.iter().find(|(id, _)| *id as usize >= vocabulary) {
            let message = format!("logit_bias names token {id}; the model's vocabulary has {vocabulary}");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        if let Reuse::Ratio(ratio) = question.reuse
            && !(0.0..=1.0).contains(&ratio)
        {
            return Err(Error::new(ErrorKind::InvalidInput, format!("ratio {ratio} must lie between 0.0 and 1.0")));
        }
        if let Input::Chat { messages, context: Some(_), .. } = &question.input
            && messages.last().is_some_and(|message| message.role == "user" && message.content.trim().is_empty())
        {
            return Err(Error::new(ErrorKind::InvalidInput, "the question is empty; ask something"));
        }
        if let Input::Chat { context: Some(context), .. } = &question.input {
            context.check()?;
        }
        self.assembler.check_size(&question.input)?;
        self.admission.take_many(question.caller, question.answers)
    }

    /// Whether a question of `caller` would be admitted now.
    pub(crate) fn check_room(&self, caller: Caller) -> Result<()> {
        self.admission.check_room(caller)
    }
}
