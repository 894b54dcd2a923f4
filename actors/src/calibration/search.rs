//! Which way of blending is the cheapest that keeps a model's answers. Pure, but for the trial that it is handed.

use crate::blend::{Evidence, Way};
use crate::error::Result;
use crate::prefill::{Rule, Schedule, Selection};

/// Shares that are tried.
pub const RATIOS: [f32; 8] = [0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4];

/// Layers that a rule is tried on: the first ones, where passages are told apart, then ever fewer.
const LAYERS: [usize; 10] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24];

/// What one prompt's answer came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Whether a token of the answer is another than a full prefill's.
    pub differs: bool,
    /// Kullback-Leibler divergence of the next token's distribution from a full prefill's, the mean over the answer, in nats.
    pub divergence: f64,
}

/// The ways that are tried with `rules` in a model of `layers`, cheapest first.
pub fn ways(layers: usize, rules: &[Rule], cost: impl Fn(Selection, f32) -> f64) -> Vec<Way> {
    let mut ways = Vec::new();
    let mut add = |selection: Selection, ratio: f32| ways.push(Way { selection, ratio, cost: cost(selection, ratio) });
    add(Selection::by(Rule::None), 0.0);
    // None is tried in any case, and all is what is to be saved.
    for &rule in rules.iter().filter(|rule| !matches!(rule, Rule::None | Rule::All)) {
        let own = Selection::by(rule);
        let looked_at: Vec<usize> = match rule {
            _ if !rule.has_layer() || !rule.looks() => vec![own.layer],
            // On layer 0 nothing deviates: there cacheblend would choose on layer 1, which is tried as such.
            _ => LAYERS.into_iter().filter(|layer| *layer < layers && own.takes_layer(*layer)).collect(),
        };
        for layer in looked_at {
            for schedule in [Schedule::OneShot, Schedule::Gradual] {
                if schedule == Schedule::Gradual && !rule.can_be_gradual() {
                    continue;
                }
                RATIOS.iter().for_each(|ratio| add(Selection { layer, schedule, ..own }, *ratio));
            }
        }
    }
    ways.sort_by(|left, right| left.cost.total_cmp(&right.cost));
    ways
}

/// Tries `ways`, in their order, until one answers all but `most_differing` of either half of `prompts` as a full prefill does: what was
/// seen of each. Only what the first half lets through meets the second, so that the luckiest of many ways is not taken for the
/// cheapest good one. A prompt that told ways apart before is tried first, so that a bad one costs little.
///
/// # Errors
/// Those of `trial`.
pub fn search(
    ways: &[Way],
    prompts: usize,
    most_differing: usize,
    trial: &mut dyn FnMut(usize, &Way, usize) -> Result<Outcome>,
) -> Result<Vec<Evidence>> {
    let mut told_apart = vec![0_usize; prompts];
    let mut evidence = Vec::new();
    for (index, way) in ways.iter().enumerate() {
        let mut seen = Evidence { way: *way, prompts: 0, differ: 0, divergence: 0.0, keeps: true };
        for half in [0..prompts / 2, prompts / 2..prompts] {
            let mut order: Vec<usize> = half.collect();
            order.sort_by_key(|prompt| std::cmp::Reverse(told_apart[*prompt]));
            let mut differ = 0;
            for prompt in order {
                if !seen.keeps {
                    break;
                }
                let outcome = trial(index, way, prompt)?;
                seen.prompts += 1;
                seen.divergence += (outcome.divergence - seen.divergence) / seen.prompts as f64;
                if outcome.differs {
                    told_apart[prompt] += 1;
                    differ += 1;
                }
                seen.keeps = differ <= most_differing;
            }
            seen.differ += differ;
        }
        evidence.push(seen);
        if seen.keeps {
            break;
        }
    }
    Ok(evidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_ratio(selection: Selection, ratio: f32) -> f64 {
        f64::from(ratio) + selection.layer as f64 / 100.0
    }

    #[test]
    fn ways_come_cheapest_first_and_each_once() {
        let all = ways(5, &Rule::ALL, by_ratio);
        assert!(all.is_sorted_by(|left, right| left.cost <= right.cost));
        assert_eq!(all[0].selection.rule, Rule::None, "plain reuse is free");
        for (index, way) in all.iter().enumerate() {
            assert!(!all[index + 1..].iter().any(|other| (other.selection, other.ratio) == (way.selection, way.ratio)));
            assert!(way.selection.layer < 5 && way.ratio < 0.5, "{way:?}");
        }
        let layers = |rule: Rule| {
            let mut layers: Vec<usize> =
                all.iter().filter(|way| way.selection.rule == rule).map(|way| way.selection.layer).collect();
            layers.sort_unstable();
            layers.dedup();
            layers
        };
        assert_eq!(layers(Rule::Cacheblend), [1, 2, 3, 4]);
        assert_eq!((layers(Rule::CriticalLayer), layers(Rule::FirstK)), (vec![0, 1, 2, 3, 4], vec![0]));
        assert_eq!(ways(1, &[Rule::Cacheblend], by_ratio).len(), 1, "one layer has nothing to compare");
    }

    #[test]
    fn the_cheapest_that_keeps_the_answers_is_found_and_what_does_not_costs_little() {
        let all = ways(5, &[Rule::Cacheblend, Rule::FirstK], by_ratio);
        // Prompt 7 wants 15 % on layer 2, and prompt 13, of the second half, 20 %; the others want nothing.
        let wants = |prompt: usize| if prompt == 7 { 0.15 } else { 0.2 };
        let keeps = |way: &Way, prompt: usize| {
            !matches!(prompt, 7 | 13) || (way.selection.layer == 2 && way.ratio >= wants(prompt))
        };
        let mut trials = 0;
        let mut trial = |index: usize, way: &Way, prompt: usize| {
            assert_eq!(all[index], *way);
            trials += 1;
            Ok(Outcome { differs: !keeps(way, prompt), divergence: 0.5 })
        };
        let seen = search(&all, 20, 0, &mut trial).unwrap();
        let (last, others) = seen.split_last().unwrap();
        assert!(last.keeps && last.way.selection.layer == 2 && last.way.ratio == 0.2, "{last:?}");
        assert_eq!((last.prompts, last.differ, last.divergence), (20, 0, 0.5));
        assert!(others.iter().all(|other| !other.keeps && other.way.cost <= last.way.cost));
        assert_eq!(others[0].prompts, 8, "up to the one that tells");
        let lucky = others.iter().filter(|other| other.prompts > 10).count();
        assert!(lucky > 0, "the first half lets 15 % through, the second does not");
        let told = others[1..].iter().filter(|other| other.prompts <= 10);
        assert!(told.clone().all(|other| other.prompts == 1), "which comes first from then on");
        assert_eq!(trials, others.iter().map(|other| other.prompts).sum::<usize>() + 20);
        // With one that may differ, plain reuse will do; and where nothing does, everything was tried.
        let mut trial =
            |_: usize, way: &Way, prompt: usize| Ok(Outcome { differs: !keeps(way, prompt), divergence: 0.0 });
        assert_eq!(search(&all, 20, 1, &mut trial).unwrap().len(), 1);
        let mut never = |_: usize, _: &Way, _: usize| Ok(Outcome { differs: true, divergence: 9.0 });
        let seen = search(&all, 20, 0, &mut never).unwrap();
        assert!(seen.len() == all.len() && seen.iter().all(|seen| !seen.keeps && seen.prompts == 1));
    }
}
