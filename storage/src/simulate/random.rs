//! Draws for generated workloads.

use ragstone_env::Env;

/// Running sums of `1 / rank^exponent`.
pub(super) fn cumulative_zipf(documents: usize, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let next = |rank: usize| {
        sum += (rank as f64).powf(-exponent);
        sum
    };
    (1..=documents).map(next).collect()
}

/// An index by weight, given the weights' running sums.
pub(super) fn draw(sums: &[f64], random: &mut Random) -> usize {
    let total = sums.last().copied().unwrap_or(0.0);
    let at = random.unit() * total;
    sums.partition_point(|sum| *sum <= at).min(sums.len() - 1)
}

/// Draws from the seeded environment.
pub(super) struct Random(pub Env);

impl Random {
    /// Below 1.
    pub fn unit(&mut self) -> f64 {
        (self.0.random_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `bound`, which is far below 2^53.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }

    /// From one event to the next, where there is one in a unit of time on average (Poisson); above 0.
    pub fn interval(&mut self) -> f64 {
        -(1.0 - self.unit()).ln() + f64::MIN_POSITIVE
    }

    /// The standard normal distribution (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub fn shuffle(&mut self, values: &mut [usize]) {
        for at in (1..values.len()).rev() {
            values.swap(at, self.below(at + 1));
        }
    }

    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut values: Vec<usize> = (0..count).collect();
        self.shuffle(&mut values);
        values
    }
}
