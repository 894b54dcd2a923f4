//! `ragstone plan`

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Format, Toml};
use ragstone_kernels::config::ModelConfig;
use ragstone_models::hub::{self, HubId};
use ragstone_service::config::Config;
use ragstone_storage::cost::CostGrid;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::simulate::{
    FleetOutcome, Lengths, Load, ModelShape, Offers, PlanReport, Planned, Routing, Wanted, plan_fleet,
};
use ragstone_terminal::progress::{Progress, Unit};
use ragstone_terminal::{output, table};

use crate::error::{Error, Result};

/// Machines and prices that are known here, with their date and source.
const OFFERS: &str = include_str!("plan/machines.toml");

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Documents: how many, or a folder whose files are counted
    #[arg(long, value_name = "N|FOLDER", default_value = "10000")]
    documents: String,
    /// Passages of a document, on average
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    passages: f64,
    /// Tokens of a passage, on average
    #[arg(long, value_name = "N", default_value_t = 256)]
    passage_tokens: u32,
    /// Questions a second, at the busiest time
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    questions: f64,
    /// Passages a question
    #[arg(long, value_name = "N", default_value_t = 5)]
    top_k: usize,
    /// Tokens of an answer, on average
    #[arg(long, value_name = "N", default_value_t = 100)]
    answer_tokens: u32,
    /// Collections, or teams, that questions go to
    #[arg(long, value_name = "N", default_value_t = 50)]
    collections: usize,
    /// Documents that change in a day
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    changes: f64,
    /// The time to first token that 99 of 100 questions are to have, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 3000.0)]
    ttft: f64,
    /// Nodes that may be missing
    #[arg(long, value_name = "N", default_value_t = 1)]
    spare: usize,
    /// Machines and prices, in TOML, in place of those that are known here; --print-offers prints these, to begin from
    #[arg(long, value_name = "FILE")]
    offers: Option<PathBuf>,
    /// Print the machines and prices that are known here
    #[arg(long)]
    print_offers: bool,
    /// Only this machine of them; several
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    machine: Vec<String>,
    /// Prefill times that were measured, in JSON: those of all machines that are looked at, so name one with --machine
    #[arg(long, value_name = "FILE", requires = "machine")]
    profile: Option<PathBuf>,
    /// How questions find their node: hash, random, round-robin, kv-aware; of several the one that wants the fewest nodes, and of equal ones the last
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "random,hash")]
    routing: Vec<Routing>,
    /// Blend passages, recomputing at least so much of them: where the model is calibrated for it
    #[arg(long, value_name = "PERCENT", value_parser = crate::commands::simulate::percent)]
    blend: Option<f64>,
    /// Let nodes share no KV
    #[arg(long)]
    no_bucket: bool,
    /// What the questions are drawn with
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Says how many nodes of which machine the questions want, and what that costs, by simulating them.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    if args.print_offers {
        return output::text(OFFERS);
    }
    let (json, model) = (args.json, shape(config.surface.model.as_deref())?);
    let planned = tokio::task::spawn_blocking(move || report(&args, model)).await;
    let report = planned.map_err(|error| Error::internal(format!("the plan broke off: {error}")))??;
    if json { output::json(&report) } else { print(&report) }
}

/// The offers of a file, or those that are known here.
pub fn offers(file: Option<&Path>) -> Result<Offers> {
    let text = match file {
        Some(path) => read(path)?,
        None => OFFERS.to_owned(),
    };
    let name = file.map_or_else(|| "machines.toml".to_owned(), |path| path.display().to_string());
    let read = Figment::from(Toml::string(&text)).extract::<Offers>();
    read.map_err(|error| Error::invalid_input(format!("{name}: {error}")))
}

/// The shape of a model's folder, or of a `config.json`; where none is named, one that stands in.
fn shape(model: Option<&str>) -> Result<ModelShape> {
    let Some(model) = model else { return Ok(ModelShape::stand_in()) };
    let here = HubId::parse(model).and_then(|id| hub::cached(&id));
    let path = here.as_deref().unwrap_or(Path::new(model));
    let config = if path.is_dir() {
        ModelConfig::from_folder(path)?
    } else if path.is_file() && path.extension().is_some_and(|extension| extension == "json") {
        ModelConfig::from_json(&read(path)?).map_err(|error| Error::invalid_input(format!("{model}: {error}")))?
    } else {
        return Err(Error::invalid_input(format!(
            "model {model}: a plan wants a folder with config.json, that file, or the id of a model that `ragstone models fetch` has brought"
        )));
    };
    Ok(ModelShape::of(model, &config))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Error::io("cannot read", path, error))
}

fn report(args: &Args, model: ModelShape) -> Result<PlanReport> {
    let mut offers = offers(args.offers.as_deref())?;
    if !args.machine.is_empty() {
        let known: Vec<String> = offers.machines.iter().map(|machine| machine.name.clone()).collect();
        if let Some(unknown) = args.machine.iter().find(|name| !known.contains(name)) {
            let known = known.join(", ");
            return Err(Error::invalid_input(format!("--machine {unknown}: it is not offered; these are: {known}")));
        }
        offers.machines.retain(|machine| args.machine.contains(&machine.name));
    }
    if let Some(profile) = &args.profile {
        let profile = profile.display().to_string();
        offers.machines.iter_mut().for_each(|machine| machine.profile = Some(profile.clone()));
    }
    let documents = documents(&args.documents)?;
    if documents == 0 {
        let message = format!("--documents {}: there are none; a plan wants at least one", args.documents);
        return Err(Error::invalid_input(message));
    }
    // Far below 2^53.
    let passages = ((documents as f64 * args.passages).round() as u64).max(2);
    let collections = args.collections.clamp(1, (passages / 2) as usize);
    let tokens = args.passage_tokens.max(1);
    let load = Load {
        seed: args.seed,
        rate: args.questions,
        passages,
        collections,
        lengths: Lengths {
            mean_tokens: f64::from(tokens),
            sigma: 0.4,
            min_tokens: (tokens / 8).max(1),
            max_tokens: tokens.saturating_mul(2),
        },
        top_k: args.top_k,
        answer_tokens: [(args.answer_tokens / 2).max(1), args.answer_tokens.saturating_mul(3) / 2 + 1],
        changes: args.changes * args.passages / 86_400.0,
        ..Load::default()
    };
    let wanted = Wanted {
        load,
        model,
        offers,
        ttft_ms: args.ttft,
        spare: args.spare,
        routings: args.routing.clone(),
        policy: PolicyKind::Adaptive,
        // A share has digits enough in 32 bits.
        blend: args.blend.map(|ratio| (ratio as f32, 2)),
        primer_tokens: if args.blend.is_some() { 220 } else { 0 },
        most_answers: 32,
        has_bucket: !args.no_bucket,
    };
    let progress = Progress::new("planning", Unit::Items);
    let profile = |path: &str| {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Error::invalid_input(format!("cannot read {path}: {error}")))?;
        CostGrid::from_json(&text).map_err(|error| Error::invalid_input(format!("{path}: {error}")))
    };
    let note = |machine: &str, nodes: usize| {
        progress.describe(format!("simulating {nodes} of {machine}"));
        progress.tick();
    };
    plan_fleet(&wanted, &profile, &note)
}

/// A number, or the files of a folder, those of its folders among them; hidden ones do not count, as `ingest` leaves them out.
fn documents(text: &str) -> Result<u64> {
    if let Ok(number) = text.parse::<u64>() {
        return Ok(number);
    }
    let mut folders = vec![PathBuf::from(text)];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|error| {
            if count == 0 && folder == Path::new(text) {
                Error::invalid_input(format!(
                    "--documents {text}: neither a number nor a folder that can be read: {error}"
                ))
            } else {
                Error::io("cannot read", &folder, error)
            }
        })?;
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("cannot read", &folder, error))?;
            let kind = entry.file_type().map_err(|error| Error::io("cannot read", &entry.path(), error))?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                count += 1;
            }
        }
    }
    Ok(count)
}

/// A table for people.
fn print(report: &PlanReport) -> Result<()> {
    let gb = |bytes: u64| format!("{:.0}", bytes as f64 / 1e9);
    output::line(&format!(
        "model: {} ({:.1} billion weights, {} bytes of KV a token); KV of all passages: {} GB",
        report.model.name,
        report.model.weights / 1e9,
        report.model.kv_bytes_per_token,
        gb(report.passages_kv_bytes)
    ))?;
    output::line(&format!("prices: {}, {} ({})", report.currency, report.dated, report.source))?;
    let heads = [
        "machine",
        "nodes",
        "routing",
        "device GB",
        "host GB",
        "disk GB",
        "bucket GB/day",
        "reused",
        "blended",
        "ttft p50 ms",
        "p99 ms",
        "engines",
        "a month",
        "nodes' share",
        "with one node less",
    ];
    let cells = |at: &Planned| {
        let none = || "-".to_owned();
        let tier = |of: fn(&ragstone_storage::simulate::ServiceTiers) -> u64| {
            at.tiers.as_ref().map_or_else(none, |tiers| gb(of(tiers)))
        };
        let of = |of: &dyn Fn(&FleetOutcome) -> String| at.outcome.as_ref().map_or_else(none, of);
        let can = at.nodes > 0;
        vec![
            at.machine.clone(),
            if can { format!("{} ({} spare)", at.nodes, at.spare) } else { "cannot".to_owned() },
            at.routing.map_or_else(none, |routing| routing.name().to_owned()),
            tier(|tiers| tiers.device_bytes),
            tier(|tiers| tiers.host_bytes),
            tier(|tiers| tiers.disk_bytes),
            if can { format!("{:.1}", at.bucket_gb_a_day) } else { none() },
            of(&|it| format!("{:.2}", it.hit.exact())),
            of(&|it| format!("{:.2}", it.hit.blended)),
            of(&|it| format!("{:.0}", it.ttft_ms_p50)),
            of(&|it| format!("{:.0}", it.ttft_ms_p99)),
            of(&|it| format!("{:.2}", it.engine)),
            if can { format!("{:.0}", at.money.total) } else { none() },
            if can { format!("{:.0}", at.money.nodes) } else { none() },
            at.limit.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = report.machines.iter().map(cells).collect();
    output::text(&table::table(&heads, &rows))?;
    match report.machines.first().filter(|at| at.nodes > 0) {
        Some(best) => output::line(&format!(
            "cheapest: {} of {}, {:.0} {} a month; prefill times: {}",
            best.nodes, best.machine, best.money.total, report.currency, best.profile
        )),
        None => output::line("none of these machines answers in time: allow a longer --ttft, or offer faster ones"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_here_can_be_hired() {
        let offers = offers(None).expect("offers");
        offers.check().expect("sane");
        assert!(!offers.dated.is_empty() && !offers.source.is_empty());
        assert!(offers.machines.iter().any(|machine| machine.tiers(&ModelShape::stand_in()).is_some()));
    }

    #[test]
    fn documents_are_a_number_or_the_files_of_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("in")).expect("made");
        for name in ["a.md", "in/b.md", ".hidden"] {
            std::fs::write(folder.path().join(name), "x").expect("written");
        }
        assert_eq!(documents("17").expect("a number"), 17);
        assert_eq!(documents(&folder.path().display().to_string()).expect("a folder"), 2);
        assert!(documents("nowhere").expect_err("refused").to_string().contains("--documents nowhere"));
    }

    #[test]
    fn a_model_is_a_folder_a_config_or_stands_in() {
        assert_eq!(shape(None).expect("one"), ModelShape::stand_in());
        assert!(shape(Some("org/name")).expect_err("refused").to_string().contains("ragstone models fetch"));
    }
}
