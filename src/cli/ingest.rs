//! `ragstone ingest`

pub mod list;
mod told;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use ragstone_documents::{RecordFields, SUPPORTED, check_given, shown};
use ragstone_env::Stopwatch;
use ragstone_service::access::{self, interrupted};
use ragstone_service::api::collections::Ingest;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_service::ingest::{IngestEvent, IngestReport, NotTaken, NotTakenKind, told_apart};
use ragstone_service::watch::Watch;
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit, tell};
use serde::Serialize;

use self::told::{Alone, NotTakenFiles, name_not_taken};
use crate::cli::metadata;
use crate::error::{Error, ErrorKind, Result};

/// Between two looks at folders that are watched, at the least.
const LOOK: Duration = Duration::from_secs(1);
/// Where a look takes long, this many times as long: a twentieth of a processor is enough for it.
const IDLE_SHARE: u32 = 20;
/// Changed files that are named in one request.
const MOST_NAMED: usize = 1000;

#[derive(Debug, clap::Args)]
#[command(after_help = format!("Reads {SUPPORTED}"))]
pub struct Args {
    /// Files and folders of the kinds below; or addresses: of a web page (with the pages below its folder), a feed, a
    /// file, a Git repository (https://….git, git@host:owner/name), or a bucket (s3://bucket/prefix); what is already there unchanged is left alone
    #[arg(required_unless_present_any = ["list", "cancel"], value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The collection to add to; created where it is missing. TENANT/NAME names a tenant's
    #[arg(long, value_name = "NAME", default_value = "default")]
    collection: String,
    /// Note this with every document, for filters: KEY=VALUE; the same KEY again makes a list
    #[arg(long, value_name = "KEY=VALUE", value_parser = metadata::entry)]
    metadata: Vec<(String, String)>,
    /// The field that is the text of records, of JSON, CSV, Parquet and Arrow files; several times: one below the other. A.B is the field B within A
    #[arg(long, value_name = "FIELD")]
    text_field: Vec<String>,
    /// The field that is their title
    #[arg(long, value_name = "FIELD")]
    title_field: Option<String>,
    /// The field that is their id
    #[arg(long, value_name = "FIELD")]
    id_field: Option<String>,
    /// The most pages of a site [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pages: Option<u32>,
    /// How many links from the named page a site is read; 0: that page alone [default: however many]
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    /// Remove documents, and their KV, of files that were in these folders, or at these addresses, and are gone
    #[arg(long)]
    prune: bool,
    /// Go on, and follow changes and deletions (as --prune does) until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// With --watch: how often addresses are looked at again, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 15, requires = "watch", value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// List the ingests that are not finished
    #[arg(long, conflicts_with_all = ["paths", "prune", "watch", "cancel", "metadata", "text_field", "title_field", "id_field", "pages", "depth"])]
    list: bool,
    /// End an unfinished ingest for good; what it stored stays
    #[arg(long, value_name = "INGEST", conflicts_with_all = ["paths", "prune", "watch", "metadata", "text_field", "title_field", "id_field", "pages", "depth"])]
    cancel: Option<u64>,
    /// Print one JSON object; with --watch, one for each change
    #[arg(long)]
    json: bool,
}

/// What an ingest came to, for programs.
#[derive(Serialize)]
struct Ingested<'a> {
    #[serde(flatten)]
    report: &'a IngestReport,
    /// Files that were not taken whole.
    skipped: &'a [NotTaken],
    /// Files of other kinds, by the endings of their names.
    left_alone: &'a BTreeMap<String, usize>,
    /// Hidden files and folders, which were not looked into.
    hidden: usize,
}

/// What is known of an ingest on its way.
#[derive(Default)]
struct Progressed {
    /// The number by which it is cancelled.
    id: Cell<Option<u64>>,
    /// Files that are done, and all of them.
    far: Cell<Option<(usize, usize)>>,
}

/// Ingests, after what earlier commands left unfinished. Files that are not taken whole are named; the exit status is 1 where nothing was
/// taken.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    if args.list {
        return list::list(config, args.json).await;
    }
    if let Some(job) = args.cancel {
        return list::cancel(config, job, args.json).await;
    }
    let paths = args.paths.iter().map(|path| absolute(path)).collect::<Result<Vec<_>>>()?;
    let metadata = metadata::entries(&args.metadata);
    check_given(&metadata)?;
    let fields =
        RecordFields { text: args.text_field.clone(), title: args.title_field.clone(), id: args.id_field.clone() };
    fields.check()?;
    let pages = args.pages.map(|pages| pages as usize);
    let wanted = Ingest { paths, prune: args.prune, only: None, metadata, fields, pages, depth: args.depth };
    if args.watch {
        return follow(config, &args, wanted).await;
    }
    name_not_taken(&ingest(config, &args, &wanted).await?)
}

/// Ingests, and then whatever changes, until somebody ends it.
async fn follow(config: &Config, args: &Args, mut wanted: Ingest) -> Result<()> {
    wanted.prune = true;
    let (addresses, local) = told_apart(&wanted.paths)?;
    let mut watch = Watch::begin(local.clone())?;
    report(ingest(config, args, &wanted).await?);
    let all = wanted.paths.clone();
    let every = Duration::from_secs(60) * args.every;
    let mut fetched = Stopwatch::start();
    match addresses.is_empty() {
        true => tell("watching; Ctrl-C ends it"),
        false => tell(format_args!("watching, addresses every {} min; Ctrl-C ends it", args.every)),
    }
    let mut last_failure = String::new();
    // One for all looks: a signal between two of them is heard by the next.
    let mut ended = std::pin::pin!(interrupted());
    loop {
        let looked = Stopwatch::start();
        let looking = tokio::task::spawn_blocking(move || {
            let changes = watch.look();
            (watch, changes)
        });
        let changes;
        (watch, changes) = tokio::select! {
            looked = looking => looked.map_err(|error| Error::internal(format!("a look at the files broke off: {error}")))?,
            _ = &mut ended => return Ok(()),
        };
        let changes = changes?;
        let pause = LOOK.max(looked.elapsed() * IDLE_SHARE);
        let is_due = !addresses.is_empty() && fetched.elapsed() >= every;
        if !changes.is_empty() || is_due {
            // So many are read with all others: a request has a bound. What is fetched has no names before.
            wanted.only = Some(changes.files()).filter(|files| files.len() <= MOST_NAMED && !is_due);
            wanted.paths = if is_due { all.clone() } else { local.clone() };
            if is_due {
                fetched = Stopwatch::start();
            }
            match ingest(config, args, &wanted).await {
                Ok(skipped) => {
                    watch.ingested(changes);
                    last_failure.clear();
                    report(skipped);
                }
                Err(error) if matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::NotFound) => return Err(error),
                // A service that restarts, a store that another command has open: it is tried again, and told once.
                Err(error) => {
                    let failure = format!("ragstone: {error}; trying again");
                    if failure != last_failure {
                        tell(&failure);
                        last_failure = failure;
                    }
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = &mut ended => return Ok(()),
        }
    }
}

/// Names the files that were not taken whole, and goes on.
fn report(not_taken: NotTakenFiles) {
    if let Err(error) = name_not_taken(&not_taken) {
        tell(format_args!("ragstone: {error}"));
    }
}

/// What a service told of an ingest, to its end.
struct Told {
    report: IngestReport,
    skipped: Vec<NotTaken>,
    alone: Alone,
}

/// Ingests once, and prints what it came to; which files were not taken whole, and why.
async fn ingest(config: &Config, args: &Args, wanted: &Ingest) -> Result<NotTakenFiles> {
    let (far, passes) = (Progressed::default(), Cell::new(false));
    let told = loop {
        let has_ended = Cell::new(false);
        let work = async |client: &Client| {
            passes.set(client.passes());
            let listened = listen(client, args, wanted, &far).await;
            if let Err((_, is_stop)) = &listened {
                has_ended.set(client.passes() && *is_stop || client.is_ending().await);
            }
            listened.map_err(|(error, _)| error)
        };
        let what_now =
            |is_remote: bool| Some(told::interrupted((is_remote, passes.get()), far.id.get(), far.far.get()));
        match access::creating_job(config, "ingest", work, &what_now).await {
            // The job is journaled, and the folder is free: this command goes on by itself.
            Err(error) if has_ended.get() && error.kind() == ErrorKind::Unavailable => {
                tell(access::ENDED);
            }
            done => break done?,
        }
    };
    let Told { report, skipped, alone } = told;
    let hidden = alone.hidden;
    if args.json {
        output::json(&Ingested { report: &report, skipped: &skipped, left_alone: &alone.kinds, hidden })?;
    }
    let (left_out, files): (Vec<_>, Vec<_>) = skipped.into_iter().partition(|file| file.kind == NotTakenKind::LeftOut);
    let not_taken = NotTakenFiles { paths: wanted.paths.clone(), report, files, alone };
    if !args.json && !not_taken.is_all() {
        let report = &not_taken.report;
        output::line(&told::summary(report, &args.collection))?;
        let others =
            [told::left_out(&left_out), told::others(&not_taken.alone), told::hidden_ones(hidden), told::gone(report)];
        for line in others.into_iter().flatten().chain(told::kept(report)) {
            output::line(&line)?;
        }
    }
    Ok(not_taken)
}

/// Begins the ingest at a service, and shows how far it is. Of an error it tells whether it is a stop of the service.
async fn listen(
    client: &Client,
    args: &Args,
    wanted: &Ingest,
    Progressed { id: number, far }: &Progressed,
) -> std::result::Result<Told, (Error, bool)> {
    let path = ["v1", "collections", &args.collection, "ingest"];
    let is_other = |error: Error| (error, false);
    let mut events = std::pin::pin!(client.events(&path, wanted).await.map_err(is_other)?);
    let ingesting = || format!("ingesting into {}", args.collection);
    let bar = Progress::new(ingesting(), Unit::Estimated);
    let (mut skipped, mut alone, mut waits_for) = (Vec::new(), Alone::default(), String::new());
    while let Some(event) = bar.during(events.next()).await.transpose().map_err(is_other)? {
        match event {
            IngestEvent::Begun { id } => number.set(Some(id)),
            IngestEvent::Progress { files_done, files_total, passages_embedded, new, left_s, .. } => {
                far.set(Some((files_done, files_total)));
                // What moves while one large file is embedded.
                bar.describe(match passages_embedded {
                    0 => ingesting(),
                    1 => format!("{}, 1 passage", ingesting()),
                    passages => format!("{}, {passages} passages", ingesting()),
                });
                bar.estimate(left_s.map(|left_s| left_s as f64));
                bar.share(told::share(new));
                bar.set(files_done as u64, files_total as u64);
            }
            IngestEvent::Fetching { address, files, bytes, waiting } => {
                bar.describe(told::fetching(&address, files, bytes, waiting));
            }
            IngestEvent::Skipped(file) => skipped.push(file),
            IngestEvent::Parked { collection, paths } => {
                tell(format_args!("ragstone: {}", told::parked(&collection, &paths)));
            }
            IngestEvent::LeftAlone { kinds, hidden, files } => alone = Alone { kinds, hidden, files },
            IngestEvent::Waiting { collection, files_done, files_total } => {
                bar.describe(told::waits(&args.collection, &collection, (files_done, files_total)));
                if collection != waits_for {
                    tell(told::waiting(&collection, (files_done, files_total)));
                    waits_for = collection;
                }
            }
            IngestEvent::Cancelled { by, files_done, files_total } => {
                // Not to be tried again.
                let message = told::cancelled(by, (files_done, files_total));
                return Err(is_other(Error::new(ErrorKind::NotFound, message)));
            }
            IngestEvent::Stopped { files_done, files_total } => {
                far.set(Some((files_done, files_total)));
                let message =
                    format!("the service stops; {}, and it goes on when it starts again", told::so_far(far.get()));
                return Err((Error::new(ErrorKind::Unavailable, message), true));
            }
            IngestEvent::Finished(report) => {
                return Ok(Told { report, skipped, alone });
            }
        }
    }
    let message = "the ingest broke off; run the command again, it goes on where it was";
    Err(is_other(Error::new(ErrorKind::Unavailable, message)))
}

/// Where a path leads to; an address is what it is. It is journaled and sent as JSON, which has no other bytes than UTF-8.
fn absolute(path: &Path) -> Result<PathBuf> {
    if !told_apart(&[path.to_owned()])?.0.is_empty() {
        return Ok(path.to_owned());
    }
    let path = path.canonicalize().map_err(|error| Error::io("cannot ingest", path, error))?;
    if path.to_str().is_none() {
        let message =
            format!("cannot ingest {}: its name is not valid UTF-8; rename it, or name its folder", shown(&path));
        return Err(Error::invalid_input(message));
    }
    Ok(path)
}
