//! `ragstone cache warm`

use std::cell::Cell;
use std::fmt::Write;

use futures::StreamExt;
use ragstone_actors::upkeep::warm::{WarmState, WarmStatus};
use ragstone_env::mebibytes;
use ragstone_service::access;
use ragstone_service::api::List;
use ragstone_service::api::cache::{CancelledJob, WarmUp, WarmUpEstimate, WarmUpEvent};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_storage::catalog::{WarmProgress, WarmSubject};
use ragstone_terminal::progress::{Progress, Unit, tell};
use ragstone_terminal::{output, table};
use serde::Serialize;

use super::filter::Subject;
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    /// The modules of this schema instead, as ragstone pml list prints it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["collection", "document"])]
    schema: Option<String>,
    /// Of these, only this module and what it contains; may be given again
    #[arg(long = "module", value_name = "PATH", requires = "schema")]
    modules: Vec<String>,
    /// For this tenant; may be given again [default: the default tenant]
    #[arg(long = "tenant", value_name = "NAME")]
    tenants: Vec<String>,
    /// Say what would be computed, and compute nothing
    #[arg(long, conflicts_with_all = ["list", "cancel"])]
    dry_run: bool,
    /// List the warm-ups that are not finished
    #[arg(long, conflicts_with = "cancel")]
    list: bool,
    /// End a warm-up for good; what it computed stays
    #[arg(long, value_name = "JOB")]
    cancel: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Warms, lists or cancels.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    if args.list {
        return list(config, args.json).await;
    }
    if let Some(job) = args.cancel {
        return cancel(config, job, args.json).await;
    }
    let wanted = match args.schema {
        Some(schema) => Wanted::of_schema(&schema, &args.modules, &args.tenants),
        None => Wanted::of_passages(&args.subject, &args.tenants),
    };
    if args.dry_run {
        let body = WarmUp { dry_run: true, ..wanted.body.clone() };
        let estimate: WarmUpEstimate = access::with(config, access::asking("cache warm"), async |client: &Client| {
            let bar = Progress::new("looking what is missing", Unit::Nothing);
            bar.during(client.post(&["v1", "cache", "warm"], &body)).await
        })
        .await?;
        return if args.json { output::json(&estimate) } else { output::line(&estimated(&wanted, &estimate)) };
    }
    wanted.run(config, args.json).await
}

/// A warm-up that is done, for programs.
#[derive(Serialize)]
struct Done {
    id: u64,
    #[serde(flatten)]
    progress: WarmProgress,
}

/// What is to be warmed.
pub struct Wanted {
    body: WarmUp,
    shown: String,
    /// One of what is counted, and several.
    counted: [&'static str; 2],
}

impl Wanted {
    fn of_passages(subject: &Subject, tenants: &[String]) -> Self {
        let Subject { collection, document } = subject;
        let (collection, document) = (Some(collection.clone()), document.clone());
        let body = WarmUp { collection, document, tenants: Some(tenants.to_vec()), ..WarmUp::default() };
        Self { body, shown: subject.shown(), counted: ["passage", "passages"] }
    }

    /// A schema's modules: all, or these.
    pub fn of_schema(schema: &str, modules: &[String], tenants: &[String]) -> Self {
        let (modules, tenants) = (Some(modules.to_vec()), Some(tenants.to_vec()));
        let body = WarmUp { schema: Some(schema.to_owned()), modules, tenants, ..WarmUp::default() };
        let shown = format!("schema {}", output::one_line(schema, 40));
        Self { body, shown, counted: ["text of modules", "texts of modules"] }
    }

    /// Computes it, watches, and says what was done.
    pub async fn run(&self, config: &Config, json: bool) -> Result<()> {
        let (job, done) = watch(config, self).await?;
        if json {
            return output::json(&Done { id: job, progress: done });
        }
        output::line(&summary(job, self, &done))
    }

    fn count(&self, number: u64) -> String {
        output::count(number, self.counted[0], self.counted[1])
    }
}

async fn watch(config: &Config, wanted: &Wanted) -> Result<(u64, WarmProgress)> {
    let (job, passes) = (Cell::new(None), Cell::new(false));
    loop {
        let has_ended = Cell::new(false);
        let work = async |client: &Client| {
            passes.set(client.passes());
            let watched = watch_at(client, wanted, &job).await;
            has_ended.set(watched.is_err() && client.is_ending().await);
            watched
        };
        let told = |is_remote: bool| Some(interrupted(job.get()?, is_remote && !passes.get()));
        match access::with_told(config, access::asking("cache warm"), work, &told).await {
            // The job is journaled, and the folder is free: this command goes on by itself.
            Err(_) if has_ended.get() => tell(access::ENDED),
            done => return done,
        }
    }
}

/// Begins the warm-up at a service, and shows how far it is.
async fn watch_at(client: &Client, wanted: &Wanted, job: &Cell<Option<u64>>) -> Result<(u64, WarmProgress)> {
    let mut events = std::pin::pin!(client.events(&["v1", "cache", "warm"], &wanted.body).await?);
    let mut bar = None;
    while let Some(event) = events.next().await.transpose()? {
        match (event, &bar) {
            (WarmUpEvent::Begun(begun), _) => {
                let id = begun.id.unwrap_or_default();
                job.set(Some(id));
                let what = format!("warm-up {id} of {}", wanted.shown);
                // A program that reads along and a person before Ctrl-C want to know the number.
                tell(&what);
                bar = Some(Progress::new(what, Unit::Items));
            }
            (WarmUpEvent::Progress(progress), Some(bar)) => bar.set(progress.passages_done, progress.passages_total),
            (WarmUpEvent::Progress(_), None) => {}
            (WarmUpEvent::Finished(progress), _) => return Ok((job.get().unwrap_or_default(), progress)),
        }
    }
    let message = "the warm-up broke off; the next start of the service goes on with it, and so does the same command";
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// What becomes of a job when the command that began it is interrupted.
fn interrupted(job: u64, is_remote: bool) -> String {
    let becomes = if is_remote {
        "goes on in the running service: `ragstone cache warm --list` shows how far it is"
    } else {
        "is kept: the same command or the next `ragstone serve` goes on where it was"
    };
    format!("interrupted; warm-up {job} {becomes}, `ragstone cache warm --cancel {job}` ends it for good")
}

fn estimated(wanted: &Wanted, estimated: &WarmUpEstimate) -> String {
    let WarmUpEstimate { estimate, bytes_missing, .. } = estimated;
    let there = match estimate.entries_there {
        1 => "1 entry is there".to_owned(),
        entries => format!("{entries} entries are there"),
    };
    format!(
        "{}: {there}, {} would be computed ({}, {:.1} MiB)",
        wanted.count(estimate.passages),
        estimate.entries_missing,
        output::count(estimate.tokens_missing, "token", "tokens"),
        mebibytes(*bytes_missing),
    )
}

fn summary(job: u64, wanted: &Wanted, done: &WarmProgress) -> String {
    let mut text = format!(
        "warm-up {job} of {}: {}; {} computed, {} there already",
        wanted.shown,
        wanted.count(done.passages_done),
        output::count(done.entries_computed, "entry", "entries"),
        done.entries_skipped
    );
    if done.entries_failed > 0 {
        let _ = write!(text, ", {} cannot be computed (the service's log says why)", done.entries_failed);
    }
    if done.entries_declined > 0 {
        let _ = write!(
            text,
            ", {} not kept on disk, as computing them is faster than loading them (`--set kv_admission=always` keeps them)",
            done.entries_declined
        );
    }
    text
}

async fn list(config: &Config, json: bool) -> Result<()> {
    let jobs: List<WarmStatus> =
        access::with(config, "cache warm", async |client: &Client| client.get(&["v1", "cache", "jobs"]).await).await?;
    if json {
        return output::json(&jobs.data);
    }
    let table = jobs_table(&jobs.data);
    output::text(if table.is_empty() { "no warm-up is unfinished\n" } else { &table })
}

/// A row a job; nothing where there are none.
pub fn jobs_table(jobs: &[WarmStatus]) -> String {
    let cells = |WarmStatus { job, state }: &WarmStatus| {
        let text = |text: &str| output::one_line(text, 40);
        let (of, [one, several]) = match &job.subject {
            WarmSubject::Modules { schema, .. } => (format!("schema {}", text(schema)), ["text", "texts"]),
            WarmSubject::Passages { collection, document: Some(document) } => {
                (format!("{}, document {}", text(collection), text(document)), ["passage", "passages"])
            }
            WarmSubject::Passages { collection, document: None } => (text(collection), ["passage", "passages"]),
        };
        let state = match state {
            WarmState::Running => "running",
            WarmState::Waiting => "waiting",
            WarmState::OtherModel => "other model",
        };
        let passages = output::count(job.progress.passages_total, one, several);
        let done = format!("{} of {passages}", job.progress.passages_done);
        vec![job.id.to_string(), of, state.to_owned(), done]
    };
    if jobs.is_empty() {
        return String::new();
    }
    table::table(&["warm-up", "of", "state", "done"], &jobs.iter().map(cells).collect::<Vec<_>>())
}

async fn cancel(config: &Config, job: u64, json: bool) -> Result<()> {
    let id = job.to_string();
    let path = ["v1", "cache", "jobs", &id];
    let gone: CancelledJob =
        access::with(config, "cache warm", async |client: &Client| client.delete(&path).await).await?;
    if json { output::json(&gone) } else { output::line(&format!("cancelled warm-up {job}; what it computed is kept")) }
}

#[cfg(test)]
mod tests {
    use ragstone_storage::catalog::WarmJob;
    use ragstone_storage::key::Fingerprint;

    use super::*;

    #[test]
    fn a_row_a_job() {
        let job = |id, subject, passages_done, passages_total| WarmJob {
            id,
            fingerprint: Fingerprint([0; 32]),
            subject,
            tenants: Vec::new(),
            created_unix_ms: 0,
            progress: WarmProgress { passages_done, passages_total, ..WarmProgress::default() },
        };
        let passages = WarmSubject::Passages { collection: "law".into(), document: Some("it's".into()) };
        let jobs = [WarmStatus { job: job(7, passages, 3, 9), state: WarmState::OtherModel }];
        let rows = "warm-up  of                  state        done\n      7  law, document it's  other model  3 of 9 passages\n";
        assert_eq!(jobs_table(&jobs), rows);
        assert_eq!(jobs_table(&[]), "");
        let modules = WarmSubject::Modules { schema: "trip".into(), modules: Vec::new(), version: String::new() };
        let jobs = [WarmStatus { job: job(8, modules, 0, 1), state: WarmState::Running }];
        assert!(jobs_table(&jobs).ends_with("      8  schema trip  running  0 of 1 text\n"), "{}", jobs_table(&jobs));
        let done = WarmProgress { passages_done: 3, entries_computed: 2, entries_failed: 1, ..WarmProgress::default() };
        let subject = Wanted::of_passages(&Subject { collection: "law".into(), document: None }, &[]);
        let text = summary(7, &subject, &done);
        assert!(
            text.starts_with("warm-up 7 of law: 3 passages; 2 entries computed, 0 there already, 1 cannot"),
            "{text}"
        );
        let done = WarmProgress { entries_declined: 4, ..done };
        let text = summary(7, &subject, &done);
        assert!(text.contains("4 not kept on disk") && text.contains("kv_admission=always"), "{text}");
    }

    #[test]
    fn who_interrupts_hears_what_becomes_of_the_job() {
        let text = interrupted(7, true);
        assert!(text.contains("warm-up 7 goes on in the running service") && text.contains("--cancel 7"), "{text}");
        let text = interrupted(7, false);
        assert!(text.contains("the same command") && text.contains("--cancel 7"), "{text}");
    }
}
