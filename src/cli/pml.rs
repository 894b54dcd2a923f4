//! `ragstone pml`

mod program;
mod run;
mod stored;

use std::path::{Path, PathBuf};

use ragstone_kernels::files::ModelFiles;
use ragstone_models::model_source;
use ragstone_pml::{Block, Layout, Part, PlacedFrom, Prompt, Roles, Schema, Selected, Sources, select};
use ragstone_service::config::Config;
use ragstone_terminal::output;
use serde::Serialize;

use crate::error::{Error, Result};

/// The longest file that a schema may name, in bytes.
const MOST_SOURCE_BYTES: u64 = 1 << 20;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Check a schema, and a prompt of it, for the model
    Check(Args),
    /// Show where everything of a schema stands, and what of it a prompt takes
    Layout(Args),
    /// Compile a program, a template, to a schema and, for arguments, to a prompt of it
    Compile(program::Args),
    /// Answer a prompt of a schema, or a program; modules are computed once, and taken from the store from then on
    Run(run::Args),
    /// Keep a schema by its name; a changed one takes the place of the old one, and of its KV
    Add(stored::AddArgs),
    /// List the schemas that are kept
    List(stored::Whose),
    /// Show a schema that is kept: where its modules stand
    Show(stored::NamedArgs),
    /// Forget a schema, and remove its KV from every tier
    Remove(stored::RemoveArgs),
    /// Compute the modules of a schema that is kept, before anybody asks
    Encode(stored::EncodeArgs),
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A schema: <schema name="…">…
    #[arg(value_name = "SCHEMA")]
    schema: PathBuf,
    /// A prompt of it: <prompt schema="…">…
    #[arg(value_name = "PROMPT")]
    prompt: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is known of a schema.
#[derive(Debug, Serialize)]
struct Report {
    schema: String,
    /// Positions of the schema, and those that the model has.
    positions: u32,
    most_positions: u32,
    layout: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<PromptReport>,
}

/// One part of a schema.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(skip)]
    depth: usize,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    start: u32,
    length: u32,
    #[serde(skip_serializing_if = "is_true")]
    cache: bool,
}

/// What a prompt takes.
#[derive(Debug, Serialize)]
struct PromptReport {
    /// Tokens of modules whose KV is kept, and those that are computed with every prompt.
    kept_tokens: usize,
    computed_tokens: usize,
    placed: Vec<PlacedRow>,
}

#[derive(Debug, Serialize)]
struct PlacedRow {
    start: u32,
    tokens: usize,
    from: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_true(cache: &bool) -> bool {
    *cache
}

/// Files that a schema names, beside it.
struct Beside<'a>(&'a Path);

impl Sources for Beside<'_> {
    fn text(&self, name: &str) -> Result<String, String> {
        let folder = self.0.parent().unwrap_or(Path::new("")).join(".");
        let outside = || "it is not in the schema's folder".to_owned();
        let folder = folder.canonicalize().map_err(|error| error.to_string())?;
        let path = folder.join(name).canonicalize().map_err(|error| error.to_string())?;
        if !path.starts_with(&folder) {
            return Err(outside());
        }
        read_bounded(&path, MOST_SOURCE_BYTES)
    }
}

fn read_bounded(path: &Path, most: u64) -> Result<String, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > most {
        return Err(format!("it has {length} bytes, and at most {most} are read"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

/// Checks or shows a schema.
pub async fn run(config: &Config, command: Command) -> Result<()> {
    let (args, is_check) = match command {
        Command::Compile(args) => return program::compile(&args),
        Command::Run(args) => return run::with_store(config, args).await,
        Command::Add(args) => return stored::add(config, args).await,
        Command::List(whose) => return stored::list(config, whose).await,
        Command::Show(args) => return stored::show(config, args).await,
        Command::Remove(args) => return stored::remove(config, args).await,
        Command::Encode(args) => return stored::encode(config, args).await,
        Command::Check(args) => (args, true),
        Command::Layout(args) => (args, false),
    };
    let surface = &config.surface;
    let folder = config.data()?;
    let model = model_source::find(surface.model.as_deref(), surface.offline, &folder.join("models")).await?;
    let report = report(&args, &model.path)?;
    match (args.json, is_check) {
        (true, _) => output::json(&report),
        (false, true) => check(&report),
        (false, false) => table(&report),
    }
}

fn report(args: &Args, model: &Path) -> Result<Report> {
    let files = ModelFiles::open(model)?;
    let tokenizer = files.tokenizer()?;
    let most = files.config()?.max_positions as u32;
    let roles = files.chat_template()?.map(|template| Roles::of(&template)).transpose();
    let text = document(&args.schema)?;
    let schema = Schema::parse(&text, &Beside(&args.schema)).map_err(|error| named(&args.schema, &error))?;
    // A template without roles is no matter for a schema without them.
    let roles = roles.unwrap_or(None);
    let layout = Layout::of(&schema, roles.as_ref(), &tokenizer, most).map_err(|error| named(&args.schema, &error))?;
    let prompt = match &args.prompt {
        None => None,
        Some(path) => {
            let prompt = Prompt::parse(&document(path)?).map_err(|error| named(path, &error))?;
            let selected = select(&layout, &prompt, roles.as_ref(), &tokenizer, most);
            Some(PromptReport::of(&selected.map_err(|error| named(path, &error))?))
        }
    };
    let mut rows = Vec::new();
    rows_of(&layout.top, 0, &mut rows);
    Ok(Report { positions: layout.length(), schema: layout.name, most_positions: most, layout: rows, prompt })
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::invalid_input(format!("{}: {error}", path.display()))
}

fn document(path: &Path) -> Result<String> {
    let most = ragstone_pml::MAX_DOCUMENT_BYTES as u64;
    read_bounded(path, most).map_err(|why| Error::invalid_input(format!("{} cannot be read: {why}", path.display())))
}

fn rows_of(block: &Block, depth: usize, rows: &mut Vec<Row>) {
    for part in &block.parts {
        let row = |kind, name: Option<&str>, start, length, cache| {
            let name = name.map(str::to_owned);
            Row { depth, kind, name, start, length, cache }
        };
        match part {
            Part::Text { start, tokens } => rows.push(row("text", None, *start, tokens.len() as u32, block.cache)),
            Part::Parameter { start, length, name, .. } => {
                rows.push(row("parameter", Some(name), *start, *length, block.cache));
            }
            Part::Module(inner) => {
                rows.push(row("module", Some(&inner.name), inner.start, inner.length, inner.cache));
                rows_of(inner, depth + 1, rows);
            }
            Part::Union { start, length, members, .. } => {
                rows.push(row("union", None, *start, *length, block.cache));
                for member in members {
                    let (kind, name) = ("module", Some(member.name.clone()));
                    let (start, length, cache) = (member.start, member.length, member.cache);
                    rows.push(Row { depth: depth + 1, kind, name, start, length, cache });
                    rows_of(member, depth + 2, rows);
                }
            }
        }
    }
}

impl PromptReport {
    fn of(selected: &Selected) -> Self {
        let is_kept = |from: &PlacedFrom| matches!(from, PlacedFrom::Module { cache: true, .. });
        let tokens =
            |kept: bool| selected.placed.iter().filter(|at| is_kept(&at.from) == kept).map(|at| at.tokens.len()).sum();
        let from = |from: &PlacedFrom| match from {
            PlacedFrom::Module { path, cache: true } => path.clone(),
            PlacedFrom::Module { path, cache: false } => format!("{path} (computed every time)"),
            PlacedFrom::Argument { path, parameter } => format!("{path} {parameter}="),
            PlacedFrom::Text => "the prompt's text".to_owned(),
        };
        let row =
            |at: &ragstone_pml::Placed| PlacedRow { start: at.start, tokens: at.tokens.len(), from: from(&at.from) };
        Self {
            kept_tokens: tokens(true),
            computed_tokens: tokens(false),
            placed: selected.placed.iter().map(row).collect(),
        }
    }
}

fn check(report: &Report) -> Result<()> {
    let modules = report.layout.iter().filter(|row| row.kind == "module").count();
    output::line(&format!(
        "schema `{}`: {}, {} of the model's {} positions",
        report.schema,
        output::count(modules as u64, "module", "modules"),
        report.positions,
        report.most_positions
    ))?;
    match &report.prompt {
        None => Ok(()),
        Some(prompt) => output::line(&format!(
            "prompt: {} tokens of modules, {} to compute",
            prompt.kept_tokens, prompt.computed_tokens
        )),
    }
}

fn table(report: &Report) -> Result<()> {
    check(report)?;
    output::line("")?;
    output::line("positions           tokens  what")?;
    for row in &report.layout {
        let name = row.name.as_deref().unwrap_or_default();
        let kept = if row.cache { "" } else { "  (computed every time)" };
        let range = format!("{} .. {}", row.start, row.start + row.length);
        output::line(&format!("{range:<18} {:>7}  {}{} {name}{kept}", row.length, "  ".repeat(row.depth), row.kind))?;
    }
    let Some(prompt) = &report.prompt else { return Ok(()) };
    output::line("")?;
    output::line("the prompt          tokens  from")?;
    for row in &prompt.placed {
        let range = format!("{} .. {}", row.start, row.start as usize + row.tokens);
        output::line(&format!("{range:<18} {:>7}  {}", row.tokens, row.from))?;
    }
    Ok(())
}
