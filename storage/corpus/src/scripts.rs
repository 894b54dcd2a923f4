//! Words of scripts that put no blanks between them (Chinese, Japanese, Thai, Lao, Khmer, Burmese), or hang particles on them (Korean).
//!
//! A text index that cuts at blanks has whole clauses of these as its words, and finds none. Here they are cut into pairs of neighbouring
//! characters, which need no dictionary, are the same in a question and in a passage whatever stands around them, and say more than the
//! characters alone ("Overlapping bigrams", as Lucene's `CJKAnalyzer` has them). They stand in a column of their own, beside the words.
//!
//! So do words of other scripts that the text index cuts as they are written (`composed.rs`).

use std::collections::HashSet;

use unicode_normalization::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

use super::composed::{other_words, searched};

/// Terms of a query, at most: those of a page of text.
const MOST_ASKED: usize = 256;
/// A word of so many letters is found without its accents, too. Those of shorter ones are small words of other languages: `dès` is no `des`.
const LEAST_PLAIN: usize = 5;
/// A Korean word of so many syllables may be one syllable and a particle.
const SHORT_HANGUL: usize = 3;

/// How the words of a run of letters are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    /// Between blanks.
    Spaced,
    /// Chinese characters, of which one may be a word.
    Han,
    /// Kana and Bopomofo.
    Syllables,
    Hangul,
    /// Thai, Lao, Khmer, Burmese: a character and the marks upon it are one.
    Clusters,
}

fn script(c: char) -> Script {
    match c {
        '々' | '〆' | '〇' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' => {
            Script::Han
        }
        '\u{20000}'..='\u{323af}' => Script::Han,
        '\u{3041}'..='\u{3096}' | '\u{309d}'..='\u{309f}' | '\u{30a1}'..='\u{30fa}' | '\u{30fc}'..='\u{312f}' => {
            Script::Syllables
        }
        '\u{31f0}'..='\u{31ff}' | '\u{ff66}'..='\u{ff9f}' => Script::Syllables,
        '\u{1100}'..='\u{11ff}' | '\u{3131}'..='\u{318e}' | '\u{ac00}'..='\u{d7a3}' => Script::Hangul,
        '\u{0e01}'..='\u{0e3a}' | '\u{0e40}'..='\u{0e4e}' | '\u{0e81}'..='\u{0ecf}' | '\u{0edc}'..='\u{0edf}' => {
            Script::Clusters
        }
        '\u{1000}'..='\u{103f}' | '\u{1050}'..='\u{108f}' | '\u{1780}'..='\u{17d3}' => Script::Clusters,
        _ => Script::Spaced,
    }
}

/// Whether blanks do not say where a word of this character's script begins and ends.
pub(super) fn is_dense(c: char) -> bool {
    script(c) != Script::Spaced
}

/// Whether a character is of a script whose blanks stand between clauses.
pub(super) fn is_clustered(c: char) -> bool {
    script(c) == Script::Clusters
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || is_dense(c)
}

/// What a passage's words are beside those between blanks; `None` of a text in scripts with blanks whose words the text index has as they are searched.
pub(super) fn stored(text: &str) -> Option<String> {
    let mut terms = Vec::new();
    let searched = searched(text);
    each(&searched, false, &mut |term| terms.push(term));
    for word in other_words(text, &searched).filter(|word| word.chars().count() > 1 && !word.contains(is_dense)) {
        each(word, true, &mut |term| {
            let plain: String = term.nfd().filter(|c| !matches!(c, '\u{300}'..='\u{36f}')).collect();
            if plain != term && plain.chars().count() >= LEAST_PLAIN {
                terms.push(plain);
            }
            terms.push(term);
        });
    }
    (!terms.is_empty()).then(|| terms.join(" "))
}

/// What to look for among [`stored`] terms: each once, those between blanks included, as a passage may have them beside its characters.
pub(super) fn asked(query: &str) -> String {
    let (mut known, mut terms) = (HashSet::new(), Vec::new());
    each(&searched(query), true, &mut |term| {
        if terms.len() < MOST_ASKED && known.insert(term.clone()) {
            terms.push(term);
        }
    });
    terms.join(" ")
}

/// Parts of a text's words, at the borders of dense scripts: `型番PPR-1670の` has `型番`, `PPR-1670` and `の`.
pub(super) fn parts(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = rest.char_indices().find(|(_, c)| is_dense(*c) != is_dense(first)).map_or(rest.len(), |(at, _)| at);
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

/// The lengths of a text's runs of dense scripts, in characters with their marks.
pub(super) fn runs(text: &str) -> impl Iterator<Item = usize> {
    text.split(|c| !is_dense(c)).filter(|run| !run.is_empty()).map(|run| run.graphemes(true).count())
}

/// A full-width letter, digit or sign as ASCII has it.
pub(super) fn narrow(c: char) -> char {
    match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xff01 + 0x21).unwrap_or(c),
        _ => c,
    }
}

/// The terms of each word; of those between blanks only what is glued to others, unless all are wanted.
fn each(text: &str, all: bool, take: &mut dyn FnMut(String)) {
    if !all && !text.chars().any(is_dense) {
        return;
    }
    // Half-width and full-width forms are one, and so are syllables and their parts.
    let normal: String = text.nfkc().flat_map(char::to_lowercase).collect();
    for word in normal.split(|c| !is_of_word(c)).filter(|word| !word.is_empty()) {
        let is_mixed = word.chars().any(is_dense);
        for part in parts(word) {
            if part.starts_with(is_dense) {
                pairs(part, take);
            } else if is_mixed || all {
                take(part.to_owned());
            }
        }
    }
}

/// Pairs of neighbours, and those single characters that may be words.
fn pairs(run: &str, take: &mut dyn FnMut(String)) {
    let clusters: Vec<&str> = run.graphemes(true).collect();
    for (at, cluster) in clusters.iter().enumerate() {
        let is_word = match cluster.chars().next().map(script) {
            Some(Script::Han) => true,
            Some(Script::Hangul) => at == 0 && clusters.len() <= SHORT_HANGUL,
            _ => false,
        };
        if is_word || clusters.len() == 1 {
            take((*cluster).to_owned());
        }
        if let Some(next) = clusters.get(at + 1) {
            take(format!("{cluster}{next}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scripts_with_blanks_have_no_terms_of_their_own() {
        for text in
            ["The old bridge", "Straße, café, señor", "الجسر القديم", "старый мост", "παλιά γέφυρα", "पुराना पुल", ""]
        {
            assert_eq!(stored(text), None, "{text}");
        }
    }

    #[test]
    fn words_that_the_text_index_cuts_as_they_are_written_are_terms() {
        let terms = |text| stored(text).unwrap_or_default();
        assert_eq!(terms("Alte Fahrra\u{308}der im Keller"), "fahrrader fahrräder");
        assert_eq!(terms("De\u{300}s le the\u{301} a\u{300} la"), "dès thé");
        assert_eq!(terms("Donau\u{ad}dampf\u{ad}schiff"), "donaudampfschiff");
        assert_eq!(terms("İstanbul'da"), "istanbul");
        assert_eq!(asked("İstanbul"), "istanbul");
        assert_eq!(asked("Fahrräder"), "fahrräder");
        assert_eq!(terms("自\u{200b}行车"), terms("自行车"));
    }

    #[test]
    fn neighbours_are_terms_and_so_are_words_that_are_glued_to_them() {
        let terms = |text| stored(text).unwrap_or_default();
        assert_eq!(terms("修理自行车"), "修 修理 理 理自 自 自行 行 行车 车");
        assert_eq!(terms("ミシン"), "ミシ シン");
        assert_eq!(terms("ﾐｼﾝ"), "ミシ シン", "half-width");
        assert_eq!(terms("使用GPU加速"), "使 使用 用 gpu 加 加速 速");
        assert_eq!(terms("도서관에서"), "도서 서관 관에 에서");
        assert_eq!(terms("물을 The water"), "물 물을");
        assert_eq!(terms("１０４０度"), "1040 度", "full-width");
        assert_eq!(terms("น้ำผึ้ง").split(' ').count(), 3);
        assert_eq!(asked("GPU 加速 GPU"), "gpu 加 加速 速");
    }

    proptest! {
        #[test]
        fn a_part_of_a_text_has_its_terms(before in "[自行车修理ミシンกขคA-Z ]{0,12}", word in "[自行车修理]{2,6}", after in "[自行车修理のを。 ]{0,12}") {
            let all: HashSet<String> = stored(&format!("{before}{word}{after}")).unwrap().split(' ').map(str::to_owned).collect();
            for term in asked(&word).split(' ') {
                prop_assert!(all.contains(term), "{term}");
            }
        }

        #[test]
        fn any_text_has_terms_without_blanks_and_parts_are_the_text(text in any::<String>()) {
            prop_assert!(stored(&text).is_none_or(|terms| terms.split(' ').all(|term| !term.is_empty())));
            prop_assert!(asked(&text).split(' ').count() <= MOST_ASKED);
            prop_assert_eq!(parts(&text).collect::<String>(), text);
        }
    }
}
