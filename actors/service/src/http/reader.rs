//! Reads an answer's text as it comes: what is thought, what is said, what is called.

use ragstone_kernels::chat::thoughts::{Thinking, Thought, ThoughtParser};

use super::tools::{CallReader, Said};

/// Reads one answer.
#[derive(Debug)]
pub struct AnswerReader {
    thoughts: Option<ThoughtParser>,
    calls: Option<CallReader>,
}

impl AnswerReader {
    /// Of a model that thinks so, and may call tools; `None` where all of its text is said.
    pub fn new(thinking: Option<Thinking>, calls: Option<CallReader>) -> Option<Self> {
        let has_parts = thinking.is_some() || calls.is_some();
        has_parts.then(|| Self { thoughts: thinking.map(ThoughtParser::new), calls })
    }

    /// What is certain with a piece of text, or, without one, at the end.
    pub fn read(&mut self, piece: Option<&str>) -> Vec<Said> {
        let parts = match (&mut self.thoughts, piece) {
            (Some(thoughts), Some(piece)) => thoughts.push(piece),
            (Some(thoughts), None) => thoughts.finish(),
            (None, piece) => piece.map(|piece| Thought::Answer(piece.to_owned())).into_iter().collect(),
        };
        let mut said = Vec::new();
        for part in parts {
            match (part, &mut self.calls) {
                (Thought::Thinking(text), _) => said.push(Said::Thought(text)),
                // A call within thoughts is none.
                (Thought::Answer(text), Some(calls)) => said.extend(calls.read(Some(&text))),
                (Thought::Answer(text), None) => said.push(Said::Text(text)),
            }
        }
        if let (None, Some(calls)) = (piece, &mut self.calls) {
            said.extend(calls.read(None));
        }
        said
    }

    /// Whether there was a call.
    pub fn has_called(&self) -> bool {
        self.calls.as_ref().is_some_and(CallReader::has_called)
    }
}
