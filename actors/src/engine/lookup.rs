//! Drafts by look-up: an answer that quotes its prompt, or itself, goes on as what it quotes does ("Prompt Lookup Decoding", Saxena, 2023;
//! "Inference with Reference: Lossless Acceleration of Large Language Models", arXiv:2304.04487).

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Earlier places that one look-up compares: a text of one token repeated has as many as it is long.
const MOST_PLACES: usize = 64;
/// The weight of a new outcome in the share of right drafts.
const LEARNING: f64 = 0.2;
/// The share before anything was seen: one step with a draft finds out.
const PRIOR: f64 = 0.5;

/// How an answer's drafts are made.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    /// Most tokens of a draft; 0: no drafts.
    pub most: usize,
    /// Fewest tokens at the end of the answer that must stand elsewhere, too; 1 at least.
    pub least_match: usize,
    /// Tokens at the end of the answer that are compared.
    pub most_match: usize,
    /// What became of the drafts.
    pub counts: Arc<DraftCounts>,
}

/// What became of an answer's drafts.
#[derive(Debug, Default)]
pub struct DraftCounts {
    drafted: AtomicU32,
    accepted: AtomicU32,
}

impl DraftCounts {
    /// So many tokens were verified, and so many of them are part of the answer.
    pub(super) fn add(&self, drafted: usize, accepted: usize) {
        self.drafted.fetch_add(drafted as u32, Ordering::Relaxed);
        self.accepted.fetch_add(accepted as u32, Ordering::Relaxed);
        metrics::counter!("ragstone_draft_tokens_total").increment(drafted as u64);
        metrics::counter!("ragstone_draft_tokens_accepted_total").increment(accepted as u64);
    }

    /// Tokens that were verified, and those of them that were right.
    pub fn get(&self) -> (u32, u32) {
        (self.drafted.load(Ordering::Relaxed), self.accepted.load(Ordering::Relaxed))
    }
}

/// Finds where the end of a text stood before. Adding a token takes constant time.
#[derive(Debug)]
pub(super) struct Drafter {
    options: Lookup,
    /// Prompt and answer.
    tokens: Vec<u32>,
    /// By hash of `least_match` tokens, the place behind the last of them that was seen.
    latest: HashMap<u64, u32>,
    /// By place, less 1: the place before where the same tokens stood; 0: nowhere.
    earlier: Vec<u32>,
    /// By tokens that matched, less the fewest: the share of drafts' tokens that were right.
    shares: Vec<f64>,
    /// The proposal for this step, and how many tokens matched.
    proposed: Vec<u32>,
    matched: usize,
}

impl Drafter {
    /// Of an answer behind `prompt`; `None` where no drafts are wanted.
    pub(super) fn new(options: &Lookup, prompt: &[u32]) -> Option<Self> {
        let least_match = options.least_match.max(1);
        let options = Lookup { least_match, most_match: options.most_match.max(least_match), ..options.clone() };
        let lengths = options.most_match - least_match + 1;
        let mut drafter = Self {
            tokens: Vec::with_capacity(prompt.len()),
            latest: HashMap::new(),
            earlier: Vec::with_capacity(prompt.len()),
            shares: vec![PRIOR; lengths],
            proposed: Vec::new(),
            matched: 0,
            options,
        };
        if drafter.options.most == 0 {
            return None;
        }
        prompt.iter().for_each(|token| drafter.push(*token));
        Some(drafter)
    }

    /// The text goes on with `token`.
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        let place = self.tokens.len();
        let before = match place.checked_sub(self.options.least_match) {
            // Two texts of one hash are told apart where they are compared.
            Some(begin) => {
                let key = foldhash(&self.tokens[begin..]);
                self.latest.insert(key, place as u32).unwrap_or(0)
            }
            None => 0,
        };
        self.earlier.push(before);
    }

    /// How the text goes on if it goes on as where its longest end stood before, of several the most recent: `most` tokens at most. Also
    /// how likely the first of them is right, and each behind right ones.
    pub(super) fn propose(&mut self, most: usize) -> (&[u32], f64) {
        self.proposed.clear();
        let length = self.tokens.len();
        let mut best = (0, 0);
        let mut place = self.earlier.last().map_or(0, |place| *place as usize);
        for _ in 0..MOST_PLACES {
            if place == 0 || best.0 == self.options.most_match {
                break;
            }
            let pairs = self.tokens[..place].iter().rev().zip(self.tokens.iter().rev());
            let matched = pairs.take(self.options.most_match).take_while(|(a, b)| a == b).count();
            if matched > best.0 {
                best = (matched, place);
            }
            place = self.earlier[place - 1] as usize;
        }
        let (matched, place) = best;
        if matched < self.options.least_match {
            self.matched = 0;
            return (&[], 0.0);
        }
        self.matched = matched;
        for at in place..place + most.min(self.options.most) {
            // What repeats itself goes on in the draft.
            let token = if at < length { self.tokens[at] } else { self.proposed[at - length] };
            self.proposed.push(token);
        }
        (&self.proposed, self.shares[matched - self.options.least_match])
    }

    /// Of the proposal's tokens the first `right` were right, and the next, if `is_wrong`, was not. Also where nothing was verified and
    /// the token came: what a draft would have been worth is known then, too.
    pub(super) fn learn(&mut self, right: usize, is_wrong: bool) {
        let Some(length) = self.matched.checked_sub(self.options.least_match) else { return };
        for step in 0..right + usize::from(is_wrong) {
            // Each token that was right makes the match longer.
            let share = &mut self.shares[(length + step).min(self.options.most_match - self.options.least_match)];
            let outcome = if step < right { 1.0 } else { 0.0 };
            *share += LEARNING * (outcome - *share);
        }
    }

    /// The first token of the proposal.
    pub(super) fn guess(&self) -> Option<u32> {
        self.proposed.first().copied()
    }

    pub(super) fn counts(&self) -> &DraftCounts {
        &self.options.counts
    }
}

fn foldhash(tokens: &[u32]) -> u64 {
    // Of fixed keys: whoever sends tokens that collide makes a look-up compare `MOST_PLACES` places, and no more.
    std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default().hash_one(tokens)
}

/// One answer's wish for a draft.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// Tokens that it could have verified.
    pub most: usize,
    /// How likely each is right where those before it are.
    pub share: f64,
}

/// How much faster a step with drafts has to be than one without: less is not worth the doubt about what it takes.
const LEAST_GAIN: f64 = 1.02;
/// No draft is sure.
const MOST_SHARE: f64 = 0.98;

/// How many tokens of each draft are verified beside the `decoding` rows of a step: as many as bring the most tokens a millisecond, by
/// what a step with so many more rows takes, in milliseconds; `None` where that is not known, and is to be found out.
pub(super) fn allot(decoding: usize, wishes: &[Wish], step_ms: impl Fn(usize) -> Option<f64>) -> Vec<usize> {
    let mut given = vec![0; wishes.len()];
    // A draft's tokens are worth less and less, so that the best of all come in each one's order.
    let mut gains: Vec<(f64, usize)> = Vec::new();
    for (index, wish) in wishes.iter().enumerate() {
        let share = wish.share.clamp(0.0, MOST_SHARE);
        gains.extend((1..=wish.most).map(|place| (share.powi(place as i32), index)));
    }
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    let Some(alone) = step_ms(0) else { return given };
    let now = decoding as f64 / alone.max(1e-6);
    let (mut tokens, mut best) = (decoding as f64, (now * LEAST_GAIN, 0));
    for (rows, (gain, _)) in gains.iter().enumerate() {
        tokens += gain;
        let rate = tokens / step_ms(rows + 1).unwrap_or(alone).max(1e-6);
        if rate > best.0 {
            best = (rate, rows + 1);
        }
    }
    gains[..best.1].iter().for_each(|(_, index)| given[*index] += 1);
    given
}

/// Rows of the step that would be made, were each row as cheap as it may be, where fewer tokens are `given` than that has: then what
/// longer steps are thought to take is in the way, and not how seldom drafts are right.
pub(super) fn priced_out(
    decoding: usize,
    wishes: &[Wish],
    given: usize,
    least_ms: impl Fn(usize) -> Option<f64>,
) -> Option<usize> {
    let could: usize = allot(decoding, wishes, least_ms).iter().sum();
    (could > given).then_some(decoding + could)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(most: usize, least_match: usize, most_match: usize) -> Lookup {
        Lookup { most, least_match, most_match, counts: Arc::default() }
    }

    fn proposed(tokens: &[u32], most: usize, least_match: usize, most_match: usize) -> Vec<u32> {
        let mut drafter = Drafter::new(&options(most, least_match, most_match), tokens).unwrap();
        drafter.propose(usize::MAX).0.to_vec()
    }

    #[test]
    fn the_longest_match_goes_on_and_of_equal_ones_the_most_recent() {
        let text = [1, 2, 3, 40, 9, 2, 3, 50, 8, 2, 3, 60, 7, 1, 2, 3];
        assert_eq!(proposed(&text, 2, 2, 3), [40, 9], "three tokens match");
        assert_eq!(proposed(&text, 2, 2, 2), [60, 7], "two do, and there is a later place");
        assert!(proposed(&text, 2, 4, 4).is_empty(), "no four do");
        assert!(proposed(&text[..3], 2, 1, 4).is_empty());
        assert!(Drafter::new(&options(0, 2, 3), &text).is_none());
    }

    #[test]
    fn what_repeats_itself_goes_on_for_as_long_as_is_asked() {
        assert_eq!(proposed(&[5, 6, 7, 5, 6, 7], 7, 2, 4), [5, 6, 7, 5, 6, 7, 5]);
        assert_eq!(proposed(&[4; 500], 3, 2, 4), [4, 4, 4]);
    }

    /// Against a search through the whole text.
    #[test]
    fn an_index_finds_what_a_search_finds() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let (least, most) = (random.usize(1..4), random.usize(4..7));
            let tokens: Vec<u32> = (0..random.usize(1..60)).map(|_| random.u32(..4)).collect();
            let matched = |place: usize| {
                let pairs = tokens[..place].iter().rev().zip(tokens.iter().rev());
                pairs.take(most).take_while(|(a, b)| a == b).count()
            };
            let best = (1..tokens.len())
                .filter(|place| matched(*place) >= least)
                .max_by_key(|place| (matched(*place), *place));
            let expected = best.map(|place| tokens[place]);
            assert_eq!(proposed(&tokens, 1, least, most).first().copied(), expected, "{tokens:?} {least} {most}");
        }
    }

    #[test]
    fn shares_follow_what_was_right_by_the_length_of_the_match() {
        let mut drafter = Drafter::new(&options(4, 1, 2), &[1, 2, 3, 2]).unwrap();
        assert_eq!(drafter.propose(4).1, PRIOR);
        (0..30).for_each(|_| drafter.learn(0, true));
        assert!(drafter.propose(4).1 < 0.01);
        drafter.push(3);
        assert_eq!(drafter.propose(4), (&[2, 3, 2, 3][..], PRIOR), "two tokens match now");
        (0..30).for_each(|_| drafter.learn(4, false));
        assert!(drafter.propose(4).1 > 0.99);
        drafter.push(9);
        assert!(drafter.propose(4).0.is_empty());
        assert_eq!(drafter.guess(), None);
        drafter.learn(0, true);
    }

    fn wish(most: usize, share: f64) -> Wish {
        Wish { most, share }
    }

    #[test]
    fn drafts_are_as_long_as_they_make_a_step_faster() {
        // A pass over the weights takes 10 ms, whatever there is in it.
        let flat = |_: usize| Some(10.0);
        assert_eq!(allot(1, &[wish(7, 0.9)], flat), [7]);
        assert_eq!(allot(1, &[wish(7, 0.01)], flat), [0], "not for a hundredth");
        // Each row costs as much as a step.
        let dear = |rows: usize| Some(10.0 + 10.0 * rows as f64);
        assert_eq!(allot(1, &[wish(7, 0.95)], dear), [0]);
        // A tenth each: those that are likely, as far as they are.
        let fair = |rows: usize| Some(10.0 + rows as f64);
        let given = allot(2, &[wish(7, 0.95), wish(7, 0.3)], fair);
        assert!(given[0] > 2 && given[1] <= 1, "{given:?}");
        assert_eq!(
            allot(1, &[wish(3, 0.5)], |rows| (rows == 0).then_some(10.0)),
            [3],
            "what is not known is found out"
        );
        assert_eq!(allot(1, &[wish(3, 0.5)], |_| None), [0], "not before a step without was seen");
        assert_eq!(allot(4, &[], flat), Vec::<usize>::new());
    }

    #[test]
    fn what_longer_steps_take_is_doubted_where_it_is_what_keeps_drafts_short() {
        // A row beside the first may take 1 ms of 10, and is thought to take 10.
        let may = |rows: usize| Some(10.0 + rows as f64);
        let thought = |rows: usize| Some(10.0 + 10.0 * rows as f64);
        let given = |wish| allot(1, &[wish], thought).iter().sum::<usize>();
        assert_eq!(given(wish(7, 0.9)), 0);
        assert_eq!(priced_out(1, &[wish(7, 0.9)], 0, may), Some(8), "at that price it had all");
        assert_eq!(given(wish(7, 0.05)), 0);
        assert_eq!(priced_out(1, &[wish(7, 0.05)], 0, may), None, "it is seldom right, whatever rows cost");
        assert_eq!(priced_out(1, &[wish(7, 0.9)], 7, may), None, "it has all");
        let some = priced_out(2, &[wish(7, 0.5), wish(7, 0.01)], 0, may);
        assert!(some.is_some_and(|rows| (3..9).contains(&rows)), "as far as it is worth it: {some:?}");
    }
}
