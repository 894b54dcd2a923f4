//! `ragstone pml add | list | show | remove | encode`: schemas that the data folder keeps by name.

use std::path::PathBuf;

use ragstone_actors::upkeep::schemas::{Added, StoredModule, StoredSchema};
use ragstone_service::access;
use ragstone_service::api::List;
use ragstone_service::api::pml::{AddSchema, ListedSchema, RemovedSchema, SchemaQuery, ShownSchema};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_terminal::{output, table};

use super::run::with_sources;
use crate::cli::cache::WarmUp;
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
    let body = AddSchema { schema, sources: Some(sources), tenant: Some(args.whose.tenant) };
    let work = async |client: &Client| client.post(&["v1", "pml", "schemas"], &body).await;
    let added: Added = access::creating(config, "pml add", work).await?;
    if args.whose.json {
        return output::json(&added);
    }
    let Added { schema, is_new, withdrawn } = added;
    let what = if is_new { "kept" } else { "was kept already" };
    let removed = match withdrawn.entries_removed {
        0 => String::new(),
        entries => format!("; {entries} entries of what it does not say any more are removed"),
    };
    let StoredSchema { name, version, positions, modules, .. } = schema;
    let modules = modules.len().saturating_sub(1);
    output::line(&format!("{name} {what}: version {version}, {positions} positions, {modules} modules{removed}"))
}

/// Lists the schemas that are kept.
pub async fn list(config: &Config, whose: Whose) -> Result<()> {
    let query = SchemaQuery { tenant: Some(whose.tenant) };
    let work = async |client: &Client| client.get_with(&["v1", "pml", "schemas"], &query).await;
    let list: List<ListedSchema> = access::with(config, "pml list", work).await?;
    let cells = |ListedSchema { name, version, bytes, .. }: &ListedSchema| {
        vec![output::one_line(name, 60), version.clone(), table::bytes(*bytes as u64)]
    };
    let none = "there are no schemas; `ragstone pml add SCHEMA` keeps one";
    table::print(&list.data, whose.json, &["name", "version", "size"], cells, none)
}

/// Shows a schema that is kept.
pub async fn show(config: &Config, args: NamedArgs) -> Result<()> {
    let query = SchemaQuery { tenant: Some(args.whose.tenant) };
    let work = async |client: &Client| client.get_with(&["v1", "pml", "schemas", &args.name], &query).await;
    let shown: ShownSchema = access::with(config, "pml show", work).await?;
    if args.whose.json {
        return output::json(&shown);
    }
    let row = |StoredModule { path, start, positions, tokens, cache }: &StoredModule| {
        let kept = if *cache { "yes" } else { "no" };
        let [start, positions, tokens] = [start, positions, tokens].map(u32::to_string);
        vec![start, positions, tokens, kept.to_owned(), output::printable(path)]
    };
    let rows: Vec<_> = shown.stored.modules.iter().map(row).collect();
    output::text(&table::table(&["from", "positions", "tokens", "kept", "module"], &rows))
}

/// Forgets a schema, and its KV.
pub async fn remove(config: &Config, args: RemoveArgs) -> Result<()> {
    if !args.yes {
        let name = &args.name;
        return Err(Error::invalid_input(format!(
            "this removes schema {name} and the KV of its modules; add --yes to do it"
        )));
    }
    let query = SchemaQuery { tenant: Some(args.whose.tenant) };
    let work = async |client: &Client| client.delete_with(&["v1", "pml", "schemas", &args.name], &query).await;
    let removed: RemovedSchema = access::with(config, "pml remove", work).await?;
    if args.whose.json {
        return output::json(&removed);
    }
    output::line(&format!("{} is removed, and {} entries of its modules", args.name, removed.withdrawn.entries_removed))
}

/// Computes a schema's modules before anybody asks: a warm-up, which Ctrl-C and kills do not end.
pub async fn encode(config: &Config, args: EncodeArgs) -> Result<()> {
    let tenants = [args.whose.tenant];
    WarmUp::of_schema(&args.name, &args.modules, &tenants).run(config, args.whose.json).await
}
