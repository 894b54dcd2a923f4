//! Schemas that clients keep here by name, so that a prompt says which it is of instead of bringing it along (Prompt Cache, section 3.2).
//!
//! Keys of modules follow from tokens, so that no entry is ever taken for another version's. A schema that changes or goes takes the
//! KV along that none of its tenant's others has, from host memory, disk and bucket; on the device it is found no more, and leaves when room is needed.
//! Its entries' keys are noted in the catalog for each model that it was used with, so that KV of models that are not in use goes with it, too.

mod bounds;
mod stored;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ragstone_env::lock::NamedLocks;
use ragstone_storage::catalog::{Catalog, Holder, ModuleEntry, SchemaEntries, SchemaRecord};
use ragstone_storage::key::{Fingerprint, KvKey, SegmentDigest};
use ragstone_storage::segment::Segment;
use ragstone_storage::store::Withdrawn;
use ragstone_storage::tier::EntryId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::bounds::{check_name, check_room};
use self::stored::stored;
pub use self::stored::{StoredModule, StoredSchema};
use crate::admission::blocking::blocking;
use crate::admission::caller::Caller;
use crate::admission::deadline::deadline_after;
use crate::admission::tenant::check_tenant;
use crate::answer::pipeline::Pipeline;
use crate::error::{Error, ErrorKind, Result};
use ragstone_pml::{GivenSources, Layout, Schema};

/// Schemas whose layouts are kept in memory.
const MOST_KNOWN: usize = 64;
/// Laying a schema out reads its text once.
const LAYOUT_DEADLINE: Duration = Duration::from_secs(60);

/// The schemas of a running program. Clones share them.
#[derive(Clone)]
pub struct Schemas(Arc<Inner>);

struct Inner {
    catalog: Arc<Catalog>,
    pipeline: Arc<Pipeline>,
    known: Mutex<KnownSchemas>,
    /// One change at a time of a tenant's: a bucket that does not answer is waited for.
    changing: NamedLocks,
}

#[derive(Default)]
struct KnownSchemas {
    /// What was read and laid out, by version.
    laid_out: HashMap<String, Arc<Known>>,
    /// Those whose entries were noted since the start: tenant, name and version. One that changes back is noted again by who adds it.
    noted: HashSet<[String; 3]>,
}

struct Known {
    schema: Arc<Schema>,
    layout: Arc<Layout>,
    modules: Vec<(String, Segment)>,
}

impl Known {
    /// A tenant's entries of it under one model. Hashes its text: not for the threads that answer.
    fn entries(&self, fingerprint: &Fingerprint, tenant: &str) -> Vec<ModuleEntry> {
        let entry = |(path, segment): &(String, Segment)| {
            let (key, _) = segment.apart(fingerprint, tenant)?;
            Some(ModuleEntry { path: path.clone(), key, segment: SegmentDigest::of(fingerprint, &segment.tokens) })
        };
        self.modules.iter().filter_map(entry).collect()
    }
}

/// A schema that was found for a prompt.
pub struct Found {
    /// The schema.
    pub schema: Arc<Schema>,
    /// Where everything of it stands.
    pub layout: Arc<Layout>,
    /// The store's epoch before it was found.
    pub found_in: u64,
}

/// What adding a schema did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Added {
    /// What is kept now.
    #[serde(flatten)]
    pub schema: StoredSchema,
    /// Whether it differs from what was there, or nothing was.
    pub is_new: bool,
    /// KV of what it does not say any more.
    #[serde(flatten)]
    pub withdrawn: Withdrawn,
}

/// What an entry is, where it is a module's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct ModuleName {
    /// Its schema; of several, the first by name.
    pub schema: String,
    /// The module's path in it; `/` is the schema's own text.
    pub module: String,
}

impl Schemas {
    pub(crate) fn new(catalog: Arc<Catalog>, pipeline: Arc<Pipeline>) -> Self {
        let (known, changing) = (Mutex::default(), NamedLocks::default());
        Self(Arc::new(Inner { catalog, pipeline, known, changing }))
    }

    /// Keeps a schema under its name, in the place of what the tenant had under it. `sources` are the texts that it names.
    ///
    /// # Errors
    /// `InvalidInput` for a schema that cannot be read or laid out, or where there are too many.
    pub async fn add(
        &self,
        tenant: &str,
        text: String,
        sources: BTreeMap<String, String>,
        caller: Caller,
    ) -> Result<Added> {
        check_tenant(tenant)?;
        let (tenant_of, added_unix_ms) = (tenant.to_owned(), self.0.pipeline.env.now_unix_ms());
        let read = move || {
            let name = Schema::parse(&text, &GivenSources::new(&sources))?.name;
            check_name(&name)?;
            let version = version(&text, &sources);
            Ok(SchemaRecord { tenant: tenant_of, name, version, schema: text, sources, added_unix_ms })
        };
        let record = self.0.pipeline.assembler.read(caller, deadline_after(LAYOUT_DEADLINE), read).await?;
        // Before the turn: it may take its time, and others' changes wait for that.
        let known = self.laid_out(&record, caller).await?;
        let _turn = self.0.changing.lock(tenant).await;
        let before = self.record(tenant, &record.name).await?;
        if let Some(before) = before.as_ref().filter(|before| before.version == record.version) {
            let schema = stored(before, &known.layout);
            return Ok(Added { schema, is_new: false, withdrawn: Withdrawn::default() });
        }
        check_room(&self.0.catalog.schemas_beside(tenant, &record.name), &record)?;
        let leaving = match &before {
            Some(before) => self.leaving(before, Some(&known), caller).await?,
            None => Vec::new(),
        };
        // First, so that whoever is interrupted has the old one still, and adds the new one again.
        let withdrawn = self.withdraw(&leaving).await?;
        let (catalog, kept) = (self.0.catalog.clone(), record.clone());
        blocking(move || catalog.put_schema(&kept)).await?;
        self.note(&record, &known).await?;
        self.withdraw_again(&leaving, before.as_ref()).await;
        Ok(Added { schema: stored(&record, &known.layout), is_new: true, withdrawn })
    }

    /// A tenant's schemas: names, versions, and when they were given, by name.
    ///
    /// # Errors
    /// As the catalog says.
    pub async fn list(&self, tenant: &str) -> Result<Vec<SchemaRecord>> {
        let (catalog, tenant) = (self.0.catalog.clone(), tenant.to_owned());
        blocking(move || catalog.schemas_of(&tenant)).await
    }

    /// A schema, with its modules.
    ///
    /// # Errors
    /// `NotFound` where the tenant has none of this name.
    pub async fn get(&self, tenant: &str, name: &str, caller: Caller) -> Result<(SchemaRecord, StoredSchema)> {
        let record = self.needed(tenant, name).await?;
        let known = self.known(&record, caller).await?;
        let stored = stored(&record, &known.layout);
        Ok((record, stored))
    }

    /// A schema for a prompt.
    ///
    /// # Errors
    /// As [`Schemas::get`].
    pub async fn find(&self, tenant: &str, name: &str, caller: Caller) -> Result<Found> {
        // First: where its KV is withdrawn from here on, none of the prompt's is filed.
        let found_in = self.0.pipeline.store.epoch();
        let record = self.needed(tenant, name).await?;
        let known = self.known(&record, caller).await?;
        Ok(Found { schema: known.schema.clone(), layout: known.layout.clone(), found_in })
    }

    /// The entries of a schema's modules, under every model that it was used with: all, or those of one module with what it contains.
    ///
    /// # Errors
    /// As [`Schemas::get`]; `InvalidInput` for a module that the schema does not have.
    pub async fn entries(
        &self,
        tenant: &str,
        name: &str,
        module: Option<&str>,
        caller: Caller,
    ) -> Result<HashSet<KvKey>> {
        let record = self.needed(tenant, name).await?;
        let known = self.known(&record, caller).await?;
        let paths: Vec<String> = module.map(str::to_owned).into_iter().collect();
        check_paths(name, &known, &paths)?;
        let noted = self.noted_of(tenant).await?;
        let entries = noted.into_iter().filter(|noted| noted.name == name).flat_map(|noted| noted.modules);
        Ok(entries.filter(|entry| is_wanted(&entry.path, &paths)).map(|entry| entry.key).collect())
    }

    /// What entries are, of modules of whatever tenant.
    ///
    /// # Errors
    /// As the catalog says.
    pub async fn names(&self) -> Result<HashMap<KvKey, ModuleName>> {
        let catalog = self.0.catalog.clone();
        blocking(move || {
            let mut names: HashMap<KvKey, ModuleName> = HashMap::new();
            for SchemaEntries { name: schema, modules, .. } in catalog.schema_entries()? {
                for ModuleEntry { path: module, key, .. } in modules {
                    let name = ModuleName { schema: schema.clone(), module };
                    let known = names.entry(key).or_insert_with(|| name.clone());
                    *known = name.min(known.clone());
                }
            }
            Ok(names)
        })
        .await
    }

    /// The texts of a schema's modules, as each is computed apart: all, or those of these paths with what they contain; and of which version
    /// they are.
    ///
    /// # Errors
    /// As [`Schemas::get`]; `InvalidInput` for a path that the schema does not have.
    pub(crate) async fn modules(&self, tenant: &str, name: &str, paths: &[String]) -> Result<(String, Vec<Segment>)> {
        let record = self.needed(tenant, name).await?;
        let known = self.known(&record, Caller::default()).await?;
        check_paths(name, &known, paths)?;
        let wanted = known.modules.iter().filter(|(path, _)| is_wanted(path, paths));
        Ok((record.version, wanted.map(|(_, segment)| segment.clone()).collect()))
    }

    /// Fails once a schema has another text than that of `version`.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn check_version(&self, tenant: &str, name: &str, version: &str) -> Result<()> {
        if self.0.catalog.schema_version(tenant, name).as_deref() == Some(version) {
            return Ok(());
        }
        let message = format!("schema `{name}` changed or went while its modules were computed; encode it again");
        Err(Error::new(ErrorKind::NotFound, message))
    }

    /// Forgets a schema, and takes the KV along that no other one has a text of.
    ///
    /// # Errors
    /// As [`Schemas::get`], and those of a tier: then it is still there, to be removed again.
    pub async fn remove(&self, tenant: &str, name: &str, caller: Caller) -> Result<Withdrawn> {
        let _turn = self.0.changing.lock(tenant).await;
        let record = self.needed(tenant, name).await?;
        let leaving = self.leaving(&record, None, caller).await?;
        // First, so that whoever is interrupted asks again.
        let withdrawn = self.withdraw(&leaving).await?;
        let (catalog, gone) = (self.0.catalog.clone(), record.clone());
        blocking(move || catalog.remove_schema(&gone.tenant, &gone.name)).await?;
        self.withdraw_again(&leaving, Some(&record)).await;
        Ok(withdrawn)
    }

    async fn record(&self, tenant: &str, name: &str) -> Result<Option<SchemaRecord>> {
        let (catalog, tenant, name) = (self.0.catalog.clone(), tenant.to_owned(), name.to_owned());
        blocking(move || catalog.schema(&tenant, &name)).await
    }

    async fn needed(&self, tenant: &str, name: &str) -> Result<SchemaRecord> {
        let missing = || {
            let message = format!("no schema `{name}` is kept; add it first, or send it with the prompt");
            Error::new(ErrorKind::NotFound, message)
        };
        self.record(tenant, name).await?.ok_or_else(missing)
    }

    /// A schema that is kept. Its entries are noted from here on.
    async fn known(&self, record: &SchemaRecord, caller: Caller) -> Result<Arc<Known>> {
        let known = self.laid_out(record, caller).await?;
        let of = [record.tenant.clone(), record.name.clone(), record.version.clone()];
        if !self.lock().noted.contains(&of) {
            self.note(record, &known).await?;
        }
        Ok(known)
    }

    async fn laid_out(&self, record: &SchemaRecord, caller: Caller) -> Result<Arc<Known>> {
        if let Some(known) = self.lock().laid_out.get(&record.version) {
            return Ok(known.clone());
        }
        let (assembler, deadline) = (&self.0.pipeline.assembler, deadline_after(LAYOUT_DEADLINE));
        let (text, sources) = (record.schema.clone(), record.sources.clone());
        let read = move || Schema::parse(&text, &GivenSources::new(&sources)).map(Arc::new);
        let schema = assembler.read(caller, deadline, read).await?;
        let (layout, modules) = assembler.lay_out(schema.clone(), caller, deadline).await?;
        let known = Arc::new(Known { schema, layout: Arc::new(layout), modules });
        let all = &mut self.lock().laid_out;
        if all.len() >= MOST_KNOWN {
            all.clear();
        }
        all.insert(record.version.clone(), known.clone());
        Ok(known)
    }

    /// Notes the entries of a schema under the present model, before there are any.
    async fn note(&self, record: &SchemaRecord, known: &Arc<Known>) -> Result<()> {
        let SchemaRecord { tenant, name, version, .. } = record.clone();
        let of = [tenant.clone(), name.clone(), version.clone()];
        let (catalog, fingerprint, known) =
            (self.0.catalog.clone(), *self.0.pipeline.store.fingerprint(), known.clone());
        blocking(move || {
            let modules = known.entries(&fingerprint, &tenant);
            catalog.put_schema_entries(&SchemaEntries { tenant, name, version, fingerprint, modules })
        })
        .await?;
        self.lock().noted.insert(of);
        Ok(())
    }

    /// What is noted of a tenant's schemas.
    async fn noted_of(&self, tenant: &str) -> Result<Vec<SchemaEntries>> {
        let (catalog, tenant) = (self.0.catalog.clone(), tenant.to_owned());
        blocking(move || catalog.schema_entries_of(&tenant)).await
    }

    /// What was computed of a schema, but for what the tenant's other schemas have, too, and the one that takes its place. Keys are the tenant's
    /// own, so that nobody removes, or learns of, what others have.
    async fn leaving(
        &self,
        gone: &SchemaRecord,
        instead: Option<&Arc<Known>>,
        caller: Caller,
    ) -> Result<Vec<(Fingerprint, EntryId)>> {
        // An earlier build noted nothing.
        for record in self.list(&gone.tenant).await? {
            if let Err(error) = self.known(&record, caller).await {
                // This model cannot use it, and computed nothing of it.
                tracing::debug!(%error, schema = record.name, "a schema that is kept cannot be laid out");
            }
        }
        let mut wanted: HashMap<KvKey, (Fingerprint, EntryId)> = HashMap::new();
        let mut kept: HashSet<KvKey> = HashSet::new();
        for SchemaEntries { name, fingerprint, modules, .. } in self.noted_of(&gone.tenant).await? {
            if name == gone.name {
                wanted.extend(modules.iter().map(|entry| (entry.key, (fingerprint, entry.id()))));
            } else {
                kept.extend(modules.iter().map(|entry| entry.key));
            }
        }
        if let Some(instead) = instead.cloned() {
            let (fingerprint, tenant) = (*self.0.pipeline.store.fingerprint(), gone.tenant.clone());
            let entries = blocking(move || Ok(instead.entries(&fingerprint, &tenant))).await?;
            kept.extend(entries.iter().map(|entry| entry.key));
        }
        wanted.retain(|key, _| !kept.contains(key));
        Ok(wanted.into_values().collect())
    }

    /// Takes entries out of every tier.
    async fn withdraw(&self, leaving: &[(Fingerprint, EntryId)]) -> Result<Withdrawn> {
        if leaving.is_empty() {
            return Ok(Withdrawn::default());
        }
        let (store, catalog, leaving) = (self.0.pipeline.store.clone(), self.0.catalog.clone(), leaving.to_vec());
        blocking(move || {
            catalog.note_remains(&Holder::Kv, store.env().now_unix_ms())?;
            store.withdraw(&leaving)
        })
        .await
    }

    /// Once nobody finds the old text any more: who found it before may have filed some of it since it was withdrawn.
    async fn withdraw_again(&self, leaving: &[(Fingerprint, EntryId)], gone: Option<&SchemaRecord>) {
        if let Some(gone) = gone {
            let mut known = self.lock();
            known.laid_out.remove(&gone.version);
            known.noted.remove(&[gone.tenant.clone(), gone.name.clone(), gone.version.clone()]);
        }
        // What a dead bucket keeps is noted, and leaves with the next invalidation.
        if let Err(error) = self.withdraw(leaving).await {
            tracing::warn!(%error, "what was filed of a schema while it changed may stay until documents are removed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, KnownSchemas> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a module is among these paths, or within one of them; none is all.
fn is_wanted(module: &str, paths: &[String]) -> bool {
    let is_within =
        |path: &String| module.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    paths.is_empty() || paths.iter().any(is_within)
}

/// Paths of a request: each is compared with all modules.
const MOST_PATHS: usize = 1000;

fn check_paths(schema: &str, known: &Known, paths: &[String]) -> Result<()> {
    if paths.len() > MOST_PATHS {
        let message = format!("{} modules are named; name at most {MOST_PATHS}, or none for all", paths.len());
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    let is_there = |path: &String| known.modules.iter().any(|(of, _)| is_wanted(of, std::slice::from_ref(path)));
    match paths.iter().find(|path| !is_there(path)) {
        None => Ok(()),
        Some(unknown) => {
            let message =
                format!("schema `{schema}` has no module `{unknown}` that is kept; `ragstone pml show` lists them");
            Err(Error::new(ErrorKind::InvalidInput, message))
        }
    }
}

/// The same for the same text and sources.
fn version(text: &str, sources: &BTreeMap<String, String>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in std::iter::once(text).chain(sources.iter().flat_map(|(name, text)| [name.as_str(), text])) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
