//! The language of a question, as far as its letters and its small words tell it.

use serde::{Deserialize, Serialize};

use crate::scripts::is_dense;

/// A language that questions are known in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    English,
    German,
    French,
    Spanish,
    Russian,
    Chinese,
    Japanese,
    Korean,
    Arabic,
    Thai,
}

/// What a question's letters are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Letters {
    /// Of a language that is known.
    Of(Language),
    /// Latin ones, and none of the known languages stands out.
    Latin,
    /// Others, or none.
    Others,
}

/// Small words of a language that none of the others here has.
const SMALL_WORDS: [(Language, &[&str]); 4] = [
    (
        Language::English,
        &[
            "the", "of", "and", "is", "are", "were", "what", "when", "where", "which", "who", "whom", "whose", "why",
            "how", "did", "do", "does", "has", "have", "had", "for", "from", "with", "this", "that", "these", "can",
            "could", "should", "would", "it", "be", "to", "my", "your", "our", "their", "there", "much", "many", "by",
            "at", "i", "we", "you", "they", "not",
        ],
    ),
    (
        Language::German,
        &[
            "der", "die", "das", "dem", "den", "ein", "eine", "einer", "eines", "einem", "einen", "ist", "sind",
            "waren", "wie", "wer", "wo", "wann", "warum", "wem", "wen", "welche", "welcher", "welches", "welchen",
            "und", "oder", "nicht", "mit", "von", "im", "auf", "für", "zu", "zum", "zur", "bei", "aus", "nach", "hat",
            "haben", "wird", "werden", "wurde", "man", "sich", "ich", "wir", "ihr", "kann", "muss", "darf", "viel",
            "viele", "lautet", "bis", "beim", "vom", "wofür", "womit", "wohin", "woher", "was",
        ],
    ),
    (
        Language::French,
        &[
            "le", "les", "des", "du", "et", "est", "sont", "qui", "quel", "quelle", "quels", "quelles", "quand",
            "comment", "combien", "pourquoi", "où", "dans", "sur", "pour", "par", "avec", "au", "aux", "elle", "il",
            "ce", "cette", "ces", "sa", "ses", "ne", "pas", "l", "d", "qu", "t", "une", "je", "nous", "vous", "faut",
            "peut", "à", "ont", "était",
        ],
    ),
    (
        Language::Spanish,
        &[
            "el", "los", "las", "una", "unos", "del", "al", "y", "son", "quién", "quiénes", "qué", "cuál", "cuáles",
            "cuándo", "cómo", "cuánto", "cuánta", "cuántos", "cuántas", "dónde", "por", "para", "con", "está", "están",
            "hay", "puedo", "mi", "nuestro", "fue", "tiene", "tienen", "lo",
        ],
    ),
];

/// Small words of languages that no question is known in: Italian, Portuguese, Dutch; and Spanish ones as keyboards without accents write them.
/// [`TOPICS`] are words of another language, too.
const OTHER_SMALL_WORDS: &[&str] = &[
    "il", "gli", "della", "dello", "delle", "degli", "dei", "nella", "nel", "alla", "dalla", "sulla", "che", "chi",
    "è", "si", "perché", "quanto", "quanti", "quanta", "quante", "quale", "quali", "quando", "sono", "di", "da", "e",
    "o", "um", "uma", "do", "das", "na", "nos", "ao", "à", "às", "pelo", "pela", "qual", "quais", "quem", "onde",
    "quantos", "quantas", "são", "está", "é", "não", "com", "het", "een", "wat", "wie", "waar", "wanneer", "waarom",
    "hoeveel", "welke", "welk", "zijn", "niet", "voor", "naar", "bij", "uit", "aan", "ik", "kan", "wordt", "donde",
    "dónde", "cuando", "cual", "quien", "cuanto", "como", "esta", "i", "ed",
];

/// Small words that somebody may ask about: an interface, a person, a town.
const TOPICS: &[&str] = &["che", "com", "como", "di", "nos", "si", "uit"];

/// With one of these words questions begin, and hardly ever what people type into a search box (French `comment`, Italian `dove` and Dutch `wat` are words of others).
const QUESTION_WORDS: &[&str] = &[
    "wer", "wie", "wo", "wann", "warum", "wieso", "weshalb", "wem", "wen", "wohin", "woher", "womit", "wofür",
    "welche", "welcher", "welches", "où", "quand", "combien", "pourquoi", "quel", "quelle", "quels", "quelles", "qué",
    "quién", "quiénes", "cuál", "cuáles", "cuándo", "cuando", "cómo", "cuánto", "cuánta", "cuántos", "cuántas",
    "dónde", "donde", "perché", "quanto", "quanti", "quante", "quale", "quali", "onde", "quem", "qual", "quais",
    "quantos", "quantas", "waar", "wanneer", "waarom", "hoeveel", "welke",
];

/// Words of a clause that is all in one of these count so much less than what blanks keep apart.
const LETTERS_OF_DENSE_WORD: usize = 2;
const LETTERS_OF_WORD: usize = 5;

impl Language {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::English,
        Self::German,
        Self::French,
        Self::Spanish,
        Self::Russian,
        Self::Chinese,
        Self::Japanese,
        Self::Korean,
        Self::Arabic,
        Self::Thai,
    ];

    /// That of a question; `None` where nothing tells it.
    pub fn of(text: &str) -> Option<Self> {
        match Letters::of(text) {
            Letters::Of(language) => Some(language),
            Letters::Latin | Letters::Others => None,
        }
    }
}

impl Letters {
    pub fn of(text: &str) -> Self {
        let (mut latin, mut others, mut counts) = (0, 0, [0_usize; 6]);
        for c in text.chars().filter(|c| c.is_alphabetic() || is_dense(*c)) {
            match c {
                '\u{3041}'..='\u{30ff}' | '\u{ff66}'..='\u{ff9f}' => counts[0] += 1,
                '\u{1100}'..='\u{11ff}' | '\u{3131}'..='\u{318e}' | '\u{ac00}'..='\u{d7a3}' => counts[1] += 1,
                '\u{0e01}'..='\u{0e5b}' => counts[2] += 1,
                '\u{0600}'..='\u{06ff}' | '\u{0750}'..='\u{077f}' => counts[3] += 1,
                '\u{0400}'..='\u{04ff}' => counts[4] += 1,
                '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' => counts[5] += 1,
                'a'..='z' | 'A'..='Z' | '\u{00c0}'..='\u{024f}' => latin += 1,
                _ => others += 1,
            }
        }
        // A Japanese sentence has Chinese characters, a Chinese one no kana.
        let [kana, hangul, thai, arabic, cyrillic, han] = counts;
        let japanese = if kana > 0 { kana + han } else { 0 };
        let chinese = if kana > 0 { 0 } else { han };
        let dense = |letters: usize| letters * LETTERS_OF_WORD / LETTERS_OF_DENSE_WORD;
        let weights = [
            (dense(japanese), Self::Of(Language::Japanese)),
            (dense(chinese), Self::Of(Language::Chinese)),
            (dense(hangul), Self::Of(Language::Korean)),
            (dense(thai), Self::Of(Language::Thai)),
            (arabic, Self::Of(Language::Arabic)),
            (cyrillic, Self::Of(Language::Russian)),
            (others, Self::Others),
        ];
        let (most, letters) = weights.into_iter().max_by_key(|(weight, _)| *weight).unwrap_or((0, Self::Others));
        match most.max(latin) {
            0 => Self::Others,
            _ if most > latin => letters,
            _ => by_small_words(text).map_or(Self::Latin, Self::Of),
        }
    }
}

/// The language of most small words; `None` where two have as many, or none has any.
fn by_small_words(text: &str) -> Option<Language> {
    if text.contains(['¿', '¡']) {
        return Some(Language::Spanish);
    }
    let text = text.to_lowercase();
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let count = |small: &[&str]| words.iter().filter(|word| small.contains(word)).count();
    let mut counts = SMALL_WORDS.map(|(language, small)| (count(small), language));
    counts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let [(most, language), (next, _), ..] = counts;
    (most > next).then_some(language)
}

/// Whether a word in small letters holds sentences of one of these languages together.
pub(in super::super) fn is_small_word(word: &str) -> bool {
    const SHARED: &[&str] = &[
        "a", "an", "as", "in", "on", "or", "la", "un", "de", "se", "en", "es", "que", "am", "du", "son", "ou", "no",
        "was", "war",
    ];
    SHARED.contains(&word)
        || OTHER_SMALL_WORDS.contains(&word)
        || SMALL_WORDS.iter().any(|(_, small)| small.contains(&word))
}

/// As [`is_small_word`], of those that are nobody's topic.
pub(super) fn says_nothing(word: &str) -> bool {
    is_small_word(word) && !TOPICS.contains(&word)
}

/// Whether a question begins with this word in small letters.
pub(in super::super) fn is_question_word(word: &str) -> bool {
    QUESTION_WORDS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_tell_their_language() {
        for (text, language) in [
            ("How far is the moon?", Some(Language::English)),
            ("What was in the old house?", Some(Language::English)),
            ("Wann war das Fest in der Aula?", Some(Language::German)),
            ("Was kostet die Versicherung der Laube?", Some(Language::German)),
            ("Quel est le mot de passe ?", Some(Language::French)),
            ("Avant quelle heure faut-il partir ?", Some(Language::French)),
            ("¿Cuándo cierra la oficina?", Some(Language::Spanish)),
            ("Когда офис закрыт?", Some(Language::Russian)),
            ("公司的总经理是谁？", Some(Language::Chinese)),
            ("会社の社長は誰ですか？", Some(Language::Japanese)),
            ("ｶｲｼｬ 社長", Some(Language::Japanese)),
            ("회사의 대표 이사는 누구입니까?", Some(Language::Korean)),
            ("من هو المدير العام للشركة؟", Some(Language::Arabic)),
            ("สำนักงานปิดเมื่อไร", Some(Language::Thai)),
            ("What does 自行车 mean in English?", Some(Language::English)),
            ("用GPU加速训练", Some(Language::Chinese)),
            ("roof slate", None),
            ("Πότε κλείνει το γραφείο;", None),
            ("PPR-1670", None),
            ("", None),
            ("123 ?!", None),
        ] {
            assert_eq!(Language::of(text), language, "{text}");
        }
        assert_eq!(Letters::of("roof slate"), Letters::Latin);
        assert_eq!(Letters::of("Πότε κλείνει"), Letters::Others);
    }
}
