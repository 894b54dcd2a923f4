//! What a read from a tier costs: a part for the request and a part for its bytes, learned from the reads that requests make.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::tier_name::Tier;

/// Reads seen before a prediction is believed.
const TELLING_READS: u64 = 8;
/// What is left of the weight of earlier reads after another one: half of it after 70.
const FORGETTING: f64 = 0.99;
/// A read counts for so many times what was predicted at the most: one that hung tells little about the next.
const LONGEST: f64 = 10.0;
/// Reads whose sizes spread less, as a share of their mean, do not tell the parts of the cost apart.
const LEAST_SPREAD: f64 = 0.05;

/// What reads from one tier take: `request_us + in_flight · bytes · us_per_byte`. Reads that are under way together share
/// the tier's bandwidth, so that each takes as much longer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReadCost {
    /// What a request takes whatever its size, in microseconds.
    pub request_us: f64,
    /// What a byte adds, in microseconds.
    pub us_per_byte: f64,
}

impl ReadCost {
    /// What stands in until reads were seen: ordinary media.
    pub fn assumed(tier: Tier) -> Self {
        let (request_us, megabytes_per_s) = match tier {
            Tier::Device => (0.0, 1e6),
            Tier::Host => (2.0, 4000.0),
            Tier::Disk => (100.0, 1000.0),
            Tier::Object => (20_000.0, 100.0),
        };
        Self { request_us, us_per_byte: 1.0 / megabytes_per_s }
    }

    /// What so many bytes take in so many requests, one after the other, in microseconds.
    pub fn us(&self, requests: f64, bytes: f64) -> f64 {
        requests * self.request_us + bytes * self.us_per_byte
    }
}

/// Reads that were seen: least squares over `(in_flight · bytes, time)`, the later the heavier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadMeter {
    reads: u64,
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl ReadMeter {
    /// One read, or one request, of so many bytes, `in_flight` of the same tier being under way, itself among them.
    pub fn observe(&mut self, tier: Tier, bytes: u64, in_flight: u64, elapsed: Duration) {
        let x = bytes as f64 * in_flight.max(1) as f64;
        let mut y = elapsed.as_secs_f64() * 1e6;
        if self.is_telling() {
            y = y.min(LONGEST * self.cost(tier).us(1.0, x));
        }
        for sum in [&mut self.weight, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy] {
            *sum *= FORGETTING;
        }
        self.reads += 1;
        self.weight += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    /// What was seen counts as before, and has to be seen again before it is believed.
    pub fn doubt(&mut self) {
        self.reads = 0;
    }

    /// Whether enough was seen to go by it, by a clock that moves.
    pub fn is_telling(&self) -> bool {
        self.reads >= TELLING_READS && self.y > 0.0
    }

    /// What a read costs, as far as is known.
    pub fn cost(&self, tier: Tier) -> ReadCost {
        let assumed = ReadCost::assumed(tier);
        if !self.is_telling() || self.weight <= 0.0 {
            return assumed;
        }
        let (x, y) = (self.x / self.weight, self.y / self.weight);
        let variance = self.xx / self.weight - x * x;
        if x <= 0.0 {
            return assumed;
        }
        if variance < (LEAST_SPREAD * x).powi(2) {
            // All of one size: what is assumed, as many times slower or faster as these were.
            let times = y / assumed.us(1.0, x);
            return ReadCost { request_us: assumed.request_us * times, us_per_byte: assumed.us_per_byte * times };
        }
        // Neither part can be less than nothing.
        let us_per_byte = ((self.xy / self.weight - x * y) / variance).clamp(0.0, y / x);
        ReadCost { request_us: (y - us_per_byte * x).max(0.0), us_per_byte }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn us(us: f64) -> Duration {
        Duration::from_secs_f64(us / 1e6)
    }

    #[test]
    fn the_two_parts_of_a_cost_are_told_apart() {
        let mut meter = ReadMeter::default();
        assert_eq!(meter.cost(Tier::Disk), ReadCost::assumed(Tier::Disk));
        for read in 0..200u64 {
            let (bytes, in_flight) = (10_000 * (1 + read % 5), 1 + read % 3);
            meter.observe(Tier::Disk, bytes, in_flight, us(300.0 + 0.01 * (bytes * in_flight) as f64));
        }
        let cost = meter.cost(Tier::Disk);
        assert!((cost.request_us - 300.0).abs() < 1.0 && (cost.us_per_byte - 0.01).abs() < 1e-4, "{cost:?}");
        assert!((cost.us(2.0, 1000.0) - 610.0).abs() < 3.0);
        // A medium that becomes ten times slower is believed before long, one read that hung is not.
        meter.observe(Tier::Disk, 10_000, 1, Duration::from_secs(60));
        assert!(meter.cost(Tier::Disk).us(1.0, 20_000.0) < 700.0, "{:?}", meter.cost(Tier::Disk));
        for read in 0..400u64 {
            let bytes = 10_000 * (1 + read % 5);
            meter.observe(Tier::Disk, bytes, 1, us(10.0 * (300.0 + 0.01 * bytes as f64)));
        }
        let slow = meter.cost(Tier::Disk).us(1.0, 30_000.0);
        assert!((5_000.0..7_000.0).contains(&slow), "{slow}");
    }

    #[test]
    fn reads_of_one_size_scale_what_was_assumed() {
        let mut meter = ReadMeter::default();
        let assumed = ReadCost::assumed(Tier::Object);
        (0..50).for_each(|_| meter.observe(Tier::Object, 1 << 20, 1, us(2.0 * assumed.us(1.0, 1048576.0))));
        let cost = meter.cost(Tier::Object);
        assert!((cost.request_us / assumed.request_us - 2.0).abs() < 1e-6, "{cost:?}");
        assert!((cost.us_per_byte / assumed.us_per_byte - 2.0).abs() < 1e-6, "{cost:?}");
    }

    proptest! {
        #[test]
        fn no_reads_give_a_negative_cost(reads in prop::collection::vec((0u64..1 << 30, 0u64..9, 0u64..10_000_000), 0..60)) {
            let mut meter = ReadMeter::default();
            for (bytes, in_flight, us) in reads {
                meter.observe(Tier::Disk, bytes, in_flight, Duration::from_micros(us));
                let cost = meter.cost(Tier::Disk);
                prop_assert!(cost.request_us >= 0.0 && cost.us_per_byte >= 0.0 && cost.us(1.0, 1e9).is_finite(), "{cost:?}");
            }
        }
    }
}
