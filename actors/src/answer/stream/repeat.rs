//! Ends an answer that goes round in circles where some words in a row come a second time, without them.

/// Words in a row that count as a repetition.
const WORDS: usize = 8;

/// Holds text back that may be the beginning of a repetition: the words at its end that stood there before, and the one that is not whole.
#[derive(Default)]
pub(super) struct RepeatFilter {
    /// The words that are whole.
    words: Vec<String>,
    /// What is not released yet: pieces, each a word with the space before it.
    held: Vec<String>,
    /// Behind those: a word that may go on.
    open: String,
}

impl RepeatFilter {
    /// The text that is certain now, and whether a repetition ended it.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        let mut released = String::new();
        for letter in text.chars() {
            if letter.is_whitespace() && !self.open.trim_start().is_empty() && self.close(&mut released) {
                return (released, true);
            }
            self.open.push(letter);
        }
        (released, false)
    }

    /// What is held at the end, and whether a repetition ended it.
    pub fn finish(&mut self) -> (String, bool) {
        let mut released = String::new();
        if !self.open.trim_start().is_empty() && self.close(&mut released) {
            return (released, true);
        }
        released.extend(self.held.drain(..));
        released.push_str(&std::mem::take(&mut self.open));
        (released, false)
    }

    /// Takes the open word; whether it ends a repetition.
    fn close(&mut self, released: &mut String) -> bool {
        let piece = std::mem::take(&mut self.open);
        self.words.push(piece.trim_start().to_owned());
        self.held.push(piece);
        let repeated = self.repeated();
        if repeated == WORDS {
            self.held.clear();
            return true;
        }
        released.extend(self.held.drain(..self.held.len() - repeated.min(self.held.len())));
        false
    }

    /// How many of the last words, [`WORDS`] at the most, stood in this order before.
    fn repeated(&self) -> usize {
        let said = &self.words;
        let stood = |count: &usize| {
            let last = &said[said.len() - count..];
            said[..said.len() - 1].windows(*count).any(|words| words == last)
        };
        (1..=WORDS.min(said.len().saturating_sub(1))).rev().find(stood).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds pieces; what was released by each, what comes at the end, and whether it ended by a repetition.
    fn feed(pieces: &[&str]) -> (Vec<String>, bool) {
        let (mut filter, mut released) = (RepeatFilter::default(), Vec::new());
        for piece in pieces {
            let (text, ended) = filter.push(piece);
            released.push(text);
            if ended {
                return (released, true);
            }
        }
        let (text, ended) = filter.finish();
        released.push(text);
        (released, ended)
    }

    #[test]
    fn an_answer_ends_before_eight_words_come_again() {
        let sentence = "The boiler is serviced every October by Hoff.";
        let (released, ended) = feed(&[sentence, " ", sentence, " ", sentence]);
        assert!(ended);
        assert_eq!(released.concat(), sentence);
        let (released, ended) = feed(&["In short: ", sentence, "\n\n", sentence]);
        assert!(ended, "at the very end, too");
        assert_eq!(released.concat(), format!("In short: {sentence}"));
    }

    #[test]
    fn text_comes_as_it_was_where_less_repeats() {
        for text in [
            "",
            " ",
            "17",
            "a b a b a b c",
            "  two\n\n lines \n",
            "one two three four five six seven. one two three four five six seven!",
        ] {
            let pieces: Vec<String> = text.chars().map(String::from).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (released, ended) = feed(&pieces);
            assert_eq!((released.concat().as_str(), ended), (text, false));
            assert_eq!(feed(&[text]).0.concat(), text);
        }
    }

    #[test]
    fn a_word_is_released_once_the_next_one_shows_that_it_is_new() {
        let (released, _) = feed(&["Rosa", " Finch", " is", " the", " librarian"]);
        assert_eq!(released, ["", "Rosa", " Finch", " is", " the", " librarian"]);
        let (released, _) = feed(&["a b", " a", " b", " c", " d"]);
        assert_eq!(released, ["a", " b", "", "", " a b c", " d"], "what stood there before waits for what follows");
    }
}
