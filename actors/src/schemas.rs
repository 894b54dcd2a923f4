//! Schemas that clients keep here by name, so that a prompt says which it is of instead of bringing it along (Prompt Cache, section 3.2).
//!
//! Keys of modules follow from tokens, so that no entry is ever taken for another version's. A schema that changes or goes takes the
//! KV along that none of its tenant's others has, from host memory, disk and bucket; on the device it is found no more, and leaves when room is needed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ragstone_storage::catalog::{Catalog, SchemaRecord};
use ragstone_storage::key::{KvKey, SegmentDigest};
use ragstone_storage::prompt::segment::Segment;
use ragstone_storage::tier::{EntryId, Tier};
use serde::Serialize;

use crate::background::{Precomputed, Whose};
use crate::caller::Caller;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Pipeline;
use crate::pml::{Block, GivenSources, Layout, Part, Schema};
use crate::question::check_tenant;
use crate::ragstone::blocking;
use crate::stream::deadline_after;

/// Schemas of a tenant, and of a data folder.
const MOST_OF_TENANT: usize = 256;
const MOST_SCHEMAS: usize = 4096;
/// Bytes of a schema with its sources, and of all that are kept.
const MOST_BYTES: usize = 8 << 20;
const MOST_BYTES_OF_ALL: usize = 256 << 20;
/// Schemas whose layouts are kept in memory.
const MOST_KNOWN: usize = 64;
/// Bytes of a schema's name.
const MOST_NAME_BYTES: usize = 128;
/// Laying a schema out reads its text once.
const LAYOUT_DEADLINE: Duration = Duration::from_secs(60);

/// The schemas of a running program. Clones share them.
#[derive(Clone)]
pub struct Schemas(Arc<Inner>);

struct Inner {
    catalog: Arc<Catalog>,
    pipeline: Arc<Pipeline>,
    /// What was read and laid out, by version.
    known: Mutex<HashMap<String, Arc<Known>>>,
    /// One change at a time.
    changing: tokio::sync::Mutex<()>,
}

struct Known {
    schema: Arc<Schema>,
    layout: Layout,
    modules: Vec<(String, Segment)>,
}

/// A schema that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredSchema {
    /// Its own name.
    pub name: String,
    /// What tells it from others of its name.
    pub version: String,
    /// Whose it is.
    pub tenant: String,
    /// When it was given, in milliseconds since 1970.
    pub added_unix_ms: u64,
    /// Positions that it takes of the context.
    pub positions: u32,
    /// Its own text, under `/`, and its modules, by position.
    pub modules: Vec<StoredModule>,
}

/// A module of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredModule {
    /// Its name behind those of the modules that it is in.
    pub path: String,
    /// Its first position.
    pub start: u32,
    /// Its positions, those of what it contains among them.
    pub positions: u32,
    /// Tokens of its own text.
    pub tokens: u32,
    /// Whether its KV is kept.
    pub cache: bool,
}

/// KV that left the tiers with a schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Withdrawn {
    /// Entries, each counted once.
    pub entries_removed: u64,
    /// Their copies, and those of what stood behind them.
    pub copies_removed: u64,
}

/// What adding a schema did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

/// What encoding a schema's modules did, counted in texts of modules: parts between parameters count one each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Encoded {
    /// Computed and kept.
    pub computed: u32,
    /// Kept by a tier already.
    pub already_there: u32,
    /// Computed, and kept by no tier: there is no room, or loading it would take longer than computing it.
    pub not_kept: u32,
}

impl Schemas {
    pub(crate) fn new(catalog: Arc<Catalog>, pipeline: Arc<Pipeline>) -> Self {
        let (known, changing) = (Mutex::default(), tokio::sync::Mutex::default());
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
        let _turn = self.0.changing.lock().await;
        let name = Schema::parse(&text, &GivenSources::new(&sources))?.name;
        check_name(&name)?;
        let record = SchemaRecord {
            tenant: tenant.to_owned(),
            name,
            version: version(&text, &sources),
            schema: text,
            sources,
            added_unix_ms: self.0.pipeline.env.now_unix_ms(),
        };
        let known = self.known(&record, caller).await?;
        let before = self.record(tenant, &record.name).await?;
        if let Some(before) = before.as_ref().filter(|before| before.version == record.version) {
            let schema = stored(before, &known);
            return Ok(Added { schema, is_new: false, withdrawn: Withdrawn::default() });
        }
        let (catalog, kept) = (self.0.catalog.clone(), record.clone());
        blocking(move || check_room(&catalog.schemas()?, &kept)).await?;
        // First, so that whoever is interrupted has the old one still, and adds the new one again.
        let withdrawn = match &before {
            Some(before) => self.withdraw(before, Some(&known), caller).await?,
            None => Withdrawn::default(),
        };
        let (catalog, kept) = (self.0.catalog.clone(), record.clone());
        blocking(move || Ok(catalog.put_schema(&kept)?)).await?;
        Ok(Added { schema: stored(&record, &known), is_new: true, withdrawn })
    }

    /// A tenant's schemas: names, versions, and when they were given, by name.
    ///
    /// # Errors
    /// As the catalog says.
    pub async fn list(&self, tenant: &str) -> Result<Vec<SchemaRecord>> {
        let (catalog, tenant) = (self.0.catalog.clone(), tenant.to_owned());
        blocking(move || {
            let mut all = catalog.schemas()?;
            all.retain(|record| record.tenant == tenant);
            Ok(all)
        })
        .await
    }

    /// A schema, with its modules.
    ///
    /// # Errors
    /// `NotFound` where the tenant has none of this name.
    pub async fn get(&self, tenant: &str, name: &str, caller: Caller) -> Result<(SchemaRecord, StoredSchema)> {
        let record = self.needed(tenant, name).await?;
        let known = self.known(&record, caller).await?;
        let stored = stored(&record, &known);
        Ok((record, stored))
    }

    /// A schema for a prompt.
    ///
    /// # Errors
    /// As [`Schemas::get`].
    pub async fn find(&self, tenant: &str, name: &str, caller: Caller) -> Result<Arc<Schema>> {
        let record = self.needed(tenant, name).await?;
        Ok(self.known(&record, caller).await?.schema.clone())
    }

    /// Forgets a schema, and takes the KV along that no other one has a text of.
    ///
    /// # Errors
    /// As [`Schemas::get`], and those of a tier: then it is still there, to be removed again.
    pub async fn remove(&self, tenant: &str, name: &str, caller: Caller) -> Result<Withdrawn> {
        let _turn = self.0.changing.lock().await;
        let record = self.needed(tenant, name).await?;
        // First, so that whoever is interrupted asks again.
        let withdrawn = self.withdraw(&record, None, caller).await?;
        let catalog = self.0.catalog.clone();
        blocking(move || Ok(catalog.remove_schema(&record.tenant, &record.name)?)).await?;
        Ok(withdrawn)
    }

    /// Computes a schema's modules, each apart, and keeps them: all, or those of these paths. What is there already is not computed, so that
    /// whoever was interrupted asks again.
    ///
    /// # Errors
    /// As [`Schemas::get`]; `InvalidInput` for a path that the schema does not have.
    pub async fn encode(&self, tenant: &str, name: &str, paths: &[String], caller: Caller) -> Result<Encoded> {
        // What goes after this is not filed any more.
        let found_in = self.0.pipeline.store.epoch();
        let record = self.needed(tenant, name).await?;
        let known = self.known(&record, caller).await?;
        let is_of = |path: &String, of: &str| of == path || of.starts_with(&format!("{path}/"));
        if let Some(unknown) = paths.iter().find(|path| !known.modules.iter().any(|(of, _)| is_of(path, of))) {
            let message = format!("schema `{name}` has no module `{unknown}` that is kept");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let pipeline = &self.0.pipeline;
        let mut done = Encoded::default();
        let wanted =
            known.modules.iter().filter(|(of, _)| paths.is_empty() || paths.iter().any(|path| is_of(path, of)));
        for (_, segment) in wanted {
            let Some((key, prompt)) = segment.apart(pipeline.store.fingerprint(), tenant) else { continue };
            let whose = Whose { caller, ..Whose::background(tenant.into()) };
            let encoded =
                pipeline.background.encode(&whose, key, segment.tokens.clone(), prompt.into(), found_in).await?;
            match encoded {
                Precomputed::Computed => done.computed += 1,
                Precomputed::AlreadyThere | Precomputed::InBucket => done.already_there += 1,
                Precomputed::Unkeepable => done.not_kept += 1,
            }
        }
        Ok(done)
    }

    async fn record(&self, tenant: &str, name: &str) -> Result<Option<SchemaRecord>> {
        let (catalog, tenant, name) = (self.0.catalog.clone(), tenant.to_owned(), name.to_owned());
        blocking(move || Ok(catalog.schema(&tenant, &name)?)).await
    }

    async fn needed(&self, tenant: &str, name: &str) -> Result<SchemaRecord> {
        let missing = || {
            let message = format!("no schema `{name}` is kept; add it first, or send it with the prompt");
            Error::new(ErrorKind::NotFound, message)
        };
        self.record(tenant, name).await?.ok_or_else(missing)
    }

    async fn known(&self, record: &SchemaRecord, caller: Caller) -> Result<Arc<Known>> {
        if let Some(known) = self.lock().get(&record.version) {
            return Ok(known.clone());
        }
        let schema = Arc::new(Schema::parse(&record.schema, &GivenSources::new(&record.sources))?);
        let assembler = &self.0.pipeline.assembler;
        let (layout, modules) = assembler.lay_out(schema.clone(), caller, deadline_after(LAYOUT_DEADLINE)).await?;
        let known = Arc::new(Known { schema, layout, modules });
        let mut all = self.lock();
        if all.len() >= MOST_KNOWN {
            all.clear();
        }
        all.insert(record.version.clone(), known.clone());
        Ok(known)
    }

    /// Takes out of every tier what was computed of a schema, but for what the tenant's other schemas have, too, and the one that takes its
    /// place. Keys are the tenant's own, so that nobody removes, or learns of, what others have.
    async fn withdraw(&self, gone: &SchemaRecord, instead: Option<&Known>, caller: Caller) -> Result<Withdrawn> {
        let known = self.known(gone, caller).await?;
        let mut wanted = self.keys(&gone.tenant, &known);
        for other in self.list(&gone.tenant).await?.iter().filter(|other| other.name != gone.name) {
            // One that cannot be read any more keeps nothing.
            if let Ok(other) = self.known(other, caller).await {
                let kept = self.keys(&gone.tenant, &other);
                wanted.retain(|key, _| !kept.contains_key(key));
            }
        }
        if let Some(instead) = instead {
            let kept = self.keys(&gone.tenant, instead);
            wanted.retain(|key, _| !kept.contains_key(key));
        }
        self.lock().remove(&gone.version);
        let store = self.0.pipeline.store.clone();
        blocking(move || {
            let mut withdrawn = Withdrawn::default();
            for (key, segment) in wanted {
                let mut copies = 0;
                for tier in [Tier::Host, Tier::Disk, Tier::Object] {
                    copies += store.evict(&EntryId { key, segment }, tier)?;
                }
                withdrawn.entries_removed += u64::from(copies > 0);
                withdrawn.copies_removed += copies;
            }
            store.flush()?;
            Ok(withdrawn)
        })
        .await
    }

    /// A tenant's entries of a schema.
    fn keys(&self, tenant: &str, known: &Known) -> HashMap<KvKey, SegmentDigest> {
        let fingerprint = self.0.pipeline.store.fingerprint();
        let key = |segment: &Segment| {
            let (key, _) = segment.apart(fingerprint, tenant)?;
            Some((key, SegmentDigest::of(fingerprint, &segment.tokens)))
        };
        known.modules.iter().filter_map(|(_, segment)| key(segment)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Known>>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_name(name: &str) -> Result<()> {
    let is_usable = !["", ".", ".."].contains(&name) && !name.contains(|c: char| c.is_control() || c == '/');
    if is_usable && name.len() <= MOST_NAME_BYTES {
        return Ok(());
    }
    let message = format!("the name of a schema that is kept has 1 to {MOST_NAME_BYTES} printable bytes, and no slash");
    Err(Error::new(ErrorKind::InvalidInput, message))
}

/// Whether one more may be kept.
fn check_room(kept: &[SchemaRecord], more: &SchemaRecord) -> Result<()> {
    let bytes = |record: &SchemaRecord| record.schema.len() + record.sources.values().map(String::len).sum::<usize>();
    let others: Vec<&SchemaRecord> =
        kept.iter().filter(|other| (&other.tenant, &other.name) != (&more.tenant, &more.name)).collect();
    let of_tenant = others.iter().filter(|other| other.tenant == more.tenant).count();
    let of_all: usize = others.iter().map(|other| bytes(other)).sum();
    let refused = if bytes(more) > MOST_BYTES {
        format!("the schema and its sources have {} bytes, and {MOST_BYTES} are the most that are kept", bytes(more))
    } else if of_tenant >= MOST_OF_TENANT {
        format!("{MOST_OF_TENANT} schemas of a tenant are the most that are kept; remove one")
    } else if others.len() >= MOST_SCHEMAS || of_all + bytes(more) > MOST_BYTES_OF_ALL {
        "the data folder keeps as many schemas as it may; remove some".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidInput, refused))
}

/// The same for the same text and sources.
fn version(text: &str, sources: &BTreeMap<String, String>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in std::iter::once(text).chain(sources.iter().flat_map(|(name, text)| [name.as_str(), text])) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

fn stored(record: &SchemaRecord, known: &Known) -> StoredSchema {
    let mut modules = Vec::new();
    list(&known.layout.top, "/".to_owned(), &mut modules);
    modules.sort_by(|a, b| (a.start, &a.path).cmp(&(b.start, &b.path)));
    StoredSchema {
        name: record.name.clone(),
        version: record.version.clone(),
        tenant: record.tenant.clone(),
        added_unix_ms: record.added_unix_ms,
        positions: known.layout.length(),
        modules,
    }
}

fn list(block: &Block, path: String, modules: &mut Vec<StoredModule>) {
    let mut tokens = 0;
    for part in &block.parts {
        let below = |inner: &Block| if path == "/" { inner.name.clone() } else { format!("{path}/{}", inner.name) };
        match part {
            Part::Text { tokens: own, .. } => tokens += own.len() as u32,
            Part::Module(inner) => list(inner, below(inner), modules),
            Part::Union { members, .. } => members.iter().for_each(|member| list(member, below(member), modules)),
            Part::Parameter { .. } => {}
        }
    }
    let &Block { start, length: positions, cache, .. } = block;
    modules.push(StoredModule { path, start, positions, tokens, cache });
}
