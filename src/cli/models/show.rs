//! `ragstone models show`

use std::fmt::Write;
use std::path::{Path, PathBuf};

use ragstone_actors::upkeep::calibration::FILE_NAME as CALIBRATION;
use ragstone_models::hub::{self, Choice, Plan};
use ragstone_models::kind::Kind;
use ragstone_models::need::{Facts, Need};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_service::data_folder::DataFolder;
use ragstone_terminal::output;
use ragstone_terminal::table::bytes;
use serde_json::{Value, json};

use super::{check_online, fetch, hub_id};
use crate::cli::models::here::{self, InUse};
use crate::error::Result;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A hub id, a folder or a GGUF file
    #[arg(value_name = "ID[@REVISION]|PATH")]
    id: String,
    /// Of a repository of GGUF files: the file of this quantization, such as q4_k_m
    #[arg(long, value_name = "NAME")]
    quant: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints what a model needs. What is not here is asked for at the hub, and not fetched.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let Some(path) = found(config, &args)? else {
        let (id, _) = hub_id(&args.id)?;
        check_online(config, &id)?;
        let plan = Plan::of(&id, &args.quant.map_or(Choice::Any, Choice::Quantization)).await?;
        let need = Facts::of_plan(&plan).await?.need(&config.settings.load_options(), config.settings.pool_bytes());
        return if args.json {
            output::json(&fetch::outline(&plan, &need))
        } else {
            output::text(&fetch::described(&plan, &need))
        };
    };
    let need = Facts::of_path(&path)?.need(&config.settings.load_options(), config.settings.pool_bytes());
    let used = InUse::of(config).await?;
    let calibrated = calibration(config, &path, &used).await?;
    let in_use = used.has(&path);
    if args.json {
        let shown = json!({ "id": args.id, "path": path, "need": need, "calibration": calibrated, "in_use": in_use });
        return output::json(&shown);
    }
    let mut lines = vec![("path", path.display().to_string())];
    if in_use {
        lines.push(("in use", format!("by the service (process {})", used.pid.unwrap_or_default())));
    }
    if need.kind == Kind::LanguageModel {
        let word = match calibrated {
            Some(found) => found,
            None => "not known before a service has loaded it (`ragstone doctor` says so then)".to_owned(),
        };
        lines.push(("calibrated", word));
    }
    output::text(&described(&args.id, &lines, &need))
}

/// Where it is on this machine, if it is.
fn found(config: &Config, args: &Args) -> Result<Option<PathBuf>> {
    let path = Path::new(&args.id);
    if path.exists() {
        return Ok(Some(path.to_owned()));
    }
    let data = config.data()?;
    if let Some(own) = here::own(&data).into_iter().find(|own| own.id == args.id && own.folder.is_dir()) {
        return Ok(Some(own.path()));
    }
    let (id, _) = hub_id(&args.id)?;
    if args.quant.is_none()
        && let Some(folder) = hub::cached(&id)
    {
        return Ok(Some(folder));
    }
    let is_revision =
        |found: &here::Here| found.revisions.contains(&id.revision) || found.commit.as_ref() == Some(&id.revision);
    let is_it = |found: &here::Here| {
        let quantization = found.file.as_deref().and_then(hub::quantization);
        let is_quant = args
            .quant
            .as_ref()
            .is_none_or(|wanted| quantization.is_some_and(|found| found.eq_ignore_ascii_case(wanted)));
        found.id == id.name && is_revision(found) && found.file.is_some() && is_quant
    };
    let ggufs: Vec<here::Here> = here::all(&data, &InUse::default()).into_iter().filter(is_it).collect();
    // Of several the hub's list says which there are to choose from.
    Ok(match <[here::Here; 1]>::try_from(ggufs) {
        Ok([only]) => Some(only.path),
        Err(_) => None,
    })
}

/// Whether a service may blend this model's passages, in words; `None`: nobody knows yet.
async fn calibration(config: &Config, path: &Path, used: &InUse) -> Result<Option<String>> {
    if used.has(path)
        && let Some(record) = DataFolder::existing(&config.data()?)?.service_record()
    {
        let status: Value = Client::new(&record.address, &record.token)?.get(&["v1", "cache", "status"]).await?;
        let word = match status["blend"]["blending"].as_str() {
            Some("not_calibrated" | "uncalibrated") => "no; `ragstone calibrate` does it",
            Some("not_good_enough") => "yes: no way of blending keeps its answers",
            Some("cannot_move") => "needs none: its KV cannot be moved to other positions",
            Some(_) => "yes",
            None => return Ok(None),
        };
        return Ok(Some(word.to_owned()));
    }
    let beside = path.join(CALIBRATION).is_file();
    Ok(beside.then(|| format!("by its maker ({CALIBRATION})")))
}

/// A model in lines, for people.
pub fn described(name: &str, lines: &[(&str, String)], need: &Need) -> String {
    let mut out = format!("{}\n", output::one_line(name, 200));
    let mut line = |what: &str, text: &str| {
        let _ = writeln!(out, "  {what:12}{}", output::one_line(text, 400));
    };
    let architecture = need.architecture.as_ref().map_or_else(String::new, |architecture| format!(", {architecture}"));
    line("kind", &format!("{}{architecture}", need.kind.name()));
    if let Some(problem) = &need.problem {
        line("PROBLEM", &format!("this version cannot run it: {problem}"));
    }
    for (what, text) in lines {
        line(what, text);
    }
    if let Some(context) = need.context {
        line("context", &format!("{context} tokens"));
    }
    line("weights", &format!("{:.1} million, most of them {}", need.parameters as f64 / 1e6, need.dtype));
    for (index, memory) in need.weights.iter().enumerate() {
        let fits = match memory.fits {
            Some(true) => ", fits",
            Some(false) => ", does not fit",
            None => "",
        };
        let chosen = if memory.chosen && need.weights.len() > 1 { " (as it is set)" } else { "" };
        line(
            if index == 0 { "memory" } else { "" },
            &format!("{} with --weights {}{fits}{chosen}", bytes(memory.bytes), memory.format),
        );
    }
    if let Some(kv) = &need.kv {
        let whole = need.context.map_or_else(String::new, |context| {
            format!(", {} for {context} tokens", bytes((kv.bytes_per_token as u64).saturating_mul(context as u64)))
        });
        line("KV", &format!("{} bytes a token in {}{whole}", kv.bytes_per_token, kv.dtype));
    }
    if let Some(available) = need.available_bytes {
        let pool = need.kv.as_ref().map_or_else(String::new, |kv| {
            format!("; the KV pool takes {} of it (`device_bytes`)", bytes(kv.pool_bytes))
        });
        line("available", &format!("{} of memory{pool}", bytes(available)));
    }
    out
}
