//! How far values are from what they should be.

use serde::{Deserialize, Serialize};

/// What a value may differ by: a share of itself, and so much more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
}

impl Tolerance {
    pub(super) const fn new(relative: f64, absolute: f64) -> Self {
        Self { relative, absolute }
    }

    /// Of what is copied.
    pub(super) const fn exact() -> Self {
        Self::new(0.0, 0.0)
    }
}

/// What was found of one result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    pub(super) absolute: f64,
    pub(super) relative: f64,
    /// Over 1: too much.
    pub(super) of_tolerance: f64,
    /// The first value that is too far off.
    pub(super) wrong: Option<String>,
}

/// Of the values, one by one. What is not a number is infinitely far from one.
pub(super) fn difference(got: &[f32], wanted: &[f64], tolerance: Tolerance) -> Difference {
    let mut found = Difference { absolute: 0.0, relative: 0.0, of_tolerance: 0.0, wrong: None };
    if got.len() != wanted.len() {
        found.of_tolerance = f64::INFINITY;
        found.wrong = Some(format!("{} values, not {}", got.len(), wanted.len()));
        return found;
    }
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let off = (f64::from(*got) - wanted).abs();
        let off = if off.is_nan() { f64::INFINITY } else { off };
        let allowed = tolerance.relative * wanted.abs() + tolerance.absolute;
        found.absolute = found.absolute.max(off);
        if wanted.abs() > tolerance.absolute {
            found.relative = found.relative.max(off / wanted.abs());
        }
        if off > 0.0 {
            found.of_tolerance = found.of_tolerance.max(off / allowed);
        }
        if off > allowed && found.wrong.is_none() {
            found.wrong = Some(format!("value {index} is {got}, not {wanted}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERANCE: Tolerance = Tolerance::new(0.01, 0.001);

    #[test]
    fn what_is_near_enough_is_well() {
        let found = difference(&[1.0, -2.0, 0.0005], &[1.005, -2.0, 0.0], TOLERANCE);
        assert!(found.wrong.is_none() && found.of_tolerance < 1.0, "{found:?}");
        assert!((found.absolute - 0.005).abs() < 1e-6 && (found.relative - 0.005 / 1.005).abs() < 1e-6);
    }

    #[test]
    fn a_wrong_value_is_named() {
        let found = difference(&[1.0, 2.1], &[1.0, 2.0], TOLERANCE);
        assert_eq!(found.wrong.as_deref(), Some("value 1 is 2.1, not 2"));
        assert!(found.of_tolerance > 1.0);
    }

    #[test]
    fn no_number_and_a_missing_value_are_wrong() {
        for got in [&[f32::NAN, 1.0][..], &[f32::INFINITY, 1.0], &[1.0]] {
            let found = difference(got, &[1.0, 1.0], TOLERANCE);
            assert!(found.wrong.is_some() && found.of_tolerance == f64::INFINITY, "{got:?}");
        }
        assert!(difference(&[0.0], &[0.0], Tolerance::exact()).wrong.is_none());
        assert!(difference(&[f32::MIN_POSITIVE], &[0.0], Tolerance::exact()).wrong.is_some());
    }
}
