//! What keeping KV costs in money: the storage cost estimator of CacheBlend's loading controller (section 5.1).

use serde::{Deserialize, Serialize};

use crate::tier_name::Tier;

/// Prices, all in one currency. A GB has 10^9 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    /// A GB of host memory a month.
    pub host: f64,
    /// A GB of disk a month.
    pub disk: f64,
    /// A GB of object storage a month.
    pub object: f64,
    /// A request to object storage.
    pub object_request: f64,
    /// How often an entry is read from object storage in a month.
    pub reads_a_month: f64,
}

impl Default for Prices {
    /// Stand-ins of the order that clouds ask, in dollars; each entry is read once a day.
    fn default() -> Self {
        Self { host: 2.5, disk: 0.08, object: 0.023, object_request: 4e-7, reads_a_month: 30.0 }
    }
}

impl Prices {
    /// What keeping so many bytes in a tier costs a month, if reading them takes so many requests.
    pub fn a_month(&self, tier: Tier, bytes: u64, requests: u64) -> f64 {
        let gigabytes = bytes as f64 / 1e9;
        match tier {
            // What is on the device is a copy that its running prompts leave.
            Tier::Device => 0.0,
            Tier::Host => gigabytes * self.host,
            Tier::Disk => gigabytes * self.disk,
            Tier::Object => gigabytes * self.object + requests as f64 * self.reads_a_month * self.object_request,
        }
    }

    /// Whether each is a price.
    pub fn is_valid(&self) -> bool {
        let Self { host, disk, object, object_request, reads_a_month } = self;
        [host, disk, object, object_request, reads_a_month].iter().all(|price| price.is_finite() && **price >= 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_cheap_to_keep_and_dear_to_read() {
        let prices = Prices { host: 2.0, disk: 0.1, object: 0.02, object_request: 1e-6, reads_a_month: 1000.0 };
        let a_month = |tier| prices.a_month(tier, 500_000_000, 3);
        assert_eq!((a_month(Tier::Host), a_month(Tier::Disk)), (1.0, 0.05));
        assert!((a_month(Tier::Object) - (0.01 + 0.003)).abs() < 1e-12);
        assert!(prices.is_valid() && !Prices { disk: -1.0, ..prices }.is_valid());
        assert!(!Prices { object: f64::NAN, ..prices }.is_valid());
    }
}
