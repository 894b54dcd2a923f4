//! `/v1/ingests…`: ingests that are not finished, and their end before that.

use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::upkeep::ingests::UnfinishedIngest;

use super::identity::Visitor;
use super::resource;
use crate::api::List;
use crate::api::cache::CancelledJob;
use crate::error::{Error, ErrorKind};
use crate::http::error::Answered;
use crate::http::state::State;
use crate::lanes::Work;

/// The paths.
pub fn paths(config: &mut ServiceConfig) {
    config.service(resource("/v1/ingests", "GET", vec![web::get().to(list)])).service(resource(
        "/v1/ingests/{job}",
        "DELETE",
        vec![web::delete().to(cancel)],
    ));
}

/// Those that whoever asks may know of, the oldest first.
async fn list(state: web::Data<State>, request: HttpRequest) -> Answered {
    let ingests = state.opened()?.ragstone.ingests().clone();
    let visitor = Visitor::of(&request)?;
    let listed = state.run(&request, Work::Look, async move { ingests.listed().await }).await??;
    let data: Vec<UnfinishedIngest> = listed.into_iter().filter_map(|ingest| shown(ingest, &visitor)).collect();
    Ok(HttpResponse::Ok().json(List::from(data)))
}

/// What `visitor` is told of an ingest; `None`: nothing, as it is another tenant's.
pub fn shown(mut ingest: UnfinishedIngest, visitor: &Visitor) -> Option<UnfinishedIngest> {
    if visitor.bound().is_some_and(|key| !key.owns(&ingest.collection)) {
        return None;
    }
    ingest.collection = visitor.shown(&ingest.collection)?;
    // Which folders this machine has is for those who may name them to an ingest. Why it failed may name them, too.
    if matches!(visitor, Visitor::Anyone) || visitor.bound().is_some() {
        ingest.paths.clear();
        ingest.error = None;
    }
    Some(ingest)
}

/// Ends an ingest for good; what it stored stays.
async fn cancel(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let id = path.into_inner();
    // A key hears the same of another tenant's as of one that there never was.
    let unknown =
        || Error::new(ErrorKind::NotFound, format!("no unfinished ingest `{id}`; see `ragstone ingest --list`"));
    let number: u64 = id.parse().map_err(|_| unknown())?;
    let ingestor = state.opened()?.ingestor.clone();
    let visitor = Visitor::of(&request)?;
    let is_meant = move |collection: &str| visitor.bound().is_none_or(|key| key.owns(collection));
    if !state.run(&request, Work::Look, async move { ingestor.cancel(number, is_meant).await }).await?? {
        return Err(unknown().into());
    }
    Ok(HttpResponse::Ok().json(CancelledJob { id: number, cancelled: true }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ragstone_actors::admission::api_keys::ApiKey;
    use ragstone_actors::upkeep::ingests::IngestState;
    use ragstone_storage::catalog::{ApiKeyRecord, Role};

    use super::*;

    #[test]
    fn a_key_is_told_of_its_tenants_own_and_of_no_path() {
        let key = |role| {
            let record = ApiKeyRecord {
                name: "k".into(),
                hash: String::new(),
                role,
                tenant: "acme".into(),
                collections: vec!["other/handbook".into()],
                added_unix_ms: 0,
            };
            Visitor::Key(Arc::new(ApiKey::new(record)))
        };
        let ingest = |collection: &str| UnfinishedIngest {
            id: 7,
            collection: collection.into(),
            paths: vec!["/srv/notes".into()],
            created_unix_ms: 1,
            state: IngestState::Failed,
            files_done: 3,
            files_total: Some(9),
            progress: None,
            error: Some("/srv/notes is gone".into()),
        };
        let own = shown(ingest("acme/notes"), &key(Role::Read)).unwrap();
        assert_eq!((own.collection.as_str(), own.paths.len(), own.error), ("notes", 0, None));
        assert_eq!((own.id, own.files_done, own.files_total), (7, 3, Some(9)));
        for others in ["notes", "other/notes", "other/handbook"] {
            assert!(shown(ingest(others), &key(Role::Write)).is_none(), "{others}");
            let whole = shown(ingest(others), &key(Role::Admin)).unwrap();
            assert!(!whole.paths.is_empty() && whole.error.is_some(), "{others}");
        }
        assert!(shown(ingest("notes"), &Visitor::Anyone).unwrap().paths.is_empty());
        assert_eq!(shown(ingest("notes"), &Visitor::Owner), Some(ingest("notes")));
    }
}
