//! What a prompt is made of, and the keys along it: each says what stands before, and where. Pure.
//!
//! What is neither root nor passage is cut every [`TEXT_TOKENS`] tokens, so that a prompt finds whatever it has in common with
//! an earlier one from the start on: conversations, completions, few-shot examples.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::key::{Fingerprint, KvKey};
use crate::{Error, Result};

/// What part of a prompt a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// What every prompt of the application starts with: the system prompt.
    SystemPrompt,
    /// A passage of a document.
    Passage,
    /// [`TEXT_TOKENS`] tokens of anything else: of a conversation, of a prompt to complete, of an answer. Of use only after the very
    /// tokens that it was computed after: never blended.
    Text,
    /// Text of a schema's module: computed apart from the prompt, and taken as it is wherever the schema puts it (Prompt Cache).
    Module,
    /// What is left of the text at the end, and is computed every time; between others where it has a [`Place`]: arguments, modules that
    /// are not to be kept. Never looked up, never filed.
    Question,
}

/// Tokens of a [`SegmentKind::Text`] segment. Fewer would find up to so many more, and be that many more entries to look up,
/// load and keep.
pub const TEXT_TOKENS: usize = 64;

/// A part of a prompt; separators belong to its tokens. Roots and passages were tokenized on their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub kind: SegmentKind,
    /// Token ids; may be empty.
    pub tokens: Arc<[u32]>,
    /// Where it stands; `None`: right behind what is before it.
    pub place: Option<Place>,
}

/// Where a segment stands, and, of a module, how it is computed apart from the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The position of its first token, not before the end of the segment before it: there may be a gap.
    pub start: u32,
    /// Of a [`SegmentKind::Module`]: what its entry is computed after.
    pub apart: Option<Apart>,
}

/// A prompt of its own in which a module is computed. Where KV can be moved, positions count from its beginning, so that the entry serves
/// wherever the module stands; where it cannot, they are those of the layout. The key covers them: a gap at the beginning is a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apart {
    /// What stands before the module there.
    pub behind: Arc<[Segment]>,
    /// Its own first position there.
    pub start: u32,
}

/// Keys along a prompt: each of what stands before, gaps in the positions among it.
#[derive(Clone)]
pub(super) struct Links<'a> {
    fingerprint: &'a Fingerprint,
    salt: &'a str,
    pub parent: Option<KvKey>,
    /// The position behind the last token.
    end: u32,
}

/// Stands for a gap in a chain: no token has this id.
const GAP: u32 = u32::MAX;

impl<'a> Links<'a> {
    pub fn new(fingerprint: &'a Fingerprint, salt: &'a str) -> Self {
        Self { fingerprint, salt, parent: None, end: 0 }
    }

    /// Goes on to `start`.
    pub fn skip_to(&mut self, start: u32) {
        if let Some(gap) = start.checked_sub(self.end).filter(|gap| *gap > 0) {
            self.parent = Some(KvKey::derive(self.fingerprint, self.salt, self.parent.as_ref(), &[GAP, gap]));
            self.end = start;
        }
    }

    /// The key of a module that comes next as it was computed apart, under `apart`.
    pub fn push_module(&mut self, apart: &KvKey, tokens: usize) -> Option<KvKey> {
        let words = apart.0.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let link: Vec<u32> = [GAP, GAP].into_iter().chain(words).collect();
        self.parent = Some(KvKey::derive(self.fingerprint, self.salt, self.parent.as_ref(), &link));
        self.end = self.end.saturating_add(tokens as u32);
        self.parent
    }

    /// The key of what comes next.
    pub fn push(&mut self, tokens: &[u32]) -> Option<KvKey> {
        if !tokens.is_empty() {
            self.parent = Some(KvKey::derive(self.fingerprint, self.salt, self.parent.as_ref(), tokens));
            self.end = self.end.saturating_add(tokens.len() as u32);
        }
        self.parent.filter(|_| !tokens.is_empty())
    }
}

impl Segment {
    /// The position of its first token, where it follows `end`.
    pub fn start(&self, end: u32) -> u32 {
        self.place.as_ref().map_or(end, |place| place.start)
    }

    /// The position behind the last token of a prompt.
    pub fn end_of(segments: &[Self]) -> u32 {
        let end = |end, segment: &Self| segment.start(end).saturating_add(segment.tokens.len() as u32);
        segments.iter().fold(0, end)
    }

    /// Of a module: the key of its entry, and the prompt in which that is computed.
    pub fn apart(&self, fingerprint: &Fingerprint, salt: &str) -> Option<(KvKey, Vec<Self>)> {
        let place = self.place.as_ref().filter(|_| self.kind == SegmentKind::Module)?;
        let Apart { behind, start } = place.apart.as_ref()?;
        let mut links = Links::new(fingerprint, salt);
        for segment in behind.iter() {
            links.skip_to(segment.start(links.end));
            links.push(&segment.tokens);
        }
        links.skip_to(*start);
        let place = Some(Place { start: *start, apart: None });
        let prompt = behind.iter().cloned().chain([Self { place, ..self.clone() }]).collect();
        Some((links.push(&self.tokens)?, prompt))
    }

    /// The text that ends a prompt, as segments: [`SegmentKind::Text`] as far as it goes, then the question.
    pub fn of_text(tokens: &[u32]) -> Vec<Self> {
        let (texts, rest) = tokens.as_chunks::<TEXT_TOKENS>();
        let text =
            |tokens: &[u32; TEXT_TOKENS]| Self { kind: SegmentKind::Text, tokens: tokens[..].into(), place: None };
        let question = Self { kind: SegmentKind::Question, tokens: rest.into(), place: None };
        texts.iter().map(text).chain([question]).collect()
    }
}

/// # Errors
/// `InvalidInput` if the segments stand in another order than a prompt has, or the prompt is longer than 2^32 tokens.
pub(super) fn check_order(segments: &[Segment]) -> Result<()> {
    let last = segments.len().saturating_sub(1);
    for (index, segment) in segments.iter().enumerate() {
        let stands_right = match segment.kind {
            SegmentKind::SystemPrompt => index == 0,
            SegmentKind::Passage | SegmentKind::Text | SegmentKind::Module => true,
            SegmentKind::Question => index == last || segment.place.is_some(),
        };
        if !stands_right {
            return Err(Error::invalid_input(format!(
                "segment {index} of {} is a {:?}; a prompt is a root, then passages and text, then the question",
                segments.len(),
                segment.kind
            )));
        }
    }
    let mut end = 0;
    for (index, segment) in segments.iter().enumerate() {
        let start = segment.start(end);
        if start < end {
            let message = format!("segment {index} stands at position {start}, and the one before it ends at {end}");
            return Err(Error::invalid_input(message));
        }
        end = start.saturating_add(segment.tokens.len() as u32);
    }
    let tokens: u64 = segments.iter().map(|segment| segment.tokens.len() as u64).sum();
    if u32::try_from(tokens).is_err() {
        return Err(Error::invalid_input(format!("a prompt of {tokens} tokens is longer than any context")));
    }
    Ok(())
}
