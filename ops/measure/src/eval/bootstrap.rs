//! Quantiles, and intervals of means by the percentile bootstrap (Efron): the questions are drawn again with replacement, as
//! often as there are, and the middle 95 % of the means of 2,000 such draws are the interval.

use fastrand::Rng;

/// Draws.
const DRAWS: usize = 2000;
/// What the interval leaves out at each end.
const TAIL: f64 = 0.025;

/// From and to.
pub type Interval = [f64; 2];

/// The interval of the values' mean; `None` where there are none. Equal seeds draw the same places of as many values, so that
/// intervals of one report are of the same draws, and the interval of differences is a paired one.
pub fn interval_of_mean(values: &[f64], seed: u64) -> Option<Interval> {
    if values.is_empty() {
        return None;
    }
    let mut rng = Rng::with_seed(seed);
    let mut mean = || {
        let sum: f64 = (0..values.len()).map(|_| values[rng.usize(..values.len())]).sum();
        sum / values.len() as f64
    };
    let mut means: Vec<f64> = (0..DRAWS).map(|_| mean()).collect();
    means.sort_by(f64::total_cmp);
    Some([quantile(&means, TAIL), quantile(&means, 1.0 - TAIL)])
}

/// The value that `share` of the ascending values lie below, between two of them in proportion; 0 where there are none.
pub fn quantile(ascending: &[f64], share: f64) -> f64 {
    let Some(last) = ascending.len().checked_sub(1) else { return 0.0 };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let above = (below + 1).min(last);
    ascending[below] + (ascending[above] - ascending[below]) * part
}

/// The mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_hand() {
        let values = [1.0, 2.0, 4.0, 8.0];
        // numpy.quantile([1, 2, 4, 8], [0, 0.1, 0.5, 0.9, 1])
        for (share, wanted) in [(0.0, 1.0), (0.1, 1.3), (0.5, 3.0), (0.9, 6.8), (1.0, 8.0)] {
            assert!((quantile(&values, share) - wanted).abs() < 1e-12, "{share}");
        }
        assert_eq!((quantile(&[], 0.5), quantile(&[3.0], 0.9)), (0.0, 3.0));
    }

    /// For values of 0 and 1 the means of draws are binomial: about the normal's interval.
    #[test]
    fn an_interval_is_about_that_of_the_normal_distribution() {
        let values: Vec<f64> = (0..300).map(|at| f64::from(u8::from(at % 5 != 0))).collect();
        let (mean, deviation) = (0.8, (0.8_f64 * 0.2 / 300.0).sqrt());
        for seed in 0..5 {
            let [low, high] = interval_of_mean(&values, seed).expect("values");
            assert!((low - (mean - 1.96 * deviation)).abs() < 0.006, "{low}");
            assert!((high - (mean + 1.96 * deviation)).abs() < 0.006, "{high}");
        }
        assert_eq!(interval_of_mean(&values, 1), interval_of_mean(&values, 1));
        assert_ne!(interval_of_mean(&values, 1), interval_of_mean(&values, 2));
    }

    #[test]
    fn what_does_not_vary_has_no_width() {
        assert_eq!(interval_of_mean(&[0.5; 7], 3), Some([0.5, 0.5]));
        assert_eq!(interval_of_mean(&[], 3), None);
    }

    /// A difference that is the same for every question has no width however far the questions differ.
    #[test]
    fn equal_seeds_make_differences_paired() {
        let full: Vec<f64> = (0..50).map(|at| f64::from(at % 7) / 7.0).collect();
        let less: Vec<f64> = full.iter().map(|value| value - 0.25).collect();
        let (full, less) = (interval_of_mean(&full, 9).expect("values"), interval_of_mean(&less, 9).expect("values"));
        assert!((full[0] - less[0] - 0.25).abs() < 1e-12 && (full[1] - less[1] - 0.25).abs() < 1e-12);
        assert!(full[1] - full[0] > 0.1);
    }
}
