//! `ragstone settings`

use ragstone_service::client::Client;
use ragstone_service::config::{Config, table};
use ragstone_service::data_folder::DataFolder;
use ragstone_terminal::output;
use serde_json::Value;

use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only those that something gave
    #[arg(long)]
    given: bool,
    /// Print one JSON array
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print the tables of docs/settings.md: what each is, and its default
    #[arg(long)]
    markdown: bool,
}

/// Prints every setting with its value and its source: the running service's, or those that one started like this would have.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    if args.markdown {
        return output::text(&table::markdown(&config.listing));
    }
    let running = running(config).await?;
    let is_running = running.is_some();
    let own = || serde_json::to_value(&config.listing).map_err(|error| Error::internal(error.to_string()));
    let mut settings = match running {
        Some(settings) => settings,
        None => own()?,
    };
    if let Some(settings) = settings.as_array_mut().filter(|_| args.given) {
        settings.retain(|setting| !setting["source"].is_null());
    }
    if args.json {
        return output::json(&settings);
    }
    let of =
        if is_running { "Those of the running service." } else { "Those that a service started like this would have." };
    output::text(&format!("{of} Set one by --set KEY=VALUE, its variable, or in the file of --config.\n\n"))?;
    settings.as_array().into_iter().flatten().try_for_each(|setting| output::text(&described(setting)))
}

/// Those of the data folder's service, if one runs.
async fn running(config: &Config) -> Result<Option<Value>> {
    let path = config.data()?;
    let record = if DataFolder::is_used(&path) { DataFolder::existing(&path)?.service_record() } else { None };
    let Some(record) = record else { return Ok(None) };
    let client = Client::new(&record.address, &record.token)?;
    if !client.is_process(record.pid).await {
        return Ok(None);
    }
    Ok(Some(client.get::<Value>(&["v1", "settings"]).await?["data"].take()))
}

fn described(setting: &Value) -> String {
    let text = |name: &str| setting[name].as_str().unwrap_or_default();
    let key = text("key");
    let shown = |value: &Value| output::one_line(&table::shown(key, value).replace('`', ""), 200);
    let usual = setting["default_text"].as_str();
    let usual = usual.map_or_else(|| shown(&setting["default"]), |usual| output::one_line(usual, 200));
    let from = match setting["source"].as_str() {
        Some(source) => format!("{}  ({}; default: {usual})", shown(&setting["value"]), output::one_line(source, 200)),
        None => format!("{usual}  (default)"),
    };
    let names = match setting["flag"].as_str() {
        Some(flag) => format!("{flag}, {}", text("variable")),
        None => text("variable").to_owned(),
    };
    format!("{key} = {from}\n    {}\n    {names}\n", output::one_line(text("about"), 400))
}
