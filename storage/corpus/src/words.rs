//! What kind of query a query's words are.

use std::collections::HashSet;

use super::table::text_index;

/// How many words people type into a search box. Longer ones are sentences, also in languages whose function words are not known here.
const WORDS: std::ops::RangeInclusive<usize> = 2..=6;
/// A longer query has more of them.
const MOST_BYTES: usize = 256;
/// What English sentences and questions are held together by (Lucene's stop words, question words, auxiliaries).
const FUNCTION_WORDS: &[&str] = &[
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "can", "did", "do", "does", "for", "from", "had", "has",
    "have", "how", "i", "if", "in", "into", "is", "it", "me", "my", "no", "not", "of", "on", "or", "our", "should",
    "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "we", "were", "what",
    "when", "where", "which", "who", "whom", "whose", "why", "will", "with", "would", "you",
];

/// A query that is a few words, as people type them into a search box.
pub(super) struct Keywords(HashSet<String>);

impl Keywords {
    /// `None` where it is something else.
    pub fn of(query: &str) -> Option<Self> {
        let is_sentence = query.len() > MOST_BYTES
            || query.contains(['?', '？', '؟'])
            || query.split(|c: char| !c.is_alphanumeric()).any(is_function_word);
        let words = if is_sentence { HashSet::new() } else { words(query) };
        WORDS.contains(&words.len()).then_some(Self(words))
    }

    /// Whether `passage`, the words' best, has at least half of them: the text was cut into passages, and the others may be in the next.
    pub fn are_in(&self, passage: &str) -> bool {
        2 * self.0.intersection(&words(passage)).count() >= self.0.len()
    }
}

/// Whether a word, in whatever letters, holds English sentences together.
pub(super) fn is_function_word(word: &str) -> bool {
    FUNCTION_WORDS.contains(&word.to_lowercase().as_str())
}

/// A text's words as the text index has them: lower case, stemmed, without accents and stop words. None where LanceDB has no analyzer.
fn words(text: &str) -> HashSet<String> {
    let mut words = HashSet::new();
    let Ok(mut analyzer) = text_index().build() else { return words };
    let mut stream = analyzer.token_stream_for_search(text);
    while stream.advance() {
        words.insert(stream.token().text.clone());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::Keywords;

    const PASSAGE: &str = "The roof of the old mill was repaired in 2019, and the miller paid for the café's chimneys.";

    fn are_keywords_of(query: &str, passage: &str) -> bool {
        Keywords::of(query).is_some_and(|keywords| keywords.are_in(passage))
    }

    #[test]
    fn words_of_a_search_box_are_told_from_a_question() {
        for query in ["roof mill", "Repairs miller 2019", "chimney cafe", "ROOF  mill, church", "roof church mill bell"]
        {
            assert!(are_keywords_of(query, PASSAGE), "{query}");
        }
        for query in
            ["", "roof", "roof roofs", "who repaired roof", "roof of mill", "roof mill?", "roof church bell", "the of"]
        {
            assert!(!are_keywords_of(query, PASSAGE), "{query}");
        }
        let long = "roof old mill repaired 2019 miller paid chimneys";
        assert!(!are_keywords_of(long, PASSAGE), "a sentence in a language whose function words are not known");
    }
}
