//! What a model thinks before it answers (`<think>…</think>`: DeepSeek R1, Qwen 3, and those made of them), told apart from the answer.

/// Where an answer begins, as a chat template leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// The model writes `<think>` itself, if it thinks.
    Maybe,
    /// The prompt ends with `<think>`.
    Begun,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thought {
    /// What the model thinks.
    Thinking(String),
    /// What it answers.
    Answer(String),
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
/// What stands around thoughts: text that a template reads, too.
pub(super) const MARKS_OF_THOUGHTS: [&str; 2] = [OPEN, CLOSE];

impl Thinking {
    /// Of a template that writes `prompt` where an answer is to begin; `None` where it knows no thoughts.
    pub(super) fn of(template: &str, prompt: &str) -> Option<Self> {
        let is_begun = prompt.trim_end().ends_with(OPEN);
        template.contains(CLOSE).then_some(if is_begun { Self::Begun } else { Self::Maybe })
    }
}

/// Tells thoughts from the answer as its text comes. However that is cut into pieces, the joined parts are the same. White space at the edges of both is
/// dropped. Thoughts that do not end, as the answer was cut, are all that there is.
#[derive(Debug)]
pub struct ThoughtParser {
    state: State,
    /// What is not certain yet.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space, or the beginning of `<think>`, has come.
    Start,
    /// Within thoughts of which nothing has come.
    Opened,
    Inside,
    /// Behind thoughts; nothing of the answer has come.
    Closed,
    Answer,
}

impl ThoughtParser {
    /// Of one answer.
    pub fn new(thinking: Thinking) -> Self {
        let state = match thinking {
            Thinking::Maybe => State::Start,
            Thinking::Begun => State::Opened,
        };
        Self { state, held: String::new() }
    }

    /// What is certain with a piece of the text.
    pub fn push(&mut self, text: &str) -> Vec<Thought> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while let Some(part) = self.next() {
            parts.push(part);
        }
        parts
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> Vec<Thought> {
        let rest = std::mem::take(&mut self.held);
        let part = match self.state {
            State::Opened | State::Inside => Thought::Thinking(rest.trim_end().to_owned()),
            State::Closed => Thought::Answer(rest.trim_start().to_owned()),
            State::Start | State::Answer => Thought::Answer(rest),
        };
        let (Thought::Thinking(text) | Thought::Answer(text)) = &part;
        if text.is_empty() { Vec::new() } else { vec![part] }
    }

    /// One step; `None` where nothing more is certain.
    fn next(&mut self) -> Option<Thought> {
        loop {
            let trimmed = self.held.trim_start();
            match self.state {
                State::Start if trimmed.starts_with(OPEN) => {
                    self.held = trimmed[OPEN.len()..].to_owned();
                    self.state = State::Opened;
                }
                State::Start if OPEN.starts_with(trimmed) => return None,
                State::Start => self.state = State::Answer,
                // Some write it although the prompt ends with it.
                State::Opened if trimmed.starts_with(OPEN) => self.held = trimmed[OPEN.len()..].to_owned(),
                State::Opened if OPEN.starts_with(trimmed) => return None,
                State::Opened => {
                    self.held = trimmed.to_owned();
                    self.state = State::Inside;
                }
                State::Inside => return self.inside(),
                State::Closed if trimmed.is_empty() => return None,
                State::Closed => {
                    self.held = trimmed.to_owned();
                    self.state = State::Answer;
                }
                State::Answer if self.held.is_empty() => return None,
                State::Answer => return Some(Thought::Answer(std::mem::take(&mut self.held))),
            }
        }
    }

    /// Thoughts up to their end, or to what may be the beginning of it.
    fn inside(&mut self) -> Option<Thought> {
        let end = self.held.find(CLOSE);
        let certain = end.unwrap_or_else(|| self.held.len() - beginning_of_close(&self.held));
        // White space may be the last.
        let text = self.held[..certain].trim_end().to_owned();
        match end {
            Some(end) => {
                self.held.drain(..end + CLOSE.len());
                self.state = State::Closed;
            }
            None => drop(self.held.drain(..text.len())),
        }
        match (text.is_empty(), end) {
            (false, _) => Some(Thought::Thinking(text)),
            (true, Some(_)) => self.next(),
            (true, None) => None,
        }
    }
}

/// The bytes at the end of a text with which `</think>` may begin.
fn beginning_of_close(text: &str) -> usize {
    (1..CLOSE.len()).rev().find(|length| text.ends_with(&CLOSE[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Thoughts and answer, joined.
    fn read(thinking: Thinking, pieces: &[&str]) -> (String, String) {
        let mut parser = ThoughtParser::new(thinking);
        let mut parts: Vec<Thought> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        parts.extend(parser.finish());
        let (mut thoughts, mut answer) = (String::new(), String::new());
        for part in parts {
            match part {
                Thought::Thinking(text) => thoughts.push_str(&text),
                Thought::Answer(text) => answer.push_str(&text),
            }
        }
        (thoughts, answer)
    }

    #[test]
    fn thoughts_stand_before_the_answer() {
        use Thinking::{Begun, Maybe};
        for (thinking, text, thoughts, answer) in [
            (Maybe, "<think>\nNine boats.\n</think>\n\nNine.", "Nine boats.", "Nine."),
            (Maybe, "\n<think>\n\n</think>\n\nNine.", "", "Nine."),
            (Maybe, "Nine. <think> is a tag, and so is </think>", "", "Nine. <think> is a tag, and so is </think>"),
            (Maybe, " Nine.\n", "", " Nine.\n"),
            (Maybe, "<thin", "", "<thin"),
            (Maybe, "", "", ""),
            (Begun, "Nine boats.\n</think>\n\nNine.", "Nine boats.", "Nine."),
            (Begun, "<think>\nNine boats.</think>Nine.", "Nine boats.", "Nine."),
            (Begun, "if a </ b then", "if a </ b then", ""),
            (Begun, "cut off </thi", "cut off </thi", ""),
            (Begun, "</think>Nine.", "", "Nine."),
            (Begun, "a</think>b</think>c", "a", "b</think>c"),
        ] {
            assert_eq!(read(thinking, &[text]), (thoughts.to_owned(), answer.to_owned()), "{thinking:?} {text:?}");
        }
    }

    #[test]
    fn templates_say_where_an_answer_begins() {
        let qwen = "{%- if '</think>' in content %}…";
        assert_eq!(Thinking::of(qwen, "<|im_start|>assistant\n"), Some(Thinking::Maybe));
        assert_eq!(Thinking::of(qwen, "<｜Assistant｜><think>\n"), Some(Thinking::Begun));
        assert_eq!(Thinking::of("{{ messages }}", "<|im_start|>assistant\n"), None);
    }

    proptest! {
        #[test]
        fn pieces_change_nothing(
            begun: bool,
            parts in proptest::collection::vec(
                prop_oneof![Just("<think>"), Just("</think>"), Just("<"), Just("</thi"), Just("nk>"), Just(" "), Just("\n"), Just("é"), Just("a b")],
                0..12,
            ),
            cuts in proptest::collection::vec(0..60_usize, 0..6),
        ) {
            let thinking = if begun { Thinking::Begun } else { Thinking::Maybe };
            let text = parts.concat();
            let mut ends: Vec<usize> = cuts.into_iter().filter(|at| *at <= text.len() && text.is_char_boundary(*at)).collect();
            ends.extend([0, text.len()]);
            ends.sort_unstable();
            let pieces: Vec<&str> = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
            prop_assert_eq!(read(thinking, &pieces), read(thinking, &[&text]));
        }
    }
}
