//! `ragstone models fetch`

use ragstone_models::hub::{Choice, Plan};
use ragstone_models::machine;
use ragstone_models::need::{Facts, Need};
use ragstone_service::access;
use ragstone_service::config::Config;
use ragstone_terminal::output;
use ragstone_terminal::progress::tell;
use ragstone_terminal::table::bytes;
use serde_json::{Value, json};

use super::{check_online, hub_id, show};
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hub ids, such as Qwen/Qwen2.5-0.5B-Instruct; @REVISION takes a branch, a tag or a commit
    #[arg(value_name = "ID[@REVISION]", required = true)]
    ids: Vec<String>,
    /// The GGUF file of this name
    #[arg(long, value_name = "NAME", conflicts_with = "quant")]
    file: Option<String>,
    /// The GGUF file of this quantization, such as q4_k_m
    #[arg(long, value_name = "NAME")]
    quant: Option<String>,
    /// Say what disk and memory the model needs, and fetch nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Fetches each model in turn.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let ids: Vec<_> = args.ids.iter().map(|id| hub_id(id)).collect::<Result<_>>()?;
    let choice = match (args.file, args.quant) {
        (Some(file), _) => Choice::File(file),
        (None, Some(quantization)) => Choice::Quantization(quantization),
        (None, None) => Choice::Any,
    };
    let mut done = Vec::new();
    for (id, _) in ids {
        check_online(config, &id)?;
        let plan = Plan::of(&id, &choice).await?;
        let facts = Facts::of_plan(&plan).await?;
        let need = facts.need(&config.settings.load_options(), config.settings.pool_bytes());
        if args.dry_run {
            if !args.json {
                output::text(&described(&plan, &need))?;
            }
            done.push(outline(&plan, &need));
            continue;
        }
        if let Some(problem) = facts.problem() {
            let message = format!("{id} cannot be run, so nothing was fetched: {problem}");
            return Err(Error::new(ErrorKind::Incompatible, message));
        }
        plan.check_room()?;
        warn_of_memory(&plan, &need);
        let fetched = tokio::select! {
            fetched = plan.fetch() => fetched?,
            interrupted = access::interrupted() => return Err(interrupted),
        };
        if !args.json {
            output::line(&fetched.display().to_string())?;
        }
        done.push(outline(&plan, &need));
    }
    if args.json { output::json(&done) } else { Ok(()) }
}

fn warn_of_memory(plan: &Plan, need: &Need) {
    let chosen = need.weights.iter().find(|memory| memory.chosen && memory.fits == Some(false));
    if let (Some(memory), Some(available)) = (chosen, need.available_bytes) {
        let other = need.weights.iter().find(|other| other.fits == Some(true));
        let advice = other.map_or_else(String::new, |other| format!("; with --weights {} it does", other.format));
        let (needs, has) = (bytes(memory.bytes), bytes(available));
        tell(format_args!(
            "ragstone: {} needs {needs} of memory and does not fit the {has} that are available{advice}",
            plan.id
        ));
    }
}

/// For programs.
pub fn outline(plan: &Plan, need: &Need) -> Value {
    let path = plan.path();
    let files: Vec<Value> = plan
        .files
        .iter()
        .map(|file| json!({ "name": file.name, "bytes": file.bytes(), "sha256": file.sha256() }))
        .collect();
    json!({
        "id": plan.id.name, "revision": plan.id.revision, "commit": plan.commit, "file": plan.gguf(), "path": path,
        "disk": {
            "bytes": plan.bytes(), "missing_bytes": plan.missing_bytes(), "free_bytes": machine::free_bytes(&path), "files": files,
        },
        "need": need,
    })
}

/// For people.
pub fn described(plan: &Plan, need: &Need) -> String {
    let missing = plan.missing_bytes();
    let free = machine::free_bytes(&plan.path());
    let room = match free {
        Some(free) if free < missing => format!(", {} are free: it does not fit", bytes(free)),
        Some(free) => format!(", {} are free", bytes(free)),
        None => String::new(),
    };
    let disk = match missing {
        0 => format!("{}, all of it here", bytes(plan.bytes())),
        missing => format!("{}, {} to fetch{room}", bytes(plan.bytes()), bytes(missing)),
    };
    let name = plan.gguf().map_or_else(|| plan.id.to_string(), |file| format!("{} {file}", plan.id));
    show::described(&name, &[("commit", plan.commit.clone()), ("disk", disk)], need)
}
