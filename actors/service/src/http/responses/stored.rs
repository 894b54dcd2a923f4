//! `/v1/responses/{response}…` and `/v1/conversations…`: what is kept, shown, changed and deleted.

use std::collections::BTreeSet;

use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::check_tenant;
use ragstone_corpus::check_stored_name;
use serde_json::{Map, Value};

use super::items::{identified, messages};
use super::kept::{check_place, conversation_of, may_read, metadata, no_such};
use crate::api::responses::{
    AddItems, BeginConversation, ChangeConversation, Conversation, ConversationTurn, DeletedResponse, ItemList,
    ItemsQuery, Order,
};
use crate::conversations::turns::{Addition, Turn};
use crate::conversations::{ConversationKey, Conversations, StoredConversation, StoredResponse};
use crate::error::{Error, ErrorKind, Result};
use crate::http::body::Incoming;
use crate::http::error::Answered;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::http::resource;
use crate::http::state::State;
use crate::lanes::{InLane, Work};

/// Items of one page of a list, at the most and where nothing is said, as OpenAI's.
const MOST_LISTED: usize = 100;
const LISTED: usize = 20;
/// Items that one request may bring.
const MOST_ADDED: usize = 20;

/// The paths.
pub fn paths(config: &mut ServiceConfig) {
    config
        .service(resource(
            "/v1/responses/{response}",
            "GET, DELETE",
            vec![web::get().to(response), web::delete().to(delete_response)],
        ))
        .service(resource("/v1/responses/{response}/input_items", "GET", vec![web::get().to(input_items)]))
        .service(resource("/v1/responses/{response}/cancel", "POST", vec![web::post().to(cancel)]))
        .service(resource("/v1/conversations", "GET, POST", vec![web::get().to(list), web::post().to(begin)]))
        .service(resource(
            "/v1/conversations/{conversation}",
            "GET, POST, DELETE",
            vec![web::get().to(conversation), web::post().to(change), web::delete().to(delete)],
        ))
        .service(resource("/v1/conversations/{conversation}/turns", "GET", vec![web::get().to(turns)]))
        .service(resource(
            "/v1/conversations/{conversation}/items",
            "GET, POST",
            vec![web::get().to(items), web::post().to(add_items)],
        ))
        .service(resource(
            "/v1/conversations/{conversation}/items/{item}",
            "GET, DELETE",
            vec![web::get().to(item), web::delete().to(delete_item)],
        ));
}

/// Who asks, for what of which tenant's. Others wait for its place: what is read takes memory.
struct Asker {
    _place: InLane,
    conversations: Conversations,
    visitor: Visitor,
    tenant: String,
    query: ItemsQuery,
}

impl Asker {
    async fn of(state: &State, request: &HttpRequest) -> Result<Self> {
        let query = web::Query::<ItemsQuery>::from_query(request.query_string());
        let query = query.map_err(|error| Error::invalid_input(format!("query: {error}")))?.into_inner();
        let visitor = Visitor::of(request)?;
        let tenant = visitor.tenant(query.tenant.clone(), "tenant")?;
        check_tenant(&tenant).map_err(|error| Error::invalid_field("tenant", error.to_string()))?;
        let conversations = state.opened()?.conversations.clone();
        let place = state.place(request, Work::Look).await?;
        Ok(Self { _place: place, conversations, visitor, tenant, query })
    }

    async fn response(&self, id: &str) -> Result<StoredResponse> {
        let found = self.conversations.response(&self.tenant, id).await?;
        found.filter(|found| may_read(&self.visitor, &found.collections)).ok_or_else(|| no_such("response", id))
    }

    async fn conversation(&self, id: &str) -> Result<StoredConversation> {
        conversation_of(&self.conversations, &self.visitor, &self.tenant, id).await
    }

    /// The page of a list that is asked for.
    fn page(&self, all: Vec<Value>) -> Result<ItemList> {
        let (shown, has_more) = self.part(all, |item| item["id"].as_str())?;
        Ok(ItemList::of(shown, has_more))
    }

    /// The part of a list, the oldest first, that is asked for, and whether there is more behind it. Lists begin with the newest, unless the oldest
    /// is wanted first.
    fn part<T>(&self, mut all: Vec<T>, id: impl Fn(&T) -> Option<&str>) -> Result<(Vec<T>, bool)> {
        let ItemsQuery { after, limit, order, .. } = &self.query;
        let limit = limit.unwrap_or(LISTED);
        if !(1..=MOST_LISTED).contains(&limit) {
            let message = format!("`limit` must be between 1 and {MOST_LISTED}");
            return Err(Error::invalid_field("limit", message));
        }
        if order.unwrap_or_default() == Order::Desc {
            all.reverse();
        }
        let begin = match after {
            None => 0,
            Some(after) => match all.iter().position(|item| id(item) == Some(after.as_str())) {
                Some(at) => at + 1,
                None => return Err(Error::invalid_field("after", "`after` must be the id of an item of this list")),
            },
        };
        let has_more = all.len() > begin + limit;
        Ok((all.into_iter().skip(begin).take(limit).collect(), has_more))
    }
}

async fn response(state: web::Data<State>, request: HttpRequest, id: web::Path<String>) -> Answered {
    Ok(HttpResponse::Ok().json(Asker::of(&state, &request).await?.response(&id).await?.response))
}

async fn delete_response(state: web::Data<State>, request: HttpRequest, id: web::Path<String>) -> Answered {
    let asker = Asker::of(&state, &request).await?;
    unless_damaged(asker.response(&id).await.map(drop))?;
    asker.conversations.remove_response(&asker.tenant, &id).await?;
    let object = "response".to_owned();
    Ok(HttpResponse::Ok().json(DeletedResponse { id: id.into_inner(), object, deleted: true }))
}

/// What cannot be read can be deleted: who knows its id is whose it is.
fn unless_damaged(found: Result<()>) -> Result<()> {
    found.or_else(|error| if error.kind() == ErrorKind::Corrupt { Ok(()) } else { Err(error) })
}

async fn input_items(state: web::Data<State>, request: HttpRequest, id: web::Path<String>) -> Answered {
    let asker = Asker::of(&state, &request).await?;
    let input = asker.response(&id).await?.input;
    Ok(HttpResponse::Ok().json(asker.page(input)?))
}

/// Answers are made while their request waits: none can be cancelled by another request.
async fn cancel(state: web::Data<State>, request: HttpRequest, id: web::Path<String>) -> Answered {
    Asker::of(&state, &request).await?.response(&id).await?;
    Err(Error::invalid_input("only responses in the background can be cancelled, and there are none here").into())
}

/// A tenant's conversations, which OpenAI's API does not have.
async fn list(state: web::Data<State>, request: HttpRequest) -> Answered {
    let asker = Asker::of(&state, &request).await?;
    let may_read = |collections: &BTreeSet<String>| may_read(&asker.visitor, collections);
    let all = asker.conversations.list(&asker.tenant).await?;
    let readable: Vec<ConversationKey> = all.into_iter().rev().filter(|key| may_read(&key.collections)).collect();
    let (shown, has_more) = asker.part(readable, |key| Some(key.id.as_str()))?;
    let heads = asker.conversations.heads(&asker.tenant, shown.into_iter().map(|key| key.id).collect()).await?;
    // One that is from another collection meanwhile may be for others alone.
    let shown = heads.iter().filter(|head| may_read(&head.collections));
    let rows = shown.map(|head| serde_json::to_value(Conversation::from(head)).unwrap_or_default()).collect();
    Ok(HttpResponse::Ok().json(ItemList::of(rows, has_more)))
}

async fn begin(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let BeginConversation { items, metadata: given } = Fields::whole(incoming).await?;
    let asker = Asker::of(&state, &request).await?;
    if !asker.conversations.keeps() {
        let message = "conversations are not stored here, as the setting responses_days is 0";
        return Err(Error::invalid_input(message).into());
    }
    let items = checked(items.unwrap_or_default(), &asker.conversations)?;
    let begun = asker.conversations.begin(&asker.tenant, items, metadata(given)?).await?;
    Ok(HttpResponse::Ok().json(Conversation::from(&begun)))
}

/// Items as they are kept.
fn checked(items: Vec<Value>, conversations: &Conversations) -> Result<Vec<Value>> {
    if items.len() > MOST_ADDED {
        return Err(Error::invalid_field("items", format!("`items` may have at most {MOST_ADDED}")));
    }
    messages("items", items.clone())?;
    Ok(items.into_iter().map(|item| identified(item, |kind| conversations.item_id(kind))).collect())
}

async fn conversation(state: web::Data<State>, request: HttpRequest, id: web::Path<String>) -> Answered {
    let found = Asker::of(&state, &request).await?.conversation(&id).await?;
    Ok(HttpResponse::Ok().json(Conversation::from(&found)))
}

async fn change(state: web::Data<State>, request: HttpRequest, id: web::Path<String>, incoming: Incoming) -> Answered {
    let ChangeConversation { metadata: given } = Fields::whole(incoming).await?;
    let given: Map<String, Value> = metadata(Some(given))?;
    let asker = Asker::of(&state, &request).await?;
    asker.conversation(&id).await?;
    let changed = asker.conversations.change(&asker.tenant, &id, |kept| kept.metadata = given).await?;
    let changed = changed.ok_or_else(|| no_such("conversation", &id))?;
    Ok(HttpResponse::Ok().json(Conversation::from(&changed)))
}

async fn delete(state: web::Data<State>, request: HttpRequest, id: web::Path<String>) -> Answered {
    let asker = Asker::of(&state, &request).await?;
    unless_damaged(asker.conversation(&id).await.map(drop))?;
    asker.conversations.remove(&asker.tenant, &id, asker.query.responses.unwrap_or(false)).await?;
    let object = "conversation.deleted".to_owned();
    Ok(HttpResponse::Ok().json(DeletedResponse { id: id.into_inner(), object, deleted: true }))
}

/// What was asked and answered, and what each answer stands on.
async fn turns(state: web::Data<State>, request: HttpRequest, id: web::Path<String>) -> Answered {
    let asker = Asker::of(&state, &request).await?;
    let found = asker.conversation(&id).await?;
    let told = |turn: &Turn<'_>| {
        let collection = turn.sources.and_then(|sources| sources.collection.as_ref());
        let collection = collection.and_then(|name| asker.visitor.shown(name));
        serde_json::to_value(ConversationTurn::of(turn, collection)).unwrap_or_default()
    };
    let turns = found.turns().iter().map(told).collect();
    Ok(HttpResponse::Ok().json(asker.page(turns)?))
}

async fn items(state: web::Data<State>, request: HttpRequest, id: web::Path<String>) -> Answered {
    let asker = Asker::of(&state, &request).await?;
    let items = asker.conversation(&id).await?.items;
    Ok(HttpResponse::Ok().json(asker.page(items)?))
}

async fn add_items(
    state: web::Data<State>,
    request: HttpRequest,
    id: web::Path<String>,
    incoming: Incoming,
) -> Answered {
    let AddItems { items, replaces, collection } = Fields::whole(incoming).await?;
    let asker = Asker::of(&state, &request).await?;
    let found = asker.conversation(&id).await?;
    if let Some(item) = &replaces {
        check_place(&found, item, "replaces")?;
    }
    let items = checked(items, &asker.conversations)?;
    let added = items.clone();
    let collection = asker.visitor.collection_if(collection)?;
    // It is kept, and there may be no such collection: nothing else says that it is a name.
    if let Some(name) = &collection {
        check_stored_name(name).map_err(|error| Error::invalid_field("collection", error.to_string()))?;
    }
    let collections = collection.into_iter().collect();
    let addition = Addition { items, replaces, collections, ..Addition::default() };
    let changed = asker.conversations.append(&asker.tenant, &id, addition).await?;
    changed.ok_or_else(|| no_such("conversation", &id))?;
    Ok(HttpResponse::Ok().json(ItemList::of(added, false)))
}

async fn item(state: web::Data<State>, request: HttpRequest, path: web::Path<(String, String)>) -> Answered {
    let (id, wanted) = path.into_inner();
    let found = Asker::of(&state, &request).await?.conversation(&id).await?;
    let item = found.items.into_iter().find(|item| item["id"] == wanted.as_str());
    Ok(HttpResponse::Ok().json(item.ok_or_else(|| no_such("item", &wanted))?))
}

async fn delete_item(state: web::Data<State>, request: HttpRequest, path: web::Path<(String, String)>) -> Answered {
    let (id, unwanted) = path.into_inner();
    let asker = Asker::of(&state, &request).await?;
    asker.conversation(&id).await?;
    let mut was_there = false;
    let remove = |kept: &mut StoredConversation| {
        let before = kept.items.len();
        kept.items.retain(|item| item["id"] != unwanted.as_str());
        was_there = kept.items.len() < before;
    };
    let changed = asker.conversations.change(&asker.tenant, &id, remove).await?;
    let changed = changed.filter(|_| was_there).ok_or_else(|| no_such("item", &unwanted))?;
    Ok(HttpResponse::Ok().json(Conversation::from(&changed)))
}
