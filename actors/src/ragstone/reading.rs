//! How the model reads texts and conversations.

use std::sync::Arc;
use std::time::Duration;

use ragstone_kernels::chat::Date;
use ragstone_kernels::chat::calls::CallForm;
use ragstone_kernels::chat::thoughts::Thinking;
use ragstone_kernels::grammar::GrammarSpec;

use super::Ragstone;
use crate::admission::caller::Caller;
use crate::admission::deadline::deadline_after;
use crate::error::Result;
use crate::question::Input;

impl Ragstone {
    /// Whether an engine elsewhere answers.
    pub fn has_upstream(&self) -> bool {
        self.inner.pipeline.upstream.is_some()
    }

    /// Refuses what the model in this process would have to do, where an engine elsewhere answers.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub fn check_own_model(&self) -> Result<()> {
        self.inner.pipeline.check_own_model()
    }

    /// Compiles a grammar, so that one that is wrong is refused before anything is asked; the question then finds it compiled.
    ///
    /// # Errors
    /// `InvalidInput` for one that is wrong or too large.
    pub async fn check_grammar(&self, spec: &Arc<GrammarSpec>, caller: Caller, deadline: Duration) -> Result<()> {
        self.inner.pipeline.assembler.constraint(spec, caller, deadline_after(deadline)).await.map(drop)
    }

    /// How the model writes calls of tools; `None` where its chat template knows none.
    pub fn call_form(&self) -> Option<CallForm> {
        if self.has_upstream() {
            return Some(CallForm::Hermes);
        }
        self.inner.pipeline.assembler.call_form()
    }

    /// How the model thinks before it answers, told to or not to ([`Input::Chat::thinks`](crate::Input)); `None` where its chat template knows
    /// no thoughts.
    pub fn thinking(&self, thinks: Option<bool>) -> Option<Thinking> {
        if self.has_upstream() {
            return Some(Thinking::Maybe);
        }
        self.inner.pipeline.assembler.thinking(thinks)
    }

    /// What tells one chat template from others; `None`: the model has none.
    pub fn chat_template(&self) -> Option<String> {
        self.inner.pipeline.assembler.chat_template().map(|(identity, _)| identity)
    }

    /// The date, where the chat template may write it into prompts.
    pub fn date_in_prompts(&self) -> Option<Date> {
        let (_, may_tell_date) = self.inner.pipeline.assembler.chat_template()?;
        may_tell_date.then(|| self.inner.pipeline.today())
    }

    /// The chat template's text; `None`: the model has none.
    pub fn chat_template_source(&self) -> Option<String> {
        self.inner.pipeline.assembler.chat_template_source()
    }

    /// The token ids of what a question would have for its prompt, passages apart.
    ///
    /// # Errors
    /// As a question's.
    pub async fn prompt_tokens(&self, input: Input, caller: Caller, deadline: Duration) -> Result<Vec<u32>> {
        let pipeline = &self.inner.pipeline;
        pipeline.assembler.tokens(input, pipeline.today(), caller, deadline_after(deadline)).await
    }
}
