//! `ragstone fetch`

use ragstone_models::{embedder_source, model_source};
use ragstone_service::access;
use ragstone_service::config::Config;
use ragstone_service::data_folder::DataFolder;
use ragstone_terminal::output;
use serde_json::json;

use crate::error::Result;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only the embedding model, and the cross-encoder where one is named
    #[arg(long)]
    embedder_only: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Fetches what is not there yet, for later use without a network.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    tokio::select! {
        fetched = fetch(config, args) => fetched,
        interrupted = access::interrupted() => Err(interrupted),
    }
}

async fn fetch(config: &Config, args: Args) -> Result<()> {
    let surface = &config.surface;
    let embedder = embedder_source::find(surface.embedder.as_deref(), surface.offline).await?;
    let reranker = embedder_source::find_reranker(surface.reranker.as_deref(), surface.offline).await?;
    let model = if args.embedder_only {
        None
    } else {
        // Only the demo model is kept in a data folder, which other models do not begin.
        let data = match surface.model.as_deref().is_some_and(model_source::is_demo) {
            true => DataFolder::create(&config.data()?)?.path().to_owned(),
            false => config.data()?,
        };
        Some(model_source::fetch(surface.model.as_deref(), surface.offline, &data.join("models")).await?)
    };
    if args.json {
        let (model, reranker) = (model.map(|model| model.path), reranker.map(|reranker| reranker.path));
        return output::json(&json!({ "embedder": embedder.path, "reranker": reranker, "model": model }));
    }
    let paths = [Some(embedder.path), reranker.map(|reranker| reranker.path), model.map(|model| model.path)];
    paths.into_iter().flatten().try_for_each(|path| output::line(&path.display().to_string()))
}
