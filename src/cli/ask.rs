//! `ragstone ask`

use clap::ValueEnum;
use futures::StreamExt;
use ragstone_actors::{Answered, Citation, Grounding, MinSimilarity, OnNothingFound, ReuseReport};
use ragstone_corpus::Filter;
use ragstone_models::model_source;
use ragstone_service::access;
use ragstone_service::api::List;
use ragstone_service::api::chat::{
    AnswerExtension, ChatChunk, ChatRequest, Extension, FinishedBy, GenerationRequest, StreamOptions, Unsaid, Usage,
};
use ragstone_service::api::models::ServedModel;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_terminal::output;
use ragstone_terminal::progress::tell;
use serde::Serialize;

use crate::cli::{documents, metadata, report};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The question
    question: String,
    /// The collection to answer from; TENANT/NAME names a tenant's [default: default, or the only one there is]
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// How many passages to read
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Only of documents with this metadata: KEY, KEY=VALUE, or with !=, <, <=, >, >=, or ^= (begins with); several must all hold.
    /// Or a filter as JSON
    #[arg(long, value_name = "FILTER", value_parser = metadata::filter)]
    filter: Vec<Filter>,
    /// How similar passages must be to the question: cosine similarity from -1 to 1, auto, or off [default: the setting's]
    #[arg(long, value_name = "SIMILARITY", allow_hyphen_values = true)]
    min_similarity: Option<MinSimilarity>,
    /// What to do where no passage is about the question [default: the setting's]
    #[arg(long, value_enum, value_name = "WHAT")]
    on_nothing_found: Option<Nothing>,
    /// Take path:, folder:, file:, name:, after: and before: in the question for words, not for filters
    #[arg(long)]
    plain: bool,
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
    /// Keep the passages in the order in which they were ranked
    #[arg(long)]
    no_arrangement: bool,
    /// Which stored KV may be used
    #[arg(long, value_enum, default_value_t = Reuse::Auto)]
    reuse: Reuse,
    /// Share of a blended passage's tokens that is recomputed, 0.0 to 1.0
    #[arg(long, value_name = "RATIO", conflicts_with = "reuse")]
    ratio: Option<f32>,
    /// The longest answer, in tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// 0 always takes the likeliest token [default: what the model's makers name, or else 0]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Where tokens are drawn: another number draws others [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<i64>,
    /// Put the numbers of the passages that it stands on behind each sentence of the answer
    #[arg(long)]
    cite: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Nothing {
    /// Say that the documents have nothing, without the model
    Say,
    /// The model's own answer, behind a note
    Answer,
    /// Answer from the nearest passages
    AsUsual,
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
    fn request(&self, collection: String) -> Result<ChatRequest> {
        let reuse = match (self.ratio, self.reuse) {
            (Some(ratio), _) => ragstone_actors::Reuse::Ratio(ratio),
            (None, Reuse::Auto) => ragstone_actors::Reuse::Auto,
            (None, Reuse::Exact) => ragstone_actors::Reuse::Exact,
            (None, Reuse::Off) => ragstone_actors::Reuse::Off,
        };
        let extension = Extension {
            collection: Some(collection),
            top_k: self.top_k,
            filter: Filter::all_of(self.filter.clone())?,
            qualifiers: !self.plain,
            min_similarity: self.min_similarity,
            on_nothing_found: self.on_nothing_found.map(|what| match what {
                Nothing::Say => OnNothingFound::Say,
                Nothing::Answer => OnNothingFound::Answer,
                Nothing::AsUsual => OnNothingFound::AsUsual,
            }),
            rounds: Some(self.rounds),
            round_tokens: self.round_tokens,
            rerank: self.rerank,
            speculate: self.no_speculation.then_some(false),
            arrange: self.no_arrangement.then_some(false),
            reuse,
            sampling: Unsaid::Model,
            cite: self.cite,
            ..Extension::default()
        };
        let generation = GenerationRequest {
            ragstone: Some(extension),
            temperature: self.temperature,
            seed: self.seed,
            max_tokens: self.max_tokens,
            stream: Some(true),
            stream_options: Some(StreamOptions { include_usage: Some(true) }),
            ..GenerationRequest::default()
        };
        Ok(ChatRequest::ask(&self.question, generation))
    }
}

/// Asks, prints the answer as it comes, then citations and the reuse report.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    access::with_once(config, access::asking("ask"), async |client: &Client| ask(client, &args).await).await
}

/// What came of the answer, as programs get it.
#[derive(Default, Serialize)]
struct Ending {
    answer: String,
    finish_reason: Option<FinishedBy>,
    model: String,
    citations: Vec<Citation>,
    /// Whether the answer stands on them; null where that cannot be said.
    grounding: Option<Grounding>,
    usage: Option<Usage>,
    report: ReuseReport,
}

async fn ask(client: &Client, args: &Args) -> Result<()> {
    let collection = documents::collection(client, args.collection.as_deref()).await?;
    let request = args.request(collection.clone())?;
    let mut chunks = std::pin::pin!(client.events(&["v1", "chat", "completions"], &request).await?);
    let mut ending = Ending::default();
    while let Some(ChatChunk { choices, model, ragstone, usage, .. }) = chunks.next().await.transpose()? {
        // Said before the answer, which over one's own documents reads like noise.
        if ending.model.is_empty() && model == model_source::DEMO_ID && !args.json && !model_source::has_told() {
            let note = note(client).await;
            tell(format_args!("({note})"));
        }
        ending.model = model;
        if let Some(piece) = choices.into_iter().next() {
            if let Some(text) = piece.delta.content {
                // Tokens carry the space before them.
                let text = if ending.answer.is_empty() { text.trim_start() } else { &text };
                ending.answer.push_str(text);
                if !args.json {
                    output::text(&output::printable(text))?;
                }
            }
            ending.finish_reason = ending.finish_reason.or(piece.finish_reason);
        }
        if let Some(AnswerExtension { citations, grounding, report }) = ragstone {
            (ending.citations, ending.grounding, ending.report) = (citations, grounding, report);
        }
        ending.usage = usage.or(ending.usage);
    }
    if ending.finish_reason.is_none() {
        return Err(Error::internal("the answer broke off; ask again"));
    }
    if args.json { output::json(&ending) } else { print(&ending, &collection) }
}

/// What whoever asks the model inside this program should know: the service knows why it answers.
async fn note(client: &Client) -> String {
    let models = client.get::<List<ServedModel>>(&["v1", "models"]).await.map(|list| list.data).unwrap_or_default();
    let told = models.into_iter().next().and_then(|model| model.ragstone?.note);
    told.unwrap_or_else(|| {
        "The embedded demo model answers, which knows the sentences of its sample corpus alone.".to_owned()
    })
}

fn print(ending: &Ending, collection: &str) -> Result<()> {
    let mut out = String::from("\n");
    // Over no passages at all, as a filter left none, there are no nearest ones.
    let is_empty = ending.citations.is_empty();
    let nothing = ending.report.nothing_found.filter(|nothing| !is_empty || nothing.answered != Answered::AsUsual);
    if let Some(nothing) = nothing {
        out.push_str(&format!("({})\n", nothing.in_words()));
        if nothing.answered == Answered::Said {
            out.push_str("(`ragstone search` shows the nearest; --on-nothing-found as-usual answers from them.)\n");
            return output::text(&out);
        }
    } else if is_empty {
        let note = format!(
            "(Nothing of `{collection}` stood in the prompt: the answer is the model's own, without your documents.)\n"
        );
        out.push_str(&note);
    }
    out.push_str(&report::citations(&ending.citations));
    out.push_str(&report::grounding(ending.grounding.as_ref()));
    out.push_str(&report::reuse(&ending.report));
    output::text(&out)
}
