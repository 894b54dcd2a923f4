//! Documents out of everything: the corpus, and every tier.

use actix_web::{HttpRequest, HttpResponse, web};

use crate::api::cache::{Invalidate, InvalidatedText};
use crate::error::Error;
use crate::http::audit;
use crate::http::body::Incoming;
use crate::http::error::Answered;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::http::state::State;
use crate::lanes::Work;

/// Removes a document, or a whole collection, from the corpus and its KV from every tier, with all that was computed
/// after it: `{"collection", "document"? or "all", "dry_run"?, "now"?}`. A kill in between is finished by the next start.
pub async fn invalidate(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let library = state.opened()?.ragstone.library().clone();
    let Invalidate { collection, document, all, dry_run, now } = Fields::whole(incoming).await?;
    let collection = Visitor::of(&request)?.collection(&collection)?;
    if document.is_none() && !all && !dry_run {
        let message = "say which `document`, or `\"all\": true` for every document of the collection";
        return Err(Error::invalid_field("document", message).into());
    }
    audit::say(&request, "collection", collection.as_str());
    audit::say(&request, "document", document.clone());
    audit::say(&request, "dry_run", dry_run);
    let removing = async move {
        let removed = match &document {
            _ if dry_run => library.preview_removal(&collection, document.as_deref()).await?,
            Some(document) => library.delete_document(&collection, document, None).await?,
            None => library.delete_collection(&collection, None).await?,
        };
        if now && !dry_run {
            library.vacuum_collection(&collection).await?;
        }
        Ok::<_, Error>(removed)
    };
    let removed = state.run(&request, Work::Remove, removing).await??;
    Ok(HttpResponse::Ok().json(InvalidatedText { removed, dry_run }))
}
