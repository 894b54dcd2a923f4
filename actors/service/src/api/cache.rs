//! `/v1/cache…`: what the tiers hold, and what operators do about it.

use std::sync::Arc;

use ragstone_actors::answer::blend::{Blend, Calibration};
use ragstone_actors::ragstone::entries::{EntryFilter, EntryPage};
use ragstone_actors::upkeep::ingests::UnfinishedIngest;
use ragstone_actors::upkeep::library::Removed;
use ragstone_actors::upkeep::warm::{WarmEstimate, WarmStatus};
use ragstone_actors::{PlanRecord, ReuseReport, Status};
use ragstone_corpus::CorpusCheck;
use ragstone_env::damage::Damage;
use ragstone_storage::catalog::{WarmJob, WarmProgress, WarmSubject};
use ragstone_storage::key::Fingerprint;
use ragstone_storage::store::{Copied, VerifyReport};
use ragstone_storage::tier::Tier;
use ragstone_storage::tier::disk::Recovery;
use ragstone_storage::tier::object::Collected;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::keys::OwnKey;
use super::{ListObject, is_false};

/// The service's state, as far as whoever asks may know it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CacheStatus {
    /// For a key below admin: the rest is about what everybody stored.
    OfKey(KeyStatus),
    /// For everybody else.
    Whole(Box<WholeStatus>),
}

/// What model this is, and what the key is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct KeyStatus {
    pub model: ragstone_actors::ragstone::status::ModelStatus,
    pub key: OwnKey,
}

/// Tiers, device pool, workers, what the start found, unfinished warm-ups and ingests.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WholeStatus {
    #[serde(flatten)]
    pub status: Status,
    /// What is known to be damaged, and what to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<Damage>,
    /// What the start found on disk.
    pub recovery: Recovery,
    /// Warm-ups that are not finished.
    pub warm_jobs: Vec<WarmStatus>,
    /// Ingests that are not finished: they run, wait for their turn, were interrupted, failed, or are parked.
    pub ingests: Vec<UnfinishedIngest>,
}

/// The last prompts' plans, the latest first: 64 at most.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Plans {
    pub plans: Vec<Plan>,
}

/// One prompt's plan, and what came of it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Counts everybody's from 1 since the start; a key below admin is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// When its first token was there, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Whose it was.
    pub tenant: String,
    /// The first 200 characters of what was asked: what the user said last, or a prompt's start. Told to the owner, and to keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// What was planned, predicted and measured.
    pub report: ReuseReport,
}

impl Plan {
    /// As an operator sees it, or somebody who is not told how much others ask. Who need not say who he is is not told what they ask.
    pub fn of(record: PlanRecord, is_numbered: bool, is_known: bool) -> Self {
        let PlanRecord { number, unix_ms, tenant, asked, report } = record;
        Self { number: is_numbered.then_some(number), unix_ms, tenant, question: asked.filter(|_| is_known), report }
    }
}

/// How the model's prompts are blended, and what that rests on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct KnownCalibration {
    pub blend: Blend,
    /// Null: the model was not calibrated.
    pub calibration: Option<Arc<Calibration>>,
}

/// Which entries to list. (The filter's fields one by one: a query's numbers are text, which a flattened struct does not take.)
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EntriesQuery {
    /// Entries of this collection's passages, whatever stood before them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
    /// Entries of the passages of the documents of this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// Entries of the modules of this schema, which the tenant keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Of these, those of the module of this path, and of what it contains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The tenant; the default one is the empty name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Entries that this tier has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Not used for this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_s: Option<u64>,
    /// Used within this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub younger_than_s: Option<u64>,
    /// Entries of this model: its name, or the beginning of its fingerprint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// At most so many, 10,000 at most; 100 where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl EntriesQuery {
    /// The query of a filter.
    pub fn of(filter: EntryFilter, limit: usize) -> Self {
        let EntryFilter { collection, document, schema, module, tenant, tier, older_than_s, younger_than_s, model } =
            filter;
        let limit = Some(limit);
        Self { collection, document, schema, module, tenant, tier, older_than_s, younger_than_s, model, limit }
    }

    /// The filter, and how many are wanted.
    pub fn parts(self) -> (EntryFilter, Option<usize>) {
        let Self { collection, document, schema, module, tenant, tier, older_than_s, younger_than_s, model, limit } =
            self;
        let filter =
            EntryFilter { collection, document, schema, module, tenant, tier, older_than_s, younger_than_s, model };
        (filter, limit)
    }
}

/// Entries, what they are of, and what they weigh.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Entries {
    #[serde(default)]
    pub object: ListObject,
    #[serde(flatten)]
    pub page: EntryPage,
}

/// How a verb over entries is meant.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HowToChange {
    /// All entries are meant, where no filter is given.
    #[serde(skip_serializing_if = "is_false")]
    pub all: bool,
    /// Say what would change, and change nothing.
    #[serde(skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

/// Which entries to evict, pin or unpin: a filter, or `all`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct ChangeEntries {
    #[serde(flatten)]
    pub filter: EntryFilter,
    #[serde(flatten)]
    pub how: HowToChange,
}

/// What to remove from the corpus and from every tier.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Invalidate {
    pub collection: String,
    /// Only this document of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// Every document is meant, where none is named.
    #[serde(default, skip_serializing_if = "is_false")]
    pub all: bool,
    /// Say what would go, and change nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Answer once its bytes have left every file, too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub now: bool,
}

/// What left, or at most would leave.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct InvalidatedText {
    #[serde(flatten)]
    pub removed: Removed,
    #[serde(default)]
    pub dry_run: bool,
}

/// What to verify.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Verify {
    /// Only this tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// Say what is damaged, and remove nothing.
    #[serde(skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

/// What a verification found.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Verified {
    #[serde(flatten)]
    pub report: VerifyReport,
    /// Of the corpus, which was compared with its checksums; not there where one tier was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corpus: Option<CorpusCheck>,
    #[serde(default)]
    pub dry_run: bool,
}

/// What garbage to collect.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CollectGarbage {
    /// Entries of the bucket that are older than this many seconds leave; the setting's, where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// The oldest entries leave until the bucket holds no more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Say what would be freed, and change nothing.
    #[serde(skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

/// What was freed.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CollectedGarbage {
    /// Of files on disk.
    pub disk_freed_bytes: u64,
    /// In the bucket, where there is one.
    pub object: Option<Collected>,
    pub dry_run: bool,
}

/// Where entries are copied to or from.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`
    pub url: String,
    /// Say what would be copied, and copy nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

/// Which entries to export or import, and the place.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct CopyEntries {
    #[serde(flatten)]
    pub place: Place,
    #[serde(flatten)]
    pub filter: EntryFilter,
}

/// What was copied.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct CopiedEntries {
    #[serde(flatten)]
    pub copied: Copied,
    #[serde(default)]
    pub dry_run: bool,
}

/// What a verb that takes a while sends: how far it is, now and then, and the end.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "{T}Event")]
pub enum Watched<T> {
    /// How far it is.
    Progress {
        /// Of `total`.
        done: u64,
        /// What there is to do.
        total: u64,
    },
    /// The end.
    Finished(T),
}

/// What to compute before anybody asks: `collection`, and perhaps `document`; or `schema`, and perhaps `modules`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WarmUp {
    /// The passages of this collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
    /// Of these, only this document's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// The modules of this schema instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Of these, only the modules of these paths, and what they contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<Vec<String>>,
    /// For whom; the own tenant where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
    /// Say what would be computed, and compute nothing: one answer, and no events.
    #[serde(skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

/// What a warm-up would compute.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WarmUpEstimate {
    #[serde(flatten)]
    pub estimate: WarmEstimate,
    /// Bytes of KV of the missing tokens.
    pub bytes_missing: u64,
    pub dry_run: bool,
}

/// What a warm-up sends: that it is journaled, how far it is, and the end.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WarmUpEvent {
    /// It is journaled, and goes on if nobody listens.
    Begun(BegunWarmUp),
    /// How far it is.
    Progress(WarmProgress),
    /// The end.
    Finished(WarmProgress),
}

/// A warm-up that was journaled.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BegunWarmUp {
    /// Counts everybody's, and is of use to who looks after all of them: a key below admin is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The model whose entries they are.
    pub fingerprint: Fingerprint,
    /// What is computed.
    #[serde(flatten)]
    pub subject: WarmSubject,
    /// For whom. The default tenant is the empty name.
    pub tenants: Vec<String>,
    /// When, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// How far it is.
    pub progress: WarmProgress,
}

impl BegunWarmUp {
    /// As an operator sees it, or somebody who is not told how much others ask.
    pub fn of(job: WarmJob, is_numbered: bool) -> Self {
        let WarmJob { id, fingerprint, subject, tenants, created_unix_ms, progress } = job;
        Self { id: is_numbered.then_some(id), fingerprint, subject, tenants, created_unix_ms, progress }
    }
}

/// A warm-up or an ingest that was ended for good.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct CancelledJob {
    pub id: u64,
    pub cancelled: bool,
}
