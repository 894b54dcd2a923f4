//! The words of a question that say what it is about, and how many of them a passage has.

use std::collections::BTreeSet;

use super::language::says_nothing;
use crate::composed::searched;
use crate::scripts::{self, is_dense};

/// Words of a question that are looked for.
const MOST: usize = 256;

/// Words that ask of no topic, as people begin with them: greetings, and what is said of documents whatever they are about.
const GENERAL: &[&str] = &[
    "all",
    "about",
    "there",
    "anything",
    "everything",
    "hello",
    "hey",
    "hi",
    "good",
    "morning",
    "afternoon",
    "evening",
    "thank",
    "thanks",
    "please",
    "help",
    "test",
    "document",
    "documents",
    "file",
    "files",
    "folder",
    "folders",
    "collection",
    "collections",
    "corpus",
    "text",
    "texts",
    "content",
    "contents",
    "topic",
    "topics",
    "summarise",
    "summarize",
    "summary",
    "overview",
    "list",
    "show",
    "tell",
    "describe",
    "hallo",
    "guten",
    "morgen",
    "abend",
    "tag",
    "danke",
    "bitte",
    "hilfe",
    "dokument",
    "dokumente",
    "dokumenten",
    "datei",
    "dateien",
    "ordner",
    "sammlung",
    "inhalt",
    "thema",
    "themen",
    "fasse",
    "zusammen",
    "zusammenfassung",
    "überblick",
    "zeig",
    "liste",
    "bonjour",
    "salut",
    "bonsoir",
    "merci",
    "aide",
    "fichier",
    "fichiers",
    "dossier",
    "contenu",
    "sujet",
    "sujets",
    "résume",
    "résumé",
    "liste",
    "montre",
    "hola",
    "buenos",
    "días",
    "gracias",
    "ayuda",
    "documento",
    "documentos",
    "archivo",
    "archivos",
    "carpeta",
    "contenido",
    "tema",
    "temas",
    "resume",
    "resumen",
    "lista",
    "muestra",
    "summaries",
    "summarizes",
    "summarises",
    "summarised",
    "summarized",
    "overviews",
    "lists",
    "listing",
    "shows",
    "tells",
    "helps",
    "tests",
    "describes",
    "zeige",
    "zeigt",
    "inhalte",
    "inhalts",
    "inhalten",
    "sammlungen",
    "ordnern",
    "texte",
    "texten",
    "zusammenfassen",
    "zusammenfassungen",
    "dokuments",
    "dossiers",
    "contenus",
    "résumez",
    "résumer",
    "résumés",
    "carpetas",
    "contenidos",
    "resúmenes",
];

/// What a text is about.
pub(super) struct Content {
    /// Its words without small ones and without endings; of scripts without blanks pairs of neighbours.
    words: BTreeSet<String>,
    /// Whether it asks of no topic.
    is_general: bool,
}

impl Content {
    pub fn of(text: &str) -> Self {
        let (mut words, mut is_general) = (BTreeSet::new(), true);
        let normal: String = searched(text).chars().map(scripts::narrow).flat_map(char::to_lowercase).collect();
        for word in normal.split(|c: char| !c.is_alphanumeric() || is_dense(c)) {
            if word.chars().count() > 1 && !says_nothing(word) {
                // Whole: `colleges` begin as a collection does.
                is_general = is_general && GENERAL.contains(&word);
                words.insert(stem(word).to_owned());
            }
        }
        let terms = scripts::stored(text).unwrap_or_default();
        let pairs = terms.split(' ').filter(|term| term.starts_with(is_dense) && term.chars().count() > 1);
        for pair in pairs {
            is_general = false;
            words.insert(pair.to_owned());
        }
        Self { words, is_general }
    }

    /// Whether it asks of no topic: it has small words alone, greets, or wants to know what the documents are.
    pub fn is_general(&self) -> bool {
        self.is_general
    }

    /// The share of them that a passage has. One of several alone may be there by chance: it counts for half.
    pub fn share_in(&self, passage: &str) -> f32 {
        let asked = self.words.len().min(MOST);
        if asked == 0 {
            return 0.0;
        }
        let there = Self::of(passage);
        let found = self.words.iter().take(MOST).filter(|word| there.words.contains(*word)).count();
        let share = found as f32 / asked as f32;
        if found == 1 && asked > 1 { share / 2.0 } else { share }
    }
}

/// A word's first five letters (truncation, which needs no language's rules): without its ending, in any language that hangs endings on words.
/// Numbers and short words stay.
fn stem(word: &str) -> &str {
    let letters = word.chars().count();
    let kept = match letters {
        _ if word.bytes().all(|byte| byte.is_ascii_digit()) => letters,
        0..=4 => letters,
        5 => 4,
        _ => 5,
    };
    word.char_indices().nth(kept).map_or(word, |(at, _)| &word[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(question: &str, passage: &str) -> f32 {
        Content::of(question).share_in(passage)
    }

    #[test]
    fn a_passage_has_words_whatever_their_endings() {
        assert_eq!(share("Who services the boilers?", "The boiler is serviced in October."), 1.0);
        assert_eq!(share("Wer repariert Fahrräder?", "Im Keller werden Fahrrädern repariert."), 1.0);
        assert_eq!(share("Fahrräder", "Alte Fahrra\u{308}der"), 1.0, "however they are written");
        assert_eq!(share("What is it?", "It is what it is."), 0.0, "small words say nothing");
        assert_eq!(share("the roof of the mill", "A roof."), 0.25, "one of two may be chance");
        assert_eq!(share("roof", "A roof."), 1.0);
        assert_eq!(share("in 1990", "In 1990 and 19905"), 1.0);
        assert_eq!(share("1990", "19905"), 0.0);
        assert_eq!(share("", "A roof."), 0.0);
        assert_eq!(share("roof", ""), 0.0);
    }

    #[test]
    fn what_asks_of_no_topic_is_known() {
        for question in [
            "",
            "Hello!",
            "What is all this about?",
            "Which documents are there?",
            "Fasse die Dokumente zusammen.",
            "Bonjour, merci",
            "Zeige die Dateien",
            "Quels dossiers y a-t-il ?",
            "Résumez les documents",
        ] {
            assert!(Content::of(question).is_general(), "{question}");
        }
        for question in [
            "Hello, who mends the roof?",
            "Which documents are about taxes?",
            "Which colleges are there?",
            "What are the contests?",
            "What is COM?",
            "Where is Como?",
            "roof",
            "1990",
            "自行车",
        ] {
            assert!(!Content::of(question).is_general(), "{question}");
        }
    }

    #[test]
    fn scripts_without_blanks_are_compared_by_pairs() {
        assert!(share("洗衣机可以使用到几点", "洗衣机可以使用到晚上九点。") > 0.5);
        assert_eq!(share("月球离地球有多远", "洗衣机可以使用到晚上九点。"), 0.0);
        assert!(share("자전거를 수리", "자전거를 수리합니다") > 0.9);
    }
}
