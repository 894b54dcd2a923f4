//! Which way of blending is the cheapest whose answers stay within a budget of divergence. Pure, but for the trial that it is handed.
//!
//! ```text
//! half A   all ways on the same prompts, twice as many in each round; what is surely over the budget, and the worse half, goes
//! half B   at most three finalists, cheapest first, each tested by betting until it is certified, refused, or the prompts run out
//! ```
//!
//! The luckiest of many ways is found on half A, so that nothing of it counts as evidence: what is certified is certified on half B alone.

mod betting;

use self::betting::{Bet, Decided};
use crate::answer::blend::{Evidence, Verdict, Way};
use crate::error::Result;
use crate::prefill::{Rule, Selection};

/// What one token counts at most, in nats.
const CLIP: f32 = 1.0;
/// What one prompt counts at most where a way is tested: the mean of what is bounded can be, the sooner the tighter the bound. At least so
/// much, and so many budgets: one that a prompt could not exceed would allow everything.
const PROMPT_CLIP: f64 = 0.25;
const CLIP_BUDGETS: f64 = 4.0;
/// Prompts of half A: at most, and the part of all.
const MOST_HALF_A: usize = 64;
const PART_OF_HALF_A: usize = 8;
/// Prompts of its first round.
const FIRST_ROUND: usize = 8;
/// The part of the budget under which a mean must lie for some hundreds of prompts to certify it.
const CERTIFIABLE: f64 = 0.8;
/// Ways that half B sees.
const FINALISTS: usize = 3;
/// The error that is allowed for all of them together.
const ALPHA: f64 = 0.05;

/// What one prompt's answer came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Whether a token of the answer is another than a full prefill's.
    pub differs: bool,
    /// Kullback-Leibler divergence of each next token's distribution from a full prefill's, in nats.
    pub divergences: Vec<f32>,
}

impl Outcome {
    /// The mean over the answer's tokens, each clipped.
    fn mean(&self) -> f64 {
        let sum: f64 = self.divergences.iter().map(|nats| f64::from(nats.clamp(0.0, CLIP))).sum();
        sum / self.divergences.len().max(1) as f64
    }
}

/// The ways that are tried.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Beside plain reuse.
    pub rules: Vec<Rule>,
    /// Layers that rules with a layer choose on.
    pub layers: Vec<usize>,
    /// Shares that are recomputed.
    pub ratios: Vec<f32>,
    /// Passages of the primer.
    pub primers: Vec<usize>,
}

impl Grid {
    /// Its ways, cheapest first; of equals those with more primer, which costs nothing.
    pub fn ways(&self, cost: impl Fn(Selection, f32) -> f64) -> Vec<Way> {
        let mut ways = Vec::new();
        let mut add = |selection: Selection, ratio: f32| {
            let cost = cost(selection, ratio);
            self.primers.iter().for_each(|primer| ways.push(Way { selection, ratio, primer: *primer, cost }));
        };
        add(Selection::by(Rule::None), 0.0);
        // None is tried in any case, and all is what is to be saved.
        for &rule in self.rules.iter().filter(|rule| !matches!(rule, Rule::None | Rule::All)) {
            let own = Selection::by(rule);
            let looked_at = match rule.has_layer() && rule.looks() {
                true => self.layers.iter().copied().filter(|layer| own.takes_layer(*layer)).collect(),
                false => vec![own.layer],
            };
            for layer in looked_at {
                self.ratios.iter().for_each(|ratio| add(Selection { layer, ..own }, *ratio));
            }
        }
        ways.sort_by(|left, right| left.cost.total_cmp(&right.cost).then(right.primer.cmp(&left.primer)));
        ways
    }
}

/// What was seen of one way.
struct Seen {
    way: Way,
    /// By prompt.
    means: Vec<f64>,
    tokens: Vec<f32>,
    differ: usize,
    verdict: Verdict,
}

impl Seen {
    fn new(way: Way) -> Self {
        Self { way, means: Vec::new(), tokens: Vec::new(), differ: 0, verdict: Verdict::Left }
    }

    fn add(&mut self, outcome: &Outcome) {
        self.means.push(outcome.mean());
        self.tokens.extend_from_slice(&outcome.divergences);
        self.differ += usize::from(outcome.differs);
    }

    fn mean(&self) -> f64 {
        self.means.iter().sum::<f64>() / self.means.len().max(1) as f64
    }

    /// Half of the mean's interval of 95 %, by the normal distribution.
    fn interval(&self) -> f64 {
        let (mean, count) = (self.mean(), self.means.len() as f64);
        let squares: f64 = self.means.iter().map(|value| (value - mean).powi(2)).sum();
        if count < 2.0 { 0.0 } else { 1.96 * (squares / (count - 1.0) / count).sqrt() }
    }

    fn evidence(mut self) -> Evidence {
        self.tokens.sort_unstable_by(f32::total_cmp);
        let at = (self.tokens.len() * 99).div_ceil(100).saturating_sub(1);
        Evidence {
            way: self.way,
            prompts: self.means.len(),
            differ: self.differ,
            divergence: self.mean(),
            interval: self.interval(),
            p99: self.tokens.get(at).map_or(0.0, |nats| f64::from(*nats)),
            verdict: self.verdict,
        }
    }
}

/// What a search came to.
#[derive(Debug)]
pub struct Found {
    /// What was seen of every way, in their order.
    pub evidence: Vec<Evidence>,
    /// The cheapest that was certified.
    pub chosen: Option<Way>,
}

/// Tries a way, known by its place among all, on a prompt.
pub type Trial<'a> = &'a mut dyn FnMut(usize, &Way, usize) -> Result<Outcome>;

/// The most trials that a [`search`] makes.
pub fn most_trials(ways: usize, prompts: usize) -> usize {
    let half_a = half_a(prompts);
    let (mut sum, mut from, mut alive) = (0, 0, ways);
    for end in rounds(half_a) {
        sum += alive * (end - from);
        (from, alive) = (end, alive.div_ceil(2).max(FINALISTS.min(alive)));
    }
    sum + FINALISTS.min(ways) * (prompts - half_a)
}

/// Finds the cheapest of `ways`, which come cheapest first, whose mean divergence over `prompts` is within `budget`.
///
/// # Errors
/// Those of `trial`.
pub fn search(ways: &[Way], prompts: usize, budget: f64, trial: Trial<'_>) -> Result<Found> {
    let half_a = half_a(prompts);
    let mut seen: Vec<Seen> = ways.iter().copied().map(Seen::new).collect();
    let mut finalists = halve(&mut seen, half_a, budget, trial)?;
    finalists.sort_unstable();
    let clip = prompt_clip(budget);
    let mut chosen = None;
    for index in finalists {
        let before = &seen[index];
        let alpha = ALPHA / FINALISTS as f64;
        let mut bet = Bet::new(budget / clip, alpha, (before.mean() / clip, before.means.len()));
        let mut verdict = bet.decided().verdict();
        for prompt in half_a..prompts {
            if verdict != Verdict::Undecided {
                break;
            }
            let outcome = trial(index, &ways[index], prompt)?;
            bet.take(outcome.mean().min(clip) / clip);
            seen[index].add(&outcome);
            verdict = bet.decided().verdict();
        }
        seen[index].verdict = verdict;
        if verdict == Verdict::Certified {
            chosen = Some(ways[index]);
            break;
        }
    }
    Ok(Found { evidence: seen.into_iter().map(Seen::evidence).collect(), chosen })
}

/// Tries every way on every prompt, and chooses none: the frontier of what can be had.
///
/// # Errors
/// Those of `trial`.
pub fn frontier(ways: &[Way], prompts: usize, trial: Trial<'_>) -> Result<Found> {
    let mut seen: Vec<Seen> = ways.iter().copied().map(Seen::new).collect();
    // By prompt, so that what is stored of its passages serves every way.
    for prompt in 0..prompts {
        for (index, way) in ways.iter().enumerate() {
            seen[index].add(&trial(index, way, prompt)?);
        }
    }
    Ok(Found { evidence: seen.into_iter().map(Seen::evidence).collect(), chosen: None })
}

impl Decided {
    fn verdict(self) -> Verdict {
        match self {
            Self::Within => Verdict::Certified,
            Self::Over => Verdict::Refused,
            Self::Open => Verdict::Undecided,
        }
    }
}

/// What one prompt counts at most in the test of a budget. No mean is over the greatest.
fn prompt_clip(budget: f64) -> f64 {
    PROMPT_CLIP.max(CLIP_BUDGETS * budget).min(f64::from(CLIP))
}

fn half_a(prompts: usize) -> usize {
    (prompts / PART_OF_HALF_A).clamp(1, MOST_HALF_A)
}

/// Where the rounds of half A end.
fn rounds(half_a: usize) -> impl Iterator<Item = usize> {
    let doubled = std::iter::successors(Some(FIRST_ROUND), |end| Some(2 * end));
    doubled.take_while(move |end| *end < half_a).chain([half_a])
}

/// Successive halving: the ways, as places among all, that half B is to see.
fn halve(seen: &mut [Seen], half_a: usize, budget: f64, trial: Trial<'_>) -> Result<Vec<usize>> {
    let (mut alive, mut from): (Vec<usize>, usize) = ((0..seen.len()).collect(), 0);
    for end in rounds(half_a) {
        for prompt in from..end {
            for &index in &alive {
                let way = seen[index].way;
                seen[index].add(&trial(index, &way, prompt)?);
            }
        }
        from = end;
        alive.retain(|index| {
            let seen = &mut seen[*index];
            // At few prompts an interval says little.
            let is_over = seen.means.len() >= FIRST_ROUND && seen.mean() - seen.interval() > budget;
            if is_over {
                seen.verdict = Verdict::Refused;
            }
            !is_over
        });
        // Those that half B can certify by what they cost, then the others by how far they are from it. Of many ways some are under the
        // budget by luck, so half an interval counts against each.
        let rank = |index: &usize| {
            let seen = &seen[*index];
            (seen.mean() + seen.interval() / 2.0 - CERTIFIABLE * budget).max(0.0)
        };
        alive.sort_by(|left, right| rank(left).total_cmp(&rank(right)).then(left.cmp(right)));
        alive.truncate(alive.len().div_ceil(2).max(FINALISTS));
    }
    alive.truncate(FINALISTS);
    Ok(alive)
}

#[cfg(test)]
mod tests;
