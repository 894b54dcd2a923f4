//! `ragstone fetch`

use serde_json::json;

use crate::cli::output;
use crate::config::Config;
use crate::data_folder::DataFolder;
use crate::error::Result;
use crate::{embedder_source, model_source};

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
    let surface = &config.surface;
    let embedder = embedder_source::find(surface.embedder.as_deref(), surface.offline).await?;
    let reranker = embedder_source::find_reranker(surface.reranker.as_deref(), surface.offline).await?;
    let model = if args.embedder_only {
        None
    } else {
        let models = DataFolder::create(&config.data()?)?.path().join("models");
        Some(model_source::find(surface.model.as_deref(), surface.offline, &models).await?)
    };
    if args.json {
        let (model, reranker) = (model.map(|model| model.path), reranker.map(|reranker| reranker.path));
        return output::json(&json!({ "embedder": embedder.path, "reranker": reranker, "model": model }));
    }
    let paths = [Some(embedder.path), reranker.map(|reranker| reranker.path), model.map(|model| model.path)];
    paths.into_iter().flatten().try_for_each(|path| output::line(&path.display().to_string()))
}
