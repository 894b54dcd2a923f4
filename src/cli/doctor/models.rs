//! The language model, the embedding model and the cross-encoder, without loading or fetching either.

use ragstone_actors::Settings;
use ragstone_actors::models::language_model::Device;
use ragstone_env::mebibytes;
use ragstone_kernels::files::ModelFiles;
use ragstone_kernels::model::weights_in_memory;
use ragstone_models::embedder_source;
use ragstone_models::hub::{self, HubId};
use ragstone_models::model_source::{self, DEFAULT_ID, DEMO_ID, default_model};
use ragstone_service::api::List;
use ragstone_service::api::models::ServedModel;
use ragstone_service::client::Client;
use ragstone_service::config::{Config, Surface};
use std::path::Path;

use super::finding::Finding;
use crate::error::Result;

/// What is to be known of the language model: the finding, and what its weights will take of memory, in bytes.
pub async fn language(surface: &Surface, settings: &Settings) -> (Finding, u64) {
    let what = "model";
    if settings.upstream().is_set() {
        return (engine(settings).await, 0);
    }
    let setting = surface.model.as_deref().unwrap_or(DEFAULT_ID);
    if model_source::is_demo(setting) {
        let advice = "it knows the sample corpus examples/world and nothing else: leave `model` out to have a real one, or name one";
        return (Finding::warning(what, format!("{DEMO_ID}, the one inside this program"), advice), 0);
    }
    if setting == DEFAULT_ID && default_model::here().is_none() {
        return (default_to_fetch(what, surface), 0);
    }
    if is_to_fetch(setting) {
        return (to_fetch(what, setting, surface.offline, "ragstone fetch"), 0);
    }
    // It is here; nothing is unpacked into the folder.
    let read = async {
        let folder = model_source::find(Some(setting), true, Path::new("")).await?;
        let with =
            model_source::adapter::in_words(surface.adapter.as_deref(), &folder, settings.device == Device::Cpu)?;
        Ok((format!("{}{with}", folder.id), read(&folder.path, settings)?))
    };
    match read.await {
        Err(error) => (Finding::of(what, &error as &crate::error::Error), 0),
        Ok((id, Read { architecture, context, bytes })) => {
            let found =
                format!("{id}: {architecture}, {context} tokens of context, {:.0} MiB in memory", mebibytes(bytes));
            (Finding::ok(what, found), bytes)
        }
    }
}

/// The engine elsewhere that answers.
async fn engine(settings: &Settings) -> Finding {
    match settings.upstream().look().await {
        Ok(found) => Finding::ok("engine", found),
        Err(error) => Finding::of("engine", &error),
    }
}

/// The default model, which is not here: a start goes on without it only where nobody named it.
fn default_to_fetch(what: &'static str, surface: &Surface) -> Finding {
    let found = format!("{DEFAULT_ID} is not on this machine yet");
    let advice = match surface.offline {
        true => default_model::Missing::offline().note(),
        false => "the next start fetches it (93 MB), or `ragstone fetch` does; where it cannot be fetched, the demo model answers, \
                  which knows the sample corpus alone"
            .to_owned(),
    };
    match surface.offline && surface.model.is_some() {
        true => Finding::problem(what, found, advice),
        false => Finding::warning(what, found, advice),
    }
}

/// What the running service answers with, which its own settings said when it started; `None` while it loads.
pub async fn served(client: &Client) -> Option<Finding> {
    let what = "answers";
    let models: List<ServedModel> = client.get(&["v1", "models"]).await.ok()?;
    let model = models.data.into_iter().next()?;
    let note = model.ragstone.and_then(|facts| facts.note);
    Some(match note {
        Some(note) => Finding::warning(what, format!("{} is the service's model", model.id), note),
        None => Finding::ok(what, format!("{} is the service's model", model.id)),
    })
}

struct Read {
    architecture: &'static str,
    context: usize,
    bytes: u64,
}

/// What a start reads before the weights.
fn read(path: &Path, settings: &Settings) -> Result<Read> {
    let files = ModelFiles::open(path)?;
    let config = files.config()?;
    files.tokenizer()?.check_fits(&config)?;
    files.chat_template()?;
    let bytes = weights_in_memory(&config, &files.shapes()?, &settings.load_options());
    Ok(Read { architecture: config.architecture.class_name(), context: config.max_positions, bytes })
}

/// The embedding model.
pub async fn embedding(config: &Config) -> Finding {
    let (what, surface) = ("embedder", &config.surface);
    let remembered = config.data().ok().and_then(|data| embedder_source::remembered(&data));
    if let Some(folder) = remembered.filter(|_| surface.embedder.is_none() && !embedder_source::is_default_here()) {
        return Finding::ok(what, format!("{} in {}, as at the last start", folder.id, folder.path.display()));
    }
    match surface.embedder.as_deref() {
        None if !embedder_source::is_default_here() => {
            let mut finding =
                to_fetch(what, embedder_source::DEFAULT_ID, surface.offline, "ragstone fetch --embedder-only");
            if let (Some(advice), Ok(folder)) = (&mut finding.advice, embedder_source::cache_folder()) {
                advice.push_str(&format!(
                    "; without a network, copy its folder to {}, or name it with --embedder FOLDER",
                    folder.display()
                ));
            }
            finding
        }
        Some(setting) if is_to_fetch(setting) => {
            to_fetch(what, setting, surface.offline, "ragstone fetch --embedder-only")
        }
        setting => match embedder_source::find(setting, true).await {
            Ok(folder) => Finding::ok(what, format!("{} in {}", folder.id, folder.path.display())),
            Err(error) => Finding::of(what, &error),
        },
    }
}

/// The cross-encoder, where one is named.
pub async fn reranker(surface: &Surface) -> Option<Finding> {
    let (what, setting) = ("reranker", surface.reranker.as_deref()?);
    if is_to_fetch(setting) {
        return Some(to_fetch(what, setting, surface.offline, "ragstone fetch"));
    }
    match embedder_source::find_reranker(Some(setting), true).await {
        Ok(folder) => folder.map(|folder| Finding::ok(what, format!("{} in {}", folder.id, folder.path.display()))),
        Err(error) => Some(Finding::of(what, &error)),
    }
}

/// Whether a setting names a repository of the hub that is not in its cache.
fn is_to_fetch(setting: &str) -> bool {
    !Path::new(setting).exists() && HubId::parse(setting).is_some_and(|id| hub::cached(&id).is_none())
}

fn to_fetch(what: &'static str, id: &str, offline: bool, command: &str) -> Finding {
    let found = format!("{id} is not on this machine yet");
    if hub::is_offline(offline) {
        let advice = format!("the network is switched off: run `{command}` once without --offline and HF_HUB_OFFLINE");
        return Finding::problem(what, found, advice);
    }
    Finding::warning(what, found, format!("the next start fetches it, or `{command}` does"))
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[tokio::test]
    async fn a_model_that_cannot_be_read_is_a_problem_and_one_to_fetch_a_word() {
        let dir = tempfile::tempdir().unwrap();
        let state = async |model: &str, offline| {
            let surface = Surface { model: Some(model.into()), offline, ..Surface::default() };
            language(&surface, &Settings::default()).await.0.state
        };
        let folder = dir.path().to_str().unwrap();
        assert_eq!(state(folder, true).await, State::Problem, "no config.json");
        std::fs::write(dir.path().join("config.json"), "{").unwrap();
        assert_eq!(state(folder, true).await, State::Problem, "no JSON");
        assert_eq!(state("nobody/has-this-model", true).await, State::Problem);
        assert_eq!(state("nobody/has-this-model", false).await, State::Warning);
        assert_eq!(state("demo", true).await, State::Warning);
    }
}
