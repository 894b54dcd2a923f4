//! Texts to search: made of words as English has them, a few everywhere and most in few places, or read from a folder.

use std::path::{Path, PathBuf};

use ragstone_documents::{Document, find_files};
use ragstone_env::Env;

use crate::error::{Error, Result};

/// Different words of made texts.
const WORDS: usize = 50_000;
/// Words of a made passage: about 200 tokens, as many as fit the default embedding model's window.
pub const PASSAGE_WORDS: usize = 150;
/// Words that a made text's topic has to itself, and how many topics there are.
const TOPIC_WORDS: usize = 400;
const TOPICS: usize = 500;
/// Neighbouring words of a passage that are asked for.
const ASKED: usize = 6;
/// The most frequent words, as English has them.
const FREQUENT: [&str; 40] = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he",
    "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "you", "were", "all",
    "her", "she", "there", "would", "their", "we",
];
const SYLLABLES: [&str; 40] = [
    "ba", "ter", "lo", "min", "ra", "sel", "ton", "vi", "gar", "den", "po", "ris", "ka", "mel", "su", "nor", "ti",
    "bra", "fen", "la", "cor", "du", "hes", "ni", "pal", "ro", "stan", "ve", "wil", "ho", "gre", "mar", "le", "tun",
    "si", "pro", "cha", "dor", "em", "ul",
];

/// Makes passages, each the same whenever it is asked for.
pub struct Texts {
    words: Vec<String>,
    /// Where each word's share of all ends, of 1.
    ends: Vec<f64>,
    seed: u64,
}

impl Texts {
    /// Words by Zipf's law (the nth is as frequent as 1/n of the first) and topics with words of their own.
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut words: Vec<String> = FREQUENT.map(str::to_owned).into();
        let mut known: std::collections::HashSet<String> = words.iter().cloned().collect();
        while words.len() < WORDS {
            let syllables = 2 + random.usize(..3);
            let word: String = (0..syllables).map(|_| SYLLABLES[random.usize(..SYLLABLES.len())]).collect();
            if known.insert(word.clone()) {
                words.push(word);
            }
        }
        let mut sum = 0.0;
        let mut ends: Vec<f64> = (1..=WORDS)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        ends.iter_mut().for_each(|end| *end /= sum);
        Self { words, ends, seed }
    }

    /// A document of one passage.
    pub fn document(&self, number: usize) -> Document {
        let mut random = self.random(number as u64);
        let topic = random.usize(..TOPICS);
        let title = [self.topic_word(topic, &mut random), self.topic_word(topic, &mut random)].join(" ");
        let mut text = String::new();
        for at in 0..PASSAGE_WORDS {
            let word = if random.u8(..4) == 0 { self.topic_word(topic, &mut random) } else { self.word(&mut random) };
            if at > 0 {
                text.push_str(if at % 15 == 0 { ". " } else { " " });
            }
            text.push_str(word);
        }
        text.push('.');
        Document { id: Some(format!("made-{number}")), title, text, ..Document::default() }
    }

    fn word(&self, random: &mut fastrand::Rng) -> &str {
        let at = random.f64();
        &self.words[self.ends.partition_point(|end| *end <= at).min(WORDS - 1)]
    }

    fn topic_word(&self, topic: usize, random: &mut fastrand::Rng) -> &str {
        let span = WORDS - FREQUENT.len() - TOPIC_WORDS;
        &self.words[FREQUENT.len() + topic * span / TOPICS + random.usize(..TOPIC_WORDS)]
    }

    fn random(&self, number: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Neighbouring words of a text, from anywhere in it: what somebody asks who knows the text.
pub fn question(text: &str, random: &mut fastrand::Rng) -> String {
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let first = random.usize(..=words.len().saturating_sub(ASKED));
    words[first..words.len().min(first + ASKED)].join(" ")
}

/// The text files of a folder as documents, until there are so many bytes.
///
/// # Errors
/// `InvalidInput` where there is none.
pub fn of_folder(folder: &Path, most_bytes: usize) -> Result<Vec<Document>> {
    let is_text =
        |path: &PathBuf| path.extension().is_some_and(|ending| ["txt", "md"].iter().any(|text| ending == *text));
    let (mut documents, mut bytes) = (Vec::new(), 0);
    for file in find_files(&[folder.to_owned()])?.files.into_iter().filter(|file| is_text(&file.path)) {
        let text = std::fs::read(&file.path).map_err(|error| Error::io("cannot read", &file.path, error))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        bytes += text.len();
        let title = file.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        documents.push(Document { id: Some(file.path.display().to_string()), title, text, ..Document::default() });
        if bytes >= most_bytes {
            break;
        }
    }
    if documents.iter().all(|document| document.text.trim().is_empty()) {
        let message = format!("--folder {}: there is no text in its files named .txt or .md", folder.display());
        return Err(Error::invalid_input(message));
    }
    Ok(documents)
}

/// Random numbers of a benchmark.
pub fn random(seed: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed ^ Env::seeded(seed, 0).random_u64())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn texts_are_the_same_every_time_and_a_few_words_are_everywhere() {
        let (texts, again) = (Texts::new(1), Texts::new(1));
        let all: Vec<Document> = (0..200).map(|number| texts.document(number)).collect();
        assert!(all.iter().enumerate().all(|(number, document)| again.document(number).text == document.text));
        assert_ne!(all[0].text, Texts::new(2).document(0).text);
        let mut counts = HashMap::<&str, usize>::new();
        let words = all.iter().flat_map(|document| document.text.split([' ', '.'])).filter(|word| !word.is_empty());
        words.for_each(|word| *counts.entry(word).or_default() += 1);
        assert!(counts["the"] > 200 * PASSAGE_WORDS / 20, "{}", counts["the"]);
        let once = counts.values().filter(|count| **count == 1).count();
        assert!(once > counts.len() / 4, "{once} of {}", counts.len());
    }

    #[test]
    fn questions_are_words_of_the_text() {
        let (document, mut random) = (Texts::new(1).document(7), random(1));
        let asked = question(&document.text, &mut random);
        assert_eq!(asked.split(' ').count(), ASKED);
        assert!(asked.split(' ').all(|word| document.text.contains(word)));
        assert_eq!(question("two words", &mut random), "two words");
        assert_eq!(question("", &mut random), "");
    }
}
