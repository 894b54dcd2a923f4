//! What a caller asks: the input of the pipeline.

pub(crate) mod budget;
pub(crate) mod follow_up;
pub(crate) mod grammars;
pub(crate) mod manner;
pub(crate) mod primer;
pub mod prompt;

use std::sync::Arc;
use std::time::Duration;

use ragstone_corpus::Filter;
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admission::caller::Caller;
use crate::error::{Error, ErrorKind, Result};
use crate::prefill::Selection;
use crate::report::nothing_found::{MinSimilarity, OnNothingFound};
use ragstone_pml::{Layout, Prompt, Schema};

/// Answers to one request.
pub const MAX_ANSWERS: usize = 16;
/// Candidates of one question, beyond which a search is better made sharper.
pub const MAX_CANDIDATES: usize = 200;
/// Searches of one question.
pub const MAX_ROUNDS: usize = 8;
/// Tokens between two of them.
pub const MAX_ROUND_TOKENS: usize = 256;
/// Log-probabilities of a prompt that one question may ask for, its tokens' own and their alternatives': what is told of each takes some
/// hundred bytes.
pub const MAX_PROMPT_LOGPROBS: usize = 1 << 18;
/// One request for generated text.
#[derive(Debug, Clone)]
pub struct Question {
    /// What the model is to continue.
    pub input: Input,
    /// Temperature, top-p, stop strings, token limit.
    pub sampling: SamplingParams,
    /// How many answers, at most [`MAX_ANSWERS`]: their prompt is computed once, and its blocks are shared.
    pub answers: usize,
    /// Which stored KV may serve this request.
    pub reuse: Reuse,
    /// Whether the answer of a model that goes round in circles ends where it does, and that of one without a chat template at the end of
    /// its line (docs/decisions/0099).
    pub ends_at_repeat: bool,
    /// Most tokens of a draft, at most as many as the settings have; 0: none, `None`: as the settings have it. What the answers are does not
    /// depend on it.
    pub drafts: Option<usize>,
    /// Which tokens of blended passages are recomputed; `None`, as the settings have it, but where the choice is measured.
    pub selection: Option<Selection>,
    /// Whether sentences of the answer end with the numbers of the passages that they stand on; where nothing else is told of the text: no form,
    /// calls or log-probabilities.
    pub cites: bool,
    /// Whether the report says what would have happened without each tier.
    pub explain: bool,
    /// What counts as the root; `Whole` but where that is measured.
    pub root: RootCut,
    /// What a request says of sampling, forms and calls, as it is written there: for an engine elsewhere, which has its own defaults. `None`
    /// where this process answers, or no request asked.
    pub said: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// Separates tenants: it is part of every KV key, so one tenant's entries never serve another. See [`check_tenant`].
    pub tenant: String,
    /// Who asks: callers have equal shares, tenants of one caller have, too.
    pub caller: Caller,
    /// How long the whole request may take.
    pub deadline: Duration,
}

/// What of a prompt over passages counts as its root, which passages' entries for blending stand behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RootCut {
    /// Everything before the passages: the system prompt.
    #[default]
    Whole,
    /// Its first token alone; the rest of the system prompt is taken for a passage. The prompt's tokens are the same.
    FirstToken,
}

/// The text to continue.
#[derive(Debug, Clone)]
pub enum Input {
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
    /// Plain text, tokenized with the model's special tokens.
    Text(String),
    /// A conversation; with a [`Context`], the last user message is answered from passages.
    Chat {
        /// Oldest first; the last one is the user's, or a tool's.
        messages: Vec<ChatMessage>,
        /// Tools that the model may call, as its chat template takes them; mostly none.
        tools: Vec<serde_json::Value>,
        /// Whether the model is to think before it answers, where its chat template lets that be said; `None`: as the template has it.
        thinks: Option<bool>,
        /// Where passages come from; `None` for plain chat.
        context: Option<Context>,
    },
    /// A prompt of a schema's modules.
    Pml {
        /// The schema.
        schema: Arc<Schema>,
        /// Where everything of it stands, if that is known.
        layout: Option<Arc<Layout>>,
        /// Of one that is kept: the store's epoch before it was found. What is withdrawn after that is not filed.
        found_in: Option<u64>,
        /// What it takes of it, and adds.
        prompt: Arc<Prompt>,
    },
}

/// Characters of what was asked that are shown.
const MOST_SHOWN: usize = 200;

impl Input {
    /// The start of what was asked, on one line: of a conversation what the user said last. `None` of tokens and of modules.
    pub fn start(&self) -> Option<String> {
        let text = match self {
            Self::Text(text) => text.as_str(),
            Self::Chat { messages, .. } => {
                messages.iter().rfind(|message| message.role == "user").map(|message| message.content.as_str())?
            }
            Self::Tokens(_) | Self::Pml { .. } => return None,
        };
        // No more is looked at than may be shown: a prompt has megabytes.
        let words: String = text.trim_start().chars().take(4 * MOST_SHOWN).collect();
        let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(MOST_SHOWN) {
            Some((end, _)) => Some(format!("{}…", line[..end].trim_end())),
            None => Some(line),
        }
    }
}

/// Where the passages of an answer come from. Inline documents come first, in their order, then what was retrieved.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Context {
    /// Search this collection with the last user message.
    pub collection: Option<String>,
    /// How many passages to retrieve; `None` takes the configured number.
    pub top_k: Option<usize>,
    /// Which documents of the collection may be found, by their metadata; `None`: all.
    pub filter: Option<Filter>,
    /// How similar a passage must be to the question; `None`, as the settings have it.
    pub min_similarity: Option<MinSimilarity>,
    /// What is done where nothing is; `None`, as the settings have it.
    pub on_nothing_found: Option<OnNothingFound>,
    /// Searches at the most, 1 to [`MAX_ROUNDS`]: behind each but the last the model begins to answer, and what it says is searched for
    /// next. `None`: one.
    pub rounds: Option<usize>,
    /// Tokens that it says at the most, 1 to [`MAX_ROUND_TOKENS`]; a sentence ends it. `None`: 32.
    pub round_tokens: Option<usize>,
    /// How many passages the search is to find that a reranker then puts in order, at most [`MAX_CANDIDATES`]; the best `top_k` of them
    /// are taken. 0: none, the search's own order counts; `None`, as the settings have it.
    pub rerank: Option<usize>,
    /// Whether the prefill may begin before the search has ended; `None`, as the settings have it.
    pub speculate: Option<bool>,
    /// Whether passages may stand in the order in which more of them is stored: true, all of them; `None`, those that were found, as the
    /// settings have it.
    pub arrange: Option<bool>,
    /// Documents given in the request; each is one passage.
    pub documents: Vec<InlineDocument>,
}

impl Context {
    /// Checks its numbers.
    ///
    /// # Errors
    /// `InvalidInput`; the message names the field.
    pub fn check(&self) -> Result<()> {
        let bad = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        if let Some(top_k) = self.top_k.filter(|top_k| *top_k > 1000) {
            return bad(format!("top_k {top_k} must be at most 1000"));
        }
        let rounds = self.rounds.unwrap_or(1);
        if !(1..=MAX_ROUNDS).contains(&rounds) {
            return bad(format!("`rounds` is {rounds}; use 1 to {MAX_ROUNDS}"));
        }
        let candidates = self.rerank.unwrap_or(0);
        if candidates > MAX_CANDIDATES {
            return bad(format!("`rerank` is {candidates}; use at most {MAX_CANDIDATES}"));
        }
        if let Some(top_k) = self.top_k.filter(|top_k| candidates > 0 && *top_k > MAX_CANDIDATES) {
            return bad(format!(
                "`top_k` is {top_k}, and at most {MAX_CANDIDATES} passages are put in order by `rerank`; lower it, or leave `rerank` out"
            ));
        }
        if candidates > 0 && self.collection.is_none() {
            return bad("`rerank` orders what a search finds; name a collection".to_owned());
        }
        if self.filter.is_some() && self.collection.is_none() {
            return bad("`filter` chooses among what a search finds; name a collection".to_owned());
        }
        if (self.min_similarity.is_some() || self.on_nothing_found.is_some()) && self.collection.is_none() {
            return bad(
                "`min_similarity` and `on_nothing_found` are about what a search finds; name a collection".to_owned()
            );
        }
        if rounds > 1 && self.collection.is_none() {
            return bad("`rounds` searches a collection again; name one".to_owned());
        }
        match self.round_tokens {
            Some(tokens) if !(1..=MAX_ROUND_TOKENS).contains(&tokens) => {
                bad(format!("`round_tokens` is {tokens}; use 1 to {MAX_ROUND_TOKENS}"))
            }
            _ => Ok(()),
        }
    }
}

/// A document given in the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InlineDocument {
    /// Shown in citations.
    pub title: String,
    /// The passage.
    pub text: String,
}

/// Which stored KV may serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// Exact entries first; passages elsewhere are blended at the configured ratio.
    #[default]
    Auto,
    /// Exact entries only: the answer equals that of a full prefill.
    Exact,
    /// No stored KV at all; nothing is kept either.
    Off,
    /// As `Auto`; a schema's modules, which that takes as they are, are blended as the model was calibrated, too. On a model that is not
    /// blended they are computed with the prompt.
    Calibrated,
    /// As `Auto`, at this recompute ratio in `0.0..=1.0`.
    Ratio(f32),
}

#[cfg(test)]
impl Question {
    /// A conversation of roles and texts, over no passages.
    pub(crate) fn chat_for_tests(messages: &[(&str, &str)]) -> Self {
        let message = |(role, content): &(&str, &str)| ChatMessage::new(*role, *content);
        Self {
            input: Input::Chat {
                messages: messages.iter().map(message).collect(),
                tools: Vec::new(),
                thinks: None,
                context: None,
            },
            sampling: SamplingParams::default(),
            answers: 1,
            reuse: Reuse::Auto,
            ends_at_repeat: false,
            cites: false,
            drafts: None,
            selection: None,
            explain: false,
            root: RootCut::Whole,
            said: None,
            tenant: String::new(),
            caller: Caller::default(),
            deadline: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_passages_are_put_in_order_than_a_search_may_find_for_it() {
        let context = |rerank, top_k| Context {
            collection: Some("c".into()),
            rerank: Some(rerank),
            top_k: Some(top_k),
            ..Context::default()
        };
        for (rerank, top_k) in [(0, 1000), (1, MAX_CANDIDATES), (MAX_CANDIDATES, 5)] {
            context(rerank, top_k).check().unwrap();
        }
        for (rerank, top_k, named) in [(1, MAX_CANDIDATES + 1, "top_k"), (MAX_CANDIDATES + 1, 5, "rerank")] {
            let error = context(rerank, top_k).check().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
