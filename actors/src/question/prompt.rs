//! Assembling a prompt: root, passages, question, joined as token ids. Pure.
//!
//! Every segment is tokenized on its own, and its separators belong to it, so that a passage has the same token ids
//! wherever it stands (the condition for reusing its KV). The root is the system prompt alone: passages stand before the
//! first question of a conversation, all turns behind them, so that a later turn finds the passages' entries, and the turns before it.

mod date;
mod layout;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ragstone_kernels::chat::{ChatMessage, Date};
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::segment::{Segment, SegmentKind};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::question::budget::Budget;
pub use date::PromptDate;
pub(crate) use layout::ChatLayout;

/// How passages and questions are written into a prompt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptFormat {
    /// The system prompt of questions over passages; stands first, so that its KV is the root of every entry.
    pub system: String,
    /// One passage; `{title}` and `{text}` are filled in.
    pub passage: String,
    /// The question; `{question}` is filled in.
    pub question: String,
    /// What the model is asked where it reranks, after one passage; `{question}` is filled in. It answers yes or no.
    pub rerank: String,
    /// The date that a chat template is told when it asks for one; pinned by default, so that no entry is lost at midnight.
    /// Where the template prints another than today's, the question says what day it is.
    pub date: PromptDate,
}

impl Default for PromptFormat {
    fn default() -> Self {
        Self {
            system: "Answer each question from the passages.\n".into(),
            passage: "Passage: {title} | {text}\n".into(),
            question: "Question: {question}\nAnswer:".into(),
            rerank: "Question: {question}\nDoes the passage help to answer it? Say only yes or no.\nAnswer:".into(),
            date: PromptDate::Pinned,
        }
    }
}

impl PromptFormat {
    /// Checks that nothing of a passage or question would be lost.
    pub fn validate(&self) -> Result<()> {
        for (key, text, field) in [
            ("prompt.passage", &self.passage, "{text}"),
            ("prompt.question", &self.question, "{question}"),
            ("prompt.rerank", &self.rerank, "{question}"),
        ] {
            if !text.contains(field) {
                return Err(Error::new(ErrorKind::InvalidInput, format!("setting `{key}` must contain `{field}`")));
            }
        }
        Ok(())
    }

    /// A user's words in the prompt.
    fn render_question(&self, task: Task, question: &str) -> String {
        let form = match task {
            Task::Answer => &self.question,
            Task::Judge => &self.rerank,
        };
        fill(form, &[("{question}", question)])
    }

    /// A user's words in a prompt that asks for an answer.
    pub(crate) fn render_answer(&self, question: &str) -> String {
        self.render_question(Task::Answer, question)
    }

    /// A passage's text in the prompt, separators included.
    pub fn render_passage(&self, title: &str, text: &str) -> String {
        fill(&self.passage, &[("{title}", title), ("{text}", text)])
    }
}

/// What the model is to do at the end of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Task {
    /// Answer the question.
    #[default]
    Answer,
    /// Say whether the passage helps to answer it: yes or no, at once.
    Judge,
}

/// How a conversation is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub format: &'a PromptFormat,
    pub task: Task,
    /// Whether the model is to think first; `None`: as its template has it.
    pub thinks: Option<bool>,
}

impl Asked<'_> {
    /// What a template is told of it. A verdict is the first token.
    fn enable_thinking(self) -> Option<bool> {
        if self.task == Task::Judge { Some(false) } else { self.thinks }
    }
}

/// Fills fields in one pass, so that braces inside a value stay text.
fn fill(template: &str, fields: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len() + fields.iter().map(|(_, value)| value.len()).sum::<usize>());
    let mut rest = template;
    while let Some((at, name, value)) =
        fields.iter().filter_map(|(name, value)| rest.find(name).map(|at| (at, name, value))).min_by_key(|hit| hit.0)
    {
        out.push_str(&rest[..at]);
        out.push_str(value);
        rest = &rest[at + name.len()..];
    }
    out.push_str(rest);
    out
}

/// A conversation's text, cut where its segments begin, in pieces by who wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame {
    /// What stands before the passages; without passages, before the first user message.
    root: Vec<Piece>,
    /// The rest: every turn. That of a longer conversation begins with the same tokens.
    question: Vec<Piece>,
    /// The chat template wrote the beginning-of-sequence token itself.
    has_bos: bool,
}

/// Text and whether control tokens in it count: those of a chat template do, those in a user's words are only text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Trusted(String),
    Words(String),
}

impl Piece {
    fn encode(pieces: &[Self], tokenizer: &Tokenizer, budget: &mut Budget) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        for piece in pieces {
            tokens.extend(match piece {
                Self::Trusted(text) => budget.tokens(text, |text| tokenizer.encode(text, false))?,
                Self::Words(text) => budget.tokens(text, |text| tokenizer.encode_text(text))?,
            });
        }
        Ok(tokens)
    }
}

/// Joins the segments of a conversation: root (the system prompt), passages, question (the rest, earlier turns first).
///
/// `passages` are token ids made at ingest with [`PromptFormat::render_passage`].
pub(crate) fn assemble_chat(
    messages: &[ChatMessage],
    tools: &[serde_json::Value],
    passages: Option<&[Arc<[u32]>]>,
    asked: Asked<'_>,
    layout: Option<(&ChatLayout, Date)>,
    tokenizer: &Tokenizer,
    budget: &mut Budget,
) -> Result<Vec<Segment>> {
    let frame = match layout {
        Some((layout, today)) => layout.frame(messages, tools, passages.is_some(), asked, today, tokenizer)?,
        None if tools.is_empty() => frame_plain(messages, asked.format, asked.task)?,
        None => {
            let message = "the model has no chat template, so it cannot call tools; leave out `tools`";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
    };
    let mut root = Piece::encode(&frame.root, tokenizer, budget)?;
    if !frame.has_bos {
        root.splice(0..0, tokenizer.bos_id());
    }
    let mut segments = Vec::new();
    if !root.is_empty() {
        segments.push(Segment { kind: SegmentKind::SystemPrompt, tokens: root.into(), place: None });
    }
    for tokens in passages.unwrap_or_default() {
        segments.push(Segment { kind: SegmentKind::Passage, tokens: tokens.clone(), place: None });
    }
    segments.extend(Segment::of_text(&Piece::encode(&frame.question, tokenizer, budget)?));
    Ok(segments)
}

/// A model without a chat template: the format's own texts.
fn frame_plain(messages: &[ChatMessage], format: &PromptFormat, task: Task) -> Result<Frame> {
    check_last(messages)?;
    let leading = leading_system(messages);
    let mut root: String = messages[..leading].iter().map(|message| format!("{}\n", message.content)).collect();
    if root.is_empty() {
        root.clone_from(&format.system);
    }
    // Each turn is tokenized on its own: there is no control token that would keep its words apart from the next one's.
    let mut turns = vec![String::new()];
    for (index, message) in messages.iter().enumerate().skip(leading) {
        let text = match message.role.as_str() {
            "user" => format.render_question(task, &message.content),
            // The answer goes on with it.
            "assistant" if index + 1 == messages.len() && message.content.is_empty() => String::new(),
            "assistant" if index + 1 == messages.len() => format!(" {}", message.content),
            "assistant" => format!(" {}\n", message.content),
            "system" => format!("{}\n", message.content),
            _ => continue,
        };
        match turns.last_mut() {
            Some(turn) if message.role != "user" || turn.is_empty() => turn.push_str(&text),
            _ => turns.push(text),
        }
    }
    let question = turns.into_iter().map(Piece::Words).collect();
    Ok(Frame { root: vec![Piece::Words(root)], question, has_bos: false })
}

/// How many messages are the system prompt: those before anybody spoke. One that comes later must not change the root.
fn leading_system(messages: &[ChatMessage]) -> usize {
    messages.iter().take_while(|message| message.role == "system").count()
}

/// Whether the answer goes on with the last message, which is the assistant's own.
fn is_continued(messages: &[ChatMessage]) -> bool {
    messages.last().is_some_and(|message| message.role == "assistant")
}

/// The conversation must end with the user's turn, or with a beginning of the assistant's answer to it.
fn check_last(messages: &[ChatMessage]) -> Result<()> {
    let refused = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
    match messages.last() {
        Some(message) if message.role == "user" => Ok(()),
        Some(message) if message.role == "assistant" && !message.tool_calls.is_empty() => {
            refused("the last message calls tools; send what they answered behind it".to_owned())
        }
        Some(message) if message.role == "assistant" && messages.iter().any(|other| other.role == "user") => Ok(()),
        Some(message) if message.role == "assistant" => {
            refused("the assistant's message is continued, and there is no user's before it; send one".to_owned())
        }
        Some(message) => {
            refused(format!("the last message has role `{}`; it must be the user's or the assistant's", message.role))
        }
        None => Err(Error::new(ErrorKind::InvalidInput, "`messages` is empty; send at least one user message")),
    }
}
