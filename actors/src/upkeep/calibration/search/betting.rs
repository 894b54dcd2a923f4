//! A sequential test of a bounded mean by betting ("Estimating means of bounded random variables by betting", Waudby-Smith and Ramdas,
//! section 4): a gambler who bets that the mean is under the budget gets rich where it is, and hardly ever where it is not, so that the
//! test may look after every prompt and end at once. Another bets that it is over.

/// How much of the stake that could be lost at once is bet at most.
const CUT: f64 = 0.5;
/// What the prior's mean and variance weigh, in prompts.
const PRIOR: f64 = 1.0;

/// Two gamblers, and what they have seen: values within 0 and 1.
#[derive(Debug, Clone)]
pub struct Bet {
    budget: f64,
    /// The wealth that decides.
    enough: f64,
    under: f64,
    over: f64,
    count: f64,
    sum: f64,
    squares: f64,
}

/// What the bets say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// The mean is within the budget.
    Within,
    /// It is over it.
    Over,
    /// Neither is sure yet.
    Open,
}

impl Bet {
    /// Each decision is wrong with a probability of at most `alpha`. `seen` is a mean, and of how many values: other ones, seen before, which
    /// only tell how to bet.
    pub fn new(budget: f64, alpha: f64, (mean, count): (f64, usize)) -> Self {
        let count = (count as f64).min(8.0);
        let spread = budget.max(mean) / 2.0;
        let (sum, squares) = (count * mean + PRIOR * budget / 2.0, (count + PRIOR) * spread * spread);
        Self { budget, enough: 1.0 / alpha, under: 1.0, over: 1.0, count: count + PRIOR, sum, squares }
    }

    /// Another value. What is bet on it depends on those before it alone.
    pub fn take(&mut self, value: f64) {
        let (mean, variance) = (self.sum / self.count, self.squares / self.count);
        let stake = |edge: f64, at_stake: f64| {
            let wanted = edge / (variance + edge * edge).max(1e-12);
            wanted.clamp(0.0, CUT / at_stake.max(1e-6))
        };
        // The most that can be lost: 1 - budget where the value is 1, the budget where it is 0.
        self.under *= 1.0 + stake(self.budget - mean, 1.0 - self.budget) * (self.budget - value);
        self.over *= 1.0 + stake(mean - self.budget, self.budget) * (value - self.budget);
        self.squares += (value - mean) * (value - (self.sum + value) / (self.count + 1.0));
        self.sum += value;
        self.count += 1.0;
    }

    /// What is sure by now.
    pub fn decided(&self) -> Decided {
        match self {
            // Nothing can be over what allows everything.
            _ if self.budget >= 1.0 || self.under >= self.enough => Decided::Within,
            _ if self.over >= self.enough => Decided::Over,
            _ => Decided::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefill::splitmix64;

    /// Values as divergences are: mostly small, some large; of the given mean.
    fn heavy(seed: u64, mean: f64) -> impl Iterator<Item = f64> {
        let uniform = move |at: u64| (splitmix64(splitmix64(seed) ^ at) >> 11) as f64 / (1_u64 << 53) as f64;
        // One in ten is exponential about five times the mean, the others about five ninths of it.
        (0..).map(move |at| {
            let scale = if uniform(2 * at) < 0.1 { 5.0 * mean } else { mean * 5.0 / 9.0 };
            (-scale * (1.0 - uniform(2 * at + 1)).ln()).min(1.0)
        })
    }

    fn decide(seed: u64, mean: f64, budget: f64, most: usize) -> (Decided, usize) {
        let mut bet = Bet::new(budget, 0.05 / 3.0, (mean, 64));
        for (taken, value) in heavy(seed, mean).take(most).enumerate() {
            if bet.decided() != Decided::Open {
                return (bet.decided(), taken);
            }
            bet.take(value);
        }
        (bet.decided(), most)
    }

    #[test]
    fn means_that_are_apart_are_told_apart_and_equal_ones_are_not() {
        let of = |mean: f64| {
            let all: Vec<(Decided, usize)> = (0..200).map(|seed| decide(seed, mean, 0.03, 500)).collect();
            let count = |which: Decided| all.iter().filter(|(decided, _)| *decided == which).count();
            (count(Decided::Within), count(Decided::Over))
        };
        let (within, over) = of(0.006);
        assert!(within >= 190 && over == 0, "a fifth of the budget: {within}, {over}");
        let (within, over) = of(0.12);
        assert!(over >= 190 && within == 0, "four times the budget: {within}, {over}");
        // At the budget itself either is an error, as likely as that: of 200 hardly ten.
        let (within, over) = of(0.03);
        assert!(within <= 10 && over <= 10, "{within}, {over}");
    }

    #[test]
    fn what_loses_nothing_takes_hundreds_of_prompts_to_certify_and_what_loses_all_few_to_refuse() {
        let mut bet = Bet::new(0.03, 0.05 / 3.0, (0.0, 64));
        let mut prompts = 0;
        while bet.decided() == Decided::Open {
            bet.take(0.0);
            prompts += 1;
        }
        assert_eq!(bet.decided(), Decided::Within);
        assert!((200..350).contains(&prompts), "{prompts}");
        let mut bet = Bet::new(0.03, 0.05 / 3.0, (0.5, 64));
        (0..9).for_each(|_| bet.take(0.5));
        assert_eq!(bet.decided(), Decided::Over);
        assert_eq!(Bet::new(1.0, 0.01, (0.0, 0)).decided(), Decided::Within, "all is allowed");
    }
}
