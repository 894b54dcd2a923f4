//! Whether an answer stands on the passages of its prompt: its numbers, names and words are looked for in them. No model judges; what is
//! not in the passages word for word is not found, so a rephrased answer may count as unsupported, and a wrong one that
//! puts words of one passage together as supported.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unicode_segmentation::UnicodeSegmentation;

use crate::report::citation::Citation;

/// The share of an answer's words that must be in the passages, beside all its numbers and names.
const SHARE: f64 = 0.6;
/// Letters of a word that tells something: shorter ones are articles and their like.
const TELLING: usize = 4;
/// Letters that a word's ending may differ by, where it has as many again and more.
const ENDING: usize = 3;
/// Short answers that no passage has.
const VERDICTS: &[&str] = &["yes", "no", "ja", "nein", "oui", "non"];
/// Words within which a refusal is said, if one is.
const OPENING: usize = 20;
/// What a number or a name weighs beside a word, where passages are chosen.
const CLAIM: usize = 8;
/// Words of an answer that are looked for, of the rest of a long one numbers and names, and so many of all. Sentences are told up to the
/// first number.
const MOST_WORDS: usize = 1000;
const MOST_CLAIMS: usize = 2000;
/// Of a text whose nouns have capitals, a greater share of the words within sentences has some: of German about a third, of English a tenth.
const CAPITALS: f64 = 0.25;
/// Words of the answer that are named where they are in no passage, at the most.
const NAMED: usize = 8;
/// What models end their thoughts with.
const THOUGHT: &str = "</think>";
/// What models begin calls of tools with.
const CALLS: [&str; 2] = ["<tool_call>", "[TOOL_CALLS]"];
/// How models say that the passages have no answer, as words between spaces: the readers' own (ops/reader) and usual ones.
const REFUSALS: &[&str] = &[
    " passages do not say ",
    " passages don't say ",
    " passages do not mention ",
    " passages do not contain ",
    " passages do not provide ",
    " passage does not say ",
    " passage does not mention ",
    " not mentioned in the passages ",
    " not mentioned in the passage ",
    " not stated in the passages ",
    " steht nicht in den passagen ",
    " in den passagen nicht ",
    " passages ne le disent pas ",
    " passages ne mentionnent pas ",
];

/// What an answer stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Grounding {
    /// Whether its words are in the passages.
    pub state: GroundingState,
    /// The passages that have them, by their `number` among the citations; empty unless it is supported.
    pub passages: Vec<usize>,
    /// Numbers and names of the answer that no passage has; 8 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The answer's sentences, in their order; those in which nothing could be looked for are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sentences: Vec<GroundedSentence>,
}

/// A sentence of an answer, and what it stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroundedSentence {
    /// The sentence, as it stands in the answer.
    pub text: String,
    /// The passages that have its words, by their `number` among the citations; empty where they do not have them.
    pub passages: Vec<usize>,
}

impl Grounding {
    /// Of an answer that says that there is none.
    pub(crate) fn not_in_passages() -> Self {
        let (passages, missing, sentences) = Default::default();
        Self { state: GroundingState::NotInPassages, passages, missing, sentences }
    }

    /// A sentence for people.
    pub fn in_words(&self) -> String {
        match self.state {
            GroundingState::Supported => {
                let numbers: Vec<String> = self.passages.iter().map(|number| format!("[{number}]")).collect();
                format!("The answer's words are in {}.", numbers.join(" and "))
            }
            GroundingState::Unsupported if self.missing.is_empty() => {
                "Too few of the answer's words are in the passages.".to_owned()
            }
            GroundingState::Unsupported => format!("In none of the passages: {}.", self.missing.join(", ")),
            GroundingState::NotInPassages => "None of the passages answers it, the model says.".to_owned(),
        }
    }
}

/// Whether an answer's words are in the passages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroundingState {
    /// All its numbers and names are, and most of its other words.
    Supported,
    /// They are not.
    Unsupported,
    /// It says itself that the passages have no answer.
    NotInPassages,
}

/// What `answer` stands on; `None` where there are no passages, or nothing in it could be looked for (`Yes.`).
pub(crate) fn of(answer: &str, citations: &[Citation]) -> Option<Grounding> {
    // What a model thought before is no answer, and neither is a call.
    let answer = answer.rsplit_once(THOUGHT).map_or(answer, |(_, answer)| answer);
    if citations.is_empty() || CALLS.iter().any(|call| answer.contains(call)) {
        return None;
    }
    if is_refusal(answer) {
        return Some(Grounding::not_in_passages());
    }
    let has_names = !has_capital_nouns(citations);
    let said = telling_words(&without_marks(answer), has_names);
    if said.is_empty() {
        return None;
    }
    let passages: Vec<Passage> = citations.iter().map(Passage::of).collect();
    let (found, missing) = passages_with(&said, &passages);
    let state = if found.is_empty() { GroundingState::Unsupported } else { GroundingState::Supported };
    Some(Grounding { state, passages: found, missing, sentences: sentences(answer, &passages, has_names) })
}

/// The passages of a prompt, for the sentences of an answer that come one by one.
pub(crate) struct Sentences {
    passages: Vec<Passage>,
    has_names: bool,
}

impl Sentences {
    pub fn of(citations: &[Citation]) -> Self {
        Self { passages: citations.iter().map(Passage::of).collect(), has_names: !has_capital_nouns(citations) }
    }

    /// The numbers of the passages that have a sentence's words; none of one that names some itself, or says that there are none.
    pub fn passages(&self, sentence: &str) -> Vec<usize> {
        let unnumbered = behind_number(sentence).unwrap_or(sentence);
        let plain = without_marks(unnumbered);
        if plain.len() < unnumbered.len() || is_refusal(sentence) {
            return Vec::new();
        }
        passages_with(&telling_words(&plain, self.has_names), &self.passages).0
    }
}

/// What each sentence stands on, as long as the answer is not longer than what is looked for.
fn sentences(answer: &str, passages: &[Passage], has_names: bool) -> Vec<GroundedSentence> {
    let (has_list, mut looked_for, mut sentences) = (has_list(answer), 0, Vec::new());
    for sentence in answer.split_sentence_bounds() {
        // A list's number may be a sentence of its own.
        let unnumbered = behind_number(sentence).filter(|_| has_list).unwrap_or(sentence);
        let said = telling_words(&without_marks(unnumbered), has_names);
        looked_for += said.len();
        if looked_for > MOST_WORDS {
            break;
        }
        if !said.is_empty() {
            let (text, passages) = (sentence.trim().to_owned(), passages_with(&said, passages).0);
            sentences.push(GroundedSentence { text, passages });
        }
    }
    sentences
}

/// The words of an answer or a sentence that are looked for; none of `Yes.`
fn telling_words(plain: &str, has_names: bool) -> Vec<Word> {
    let said = words(plain, TELLING, has_names);
    if !said.is_empty() {
        return said;
    }
    // `Ash.`
    let mut said = words(plain, 2, has_names);
    said.retain(|word| !VERDICTS.contains(&word.text.as_str()));
    said
}

/// The numbers of the passages that together have what was said, the fewest that a greedy choice finds; empty where they do not have it. And
/// the numbers and names that no passage has.
fn passages_with(said: &[Word], passages: &[Passage]) -> (Vec<usize>, Vec<String>) {
    let has: Vec<Vec<bool>> =
        passages.iter().map(|passage| said.iter().map(|word| passage.has(word)).collect()).collect();
    let mut is_open = vec![true; said.len()];
    let mut found = Vec::new();
    loop {
        let weight = |at: usize| if said[at].is_claim { CLAIM } else { 1 };
        let gain = |has: &[bool]| (0..said.len()).filter(|at| is_open[*at] && has[*at]).map(weight).sum::<usize>();
        // Of equals the better one.
        let best = (0..passages.len()).max_by_key(|at| (gain(&has[*at]), Reverse(passages[*at].number)));
        let Some(best) = best.filter(|at| gain(&has[*at]) > 0) else { break };
        is_open.iter_mut().zip(&has[best]).for_each(|(open, has)| *open &= !has);
        found.push(passages[best].number);
        if is_enough(said, &is_open) {
            found.sort_unstable();
            return (found, Vec::new());
        }
    }
    let missing = said.iter().zip(&is_open).filter(|(word, is_open)| word.is_claim && **is_open);
    (Vec::new(), missing.map(|(word, _)| word.written.clone()).take(NAMED).collect())
}

/// Whether an answer is supported of which some words were not found.
fn is_enough(said: &[Word], is_open: &[bool]) -> bool {
    let open = || said.iter().zip(is_open).filter(|(_, is_open)| **is_open);
    let found = said.len() - open().count();
    open().all(|(word, _)| !word.is_claim) && found as f64 >= SHARE * said.len() as f64
}

fn is_refusal(answer: &str) -> bool {
    let opening: Vec<String> = answer.unicode_words().take(OPENING).map(str::to_lowercase).collect();
    let opening = format!(" {} ", opening.join(" ")).replace('’', "'");
    // "The passages do not say, but it is 4500 pounds" is an answer.
    REFUSALS.iter().any(|refusal| opening.contains(refusal)) && !answer.contains(char::is_numeric)
}

/// A word of an answer that tells something.
#[derive(Debug)]
struct Word {
    written: String,
    /// As it is compared.
    text: String,
    /// Whether it is a number or, from its capital within a sentence, a name: it must be in a passage.
    is_claim: bool,
}

/// Each once, those of fewer than `telling` letters left out, and no more than count. Where nouns have capitals, these tell no names.
fn words(answer: &str, telling: usize, has_names: bool) -> Vec<Word> {
    let (mut words, mut known) = (Vec::<Word>::new(), HashMap::<String, usize>::new());
    for sentence in answer.unicode_sentences() {
        for (at, written) in sentence.unicode_words().enumerate() {
            let is_name = has_names && at > 0 && written.starts_with(char::is_uppercase) && written.chars().count() > 1;
            for written in parts(written) {
                let is_claim = written.contains(char::is_numeric) || is_name;
                if !is_claim && written.is_ascii() && written.chars().count() < telling {
                    continue;
                }
                let text = compared(written);
                match known.get(&text) {
                    // A name that first began a sentence.
                    Some(at) => words[*at].is_claim |= is_claim,
                    None if words.len() < MOST_WORDS || (is_claim && words.len() < MOST_CLAIMS) => {
                        known.insert(text.clone(), words.len());
                        words.push(Word { written: written.to_owned(), text, is_claim });
                    }
                    None => {}
                }
            }
        }
    }
    words
}

/// An answer without what stands in it for passages and places: `[1]`, and the numbers of a list.
fn without_marks(answer: &str) -> String {
    let mut plain = String::with_capacity(answer.len());
    let has_list = has_list(answer);
    for line in answer.split_inclusive('\n') {
        let mut rest = behind_number(line).filter(|_| has_list).unwrap_or(line);
        while let Some((before, after)) = rest.split_once('[') {
            plain.push_str(before);
            let number = after.trim_start_matches(|letter: char| letter.is_ascii_digit() || ", ".contains(letter));
            rest = if number.len() < after.len() && number.starts_with(']') { &number[1..] } else { after };
        }
        plain.push_str(rest);
    }
    plain
}

/// Whether lines are numbered. One alone may begin with a day.
fn has_list(answer: &str) -> bool {
    answer.lines().filter(|line| behind_number(line).is_some()).count() > 1
}

/// What stands behind a list's number.
fn behind_number(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let rest = rest.strip_prefix(['.', ')']).filter(|_| rest.len() < line.len())?;
    rest.starts_with(' ').then_some(rest)
}

/// `10` and `kg` of `10kg`; `F28` is one.
fn parts(word: &str) -> impl Iterator<Item = &str> {
    let is_number = word.starts_with(|first: char| first.is_ascii_digit());
    let cut = word.find(char::is_alphabetic).filter(|_| is_number).unwrap_or(word.len());
    let (number, rest) = word.split_at(cut);
    [number, rest].into_iter().filter(|part| !part.is_empty())
}

/// A word as it is compared: `11.200` and `11'200` are `11,200`, `1,4` is `1.4`.
fn compared(word: &str) -> String {
    let word = word.to_lowercase().replace('’', "'");
    if !word.contains(char::is_numeric) {
        return word.trim_end_matches("'s").to_owned();
    }
    let groups: Vec<&str> = word.split([',', '.', '\'']).collect();
    let is_grouped = groups.len() > 1 && groups[1..].iter().all(|group| group.len() == 3);
    groups.join(if is_grouped { "" } else { "." })
}

/// Whether so many words within sentences have capitals that these are of nouns, as in German.
fn has_capital_nouns(citations: &[Citation]) -> bool {
    let (mut capitals, mut all) = (0_usize, 0_usize);
    for sentence in citations.iter().flat_map(|citation| citation.text.unicode_sentences()) {
        for word in sentence.unicode_words().skip(1).filter(|word| word.starts_with(char::is_alphabetic)) {
            capitals += usize::from(word.starts_with(char::is_uppercase));
            all += 1;
        }
    }
    capitals as f64 > CAPITALS * all as f64
}

/// The words of a passage, and of its title.
struct Passage {
    number: usize,
    words: HashSet<String>,
    /// By their beginnings, which words with other endings share.
    beginnings: HashMap<String, Vec<String>>,
}

impl Passage {
    fn of(citation: &Citation) -> Self {
        let text = [&*citation.title, &citation.text];
        let words: HashSet<String> =
            text.into_iter().flat_map(UnicodeSegmentation::unicode_words).flat_map(parts).map(compared).collect();
        let mut beginnings: HashMap<String, Vec<String>> = HashMap::new();
        for word in &words {
            beginnings.entry(beginning(word)).or_default().push(word.clone());
        }
        Self { number: citation.number, words, beginnings }
    }

    fn has(&self, word: &Word) -> bool {
        if self.words.contains(&word.text) {
            return true;
        }
        let alike = || self.beginnings.get(&beginning(&word.text)).into_iter().flatten();
        !word.text.contains(char::is_numeric) && alike().any(|other| is_inflected(&word.text, other))
    }
}

fn beginning(word: &str) -> String {
    word.chars().take(ENDING + 1).collect()
}

/// Whether one is the other with another ending: services, serviced.
fn is_inflected(one: &str, other: &str) -> bool {
    let shared: usize = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let longest = one.chars().count().max(other.chars().count());
    shared > ENDING && longest - shared <= ENDING && shared > longest - shared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn citation(number: usize, title: &str, text: &str) -> Citation {
        Citation { number, title: title.into(), text: text.into(), ..Citation::default() }
    }

    fn house() -> Vec<Citation> {
        vec![
            citation(
                1,
                "House > Boiler",
                "The boiler is serviced by Hoff & Sons each October. Cold, its pressure should be 1.4 bar.",
            ),
            citation(2, "Roof", "Kellow & Pike wanted £11,200 for the slate. Gus Brandt is the foreman."),
        ]
    }

    fn state(answer: &str) -> Option<GroundingState> {
        of(answer, &house()).map(|grounding| grounding.state)
    }

    #[test]
    fn an_answer_stands_on_the_passage_that_has_its_words() {
        for (answer, passages) in [
            ("1.4 bar.", vec![1]),
            (" Hoff & Sons", vec![1]),
            ("The boiler's services are done by Hoff & Sons.", vec![1]),
            ("11200 pounds, said Kellow & Pike [2]", vec![2]),
            ("1. 11.200 for slate, says Kellow\n2) 1,4bar cold", vec![1, 2]),
            ("Slate.", vec![2]),
            ("Bar", vec![1]),
            ("Hoff & Sons look after the boiler, Gus Brandt after the roof.", vec![1, 2]),
        ] {
            let grounding = of(answer, &house()).unwrap();
            assert_eq!((grounding.state, grounding.passages), (GroundingState::Supported, passages), "{answer}");
        }
    }

    #[test]
    fn each_sentence_stands_on_its_own_passages() {
        let told = |answer: &str| {
            let sentences = of(answer, &house()).unwrap().sentences.into_iter();
            sentences.map(|sentence| (sentence.text, sentence.passages)).collect::<Vec<_>>()
        };
        let line = |text: &str, passages: &[usize]| (text.to_owned(), passages.to_vec());
        assert_eq!(
            told(" Slate costs 11.200 £ [2]. Yes.  The boiler is serviced by Martin. Cold, it has 1.4 bar"),
            [
                line("Slate costs 11.200 £ [2].", &[2]),
                line("The boiler is serviced by Martin.", &[]),
                line("Cold, it has 1.4 bar", &[1]),
            ]
        );
        // The numbers of a list are no claims.
        assert_eq!(told("1. Slate\n2. Boiler"), [line("Slate", &[2]), line("Boiler", &[1])]);
        assert_eq!(told("<think>Is it slate? Martin says so.</think>Slate."), [line("Slate.", &[2])]);
        let long = "The boiler is serviced by Hoff & Sons. ".repeat(2000);
        let sentences = of(&long, &house()).unwrap().sentences;
        assert!((100..1000).contains(&sentences.len()), "{}", sentences.len());
        assert!(of("The passages do not say.", &house()).unwrap().sentences.is_empty());
    }

    #[test]
    fn a_number_or_a_name_that_no_passage_has_is_named() {
        let grounding = of("The pressure is 2.5 bar, says Martin of Hoff & Sons.", &house()).unwrap();
        assert_eq!(grounding.state, GroundingState::Unsupported);
        assert_eq!(grounding.missing, ["2.5", "Martin"]);
        assert_eq!(state("Blue"), Some(GroundingState::Unsupported));
        assert_eq!(state("14 bar, cold"), Some(GroundingState::Unsupported), "a number ten times as great");
        let twice = of("Martin does it: Martin of Hoff & Sons.", &house()).unwrap();
        assert_eq!(twice.missing, ["Martin"], "also a name that begins the answer");
        let long = format!("{} 7302", (0..1500).map(|at| format!("word{} ", "x".repeat(at % 60))).collect::<String>());
        assert!(of(&long, &house()).unwrap().missing.contains(&"7302".to_owned()), "however long the answer is");
        // In no single one and not in all of them.
        assert_eq!(state("Painting a garden fence needs patience and 1.4 brushes"), Some(GroundingState::Unsupported));
    }

    #[test]
    fn what_the_answer_says_is_not_there_is_a_state_of_its_own() {
        for refusal in [
            "The passages do not say.",
            "The passages don’t say who.",
            "Das steht nicht in den Passagen.",
            "Les passages ne le disent pas.",
        ] {
            assert_eq!(state(refusal), Some(GroundingState::NotInPassages), "{refusal}");
        }
        assert_eq!(state("The passages do not say, but it is 4500 pounds."), Some(GroundingState::Unsupported));
        let late = format!("{} The passages do not say.", "The boiler is serviced by Hoff & Sons. ".repeat(4));
        assert_eq!(state(&late), Some(GroundingState::Supported));
    }

    #[test]
    fn where_nothing_can_be_looked_for_nothing_is_said() {
        assert_eq!(state("Yes."), None);
        assert_eq!(state(""), None);
        assert_eq!(state("<tool_call>\n{\"name\": \"pressure\"}\n</tool_call>"), None);
        assert_eq!(of("1.4 bar", &[]), None);
    }

    #[test]
    fn endings_differ_by_three_letters_at_the_most() {
        assert!(is_inflected("serviced", "services") && is_inflected("schlüssel", "schlüssels"));
        assert_eq!(without_marks("a [1, 2] b [c] [3"), "a  b c] 3");
        assert_eq!(without_marks("13. Oktober"), "13. Oktober", "a day");
        assert_eq!(without_marks("1. a\n 2) b 3. c"), " a\n b 3. c");
        assert!(
            !is_inflected("house", "hour")
                && !is_inflected("contract", "contraband")
                && !is_inflected("tiles", "tilings")
        );
    }

    #[test]
    fn nouns_with_capitals_are_no_names() {
        let text =
            "Der Verein hat 64 Parzellen. Die Kasse führt Holger Brandt, der Rasen wird am Sonntag nicht gemäht.";
        let passages = [citation(1, "Ordnung", text)];
        assert_eq!(
            of("Die Kasse führt seit Jahren Holger Brandt.", &passages).unwrap().state,
            GroundingState::Supported
        );
        assert_eq!(of("Der Verein hat 46 Parzellen.", &passages).unwrap().missing, ["46"]);
    }

    #[test]
    fn scripts_without_spaces_are_compared_by_their_signs() {
        let passages = [citation(1, "", "锅炉由霍夫公司维修。")];
        assert_eq!(of("霍夫公司", &passages).unwrap().state, GroundingState::Supported);
        assert_eq!(of("屋顶", &passages).unwrap().state, GroundingState::Unsupported);
    }
}
