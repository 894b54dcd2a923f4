//! `ragstone pml run`

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;

use futures::StreamExt;
use ragstone_actors::{Reuse, ReuseReport};
use ragstone_pml::{Schema, Sources};
use ragstone_service::api::chat::{CompletionRequest, Extension, FinishedBy, GenerationRequest, TextChunk};
use ragstone_service::api::pml::Pml;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_service::{access, api};
use ragstone_terminal::output;
use serde::Serialize;

use super::program::{Given, is_program};
use super::{Beside, document, named};
use crate::cli::report;
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A schema's file, <schema name="…">…, the name of one that is kept, or a program: {# program NAME …
    #[arg(value_name = "SCHEMA|PROGRAM")]
    schema: PathBuf,
    /// A prompt of the schema: <prompt schema="…">…
    #[arg(value_name = "PROMPT")]
    prompt: Option<PathBuf>,
    #[command(flatten)]
    given: Given,
    /// Compute everything with the prompt, instead of taking modules as they were computed apart
    #[arg(long)]
    no_reuse: bool,
    /// Blend modules instead of taking them as they are: recompute this share of their tokens, 0 to 1, or as much as the model was calibrated for
    #[arg(long, value_name = "calibrated|RATIO", conflicts_with = "no_reuse")]
    blend: Option<Share>,
    /// The longest answer, in tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Whose schemas and KV
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How much of modules is recomputed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Share {
    Calibrated,
    Ratio(f32),
}

impl std::str::FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match (text, text.parse()) {
            ("calibrated", _) => Ok(Self::Calibrated),
            (_, Ok(ratio)) if (0.0..=1.0).contains(&ratio) => Ok(Self::Ratio(ratio)),
            _ => Err("give `calibrated`, or a ratio of 0 to 1".to_owned()),
        }
    }
}

/// Remembers the texts that a schema names, to send them along.
struct Remembered<'a> {
    beside: Beside<'a>,
    texts: RefCell<BTreeMap<String, String>>,
}

impl Sources for Remembered<'_> {
    fn text(&self, name: &str) -> std::result::Result<String, String> {
        let text = self.beside.text(name)?;
        self.texts.borrow_mut().insert(name.to_owned(), text.clone());
        Ok(text)
    }
}

impl Args {
    /// The name of a schema that is kept: what is no file, and is not called as schemas' files are.
    fn kept_name(&self) -> Option<&str> {
        let is_file = |name: &str| {
            name.contains(['/', '\\']) || [".xml", ".pml", ".jinja", ".j2"].iter().any(|end| name.ends_with(end))
        };
        self.schema.to_str().filter(|name| !self.schema.exists() && !is_file(name))
    }

    /// Which schema it is of, and the prompt.
    fn documents(&self) -> Result<(Pml, String)> {
        let prompt = || {
            let missing =
                || named(&self.schema, &"a schema is answered by a prompt of it: give the prompt's file, too");
            document(self.prompt.as_ref().ok_or_else(missing)?)
        };
        let name = self.kept_name();
        let text = if name.is_some() { String::new() } else { document(&self.schema)? };
        if is_program(&text) {
            if let Some(prompt) = &self.prompt {
                let why = "a program makes its prompt of arguments; give them by --arg NAME=VALUE";
                return Err(named(&self.schema, &format!("{why} instead of {}", prompt.display())));
            }
            let program = self.given.compile(&self.schema, &text)?;
            let prompt = self.given.prompt(&self.schema, &program)?;
            return Ok((Pml { schema: Some(program.schema().to_xml()), ..Pml::default() }, prompt.to_xml()));
        }
        if !self.given.is_empty() {
            return Err(named(
                &self.schema,
                &"--arg and --lists are for programs, and this is none: it does not begin with {#",
            ));
        }
        if let Some(name) = name {
            return Ok((Pml { name: Some(name.to_owned()), ..Pml::default() }, prompt()?));
        }
        let (schema, sources) = with_sources(&self.schema)?;
        Ok((Pml { schema: Some(schema), sources, name: None }, prompt()?))
    }

    fn reuse(&self) -> Reuse {
        match self.blend {
            None if self.no_reuse => Reuse::Off,
            None => Reuse::Auto,
            Some(Share::Calibrated) => Reuse::Calibrated,
            Some(Share::Ratio(ratio)) => Reuse::Ratio(ratio),
        }
    }

    fn request(&self) -> Result<CompletionRequest> {
        let (pml, prompt) = self.documents()?;
        let (tenant, reuse) = (Some(self.tenant.clone()), self.reuse());
        let generation = GenerationRequest {
            ragstone: Some(Extension { pml: Some(pml), tenant, reuse, ..Extension::default() }),
            temperature: Some(self.temperature),
            max_tokens: self.max_tokens,
            stream: Some(true),
            ..GenerationRequest::default()
        };
        Ok(CompletionRequest { prompt: api::chat::Prompt::Text(prompt), logprobs: None, echo: None, generation })
    }
}

/// A schema's text, and the texts that it names.
pub fn with_sources(path: &Path) -> Result<(String, BTreeMap<String, String>)> {
    let schema = document(path)?;
    let sources = Remembered { beside: Beside(path), texts: RefCell::default() };
    Schema::parse(&schema, &sources).map_err(|error| named(path, &error))?;
    Ok((schema, sources.texts.into_inner()))
}

/// What came of it, as programs get it.
#[derive(Default, Serialize)]
struct Ending {
    answer: String,
    finish_reason: Option<FinishedBy>,
    report: ReuseReport,
}

/// Runs the prompt, prints the answer as it comes, then what was reused.
pub async fn run(client: &Client, args: &Args) -> Result<()> {
    let mut chunks = pin!(client.events(&["v1", "completions"], &args.request()?).await?);
    let mut ending = Ending::default();
    while let Some(TextChunk { choices, ragstone, .. }) = chunks.next().await.transpose()? {
        if let Some(piece) = choices.into_iter().next() {
            ending.answer.push_str(&piece.text);
            if !args.json {
                output::text(&output::printable(&piece.text))?;
            }
            ending.finish_reason = ending.finish_reason.or(piece.finish_reason);
        }
        if let Some(extension) = ragstone {
            ending.report = extension.report;
        }
    }
    if ending.finish_reason.is_none() {
        return Err(Error::internal("the answer broke off; run it again"));
    }
    if args.json {
        return output::json(&ending);
    }
    output::text(&format!("\n{}", report::reuse(&ending.report)))
}

/// Opens the way to the store.
pub async fn with_store(config: &Config, args: Args) -> Result<()> {
    access::creating(config, access::asking("pml run"), async |client: &Client| run(client, &args).await).await
}
