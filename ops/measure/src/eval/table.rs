//! What was measured of answers, as people read it.

use ragstone_terminal::table::table;

use super::bootstrap::Interval;
use super::report::{AnswersReport, ModeReport, Recovered};

impl AnswersReport {
    /// Two rows a mode: how good its answers are, over all and by type; and what they cost.
    pub fn table(&self) -> Vec<String> {
        let left_out = match self.left_out.len() {
            0 => String::new(),
            count => format!(", {count} more too long for its context"),
        };
        let mut lines = vec![format!("{} questions, {}{left_out}", self.questions, self.model), String::new()];
        let types: Vec<&String> = self.modes.first().map_or_else(Vec::new, |mode| mode.types.keys().collect());
        let of_types = types.iter().flat_map(|kind| [format!("{kind} F1"), format!("{kind} EM")]);
        let heads: Vec<String> = QUALITY.iter().map(|head| (*head).to_owned()).chain(of_types).collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let rows: Vec<Vec<String>> = self.modes.iter().map(|mode| quality(mode, &types)).collect();
        lines.extend(table(&heads, &rows).lines().map(str::to_owned));
        lines.push(String::new());
        let rows: Vec<Vec<String>> = self.modes.iter().map(|mode| cost(mode, self.questions)).collect();
        lines.extend(table(COST, &rows).lines().map(str::to_owned));
        lines.push(String::new());
        lines.push(
            "of none, of reuse: the share of the gap to full that is recovered; \"-\" where the gap is noise".into(),
        );
        lines.push("share: of all tokens, those that were computed; then tokens of a mean question's prompts".into());
        lines
    }
}

const QUALITY: &[&str] =
    &["mode", "ratio", "F1", "95 %", "EM", "Rouge-L", "to full", "95 %", "of none", "of reuse", "not as full"];
const COST: &[&str] =
    &["mode", "ratio", "TTFT p50", "p10 .. p90 ms", "share", "exact", "blended", "recomputed", "computed"];

fn quality(mode: &ModeReport, types: &[&String]) -> Vec<String> {
    let (mean, [name, ratio]) = (&mode.mean, name(mode));
    let recovered = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}"));
    let Recovered { of_none, of_reuse } = mode.recovered;
    let mut row = vec![
        name,
        ratio,
        format!("{:.3}", mean.f1),
        span(mode.f1_interval),
        format!("{:.3}", mean.exact_match),
        format!("{:.3}", mean.rouge_l),
        mode.against_full.map_or_else(String::new, |it| format!("{:+.3}", it.f1)),
        span(mode.against_full.map(|it| it.interval)),
        recovered(of_none),
        recovered(of_reuse),
        mode.differ_from_full.map_or_else(String::new, |count| count.to_string()),
    ];
    for mean in types.iter().map(|kind| mode.types.get(*kind).copied().unwrap_or_default()) {
        row.extend([format!("{:.3}", mean.f1), format!("{:.3}", mean.exact_match)]);
    }
    row
}

fn cost(mode: &ModeReport, questions: usize) -> Vec<String> {
    let each = |tokens: u64| format!("{:.1}", tokens as f64 / questions.max(1) as f64);
    let (ttft, tokens, [name, ratio]) = (mode.ttft_ms, mode.tokens, name(mode));
    vec![
        name,
        ratio,
        format!("{:.1}", ttft.p50),
        format!("{:.1} .. {:.1}", ttft.p10, ttft.p90),
        format!("{:.3}", mode.recomputed_share),
        each(tokens.exact),
        each(tokens.blended),
        each(tokens.recomputed),
        each(tokens.computed),
    ]
}

fn name(mode: &ModeReport) -> [String; 2] {
    [mode.variant.name(), mode.variant.ratio.map_or_else(String::new, |ratio| ratio.to_string())]
}

fn span(interval: Option<Interval>) -> String {
    interval.map_or_else(String::new, |[low, high]| format!("{low:.3} .. {high:.3}"))
}

#[cfg(test)]
mod tests {
    use super::super::report::Measured;
    use super::super::report::tests::answered;
    use super::super::variant::{Mode, Variant};
    use super::*;

    #[test]
    fn every_row_says_how_good_and_at_what_cost() {
        let variants = [Mode::NoPassages, Mode::Full, Mode::Reuse].map(Variant::plain);
        let question = |item: usize| {
            let of = |(variant, f1): (&Variant, f64)| answered(item, *variant, f1, 12813.2);
            variants.iter().zip([0.0, 1.0, 0.5]).map(of).collect()
        };
        let questions: Vec<Vec<_>> = (0..3).map(question).collect();
        let modes = Measured { variants: &variants, questions: &questions, seed: 1 }.modes();
        let report = AnswersReport {
            model: "m".into(),
            questions: 3,
            left_out: vec![7],
            seed: 1,
            max_tokens: 8,
            answer_after: None,
            modes,
        };
        let lines = report.table();
        assert_eq!(lines[0], "3 questions, m, 1 more too long for its context");
        let rows: Vec<&String> = lines.iter().filter(|line| line.starts_with("reuse")).collect();
        for words in ["0.500", "0.500 .. 0.500", "-0.500", "0.00", "0.250"] {
            assert!(rows[0].contains(words), "no {words} in {}", rows[0]);
        }
        // However large they are, columns stand apart.
        for words in ["  12813.2  ", "  12813.2 .. 12813.2  ", "  0.375  ", "  5.0  "] {
            assert!(rows[1].contains(words), "no {words} in {}", rows[1]);
        }
        assert!(lines.iter().all(|line| line.len() < 200));
    }
}
