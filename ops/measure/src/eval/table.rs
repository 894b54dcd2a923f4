//! What was measured of answers, as people read it.

use super::bootstrap::Interval;
use super::report::{AnswersReport, ModeReport, Recovered};

impl AnswersReport {
    /// Two lines a mode: how good its answers are, over all and by type; and what they cost.
    pub fn table(&self) -> Vec<String> {
        let left_out = match self.left_out.len() {
            0 => String::new(),
            count => format!(", {count} more too long for its context"),
        };
        let mut lines = vec![format!("{} questions, {}{left_out}", self.questions, self.model), String::new()];
        let types: Vec<&String> = self.modes.first().map_or_else(Vec::new, |mode| mode.types.keys().collect());
        let mut head = format!("{:<28}{:>6}{:>8}{:>16}{:>8}{:>9}", "mode", "ratio", "F1", "95 %", "EM", "Rouge-L");
        head += &format!("{:>9}{:>18}{:>9}{:>9}{:>13}", "to full", "95 %", "of none", "of reuse", "not as full");
        types.iter().for_each(|kind| head += &format!("{:>11}{:>11}", format!("{kind} F1"), format!("{kind} EM")));
        lines.push(head);
        lines.extend(self.modes.iter().map(|mode| quality(mode, &types)));
        lines.push(String::new());
        let mut head = format!("{:<28}{:>6}{:>10}{:>18}", "mode", "ratio", "TTFT p50", "p10 .. p90 ms");
        head += &format!("{:>10}{:>9}{:>9}{:>12}{:>10}", "share", "exact", "blended", "recomputed", "computed");
        lines.push(head);
        lines.extend(self.modes.iter().map(|mode| cost(mode, self.questions)));
        lines.push(String::new());
        lines.push(
            "of none, of reuse: the share of the gap to full that is recovered; \"-\" where the gap is noise".into(),
        );
        lines.push("share: of all tokens, those that were computed; then tokens of a mean question's prompts".into());
        lines
    }
}

fn quality(mode: &ModeReport, types: &[&String]) -> String {
    let mean = &mode.mean;
    let mut line = format!("{}{:>8.3}{:>16}", name(mode), mean.f1, span(mode.f1_interval));
    line += &format!("{:>8.3}{:>9.3}", mean.exact_match, mean.rouge_l);
    let against = mode.against_full.map_or_else(String::new, |it| format!("{:+.3}", it.f1));
    line += &format!("{against:>9}{:>18}", span(mode.against_full.map(|it| it.interval)));
    let recovered = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}"));
    let differ = mode.differ_from_full.map_or_else(String::new, |count| count.to_string());
    let Recovered { of_none, of_reuse } = mode.recovered;
    line += &format!("{:>9}{:>9}{differ:>13}", recovered(of_none), recovered(of_reuse));
    for mean in types.iter().map(|kind| mode.types.get(*kind).copied().unwrap_or_default()) {
        line += &format!("{:>11.3}{:>11.3}", mean.f1, mean.exact_match);
    }
    line
}

fn cost(mode: &ModeReport, questions: usize) -> String {
    let each = |tokens: u64| tokens as f64 / questions.max(1) as f64;
    let (ttft, tokens) = (mode.ttft_ms, mode.tokens);
    let mut line = format!("{}{:>10.1}{:>18}", name(mode), ttft.p50, format!("{:.1} .. {:.1}", ttft.p10, ttft.p90));
    line += &format!("{:>10.3}{:>9.1}{:>9.1}", mode.recomputed_share, each(tokens.exact), each(tokens.blended));
    line + &format!("{:>12.1}{:>10.1}", each(tokens.recomputed), each(tokens.computed))
}

fn name(mode: &ModeReport) -> String {
    let ratio = mode.variant.ratio.map_or_else(String::new, |ratio| ratio.to_string());
    format!("{:<28}{ratio:>6}", mode.variant.name())
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
            let of = |(variant, f1): (&Variant, f64)| answered(item, *variant, f1, 12.5);
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
        for words in ["12.5", "12.5 .. 12.5", "0.375", "5.0"] {
            assert!(rows[1].contains(words), "no {words} in {}", rows[1]);
        }
        assert!(lines.iter().all(|line| line.len() < 200));
    }
}
