//! Cuts a text into passages: whole sentences, as many as fit, nothing lost and nothing twice.
//!
//! Borders are looked for in this order: sentences (UAX #29), clauses (a stop, then white space; texts in lower case have
//! no others), words, and runs of characters. A coarser border is used wherever the piece behind it fits.

use unicode_segmentation::UnicodeSegmentation;

/// A token stands for at most this many bytes. WordPiece calls any word over 100 characters one unknown token; without a
/// bound, a megabyte of base64 would be one passage, and hundreds of thousands of tokens to the language model.
const MAX_BYTES_PER_TOKEN: usize = 16;

#[derive(Clone, Copy)]
enum Border {
    Sentence,
    Clause,
    Word,
    Characters,
}

/// The passages of `text`, in order, each of at most `budget` tokens by `count` (and of `16 * budget` bytes).
///
/// They are slices of `text`, without the white space at their ends; between them stands nothing but white space. Their
/// lengths are balanced: a text a little over the budget becomes two halves rather than a full passage and a scrap.
/// A text without a word has no passages.
pub(super) fn split<'a>(text: &'a str, budget: usize, count: &dyn Fn(&str) -> usize) -> Vec<&'a str> {
    let budget = budget.max(1);
    let mut atoms = Vec::new();
    break_down(text, Border::Sentence, budget, count, &mut atoms);
    let mut remaining: usize = atoms.iter().map(|atom| atom.1).sum();
    let (mut passages, mut start, mut end, mut length) = (Vec::new(), 0, 0, 0);
    for (piece, weight) in atoms {
        let target = remaining.div_ceil(remaining.div_ceil(budget).max(1));
        // Past the target by more than half of the piece: the border before it is the nearer one.
        if length > 0 && weight > 0 && (length + weight > budget || 2 * length + weight > 2 * target) {
            passages.push(&text[start..end]);
            start = end;
            remaining -= length;
            length = 0;
        }
        end += piece.len();
        length += weight;
    }
    passages.push(&text[start..end]);
    passages.into_iter().map(str::trim).filter(|passage| !passage.is_empty()).collect()
}

/// Appends `text` in pieces that fit, with their weights. The pieces together are `text`.
fn break_down<'a>(
    text: &'a str,
    border: Border,
    budget: usize,
    count: &dyn Fn(&str) -> usize,
    atoms: &mut Vec<(&'a str, usize)>,
) {
    let (pieces, finer): (Vec<&str>, Border) = match border {
        Border::Sentence => (text.split_sentence_bounds().collect(), Border::Clause),
        Border::Clause => (clauses(text), Border::Word),
        Border::Word => (text.split_word_bounds().collect(), Border::Characters),
        Border::Characters => (runs(text), Border::Characters),
    };
    for piece in pieces {
        let weight = weight(piece, count);
        // A run of characters is as small as it gets, whatever the tokenizer makes of it.
        if weight <= budget || matches!(border, Border::Characters) {
            atoms.push((piece, weight.min(budget)));
        } else {
            break_down(piece, finer, budget, count, atoms);
        }
    }
}

fn weight(piece: &str, count: &dyn Fn(&str) -> usize) -> usize {
    if piece.trim().is_empty() {
        return 0;
    }
    count(piece).max(piece.trim().len().div_ceil(MAX_BYTES_PER_TOKEN))
}

/// Pieces that end behind a stop and the white space after it.
fn clauses(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut stop, mut space) = (0, false, false);
    for (at, character) in text.char_indices() {
        if character.is_whitespace() {
            space = stop;
        } else {
            if space {
                pieces.push(&text[start..at]);
                start = at;
            }
            stop = matches!(character, '.' | '!' | '?' | ';' | ':' | '。' | '！' | '？');
            space = false;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// Whole graphemes, about [`MAX_BYTES_PER_TOKEN`] bytes together.
fn runs(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, grapheme) in text.grapheme_indices(true) {
        let end = at + grapheme.len();
        if end - start >= MAX_BYTES_PER_TOKEN {
            pieces.push(&text[start..end]);
            start = end;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn without_space(text: &str) -> String {
        text.chars().filter(|character| !character.is_whitespace()).collect()
    }

    #[test]
    fn a_short_text_is_one_passage() {
        assert_eq!(split("  One. Two.\n", 10, &words), ["One. Two."]);
        assert!(split(" \n\t", 10, &words).is_empty());
        assert!(split("", 10, &words).is_empty());
    }

    #[test]
    fn borders_are_sentences_and_lengths_are_balanced() {
        let text = "One two three. Four five six. Seven eight nine. Ten eleven twelve.";
        assert_eq!(split(text, 9, &words), ["One two three. Four five six.", "Seven eight nine. Ten eleven twelve."]);
    }

    #[test]
    fn lower_case_text_is_cut_behind_its_stops() {
        let text = "one two three four. five six seven eight. nine ten eleven twelve.";
        assert_eq!(text.split_sentence_bounds().count(), 1);
        assert_eq!(split(text, 4, &words), ["one two three four.", "five six seven eight.", "nine ten eleven twelve."]);
    }

    #[test]
    fn a_long_sentence_is_cut_between_words() {
        let text = "a b c d e f g h i j";
        assert_eq!(split(text, 4, &words), ["a b c d", "e f g", "h i j"]);
    }

    #[test]
    fn a_word_without_end_is_cut_in_runs() {
        let blob = "x".repeat(10_000);
        let passages = split(&blob, 32, &words);
        assert_eq!(passages.concat(), blob);
        assert!(passages.iter().all(|passage| passage.len() <= 32 * MAX_BYTES_PER_TOKEN), "{}", passages[0].len());
        assert!(passages.len() <= 22);
    }

    proptest! {
        #[test]
        fn no_text_is_lost_and_no_passage_is_too_long(
            text in "([A-Za-z]{1,9}|[.!?] |\\n\\n|[äßλ語。]{1,3}|[a-z0-9+/]{90,200}| ){0,120}",
            budget in 1_usize..40,
        ) {
            let passages = split(&text, budget, &words);
            prop_assert_eq!(without_space(&passages.concat()), without_space(&text));
            for passage in &passages {
                prop_assert!(!passage.is_empty() && passage.trim().len() == passage.len());
                prop_assert!(words(passage) <= budget, "{} > {budget}", words(passage));
            }
        }

        #[test]
        fn any_string_survives(text in any::<String>(), budget in 1_usize..20) {
            prop_assert_eq!(without_space(&split(&text, budget, &words).concat()), without_space(&text));
        }
    }
}
