//! `GET /v1/events`: what happens in the service, for operators and, of what is its tenant's, for anybody with a key.

use std::collections::BTreeMap;
use std::time::Duration;

use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use ragstone_actors::Ragstone;
use ragstone_actors::admission::turns::Place;
use ragstone_actors::report::events::{Happened, JobNews, JobState, JobSubject, News, Watcher};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::answer::{HEARTBEAT, comment, event};
use super::identity::Visitor;
use crate::api::cache::Plan;
use crate::api::events::{Evictions, JobEvent, JobEventState, Missed, ServiceEvent, Tiers};
use crate::http::error::Answered;
use crate::http::state::{State, caller};

/// Events that wait for a client that reads slowly; what comes beyond waits where it happened, and is missed at last.
const SENT_AHEAD: usize = 16;
/// How long the tiers may take to tell what they hold at the beginning.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// Sends events until the client leaves or does not read, its key is revoked, or the service stops.
pub async fn watch(state: web::Data<State>, request: HttpRequest) -> Answered {
    let ragstone = state.opened()?.ragstone.clone();
    let visitor = Visitor::of(&request)?;
    let place = state.watchers.take(caller(&request))?;
    // Before the first look, so that nothing falls between the two.
    let watcher = ragstone.feed().watch();
    let first = if visitor.bound().is_none() { first_look(ragstone.clone()).await } else { None };
    let (sender, received) = mpsc::channel(SENT_AHEAD);
    let stopping = ragstone.jobs().stopping().clone();
    let sending = Sending { visitor, watcher, sender, patience: state.write_timeout, stopping, _place: place };
    state.spawn(sending.send(first));
    let body = futures::stream::unfold(received, |mut received| async move {
        Some((Ok::<_, std::convert::Infallible>(received.recv().await?), received))
    });
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(body))
}

/// What the tiers hold now: changes alone are told later. A tier that hangs is left out of it.
async fn first_look(ragstone: Ragstone) -> Option<ServiceEvent> {
    let looking = tokio::task::spawn_blocking(move || ragstone.tiers());
    let tiers = tokio::time::timeout(FIRST_LOOK, looking).await.ok()?.ok()?;
    Some(ServiceEvent::Tiers(Tiers { tiers: tiers.into_iter().collect() }))
}

/// One client's events on their way. This runs beside the response, whose body nobody polls while the client does not read.
struct Sending {
    visitor: Visitor,
    watcher: Watcher,
    sender: mpsc::Sender<Bytes>,
    patience: Duration,
    stopping: CancellationToken,
    _place: Place,
}

impl Sending {
    async fn send(mut self, first: Option<ServiceEvent>) {
        // A client sees at once that it is connected.
        let mut next = Some(first.map_or_else(comment, |first| event(&first)));
        loop {
            if let Some(bytes) = next
                && self.sender.send_timeout(bytes, self.patience).await.is_err()
            {
                tracing::debug!("a client of /v1/events left, or does not read");
                return;
            }
            let news = tokio::select! {
                news = tokio::time::timeout(HEARTBEAT, self.watcher.next()) => news,
                () = self.sender.closed() => return,
                () = self.stopping.cancelled() => return,
            };
            if self.visitor.check_still().is_err() {
                return;
            }
            next = match news {
                Err(_) => Some(comment()),
                Ok(None) => return,
                Ok(Some(news)) => told(news, &self.visitor).map(|told| event(&told)),
            };
        }
    }
}

/// What `visitor` is told of it; `None`: nothing, as it is not his.
fn told(news: News, visitor: &Visitor) -> Option<ServiceEvent> {
    let is_operator = visitor.bound().is_none();
    match news {
        News::Missed(events) => Some(ServiceEvent::Missed(Missed { events: is_operator.then_some(events) })),
        News::Happened(Happened::Answer(record)) => {
            let is_his = visitor.bound().is_none_or(|key| key.record.tenant == record.tenant);
            let is_known = !matches!(visitor, Visitor::Anyone);
            is_his.then(|| ServiceEvent::Answer(Box::new(Plan::of((*record).clone(), is_operator, is_known))))
        }
        News::Happened(Happened::Job(news)) => job(&news, visitor).map(ServiceEvent::Job),
        News::Happened(Happened::Evictions(left)) => {
            let mut tiers = BTreeMap::new();
            left.iter().for_each(|(tier, entries)| *tiers.entry(*tier).or_default() += entries);
            is_operator.then_some(ServiceEvent::Evictions(Evictions { tiers }))
        }
        News::Happened(Happened::Tiers(tiers)) => {
            is_operator.then(|| ServiceEvent::Tiers(Tiers { tiers: tiers.iter().copied().collect() }))
        }
    }
}

/// A job is a key's where the collection is its tenant's, and nobody else's entries are computed.
fn job(news: &JobNews, visitor: &Visitor) -> Option<JobEvent> {
    let JobNews { kind, id, subject, state, done, total, progress } = news;
    let (JobSubject::Collection { tenants, .. } | JobSubject::Schema { tenants, .. }) = subject;
    if let Some(key) = visitor.bound() {
        let is_his = match subject {
            JobSubject::Collection { collection, .. } => key.owns(collection),
            JobSubject::Schema { .. } => !tenants.is_empty(),
        };
        if !is_his || tenants.iter().any(|tenant| *tenant != key.record.tenant) {
            return None;
        }
    }
    let (collection, document, schema) = match subject {
        JobSubject::Collection { collection, document, .. } => {
            (Some(visitor.shown(collection)?), document.clone(), None)
        }
        JobSubject::Schema { schema, .. } => (None, None, Some(schema.clone())),
    };
    let (state, error) = match state {
        JobState::Running => (JobEventState::Running, None),
        JobState::Finished => (JobEventState::Finished, None),
        JobState::Failed(why) => (JobEventState::Failed, Some(why.clone())),
    };
    // The number counts everybody's, and why an ingest failed may name the owner's files.
    let (id, error) = if visitor.bound().is_some() { (None, None) } else { (Some(*id), error) };
    let (kind, done, total, progress) = (*kind, *done, *total, *progress);
    Some(JobEvent { kind, id, collection, document, schema, state, error, done, total, progress })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ragstone_actors::admission::api_keys::ApiKey;
    use ragstone_actors::admission::jobs::JobKind;
    use ragstone_actors::{PlanRecord, ReuseReport};
    use ragstone_storage::catalog::{ApiKeyRecord, Role};
    use ragstone_storage::tier::{Tier, TierStatus};

    use super::*;

    fn key(role: Role, tenant: &str, granted: &[&str]) -> Visitor {
        let record = ApiKeyRecord {
            name: "k".into(),
            hash: String::new(),
            role,
            tenant: tenant.into(),
            collections: granted.iter().map(|name| (*name).to_owned()).collect(),
            added_unix_ms: 0,
        };
        Visitor::Key(Arc::new(ApiKey::new(record)))
    }

    fn answer(tenant: &str) -> News {
        let (asked, report) = (Some("Who?".to_owned()), ReuseReport::default());
        let record = PlanRecord { number: 7, unix_ms: 1, tenant: tenant.into(), asked, report };
        News::Happened(Happened::Answer(Arc::new(record)))
    }

    fn job(subject: JobSubject) -> News {
        let (kind, state) = (JobKind::WarmUp, JobState::Failed("why".into()));
        let (done, total, progress) = (1, 2, None);
        News::Happened(Happened::Job(Arc::new(JobNews { kind, id: 3, subject, state, done, total, progress })))
    }

    fn of(collection: &str, tenants: &[&str]) -> JobSubject {
        let tenants = tenants.iter().map(|name| (*name).to_owned()).collect();
        JobSubject::Collection { collection: collection.into(), document: None, tenants }
    }

    #[test]
    fn a_key_hears_of_its_tenants_own_alone() {
        let reader = key(Role::Read, "acme", &["other/handbook"]);
        let Some(ServiceEvent::Answer(own)) = told(answer("acme"), &reader) else { panic!("its own") };
        assert_eq!((own.number, own.tenant.as_str(), own.question.as_deref()), (None, "acme", Some("Who?")));
        let Some(ServiceEvent::Job(own)) = told(job(of("acme/notes", &["acme"])), &reader) else { panic!("its own") };
        assert_eq!((own.id, own.collection.as_deref(), own.error), (None, Some("notes"), None));
        let schema = |tenants: &[&str]| JobSubject::Schema {
            schema: "trip".into(),
            tenants: tenants.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(told(job(schema(&["acme"])), &reader).is_some());
        assert!(told(job(of("acme/notes", &[])), &reader).is_some(), "an ingest");
        let tiers: Vec<(Tier, TierStatus)> = vec![(Tier::Host, TierStatus::default())];
        for others in [
            answer("other"),
            answer(""),
            job(of("other/notes", &["other"])),
            job(of("other/handbook", &["acme"])),
            job(of("acme/notes", &["acme", "other"])),
            job(of("notes", &[])),
            job(schema(&["other"])),
            job(schema(&[])),
            News::Happened(Happened::Evictions([(Tier::Host, 1)].into())),
            News::Happened(Happened::Tiers(tiers.as_slice().into())),
        ] {
            assert!(told(others.clone(), &reader).is_none(), "{others:?}");
            assert!(told(others, &key(Role::Admin, "acme", &[])).is_some());
        }
        let missed = |visitor: &Visitor| match told(News::Missed(9), visitor) {
            Some(ServiceEvent::Missed(Missed { events })) => events,
            other => panic!("{other:?}"),
        };
        assert_eq!((missed(&reader), missed(&Visitor::Owner)), (None, Some(9)));
        let Some(ServiceEvent::Answer(any)) = told(answer("other"), &Visitor::Owner) else { panic!("everybody's") };
        assert_eq!((any.number, any.question.is_some()), (Some(7), true));
        let Some(ServiceEvent::Answer(any)) = told(answer("other"), &Visitor::Anyone) else { panic!("everybody's") };
        assert_eq!(any.question, None, "what others ask is not for whoever comes");
    }
}
