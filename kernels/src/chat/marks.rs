//! Marks of turns that a model's tokenizer does not call special, though its chat template writes turns by them: `<|im_start|>` of a model whose
//! makers added it as an ordinary token (axolotl's `tokens`, or `add_tokens` of transformers).
//!
//! A text from elsewhere must not hold them, and is to keep everything else that it says. So a token counts as a mark if it was added to the
//! vocabulary, stands in brackets, and either is written by the template around the turns of a plain conversation, or is spelled `<|…|>`, as no
//! text is by chance, and occurs in the template's source (roles that a plain conversation has not). Added words, runs of white space, HTML tags,
//! marks of code (`<|fim_prefix|>`), `<tool_call>` and `<think>` are none.

use super::thoughts::MARKS_OF_THOUGHTS;
use super::{ChatMessage, ChatTemplate, Date};

/// `<|im_start|>`, and DeepSeek's with other bars.
fn is_barred(text: &str) -> bool {
    ["<|", "<\u{ff5c}"].iter().any(|open| text.starts_with(*open))
        && ["|>", "\u{ff5c}>"].iter().any(|close| text.ends_with(*close))
}

impl ChatTemplate {
    /// Those of a vocabulary's added tokens in brackets that are marks of this template.
    pub(crate) fn marks(&self, bracketed: Vec<String>) -> Vec<String> {
        let source = self.sources();
        // Without the beginning of an answer, which may open thoughts. A template may refuse a system prompt.
        let conversations: [&[&str]; 2] = [&["system", "user", "assistant", "user"], &["user", "assistant", "user"]];
        let rendered = conversations.map(|roles| {
            let messages: Vec<ChatMessage> = roles.iter().map(|role| ChatMessage::new(*role, "Hello")).collect();
            self.render(&messages, false, Date::from_unix_ms(0)).unwrap_or_default()
        });
        let is_mark = |text: &String| {
            let is_written = rendered.iter().any(|prompt| prompt.contains(text.as_str()));
            let is_known = is_barred(text) && source.contains(text.as_str());
            (is_written || is_known) && !MARKS_OF_THOUGHTS.contains(&text.as_str())
        };
        bracketed.into_iter().filter(is_mark).collect()
    }
}
