use super::*;

fn grid() -> Grid {
    Grid {
        rules: vec![Rule::TwoStage, Rule::CacheblendV, Rule::All],
        layers: vec![0, 2, 7],
        ratios: vec![0.05, 0.25],
        primers: vec![0, 2],
    }
}

fn by_ratio(selection: Selection, ratio: f32) -> f64 {
    f64::from(ratio) + selection.layer as f64 / 100.0
}

#[test]
fn ways_come_cheapest_first_and_each_once() {
    let all = grid().ways(by_ratio);
    assert!(all.is_sorted_by(|left, right| left.cost <= right.cost));
    let first = (all[0].selection.rule, all[0].primer, all[1].selection.rule, all[1].primer);
    assert_eq!(first, (Rule::None, 2, Rule::None, 0), "plain reuse is free, and so is its primer");
    for (index, way) in all.iter().enumerate() {
        let is_same =
            |other: &Way| (other.selection, other.ratio, other.primer) == (way.selection, way.ratio, way.primer);
        assert!(!all[index + 1..].iter().any(is_same));
        assert!(way.selection.rule != Rule::All, "what is to be saved");
    }
    let layers = |rule: Rule| {
        let mut layers: Vec<usize> =
            all.iter().filter(|way| way.selection.rule == rule).map(|way| way.selection.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        layers
    };
    assert_eq!(layers(Rule::CacheblendV), [2, 7], "on layer 0 nothing deviates");
    assert_eq!(layers(Rule::TwoStage).len(), 1, "it looks at all of them");
    assert_eq!(all.len(), 2 * (1 + 2 + 2 * 2));
}

/// Outcomes that are `divergence` of each of four tokens.
fn flat(divergence: f32) -> Outcome {
    Outcome { differs: divergence > 0.5, divergences: vec![divergence; 4] }
}

#[test]
fn the_cheapest_that_keeps_within_the_budget_is_certified_on_prompts_that_did_not_choose_it() {
    let all = grid().ways(by_ratio);
    let lucky = all.iter().position(|way| way.selection.rule == Rule::TwoStage && way.primer == 2).unwrap();
    let good = all.iter().position(|way| way.ratio == 0.25 && way.primer == 2).unwrap();
    let mut trials = 0;
    let mut trial = |index: usize, way: &Way, prompt: usize| {
        assert_eq!(all[index], *way);
        trials += 1;
        let is_good = index >= good || (index == lucky && prompt < 62);
        Ok(flat(if is_good { 0.001 } else { 0.2 }))
    };
    let found = search(&all, 500, 0.03, &mut trial).unwrap();
    assert_eq!(found.chosen, Some(all[good]));
    let of = |index: usize| found.evidence[index];
    assert_eq!(
        (of(good).verdict, of(lucky).verdict),
        (Verdict::Certified, Verdict::Refused),
        "half B tells them apart"
    );
    assert_eq!((of(0).verdict, of(0).prompts), (Verdict::Refused, 8), "what is far over goes after a round");
    assert!((of(good).divergence - 0.001).abs() < 1e-6 && of(good).interval < 1e-6 && of(good).prompts > 100);
    assert!(trials <= most_trials(all.len(), 500) && trials > 150, "{trials}");
}

#[test]
fn what_is_over_the_budget_is_refused_and_what_the_prompts_do_not_tell_is_undecided() {
    let all = grid().ways(by_ratio);
    let found = search(&all, 500, 0.03, &mut |_, _, _| Ok(flat(9.0))).unwrap();
    assert_eq!(found.chosen, None);
    assert!(found.evidence.iter().all(|seen| seen.verdict == Verdict::Refused && seen.divergence == 1.0), "clipped");
    assert!(found.evidence.iter().all(|seen| seen.p99 == 9.0 && seen.differ == seen.prompts), "but told");
    let found = search(&all, 40, 0.03, &mut |_, _, _| Ok(flat(0.0))).unwrap();
    assert_eq!(found.chosen, None);
    let undecided = found.evidence.iter().filter(|seen| seen.verdict == Verdict::Undecided).count();
    assert_eq!(undecided, FINALISTS, "forty prompts certify nothing");
    let found = search(&all, 40, 1.0, &mut |_, _, _| Ok(flat(0.9))).unwrap();
    assert_eq!(found.chosen, Some(all[0]), "a budget that allows everything");
}

#[test]
fn a_large_budget_is_certified_on_half_b_too() {
    let all = grid().ways(by_ratio);
    for budget in [0.24, 0.25, 0.3, 0.5] {
        let found = search(&all, 8, budget, &mut |_, _, _| Ok(flat(1.0))).unwrap();
        assert_eq!(found.chosen, None, "what was seen is over {budget}");
        let found = search(&all, 8, budget, &mut |_, _, _| Ok(flat(0.2))).unwrap();
        assert_eq!(found.chosen, None, "eight prompts certify nothing: {budget}");
    }
    let found = search(&all, 500, 0.3, &mut |_, _, _| Ok(flat(0.01))).unwrap();
    assert_eq!((found.chosen, found.evidence[0].verdict), (Some(all[0]), Verdict::Certified));
    assert!(found.evidence[0].prompts > half_a(500), "{}", found.evidence[0].prompts);
}

#[test]
fn a_frontier_tries_everything_and_chooses_nothing() {
    let all = grid().ways(by_ratio);
    let mut order = Vec::new();
    let found = frontier(&all, 3, &mut |way, _, prompt| {
        order.push((prompt, way));
        Ok(flat(prompt as f32 / 10.0))
    });
    let found = found.unwrap();
    assert!(found.chosen.is_none() && order.is_sorted());
    assert!(found.evidence.iter().all(|seen| seen.prompts == 3 && (seen.divergence - 0.1).abs() < 1e-6));
    // 1.96 standard errors of 0, 0.1, 0.2.
    assert!((found.evidence[0].interval - 1.96 * 0.1 / 3.0_f64.sqrt()).abs() < 1e-6);
    assert!((found.evidence[0].p99 - 0.2).abs() < 1e-6);
}
