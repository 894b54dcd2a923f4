//! Stores that a prompt's KV is taken from: tiers of all kinds, alone.

use std::path::Path;
use std::sync::Arc;

use ragstone_env::Env;
use ragstone_kernels::pool::KvLayout;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::{CostProfile, Costs};
use ragstone_storage::entry::EntryShape;
use ragstone_storage::fingerprint::{ModelIdentity, Weights, fingerprint};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::store::{AdmissionRule, KvStore, StoreOptions, TierOptions};
use ragstone_storage::tier::SharedTier;

use crate::bench::Shape;
use crate::error::Result;

/// What a store has.
#[derive(Clone)]
pub(super) struct Tiers {
    pub host_bytes: u64,
    pub disk_bytes: u64,
    pub object: Option<Arc<dyn SharedTier>>,
    /// Of the disk and of the bucket.
    pub admission: AdmissionRule,
}

/// The random model that a store is for.
pub(super) struct Of<'a> {
    pub shape: Shape,
    pub seed: u64,
    pub arithmetic: &'a str,
    pub layout: KvLayout,
}

/// Opens a store in a new folder.
pub(super) fn open(folder: &Path, tiers: Tiers, of: &Of<'_>, env: &Env) -> Result<KvStore> {
    let catalog = Arc::new(Catalog::open(&folder.join("catalog"), env)?);
    let identity = ModelIdentity {
        config: of.shape.json().as_bytes(),
        tokenizer: b"none",
        weights: Weights::Seed(of.seed),
        adapter: &[],
        arithmetic: of.arithmetic,
        kv_dtype: of.layout.dtype,
        positional: "rope",
    };
    let tier = |capacity_bytes| TierOptions { capacity_bytes, policy: PolicyKind::Lru };
    let options = StoreOptions {
        host: tier(tiers.host_bytes),
        disk: tier(tiers.disk_bytes),
        object: tiers.object,
        shape: EntryShape::of(&of.layout),
        admission: tiers.admission,
        costs: Costs::new(CostProfile::assumed()?),
    };
    let fingerprint = fingerprint(&identity, None, None)?;
    KvStore::open(&folder.join("kv"), options, fingerprint, env.clone(), catalog)
}
