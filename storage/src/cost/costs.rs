//! What this machine was seen to take: for prefills of one model, and for reads from each tier. Measured once, kept in the catalog, and
//! corrected by what requests observe.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Prediction;
use super::{CostGrid, Prices, ReadCost, ReadMeter};
use crate::Result;
use crate::tier_name::Tier;
use ragstone_env::lock::locked;

/// The weight of what a prompt took, in the correction of what is predicted.
const LEARNING: f64 = 0.1;
/// A prompt corrects by so many times at the most.
const LARGEST_CORRECTION: f64 = 2.0;

/// All corrections together.
const FARTHEST: f64 = 16.0;

/// What is known of a machine, as the catalog keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostProfile {
    /// What the model computes in.
    pub prefill: PrefillCost,
    /// Reads seen from host memory, disk and object storage.
    pub reads: [ReadMeter; 3],
}

/// What computing takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrefillCost {
    /// Prefill times by tokens cached and new.
    pub grid: Arc<CostGrid>,
    /// Layers of the model.
    pub layers: u32,
    /// What writing a byte of stored KV into its blocks takes, its K rotated, in microseconds.
    pub place_us_per_byte: f64,
    /// What looking at an attention weight takes, of one token to one other in one layer, the mean over heads, in microseconds.
    pub look_us_per_weight: f64,
    /// What prompts took lately, by what the grid says.
    pub scale: f64,
    /// Whether it was measured on this machine; if not, it is a stand-in.
    pub is_measured: bool,
}

/// Costs at one moment. Plain data: decisions by it are pure.
#[derive(Debug, Clone, PartialEq)]
pub struct CostModel {
    /// What computing takes.
    pub prefill: PrefillCost,
    /// What reads from host memory, disk and object storage take; whether that was seen.
    pub reads: [(ReadCost, bool); 3],
    /// What keeping KV costs in money.
    pub prices: Prices,
}

/// This machine's costs. Clones share what is learned.
#[derive(Debug, Clone)]
pub struct Costs {
    profile: Arc<Mutex<CostProfile>>,
    prices: Prices,
}

impl PrefillCost {
    /// A stand-in, until this machine is measured.
    ///
    /// # Errors
    /// As [`CostGrid::measured_default`].
    pub fn assumed() -> Result<Self> {
        let grid = Arc::new(CostGrid::measured_default()?);
        Ok(Self { grid, layers: 24, place_us_per_byte: 1e-3, look_us_per_weight: 0.01, scale: 1.0, is_measured: false })
    }

    /// `T(cached, new)` in microseconds, in chunks as long as the grid knows: what goes through a layer together.
    pub fn prefill_us(&self, cached: f64, new: f64) -> f64 {
        let chunk = f64::from(self.grid.most_new_tokens());
        let (mut from, mut left, mut us) = (cached.max(0.0), new.max(0.0), 0.0);
        while left > 0.0 {
            let rows = left.min(chunk);
            // Expectations are not whole.
            let (low, high) = (rows.floor(), rows.ceil());
            let [low_us, high_us] = [low, high].map(|rows| self.grid.prefill_us_beyond(from as u32, rows as u32));
            us += low_us + (rows - low) * (high_us - low_us);
            from += rows;
            left -= rows;
        }
        us * self.scale
    }

    /// What one layer takes of that.
    pub fn layer_us(&self, cached: f64, new: f64) -> f64 {
        self.prefill_us(cached, new) / f64::from(self.layers.max(1))
    }
}

impl CostModel {
    /// What reads from a tier take. On the device everything is in place.
    pub fn read(&self, tier: Tier) -> ReadCost {
        index(tier).map_or_else(|| ReadCost { request_us: 0.0, us_per_byte: 0.0 }, |at| self.reads[at].0)
    }

    /// What reading an entry of so many layers and bytes takes, in microseconds, while nothing else is read.
    pub fn entry_us(&self, tier: Tier, layers: u32, bytes: u64) -> f64 {
        // Layers of an object come in requests of megabytes, ahead of whoever reads them.
        let requests = if tier == Tier::Object { 1.0 } else { f64::from(layers) };
        self.read(tier).us(requests, bytes as f64)
    }

    /// Whether that goes by reads that were seen.
    pub fn has_seen(&self, tier: Tier) -> bool {
        index(tier).is_none_or(|at| self.reads[at].1)
    }
}

impl Costs {
    /// What the catalog kept of them. What reads took before counts, and is not believed before some were seen again: another disk
    /// or bucket may be in their place.
    pub fn new(mut profile: CostProfile) -> Self {
        profile.reads.iter_mut().for_each(ReadMeter::doubt);
        Self { profile: Arc::new(Mutex::new(profile)), prices: Prices::default() }
    }

    /// With these prices.
    pub fn at(self, prices: Prices) -> Self {
        Self { prices, ..self }
    }

    /// As they are now.
    pub fn model(&self) -> CostModel {
        let profile = locked(&self.profile);
        let tiers = [Tier::Host, Tier::Disk, Tier::Object];
        let reads = std::array::from_fn(|at| (profile.reads[at].cost(tiers[at]), profile.reads[at].is_telling()));
        CostModel { prefill: profile.prefill.clone(), reads, prices: self.prices }
    }

    /// For the catalog.
    pub fn profile(&self) -> CostProfile {
        locked(&self.profile).clone()
    }

    /// This machine was measured.
    pub fn set_prefill(&self, prefill: PrefillCost) {
        locked(&self.profile).prefill = prefill;
    }

    /// A read, or a request, of so many bytes, `in_flight` being under way.
    pub fn observe_read(&self, tier: Tier, bytes: u64, in_flight: u64, elapsed: Duration) {
        if let Some(at) = index(tier).filter(|_| bytes > 0) {
            locked(&self.profile).reads[at].observe(tier, bytes, in_flight, elapsed);
        }
    }

    /// A prompt whose computation was predicted took so long. Placing what was loaded is not the grid's.
    pub fn observe_prefill(&self, predicted: &Prediction, ms: f64) {
        let times = (ms - predicted.place_ms) / (predicted.compute_ms - predicted.place_ms);
        if !times.is_finite() || times <= 0.0 {
            return;
        }
        let scale = &mut locked(&self.profile).prefill.scale;
        *scale *= times.clamp(1.0 / LARGEST_CORRECTION, LARGEST_CORRECTION).powf(LEARNING);
        *scale = scale.clamp(1.0 / FARTHEST, FARTHEST);
    }
}

impl CostProfile {
    /// Whether it can be of a model of so many layers: what the catalog has may have been written by anything.
    pub fn is_sane(&self, layers: u32) -> bool {
        let PrefillCost { layers: own, place_us_per_byte, look_us_per_weight, scale, .. } = self.prefill;
        let of_one = [place_us_per_byte, look_us_per_weight];
        own == layers && of_one.iter().all(|us| (0.0..1e6).contains(us)) && (1.0 / FARTHEST..=FARTHEST).contains(&scale)
    }

    /// Nothing was measured, nothing was seen.
    ///
    /// # Errors
    /// As [`CostGrid::measured_default`].
    pub fn assumed() -> Result<Self> {
        Ok(Self { prefill: PrefillCost::assumed()?, reads: Default::default() })
    }
}

fn index(tier: Tier) -> Option<usize> {
    match tier {
        Tier::Device => None,
        Tier::Host => Some(0),
        Tier::Disk => Some(1),
        Tier::Object => Some(2),
    }
}
