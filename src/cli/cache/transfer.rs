//! `ragstone cache export` and `import`

use std::fmt::Write;

use ragstone_env::mebibytes;
use ragstone_service::access;
use ragstone_service::api::cache::{CopiedEntries, CopyEntries, Place};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_terminal::output;

use super::filter::Filter;
use super::upkeep::watch;
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder, or file:///folder, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix
    #[arg(value_name = "FOLDER|URL")]
    place: String,
    #[command(flatten)]
    filter: Filter,
    /// Say what would be copied, and copy nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Copies into the place.
pub async fn export(config: &Config, args: Args) -> Result<()> {
    copy(config, args, "export", "exporting entries").await
}

/// Copies from the place to this machine's disk.
pub async fn import(config: &Config, args: Args) -> Result<()> {
    copy(config, args, "import", "importing entries").await
}

async fn copy(config: &Config, args: Args, verb: &str, doing: &str) -> Result<()> {
    let place = Place { url: url(&args.place, verb == "import")?, dry_run: args.dry_run };
    let body = CopyEntries { place, filter: args.filter.entries() };
    let (command, work) = (format!("cache {verb}"), async |client: &Client| watch(client, verb, &body, doing).await);
    // An import may be the first that a new folder sees.
    let done: CopiedEntries = match verb {
        "import" if !args.dry_run => access::creating(config, command.as_str(), work).await?,
        _ => access::with(config, command.as_str(), work).await?,
    };
    if args.json {
        output::json(&done)?;
    } else {
        output::text(&summary(&done, verb))?;
    }
    match done.copied.damaged {
        0 => Ok(()),
        damaged => {
            let damaged = output::count(damaged, "damaged entry was", "damaged entries were");
            let message = format!("{damaged} left out of the {verb}; the service's log says which");
            Err(Error::new(ErrorKind::Internal, message))
        }
    }
}

/// A path becomes a URL; the service may stand in another folder. A source must be there.
fn url(place: &str, must_exist: bool) -> Result<String> {
    if place.contains("://") {
        return Ok(place.to_owned());
    }
    let path = std::path::absolute(place).map_err(|error| Error::io("cannot use", place.as_ref(), error))?;
    if must_exist {
        path.metadata().map_err(|error| Error::io("cannot import", &path, error))?;
    }
    let url = reqwest::Url::from_directory_path(&path);
    let url = url.map_err(|()| Error::invalid_input(format!("{} cannot be written as a URL", path.display())))?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn summary(done: &CopiedEntries, verb: &str) -> String {
    let CopiedEntries { copied, dry_run } = done;
    let megabytes = mebibytes(copied.bytes);
    let wanted = output::count(copied.wanted, "entry", "entries");
    let mut out = if *dry_run {
        format!("would {verb} up to {wanted} ({megabytes:.1} MiB)\n")
    } else {
        format!("{verb}ed {} of {wanted} ({megabytes:.1} MiB)\n", copied.entries)
    };
    for (number, one, many) in [
        (copied.already_there, "was there already", "were there already"),
        (
            copied.refused,
            "was not taken: no room, or cheaper to compute than to load (kv_admission)",
            "were not taken: no room, or cheaper to compute than to load (kv_admission)",
        ),
        (copied.unreadable, "went meanwhile", "went meanwhile"),
        (
            copied.not_whole,
            "is nowhere bit for bit, only in 8 bits in the bucket or on the device",
            "are nowhere bit for bit, only in 8 bits in the bucket or on the device",
        ),
        (
            copied.other_models,
            "is of another model; run the command with --model",
            "are of other models; run the command with --model",
        ),
        (
            copied.other_keys,
            "is not sealed by one of `object_keys`; name its key, or set object_accept_unsealed for what has no seal",
            "are not sealed by one of `object_keys`; name their keys, or set object_accept_unsealed for what has no seal",
        ),
    ] {
        if number > 0 {
            let _ = writeln!(out, "{}", output::count(number, one, many));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_folder_is_a_url_and_a_url_stays() {
        assert_eq!(url("s3://bucket/a", true).unwrap(), "s3://bucket/a");
        let dir = tempfile::tempdir().unwrap();
        let spaced = dir.path().join("a b");
        let made = url(spaced.to_str().unwrap(), false).unwrap();
        assert!(made.starts_with("file:///") && made.ends_with("/a%20b"), "{made}");
        let error = url(spaced.to_str().unwrap(), true).unwrap_err();
        assert!(error.to_string().contains("check the path"), "{error}");
    }

    #[test]
    fn what_was_copied_is_said() {
        let done = json!({ "wanted": 5, "entries": 2, "bytes": 1_048_576, "already_there": 3, "dry_run": false });
        assert_eq!(
            summary(&serde_json::from_value(done).unwrap(), "export"),
            "exported 2 of 5 entries (1.0 MiB)\n3 were there already\n"
        );
        let foreign = json!({ "wanted": 0, "entries": 0, "other_models": 1, "not_whole": 2, "dry_run": true });
        let said = summary(&serde_json::from_value(foreign).unwrap(), "import");
        assert!(
            said.starts_with("would import up to 0 entries") && said.contains("2 are nowhere bit for bit"),
            "{said}"
        );
        assert!(said.ends_with("1 is of another model; run the command with --model\n"), "{said}");
    }
}
