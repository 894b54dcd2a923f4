//! How the model reads texts and conversations.

use std::time::Duration;

use super::Ragstone;
use crate::admission::caller::Caller;
use crate::admission::deadline::deadline_after;
use crate::error::Result;
use crate::question::Input;

impl Ragstone {
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
