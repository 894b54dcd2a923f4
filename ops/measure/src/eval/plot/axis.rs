//! Where a value lies along an edge, and which values the edge names.

/// Greatest by least: beyond it a scale is logarithmic.
const LINEAR_TO: f64 = 12.0;
/// About so many ticks.
const TICKS: f64 = 6.0;

/// Values along an edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    /// Where the two lie.
    at: (f64, f64),
    is_log: bool,
    ticks: Vec<f64>,
}

impl Scale {
    /// Shows `values` and `least` from `at.0` to `at.1`: from 0 on where they are near enough to it, in powers of ten where they differ by
    /// more than a picture shows.
    pub fn new(values: &[f64], least: Option<(f64, f64)>, at: (f64, f64)) -> Self {
        let finite =
            values.iter().copied().filter(|value| value.is_finite()).chain(least.into_iter().flat_map(|(a, b)| [a, b]));
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), value| (l.min(value), h.max(value)));
        if low > high {
            return Self::linear(0.0, 1.0, at);
        }
        if low > 0.0 && high / low > LINEAR_TO {
            return Self::logarithmic(low, high, at);
        }
        // A difference of a few percent of what is shown would not be seen from 0 on.
        let from = if low > 0.0 && low < 0.8 * high { 0.0 } else { low };
        Self::linear(from, if high > from { high } else { from + from.abs().max(1.0) }, at)
    }

    fn linear(low: f64, high: f64, at: (f64, f64)) -> Self {
        let step = step((high - low) / TICKS);
        let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
        let ticks = (0..=(last - first) as usize).map(|tick| (first + tick as f64) * step).collect();
        Self { low: first * step, high: last * step, at, is_log: false, ticks }
    }

    fn logarithmic(low: f64, high: f64, at: (f64, f64)) -> Self {
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let all: Vec<f64> =
            decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10.0_f64.powi(decade))).collect();
        let first = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
        let last = all.iter().position(|tick| *tick >= high).unwrap_or(all.len() - 1);
        let ticks = all[first..=last].to_vec();
        Self { low: ticks[0], high: ticks[ticks.len() - 1], at, is_log: true, ticks }
    }

    /// Where the value lies.
    pub fn place(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.at.0 + share * (self.at.1 - self.at.0)
    }

    /// The values that are named, and their names.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let name = |tick: f64| {
            // As many places as the finest tick needs.
            let finest = if self.is_log { tick } else { self.ticks.get(1).map_or(1.0, |next| next - self.ticks[0]) };
            let places = (-finest.abs().log10().floor()).clamp(0.0, 9.0) as usize;
            format!("{tick:.places$}")
        };
        self.ticks.iter().map(|tick| (*tick, name(if *tick == 0.0 { 0.0 } else { *tick }))).collect()
    }
}

/// 1, 2 or 5 times a power of ten, not under `wanted`.
fn step(wanted: f64) -> f64 {
    let power = 10.0_f64.powf(wanted.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|step| *step >= wanted * 0.999)
        .unwrap_or(power * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(scale: &Scale) -> Vec<String> {
        scale.ticks().into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn near_values_are_shown_from_zero_and_far_ones_in_powers() {
        let near = Scale::new(&[3.0, 11.0], None, (100.0, 200.0));
        assert_eq!(names(&near), ["0", "2", "4", "6", "8", "10", "12"]);
        assert_eq!((near.place(0.0), near.place(6.0), near.place(12.0)), (100.0, 150.0, 200.0));
        let far = Scale::new(&[3.0, 400.0], None, (0.0, 100.0));
        assert_eq!(names(&far), ["2", "5", "10", "20", "50", "100", "200", "500"]);
        assert_eq!((far.place(2.0), far.place(500.0)), (0.0, 100.0));
        assert!((far.place(1000.0_f64.sqrt()) - 50.0).abs() < 1e-9, "the middle of powers");
        let small = Scale::new(&[0.02, 0.9], None, (0.0, 1.0));
        assert_eq!(names(&small), ["0.02", "0.05", "0.1", "0.2", "0.5", "1"]);
    }

    #[test]
    fn what_is_shown_at_least_and_what_does_not_vary() {
        let shares = Scale::new(&[0.5], Some((0.0, 1.0)), (0.0, 1.0));
        assert_eq!(names(&shares), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        for values in [&[][..], &[0.0], &[7.0], &[-3.0], &[f64::NAN, f64::INFINITY], &[1.0, 1.0 + 1e-6]] {
            let scale = Scale::new(values, None, (0.0, 1.0));
            let shown: Vec<f64> = values.iter().copied().filter(|it| it.is_finite()).collect();
            let is_shown = |value: &f64| (-1e-6..=1.000_001).contains(&scale.place(*value));
            assert!(shown.iter().all(is_shown) && scale.ticks().len() < 30, "{values:?} {scale:?}");
        }
        assert_eq!(names(&Scale::new(&[-0.4, 0.4], None, (0.0, 1.0))), ["-0.4", "-0.2", "0.0", "0.2", "0.4"]);
    }
}
