//! What kind of query a query's words are.

use std::collections::HashSet;

use super::composed::searched;
use super::relevance::{is_question_word, is_small_word};
use super::scripts::{self, is_dense};
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

/// What questions and sentences have in scripts whose words are not cut at blanks: Chinese, Japanese, Korean, Thai.
const FUNCTION_PARTS: &[&str] = &[
    "什么",
    "哪",
    "谁",
    "怎",
    "如何",
    "多少",
    "多久",
    "多长",
    "几",
    "吗",
    "呢",
    "为何",
    "何时",
    "何",
    "誰",
    "だれ",
    "どこ",
    "いつ",
    "なぜ",
    "どう",
    "どの",
    "いくら",
    "です",
    "ます",
    "ください",
    "어디",
    "언제",
    "무엇",
    "무슨",
    "왜",
    "누가",
    "어떻게",
    "어떤",
    "얼마",
    "니까",
    "니다",
    "나요",
    "อะไร",
    "ไหน",
    "เมื่อ",
    "ทำไม",
    "อย่างไร",
    "เท่า",
    "ใคร",
    "กี่",
    "ไหม",
];
/// Of other languages so many small words of more than an ASCII letter make a sentence: one alone may be a name's, or a word of another language (`war memorial`, `Los Angeles`).
const SMALL_WORDS: usize = 2;
/// Characters of a word in these scripts, about.
const DENSE_WORD: usize = 3;

/// A query that is a few words, as people type them into a search box.
pub(super) struct Keywords(HashSet<String>);

impl Keywords {
    /// `None` where it is something else.
    pub fn of(query: &str) -> Option<Self> {
        let words: Vec<&str> = query.split(|c: char| !c.is_alphanumeric() || is_dense(c)).collect();
        let (small, others): (Vec<&str>, Vec<&str>) =
            words.iter().copied().filter(|word| !word.is_empty()).partition(|word| is_small_word(&word.to_lowercase()));
        let is_sentence = query.len() > MOST_BYTES
            || query.contains(['?', '？', '؟'])
            || words.iter().any(|word| is_function_word(word))
            || words.iter().find(|word| !word.is_empty()).is_some_and(|word| is_question_word(&word.to_lowercase()))
            || small.iter().filter(|word| word.len() > 1).count() >= SMALL_WORDS
            || (query.contains(is_dense) && FUNCTION_PARTS.iter().any(|part| query.contains(part)));
        if is_sentence {
            return None;
        }
        let dense: usize = scripts::runs(query).map(|run| run.div_ceil(DENSE_WORD)).sum();
        // Small words are typed, too, and say nothing.
        let asked = || -> HashSet<String> { spaced_words(&others.join(" ")).into_iter().chain(terms(query)).collect() };
        WORDS.contains(&(spaced_words(query).len() + dense)).then(|| Self(asked()))
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

/// A text's words as the text index and the index of terms have them.
fn words(text: &str) -> HashSet<String> {
    spaced_words(text).into_iter().chain(terms(text)).collect()
}

fn terms(text: &str) -> HashSet<String> {
    scripts::stored(text).iter().flat_map(|terms| terms.split(' ')).map(str::to_owned).collect()
}

/// A text's words between blanks as the text index has them: lower case, stemmed, without accents and stop words. None where LanceDB has no analyzer.
fn spaced_words(text: &str) -> HashSet<String> {
    let mut words = HashSet::new();
    let Ok(mut analyzer) = text_index().build() else { return words };
    let text: String = searched(text).chars().map(|c| if is_dense(c) { ' ' } else { c }).collect();
    let mut stream = analyzer.token_stream_for_search(&text);
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
    fn words_of_scripts_without_blanks_are_told_from_a_question() {
        for (query, passage) in [
            ("自行车 修理", "大家在地下室一起修理自行车。"),
            ("洗衣机代币", "洗衣机可以使用到晚上九点。洗衣代币由管理员出售。"),
            ("水道ﾒｰﾀｰ 写真", "水道メーターを読み取り、写真を送ってください。"),
            ("매트리스의 수거", "낡은 가구와 매트리스는 시청에서 수거합니다."),
            ("เครื่องซักผ้า เหรียญ", "เหรียญสำหรับซักผ้าซื้อได้จากผู้ดูแลอาคาร เครื่องซักผ้าใช้ได้ถึงสามทุ่ม"),
            ("GPU 加速", "使用GPU加速计算"),
        ] {
            assert!(are_keywords_of(query, passage), "{query}");
            assert!(!are_keywords_of(query, PASSAGE), "{query}");
        }
        for query in [
            "废纸桶多久清空一次",
            "丸のこを使う前に何をしますか",
            "자전거는 어떻게 됩니까",
            "แยมลูกพลัมใส่น้ำตาลเท่าไร",
            "蜂蜜",
        ] {
            assert!(Keywords::of(query).is_none(), "{query}");
        }
    }

    #[test]
    fn questions_without_a_question_mark_are_told_in_other_languages() {
        let german = "Wie der Bürgermeister sagt, ist der Markt hoch besucht.";
        for query in [
            "wie hoch ist der Turm",
            "quelle est la hauteur",
            "cuál es la altura",
            "dove si trova la torre",
            "onde fica a torre",
            "waar staat de toren",
            "Wer repariert Fahrräder",
            "Où habite Marie",
            "donde vive Ana",
        ] {
            assert!(Keywords::of(query).is_none(), "{query}");
        }
        // Single letters are sizes and units.
        assert!(are_keywords_of("T-shirt L", "T-shirts: M, L"));
        // Of one small word nothing is known, and it does not count.
        assert!(are_keywords_of("Markt des Bürgermeister Turm", german));
        assert!(!are_keywords_of("Höhe der Turm", german));
        assert!(are_keywords_of("war memorial", "The memorial of the war"));
    }

    #[test]
    fn words_are_compared_however_their_letters_are_written() {
        assert!(are_keywords_of("Fahrräder Keller", "Alte Fahrra\u{308}der"));
        assert!(are_keywords_of("Istanbul ferry", "İstanbul'da"));
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
