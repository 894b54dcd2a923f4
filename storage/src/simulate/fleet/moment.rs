//! A number that can stand in a heap.

use std::cmp::Ordering;

/// A time, or what is counted like one; never NaN, as whoever makes one adds and multiplies finite numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment(pub f64);

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Moment {}
