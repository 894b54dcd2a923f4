//! `ragstone simulate`

mod fleet;
mod service;

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Format, Toml};
use ragstone_env::mebibytes;
use ragstone_storage::cost::CostGrid;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::simulate::{
    Comparison, FAMILY_REQUESTS, Family, RagWorkload, Report, ServiceReport, Workload, compare, compare_service,
    read_trace,
};
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;

use self::fleet::{FleetReport, Nodes};
use self::service::Node;
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A request trace in Mooncake's format (.jsonl), or a retrieval workload to generate (.toml, see
    /// examples/rag-workload.toml)
    #[arg(value_name = "TRACE|WORKLOAD", required_unless_present = "family", conflicts_with = "family")]
    workload: Option<PathBuf>,
    /// Workloads of one habit each, made here: names of families, or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    family: Vec<String>,
    /// What a family is drawn with
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "workload")]
    seed: u64,
    /// Requests of a family
    #[arg(long, value_name = "N", default_value_t = FAMILY_REQUESTS, conflicts_with = "workload")]
    requests: usize,
    /// Policies to compare
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "adaptive,hit-density,pgdsf,gdsf,lru,lfu,s3-fifo"
    )]
    policy: Vec<PolicyKind>,
    /// Sizes of the host tier, in percent of the working set
    #[arg(long, value_name = "PERCENTS", value_delimiter = ',', default_value = "1%,5%,10%,25%,50%", value_parser = percent)]
    capacity: Vec<f64>,
    /// Size of a device tier before it, in percent of the working set
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    device_share: f64,
    /// Prefill times measured on another machine, in JSON; --service wants its layers, too, and takes its place_us_per_byte and
    /// look_us_per_weight [default: Qwen2.5-0.5B's shape on two CPU cores]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Nodes of the tree beyond which those that no tier holds are forgotten
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1 << 18,
        conflicts_with_all = ["service", "disk", "bucket", "blend", "read", "keep_all", "nodes"]
    )]
    max_nodes: usize,
    #[command(flatten)]
    node: Node,
    #[command(flatten)]
    nodes: Nodes,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `5%` or `0.05` as 0.05.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let (number, divisor) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().map(|number| number / divisor);
    share.ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "0% to 100% is wanted, such as 5%".to_owned())
}

/// Replays a workload on the knowledge tree under every policy at every capacity. No model, no data folder.
pub async fn run(args: Args) -> Result<()> {
    let json = args.json;
    let simulated = tokio::task::spawn_blocking(move || simulate(&args)).await;
    match simulated.map_err(|error| Error::internal(format!("the simulation broke off: {error}")))?? {
        Simulated::Policies(reports) => print(&reports, json, table, rates),
        Simulated::Service(reports) => print(&reports, json, service::table, |of| {
            output::line(of.family.unwrap_or_default())?;
            service::table(&of.report)
        }),
        Simulated::Nodes(report) if json => output::json(&report),
        Simulated::Nodes(report) => fleet::print(&report),
    }
}

/// What was asked for: what policies keep, what that is worth on a whole node, or what many nodes do.
enum Simulated {
    Policies(Vec<FamilyReport<Report>>),
    Service(Vec<FamilyReport<ServiceReport>>),
    Nodes(FleetReport),
}

/// A report, and the family whose it is.
#[derive(Debug, Serialize)]
struct FamilyReport<T> {
    family: Option<&'static str>,
    #[serde(flatten)]
    report: T,
}

/// One report as a whole; of several families, `short` of each.
fn print<T: Serialize>(
    reports: &[FamilyReport<T>],
    json: bool,
    whole: impl Fn(&T) -> Result<()>,
    short: impl Fn(&FamilyReport<T>) -> Result<()>,
) -> Result<()> {
    match (reports, json) {
        ([FamilyReport { family: None, report }], true) => output::json(report),
        ([FamilyReport { report, .. }], false) => whole(report),
        (families, true) => output::json(&families),
        (families, false) => families.iter().try_for_each(short),
    }
}

/// The workloads to replay; of a file, or of families.
fn workloads(args: &Args) -> Result<Vec<(Option<&'static str>, Workload)>> {
    if let Some(path) = &args.workload {
        return Ok(vec![(None, read_workload(path)?)]);
    }
    let families: Vec<Family> = if args.family.iter().any(|name| name == "all") {
        Family::ALL.to_vec()
    } else {
        args.family.iter().map(|name| name.parse()).collect::<Result<_, Error>>()?
    };
    let make = |family: Family| -> Result<_> { Ok((Some(family.name()), family.generate(args.seed, args.requests)?)) };
    families.into_iter().map(make).collect()
}

fn simulate(args: &Args) -> Result<Simulated> {
    let grid = match &args.profile {
        None => CostGrid::measured_default()?,
        Some(path) => CostGrid::from_json(&read(path)?).map_err(|error| in_file(path, &error.to_string()))?,
    };
    if let (Some(path), false) = (&args.workload, args.nodes.nodes.is_empty()) {
        let policy = fleet::policy_of(&args.policy)?;
        let (blend, primer_tokens) = args.node.blend();
        let costs = args.node.costs(&grid)?;
        return Ok(Simulated::Nodes(args.nodes.simulate(path, policy, &costs, blend, primer_tokens)?));
    }
    let workloads = workloads(args)?;
    let progress = Progress::new("simulating requests", Unit::Items);
    let note = |done: usize, total: usize| progress.set(done as u64, total as u64);
    if args.node.service {
        if let (Some(path), None) = (&args.profile, grid.layers()) {
            return Err(in_file(path, "it lacks `layers`, the model's number of them, which --service reckons with"));
        }
        args.node.check()?;
        let costs = args.node.costs(&grid)?;
        let comparison = args.node.comparison(&args.policy, &args.capacity, args.device_share);
        let replay = |(family, workload): (_, Workload)| -> Result<_> {
            Ok(FamilyReport { family, report: compare_service(&workload, &costs, &comparison, &note)? })
        };
        return Ok(Simulated::Service(workloads.into_iter().map(replay).collect::<Result<_>>()?));
    }
    let comparison = Comparison {
        policies: args.policy.clone(),
        capacities: args.capacity.clone(),
        device: args.device_share,
        max_nodes: args.max_nodes,
    };
    let replay = |(family, workload): (_, Workload)| -> Result<_> {
        Ok(FamilyReport { family, report: compare(&workload, &grid, &comparison, &note)? })
    };
    Ok(Simulated::Policies(workloads.into_iter().map(replay).collect::<Result<_>>()?))
}

fn read_workload(path: &Path) -> Result<Workload> {
    let workload = match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl") => read_trace(&read(path)?).map_err(|error| error.to_string()),
        Some("toml") => {
            let described = Figment::from(Toml::string(&read(path)?)).extract::<RagWorkload>();
            described.map_err(|error| error.to_string()).and_then(|it| it.generate().map_err(|error| error.to_string()))
        }
        _ => Err("a trace ends in .jsonl and a workload to generate in .toml".to_owned()),
    };
    workload.map_err(|error| in_file(path, &error))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Error::io("cannot read", path, error))
}

fn in_file(path: &Path, why: &str) -> Error {
    Error::invalid_input(format!("{}: {why}", path.display()))
}

fn table(report: &Report) -> Result<()> {
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
    output::line(&format!("bound: {}", report.bound_method))?;
    output::line(&format!("tight bound: {}", report.tight_bound_method))?;
    output::line("")?;
    output::line("capacity  policy        cost    tokens  documents  stored MiB  loaded MiB   mean us    p99 us")?;
    for at in &report.capacities {
        let capacity = percents(at.capacity);
        for policy in &at.policies {
            let outcome = policy.outcome;
            output::line(&format!(
                "{capacity:<9} {:<11} {:>6.4}  {:>8.4}  {:>9.4}  {:>10.0}  {:>10.0}  {:>8.1}  {:>8.1}",
                policy.policy.name(),
                outcome.cost_hit_rate,
                outcome.token_hit_rate,
                outcome.document_hit_rate,
                mebibytes(outcome.bytes_stored),
                mebibytes(outcome.bytes_loaded),
                outcome.scheduling_us_mean,
                outcome.scheduling_us_p99,
            ))?;
        }
        output::line(&format!(
            "{capacity:<9} bound       {:>6.4}  {:>8.4}",
            at.bound.cost_hit_rate, at.bound.token_hit_rate
        ))?;
        output::line(&format!(
            "{capacity:<9} tight bound {:>6.4}  {:>8.4}",
            at.tight_bound.cost_hit_rate, at.tight_bound.token_hit_rate
        ))?;
    }
    Ok(())
}

fn percents(share: f64) -> String {
    let capacity = format!("{:.4}", 100.0 * share);
    format!("{}%", capacity.trim_end_matches('0').trim_end_matches('.'))
}

/// One of several families: cost-weighted hit rates, a line for each capacity.
fn rates(of: &FamilyReport<Report>) -> Result<()> {
    let name = of.family.unwrap_or_default();
    for at in &of.report.capacities {
        let rates = at.policies.iter().map(|it| format!("  {} {:.4}", it.policy.name(), it.outcome.cost_hit_rate));
        let rates: String = rates.collect();
        let (bound, tight) = (at.bound.cost_hit_rate, at.tight_bound.cost_hit_rate);
        output::line(&format!(
            "{name:<9} {:>4}{rates}  tight bound {tight:.4}  bound {bound:.4}",
            percents(at.capacity)
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn percents() {
        assert_eq!((percent("5%"), percent("0.05"), percent("100 %")), (Ok(0.05), Ok(0.05), Ok(1.0)));
        for bad in ["", "%", "x", "-1%", "101%", "NaN", "inf"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn line(words: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(std::iter::once("simulate").chain(words.split_whitespace())).map(|line| line.args)
    }

    #[test]
    fn a_flag_that_would_do_nothing_is_refused() {
        for good in [
            "trace.jsonl",
            "trace.jsonl --max-nodes 9",
            "--family all --seed 2 --requests 9",
            "trace.jsonl --service --disk 50% --bucket --read object=200,0.1 --blend 15% --layer 3 --keep-all",
        ] {
            assert!(line(good).is_ok(), "{good}");
        }
        for (bad, flag) in [
            ("trace.jsonl --service --max-nodes 9", "--max-nodes"),
            ("trace.jsonl --max-nodes 9 --disk 50%", "--max-nodes"),
            ("trace.jsonl --seed 2", "TRACE|WORKLOAD"),
            ("trace.jsonl --requests 9", "TRACE|WORKLOAD"),
            ("trace.jsonl --disk 50%", "--service"),
            ("trace.jsonl --bucket", "--service"),
            ("trace.jsonl --read disk=1,1", "--service"),
            ("trace.jsonl --keep-all", "--service"),
            ("trace.jsonl --blend 15%", "--service"),
            ("trace.jsonl --service --layer 3", "--blend"),
        ] {
            let refused = line(bad).expect_err(bad).to_string();
            assert!(refused.contains(flag), "{bad}: {refused}");
        }
        for (bad, words) in [
            ("trace.jsonl --service --read object=200,0.1", "--bucket"),
            ("trace.jsonl --service --disk 0% --read disk=1,1", "--disk 0%"),
        ] {
            let refused = line(bad).expect("a line").node.check().expect_err(bad).to_string();
            assert!(refused.contains(words), "{bad}: {refused}");
        }
    }

    /// What a profile says of its model is what the node has.
    #[test]
    fn a_profile_brings_its_layers_and_what_placing_takes() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = |more: &str| {
            let path = folder.path().join("profile.json");
            let text = format!(
                r#"{{"source": "x", "kv_bytes_per_token": 2{more}, "cached_tokens": [0], "new_tokens": [1], "time_us": [[7]]}}"#
            );
            std::fs::write(&path, text).expect("written");
            path
        };
        let costs = |path: &Path| {
            let args = line("trace.jsonl --service").expect("a line");
            let grid = CostGrid::from_json(&read(path).expect("read")).expect("a grid");
            args.node.costs(&grid).expect("costs").prefill
        };
        let default = costs(&profile(r#", "layers": 80"#));
        assert_eq!((default.layers, default.place_us_per_byte), (80, 1e-3));
        let own = costs(&profile(r#", "layers": 8, "place_us_per_byte": 0.5, "look_us_per_weight": 0.25"#));
        assert_eq!((own.layers, own.place_us_per_byte, own.look_us_per_weight), (8, 0.5, 0.25));
        assert_eq!(own.layer_us(0.0, 1.0), 7.0 / 8.0);
        let trace = folder.path().join("trace.jsonl");
        std::fs::write(&trace, r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}"#)
            .expect("written");
        let words = format!("{} --service --profile {}", trace.display(), profile("").display());
        let Err(refused) = simulate(&line(&words).expect("a line")) else { panic!("it says no layers") };
        assert!(refused.to_string().contains("profile.json") && refused.to_string().contains("`layers`"), "{refused}");
    }

    #[test]
    fn the_sample_workload_and_the_built_in_profile_are_right() {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rag-workload.toml");
        assert_eq!(read_workload(&sample).expect("read").requests.len(), 20_000);
        CostGrid::measured_default().expect("read");
    }

    #[test]
    fn a_bad_file_is_one_error_with_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            let error = read_workload(&path).expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
            error
        };
        let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}"#;
        assert!(refused("a.jsonl", &format!("{good}\nnonsense\n{good}")).contains("line 2"));
        let sample = include_str!("../../../../examples/rag-workload.toml");
        assert!(refused("b.toml", &sample.replace("requests", "reqests")).contains("reqests"));
        assert!(refused("c.toml", &sample.replace("seed = 1", "seed = \"x\"")).contains("seed"));
        assert!(refused("d.toml", &sample.replace("top = 0.03", "top = 3.0")).contains("skew.top"));
        assert!(refused("e.txt", good).contains(".jsonl"));
        assert!(read_workload(&folder.path().join("none.jsonl")).expect_err("refused").to_string().contains("none"));
    }
}
