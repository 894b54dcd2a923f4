//! Stores that a prompt's KV is taken from: tiers of all kinds, alone.

use std::path::Path;
use std::sync::Arc;

use ragstone_kernels::model::Model;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::{CostProfile, Costs};
use ragstone_storage::entry::EntryShape;
use ragstone_storage::env::Env;
use ragstone_storage::fingerprint::{ModelIdentity, Weights, fingerprint};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::store::{AdmissionRule, KvStore, StoreOptions, TierOptions};
use ragstone_storage::tier::SharedTier;

use crate::bench::QWEN_05B;
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

/// Opens a store in a new folder, for the random model of that seed.
pub(super) fn open(folder: &Path, tiers: Tiers, model: &Model, seed: u64, env: &Env) -> Result<KvStore> {
    let catalog = Arc::new(Catalog::open(&folder.join("catalog"), env)?);
    let identity = ModelIdentity {
        config: QWEN_05B.as_bytes(),
        tokenizer: b"none",
        weights: Weights::Seed(seed),
        arithmetic: &model.arithmetic().to_string(),
        kv_dtype: model.kv_layout().dtype,
        positional: "rope",
    };
    let tier = |capacity_bytes| TierOptions { capacity_bytes, policy: PolicyKind::Lru };
    let options = StoreOptions {
        host: tier(tiers.host_bytes),
        disk: tier(tiers.disk_bytes),
        object: tiers.object,
        shape: EntryShape::of(&model.kv_layout()),
        admission: tiers.admission,
        costs: Costs::new(CostProfile::assumed()?),
    };
    let fingerprint = fingerprint(&identity, None, None)?;
    KvStore::open(&folder.join("kv"), options, fingerprint, env.clone(), catalog)
}
