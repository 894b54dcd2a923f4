//! `ragstone ingest --list` and `--cancel`: ingests that are not finished.

use std::fmt::Write;

use ragstone_actors::upkeep::ingests::{IngestProgress, IngestState, UnfinishedIngest};
use ragstone_documents::shown;
use ragstone_service::access;
use ragstone_service::api::List;
use ragstone_service::api::cache::CancelledJob;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_terminal::progress::left;
use ragstone_terminal::{output, table};

use crate::error::Result;

/// Lists them.
pub async fn list(config: &Config, json: bool) -> Result<()> {
    let ingests: List<UnfinishedIngest> =
        access::with(config, "ingest", async |client: &Client| client.get(&["v1", "ingests"]).await).await?;
    if json {
        return output::json(&ingests.data);
    }
    let rows = ingests_table(&ingests.data);
    output::text(if rows.is_empty() { "no ingest is unfinished\n" } else { &rows })
}

/// Ends one for good.
pub async fn cancel(config: &Config, job: u64, json: bool) -> Result<()> {
    let id = job.to_string();
    let path = ["v1", "ingests", &id];
    let gone: CancelledJob = access::with(config, "ingest", async |client: &Client| client.delete(&path).await).await?;
    if json { output::json(&gone) } else { output::line(&format!("cancelled ingest {job}; what it stored is kept")) }
}

/// A row an ingest, and below them why some failed; nothing where there are none.
pub fn ingests_table(ingests: &[UnfinishedIngest]) -> String {
    if ingests.is_empty() {
        return String::new();
    }
    let cells = |ingest: &UnfinishedIngest| {
        let UnfinishedIngest { id, collection, paths, state, files_done, files_total, progress, .. } = ingest;
        let state = match state {
            IngestState::Running => "running",
            IngestState::Waiting => "waiting",
            IngestState::Interrupted => "interrupted",
            IngestState::Failed => "failed",
            IngestState::Parked => "parked",
        };
        let done = match files_total {
            Some(total) => format!("{files_done} of {}", output::count(*total, "file", "files")),
            None => output::count(*files_done, "file", "files"),
        };
        let within = progress.map_or_else(String::new, within);
        let paths: Vec<String> = paths.iter().map(|path| shown(path)).collect();
        let [collection, paths] = [output::one_line(collection, 40), output::one_line(&paths.join(" "), 160)];
        vec![id.to_string(), collection, state.to_owned(), format!("{done}{within}"), paths]
    };
    let rows: Vec<_> = ingests.iter().map(cells).collect();
    let mut out = table::table(&["ingest", "into", "state", "done", "of"], &rows);
    for UnfinishedIngest { id, state, error, .. } in ingests {
        match (state, error) {
            (IngestState::Failed, Some(why)) => {
                let why = output::one_line(why, 500);
                let _ = writeln!(
                    out,
                    "ingest {id} failed: {why}; the next start goes on with it, and so does `ragstone ingest` with its paths"
                );
            }
            (IngestState::Interrupted, _) => {
                let _ = writeln!(
                    out,
                    "ingest {id} is interrupted: the next start goes on with it, and so does `ragstone ingest` with its paths"
                );
            }
            (IngestState::Parked, _) => {
                let _ = writeln!(
                    out,
                    "ingest {id} is parked, because it ended ragstone again and again: `ragstone ingest` with its paths tries once more"
                );
            }
            _ => {}
        }
    }
    out
}

/// How far it is within its files.
fn within(IngestProgress { bytes_done, bytes_total, passages, left_s }: IngestProgress) -> String {
    let share = (bytes_total > 0).then(|| format!("{:.0} %", 100.0 * bytes_done as f64 / bytes_total as f64));
    let passages = (passages > 0).then(|| output::count(passages, "passage", "passages"));
    let told = [share, passages, left_s.map(|left_s| left(left_s as f64))];
    told.into_iter().flatten().map(|part| format!(", {part}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_an_ingest_and_why_it_failed() {
        let ingest = |id, state, files_done, files_total| UnfinishedIngest {
            id,
            collection: "law".into(),
            paths: vec!["/a".into(), "/b\u{1b}".into()],
            created_unix_ms: 0,
            state,
            files_done,
            files_total,
            progress: None,
            error: (state == IngestState::Failed).then(|| "the disk is full".into()),
        };
        let text =
            ingests_table(&[ingest(7, IngestState::Running, 3, Some(9)), ingest(12, IngestState::Failed, 1, None)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ingest  into  state    done          of");
        assert_eq!(lines[1], "     7  law   running  3 of 9 files  /a /b\\u{1b}");
        assert_eq!(lines[2], "    12  law   failed   1 file        /a /b\\u{1b}");
        assert!(lines[3].starts_with("ingest 12 failed: the disk is full; the next start"), "{text}");
        let interrupted = ingests_table(&[ingest(7, IngestState::Interrupted, 0, None)]);
        assert!(interrupted.contains("ingest 7 is interrupted: the next start goes on"), "{interrupted}");
        let parked = ingests_table(&[ingest(7, IngestState::Parked, 0, None)]);
        assert!(parked.contains("ingest 7 is parked"), "{parked}");
        assert_eq!(ingests_table(&[]), "");
        let progress = IngestProgress { bytes_done: 3, bytes_total: 8, passages: 812, left_s: Some(40) };
        let large = UnfinishedIngest { progress: Some(progress), ..ingest(7, IngestState::Running, 0, Some(1)) };
        let text = ingests_table(&[large]);
        assert!(text.contains("  0 of 1 file, 38 %, 812 passages, about 40 s left  "), "{text}");
    }
}
