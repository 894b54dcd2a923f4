//! F1 and exact match of short answers, as SQuAD's evaluation script defines them, and Rouge-L of longer ones.

use super::rouge::rouge_l;

/// How good an answer is: each from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Harmonic mean of precision and recall over words.
    pub f1: f64,
    /// 1 where the words are the same.
    pub exact_match: f64,
    /// F-measure of the longest common subsequence of words ([`rouge_l`]).
    pub rouge_l: f64,
}

/// Scores `answer` by the best of `golds`, each measure by itself. With `after`, only what follows its last occurrence in
/// the answer counts.
pub fn score(answer: &str, golds: &[String], after: Option<&str>) -> Score {
    let counted = after.and_then(|after| answer.rsplit_once(after)).map_or(answer, |(_, rest)| rest);
    let said = words(counted);
    let nothing = Score { f1: 0.0, exact_match: 0.0, rouge_l: 0.0 };
    golds.iter().map(|gold| (gold, words(gold))).fold(nothing, |best, (gold, split)| Score {
        f1: best.f1.max(f1(&said, &split)),
        exact_match: best.exact_match.max(f64::from(u8::from(said == split))),
        rouge_l: best.rouge_l.max(rouge_l(counted, gold)),
    })
}

/// Lower case, without punctuation (ASCII's, as in SQuAD) and articles, cut at white space.
fn words(text: &str) -> Vec<String> {
    let text: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        // A run of letters and digits, or of anything else.
        let end = rest.find(|c: char| c.is_alphanumeric() != first.is_alphanumeric()).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        kept.push_str(if matches!(run, "a" | "an" | "the") { " " } else { run });
        rest = after;
    }
    kept.split_whitespace().map(str::to_owned).collect()
}

fn f1(said: &[String], gold: &[String]) -> f64 {
    if said.is_empty() || gold.is_empty() {
        // As SQuAD 2.0 has it: right only where nothing was to be said.
        return f64::from(u8::from(said == gold));
    }
    let mut left: Vec<&String> = gold.iter().collect();
    let mut shared = 0;
    for word in said {
        if let Some(at) = left.iter().position(|gold| *gold == word) {
            left.swap_remove(at);
            shared += 1;
        }
    }
    // 2pr / (p + r) with p = shared / said and r = shared / gold.
    2.0 * f64::from(shared) / (said.len() + gold.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(answer: &str, golds: &[&str]) -> (f64, f64) {
        let golds: Vec<String> = golds.iter().map(|gold| (*gold).to_owned()).collect();
        let Score { f1, exact_match, .. } = score(answer, &golds, None);
        (f1, exact_match)
    }

    #[test]
    fn by_hand() {
        for (answer, golds, wanted) in [
            ("The  cat.", &["cat"][..], (1.0, 1.0)),
            ("Exeter College, Oxford", &["Exeter College"], (0.8, 0.0)), // p 2/3, r 1
            ("a b c d", &["c d e"], (4.0 / 6.0, 0.0)),                   // "a" is an article: 2 shared of 3 and 3
            ("new new york", &["new york york"], (4.0 / 6.0, 0.0)),      // each word counts as often as in both
            ("18", &["80"], (0.0, 0.0)),
            ("18", &["eighteen", "18"], (1.0, 1.0)),
            ("", &["x"], (0.0, 0.0)),
            ("the", &["A."], (1.0, 1.0)),
            ("U.S.A.", &["usa"], (1.0, 1.0)),
            ("well-known", &["well known"], (0.0, 0.0)), // punctuation goes away, it does not cut
            ("theatre an-other", &["theatre another"], (1.0, 1.0)),
            ("Ängström", &["ängström"], (1.0, 1.0)),
        ] {
            let (f1, exact) = of(answer, golds);
            assert!((f1 - wanted.0).abs() < 1e-12 && exact == wanted.1, "{answer:?} for {golds:?}: {f1}, {exact}");
        }
    }

    #[test]
    fn the_best_answer_counts_for_each_measure() {
        assert_eq!(of("red house", &["house", "red barn door", "red house"]), (1.0, 1.0));
        assert_eq!(of("x", &[]), (0.0, 0.0));
    }

    #[test]
    fn what_comes_before_the_mark_does_not_count() {
        let golds = ["Tara Golworth".to_owned()];
        let of = |answer| score(answer, &golds, Some(", so ")).exact_match;
        assert_eq!((of("24 and 18, so Tara Golworth"), of("Tara Golworth"), of("so Tara Golworth")), (1.0, 1.0, 0.0));
        let rouge_l = |after| score("24 and 18, so Tara Golworth", &golds, after).rouge_l;
        assert_eq!((rouge_l(Some(", so ")), rouge_l(None)), (1.0, 0.5));
    }
}
