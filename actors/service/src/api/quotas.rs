//! `/v1/quotas`: what tenants may use, and what they use.

use std::collections::BTreeMap;

use ragstone_actors::admission::quotas;
use ragstone_storage::catalog::QuotaName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Quotas of a tenant to set, by name; `null` takes one away. Those that are not named stay.
pub type QuotaChanges = BTreeMap<String, Option<u64>>;

/// What is to change of a tenant's quotas.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ChangeQuotas {
    /// Whose they are; the default tenant's, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The quotas by name; `null` takes one away. Those that are not named stay.
    pub quota: QuotaChanges,
}

/// The changes, with names that there are.
///
/// # Errors
/// `InvalidInput`, which names those that there are.
pub fn named(changes: QuotaChanges) -> Result<BTreeMap<QuotaName, Option<u64>>> {
    let named = changes.into_iter().map(|(name, value)| Ok((name.parse()?, value)));
    named.collect::<Result<_>>().map_err(|error: Error| Error::invalid_field("quota", error.to_string()))
}

/// A tenant's quotas.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TenantQuotas {
    /// The default tenant is the empty name.
    pub tenant: String,
    /// Those that count for it, the defaults of `tenant_quota` among them.
    pub quotas: Vec<QuotaUse>,
}

/// A quota, and what is used of it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct QuotaUse {
    pub name: QuotaName,
    /// The most that may be used; of a share, the bytes that are guaranteed.
    pub limit: u64,
    /// What is used now: of a rate, within the last minute; more than the limit where that was lowered.
    pub used: u64,
}

impl From<quotas::QuotaUse> for QuotaUse {
    fn from(quotas::QuotaUse { name, limit, used }: quotas::QuotaUse) -> Self {
        Self { name, limit, used }
    }
}
