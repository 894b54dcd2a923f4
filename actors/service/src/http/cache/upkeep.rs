//! What takes a while and tells how far it is: verification and garbage collection. For the data folder's owner.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use ragstone_corpus::Pace;
use ragstone_storage::tier::Tier;
use ragstone_storage::tier::object::CollectOptions;
use serde::Serialize;
use tokio::sync::mpsc;

use super::entries::blocking;
use crate::api::cache::{CollectGarbage, CollectedGarbage, Verified, Verify, Watched};
use crate::error::{Error, Result};
use crate::http::answer::{HEARTBEAT, beating, comment, event};
use crate::http::body::Incoming;
use crate::http::error::Answered;
use crate::http::error::body;
use crate::http::fields::Fields;
use crate::http::state::State;
use crate::lanes::Work;

/// Reads every frame of every tier, or of one, and compares it with its checksum; removes what is damaged:
/// `{"tier"?, "dry_run"?}`. Without a tier, the corpus's files, too, of which nothing is removed. Ends early if the caller goes away.
pub async fn verify(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let ragstone = state.opened()?.ragstone.clone();
    let (store, runtime) = (ragstone.store().clone(), state.runtime());
    let Verify { tier, dry_run } = Fields::whole(incoming).await?;
    let tiers = tier.map_or(Tier::ALL.to_vec(), |tier| vec![tier]);
    let verified = watched((&state, &request), move |tell| {
        let status = store.status();
        let held = [(Tier::Host, Some(status.host)), (Tier::Disk, Some(status.disk)), (Tier::Object, status.object)];
        let wanted = held.into_iter().filter(|(tier, _)| tiers.contains(tier));
        let total: u64 = wanted.filter_map(|(_, held)| held).map(|held| held.entries).sum();
        let report = store.verify(&tiers, dry_run, &mut |report| tell(report.entries, total))?;
        let mut tell = |files| tell(total + files, total + files);
        let corpus = match tier {
            Some(_) => None,
            None => Some(runtime.block_on(ragstone.corpus().verify(Pace::Fast, &mut tell))?),
        };
        Ok(Verified { report, corpus, dry_run })
    });
    verified.await
}

/// Frees what deleted text and entries still take on disk, and takes out of the bucket what is older than a time, too much, or what
/// no key leads to: `{"ttl_s"?, "max_bytes"?, "dry_run"?}`. Nothing of the last hour leaves the bucket, so that other
/// nodes' writing is safe.
pub async fn collect(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let ragstone = state.opened()?.ragstone.clone();
    let CollectGarbage { ttl_s, max_bytes, dry_run } = Fields::whole(incoming).await?;
    let ttl = ttl_s.map(Duration::from_secs).or_else(|| ragstone.settings().object_ttl());
    if ragstone.object().is_none() && (ttl.is_some() || max_bytes.is_some()) {
        let message =
            "there is no object tier: `ttl_s` and `max_bytes` bound a bucket; the disk is bounded by disk_bytes";
        return Err(Error::invalid_input(message).into());
    }
    let collecting = async move {
        let library = ragstone.library().clone();
        let collected = blocking(move || {
            let store = ragstone.store();
            let status = store.status();
            let garbage = status.disk_file_bytes.saturating_sub(status.disk.bytes);
            let freed = if dry_run { garbage } else { store.compact_disk()? };
            let options = CollectOptions { ttl, max_bytes, dry_run, ..CollectOptions::default() };
            let object = ragstone.object().map(|object| object.collect(&options)).transpose()?;
            Ok(CollectedGarbage { disk_freed_bytes: freed, object, dry_run })
        });
        let collected = collected.await?;
        if !dry_run {
            // Behind it: what it has rewritten need not be rewritten again.
            library.vacuum_all().await?;
        }
        Ok::<_, Error>(collected)
    };
    Ok(HttpResponse::Ok().json(state.run(&request, Work::Upkeep, collecting).await??))
}

/// Runs `work` on a thread that may wait, and sends `{"progress": {"done", "total"}}` now and then and `{"finished": …}` in
/// the end. `work` hears whether anybody still listens.
pub(super) async fn watched<R: Serialize + Send + 'static>(
    (state, request): (&State, &HttpRequest),
    work: impl FnOnce(&mut (dyn FnMut(u64, u64) -> bool + Send)) -> Result<R> + Send + 'static,
) -> Answered {
    let place = state.place(request, Work::Upkeep).await?;
    let (events, received) = mpsc::channel::<Bytes>(16);
    tokio::task::spawn_blocking(move || {
        let mut tell = |done: u64, total: u64| {
            // Nobody has to see every step.
            let _ = events.try_send(event(&Watched::<R>::Progress { done, total }));
            !events.is_closed()
        };
        let done = work(&mut tell);
        drop(place);
        let _ = events
            .blocking_send(done.map_or_else(|error| event(&body(&error)), |done| event(&Watched::Finished(done))));
    });
    let stream = futures::stream::unfold(received, |mut received| async move {
        let data = received.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(data), received))
    });
    let stream = beating(stream, comment(), HEARTBEAT);
    Ok(HttpResponse::build(StatusCode::OK).content_type("text/event-stream; charset=utf-8").streaming(stream))
}
