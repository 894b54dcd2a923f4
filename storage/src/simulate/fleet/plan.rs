//! What to hire: the cheapest nodes on which the questions are answered in time, found by simulating them.

use serde::Serialize;

use super::machine::{BucketPrices, Machine, ModelShape, Offers};
use super::{Bucket, Corpus, Faults, Fleet, Load, Outcome, Routing, replay_fleet};
use crate::cost::CostGrid;
use crate::policy::PolicyKind;
use crate::simulate::ServiceTiers;
use crate::store::AdmissionRule;
use crate::{Error, Result};

/// Hours in a month, and seconds.
const MONTH_HOURS: f64 = 730.0;
const MONTH_S: f64 = MONTH_HOURS * 3600.0;
/// Questions of a simulation: so many for each node, and in all at least and at most.
const PER_NODE: usize = 150;
const LEAST_QUESTIONS: usize = 1000;
const MOST_QUESTIONS: usize = 120_000;
/// Of the questions, those that may be refused.
const MAY_REFUSE: f64 = 1e-3;
/// How busy the busiest engine may be: beyond, queues grow with every burst.
const MAY_BE_BUSY: f64 = 0.9;

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// What is asked; its number of questions is the plan's to choose.
    pub load: Load,
    pub model: ModelShape,
    pub offers: Offers,
    /// The 99th percentile of the time to first token that is wanted, in milliseconds.
    pub ttft_ms: f64,
    /// Nodes that may be missing without harm.
    pub spare: usize,
    /// Those that may be used: the one of the fewest nodes is, and of equal ones the last.
    pub routings: Vec<Routing>,
    pub policy: PolicyKind,
    /// As [`Fleet::blend`].
    pub blend: Option<(f32, u32)>,
    pub primer_tokens: u32,
    /// Answers that a node decodes at once.
    pub most_answers: usize,
    /// Whether entries are uploaded to a bucket; without one, nodes share no KV.
    pub has_bucket: bool,
}

/// Money a month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Money {
    pub nodes: f64,
    /// What the bucket keeps, as it is after half a month.
    pub stored: f64,
    pub requests: f64,
    pub total: f64,
}

impl Money {
    /// What nodes cost that are at such a price an hour, and their bucket, which grows by so much a day.
    pub fn of(outcome: &Outcome, hour: f64, bucket: &BucketPrices, bucket_gb_a_day: f64) -> Self {
        let nodes = outcome.nodes as f64 * hour * MONTH_HOURS;
        let thousands = |per_s: f64| per_s * MONTH_S / 1000.0;
        let requests = thousands(outcome.gets_per_s) * bucket.gets_1000
            + thousands(outcome.puts_per_s + outcome.lists_per_s) * bucket.puts_1000;
        let stored = (outcome.bucket_bytes as f64 / 1e9 + bucket_gb_a_day * 15.0) * bucket.gb_month;
        Self { nodes, stored, requests, total: nodes + stored + requests }
    }
}

/// One kind of machine.
#[derive(Debug, Clone, Serialize)]
pub struct Planned {
    pub machine: String,
    /// Where prefill times are from.
    pub profile: String,
    /// Nodes, the spare ones among them; 0: it cannot be done with this machine, `limit` says why.
    pub nodes: usize,
    pub spare: usize,
    pub tiers: Option<ServiceTiers>,
    /// How questions find their node.
    pub routing: Option<Routing>,
    /// With all nodes, and with the spare ones missing.
    pub outcome: Option<Outcome>,
    pub without_spare: Option<Outcome>,
    /// GB that the bucket has grown by in a day, as it grows at the end of the simulation; it grows less and less.
    pub bucket_gb_a_day: f64,
    pub money: Money,
    /// With one node less: what limits it.
    pub limit: String,
}

/// All of it, the cheapest first.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    pub model: ModelShape,
    pub dated: String,
    pub source: String,
    pub currency: String,
    /// Of all passages, once each.
    pub passages_kv_bytes: u64,
    pub machines: Vec<Planned>,
}

/// Finds the fewest nodes of each machine that do. `profile` reads a machine's measured times; `progress` is told what is tried.
///
/// # Errors
/// `InvalidInput` for offers and loads that cannot be, and what `profile` says.
pub fn plan_fleet(
    wanted: &Wanted,
    profile: &dyn Fn(&str) -> Result<CostGrid>,
    progress: &dyn Fn(&str, usize),
) -> Result<PlanReport> {
    wanted.offers.check()?;
    if wanted.ttft_ms.is_nan() || wanted.ttft_ms <= 0.0 {
        return Err(Error::invalid_input("the time to first token that is wanted must lie above 0"));
    }
    let mut machines = Vec::new();
    for machine in &wanted.offers.machines {
        let grid = match &machine.profile {
            Some(path) => profile(path)?,
            None => machine.grid(&wanted.model)?,
        };
        machines.push(Trying { wanted, machine, grid, progress }.planned()?);
    }
    machines.sort_by(|one, other| {
        (one.nodes == 0).cmp(&(other.nodes == 0)).then(one.money.total.total_cmp(&other.money.total))
    });
    let tokens = wanted.load.passages as f64 * wanted.load.lengths.mean_tokens;
    Ok(PlanReport {
        model: wanted.model.clone(),
        dated: wanted.offers.dated.clone(),
        source: wanted.offers.source.clone(),
        currency: wanted.offers.currency.clone(),
        passages_kv_bytes: (tokens * wanted.model.kv_bytes_per_token as f64) as u64,
        machines,
    })
}

/// The fewest nodes that do.
struct Fewest {
    routing: Routing,
    nodes: usize,
    outcome: Outcome,
    /// What came of one less.
    fewer: Option<Outcome>,
}

struct Trying<'a> {
    wanted: &'a Wanted,
    machine: &'a Machine,
    grid: CostGrid,
    progress: &'a dyn Fn(&str, usize),
}

impl Trying<'_> {
    fn planned(&self) -> Result<Planned> {
        let Some(tiers) = self.machine.tiers(&self.wanted.model) else {
            let why = format!("the weights and the KV of a prompt do not fit into its {} GB", self.room_gb());
            return Ok(self.impossible(None, why, None));
        };
        let fewest = self.fewest();
        if fewest > self.most_nodes() {
            let why = format!("its engine: {fewest} nodes would be busy with questions and answers alone");
            return Ok(self.impossible(Some(tiers), why, None));
        }
        let (mut best, mut most) = (None::<Fewest>, None);
        for routing in &self.wanted.routings {
            match self.least(tiers, *routing, fewest, best.as_ref().map(|best| best.nodes))? {
                Ok(found) => best = Some(found),
                Err(tried) => most = Some(tried),
            }
        }
        let Some(Fewest { routing, nodes: least, outcome, fewer }) = best else {
            let why = most.as_ref().map_or_else(|| "no routing is named".to_owned(), |most| self.why_not(most));
            return Ok(self.impossible(Some(tiers), why, most));
        };
        let spare = self.wanted.spare;
        let all = if spare == 0 { outcome.clone() } else { self.run(tiers, routing, least + spare)? };
        let limit = fewer.map_or_else(|| "one node is enough".to_owned(), |fewer| self.why_not(&fewer));
        let days = all.questions as f64 / all.asked_per_s.max(1e-9) / 86_400.0;
        let grown = all.bucket_bytes as f64 / 1e9;
        // What came in the whole simulation, warm-up included, is about what a longer one adds at first.
        let bucket_gb_a_day = grown / (days / (1.0 - self.wanted.load.warm_up)).max(1e-9);
        let money = Money::of(&all, self.machine.hour, &self.wanted.offers.bucket, bucket_gb_a_day);
        Ok(Planned {
            machine: self.machine.name.clone(),
            profile: self.grid.source().to_owned(),
            nodes: least + spare,
            spare,
            tiers: Some(tiers),
            routing: Some(routing),
            outcome: Some(all),
            without_spare: Some(outcome),
            bucket_gb_a_day,
            money,
            limit,
        })
    }

    fn room_gb(&self) -> f64 {
        if self.machine.gpu_gb > 0.0 { self.machine.gpu_gb } else { self.machine.memory_gb }
    }

    /// Doubles until it does, then halves the gap; begins where another routing ended. What came of the most that was tried, where it does not.
    fn least(
        &self,
        tiers: ServiceTiers,
        routing: Routing,
        fewest: usize,
        known: Option<usize>,
    ) -> Result<Result<Fewest, Outcome>> {
        let most = known.unwrap_or_else(|| self.most_nodes());
        let (mut too_few, mut fewer) = (fewest - 1, None);
        let mut enough = known.unwrap_or(fewest);
        let mut outcome = loop {
            let outcome = self.run(tiers, routing, enough)?;
            if self.does(&outcome) {
                break outcome;
            }
            if enough >= most {
                return Ok(Err(outcome));
            }
            (too_few, fewer) = (enough, Some(outcome));
            enough = (2 * enough).min(most);
        };
        while enough - too_few > 1 {
            let middle = usize::midpoint(too_few, enough);
            let tried = self.run(tiers, routing, middle)?;
            if self.does(&tried) {
                (enough, outcome) = (middle, tried);
            } else {
                (too_few, fewer) = (middle, Some(tried));
            }
        }
        Ok(Ok(Fewest { routing, nodes: enough, outcome, fewer }))
    }

    /// Nodes that are busy with what no reuse saves, each row of it at the price of one among many: fewer need not be tried, as a simulation of far too few
    /// takes as long as they would.
    fn fewest(&self) -> usize {
        let Load { question_tokens, answer_tokens, rate, .. } = &self.wanted.load;
        let mean = |[least, most]: [u32; 2]| f64::midpoint(f64::from(least), f64::from(most));
        let chunk = self.grid.most_new_tokens().clamp(2, 512);
        let row_us = (self.grid.prefill_us(0, chunk) - self.grid.prefill_us(0, 1)).max(0.0) / f64::from(chunk - 1);
        let nodes = rate * row_us / 1e6 * (mean(*question_tokens) + mean(*answer_tokens));
        (nodes.ceil() as usize).max(1)
    }

    /// More than a node for every tenth of a question a second does not help.
    fn most_nodes(&self) -> usize {
        ((self.wanted.load.rate * 200.0) as usize).clamp(4, 1024)
    }

    fn does(&self, outcome: &Outcome) -> bool {
        let refused = (outcome.refused + outcome.broken_off) as f64 / outcome.questions.max(1) as f64;
        refused <= MAY_REFUSE && outcome.ttft_ms_p99 <= self.wanted.ttft_ms && outcome.engine_most <= MAY_BE_BUSY
    }

    fn why_not(&self, outcome: &Outcome) -> String {
        if outcome.limit.starts_with("nothing") {
            return format!(
                "the 99th percentile of the time to first token is {:.0} ms with {} nodes",
                outcome.ttft_ms_p99, outcome.nodes
            );
        }
        format!("{} with {} nodes", outcome.limit, outcome.nodes)
    }

    fn run(&self, tiers: ServiceTiers, routing: Routing, nodes: usize) -> Result<Outcome> {
        (self.progress)(&self.machine.name, nodes);
        let Wanted { load, offers, policy, blend, primer_tokens, most_answers, .. } = self.wanted;
        let questions = (nodes * PER_NODE).clamp(LEAST_QUESTIONS, MOST_QUESTIONS);
        let asked = Load { questions, ..load.clone() }.generate()?;
        let fleet = Fleet {
            nodes,
            routing,
            tiers: ServiceTiers { has_bucket: self.wanted.has_bucket, ..tiers },
            policy: *policy,
            admission: AdmissionRule::Cost,
            blend: *blend,
            primer_tokens: *primer_tokens,
            costs: self.machine.costs(&self.grid, self.wanted.model.layers, &offers.bucket)?,
            most_answers: *most_answers,
            most_waiting: 64,
            bucket: Bucket { bytes_per_s: offers.bucket.gb_per_s * 1e9, ..Bucket::default() },
            corpus: Corpus::default(),
            faults: Faults::default(),
            seed: load.seed,
        };
        replay_fleet(&fleet, &asked, &|_| ())
    }

    fn impossible(&self, tiers: Option<ServiceTiers>, limit: String, outcome: Option<Outcome>) -> Planned {
        Planned {
            machine: self.machine.name.clone(),
            profile: self.grid.source().to_owned(),
            nodes: 0,
            spare: self.wanted.spare,
            tiers,
            routing: None,
            outcome,
            without_spare: None,
            bucket_gb_a_day: 0.0,
            money: Money::default(),
            limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Lengths;

    fn machine(name: &str, hour: f64, tflops: f64) -> Machine {
        Machine {
            name: name.into(),
            hour,
            memory_gb: 16.0,
            disk_gb: 100.0,
            gpu_gb: 0.0,
            tflops,
            memory_gb_per_s: 50.0,
            disk_gb_per_s: 1.0,
            network_gb_per_s: 1.0,
            profile: None,
        }
    }

    fn wanted() -> Wanted {
        let bucket = BucketPrices {
            gb_month: 0.02,
            puts_1000: 0.005,
            gets_1000: 0.0004,
            read_ms: 20.0,
            connection_gb_per_s: 0.1,
            gb_per_s: 10.0,
        };
        Wanted {
            load: Load {
                rate: 0.5,
                lengths: Lengths { mean_tokens: 200.0, sigma: 0.3, min_tokens: 50, max_tokens: 400 },
                answer_tokens: [10, 30],
                ..Load::default()
            },
            model: ModelShape {
                name: "half a billion".into(),
                active_weights: 0.5e9,
                weights: 0.5e9,
                weight_bytes: 2.0,
                layers: 24,
                query_dim: 896,
                kv_bytes_per_token: 12_288,
            },
            offers: Offers {
                dated: "today".into(),
                source: "made up".into(),
                currency: "USD".into(),
                bucket,
                machines: vec![machine("dear", 10.0, 1.0), machine("cheap", 0.5, 1.0), machine("small", 0.1, 1e-4)],
            },
            ttft_ms: 4000.0,
            spare: 1,
            routings: vec![Routing::Random, Routing::Hash],
            policy: PolicyKind::Lru,
            blend: None,
            primer_tokens: 0,
            most_answers: 16,
            has_bucket: true,
        }
    }

    #[test]
    fn the_cheapest_nodes_that_do_come_first() {
        let report = plan_fleet(&wanted(), &|_| Err(Error::invalid_input("none")), &|_, _| ()).unwrap();
        let names: Vec<&str> = report.machines.iter().map(|at| at.machine.as_str()).collect();
        assert_eq!(names, ["cheap", "dear", "small"], "{report:?}");
        let (cheap, dear) = (&report.machines[0], &report.machines[1]);
        assert_eq!(cheap.nodes, dear.nodes, "the same machine at another price");
        let with = cheap.outcome.as_ref().unwrap();
        assert!(with.ttft_ms_p99 <= 4000.0 && with.refused == 0, "{with:?}");
        assert!((cheap.money.nodes - cheap.nodes as f64 * 0.5 * 730.0).abs() < 1e-6);
        assert!(cheap.money.total > cheap.money.nodes && cheap.money.requests > 0.0);
        assert_eq!((report.machines[2].nodes, report.machines[2].limit.contains("engine")), (0, true), "{report:?}");
        // Twice the questions want more nodes, and a model that does not fit wants another machine.
        let mut more = wanted();
        more.load.rate = 2.0;
        more.offers.machines.truncate(2);
        let more = plan_fleet(&more, &|_| Err(Error::invalid_input("none")), &|_, _| ()).unwrap();
        assert!(more.machines[0].nodes > cheap.nodes, "{more:?}");
        let mut large = wanted();
        large.model.weights = 70e9;
        let large = plan_fleet(&large, &|_| Err(Error::invalid_input("none")), &|_, _| ()).unwrap();
        assert!(large.machines.iter().all(|at| at.nodes == 0 && at.limit.contains("fit")), "{large:?}");
    }

    #[test]
    fn the_routing_of_fewer_nodes_is_taken() {
        let nodes = |routings: &[Routing], collections: usize| {
            let mut wanted = wanted();
            wanted.offers.machines.truncate(1);
            (wanted.load.rate, wanted.load.collections, wanted.routings) = (2.0, collections, routings.to_vec());
            let report = plan_fleet(&wanted, &|_| Err(Error::invalid_input("none")), &|_, _| ()).unwrap();
            (report.machines[0].nodes, report.machines[0].routing)
        };
        // One collection is one node's by hash, and has all of them at random.
        for collections in [1, 50] {
            let (random, _) = nodes(&[Routing::Random], collections);
            let (hash, _) = nodes(&[Routing::Hash], collections);
            let (both, taken) = nodes(&[Routing::Random, Routing::Hash], collections);
            let least = [random, hash].into_iter().filter(|nodes| *nodes > 0).min().unwrap();
            assert!(both == least && both > 0, "{random}, {hash}: {both}");
            assert_eq!(taken, Some(if hash == both { Routing::Hash } else { Routing::Random }));
        }
    }

    #[test]
    fn offers_that_cannot_be_are_named() {
        let mut bad = wanted();
        bad.offers.machines[1].tflops = 0.0;
        let error = plan_fleet(&bad, &|_| Err(Error::invalid_input("none")), &|_, _| ()).unwrap_err();
        assert!(error.to_string().contains("cheap"), "{error}");
        let mut measured = wanted();
        measured.offers.machines[0].profile = Some("measured.json".into());
        let error = plan_fleet(&measured, &|path| Err(Error::invalid_input(path.to_owned())), &|_, _| ()).unwrap_err();
        assert!(error.to_string().contains("measured.json"), "{error}");
    }
}
