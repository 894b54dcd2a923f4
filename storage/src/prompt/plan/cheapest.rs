//! Where a prompt's stored KV costs least to keep without making it slower: the other half of CacheBlend's loading controller
//! (section 5.1), which picks a storage device for a recompute ratio. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::predict::{Part, Share, Work, predict};
use crate::cost::CostModel;
use crate::tier::Tier;
use crate::tier::object::SPAN_BYTES;

/// Loads hide where the computation waits for them for this share of the time at the most: the first layer hides under nothing.
pub(super) const HIDDEN: f64 = 0.03;

/// What a prompt loads, as if all of it were in one tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InTier {
    pub tier: Tier,
    /// What keeping it there costs a month ([`crate::cost::Prices`]).
    pub a_month: f64,
    /// What the prompt is predicted to take then.
    pub total_ms: f64,
    /// Whether its loads hide under its computation.
    pub hides: bool,
}

/// The tiers that are there and whose costs are known, the fastest first, for a prompt that loads something.
pub(super) fn by_tier(parts: &[Part], share: Share, costs: &CostModel) -> Vec<InTier> {
    let bytes = |part: &Part| match part.work {
        Work::Load { bytes, .. } | Work::Blend { bytes, .. } => bytes,
        Work::Nothing | Work::Compute => 0,
    };
    if parts.iter().all(|part| bytes(part) == 0) {
        return Vec::new();
    }
    let in_tier = |tier: Tier| {
        let moved: Vec<Part> = parts.iter().map(|part| Part { work: moved(part.work, tier), ..*part }).collect();
        let prediction = predict(&moved, share, costs);
        let a_month =
            parts.iter().map(|part| costs.prices.a_month(tier, bytes(part), bytes(part).div_ceil(SPAN_BYTES)));
        InTier {
            tier,
            a_month: a_month.sum(),
            total_ms: prediction.total_ms,
            hides: prediction.wait_ms <= prediction.total_ms * HIDDEN,
        }
    };
    [Tier::Host, Tier::Disk, Tier::Object].into_iter().filter(|tier| costs.has_seen(*tier)).map(in_tier).collect()
}

/// The cheapest tier whose loads hide; `None` where none does.
pub fn cheapest(tiers: &[InTier]) -> Option<&InTier> {
    let hiding = tiers.iter().filter(|at| at.hides);
    hiding.min_by(|left, right| left.a_month.total_cmp(&right.a_month))
}

fn moved(work: Work, tier: Tier) -> Work {
    match work {
        Work::Load { bytes, .. } => Work::Load { tier, bytes },
        Work::Blend { bytes, .. } => Work::Blend { tier, bytes },
        Work::Nothing | Work::Compute => work,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cost::{CostGrid, PrefillCost, Prices, ReadCost};
    use crate::prompt::plan::Choosing;

    const CONTEXT: u32 = 4096;
    const RATIO: f32 = 0.15;

    /// A model of which a layer takes `recompute_ms` for 15 % of 4,096 tokens; its KV in host memory takes a tenth of a
    /// millisecond a layer, from an NVMe disk `nvme_ms`, from a bucket 100 times that.
    fn model(layers: u32, recompute_ms: f64, nvme_ms: f64) -> (CostModel, Vec<Part>) {
        let token_us = recompute_ms * 1e3 / f64::from(CONTEXT) / f64::from(RATIO) * f64::from(layers);
        let row = vec![token_us, token_us * f64::from(CONTEXT)];
        let grid = CostGrid::new("by hand", 1, vec![0, CONTEXT], vec![1, CONTEXT], vec![row.clone(), row]).unwrap();
        let prefill = PrefillCost {
            grid: Arc::new(grid),
            layers,
            place_us_per_byte: 0.0,
            look_us_per_weight: 0.0,
            scale: 1.0,
            is_measured: true,
        };
        let bytes = 1u64 << 30;
        let read = |layer_ms: f64| {
            (ReadCost { request_us: 0.0, us_per_byte: layer_ms * 1e3 * f64::from(layers) / bytes as f64 }, true)
        };
        let costs =
            CostModel { prefill, reads: [read(0.1), read(nvme_ms), read(100.0 * nvme_ms)], prices: Prices::default() };
        let blend = Part { tokens: CONTEXT, position: 0, work: Work::Blend { tier: Tier::Disk, bytes } };
        (costs, vec![blend, Part { tokens: 1, position: CONTEXT, work: Work::Compute }])
    }

    fn share() -> Share {
        Share { ratio: RATIO, choosing: Choosing { layer: 0, probed: 0, looked: 0 } }
    }

    /// CacheBlend, section 5: Llama-7B recomputes 15 % of 4K tokens in 3 ms a layer, and loads a layer from NVMe in 16: of the
    /// devices that add nothing to the latency, host memory is the cheapest.
    #[test]
    fn llama_7b_wants_its_kv_in_memory() {
        let (costs, parts) = model(32, 3.0, 16.0);
        let tiers = by_tier(&parts, share(), &costs);
        assert_eq!(tiers.iter().map(|at| at.hides).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(cheapest(&tiers).unwrap().tier, Tier::Host);
        assert!((tiers[1].total_ms / (32.0 * 16.0) - 1.0).abs() < 0.01, "the load alone: {tiers:?}");
    }

    /// The same of Llama-70B: 7 ms and 4 ms. NVMe hides, and costs less than memory.
    #[test]
    fn llama_70b_does_as_well_from_nvme() {
        let (costs, parts) = model(80, 7.0, 4.0);
        let tiers = by_tier(&parts, share(), &costs);
        assert_eq!(tiers.iter().map(|at| at.hides).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(cheapest(&tiers).unwrap().tier, Tier::Disk);
        assert!(tiers[1].a_month < tiers[0].a_month);
        // Where memory were given away, it would be there.
        let gift = CostModel { prices: Prices { host: 0.0, ..Prices::default() }, ..costs };
        assert_eq!(cheapest(&by_tier(&parts, share(), &gift)).unwrap().tier, Tier::Host);
    }

    #[test]
    fn nothing_is_said_of_what_nobody_has_seen_or_loads() {
        let (mut costs, parts) = model(80, 7.0, 4.0);
        costs.reads[1].1 = false;
        assert_eq!(
            by_tier(&parts, share(), &costs).iter().map(|at| at.tier).collect::<Vec<_>>(),
            [Tier::Host, Tier::Object]
        );
        assert!(by_tier(&parts[1..], share(), &costs).is_empty());
        assert!(cheapest(&[]).is_none());
    }
}
