//! What a prompt will take: its layers' loads beside its computation, as the prefill runs them. Pure.
//!
//! ```text
//! loads    |layer 0|layer 1|layer 2|...                 by tier, each as fast as it can
//! compute          |chunk 1: layer 0|layer 1|...|chunk 2: ...|
//! ```
//!
//! A chunk waits for a layer that has not come; those behind it find it there. A blend goes through the layers before the choosing
//! one with all its rows, chunk by chunk, and through the others with those that are chosen (CacheBlend, section 5: the loading
//! controller's T_recompute and T_load, taken together instead of compared). Where what is not stored passes some layers first, so that
//! the choice sees what it looks at, that comes before all else.

use std::sync::LazyLock;

use super::{Choosing, LOOKING_TOKENS};
use crate::cost::{CostModel, Prediction};
use crate::tier::Tier;

/// Entries of object storage whose first layers are asked for before the first of them has come.
pub const BEGUN_TOGETHER: usize = 8;

/// Entries that are read from the disk at the same time.
pub const DISK_LANES: usize = 4;

/// Entries, by tier and bytes, in the lanes in which they are read at the same time: their indices, ascending in each. What
/// object storage has is begun together, so that it has one lane; an entry of the disk, or of host memory where there are many cores, goes to the
/// lane that has least to read, the largest first.
pub fn lanes(entries: &[(Tier, u64)]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(entries[*index].1));
    let mut lanes: Vec<(Tier, u64, Vec<usize>)> = Vec::new();
    for index in order {
        let (tier, bytes) = entries[index];
        let of_tier = lanes.iter().filter(|lane| lane.0 == tier).count();
        let least = lanes.iter_mut().filter(|lane| lane.0 == tier).min_by_key(|lane| lane.1);
        match least {
            Some(lane) if of_tier >= lanes_of(tier) => {
                lane.1 += bytes;
                lane.2.push(index);
            }
            _ => lanes.push((tier, bytes, vec![index])),
        }
    }
    lanes.iter_mut().for_each(|lane| lane.2.sort_unstable());
    lanes.into_iter().map(|lane| lane.2).collect()
}

/// Lanes that a tier has at the most.
fn lanes_of(tier: Tier) -> usize {
    match tier {
        Tier::Disk => DISK_LANES,
        Tier::Host => *HOST_LANES,
        _ => 1,
    }
}

/// Entries of host memory that are verified at the same time: one thread verifies some 4 GB/s, and a link to a GPU carries more than ten
/// times as much. A processor that computes has no threads to spare for it.
static HOST_LANES: LazyLock<usize> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 4).clamp(1, 4)
});

/// One segment as the prefill sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Part {
    pub tokens: u32,
    pub position: u32,
    pub work: Work,
}

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Work {
    /// It is on the device.
    Nothing,
    /// `bytes` are read.
    Load {
        tier: Tier,
        bytes: u64,
    },
    /// As `Load`, and a share of it is computed.
    Blend {
        tier: Tier,
        bytes: u64,
    },
    Compute,
}

/// The choice that a blend makes: the share of its tokens that is recomputed, and how that is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    pub ratio: f32,
    pub choosing: Choosing,
}

/// Rows that go through layers together: how many, and how many tokens a row sees before them.
#[derive(Debug, Clone, Copy)]
struct Rows {
    count: f64,
    cached: f64,
}

/// What the prompt will take.
pub(super) fn predict(parts: &[Part], share: Share, costs: &CostModel) -> Prediction {
    let layers = costs.prefill.layers.max(1) as usize;
    let blends = parts.iter().any(|part| matches!(part.work, Work::Blend { .. }) && part.tokens > 0);
    let chooses = blends && share.ratio > 0.0 && share.ratio < 1.0;
    // A model without the choosing layer chooses on its last.
    let choosing = if chooses { (share.choosing.layer as usize).min(layers - 1) } else { layers };
    let probed = if chooses { (share.choosing.probed as usize).min(layers) } else { 0 };
    let chunk = f64::from(costs.prefill.grid.most_new_tokens());
    let candidates = if share.ratio > 0.0 { 1.0 } else { 0.0 };
    let phases = [
        (0..probed, rows(parts, 0.0, chunk)),
        (0..choosing, rows(parts, candidates, chunk)),
        (choosing..layers, rows(parts, f64::from(share.ratio), chunk)),
    ];
    let mut loads = Loads::new(parts, share, costs, layers);
    let (mut now, mut compute, mut place, mut wait) = (0.0_f64, 0.0, 0.0, 0.0);
    let look_us = if chooses { look_us(parts, share.choosing.looked, costs) } else { 0.0 };
    // Behind the probe, or where there is none behind the layers that compute everything.
    let looks_before = if probed > 0 { 1 } else { 2 };
    for (phase, (through, chunks)) in phases.into_iter().enumerate() {
        if phase == looks_before {
            now += look_us;
            compute += look_us;
        }
        for rows in chunks {
            let layer_us = costs.prefill.layer_us(rows.cached, rows.count);
            for layer in through.clone() {
                let (there, placing) = loads.take(layer, now);
                wait += (there - now).max(0.0);
                now = now.max(there) + placing + layer_us;
                compute += placing + layer_us;
                place += placing;
            }
        }
    }
    Prediction {
        total_ms: now / 1e3,
        load_ms: loads.longest_us / 1e3,
        compute_ms: compute / 1e3,
        place_ms: place / 1e3,
        wait_ms: wait / 1e3,
    }
}

/// What looking at the attention of the prompt's last tokens takes, in so many layers.
fn look_us(parts: &[Part], layers: u32, costs: &CostModel) -> f64 {
    let question = parts.iter().rev().filter(|part| part.tokens > 0).take_while(|part| part.work == Work::Compute);
    let tokens = question.map(|part| part.tokens).fold(0, u32::saturating_add).min(LOOKING_TOKENS);
    let slots = parts.last().map_or(0.0, |last| f64::from(last.position) + f64::from(last.tokens));
    f64::from(layers) * f64::from(tokens) * slots * costs.prefill.look_us_per_weight
}

/// What computing so many tokens takes by themselves, and loading them from `tier`, in milliseconds: one segment's part in the
/// prediction, for whoever reads it.
pub(super) fn alone(part: &Part, share: Share, costs: &CostModel) -> (f64, f64) {
    let (tokens, before) = (f64::from(part.tokens), f64::from(part.position));
    let compute = |rows: f64| if rows > 0.0 { costs.prefill.prefill_us(before, rows) / 1e3 } else { 0.0 };
    let load = |tier: Tier, bytes: u64| costs.entry_us(tier, costs.prefill.layers, bytes) / 1e3;
    let layers = f64::from(costs.prefill.layers.max(1));
    match part.work {
        Work::Nothing => (0.0, 0.0),
        Work::Compute => (0.0, compute(tokens)),
        Work::Load { tier, bytes } => (load(tier, bytes), 0.0),
        Work::Blend { tier, bytes } => {
            let all = f64::from(share.choosing.layer).min(layers) / layers;
            let ratio = f64::from(share.ratio);
            let first = if ratio > 0.0 { all * compute(tokens) } else { 0.0 };
            let from = share.choosing.reads_from(share.ratio, costs.prefill.layers);
            let read = 1.0 - f64::from(from) / layers;
            (load(tier, bytes) * read, first + (1.0 - all) * compute(tokens * ratio))
        }
    }
}

/// The rows of a phase that computes `share` of what is blended, in chunks.
fn rows(parts: &[Part], share: f64, chunk: f64) -> Vec<Rows> {
    let mut chunks: Vec<Rows> = Vec::new();
    let (mut count, mut positions) = (0.0, 0.0);
    let close = |count: &mut f64, positions: &mut f64, chunks: &mut Vec<Rows>| {
        if *count > 0.0 {
            // Rows at a mean position see what a contiguous chunk sees whose middle stands there.
            chunks.push(Rows { count: *count, cached: (*positions / *count - *count / 2.0).max(0.0) });
        }
        (*count, *positions) = (0.0, 0.0);
    };
    for part in parts {
        let density = match part.work {
            Work::Compute => 1.0,
            Work::Blend { .. } => share,
            Work::Nothing | Work::Load { .. } => 0.0,
        };
        let (mut from, end) = (f64::from(part.position), f64::from(part.position) + f64::from(part.tokens));
        while density > 0.0 && end - from > 1e-9 {
            let taken = ((chunk - count) / density).min(end - from);
            count += taken * density;
            positions += taken * density * (from + taken / 2.0);
            from += taken;
            if count >= chunk - 1e-9 {
                close(&mut count, &mut positions, &mut chunks);
            }
        }
    }
    close(&mut count, &mut positions, &mut chunks);
    chunks
}

/// Layers on their way.
struct Loads {
    tiers: Vec<TierLoads>,
    /// What placing each layer takes the computation.
    place_us: Vec<f64>,
    /// Layers that were taken.
    taken: usize,
    /// What the tier that takes longest takes.
    longest_us: f64,
}

/// What comes from one tier.
struct TierLoads {
    /// What each layer takes.
    layer_us: Vec<f64>,
    /// When the last layer that was read had come; at first what passes before the first.
    come: f64,
}

impl Loads {
    fn new(parts: &[Part], share: Share, costs: &CostModel, layers: usize) -> Self {
        let mut place_us = vec![0.0; layers];
        let from = share.choosing.reads_from(share.ratio, layers as u32) as usize;
        let reads = |part: &Part| match part.work {
            Work::Load { tier, bytes } => Some((tier, bytes, 0)),
            Work::Blend { tier, bytes } if from < layers => Some((tier, bytes, from)),
            Work::Blend { .. } | Work::Nothing | Work::Compute => None,
        };
        let reads: Vec<(Tier, u64, usize)> = parts.iter().filter_map(reads).collect();
        let mut tiers = Vec::new();
        for tier in [Tier::Host, Tier::Disk, Tier::Object] {
            let of_tier = || reads.iter().filter(|(of, ..)| *of == tier);
            let count = of_tier().count();
            if count == 0 {
                continue;
            }
            let read = costs.read(tier);
            let lane_count = count.min(lanes_of(tier)) as f64;
            let mut layer_us = vec![0.0; layers];
            for (_, bytes, from) in of_tier() {
                let bytes = *bytes as f64 / layers as f64;
                // Of object storage entries are begun some together and read ahead: round trips at first, and then what the line carries.
                let request_us = if tier == Tier::Object { 0.0 } else { read.request_us / lane_count };
                for layer in *from..layers {
                    layer_us[layer] += request_us + bytes * read.us_per_byte;
                    place_us[layer] += bytes * costs.prefill.place_us_per_byte;
                }
            }
            let trips = if tier == Tier::Object { (count as f64 / BEGUN_TOGETHER as f64).ceil() } else { 0.0 };
            tiers.push(TierLoads { layer_us, come: trips * read.request_us });
        }
        let longest = tiers.iter().map(|tier| tier.come + tier.layer_us.iter().sum::<f64>());
        let longest_us = longest.fold(0.0, f64::max);
        Self { tiers, place_us, taken: 0, longest_us }
    }

    /// When `layer` is there, if it is wanted `now`, and what placing it takes. Whoever takes it first places it.
    fn take(&mut self, layer: usize, now: f64) -> (f64, f64) {
        if self.tiers.is_empty() || layer < self.taken {
            return (now, 0.0);
        }
        self.taken += 1;
        let mut there = now;
        for tier in &mut self.tiers {
            tier.come += tier.layer_us[layer];
            there = there.max(tier.come);
        }
        (there, self.place_us[layer])
    }
}

#[cfg(test)]
mod tests;
