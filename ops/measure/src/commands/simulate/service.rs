//! `ragstone simulate --service`

use std::str::FromStr;

use ragstone_env::mebibytes;
use ragstone_storage::cost::{CostGrid, CostModel, CostProfile, Costs, ReadCost};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::simulate::{ServiceAtCapacity, ServiceComparison, ServiceReport, ServiceRow};
use ragstone_storage::store::AdmissionRule;
use ragstone_storage::tier::Tier;
use ragstone_terminal::output;

use super::percent;
use crate::error::{Error, Result};

/// Tokens that go through a layer together.
const CHUNK_TOKENS: u32 = 512;

/// The node that is simulated.
#[derive(Debug, Clone, clap::Args)]
pub struct Node {
    /// Simulate a whole node: a tree for each tier, entries written through to the slower ones, loads that take time, blending
    #[arg(long, group = "simulates")]
    pub service: bool,
    /// Size of its disk, in percent of the working set; 0% for none
    #[arg(long, value_name = "PERCENT", default_value = "100%", value_parser = percent, requires = "service")]
    disk: f64,
    /// Give it object storage, which keeps everything
    #[arg(long, requires = "service")]
    bucket: bool,
    /// Blend passages, too, recomputing at least so much of them; of one node, beside exact reuse
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "simulates")]
    blend: Option<f64>,
    /// The layer that chooses what is recomputed: those before it compute all of a blended passage
    #[arg(long, value_name = "N", default_value_t = 2, requires = "blend")]
    layer: u32,
    /// Tokens of the primer that a passage's KV is computed behind, to be blended; 0 for none
    #[arg(long, value_name = "TOKENS", default_value_t = 220, requires = "blend")]
    primer: u32,
    /// What a read of a tier takes: milliseconds a request and GB a second, such as object=200,0.1
    #[arg(long, value_name = "TIER=MS,GB/S", requires = "simulates")]
    read: Vec<TierRead>,
    /// Keep on disk and in object storage what loads slower than it is computed, too, and decline no load
    #[arg(long, requires = "service")]
    keep_all: bool,
}

/// What a read of a tier takes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TierRead {
    tier: Tier,
    cost: ReadCost,
}

impl FromStr for TierRead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (tier, cost) = text.split_once('=')?;
            let tier = [Tier::Host, Tier::Disk, Tier::Object].into_iter().find(|at| at.to_string() == tier.trim())?;
            let (ms, gb_per_s) = cost.split_once(',')?;
            let (ms, gb_per_s): (f64, f64) = (ms.trim().parse().ok()?, gb_per_s.trim().parse().ok()?);
            let is_real = (0.0..=1e6).contains(&ms) && (1e-6..=1e6).contains(&gb_per_s);
            is_real.then_some(Self { tier, cost: ReadCost { request_us: ms * 1e3, us_per_byte: 1e-3 / gb_per_s } })
        };
        parsed().ok_or_else(|| {
            "host, disk or object, milliseconds a request and GB a second are wanted, such as disk=0.1,1.0".to_owned()
        })
    }
}

impl Node {
    /// Whether every flag says something of it.
    ///
    /// # Errors
    /// `InvalidInput` for what a tier takes that it does not have.
    pub fn check(&self) -> Result<()> {
        for TierRead { tier, .. } in &self.read {
            let why = match tier {
                Tier::Object if !self.bucket => "--read object: the node has no object storage; add --bucket",
                Tier::Disk if self.disk == 0.0 => {
                    "--read disk: the node has no disk by --disk 0%; leave one of them out"
                }
                _ => continue,
            };
            return Err(Error::invalid_input(why.to_owned()));
        }
        Ok(())
    }

    /// What prefills and reads take on it.
    ///
    /// # Errors
    /// If the profile that was compiled in is malformed.
    pub fn costs(&self, grid: &CostGrid) -> Result<CostModel> {
        let mut costs = Costs::new(CostProfile::assumed()?).model();
        // As the engine computes them.
        costs.prefill.grid = grid.in_chunks_of(CHUNK_TOKENS).into();
        let prefill = &mut costs.prefill;
        prefill.layers = grid.layers().unwrap_or(prefill.layers);
        let (place, look) = grid.place_and_look_us();
        prefill.place_us_per_byte = place.unwrap_or(prefill.place_us_per_byte);
        prefill.look_us_per_weight = look.unwrap_or(prefill.look_us_per_weight);
        for read in &self.read {
            costs.reads
                [[Tier::Host, Tier::Disk, Tier::Object].iter().position(|tier| *tier == read.tier).unwrap_or(0)] =
                (read.cost, true);
        }
        Ok(costs)
    }

    /// What is blended, and the tokens of the primer.
    pub fn blend(&self) -> (Option<(f32, u32)>, u32) {
        // A share has digits enough in 32 bits.
        let blend = self.blend.map(|ratio| (ratio as f32, self.layer));
        (blend, if blend.is_some() { self.primer } else { 0 })
    }

    /// What is compared on it.
    pub fn comparison(&self, policies: &[PolicyKind], capacities: &[f64], device: f64) -> ServiceComparison {
        ServiceComparison {
            policies: policies.to_vec(),
            capacities: capacities.to_vec(),
            device,
            disk: self.disk,
            has_bucket: self.bucket,
            admission: if self.keep_all { AdmissionRule::Always } else { AdmissionRule::Cost },
            // A share has digits enough in 32 bits.
            blend: self.blend.map(|ratio| (ratio as f32, self.layer)),
            primer_tokens: self.primer,
        }
    }
}

/// A table for people.
pub fn table(report: &ServiceReport) -> Result<()> {
    let workload = report.workload;
    output::line(&format!(
        "{} requests, {} prompt tokens, {} distinct nodes, longest path {}, working set {:.0} MiB",
        workload.requests,
        workload.prompt_tokens,
        workload.nodes,
        workload.longest_path,
        mebibytes(report.working_set_bytes)
    ))?;
    output::line(&format!("prefill times: {}", report.profile))?;
    output::line(
        "saved: of the full prefills' time, by what plans predict; waited: of the rest, for loads; background: beside the rest",
    )?;
    output::line("")?;
    output::line(
        "host      policy      blend   saved   TTFT p50    p95 ms  waited  exact  blended  computed  declined  read MiB: host, disk, object  \
         written MiB: host, disk, object  background",
    )?;
    for at in &report.capacities {
        at.rows.iter().try_for_each(|row| output::line(&line(at, row)))?;
    }
    Ok(())
}

fn line(at: &ServiceAtCapacity, row: &ServiceRow) -> String {
    let outcome = &row.outcome;
    let blend = row.blend.map_or_else(|| "exact".to_owned(), |ratio| super::percents(f64::from(ratio)));
    let bytes = |of: ragstone_storage::simulate::BytesIn| {
        let tier = |bytes| format!("{:.0}", mebibytes(bytes));
        format!("{}, {}, {}", tier(of.host), tier(of.disk), tier(of.object))
    };
    format!(
        "{:<9} {:<11} {:<6} {:>6.4}  {:>9.0} {:>9.0}  {:>6.4} {:>6.4}  {:>7.4}  {:>8.4}  {:>8}  {:>27}  {:>30}  {:>10.4}",
        super::percents(at.capacity),
        row.policy.name(),
        blend,
        outcome.saved,
        outcome.ttft_ms_p50,
        outcome.ttft_ms_p95,
        outcome.waited,
        outcome.exact_tokens,
        outcome.blended_tokens,
        outcome.computed_tokens,
        outcome.declined,
        bytes(outcome.read_bytes),
        bytes(outcome.written_bytes),
        outcome.background,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiers_reads() {
        let read: TierRead = "object=200,0.1".parse().expect("read");
        assert_eq!(read.tier, Tier::Object);
        // 200 ms, and 10 ns a byte.
        assert!((read.cost.us(1.0, 1e6) - 210_000.0).abs() < 1e-6, "{read:?}");
        for bad in ["", "disk", "disk=", "disk=1", "disk=1,0", "disk=-1,1", "device=1,1", "disk=NaN,1", "disk=1,2,3"] {
            assert!(bad.parse::<TierRead>().is_err(), "{bad}");
        }
    }
}
