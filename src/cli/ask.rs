//! `ragstone ask`

use clap::ValueEnum;
use futures::StreamExt;
use ragstone_storage::corpus::Filter;
use serde_json::{Value, json};

use crate::cli::{metadata, output, report};
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::{access, model_source};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The question
    question: String,
    /// The collection to answer from
    #[arg(long, value_name = "NAME", default_value = "default")]
    collection: String,
    /// How many passages to read
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Only of documents with this metadata: KEY, KEY=VALUE, or with !=, <, <=, >, >=, or ^= (begins with); several must all hold.
    /// Or a filter as JSON
    #[arg(long, value_name = "FILTER", value_parser = metadata::filter)]
    filter: Vec<Filter>,
    /// Passages to find and put in order, of which the best --top-k are read; 0: none [default: the setting's]
    #[arg(long, value_name = "N")]
    rerank: Option<usize>,
    /// How often to search at the most: what the model begins to answer is searched for next
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// Tokens that it says between two searches, at the most [default: 32]
    #[arg(long, value_name = "N")]
    round_tokens: Option<usize>,
    /// Begin to compute only when the search has ended
    #[arg(long)]
    no_speculation: bool,
    /// Which stored KV may be used
    #[arg(long, value_enum, default_value_t = Reuse::Auto)]
    reuse: Reuse,
    /// Share of a blended passage's tokens that is recomputed, 0.0 to 1.0
    #[arg(long, value_name = "RATIO", conflicts_with = "reuse")]
    ratio: Option<f32>,
    /// The longest answer, in tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reuse {
    /// Exact entries first, then blend passages that were computed elsewhere
    Auto,
    /// Only what equals computing it again
    Exact,
    /// Compute everything
    Off,
}

impl Args {
    fn request(&self) -> Result<Value> {
        let reuse = match (self.ratio, self.reuse) {
            (Some(ratio), _) => json!({ "ratio": ratio }),
            (None, Reuse::Auto) => json!("auto"),
            (None, Reuse::Exact) => json!("exact"),
            (None, Reuse::Off) => json!("off"),
        };
        let mut request = json!({
            "messages": [{ "role": "user", "content": self.question }],
            "temperature": self.temperature,
            "stream": true,
            "stream_options": { "include_usage": true },
            "ragstone": {
                "collection": self.collection, "reuse": reuse, "top_k": self.top_k, "rounds": self.rounds,
                "round_tokens": self.round_tokens, "rerank": self.rerank,
            },
        });
        if let Some(filter) = Filter::all_of(self.filter.clone())? {
            request["ragstone"]["filter"] = json!(filter);
        }
        if self.no_speculation {
            request["ragstone"]["speculate"] = json!(false);
        }
        if let Some(count) = self.max_tokens {
            request["max_tokens"] = json!(count);
        }
        Ok(request)
    }
}

/// Asks, prints the answer as it comes, then citations and the reuse report.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    access::with(config, "ask", async |client: &Client| ask(client, &args).await).await
}

/// What came with the last chunks.
#[derive(Default)]
struct Ending {
    answer: String,
    model: Value,
    finish_reason: Value,
    extension: Value,
    usage: Value,
}

async fn ask(client: &Client, args: &Args) -> Result<()> {
    let mut chunks = std::pin::pin!(client.events(&["v1", "chat", "completions"], &args.request()?).await?);
    let mut ending = Ending::default();
    while let Some(mut chunk) = chunks.next().await.transpose()? {
        let choice = &chunk["choices"][0];
        if let Some(text) = choice["delta"]["content"].as_str() {
            // Tokens carry the space before them.
            let text = if ending.answer.is_empty() { text.trim_start() } else { text };
            ending.answer.push_str(text);
            if !args.json {
                output::text(&output::printable(text))?;
            }
        }
        if !choice["finish_reason"].is_null() {
            ending.finish_reason = choice["finish_reason"].clone();
            ending.model = chunk["model"].clone();
            ending.extension = chunk["ragstone"].take();
        }
        if !chunk["usage"].is_null() {
            ending.usage = chunk["usage"].take();
        }
    }
    if ending.finish_reason.is_null() {
        return Err(Error::internal("the answer broke off; ask again"));
    }
    if args.json { print_json(&ending) } else { print(&ending) }
}

fn print_json(ending: &Ending) -> Result<()> {
    output::json(&json!({
        "answer": ending.answer,
        "finish_reason": ending.finish_reason,
        "model": ending.model,
        "citations": ending.extension["citations"],
        "usage": ending.usage,
        "report": ending.extension["report"],
    }))
}

fn print(ending: &Ending) -> Result<()> {
    let mut out = String::from("\n");
    if ending.model == model_source::DEMO_ID {
        out.push_str(
            "(Embedded demo model: it knows the sentences of examples/world, nothing else. --model takes a real one.)\n",
        );
    }
    out.push_str(&report::citations(&ending.extension["citations"]));
    out.push_str(&report::reuse(&ending.extension["report"]));
    output::text(&out)
}
