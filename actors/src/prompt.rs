//! Assembling a prompt: root, passages, question, joined as token ids. Pure.
//!
//! Every segment is tokenized on its own, and its separators belong to it, so that a passage has the same token ids
//! wherever it stands (the condition for reusing its KV).

use std::collections::BTreeMap;
use std::sync::Arc;

use ragstone_kernels::chat::{ChatMessage, ChatTemplate, Date};
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::residency::{Segment, SegmentKind};
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};

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
}

impl Default for PromptFormat {
    fn default() -> Self {
        Self {
            system: "Answer each question from the passages.\n".into(),
            passage: "Passage: {title} | {text}\n".into(),
            question: "Question: {question}\nAnswer:".into(),
        }
    }
}

impl PromptFormat {
    /// Checks that nothing of a passage or question would be lost.
    pub fn validate(&self) -> Result<()> {
        for (key, text, field) in
            [("prompt.passage", &self.passage, "{text}"), ("prompt.question", &self.question, "{question}")]
        {
            if !text.contains(field) {
                return Err(Error::new(ErrorKind::InvalidInput, format!("setting `{key}` must contain `{field}`")));
            }
        }
        Ok(())
    }

    /// A passage's text in the prompt, separators included.
    pub fn render_passage(&self, title: &str, text: &str) -> String {
        fill(&self.passage, &[("{title}", title), ("{text}", text)])
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

/// The text before and after the passages, in pieces by who wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame {
    root: Vec<Piece>,
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

/// Joins the segments of a conversation: root (everything before the passages), passages, question (the rest).
///
/// `passages` are token ids made at ingest with [`PromptFormat::render_passage`]. Without passages the conversation
/// before the last user message is the root, so that a longer conversation finds it again.
pub(crate) fn assemble_chat(
    messages: &[ChatMessage],
    passages: Option<&[Arc<[u32]>]>,
    format: &PromptFormat,
    template: Option<(&ChatTemplate, Date)>,
    tokenizer: &Tokenizer,
    budget: &mut Budget,
) -> Result<Vec<Segment>> {
    let frame = match template {
        Some(template) => frame_by_template(messages, passages.is_some(), format, template, tokenizer)?,
        None => frame_plain(messages, format)?,
    };
    let mut root = Piece::encode(&frame.root, tokenizer, budget)?;
    if !frame.has_bos {
        root.splice(0..0, tokenizer.bos_id());
    }
    let mut segments = Vec::with_capacity(2 + passages.map_or(0, <[_]>::len));
    if !root.is_empty() {
        segments.push(Segment { kind: SegmentKind::Root, tokens: root.into() });
    }
    for tokens in passages.unwrap_or_default() {
        segments.push(Segment { kind: SegmentKind::Passage, tokens: tokens.clone() });
    }
    let question = Piece::encode(&frame.question, tokenizer, budget)?;
    segments.push(Segment { kind: SegmentKind::Question, tokens: question.into() });
    Ok(segments)
}

/// The prompt of a plain completion: one question segment.
pub fn assemble_tokens(tokens: Vec<u32>) -> Vec<Segment> {
    vec![Segment { kind: SegmentKind::Question, tokens: tokens.into() }]
}

/// Begins and ends a placeholder. No template and no user writes it on purpose; a message that contains it is refused,
/// because the rendered prompt could not be cut without doubt.
const MARK: char = '\u{2}';

/// Stands where the passages go while the template is rendered.
const PLACE: &str = "\u{2}passages\u{2}";

/// Renders the conversation with placeholders, then cuts it: at the passages' place, and around the words of messages
/// in which control tokens would count. Other words stay joined with what surrounds them, so that their tokens are
/// those of the model's own chat format.
fn frame_by_template(
    messages: &[ChatMessage],
    with_passages: bool,
    format: &PromptFormat,
    (template, today): (&ChatTemplate, Date),
    tokenizer: &Tokenizer,
) -> Result<Frame> {
    let mut messages = messages.to_vec();
    if messages.iter().any(|message| message.content.contains(MARK)) {
        return Err(Error::new(ErrorKind::InvalidInput, "a message contains the control character U+0002; remove it"));
    }
    let last = last_user(&messages)?;
    let mut words = BTreeMap::new();
    for (index, message) in messages.iter_mut().enumerate() {
        if tokenizer.has_control(&message.content) {
            let content = std::mem::replace(&mut message.content, format!("{MARK}{index}{MARK}"));
            words.insert(index, content.trim().to_owned());
        }
    }
    let asked = std::mem::take(&mut messages[last].content);
    let question = if with_passages { fill(&format.question, &[("{question}", &asked)]) } else { asked };
    messages[last].content = format!("{PLACE}{question}");
    if with_passages && messages.iter().all(|message| message.role != "system") {
        messages.insert(0, ChatMessage { role: "system".into(), content: format.system.trim_end().into() });
    }
    let rendered = template.render(&messages, true, today)?;
    let (root, question) = rendered.split_once(PLACE).ok_or_else(|| {
        Error::new(ErrorKind::Incompatible, "the model's chat template drops the last user message; take another model")
    })?;
    Ok(Frame { root: pieces(root, &words), question: pieces(question, &words), has_bos: true })
}

/// Puts `words` back in place of their placeholders, in one pass: what stands between two marks is the number of a message,
/// as no message has the mark and a placeholder is never cut.
fn pieces(rendered: &str, words: &BTreeMap<usize, String>) -> Vec<Piece> {
    let mut out = Vec::new();
    for (place, part) in rendered.split(MARK).enumerate() {
        match part.parse().ok().filter(|_| place % 2 == 1).and_then(|index: usize| words.get(&index)) {
            Some(word) => out.push(Piece::Words(word.clone())),
            None => out.push(Piece::Trusted(part.into())),
        }
    }
    out
}

fn frame_plain(messages: &[ChatMessage], format: &PromptFormat) -> Result<Frame> {
    let last = last_user(messages)?;
    let mut root: String = messages
        .iter()
        .filter(|message| message.role == "system")
        .map(|message| format!("{}\n", message.content))
        .collect();
    if root.is_empty() {
        root.clone_from(&format.system);
    }
    // Earlier turns stand in the question's segment: the root stays the one that the passages' entries are behind.
    let mut question = String::new();
    for message in &messages[..last] {
        match message.role.as_str() {
            "user" => question.push_str(&fill(&format.question, &[("{question}", &message.content)])),
            "assistant" => question.push_str(&format!(" {}\n", message.content)),
            _ => {}
        }
    }
    question.push_str(&fill(&format.question, &[("{question}", &messages[last].content)]));
    Ok(Frame { root: vec![Piece::Words(root)], question: vec![Piece::Words(question)], has_bos: false })
}

/// The conversation must end with the user's turn.
fn last_user(messages: &[ChatMessage]) -> Result<usize> {
    match messages.last() {
        Some(message) if message.role == "user" => Ok(messages.len() - 1),
        Some(message) => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("the last message has role `{}`; it must be the user's", message.role),
        )),
        None => Err(Error::new(ErrorKind::InvalidInput, "`messages` is empty; send at least one user message")),
    }
}

#[cfg(test)]
mod tests;
