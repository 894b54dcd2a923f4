//! Samples, in few numbers.

use serde::Serialize;

/// The middle of some samples, and how far they spread.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
}

impl Spread {
    /// Of any number of samples; NaN of none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        let at = |index: usize| samples.get(index).copied().unwrap_or(f64::NAN);
        let middle = samples.len() / 2;
        let median =
            if samples.len() % 2 == 1 { at(middle) } else { f64::midpoint(at(middle.wrapping_sub(1)), at(middle)) };
        Self { median, least: at(0), greatest: at(samples.len().wrapping_sub(1)) }
    }

    /// A rate out of times: `work` by each.
    #[must_use]
    pub fn rate(self, work: f64) -> Self {
        Self { median: work / self.median, least: work / self.greatest, greatest: work / self.least }
    }
}

impl Spread {
    /// Of seconds: `     1.234 (    1.111 ..     2.222)`
    pub fn milliseconds(self) -> String {
        let Self { median, least, greatest } = self;
        format!("{:>9.3} ({:>9.3} .. {:>9.3})", median * 1e3, least * 1e3, greatest * 1e3)
    }
}

/// What half of some samples, and all but a hundredth of them, do not exceed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
}

impl Percentiles {
    /// Of any number of samples, by the nearest rank; NaN of none.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100);
            samples.get(rank.wrapping_sub(1)).copied().unwrap_or(f64::NAN)
        };
        Self { p50: at(50), p99: at(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let odd = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.least, odd.greatest), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert!(Spread::of([]).median.is_nan());
        assert_eq!(odd.rate(6.0).greatest, 6.0);
    }

    #[test]
    fn percentiles_are_samples() {
        let of = |samples: Vec<f64>| {
            let of = Percentiles::of(samples);
            (of.p50, of.p99)
        };
        assert_eq!(of((1..=200).rev().map(f64::from).collect()), (100.0, 198.0));
        assert_eq!(of(vec![3.0, 1.0, 2.0]), (2.0, 3.0));
        assert!(Percentiles::of(Vec::new()).p99.is_nan());
    }
}
