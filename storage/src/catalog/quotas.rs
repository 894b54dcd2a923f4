//! Quotas: how much a tenant may use, and what it is guaranteed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::records::Kept;
use super::{Catalog, to_json};
use crate::{Error, Result};

/// What can be limited, or guaranteed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuotaName {
    /// Requests that come within a minute.
    RequestsPerMinute,
    /// Tokens of prompts and answers within a minute.
    TokensPerMinute,
    /// Documents in all of its collections.
    Documents,
    /// Bytes of its KV in host memory.
    HostBytes,
    /// Bytes of its KV on disk.
    DiskBytes,
    /// Bytes of its KV that are not evicted from host memory for another tenant.
    HostShareBytes,
    /// Bytes of its KV that are not evicted from the disk for another tenant.
    DiskShareBytes,
}

impl QuotaName {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::RequestsPerMinute,
        Self::TokensPerMinute,
        Self::Documents,
        Self::HostBytes,
        Self::DiskBytes,
        Self::HostShareBytes,
        Self::DiskShareBytes,
    ];

    /// As requests, commands and rows have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestsPerMinute => "requests_per_minute",
            Self::TokensPerMinute => "tokens_per_minute",
            Self::Documents => "documents",
            Self::HostBytes => "host_bytes",
            Self::DiskBytes => "disk_bytes",
            Self::HostShareBytes => "host_share_bytes",
            Self::DiskShareBytes => "disk_share_bytes",
        }
    }

    /// Whether it is a guarantee, and not a limit.
    pub fn is_share(self) -> bool {
        matches!(self, Self::HostShareBytes | Self::DiskShareBytes)
    }

    /// Whether it counts bytes.
    pub fn is_bytes(self) -> bool {
        self.is_share() || matches!(self, Self::HostBytes | Self::DiskBytes)
    }
}

impl fmt::Display for QuotaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for QuotaName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|name| name.name() == text).ok_or_else(|| {
            let shown: String = text.escape_default().take(100).collect();
            let names = Self::ALL.map(Self::name).join(", ");
            Error::invalid_input(format!("there is no quota `{shown}`; use {names}"))
        })
    }
}

/// How much a tenant may use. What is not there is not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quota(pub BTreeMap<QuotaName, u64>);

impl Quota {
    /// Its value of that name.
    pub fn get(&self, name: QuotaName) -> Option<u64> {
        self.0.get(&name).copied()
    }

    /// With what it does not say as `defaults` say it.
    #[must_use]
    pub fn or(&self, defaults: &Self) -> Self {
        let mut all = defaults.0.clone();
        all.extend(self.0.iter());
        Self(all)
    }
}

/// A tenant's quota as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRecord {
    /// Whose it is. The default tenant is the empty name.
    pub tenant: String,
    /// As it was set, without the defaults.
    pub quota: Quota,
}

/// A row's key: the default tenant has one, too.
fn key(tenant: &str) -> Vec<u8> {
    [b"t", tenant.as_bytes()].concat()
}

impl Catalog {
    /// All quotas, by tenant. A row that cannot be read, as a later version wrote it, is none.
    ///
    /// # Errors
    /// As sled says.
    pub fn quotas(&self) -> Result<Vec<QuotaRecord>> {
        Ok(self.quotas.read())
    }

    /// Keeps a tenant's quota; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn put_quota(&self, record: &QuotaRecord) -> Result<()> {
        self.put(Kept::Quotas, &key(&record.tenant), to_json(record)?)
    }

    /// Forgets a tenant's quota; whether there was one. Durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn remove_quota(&self, tenant: &str) -> Result<bool> {
        self.remove(Kept::Quotas, &key(tenant))
    }
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn quotas_survive_a_restart_and_names_are_what_they_are_called() {
        let dir = TempDir::new().unwrap();
        let open = || Catalog::open(&dir.path().join("catalog"), &Env::seeded(0, 0)).unwrap();
        let record = |tenant: &str, value| QuotaRecord {
            tenant: tenant.into(),
            quota: Quota(QuotaName::ALL.into_iter().map(|name| (name, value)).collect()),
        };
        {
            let catalog = open();
            for record in [record("", 0), record("acme", u64::MAX), record("gone", 1), record("acme", 7)] {
                catalog.put_quota(&record).unwrap();
            }
            assert!(catalog.remove_quota("gone").unwrap() && !catalog.remove_quota("gone").unwrap());
        }
        let catalog = open();
        assert_eq!(catalog.quotas().unwrap(), [record("", 0), record("acme", 7)]);
        catalog.quotas.insert("tx", r#"{"tenant":"x","quota":{"seconds":7}}"#).unwrap();
        assert_eq!(catalog.quotas().unwrap().len(), 2, "a name of a later version");
        for name in QuotaName::ALL {
            assert_eq!(name.name().parse::<QuotaName>().unwrap(), name);
            assert_eq!(serde_json::to_value(name).unwrap(), name.name());
        }
        let error = "a\u{1b}[2J".repeat(1000).parse::<QuotaName>().unwrap_err().to_string();
        assert!(error.is_ascii() && error.len() < 400, "{error}");
    }

    #[test]
    fn what_is_not_said_is_as_the_defaults_say() {
        let quota = |pairs: &[(QuotaName, u64)]| Quota(pairs.iter().copied().collect());
        let (documents, host) = (QuotaName::Documents, QuotaName::HostBytes);
        let own = quota(&[(documents, 3)]);
        assert_eq!(own.or(&quota(&[(documents, 9), (host, 5)])), quota(&[(documents, 3), (host, 5)]));
    }
}
