//! What clients refer to later: answers of `/v1/responses` (`previous_response_id`), and conversations.
//!
//! Each is a file of its own, in `DATA/responses` and `DATA/conversations`: what is deleted is in no file any more. They are a node's own.

mod checks;
mod ids;
mod leaving;
pub mod turns;

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use ragstone_env::Env;
use ragstone_env::lock::NamedLocks;
use ragstone_storage::record_files::{RecordFile, RecordFiles, row};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use self::checks::{MOST_BYTES, check_collections, check_record, check_size, size};
pub use self::ids::{secret_id, told_id};
use self::leaving::{Bounds, leaving};
use self::turns::{Addition, Sources, first_question};
use crate::error::{Error, ErrorKind, Result};

/// How often what is too old is looked for.
const LOOK: Duration = Duration::from_secs(3600);
/// Answers before one.
const MOST_TURNS: usize = 4096;

/// An answer that its client may refer to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredResponse {
    pub tenant: String,
    pub id: String,
    /// The full names of the collections that it, and what it goes on from, was answered from.
    pub collections: BTreeSet<String>,
    /// The answer that it goes on from.
    pub previous: Option<String>,
    pub conversation: Option<String>,
    /// The items that its own request sent.
    pub input: Vec<Value>,
    /// As it was answered.
    pub response: Value,
}

impl StoredResponse {
    /// The items of its turn: what was sent, and what was answered.
    pub fn items(&self) -> impl Iterator<Item = &Value> {
        self.input.iter().chain(self.response["output"].as_array().into_iter().flatten())
    }
}

/// Items that grow from answer to answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredConversation {
    pub tenant: String,
    pub id: String,
    pub created_unix_ms: u64,
    pub metadata: Map<String, Value>,
    /// The full names of the collections that its answers are from.
    pub collections: BTreeSet<String>,
    /// The start of what was asked first: its name, as long as it has no other one.
    #[serde(default)]
    pub asked: Option<String>,
    pub items: Vec<Value>,
    /// What its answers stand on, the oldest first.
    #[serde(default)]
    pub sources: Vec<Sources>,
}

/// A conversation without its items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationHead {
    pub id: String,
    pub created_unix_ms: u64,
    pub metadata: Map<String, Value>,
    pub collections: BTreeSet<String>,
    #[serde(default)]
    pub asked: Option<String>,
}

/// What orders conversations, and says who may read them: of each of a list, however few are shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationKey {
    pub id: String,
    pub created_unix_ms: u64,
    pub collections: BTreeSet<String>,
}

/// The answers and conversations of a data folder. Clones share them.
#[derive(Debug, Clone)]
pub struct Conversations(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env,
    bounds: Bounds,
    responses: RecordFiles<StoredResponse>,
    conversations: RecordFiles<StoredConversation>,
    /// The same files.
    heads: RecordFiles<ConversationHead>,
    keys: RecordFiles<ConversationKey>,
    /// Of both, as of the last look and what was written since.
    bytes: AtomicU64,
    /// One look for what leaves at a time.
    clearing: Mutex<()>,
    /// One change of a conversation at a time.
    changing: NamedLocks,
}

impl Conversations {
    /// Those of the data folder `data`, which stay for `days` after they changed last, within `most_bytes` altogether. What a kill has left is
    /// removed.
    pub fn new(data: &Path, days: u64, most_bytes: u64, env: Env) -> Self {
        let conversations = data.join("conversations");
        let inner = Inner {
            env,
            bounds: Bounds { most_bytes, most_age_ms: days.saturating_mul(86_400_000) },
            responses: RecordFiles::new(data.join("responses"), "response"),
            conversations: RecordFiles::new(conversations.clone(), "conversation"),
            heads: RecordFiles::new(conversations.clone(), "conversation"),
            keys: RecordFiles::new(conversations, "conversation"),
            bytes: AtomicU64::new(0),
            clearing: Mutex::default(),
            changing: NamedLocks::default(),
        };
        let cleared = inner.responses.clear_unfinished().and_then(|()| inner.conversations.clear_unfinished());
        if let Err(error) = cleared {
            tracing::warn!(%error, "what a kill has left of responses cannot be removed; it is tried again at the next start");
        }
        Self(Arc::new(inner))
    }

    /// Whether anything is kept at all.
    pub fn keeps(&self) -> bool {
        self.0.bounds.most_age_ms > 0
    }

    /// Takes away what is too old, now and every hour.
    pub async fn follow(self) {
        loop {
            if let Err(error) = self.blocking(Inner::clear).await {
                tracing::warn!(%error, "responses that are too old cannot be removed; it is tried again in an hour");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A new id of an item, such as `msg`, which is nothing without that of its conversation.
    pub fn item_id(&self, kind: &str) -> String {
        let env = &self.0.env;
        format!("{kind}_{:016x}{:016x}", env.random_u64(), env.random_u64())
    }

    /// An answer; `None` where there is none, or none any more.
    ///
    /// # Errors
    /// As the disk says.
    pub async fn response(&self, tenant: &str, id: &str) -> Result<Option<StoredResponse>> {
        let row = row(tenant, id);
        self.blocking(move |inner| inner.responses.read(&row)).await
    }

    /// An answer behind those that it goes on from, the first one first, with nothing of their responses but the `output`; `None` where one of them
    /// is gone.
    ///
    /// # Errors
    /// `InvalidInput` where they are too many. As the disk says.
    pub async fn chain(&self, tenant: &str, id: &str) -> Result<Option<Vec<StoredResponse>>> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        self.blocking(move |inner| {
            let (mut chain, mut next, mut bytes) = (Vec::new(), Some(id), 0);
            while let Some(id) = next {
                let Some(mut found) = inner.responses.read(&row(&tenant, &id))? else { return Ok(None) };
                // What one repeats of its request, and its passages, are not gone on from, and those of all would be too much at once.
                let output = found.response.get_mut("output").map(Value::take).unwrap_or_default();
                found.response = json!({ "output": output });
                bytes += found.items().map(size).sum::<usize>();
                if chain.len() == MOST_TURNS || bytes > MOST_BYTES {
                    let message = format!(
                        "what was said before is more than {MOST_TURNS} answers, or than {MOST_BYTES} bytes; begin anew"
                    );
                    return Err(Error::new(ErrorKind::InvalidInput, message));
                }
                next = found.previous.clone();
                chain.push(found);
            }
            chain.reverse();
            Ok(Some(chain))
        })
        .await
    }

    /// Keeps an answer, and appends its turn to its conversation: in the place of the item `replaces` and all that follow it, where they are
    /// still there. `collection` is the full name of that which it was asked of. On disk on return.
    ///
    /// # Errors
    /// `NotFound` where its conversation is gone, `InvalidInput` where it is too large. As the disk says.
    pub async fn keep(
        &self,
        response: StoredResponse,
        replaces: Option<String>,
        collection: Option<String>,
    ) -> Result<()> {
        check_size(response.items())?;
        check_record(&response)?;
        let kept = response.clone();
        let write = move |inner: &Inner| {
            let written = inner.responses.write(&row(&kept.tenant, &kept.id), &kept)?;
            inner.has_written(written)
        };
        self.blocking(write).await?;
        let Some(conversation) = &response.conversation else { return Ok(()) };
        let (items, collections) = (response.items().cloned().collect(), response.collections.clone());
        let sources = Sources::of(&response, collection, self.0.env.now_unix_ms());
        let addition = Addition { items, replaces, collections, sources };
        let refused = match self.append(&response.tenant, conversation, addition).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => Error::new(ErrorKind::NotFound, format!("conversation `{conversation}` was deleted")),
            Err(error) => error,
        };
        self.remove_response(&response.tenant, &response.id).await?;
        Err(refused)
    }

    /// Removes an answer; whether it was there. Gone on return.
    ///
    /// # Errors
    /// As the disk says.
    pub async fn remove_response(&self, tenant: &str, id: &str) -> Result<bool> {
        let row = row(tenant, id);
        self.blocking(move |inner| inner.responses.remove(&row)).await
    }

    /// A tenant's conversations, the newest first.
    ///
    /// # Errors
    /// As the disk says.
    pub async fn list(&self, tenant: &str) -> Result<Vec<ConversationKey>> {
        let tenant = tenant.to_owned();
        let listed = move |inner: &Inner| -> Result<Vec<ConversationKey>> {
            let mut all = inner.keys.read_all(Some(&tenant))?;
            all.sort_by(|a, b| (b.created_unix_ms, &b.id).cmp(&(a.created_unix_ms, &a.id)));
            Ok(all)
        };
        self.blocking(listed).await
    }

    /// The heads of these conversations, in their order, without those that are gone meanwhile, or are damaged.
    ///
    /// # Errors
    /// As the disk says.
    pub async fn heads(&self, tenant: &str, ids: Vec<String>) -> Result<Vec<ConversationHead>> {
        let tenant = tenant.to_owned();
        let read = move |inner: &Inner| -> Result<Vec<ConversationHead>> {
            let mut heads = Vec::new();
            for id in ids {
                match inner.heads.read(&row(&tenant, &id)) {
                    Ok(found) => heads.extend(found),
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        tracing::error!(%error, "a conversation is left out; its file stays");
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(heads)
        };
        self.blocking(read).await
    }

    /// A conversation; `None` where there is none.
    ///
    /// # Errors
    /// As the disk says.
    pub async fn conversation(&self, tenant: &str, id: &str) -> Result<Option<StoredConversation>> {
        let row = row(tenant, id);
        self.blocking(move |inner| inner.conversations.read(&row)).await
    }

    /// Begins a conversation.
    ///
    /// # Errors
    /// As the disk says.
    pub async fn begin(
        &self,
        tenant: &str,
        items: Vec<Value>,
        metadata: Map<String, Value>,
    ) -> Result<StoredConversation> {
        let begun = StoredConversation {
            tenant: tenant.to_owned(),
            id: secret_id("conv")?,
            created_unix_ms: self.0.env.now_unix_ms(),
            metadata,
            collections: BTreeSet::new(),
            asked: first_question(&items),
            items,
            sources: Vec::new(),
        };
        let record = begun.clone();
        self.blocking(move |inner| inner.write_conversation(&record)).await?;
        Ok(begun)
    }

    /// Changes a conversation, and says what it is then; `None` where there is none.
    ///
    /// # Errors
    /// `InvalidInput` where it would be too long. As the disk says.
    pub async fn change(
        &self,
        tenant: &str,
        id: &str,
        change: impl FnOnce(&mut StoredConversation),
    ) -> Result<Option<StoredConversation>> {
        let _turn = self.0.changing.lock(id).await;
        let Some(mut kept) = self.conversation(tenant, id).await? else { return Ok(None) };
        change(&mut kept);
        kept.settle();
        let record = kept.clone();
        self.blocking(move |inner| inner.write_conversation(&record)).await?;
        Ok(Some(kept))
    }

    /// Appends to a conversation, and says what it is then; `None` where there is none. Answers of what is replaced are removed.
    ///
    /// # Errors
    /// `InvalidInput` where it would be too long. As the disk says.
    pub async fn append(&self, tenant: &str, id: &str, added: Addition) -> Result<Option<StoredConversation>> {
        let mut replaced = Vec::new();
        let changed = self.change(tenant, id, |kept| replaced = kept.add(added)).await?;
        self.remove_responses(tenant, replaced).await?;
        Ok(changed)
    }

    /// Removes a conversation; whether it was there. Its answers, which have ids of their own, go where that is asked for.
    ///
    /// # Errors
    /// As the disk says.
    pub async fn remove(&self, tenant: &str, id: &str, and_responses: bool) -> Result<bool> {
        let _turn = self.0.changing.lock(id).await;
        if and_responses {
            // What cannot be read names none.
            let found = self.conversation(tenant, id).await.unwrap_or_default();
            let answers = found.map(|found| found.sources).unwrap_or_default();
            self.remove_responses(tenant, answers.into_iter().map(|answer| answer.response).collect()).await?;
        }
        let row = row(tenant, id);
        self.blocking(move |inner| inner.conversations.remove(&row)).await
    }

    async fn remove_responses(&self, tenant: &str, ids: Vec<String>) -> Result<()> {
        for id in ids {
            self.remove_response(tenant, &id).await?;
        }
        Ok(())
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Inner) -> Result<T> + Send + 'static) -> Result<T> {
        let inner = self.0.clone();
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(done) => done,
            Err(error) => Err(Error::internal(format!("a look at what is kept broke off: {error}"))),
        }
    }
}

impl Inner {
    fn write_conversation(&self, record: &StoredConversation) -> Result<()> {
        check_size(record.items.iter())?;
        check_collections(&record.collections)?;
        check_record(record)?;
        let written = self.conversations.write(&row(&record.tenant, &record.id), record)?;
        self.has_written(written)
    }

    /// Holds the bound. What was written replaced something, maybe; a look tells.
    fn has_written(&self, bytes: u64) -> Result<()> {
        let total = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if total > self.bounds.most_bytes { self.clear() } else { Ok(()) }
    }

    /// Removes what is too old, and then the oldest of whoever has most, until the rest is within the bound. What is written meanwhile stays. Does
    /// nothing where another does it already.
    fn clear(&self) -> Result<()> {
        let _alone = match self.clearing.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(left)) => left.into_inner(),
            Ok(alone) => alone,
        };
        let counted = self.bytes.load(Ordering::Relaxed);
        let (responses, conversations) = (self.responses.files()?, self.conversations.files()?);
        let all: Vec<&RecordFile> = responses.iter().chain(&conversations).collect();
        let gone = leaving(&all, self.bounds, self.env.now_unix_ms());
        let mut removed = 0;
        for &index in &gone {
            let is_removed = match index.checked_sub(responses.len()) {
                None => self.responses.remove_file(&responses[index])?,
                Some(index) => self.conversations.remove_file(&conversations[index])?,
            };
            removed += usize::from(is_removed);
        }
        let gone: HashSet<usize> = gone.into_iter().collect();
        let left = |index: &usize| !gone.contains(index);
        let bytes: u64 = (0..all.len()).filter(left).map(|index| all[index].bytes).sum();
        // What others have written since the look began counts on. It is never refused.
        let count = |now: u64| Some(bytes.saturating_add(now.saturating_sub(counted)));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        if removed > 0 {
            tracing::debug!(files = removed, "responses and conversations were removed: too old, or no room");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::checks::{MOST_COLLECTIONS, MOST_RECORD};
    use super::*;

    fn response(id: &str, previous: Option<&str>, conversation: Option<&str>) -> StoredResponse {
        StoredResponse {
            tenant: "acme".into(),
            id: id.into(),
            collections: ["acme/house".to_owned()].into(),
            previous: previous.map(str::to_owned),
            conversation: conversation.map(str::to_owned),
            input: vec![json!({ "role": "user", "content": format!("asks {id}") })],
            response: json!({ "id": id, "output": [{ "type": "message", "content": format!("says {id}") }] }),
        }
    }

    #[tokio::test]
    async fn answers_are_found_behind_those_that_they_go_on_from_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Conversations::new(dir.path(), 30, 1 << 20, Env::seeded(1, 5_000));
        let kept = open();
        kept.keep(response("a", None, None), None, None).await.unwrap();
        kept.keep(response("b", Some("a"), None), None, None).await.unwrap();
        drop(kept);
        let kept = open();
        let chain = kept.chain("acme", "b").await.unwrap().unwrap();
        let items: Vec<&Value> = chain.iter().flat_map(StoredResponse::items).collect();
        let said = items.iter().map(|item| item["content"].as_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(said, ["asks a", "says a", "asks b", "says b"]);
        assert_eq!(kept.response("other", "a").await.unwrap(), None, "another tenant's");
        assert!(kept.remove_response("acme", "a").await.unwrap());
        assert!(!kept.remove_response("acme", "a").await.unwrap());
        assert_eq!(kept.chain("acme", "b").await.unwrap(), None, "what it went on from is gone");
    }

    #[tokio::test]
    async fn a_conversation_grows_by_its_answers_and_can_be_changed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Conversations::new(dir.path(), 30, 1 << 20, Env::seeded(1, 5_000));
        let begun = kept.begin("acme", Vec::new(), Map::new()).await.unwrap();
        let (first, second) = (response("a", None, Some(&begun.id)), response("b", None, Some(&begun.id)));
        let (one, other) = tokio::join!(kept.keep(first, None, None), kept.keep(second, None, None));
        one.and(other).unwrap();
        let grown = kept.conversation("acme", &begun.id).await.unwrap().unwrap();
        assert_eq!((grown.items.len(), grown.collections.len()), (4, 1), "no turn is lost");
        let listed = kept.list("acme").await.unwrap();
        assert_eq!((listed.len(), &listed[0].id), (1, &grown.id));
        assert!(kept.list("").await.unwrap().is_empty());
        assert!(kept.remove("acme", &begun.id, false).await.unwrap());
        let error = kept.keep(response("c", None, Some(&begun.id)), None, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let long = vec![json!("x".repeat(MOST_BYTES))];
        assert_eq!(kept.begin("acme", long, Map::new()).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[tokio::test]
    async fn what_cannot_be_read_again_is_not_written_and_what_a_kill_leaves_goes() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Conversations::new(dir.path(), 30, 1 << 20, Env::seeded(1, 5_000));
        let mut deep = response("deep", None, None);
        deep.response["text"] = (0..126).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(open().keep(deep, None, None).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        open().keep(response("a", None, None), None, None).await.unwrap();
        let left = dir.path().join("responses/x.json.unfinished");
        std::fs::write(&left, "secret").unwrap();
        open();
        assert!(!left.exists());
        assert!(open().response("acme", "a").await.unwrap().is_some());
    }

    /// Answers repeat their requests, and a chain has thousands of them.
    #[tokio::test]
    async fn a_chain_holds_what_was_said_and_a_record_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Conversations::new(dir.path(), 30, 1 << 30, Env::seeded(1, 5_000));
        let large = |id: &str, previous: Option<&str>, bytes: usize| {
            let mut large = response(id, previous, None);
            large.response["reasoning"] = json!({ "x": "x".repeat(bytes) });
            large
        };
        kept.keep(large("a", None, 1 << 20), None, None).await.unwrap();
        kept.keep(large("b", Some("a"), 1 << 20), None, None).await.unwrap();
        let chain = kept.chain("acme", "b").await.unwrap().unwrap();
        let held: Vec<&Value> = chain.iter().map(|found| &found.response).collect();
        let output = |id: &str| json!({ "output": [{ "type": "message", "content": format!("says {id}") }] });
        assert_eq!(held, [&output("a"), &output("b")]);
        let whole = kept.response("acme", "b").await.unwrap().unwrap();
        assert_eq!(whole, large("b", Some("a"), 1 << 20), "it is kept as it was answered");
        let error = kept.keep(large("c", None, MOST_RECORD), None, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(kept.response("acme", "c").await.unwrap(), None);
    }

    /// A list reads all of a tenant's conversations, and shows a few.
    #[tokio::test]
    async fn a_list_has_the_metadata_of_those_alone_that_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Conversations::new(dir.path(), 30, 1 << 30, Env::seeded(1, 5_000));
        for number in 0..20 {
            let metadata = Map::from_iter([("topic".to_owned(), json!(format!("{number}: {}", "x".repeat(500))))]);
            kept.begin("acme", Vec::new(), metadata).await.unwrap();
        }
        let listed = kept.list("acme").await.unwrap();
        assert_eq!(listed.len(), 20);
        assert!(!serde_json::to_string(&listed).unwrap().contains("xxx"), "metadata of all are in memory");
        let mut ids: Vec<String> = listed[3..5].iter().map(|key| key.id.clone()).collect();
        assert!(kept.remove("acme", &ids[1], false).await.unwrap());
        ids.push("conv_nothing".into());
        let shown = kept.heads("acme", ids.clone()).await.unwrap();
        assert_eq!((shown.len(), &shown[0].id), (1, &ids[0]));
        assert!(shown[0].metadata["topic"].as_str().unwrap().contains("xxx"));
        assert!(kept.heads("other", ids).await.unwrap().is_empty());
    }

    /// Each of them is asked about whenever somebody reads it.
    #[tokio::test]
    async fn a_conversation_is_of_so_many_collections() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Conversations::new(dir.path(), 30, 1 << 20, Env::seeded(1, 5_000));
        let begun = kept.begin("acme", Vec::new(), Map::new()).await.unwrap();
        let append = async |name: String| {
            let added = Addition { collections: [name].into(), ..Addition::default() };
            kept.append("acme", &begun.id, added).await
        };
        let many =
            Addition { collections: (1..MOST_COLLECTIONS).map(|at| format!("c{at}")).collect(), ..Addition::default() };
        kept.append("acme", &begun.id, many).await.unwrap();
        append("last".into()).await.unwrap();
        let error = append("more".into()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        append("last".into()).await.unwrap();
        let grown = kept.conversation("acme", &begun.id).await.unwrap().unwrap();
        assert_eq!(grown.collections.len(), MOST_COLLECTIONS);
    }

    #[tokio::test]
    async fn the_oldest_leave_where_there_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Conversations::new(dir.path(), 30, 40_960, Env::seeded(1, 5_000));
        for number in 0..100 {
            kept.keep(response(&number.to_string(), None, None), None, None).await.unwrap();
        }
        let files = std::fs::read_dir(dir.path().join("responses")).unwrap();
        assert!((1..=10).contains(&files.count()), "a block each");
    }
}
