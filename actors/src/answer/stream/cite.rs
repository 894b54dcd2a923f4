//! Puts behind each sentence of an answer the numbers of the passages that it stands on: `The boiler is serviced in October. [2]`

use unicode_segmentation::UnicodeSegmentation;

use crate::report::citation::Citation;
use crate::report::grounding::Sentences;

/// A sentence this long is cut where it is: looking for its end would take longer with each token.
const MOST_BYTES: usize = 4 << 10;
/// What models put around their thoughts.
const THINKS: &str = "<think>";
const THOUGHT: &str = "</think>";

/// Text comes as it is, but for white space behind what may be a sentence's end: the numbers come before it.
pub(super) struct CiteFilter {
    sentences: Sentences,
    /// What is not known to be a whole sentence, and how much of it is released.
    open: String,
    released: usize,
    /// Whether the answer begins with thoughts that have not ended.
    is_thinking: bool,
    has_begun: bool,
}

impl CiteFilter {
    pub fn new(citations: &[Citation]) -> Self {
        let sentences = Sentences::of(citations);
        Self { sentences, open: String::new(), released: 0, is_thinking: false, has_begun: false }
    }

    /// The text that is certain now, with the numbers of sentences that ended.
    pub fn push(&mut self, text: &str) -> String {
        self.open.push_str(text);
        if !self.has_begun {
            self.has_begun = !self.open.trim_start().is_empty();
            self.is_thinking = self.open.trim_start().starts_with('<');
        }
        if self.is_thinking {
            return self.think();
        }
        let mut out = String::new();
        while let Some(end) = self.end_of_sentence() {
            self.close(end, &mut out);
        }
        // What may begin the next sentence, such as a list's hyphen, waits for the numbers of this one.
        let end = self.open.split_sentence_bounds().next().map_or(0, |first| first.trim_end().len());
        if end > self.released {
            out.push_str(&self.open[self.released..end]);
            self.released = end;
        }
        out
    }

    /// What is held at the end.
    pub fn finish(mut self) -> String {
        let mut out = String::new();
        while !self.is_thinking && !self.open.is_empty() {
            let end = self.open.split_sentence_bounds().next().map_or(self.open.len(), str::len);
            self.close(end, &mut out);
        }
        out
    }

    /// Thoughts are no answer.
    fn think(&mut self) -> String {
        let begins = self.open.trim_start();
        let ended = self.open.find(THOUGHT).map(|at| at + THOUGHT.len());
        let may_think = begins.starts_with(THINKS) || THINKS.starts_with(begins);
        if let (Some(end), true) = (ended, may_think) {
            let out = self.open[self.released..end].to_owned();
            self.open.drain(..end);
            (self.released, self.is_thinking) = (0, false);
            return out + &self.push("");
        }
        if !may_think {
            self.is_thinking = false;
            return self.push("");
        }
        let out = self.open[self.released..].to_owned();
        self.released = self.open.len();
        out
    }

    /// Where the first sentence ends, once the next one has begun.
    fn end_of_sentence(&self) -> Option<usize> {
        let end = self.open.split_sentence_bounds().next()?.len();
        let has_next = self.open[end..].contains(char::is_alphanumeric);
        if has_next { Some(end) } else { (self.open.len() > MOST_BYTES).then_some(self.open.len()) }
    }

    /// Releases a sentence, its numbers behind its last letter.
    fn close(&mut self, end: usize, out: &mut String) {
        let sentence: String = self.open.drain(..end).collect();
        let kept = sentence.trim_end().len();
        let released = std::mem::take(&mut self.released).min(kept);
        out.push_str(&sentence[released..kept]);
        if kept > 0
            && let numbers @ [_, ..] = &*self.sentences.passages(&sentence)
        {
            out.push(' ');
            out.extend(numbers.iter().map(|number| format!("[{number}]")));
        }
        out.push_str(&sentence[kept..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house() -> Vec<Citation> {
        let of = |number, text: &str| Citation { number, text: text.into(), ..Citation::default() };
        vec![
            of(1, "The boiler is serviced by Hoff & Sons. Cold, it has 1.4 bar."),
            of(2, "Kellow wanted £11,200 for the slate."),
        ]
    }

    /// However the text is cut into pieces.
    fn cited(answer: &str) -> String {
        let mut ways = Vec::new();
        for size in [1, 2, 3, 7, answer.len().max(1)] {
            let (mut filter, mut out) = (CiteFilter::new(&house()), String::new());
            let letters: Vec<char> = answer.chars().collect();
            for piece in letters.chunks(size) {
                out.push_str(&filter.push(&piece.iter().collect::<String>()));
            }
            out.push_str(&filter.finish());
            ways.push(out);
        }
        assert!(ways.windows(2).all(|two| two[0] == two[1]), "{ways:?}");
        ways.swap_remove(0)
    }

    #[test]
    fn sentences_end_with_the_numbers_of_their_passages() {
        for (answer, expected) in [
            ("The boiler is serviced by Hoff & Sons.", "The boiler is serviced by Hoff & Sons. [1]"),
            (" Slate costs £11,200.  Cold, it has 1.4 bar\n", " Slate costs £11,200. [2]  Cold, it has 1.4 bar [1]\n"),
            ("Slate by Kellow, the boiler by Hoff & Sons.", "Slate by Kellow, the boiler by Hoff & Sons. [1][2]"),
            ("1. Slate, £11,200\n2. Boiler, 1.4 bar", "1. Slate, £11,200 [2]\n2. Boiler, 1.4 bar [1]"),
            (
                "Slate, £11,200.\n- Boiler, 1.4 bar\n- **Blue**",
                "Slate, £11,200. [2]\n- Boiler, 1.4 bar [1]\n- **Blue**",
            ),
            ("\"Slate.\" \"Cold, 1.4 bar.\"", "\"Slate.\" [2] \"Cold, 1.4 bar.\" [1]"),
            // What is in none has no number, and what has one keeps it.
            ("It is blue. Slate costs £11,200 [2]. Yes.", "It is blue. Slate costs £11,200 [2]. Yes."),
            ("The passages do not say.", "The passages do not say."),
            ("<think>Slate costs £11,200. Hm.</think>Slate.", "<think>Slate costs £11,200. Hm.</think>Slate. [2]"),
            ("<b>Slate</b> costs £11,200.", "<b>Slate</b> costs £11,200. [2]"),
            ("", ""),
            ("  ", "  "),
        ] {
            assert_eq!(cited(answer), expected);
        }
    }

    #[test]
    fn letters_come_at_once_and_a_sentence_without_an_end_is_cut() {
        let mut filter = CiteFilter::new(&house());
        assert_eq!(filter.push("Slate. "), "Slate.");
        assert_eq!(filter.push("Bo"), " [2] Bo");
        let mut filter = CiteFilter::new(&house());
        let long = "slate ".repeat(10_000);
        let out: String =
            long.as_bytes().chunks(6).map(|piece| filter.push(std::str::from_utf8(piece).unwrap())).collect();
        let out = out + &filter.finish();
        assert_eq!(out.replace(" [2]", ""), long);
        assert!(out.contains("[2]"));
    }
}
