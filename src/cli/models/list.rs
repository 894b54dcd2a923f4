//! `ragstone models list`

use std::time::Duration;

use ragstone_env::Env;
use ragstone_service::config::Config;
use ragstone_terminal::output;
use ragstone_terminal::table::{self, bytes};

use crate::cli::models::here::{self, Here, InUse};
use crate::error::Result;

/// Prints what is here.
pub async fn run(config: &Config, json: bool) -> Result<()> {
    let used = InUse::of(config).await?;
    let models = here::all(&config.data()?, &used);
    let now = Env::from_environment()?.now_unix_ms();
    let heads = ["id", "revision", "kind", "architecture", "dtype", "size", "last use", ""];
    let none = "no models are here; `ragstone models fetch OWNER/NAME` fetches one from the Hugging Face hub";
    table::print(&models, json, &heads, |model| row(model, now), none)
}

fn row(model: &Here, now: u64) -> Vec<String> {
    let text = |text: Option<&String>| text.map_or_else(|| "-".to_owned(), |text| output::one_line(text, 60));
    let commit = model.commit.as_ref().map(|commit| commit.chars().take(12).collect::<String>());
    let revision = match (model.revisions.as_slice(), commit) {
        ([], None) => "-".to_owned(),
        ([], Some(commit)) => commit,
        (revisions, Some(commit)) => format!("{} ({commit})", revisions.join(", ")),
        (revisions, None) => revisions.join(", "),
    };
    let kind = if model.file.is_some() { "language model, GGUF" } else { model.kind.name() };
    let id = model.file.as_ref().map_or(model.id.clone(), |file| format!("{} {file}", model.id));
    let note = match (model.in_use, model.whole) {
        (true, _) => "in use",
        (false, true) => "",
        (false, false) => "not whole",
    };
    let used = model.last_used_unix_ms.map_or_else(|| "-".to_owned(), |then| ago(now.saturating_sub(then)));
    vec![
        output::one_line(&id, 100),
        output::one_line(&revision, 60),
        kind.to_owned(),
        text(model.architecture.as_ref()),
        text(model.dtype.as_ref()),
        bytes(model.bytes),
        used,
        note.to_owned(),
    ]
}

fn ago(ms: u64) -> String {
    let seconds = Duration::from_millis(ms).as_secs();
    match seconds {
        0..120 => "now".to_owned(),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_roughly() {
        let said = [0, 119_000, 120_000, 7_200_000, 172_800_000].map(ago);
        assert_eq!(said, ["now", "now", "2 min ago", "2 h ago", "2 days ago"]);
    }
}
