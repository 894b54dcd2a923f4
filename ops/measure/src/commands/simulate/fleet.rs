//! `ragstone simulate --nodes`

use std::path::Path;

use figment::Figment;
use figment::providers::{Format, Toml};
use ragstone_storage::cost::CostModel;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::simulate::{
    Asked, Bucket, Corpus, Faults, Fleet, FleetOutcome, Load, Money, Routing, ServiceTiers, replay_fleet, stops_scaling,
};
use ragstone_storage::store::AdmissionRule;
use ragstone_terminal::progress::{Progress, Unit};
use ragstone_terminal::{output, table};
use serde::Serialize;

use super::{in_file, read};
use crate::commands::plan::offers;
use crate::error::{Error, Result};

/// Days in which the bucket's growth is not counted: what a simulation adds in minutes says little about a month.
const NO_GROWTH: f64 = 0.0;

/// The nodes that are simulated.
#[derive(Debug, Clone, clap::Args)]
pub struct Nodes {
    /// Simulate so many nodes on one bucket, for each of these numbers; the file is a trace, or a load as in
    /// examples/nodes-load.toml
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', group = "simulates", conflicts_with_all = ["service", "family"])]
    pub nodes: Vec<usize>,
    /// How questions find their node: hash, random, round-robin, kv-aware; one or several
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "hash", requires = "nodes")]
    routing: Vec<Routing>,
    /// Questions a second for each node, in place of the file's for all
    #[arg(long, value_name = "N", requires = "nodes")]
    rate: Option<f64>,
    /// Questions for each node, in place of the file's number for all
    #[arg(long, value_name = "N", requires = "nodes")]
    questions: Option<usize>,
    /// Times that a trace passes faster than it was
    #[arg(long, value_name = "N", default_value_t = 1.0, requires = "nodes")]
    speed: f64,
    /// Of a trace, the share that only warms the caches
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = super::percent, requires = "nodes")]
    warm_up: f64,
    /// Device memory for blocks of each node, such as 8GB; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = ragstone_actors::admission::size::parse, requires = "nodes")]
    device_size: u64,
    /// Host memory of each node
    #[arg(long, value_name = "SIZE", default_value = "8GB", value_parser = ragstone_actors::admission::size::parse, requires = "nodes")]
    host_size: u64,
    /// Disk of each node; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "100GB", value_parser = ragstone_actors::admission::size::parse, requires = "nodes")]
    disk_size: u64,
    /// Let nodes share no KV
    #[arg(long, requires = "nodes")]
    no_bucket: bool,
    /// What the bucket carries, in GB a second, for all nodes together
    #[arg(long, value_name = "GB/S", default_value_t = 12.5, requires = "nodes")]
    bucket_band: f64,
    /// Answers that a node decodes at once
    #[arg(long, value_name = "N", default_value_t = 16, requires = "nodes")]
    answers: usize,
    /// Questions that may wait at a node
    #[arg(long, value_name = "N", default_value_t = 64, requires = "nodes")]
    waiting: usize,
    /// Failures of a node in a day; it is back after a minute, with its disk
    #[arg(long, value_name = "N", default_value_t = 0.0, requires = "nodes")]
    failures: f64,
    /// The bucket does not answer from then to then, in seconds, such as 60-90
    #[arg(long, value_name = "FROM-TO", value_parser = outage, requires = "nodes")]
    outage: Vec<(f64, f64)>,
    /// What an hour of a node costs: tells money a month
    #[arg(long, value_name = "PRICE", default_value_t = 0.0, requires = "nodes")]
    hour: f64,
}

/// `60-90` as two times.
fn outage(text: &str) -> Result<(f64, f64), String> {
    let parsed = text.split_once('-').and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?)));
    parsed.filter(|(from, to)| from < to).ok_or_else(|| "two times in seconds are wanted, such as 60-90".to_owned())
}

/// One number of nodes and one routing.
#[derive(Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    outcome: FleetOutcome,
    money_a_month: Option<Money>,
}

/// All of them.
#[derive(Debug, Serialize)]
pub struct FleetReport {
    /// Where the prefill times come from.
    profile: String,
    policy: PolicyKind,
    tiers: ServiceTiers,
    rows: Vec<Row>,
    /// For each routing, where more nodes stop to help, and why.
    stops: Vec<Stop>,
}

#[derive(Debug, Serialize)]
struct Stop {
    routing: Routing,
    nodes: Option<usize>,
    why: String,
}

impl Nodes {
    /// Runs all numbers of nodes and routings.
    ///
    /// # Errors
    /// `InvalidInput` that names the file, or what cannot be.
    pub fn simulate(
        &self,
        path: &Path,
        policy: PolicyKind,
        costs: &CostModel,
        blend: Option<(f32, u32)>,
        primer_tokens: u32,
    ) -> Result<FleetReport> {
        let text = read(path)?;
        let tiers = ServiceTiers {
            device_bytes: self.device_size,
            host_bytes: self.host_size,
            disk_bytes: self.disk_size,
            has_bucket: !self.no_bucket,
        };
        let (mut rows, mut stops) = (Vec::new(), Vec::new());
        let offers = offers(None)?;
        for routing in &self.routing {
            let mut outcomes = Vec::new();
            for nodes in &self.nodes {
                let asked = self.asked(path, &text, *nodes)?;
                let faults = Faults {
                    failures_a_day: self.failures,
                    restart_s: 60.0,
                    keeps_disk: true,
                    outages: self.outage.clone(),
                    ..Faults::default()
                };
                let fleet = Fleet {
                    nodes: *nodes,
                    routing: *routing,
                    tiers,
                    policy,
                    admission: AdmissionRule::Cost,
                    blend,
                    primer_tokens,
                    costs: costs.clone(),
                    most_answers: self.answers,
                    most_waiting: self.waiting,
                    bucket: Bucket { bytes_per_s: self.bucket_band * 1e9, ..Bucket::default() },
                    corpus: Corpus::default(),
                    faults,
                    seed: 1,
                };
                let what = format!("simulating {nodes} nodes, {}", routing.name());
                let progress = Progress::new(what, Unit::Items);
                let total = asked.len() as u64;
                outcomes.push(replay_fleet(&fleet, &asked, &|done| progress.set(done as u64, total))?);
            }
            stops.push(match stops_scaling(&outcomes) {
                Some(at) => Stop { routing: *routing, nodes: Some(at.nodes), why: at.limit.clone() },
                None => Stop { routing: *routing, nodes: None, why: "it answers as much with all of these".to_owned() },
            });
            rows.extend(outcomes.into_iter().map(|outcome| {
                let money_a_month =
                    (self.hour > 0.0).then(|| Money::of(&outcome, self.hour, &offers.bucket, NO_GROWTH));
                Row { outcome, money_a_month }
            }));
        }
        Ok(FleetReport { profile: costs.prefill.grid.source().to_owned(), policy, tiers, rows, stops })
    }

    fn asked(&self, path: &Path, text: &str, nodes: usize) -> Result<Asked> {
        let asked = match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl") if self.rate.is_some() || self.questions.is_some() => {
                Err("a trace has its own questions and times: --rate and --questions are for a load in .toml"
                    .to_owned())
            }
            Some("jsonl") => Asked::from_trace(text, self.speed, self.warm_up).map_err(|error| error.to_string()),
            Some("toml") => {
                let load = Figment::from(Toml::string(text)).extract::<Load>().map_err(|error| error.to_string());
                load.and_then(|load| {
                    let rate = self.rate.map_or(load.rate, |rate| rate * nodes as f64);
                    // Changes come with the questions.
                    let changes = load.changes * rate / load.rate;
                    let questions = self.questions.map_or(load.questions, |each| each * nodes);
                    let load = Load { rate, changes, questions, ..load };
                    load.generate().map_err(|error| error.to_string())
                })
            }
            _ => Err("a trace ends in .jsonl and a load in .toml".to_owned()),
        };
        asked.map_err(|why| in_file(path, &why))
    }
}

/// A table for people.
pub fn print(report: &FleetReport) -> Result<()> {
    output::line(&format!("prefill times: {}", report.profile))?;
    let heads = [
        "nodes",
        "routing",
        "asked/s",
        "answered/s",
        "refused",
        "device",
        "host",
        "disk",
        "bucket",
        "blended",
        "computed",
        "ttft p50 ms",
        "p99 ms",
        "engines",
        "busiest",
        "bucket band",
        "money a month",
        "limit",
    ];
    let share = |share: f64| format!("{share:.3}");
    let cells = |row: &Row| {
        let Row { outcome, money_a_month } = row;
        let hit = &outcome.hit;
        vec![
            outcome.nodes.to_string(),
            outcome.routing.name().to_owned(),
            format!("{:.2}", outcome.asked_per_s),
            format!("{:.2}", outcome.answered_per_s),
            (outcome.refused + outcome.broken_off).to_string(),
            share(hit.device),
            share(hit.host),
            share(hit.disk),
            share(hit.object),
            share(hit.blended),
            share(hit.computed),
            format!("{:.0}", outcome.ttft_ms_p50),
            format!("{:.0}", outcome.ttft_ms_p99),
            share(outcome.engine),
            share(outcome.engine_most),
            share(outcome.bucket_band),
            money_a_month.map_or_else(|| "-".to_owned(), |money| format!("{:.0}", money.total)),
            outcome.limit.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = report.rows.iter().map(cells).collect();
    output::text(&table::table(&heads, &rows))?;
    for stop in &report.stops {
        let name = stop.routing.name();
        output::line(&match stop.nodes {
            Some(nodes) => format!("{name}: stops scaling at {nodes} nodes: {}", stop.why),
            None => format!("{name}: {}", stop.why),
        })?;
    }
    Ok(())
}

/// Which policy the nodes have: the first that is named.
///
/// # Errors
/// `InvalidInput` where none is.
pub fn policy_of(policies: &[PolicyKind]) -> Result<PolicyKind> {
    policies.first().copied().ok_or_else(|| Error::invalid_input("--policy: name one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_two_times() {
        assert_eq!(outage("60-90"), Ok((60.0, 90.0)));
        for bad in ["", "60", "90-60", "x-y"] {
            assert!(outage(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_sample_load_is_right() {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nodes-load.toml");
        let load: Load = Figment::from(Toml::string(&read(&sample).expect("read"))).extract().expect("a load");
        assert_eq!(load.generate().expect("questions").len(), load.questions);
    }
}
