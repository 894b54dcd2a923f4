//! `ragstone pml add | list | show | remove | encode`: schemas that the data folder keeps by name.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::run::with_sources;
use crate::access;
use crate::cli::cache::WarmUp;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Whose {
    /// Whose schemas
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// A schema: <schema name="…">…
    #[arg(value_name = "SCHEMA")]
    schema: PathBuf,
    #[command(flatten)]
    whose: Whose,
}

#[derive(Debug, clap::Args)]
pub struct NamedArgs {
    /// A schema that is kept
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    whose: Whose,
}

#[derive(Debug, clap::Args)]
pub struct RemoveArgs {
    /// A schema that is kept
    #[arg(value_name = "NAME")]
    name: String,
    /// Remove it without a question
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    whose: Whose,
}

#[derive(Debug, clap::Args)]
pub struct EncodeArgs {
    /// A schema that is kept
    #[arg(value_name = "NAME")]
    name: String,
    /// Only this module, and what it contains; may be given again
    #[arg(long = "module", value_name = "PATH")]
    modules: Vec<String>,
    #[command(flatten)]
    whose: Whose,
}

/// Keeps a schema.
pub async fn add(config: &Config, args: AddArgs) -> Result<()> {
    let (schema, sources) = with_sources(&args.schema)?;
    let body = json!({ "schema": schema, "sources": sources, "tenant": args.whose.tenant });
    let work = async |client: &Client| client.post::<Value>(&["v1", "pml", "schemas"], &body).await;
    let added = access::creating(config, "pml add", work).await?;
    if args.whose.json {
        return output::json(&added);
    }
    let what = if added["is_new"] == true { "kept" } else { "was kept already" };
    let removed = match added["entries_removed"].as_u64().unwrap_or(0) {
        0 => String::new(),
        entries => format!("; {entries} entries of what it does not say any more are removed"),
    };
    let modules = added["modules"].as_array().map_or(0, Vec::len).saturating_sub(1);
    output::line(&format!(
        "{} {what}: version {}, {} positions, {modules} modules{removed}",
        added["name"].as_str().unwrap_or_default(),
        added["version"].as_str().unwrap_or_default(),
        added["positions"],
    ))
}

/// Lists the schemas that are kept.
pub async fn list(config: &Config, whose: Whose) -> Result<()> {
    let query = [("tenant", whose.tenant)];
    let work = async |client: &Client| client.get_with::<Value>(&["v1", "pml", "schemas"], &query).await;
    let list = access::with(config, "pml list", work).await?;
    if whose.json {
        return output::json(&list["data"]);
    }
    for row in list["data"].as_array().into_iter().flatten() {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        output::line(&format!("{}\t{}\t{} bytes", text("name"), text("version"), row["bytes"]))?;
    }
    Ok(())
}

/// Shows a schema that is kept.
pub async fn show(config: &Config, args: NamedArgs) -> Result<()> {
    let query = [("tenant", args.whose.tenant)];
    let work = async |client: &Client| client.get_with::<Value>(&["v1", "pml", "schemas", &args.name], &query).await;
    let shown = access::with(config, "pml show", work).await?;
    if args.whose.json {
        return output::json(&shown);
    }
    output::line("from\tpositions\ttokens\tmodule")?;
    for module in shown["modules"].as_array().into_iter().flatten() {
        let path = output::printable(module["path"].as_str().unwrap_or_default());
        let kept = if module["cache"] == true { "" } else { "\tnot kept" };
        let (start, positions, tokens) = (&module["start"], &module["positions"], &module["tokens"]);
        output::line(&format!("{start}\t{positions}\t{tokens}\t{path}{kept}"))?;
    }
    Ok(())
}

/// Forgets a schema, and its KV.
pub async fn remove(config: &Config, args: RemoveArgs) -> Result<()> {
    if !args.yes {
        let name = &args.name;
        return Err(Error::invalid(format!(
            "this removes schema {name} and the KV of its modules; add --yes to do it"
        )));
    }
    let query = [("tenant", args.whose.tenant)];
    let work = async |client: &Client| client.delete_with::<Value>(&["v1", "pml", "schemas", &args.name], &query).await;
    let removed = access::with(config, "pml remove", work).await?;
    if args.whose.json {
        return output::json(&removed);
    }
    output::line(&format!("{} is removed, and {} entries of its modules", args.name, removed["entries_removed"]))
}

/// Computes a schema's modules before anybody asks: a warm-up, which Ctrl-C and kills do not end.
pub async fn encode(config: &Config, args: EncodeArgs) -> Result<()> {
    let tenants = [args.whose.tenant];
    WarmUp::of_schema(&args.name, &args.modules, &tenants).run(config, args.whose.json).await
}
