//! API keys: made, found by what is sent, revoked.
//!
//! A key is 256 random bits and is kept as its hash alone. It is looked up by that hash, so that how long a wrong one takes says nothing
//! about right ones. All are in memory: a new one is durable before it holds, a revoked one holds no more before that is durable.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use ragstone_corpus::{check_stored_name, tenant_of};
use ragstone_env::Env;
use ragstone_storage::catalog::{ApiKeyRecord, Catalog, Role};

use crate::admission::blocking::blocking;
use crate::admission::caller::Caller;
use crate::admission::tenant::check_new_tenant;
use crate::error::{Error, ErrorKind, Result};

/// What every key begins with, so that a person or a scanner of leaked secrets knows one.
const PREFIX: &str = "rag_";
/// Hex digits behind it.
const DIGITS: usize = 64;
/// Keys of a data folder.
const MOST_KEYS: usize = 4096;
/// Collections of others that one key may read.
const MOST_COLLECTIONS: usize = 256;
/// Bytes of a key's name.
const MOST_NAME_BYTES: usize = 128;

/// A key that is to be made.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    /// What people know it by.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Whose it is.
    pub tenant: String,
    /// Collections of other tenants that it may read, by their full names.
    pub collections: Vec<String>,
}

/// The keys of a running program. Clones share them.
#[derive(Clone)]
pub struct ApiKeys(Arc<Inner>);

struct Inner {
    catalog: Arc<Catalog>,
    env: Env,
    known: RwLock<HashMap<[u8; 32], Arc<ApiKey>>>,
    /// One change at a time.
    changing: tokio::sync::Mutex<()>,
}

/// A key that is in force.
#[derive(Debug)]
pub struct ApiKey {
    /// As it is kept.
    pub record: ApiKeyRecord,
    /// Who it is, as far as fairness goes.
    pub caller: Caller,
    revoked: AtomicBool,
}

impl ApiKey {
    /// A key in force.
    pub fn new(record: ApiKeyRecord) -> Self {
        let caller = Caller::of_tenant(&record.tenant);
        Self { record, caller, revoked: AtomicBool::new(false) }
    }

    /// Whether it was revoked since it was found.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Whether it may search and read this collection, by its full name: one of its tenant's, or one that was granted.
    pub fn may_read(&self, collection: &str) -> bool {
        self.owns(collection) || self.record.collections.iter().any(|granted| granted == collection)
    }

    /// Whether this collection, by its full name, is its tenant's.
    pub fn owns(&self, collection: &str) -> bool {
        tenant_of(collection) == self.record.tenant
    }
}

impl ApiKeys {
    /// Reads them from the catalog. BLOCKS.
    pub(crate) fn open(catalog: Arc<Catalog>, env: Env) -> Result<Self> {
        let records = catalog.api_keys()?;
        let known = records.into_iter().filter_map(|record| {
            let hash = blake3::Hash::from_hex(&record.hash).ok()?;
            Some((*hash.as_bytes(), Arc::new(ApiKey::new(record))))
        });
        let known = RwLock::new(known.collect());
        Ok(Self(Arc::new(Inner { catalog, env, known, changing: tokio::sync::Mutex::default() })))
    }

    /// The key that was sent, where it is in force.
    pub fn find(&self, sent: &[u8]) -> Option<Arc<ApiKey>> {
        // Nothing of another length is hashed.
        let is_key = sent.len() == PREFIX.len() + DIGITS && sent.starts_with(PREFIX.as_bytes());
        is_key.then(|| self.known().get(blake3::hash(sent).as_bytes()).cloned()).flatten()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known().is_empty()
    }

    /// All of them, by name.
    pub fn list(&self) -> Vec<ApiKeyRecord> {
        let mut all: Vec<ApiKeyRecord> = self.known().values().map(|key| key.record.clone()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Makes a key of 32 random bytes, which must come from where nobody can replay them. Gives the key itself, which nobody can be
    /// told again, and what is kept of it; durable on return.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is taken or cannot be one, a bad tenant or collection, or too many.
    pub async fn add(&self, wanted: NewApiKey, random: [u8; 32]) -> Result<(String, ApiKeyRecord)> {
        check(&wanted.name, &wanted.tenant, &wanted.collections)?;
        let keys = self.clone();
        to_the_end(async move { keys.make(wanted, random).await }).await
    }

    /// Whether such a key may be made, for who changes something else first.
    ///
    /// # Errors
    /// As [`add`](Self::add)'s.
    pub fn check(&self, wanted: &NewApiKey) -> Result<()> {
        check(&wanted.name, &wanted.tenant, &wanted.collections)?;
        self.check_room(&wanted.name)
    }

    async fn make(&self, wanted: NewApiKey, random: [u8; 32]) -> Result<(String, ApiKeyRecord)> {
        let NewApiKey { name, role, tenant, mut collections } = wanted;
        collections.sort();
        collections.dedup();
        let _turn = self.0.changing.lock().await;
        self.check_room(&name)?;
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = format!("{PREFIX}{digits}");
        let hash = blake3::hash(key.as_bytes());
        let added_unix_ms = self.0.env.now_unix_ms();
        let record = ApiKeyRecord { name, hash: hash.to_hex().to_string(), role, tenant, collections, added_unix_ms };
        let (catalog, kept) = (self.0.catalog.clone(), record.clone());
        blocking(move || catalog.put_api_key(&kept)).await?;
        let known = Arc::new(ApiKey::new(record.clone()));
        self.0.known.write().unwrap_or_else(PoisonError::into_inner).insert(*hash.as_bytes(), known);
        Ok((key, record))
    }

    /// Revokes a key: what is asked with it from now on is refused; what is being answered ends as it would have. Durable on return.
    ///
    /// # Errors
    /// `NotFound`; where the catalog cannot be written the key is refused all the same until the next start, and is to be revoked again.
    pub async fn revoke(&self, name: &str) -> Result<()> {
        let (keys, name) = (self.clone(), name.to_owned());
        to_the_end(async move { keys.forget(&name).await }).await
    }

    async fn forget(&self, name: &str) -> Result<()> {
        let _turn = self.0.changing.lock().await;
        // First, so that whatever becomes of the rest, it opens nothing.
        self.0.known.write().unwrap_or_else(PoisonError::into_inner).retain(|_, key| {
            let is_meant = key.record.name == name;
            key.revoked.fetch_or(is_meant, Ordering::AcqRel);
            !is_meant
        });
        let (catalog, wanted) = (self.0.catalog.clone(), name.to_owned());
        if blocking(move || catalog.remove_api_key(&wanted)).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, format!("there is no key `{}`; see `ragstone keys list`", shown(name))))
    }

    fn check_room(&self, name: &str) -> Result<()> {
        let known = self.known();
        let message = if known.values().any(|key| key.record.name == name) {
            format!("there is a key `{name}` already; revoke it first, or take another name")
        } else if known.len() >= MOST_KEYS {
            format!("{MOST_KEYS} keys are the most there may be; revoke some")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidInput, message))
    }

    fn known(&self) -> RwLockReadGuard<'_, HashMap<[u8; 32], Arc<ApiKey>>> {
        self.0.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs what must not stop halfway where its client leaves.
async fn to_the_end<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let done = tokio::spawn(work).await;
    done.map_err(|_| Error::new(ErrorKind::Internal, "the change of the keys broke off"))?
}

fn check(name: &str, tenant: &str, collections: &[String]) -> Result<()> {
    let invalid = |message| Err(Error::new(ErrorKind::InvalidInput, message));
    // What steers a terminal, or shows nothing, could pass one key off as another in a list.
    let is_plain = |c: char| c.is_alphanumeric() || c == ' ' || c.is_ascii_graphic() && c != '/';
    let is_usable = !["", ".", ".."].contains(&name) && name.chars().all(is_plain);
    if !is_usable || name.len() > MOST_NAME_BYTES || name.trim() != name {
        return invalid(format!(
            "a key's name has 1 to {MOST_NAME_BYTES} bytes of letters, digits and ASCII signs, and no slash"
        ));
    }
    check_new_tenant(tenant)?;
    if collections.len() > MOST_COLLECTIONS {
        return invalid(format!("a key may be given {MOST_COLLECTIONS} collections of others at most"));
    }
    // It may be one of an earlier version's.
    collections.iter().try_for_each(|collection| check_stored_name(collection))
}

/// As much of somebody's text as a message needs.
fn shown(text: &str) -> String {
    text.escape_default().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &tempfile::TempDir) -> ApiKeys {
        let env = Env::seeded(5, 77);
        let catalog = Arc::new(Catalog::open(&dir.path().join("catalog"), &env).unwrap());
        ApiKeys::open(catalog, env).unwrap()
    }

    fn wanted(name: &str, tenant: &str) -> NewApiKey {
        NewApiKey { name: name.into(), role: Role::Read, tenant: tenant.into(), collections: Vec::new() }
    }

    #[tokio::test]
    async fn a_key_is_found_by_itself_alone_until_it_is_revoked() {
        let dir = tempfile::TempDir::new().unwrap();
        let (first, second) = {
            let keys = open(&dir);
            assert!(keys.is_empty());
            let (first, record) = keys.add(wanted("a", "acme"), [7; 32]).await.unwrap();
            let (second, _) = keys.add(wanted("b", ""), [8; 32]).await.unwrap();
            let (third, _) = keys.add(wanted("c", "acme"), [9; 32]).await.unwrap();
            assert_eq!((first.len(), &first[..6]), (68, "rag_07"));
            assert!(!format!("{record:?}").contains(&first[4..]));
            assert_eq!(keys.find(first.as_bytes()).unwrap().record, record);
            // Turns are a tenant's: more keys bring nobody more.
            let caller = |key: &str| keys.find(key.as_bytes()).unwrap().caller;
            assert!(caller(&first) != caller(&second) && caller(&first) == caller(&third));
            (first, second)
        };
        let keys = open(&dir);
        assert_eq!(keys.find(first.as_bytes()).unwrap().record.name, "a");
        let mut wrong = first.clone().into_bytes();
        for at in 0..wrong.len() {
            wrong[at] ^= 1;
            assert!(keys.find(&wrong).is_none(), "{at}");
            wrong[at] ^= 1;
        }
        let long = first.repeat(1000);
        for wrong in [&b""[..], b"rag_", &first.as_bytes()[..67], long.as_bytes(), first.to_uppercase().as_bytes()] {
            assert!(keys.find(wrong).is_none());
        }
        keys.revoke("a").await.unwrap();
        assert!(keys.find(first.as_bytes()).is_none() && keys.find(second.as_bytes()).is_some());
        assert_eq!(keys.revoke("a").await.unwrap_err().kind(), ErrorKind::NotFound);
        drop(keys);
        let keys = open(&dir);
        assert!(keys.find(first.as_bytes()).is_none() && keys.find(second.as_bytes()).is_some());
        // The name is free again, and the new key is another one.
        let (again, _) = keys.add(wanted("a", "acme"), [10; 32]).await.unwrap();
        assert_ne!(again, first);
    }

    #[tokio::test]
    async fn what_cannot_be_a_key_is_refused() {
        let dir = tempfile::TempDir::new().unwrap();
        let keys = open(&dir);
        keys.add(wanted("taken", ""), [1; 32]).await.unwrap();
        let long = "x".repeat(MOST_NAME_BYTES + 1);
        for name in ["", ".", "..", "a/b", "a\nb", "a\u{202e}b", "a\u{200b}", " a", &long, "taken"] {
            let error = keys.add(wanted(name, ""), [2; 32]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}");
        }
        assert!(keys.add(wanted("b", "a\nb"), [2; 32]).await.is_err());
        for collections in [vec!["no good".to_owned()], vec!["a".to_owned(); MOST_COLLECTIONS + 1]] {
            let wanted = NewApiKey { collections, ..wanted("b", "") };
            assert_eq!(keys.add(wanted, [2; 32]).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(keys.list().len(), 1);
    }

    #[test]
    fn what_was_granted_is_read_and_not_owned() {
        let record = ApiKeyRecord {
            name: "a".into(),
            hash: String::new(),
            role: Role::Write,
            tenant: "acme".into(),
            collections: vec!["other/notes".into()],
            added_unix_ms: 0,
        };
        let key = ApiKey::new(record);
        for (collection, reads, owns) in [
            ("acme/x", true, true),
            ("other/notes", true, false),
            ("other/x", false, false),
            ("x", false, false),
            ("acme", false, false),
        ] {
            assert_eq!((key.may_read(collection), key.owns(collection)), (reads, owns), "{collection}");
        }
    }

    /// Whoever revokes a key and leaves has revoked it.
    #[tokio::test]
    async fn a_revocation_that_nobody_waits_for_is_done() {
        let dir = tempfile::TempDir::new().unwrap();
        let keys = open(&dir);
        let (key, _) = keys.add(wanted("a", ""), [7; 32]).await.unwrap();
        let mut revoking = Box::pin(keys.revoke("a"));
        assert!(futures::poll!(&mut revoking).is_pending());
        drop(revoking);
        // It waits for its turn behind the other.
        assert_eq!(keys.revoke("a").await.unwrap_err().kind(), ErrorKind::NotFound);
        assert!(keys.find(key.as_bytes()).is_none());
        assert_eq!(keys.0.catalog.api_keys().unwrap(), []);
    }
}
