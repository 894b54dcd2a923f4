//! Rouge-L ("ROUGE: A Package for Automatic Evaluation of Summaries", section 3), sentence level, as the Python package
//! `rouge-score` computes `rougeL` without stemming.

/// The F-measure of the longest common subsequence of words: `2 l / (n + m)` for `n` and `m` words, 0 where either has none.
pub fn rouge_l(said: &str, gold: &str) -> f64 {
    let (said, gold) = (words(said), words(gold));
    if said.is_empty() || gold.is_empty() {
        return 0.0;
    }
    2.0 * longest_common(&said, &gold) as f64 / (said.len() + gold.len()) as f64
}

/// Runs of ASCII letters and digits in lower case: everything else, an underscore too, cuts.
fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The length of the longest sequence that both hold in order, gaps allowed.
fn longest_common(left: &[String], right: &[String]) -> usize {
    let mut row = vec![0; right.len() + 1];
    for word in left {
        let mut diagonal = 0;
        for (at, other) in right.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if word == other { diagonal + 1 } else { above.max(row[at]) };
            diagonal = above;
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // "the cat", "on the mat" in order: 5 of 6 and 6. Lin's own example: "police the gunman", 3 of 4 and 4; the other
        // candidate has "the gunman" alone.
        for (said, gold, common, of) in [
            ("the cat sat on the mat", "the cat was on the mat", 5, (6, 6)),
            ("police kill the gunman", "police killed the gunman", 3, (4, 4)),
            ("the gunman kill police", "police killed the gunman", 2, (4, 4)),
            ("a b a c a d", "a a b c d", 4, (6, 5)),
            ("a b c d e f", "f e d c b a", 1, (6, 6)),
        ] {
            assert_eq!((words(said).len(), words(gold).len()), of);
            assert_eq!(longest_common(&words(said), &words(gold)), common, "{said}");
            assert!((rouge_l(said, gold) - 2.0 * common as f64 / (of.0 + of.1) as f64).abs() < 1e-12);
        }
    }

    /// What `rouge_scorer.RougeScorer(['rougeL'], use_stemmer=False).score(gold, said)['rougeL'].fmeasure` of rouge-score 0.1.2
    /// (PyPI) prints.
    #[test]
    fn as_the_python_package_has_it() {
        for (said, gold, wanted) in [
            ("the cat sat on the mat", "the cat was on the mat", 0.8333333333333334),
            ("police kill the gunman", "police killed the gunman", 0.75),
            ("the gunman kill police", "police killed the gunman", 0.5),
            ("Exeter College, Oxford", "Exeter College", 0.8),
            ("", "x", 0.0),
            ("x", "", 0.0),
            ("...", "x", 0.0),
            ("U.S.A.", "USA", 0.0),
            ("well-known", "well known", 1.0),
            ("a b c d e f", "f e d c b a", 0.16666666666666666),
            ("a b a c a d", "a a b c d", 0.7272727272727272),
            ("Ängström is 1", "angstrom is 1", 0.5714285714285715),
            ("24 and 18, so Tara Golworth", "Tara Golworth", 0.5),
            (
                "A quick brown dog jumps on the log.",
                "The quick brown fox jumps over the lazy dog.",
                0.47058823529411764,
            ),
            ("testing one two", "testing", 0.5),
            ("snake_case word", "snake case word", 1.0),
            (
                "Ben asked Ann to call him back, and she did so in the evening.",
                "Ann called Ben back in the evening after he had asked her to.",
                0.3703703703703704,
            ),
            ("naïve café", "naive cafe", 0.0),
            ("\u{212a} 3", "k 3", 1.0),
            ("İstanbul", "istanbul", 0.0),
        ] {
            assert!((rouge_l(said, gold) - wanted).abs() < 1e-12, "{said:?} for {gold:?}: {}", rouge_l(said, gold));
        }
    }

    /// Every subsequence of the shorter one, by its bits.
    #[test]
    fn the_longest_is_that_of_trying_all() {
        let is_within = |part: &[&String], whole: &[String]| {
            let mut rest = whole.iter();
            part.iter().all(|word| rest.any(|other| other == *word))
        };
        let mut seed = 7_u64;
        let mut draw = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        for _ in 0..200 {
            let mut text = |most| (0..draw(most)).map(|_| draw(4).to_string()).collect::<Vec<_>>();
            let (left, right) = (text(9), text(12));
            let tried = (0..1_u32 << left.len()).map(|bits| {
                let part: Vec<&String> =
                    left.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, word)| word).collect();
                if is_within(&part, &right) { part.len() } else { 0 }
            });
            assert_eq!(longest_common(&left, &right), tried.max().unwrap(), "{left:?} {right:?}");
        }
    }
}
