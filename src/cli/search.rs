//! `ragstone search`

use std::fmt::Write;

use clap::ValueEnum;
use ragstone_actors::MinSimilarity;
use ragstone_corpus::{Filter, Hit, SearchMode};
use ragstone_service::access;
use ragstone_service::api::collections::{FoundPassages, Search};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_terminal::output;
use ragstone_terminal::progress::tell;

use crate::cli::{documents, metadata, report};
use crate::error::Result;

/// Characters of a passage that show where not all of it is asked for.
const SHOWN: usize = 240;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to look for: a question, or words
    query: String,
    /// The collection to search; TENANT/NAME names a tenant's [default: default, or the only one there is]
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// How many passages to find [default: the setting's]
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// How to search
    #[arg(long, value_enum, default_value_t = By::Fused)]
    by: By,
    /// Only documents with this metadata: KEY, KEY=VALUE, or with !=, <, <=, >, >=, or ^= (begins with); several must all hold.
    /// Or a filter as JSON
    #[arg(long, value_name = "FILTER", value_parser = metadata::filter)]
    filter: Vec<Filter>,
    /// How similar passages must be to the query: cosine similarity from -1 to 1; auto leaves out none and says where none is about the query;
    /// off [default: the setting's]
    #[arg(long, value_name = "SIMILARITY", allow_hyphen_values = true)]
    min_similarity: Option<MinSimilarity>,
    /// Take path:, folder:, file:, name:, after: and before: in the query for words, not for filters
    #[arg(long)]
    plain: bool,
    /// Passages to find and put in order by the reranker, of which the best --top-k show; 0: none [default: the setting's]
    #[arg(long, value_name = "N")]
    rerank: Option<usize>,
    /// Print passages whole, not their first words alone
    #[arg(long)]
    full: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// By meaning and by words, together
    Fused,
    /// By meaning: the cosine similarity of embeddings
    Vector,
    /// By words: BM25
    FullText,
}

/// Finds passages, and prints them with where they are from.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let (collection, found) = access::with(config, "search", async |client: &Client| {
        let collection = documents::collection(client, args.collection.as_deref()).await?;
        let mode = match args.by {
            By::Fused => SearchMode::Fused,
            By::Vector => SearchMode::Vector,
            By::FullText => SearchMode::FullText,
        };
        let wanted = Search {
            query: args.query.clone(),
            top_k: args.top_k,
            mode: Some(mode),
            rerank: args.rerank,
            filter: Filter::all_of(args.filter.clone())?,
            qualifiers: !args.plain,
            min_similarity: args.min_similarity,
        };
        let path = ["v1", "collections", &collection, "search"];
        let found: FoundPassages = client.post(&path, &wanted).await?;
        Ok((collection, found))
    })
    .await?;
    if args.json {
        return output::json(&found);
    }
    if found.words_only {
        tell(format_args!(
            "ragstone: words alone were searched: `{collection}` was built with an embedding model that cannot be loaded"
        ));
    }
    if let Some(read_as) = &found.read_as {
        tell(metadata::read_as(read_as));
    }
    if found.data.is_empty() {
        return output::line(&format!("nothing in `{}` was found", output::one_line(&collection, 200)));
    }
    if found.nothing_found {
        let collection = output::one_line(&collection, 200);
        output::line(&format!("nothing in `{collection}` seems to be about this; the nearest passages:"))?;
    }
    output::text(&passages(&found.data, args.full))
}

/// Each with its score and place; below that, what it says.
fn passages(hits: &[Hit], full: bool) -> String {
    let mut out = String::new();
    for (index, Hit { passage, score, similarity, also_in }) in hits.iter().enumerate() {
        let title = if passage.title.is_empty() { &passage.document_id } else { &passage.title };
        let page = passage.page.map_or_else(String::new, |page| format!(", page {page}"));
        let source = passage.source.as_ref();
        let source = source.map_or_else(String::new, |source| format!(" ({}{page})", output::one_line(source, 200)));
        let similarity = similarity.map_or_else(String::new, |similarity| format!(" (similarity {similarity:.2})"));
        let _ = writeln!(out, "[{}] {score:.2}{similarity} {}{source}", index + 1, output::one_line(title, 80));
        if full {
            for line in output::printable(&passage.text).lines() {
                let _ = writeln!(out, "    {line}");
            }
        } else {
            let _ = writeln!(out, "    {}", output::one_line(&report::paragraphs(&passage.text), SHOWN));
        }
        out.push_str(&report::also_in(also_in, "    "));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_passage_shows_where_it_is_from_and_what_it_says() {
        let passage = |title: &str, source| {
            json!({ "id": "0", "document_id": "d1", "collection": "c", "ordinal": 0, "title": title,
                "text": format!("One.\n\u{1b}[2JTwo. {}", "three ".repeat(100)), "source": source, "metadata": {} })
        };
        let hits: Vec<Hit> = serde_json::from_value(json!([
            { "passage": passage("Roof", json!("/notes/roof.md")), "score": 0.914, "similarity": 0.4321 },
            { "passage": passage("", json!(null)), "score": 0.1,
              "also_in": [{ "document_id": "d2" }, { "document_id": "d3" }] },
        ]))
        .unwrap();
        let short = passages(&hits, false);
        let lines: Vec<&str> = short.lines().collect();
        assert_eq!(lines[0], "[1] 0.91 (similarity 0.43) Roof (/notes/roof.md)");
        assert!(lines[1].starts_with("    One. ") && lines[1].chars().count() <= SHOWN + 5, "{short}");
        assert_eq!((lines[2], lines[4]), ("[2] 0.10 d1", "    the same text is in d2 and 1 more"));
        let full = passages(&hits, true);
        assert!(full.lines().any(|line| line == "    One.") && full.len() > 1000, "{full}");
        assert!(!short.contains('\u{1b}') && !full.contains('\u{1b}'));
    }
}
