//! What a response stands on of what was said before, and how it is kept for those after it: `store`, `previous_response_id`, `conversation`.

use std::collections::BTreeSet;

use actix_web::HttpRequest;
use serde_json::{Map, Value, json};

use super::items::{as_items, identified};
use crate::conversations::{Conversations, StoredConversation, StoredResponse};
use crate::error::{Error, ErrorKind, Result};
use crate::http::body::value_bytes;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;

/// As OpenAI's: pairs of a metadata object, and characters of their names and values.
const MOST_PAIRS: usize = 16;
const MOST_NAME: usize = 64;
const MOST_VALUE: usize = 512;

/// What came before a response.
#[derive(Debug, Default)]
pub struct Before {
    /// The items of earlier turns.
    pub items: Vec<Value>,
    /// How the response is kept; `None` where it is not.
    pub keeping: Option<Keeping>,
    /// What the response says of it.
    pub echo: Map<String, Value>,
}

/// How a response is kept.
#[derive(Debug)]
pub struct Keeping {
    conversations: Conversations,
    /// All but the response itself.
    record: StoredResponse,
    /// The full name of the collection that is asked.
    collection: Option<String>,
    /// The item of its conversation in whose place its turn is.
    replaces: Option<String>,
    /// Whether its request says that it is.
    is_asked: bool,
}

impl Keeping {
    /// About what it holds in memory until then: the items that the request sent.
    pub fn held_bytes(&self) -> usize {
        self.record.input.iter().map(value_bytes).sum()
    }

    /// Keeps `response`.
    ///
    /// # Errors
    /// Where its request asked for that, and it cannot be done. Otherwise whether it was done.
    pub async fn keep(&self, response: &Value) -> Result<bool> {
        let id = response["id"].as_str().unwrap_or_default().to_owned();
        let record = StoredResponse { id, response: response.clone(), ..self.record.clone() };
        match self.conversations.keep(record, self.replaces.clone(), self.collection.clone()).await {
            Ok(()) => Ok(true),
            Err(error) if self.is_asked => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a response is answered, and not stored");
                Ok(false)
            }
        }
    }
}

impl Before {
    /// Takes the fields that say it, and reads what they refer to. `input` is what the request itself sends.
    ///
    /// # Errors
    /// `InvalidInput` for what is not there, or cannot be together.
    pub async fn take(
        fields: &mut Fields,
        input: &[Value],
        conversations: &Conversations,
        request: &HttpRequest,
    ) -> Result<Self> {
        let visitor = Visitor::of(request)?;
        let extension = fields.get("ragstone").cloned().unwrap_or_default();
        let named = |name: &str| extension[name].as_str().map(str::to_owned);
        let tenant = visitor.tenant(named("tenant"), "ragstone.tenant")?;
        let collection = visitor.collection_if(named("collection"))?;
        let store = fields.take::<bool>("store")?;
        let previous = fields.take::<String>("previous_response_id")?;
        let (conversation, Place { replaces, earlier }) = place(fields.take_value("conversation"))?;
        let metadata = metadata(fields.take_value("metadata"))?;
        if previous.is_some() && conversation.is_some() {
            let message = "`previous_response_id` and `conversation` both say what came before; leave one out";
            return Err(Error::invalid_field("previous_response_id", message));
        }
        if conversation.is_some() && store == Some(false) {
            let message = "a turn of a conversation is appended to it; leave `store` out, or `conversation`";
            return Err(Error::invalid_field("store", message));
        }
        let stores = store.unwrap_or(true) && conversations.keeps();
        let is_asked = store == Some(true) || conversation.is_some();
        if is_asked && !conversations.keeps() {
            let field = if conversation.is_some() { "conversation" } else { "store" };
            let message = format!("`{field}` is not supported here, as the setting responses_days is 0; leave it out");
            return Err(Error::invalid_field(field, message));
        }
        let (items, mut collections) = match (&previous, &conversation) {
            (Some(id), _) => chain(conversations, &visitor, &tenant, id).await?,
            (_, Some(id)) => {
                let found = conversation_of(conversations, &visitor, &tenant, id).await;
                let found = found.map_err(|error| match error.kind() {
                    ErrorKind::NotFound => Error::of_field(error.kind(), "conversation", error.to_string()),
                    _ => error,
                })?;
                (before(&found, replaces.as_deref(), earlier)?, found.collections)
            }
            (None, None) => (Vec::new(), BTreeSet::new()),
        };
        collections.extend(collection.clone());
        let echo = Map::from_iter([
            ("store".to_owned(), stores.into()),
            ("previous_response_id".to_owned(), previous.clone().into()),
            ("conversation".to_owned(), conversation.as_ref().map_or(Value::Null, |id| json!({ "id": id }))),
            ("metadata".to_owned(), metadata.into()),
        ]);
        let input = input.iter().map(|item| identified(item.clone(), |kind| conversations.item_id(kind))).collect();
        let record = StoredResponse {
            tenant,
            id: String::new(),
            collections,
            previous,
            conversation,
            input,
            response: Value::Null,
        };
        let keeping = Keeping { conversations: conversations.clone(), record, collection, replaces, is_asked };
        Ok(Self { items, keeping: stores.then_some(keeping), echo })
    }
}

/// Where a turn stands in its conversation.
struct Place {
    /// The item in whose place it is, and of all that follow.
    replaces: Option<String>,
    /// Whether earlier turns stand before it.
    earlier: bool,
}

/// `conversation`: an id, or an object with one, in which our own fields say where the turn stands.
fn place(value: Option<Value>) -> Result<(Option<String>, Place)> {
    let usual = Place { replaces: None, earlier: true };
    let mut named = match value {
        None => return Ok((None, usual)),
        Some(Value::String(id)) => return Ok((Some(id), usual)),
        Some(Value::Object(named)) => named,
        Some(_) => Map::new(),
    };
    let wrong = |field: &str, what: &str| Error::invalid_field(field, format!("`{field}` must be {what}"));
    let Some(Value::String(id)) = named.remove("id") else {
        return Err(wrong("conversation", "an id, or an object with an `id`"));
    };
    let replaces = match named.remove("replaces") {
        None | Some(Value::Null) => None,
        Some(Value::String(item)) => Some(item),
        Some(_) => return Err(wrong("conversation.replaces", "the id of an item of the conversation")),
    };
    let earlier = match named.remove("earlier") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(earlier)) => earlier,
        Some(_) => return Err(wrong("conversation.earlier", "true or false")),
    };
    Ok((Some(id), Place { replaces, earlier }))
}

/// The items of a conversation that stand before a turn.
fn before(found: &StoredConversation, replaces: Option<&str>, earlier: bool) -> Result<Vec<Value>> {
    let end = match replaces {
        Some(item) => check_place(found, item, "conversation.replaces")?,
        None => found.items.len(),
    };
    Ok(if earlier { found.items[..end].to_vec() } else { Vec::new() })
}

/// The place of an item that `field` names.
///
/// # Errors
/// `InvalidInput` where the conversation has no such item.
pub fn check_place(found: &StoredConversation, item: &str, field: &str) -> Result<usize> {
    found.place_of(item).ok_or_else(|| {
        Error::invalid_field(field, format!("`{field}`: the conversation has no item `{}`", shown(item)))
    })
}

/// The items of an answer and of those before it, and the collections that they are from.
async fn chain(
    conversations: &Conversations,
    visitor: &Visitor,
    tenant: &str,
    id: &str,
) -> Result<(Vec<Value>, BTreeSet<String>)> {
    let found = conversations.chain(tenant, id).await?;
    let may_read = |response: &StoredResponse| may_read(visitor, &response.collections);
    let Some(chain) = found.filter(|chain| chain.iter().all(may_read)) else {
        let message = format!(
            "response `{}` is not stored here, or one before it is not: they are kept for as long as the setting responses_days says",
            shown(id)
        );
        return Err(Error::invalid_field("previous_response_id", message));
    };
    let collections = chain.iter().flat_map(|response| response.collections.iter().cloned()).collect();
    Ok((chain.iter().flat_map(StoredResponse::items).cloned().collect(), collections))
}

/// Whether what came from these collections may be read.
pub fn may_read<'a>(visitor: &Visitor, collections: impl IntoIterator<Item = &'a String>) -> bool {
    collections.into_iter().all(|collection| visitor.shown(collection).is_some())
}

/// A conversation that may be read.
///
/// # Errors
/// `NotFound`.
pub async fn conversation_of(
    conversations: &Conversations,
    visitor: &Visitor,
    tenant: &str,
    id: &str,
) -> Result<StoredConversation> {
    let found = conversations.conversation(tenant, id).await?;
    found.filter(|found| may_read(visitor, &found.collections)).ok_or_else(|| no_such("conversation", id))
}

/// There is none, or none for whoever asks.
pub fn no_such(what: &str, id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("no {what} `{}` is stored here", shown(id)))
}

/// What a client made up, within bounds.
fn shown(id: &str) -> String {
    id.escape_default().take(100).collect()
}

/// `metadata`, as OpenAI's: up to 16 texts by name.
///
/// # Errors
/// `InvalidInput`.
pub fn metadata(value: Option<Value>) -> Result<Map<String, Value>> {
    let refused = || {
        let message = format!(
            "`metadata` must be an object of at most {MOST_PAIRS} texts, with names of up to {MOST_NAME} characters and texts of up to {MOST_VALUE}"
        );
        Error::invalid_field("metadata", message)
    };
    let is_fit = |(name, value): (&String, &Value)| {
        let short = |text: &str| text.chars().count() <= MOST_VALUE;
        name.chars().count() <= MOST_NAME && value.as_str().is_some_and(short)
    };
    match value {
        None => Ok(Map::new()),
        Some(Value::Object(map)) if map.len() <= MOST_PAIRS && map.iter().all(is_fit) => Ok(map),
        Some(_) => Err(refused()),
    }
}

/// The items of `input`, a text or a list.
///
/// # Errors
/// `InvalidInput`.
pub fn input(fields: &mut Fields) -> Result<Vec<Value>> {
    as_items("input", fields.need::<Value>("input")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_an_id_or_an_object_that_says_where_the_turn_stands() {
        let read = |value: Value| place(Some(value)).map(|(id, place)| (id.unwrap(), place.replaces, place.earlier));
        assert_eq!(read(json!("conv_1")).unwrap(), ("conv_1".into(), None, true));
        assert_eq!(read(json!({ "id": "conv_1", "replaces": null })).unwrap(), ("conv_1".into(), None, true));
        let place_of = json!({ "id": "conv_1", "replaces": "msg_2", "earlier": false });
        assert_eq!(read(place_of).unwrap(), ("conv_1".into(), Some("msg_2".into()), false));
        for (value, field) in [
            (json!(7), "conversation"),
            (json!({}), "conversation"),
            (json!({ "id": 7 }), "conversation"),
            (json!({ "id": "conv_1", "replaces": 7 }), "conversation.replaces"),
            (json!({ "id": "conv_1", "earlier": "no" }), "conversation.earlier"),
        ] {
            assert_eq!(read(value).unwrap_err().at_field(), Some(field));
        }
    }
}
