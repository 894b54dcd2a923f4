//! What is told of a prompt with the answers to it.

use ragstone_actors::ReadPrompt;
use serde_json::Value;

use super::logprobs::{self, Lists};
use crate::error::Result;

/// What a request wants to be told of its prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// The text, in front of each answer's.
    pub echo: bool,
    /// With it, the log-probabilities of its tokens, with so many alternatives beside each.
    pub lists: Option<u8>,
    /// vLLM's `prompt_logprobs`, so many.
    pub prompt_logprobs: Option<u8>,
}

/// What is told of one prompt.
#[derive(Debug, Default)]
pub struct Told {
    /// Its text, which stands in front of each answer's.
    pub echo: Option<String>,
    /// The characters of that.
    pub characters: usize,
    /// The log-probabilities of its tokens, which stand in front of each answer's.
    pub lists: Option<Lists>,
    /// vLLM's `prompt_logprobs`.
    pub prompt_logprobs: Option<Value>,
}

impl Wish {
    /// Whether nothing is to be told.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Alternatives that the model is asked for; `None`: it is not asked.
    pub fn alternatives(&self) -> Option<u8> {
        self.lists.max(self.prompt_logprobs)
    }
}

impl Told {
    /// What is wanted of a prompt, whose text is `sent` where it was sent as one.
    ///
    /// # Errors
    /// Where the tokenizer fails.
    pub fn of(wish: Wish, prompt: Option<&ReadPrompt>, sent: Option<String>) -> Result<Self> {
        let lists = match (wish.lists, prompt) {
            (Some(count), Some(prompt)) => Some(Lists::of_prompt(prompt, count, sent.as_deref())?),
            _ => None,
        };
        let prompt_logprobs = match (wish.prompt_logprobs, prompt) {
            (Some(count), Some(prompt)) => Some(logprobs::of_prompt(prompt, count)?),
            _ => None,
        };
        let echo = match (wish.echo, sent, prompt) {
            (false, ..) => None,
            (true, Some(sent), _) => Some(sent),
            (true, None, prompt) => Some(prompt.map_or(Ok(String::new()), ReadPrompt::text)?),
        };
        let characters = echo.as_deref().map_or(0, |text| text.chars().count());
        Ok(Self { echo, characters, lists, prompt_logprobs })
    }
}
