//! Cuts a text into passages of whole sentences, as many as fit. Nothing is lost, and nothing is in two passages unless an
//! overlap is set.
//!
//! A text is cut at the coarsest border that fits:
//!
//! 1. Headings, tables and code, if the text is known to have them ([`sections`]).
//! 2. Sentences (UAX #29, which has the stops of all scripts).
//! 3. Clauses: a stop followed by white space (texts in lower case have no other sentence ends), the commas of Chinese and
//!    Japanese, the blanks of Thai.
//! 4. Words.
//! 5. Runs of characters. A character stays together with its marks.

mod sections;
mod sentences;

use std::borrow::Cow;
use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::scripts;
use ragstone_documents::element::{self, Element};
use sentences::sentences;

/// A token stands for at most this many bytes. WordPiece calls any word over 100 characters one unknown token; without a
/// bound, a megabyte of base64 would be one passage, and hundreds of thousands of tokens to the language model.
const MAX_BYTES_PER_TOKEN: usize = 16;

/// How long passages may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    /// Of a passage, at most.
    pub tokens: usize,
    /// Of them, those that a passage may begin with although the one before it ends with them.
    pub overlap: usize,
}

#[derive(Clone, Copy)]
enum Border {
    Sentence,
    Clause,
    Word,
    Characters,
}

/// A passage as it is cut.
pub(super) struct Cut<'a> {
    /// Where it begins in the text, in bytes; what is said again before it, such as headings, stands elsewhere.
    pub at: usize,
    pub text: Cow<'a, str>,
}

impl<'a> Cut<'a> {
    /// A slice of a text, without the white space at its ends.
    fn of(text: &'a str, range: Range<usize>) -> Self {
        let slice = &text[range.clone()];
        let at = range.start + slice.len() - slice.trim_start().len();
        Self { at, text: Cow::Borrowed(slice.trim()) }
    }
}

/// The passages of `text`, in order, each of at most `budget.tokens` tokens by `count` (and of `16 * budget.tokens` bytes).
///
/// Without `elements` they are slices of `text`, without the white space at their ends; between them stands nothing but white space. Their
/// lengths are balanced: a text a little over the budget becomes two halves rather than a full passage and a scrap.
/// A text without a word has no passages.
pub(super) fn split<'a>(
    text: &'a str,
    elements: &[Element],
    budget: Budget,
    count: &dyn Fn(&str) -> usize,
) -> Vec<Cut<'a>> {
    let budget = Budget { tokens: budget.tokens.max(1), overlap: budget.overlap.min(budget.tokens / 2) };
    if !elements.is_empty() && element::are_valid(elements, text) {
        return sections::split(text, elements, budget, count);
    }
    let mut atoms = Vec::new();
    let fresh = (budget.tokens - budget.overlap).max(1);
    break_down(text, Border::Sentence, fresh, count, &mut atoms);
    let weights: Vec<usize> = atoms.iter().map(|atom| atom.1).collect();
    let (mut passages, mut start) = (Vec::new(), 0);
    let mut earlier = 0..0;
    for range in pack(&weights, fresh) {
        let end = start + atoms[range].iter().map(|atom| atom.0.len()).sum::<usize>();
        let begin = earlier.start + tail(&text[earlier.clone()], budget.overlap, count);
        passages.push(Cut::of(text, begin..end));
        earlier = start..end;
        start = end;
    }
    passages.retain(|passage| !passage.text.is_empty());
    passages
}

/// Neighbours of these weights in groups of at most `budget` together, of balanced lengths. A weight may not be more than `budget`.
fn pack(weights: &[usize], budget: usize) -> Vec<Range<usize>> {
    let mut remaining: usize = weights.iter().sum();
    let (mut groups, mut start, mut length) = (Vec::new(), 0, 0);
    for (at, weight) in weights.iter().enumerate() {
        let target = remaining.div_ceil(remaining.div_ceil(budget).max(1));
        // Past the target by more than half of the piece: the border before it is the nearer one.
        if length > 0 && *weight > 0 && (length + weight > budget || 2 * length + weight > 2 * target) {
            groups.push(start..at);
            start = at;
            remaining -= length;
            length = 0;
        }
        length += weight;
    }
    groups.push(start..weights.len());
    groups
}

/// Where the last sentences of `text` begin that have at most `most` tokens; where the very last one has more, its last words.
fn tail(text: &str, most: usize, count: &dyn Fn(&str) -> usize) -> usize {
    if most == 0 {
        return text.len();
    }
    let sentences = || between_clusters(text, sentences(text));
    let words = || between_clusters(text, text.split_word_bound_indices());
    last_fitting(text, sentences(), most, count)
        .or_else(|| last_fitting(text, words(), most, count))
        .unwrap_or(text.len())
}

/// The first of `starts` after which `text` has at most `most` tokens, and a word.
fn last_fitting(text: &str, starts: Vec<usize>, most: usize, count: &dyn Fn(&str) -> usize) -> Option<usize> {
    let at = starts.partition_point(|at| weight(&text[*at..], count) > most);
    starts.get(at).copied().filter(|at| !text[*at..].trim().is_empty())
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
        Border::Sentence => (pieces(text, between_clusters(text, sentences(text))), Border::Clause),
        Border::Clause => (clauses(text), Border::Word),
        Border::Word => (pieces(text, between_clusters(text, text.split_word_bound_indices())), Border::Characters),
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

/// Where pieces begin, without those that begin within a character and its marks: a word of Thai may be cut before a vowel that is written behind.
fn between_clusters<'a>(text: &'a str, pieces: impl Iterator<Item = (usize, &'a str)>) -> Vec<usize> {
    let starts = pieces.map(|(at, _)| at);
    if text.is_ascii() {
        return starts.collect();
    }
    let mut clusters = text.grapheme_indices(true).map(|(at, _)| at).peekable();
    let mut is_cluster = |start: &usize| {
        while clusters.next_if(|at| at < start).is_some() {}
        clusters.peek() == Some(start)
    };
    starts.filter(|start| is_cluster(start)).collect()
}

/// A text in pieces that begin there.
fn pieces(text: &str, starts: Vec<usize>) -> Vec<&str> {
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

fn weight(piece: &str, count: &dyn Fn(&str) -> usize) -> usize {
    if piece.trim().is_empty() {
        return 0;
    }
    count(piece).max(piece.trim().len().div_ceil(MAX_BYTES_PER_TOKEN))
}

/// Pieces that end behind a stop and the white space after it. Full-width stops need none, and in Thai, Lao, Khmer and Burmese white space is the stop.
fn clauses(text: &str) -> Vec<&str> {
    let mut starts = vec![0];
    let (mut stop, mut space, mut wide, mut letter) = (false, false, false, false);
    for (at, character) in text.char_indices() {
        if character.is_whitespace() {
            space |= stop || letter;
        } else {
            if space || (wide && !is_wide_stop(character) && !is_closing(character)) {
                starts.push(at);
                wide = false;
            }
            stop = matches!(character, '.' | '!' | '?' | ';' | ':' | '؟' | '؛' | '۔' | '।') || is_wide_stop(character);
            wide = is_wide_stop(character) || (wide && is_closing(character));
            letter = scripts::is_clustered(character);
            space = false;
        }
    }
    pieces(text, between_clusters(text, starts.into_iter().map(|at| (at, ""))))
}

fn is_wide_stop(character: char) -> bool {
    matches!(character, '。' | '！' | '？' | '；' | '：' | '，' | '、' | '｡' | '､')
}

fn is_closing(character: char) -> bool {
    matches!(character, '」' | '』' | '）' | '】' | '》' | '”' | '’')
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

    fn plain(text: &str, tokens: usize, count: &dyn Fn(&str) -> usize) -> Vec<String> {
        overlapping(text, tokens, 0, count)
    }

    fn overlapping(text: &str, tokens: usize, overlap: usize, count: &dyn Fn(&str) -> usize) -> Vec<String> {
        split(text, &[], Budget { tokens, overlap }, count).into_iter().map(|cut| cut.text.into_owned()).collect()
    }

    fn without_space(text: &str) -> String {
        text.chars().filter(|character| !character.is_whitespace()).collect()
    }

    #[test]
    fn a_short_text_is_one_passage() {
        assert_eq!(plain("  One. Two.\n", 10, &words), ["One. Two."]);
        assert!(plain(" \n\t", 10, &words).is_empty());
        assert!(plain("", 10, &words).is_empty());
    }

    #[test]
    fn borders_are_sentences_and_lengths_are_balanced() {
        let text = "One two three. Four five six. Seven eight nine. Ten eleven twelve.";
        assert_eq!(plain(text, 9, &words), ["One two three. Four five six.", "Seven eight nine. Ten eleven twelve."]);
    }

    #[test]
    fn lower_case_text_is_cut_behind_its_stops() {
        let text = "one two three four. five six seven eight. nine ten eleven twelve.";
        assert_eq!(text.split_sentence_bounds().count(), 1);
        assert_eq!(plain(text, 4, &words), ["one two three four.", "five six seven eight.", "nine ten eleven twelve."]);
    }

    #[test]
    fn a_long_sentence_is_cut_between_words() {
        let text = "a b c d e f g h i j";
        assert_eq!(plain(text, 4, &words), ["a b c d", "e f g", "h i j"]);
    }

    #[test]
    fn a_word_without_end_is_cut_in_runs() {
        let blob = "x".repeat(10_000);
        let passages = plain(&blob, 32, &words);
        assert_eq!(passages.concat(), blob);
        assert!(passages.iter().all(|passage| passage.len() <= 32 * MAX_BYTES_PER_TOKEN), "{}", passages[0].len());
        assert!(passages.len() <= 22);
    }

    #[test]
    fn a_passage_begins_with_the_end_of_the_one_before_it_where_that_is_asked() {
        let text = "One two three. Four five six. Seven eight nine. Ten eleven twelve.";
        assert_eq!(
            overlapping(text, 9, 3, &words),
            ["One two three. Four five six.", "Four five six. Seven eight nine. Ten eleven twelve.",]
        );
        // No sentence is that short: its last words.
        assert_eq!(
            overlapping(text, 9, 2, &words),
            ["One two three. Four five six.", "five six. Seven eight nine. Ten eleven twelve."]
        );
    }

    /// A token for every character, as tokenizers have about.
    fn characters(text: &str) -> usize {
        text.chars().filter(|c| !c.is_whitespace()).count()
    }

    #[test]
    fn sentences_end_as_their_language_has_it() {
        for (text, passages) in [
            (
                "窯は土曜日に焼きます。月曜日までは開けません！「はい。」と言う。",
                vec!["窯は土曜日に焼きます。", "月曜日までは開けません！", "「はい。」と言う。"],
            ),
            ("ｶﾏﾊ ﾄﾞﾖｳﾋﾞ｡ﾊﾘﾊ ｹﾞﾂﾖｳﾋﾞ｡", vec!["ｶﾏﾊ ﾄﾞﾖｳﾋﾞ｡", "ﾊﾘﾊ ｹﾞﾂﾖｳﾋﾞ｡"]),
            ("भट्ठी शनिवार को जलती है। उसे सोमवार को खोलें।", vec!["भट्ठी शनिवार को जलती है।", "उसे सोमवार को खोलें।"]),
            ("متى يفتح الفرن؟ يفتح يوم الاثنين.", vec!["متى يفتح الفرن؟", "يفتح يوم الاثنين."]),
            ("بھٹی ہفتے کو جلتی ہے۔ اسے پیر کو کھولیں۔", vec!["بھٹی ہفتے کو جلتی ہے۔", "اسے پیر کو کھولیں۔"]),
        ] {
            let longest = passages.iter().map(|passage| characters(passage)).max().unwrap();
            assert_eq!(plain(text, longest, &characters), passages);
        }
    }

    #[test]
    fn a_sentence_that_does_not_fit_is_cut_at_its_commas_or_blanks() {
        let chinese = "先用完雨水桶里的水，再打开花园的水龙头，最后请把水管收好";
        assert_eq!(
            plain(chinese, 11, &characters),
            ["先用完雨水桶里的水，", "再打开花园的水龙头，", "最后请把水管收好"]
        );
        let thai = "เตาเผาจะเผาในวันเสาร์ ห้ามเปิดก่อนวันจันทร์ กรุณาสวมถุงมือ";
        assert_eq!(plain(thai, 24, &characters), ["เตาเผาจะเผาในวันเสาร์", "ห้ามเปิดก่อนวันจันทร์", "กรุณาสวมถุงมือ"]);
    }

    #[test]
    fn a_text_without_blanks_or_stops_is_cut_between_characters() {
        for text in ["自行车修理".repeat(200), "น้ำผึ้งที่".repeat(200), "자전거수리".repeat(200)]
        {
            let passages = plain(&text, 60, &characters);
            assert_eq!(passages.concat(), text);
            assert!(
                passages.len() >= 16 && passages.iter().all(|passage| characters(passage) <= 60),
                "{}",
                passages.len()
            );
        }
    }

    /// How passages were cut before there were elements and overlaps: stored ones must not change.
    fn before(text: &str, budget: usize, count: &dyn Fn(&str) -> usize) -> Vec<String> {
        let mut atoms = Vec::new();
        break_down(text, Border::Sentence, budget, count, &mut atoms);
        let mut remaining: usize = atoms.iter().map(|atom| atom.1).sum();
        let (mut passages, mut start, mut end, mut length) = (Vec::new(), 0, 0, 0);
        for (piece, weight) in atoms {
            let target = remaining.div_ceil(remaining.div_ceil(budget).max(1));
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
        passages.into_iter().map(str::trim).filter(|passage| !passage.is_empty()).map(str::to_owned).collect()
    }

    proptest! {
        #[test]
        fn plain_text_is_cut_as_ever(
            text in "([A-Za-z]{1,9}|[.!?] |\\n\\n|[äßλ語。]{1,3}|[a-z0-9+/]{90,200}|#|\\|| ){0,120}",
            budget in 1_usize..40,
        ) {
            prop_assert_eq!(plain(&text, budget, &words), before(&text, budget, &words));
        }

        #[test]
        fn an_overlap_loses_nothing_and_keeps_to_the_budget(
            text in "([A-Za-z]{1,9}|[.!?] |\\n\\n|[äßλ語。]{1,3}| ){0,120}",
            budget in 4_usize..40,
            part in 2_usize..9,
        ) {
            let passages = overlapping(&text, budget, budget / part, &words);
            let whole = without_space(&text);
            let mut at = 0;
            for passage in &passages {
                prop_assert!(words(passage) <= budget);
                let passage = without_space(passage);
                // It stands in the text, and begins where the text that was read so far ends or before.
                let found = (0..=at).rev().find(|start| whole.get(*start..).is_some_and(|rest| rest.starts_with(&passage)));
                prop_assert!(found.is_some_and(|start| start + passage.len() > at), "{passage} at {at}");
                at = found.unwrap() + passage.len();
            }
            prop_assert_eq!(at, whole.len());
        }

        #[test]
        fn no_text_is_lost_and_no_passage_is_too_long(
            text in "([A-Za-z]{1,9}|[.!?] |\\n\\n|[äßλ語。]{1,3}|[a-z0-9+/]{90,200}| ){0,120}",
            budget in 1_usize..40,
        ) {
            let passages = plain(&text, budget, &words);
            prop_assert_eq!(without_space(&passages.concat()), without_space(&text));
            for passage in &passages {
                prop_assert!(!passage.is_empty() && passage.trim().len() == passage.len());
                prop_assert!(words(passage) <= budget, "{} > {budget}", words(passage));
            }
        }

        #[test]
        fn no_border_is_within_a_character_and_its_marks(
            text in "([ก-ูเ-๎]{1,9}|[가-힣ᄀ-ᇿ]{1,4}|[अ-्]{1,5}|[一-十、。ーぁ-ん゙]{1,6}|e\\u{301}|👩‍🔧|🇩🇪|\\n){0,60}",
            budget in 1_usize..40,
        ) {
            let borders: Vec<usize> = text.grapheme_indices(true).map(|(at, _)| at).chain([text.len()]).collect();
            for cut in split(&text, &[], Budget { tokens: budget, overlap: 0 }, &characters) {
                prop_assert!(borders.contains(&cut.at) && borders.contains(&(cut.at + cut.text.len())), "{:?}", cut.text);
            }
        }

        #[test]
        fn any_string_survives(text in any::<String>(), budget in 1_usize..20) {
            prop_assert_eq!(without_space(&plain(&text, budget, &words).concat()), without_space(&text));
        }
    }
}
