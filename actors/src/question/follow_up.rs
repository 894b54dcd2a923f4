//! What a conversation searches for. "And what does it cost?" says nothing without what was said before it: such a message is searched for together
//! with the question before it and a short answer to that. Rules alone: they cost nothing, and are the same every time.

use ragstone_kernels::chat::ChatMessage;

/// A message of so few words that tell something leans on what was said before.
const MOST_WORDS: usize = 2;
/// Longer messages stand for themselves, whatever pronouns are in them.
const MOST_LEANING_WORDS: usize = 16;
/// A longer answer says more than what is asked about.
const MOST_ANSWER_WORDS: usize = 24;
/// Of a question before the last one.
const MOST_BEFORE_BYTES: usize = 512;
/// Questions before the last one, each leaning on the one before it.
const MOST_BEFORE: usize = 2;

/// A message that begins so goes on with what was said: English, German, French.
const BEGINNINGS: &[&str] = &[
    "and",
    "but",
    "also",
    "what about",
    "how about",
    "tell me more",
    "und",
    "aber",
    "auch",
    "was ist mit",
    "wie ist es mit",
    "et",
    "mais",
    "aussi",
    "qu'en est-il",
];
/// Words that stand for something said before.
const PRONOUNS: &[&str] = &[
    "it", "its", "they", "them", "their", "he", "him", "his", "she", "her", "same", "er", "ihn", "ihm", "sein",
    "seine", "sie", "ihr", "ihre", "dort", "davon", "dafür", "dazu", "darauf", "damit", "elle", "ils", "elles", "lui",
    "leur", "cela", "ça", "son", "sa", "ses",
];
/// Other words elsewhere, and pronouns at the end: "Wer repariert das?", "How much is this?", not "this week".
const PRONOUNS_AT_THE_END: &[&str] = &[
    "das", "es", "this", "that", "these", "those", "one", "ones", "dies", "diese", "dieser", "dieses", "celui",
    "celle", "ceux",
];
/// Words that say nothing about what is asked.
const EMPTY: &[&str] = &[
    "a", "an", "the", "is", "are", "was", "were", "do", "does", "did", "can", "could", "will", "would", "should",
    "what", "when", "where", "which", "who", "why", "how", "much", "many", "this", "that", "these", "those", "one",
    "of", "in", "on", "at", "to", "for", "with", "by", "from", "or", "please", "if", "not", "no", "yes", "so", "then",
    "be", "have", "has", "about", "der", "die", "den", "dem", "ein", "eine", "einen", "ist", "sind", "war", "wann",
    "wo", "wer", "wie", "warum", "welche", "welcher", "viel", "viele", "von", "im", "am", "zu", "für", "mit", "oder",
    "nicht", "kann", "das", "es", "gibt", "there", "il", "y", "en", "le", "la", "les", "un", "une", "est", "sont",
    "que", "quoi", "quand", "où", "qui", "comment", "combien", "pourquoi", "de", "du", "des", "à", "au", "pour",
    "avec",
];

/// The same of languages that put no blanks between words, or hang particles on them (Chinese, Japanese, Korean, Thai): a message of few characters
/// that begins so,
const DENSE_BEGINNINGS: &[&str] = &[
    "那",
    "还有",
    "另外",
    "但是",
    "では",
    "じゃあ",
    "それで",
    "ちなみに",
    "그럼",
    "그러면",
    "그리고",
    "그런데",
    "แล้ว",
    "และ",
];
/// or has one of these in it, stands for too little.
const DENSE_PRONOUNS: &[&str] = &[
    "它",
    "这个",
    "那个",
    "那里",
    "为什么呢",
    "それ",
    "その",
    "そこ",
    "그것",
    "그건",
    "그거",
    "거기",
    "มัน",
    "อันนั้น",
    "ที่นั่น",
];
/// Longer messages of these stand for themselves.
const MOST_DENSE_CHARACTERS: usize = 20;
/// Longer answers in them say more than what is asked about.
const MOST_ANSWER_BYTES: usize = 160;

/// What to search for: what the user said last, behind which the results of tools may stand, with what it leans on.
pub fn searched(messages: &[ChatMessage]) -> String {
    let Some(last) = last_of_user(messages) else { return String::new() };
    let mut query = messages[last].content.clone();
    let (mut behind, mut leaning) = (last, leans(&query));
    for _ in 0..MOST_BEFORE {
        let Some(before) = last_of_user(&messages[..behind]).filter(|_| leaning) else { break };
        let answers = messages[before + 1..behind].iter().filter(|message| message.role == "assistant");
        let answer = answers.map(|message| message.content.trim()).find(|text| is_short(text)).unwrap_or_default();
        let asked = end_of(messages[before].content.trim());
        leaning = leans(asked);
        query =
            [asked, answer, query.as_str()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n");
        behind = before;
    }
    query
}

fn last_of_user(messages: &[ChatMessage]) -> Option<usize> {
    messages.iter().rposition(|message| message.role == "user")
}

fn is_short(answer: &str) -> bool {
    let is_long = answer.len() > MOST_ANSWER_BYTES && answer.chars().any(is_dense);
    !answer.is_empty() && !is_long && answer.split_whitespace().nth(MOST_ANSWER_WORDS).is_none()
}

/// Whether a message says too little by itself.
fn leans(message: &str) -> bool {
    let words: Vec<&str> =
        message.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty()).collect();
    if words.is_empty() || words.len() > MOST_LEANING_WORDS {
        return false;
    }
    if message.chars().any(is_dense) {
        return leans_dense(message.trim());
    }
    let lower = message.trim().to_lowercase();
    let begins =
        |beginning: &&str| lower.strip_prefix(*beginning).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
    // IT is no pronoun, and within a sentence Sie and Ihre are whoever is asked.
    let is_name = |at: usize, word: &str| {
        at > 0 && word.starts_with(char::is_uppercase) || word.len() > 1 && !word.contains(char::is_lowercase)
    };
    let mut telling = 0;
    let mut has_pronoun = false;
    for (at, word) in words.iter().enumerate() {
        let lower = word.to_lowercase();
        let is_pronoun = PRONOUNS.contains(&lower.as_str()) && !is_name(at, word);
        has_pronoun |= is_pronoun || (at + 1 == words.len() && PRONOUNS_AT_THE_END.contains(&lower.as_str()));
        let says_nothing = EMPTY.contains(&lower.as_str()) && !is_name(at, word);
        telling += usize::from(!is_pronoun && !says_nothing);
    }
    let shouts = !message.contains(char::is_lowercase);
    BEGINNINGS.iter().any(begins) && !is_name(0, words[0])
        || telling == 0
        || (telling <= MOST_WORDS && has_pronoun && !shouts)
}

/// As [`leans`], of a message in which blanks do not say where words are.
fn leans_dense(message: &str) -> bool {
    message.chars().filter(|c| c.is_alphanumeric()).count() <= MOST_DENSE_CHARACTERS
        && (DENSE_BEGINNINGS.iter().any(|beginning| message.starts_with(beginning))
            || DENSE_PRONOUNS.iter().any(|pronoun| message.contains(pronoun)))
}

/// Characters of Thai, of kana and Chinese characters, and of Hangul.
fn is_dense(c: char) -> bool {
    matches!(c, '\u{0e01}'..='\u{0e4e}' | '\u{3041}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}')
}

/// The end of a long message, where what is asked stands.
fn end_of(message: &str) -> &str {
    &message[message.ceil_char_boundary(message.len().saturating_sub(MOST_BEFORE_BYTES))..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(said: &[(&str, &str)]) -> Vec<ChatMessage> {
        said.iter().map(|(role, content)| ChatMessage::new(*role, *content)).collect()
    }

    #[test]
    fn a_message_that_leans_on_others_is_searched_for_with_them() {
        let talk = |last: &str| {
            searched(&conversation(&[
                ("user", "Which pump is in the cellar?"),
                ("assistant", "The Q-105."),
                ("user", last),
            ]))
        };
        for leaning in [
            "And what does it cost?",
            "What does it cost?",
            "Who repairs it?",
            "Why?",
            "And in winter?",
            "What about the garage?",
            "Und was kostet sie?",
            "Wer repariert das?",
            "Et combien coûte-t-elle ?",
            "how much is that one?",
            "那多少钱？",
            "它多少钱？",
            "それはいくらですか？",
            "그럼 가격은 얼마예요?",
            "แล้วราคาเท่าไหร่",
        ] {
            assert_eq!(talk(leaning), format!("Which pump is in the cellar?\nThe Q-105.\n{leaning}"));
        }
        for whole in [
            "Wie erreiche ich Sie?",
            "自行车修理多少钱？",
            "図書館は何時に開きますか？",
            "도서관은 언제 엽니까?",
            "ห้องสมุดเปิดกี่โมง",
            "Wann haben Sie geöffnet?",
            "Wo finde ich Ihre Adresse?",
            "Who is on call this week?",
            "What is one mile?",
            "What is IT?",
            "Who are you?",
            "AND gate truth table",
            "Is there a sauna?",
            "Gibt es einen Aufzug?",
            "Wann öffnet das Museum?",
            "When is the library open on Saturdays?",
            "How high is the tower of Orvik?",
            "Wann tagt der Vorstand?",
            "Andrew's telephone number?",
            "Which of the two keys opens the shed that stands behind the house of the gardener, and who has it now in the winter?",
        ] {
            assert_eq!(talk(whole), whole);
        }
    }

    #[test]
    fn long_answers_and_the_results_of_tools_are_no_part_of_it() {
        let long = "word ".repeat(40);
        let talk = [
            ("system", "Be brief."),
            ("user", "Who keeps the keys?"),
            ("assistant", &long),
            ("user", "And her number?"),
            ("tool", "7"),
        ];
        assert_eq!(searched(&conversation(&talk)), "Who keeps the keys?\nAnd her number?");
        let chain = [
            ("user", "Who keeps the keys?"),
            ("assistant", "Ida."),
            ("user", "And when?"),
            ("assistant", "Daily."),
            ("user", "Why?"),
        ];
        assert_eq!(searched(&conversation(&chain)), "Who keeps the keys?\nIda.\nAnd when?\nDaily.\nWhy?");
        let pasted = "word ".repeat(9999) + "Who keeps the keys?";
        let query = searched(&conversation(&[("user", &pasted), ("user", "And why?")]));
        assert!(query.ends_with("Who keeps the keys?\nAnd why?") && query.len() < 600, "{}", query.len());
        assert_eq!(searched(&conversation(&[("user", "Why?")])), "Why?");
        assert_eq!(searched(&[]), "");
    }
}
