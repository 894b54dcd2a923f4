//! A lease: an object that one node at a time has, until it gives it back or it is old by the bucket's clock.
//!
//! Nobody may rely on it for what must not go wrong: a node that sleeps wakes up behind its lease. What it guards here is work that fails, or
//! is done twice, where two do it.

use std::time::Duration;

use object_store::path::Path;

use super::{Bucket, Object};
use crate::Result;

/// The first word of a lease that somebody has.
const HELD: &str = "held";
/// Of one that was given back.
const FREE: &str = "free";
/// How old the lease of whoever optimises a table may be.
const OPTIMISING: Duration = Duration::from_secs(60);

/// A lease that this node has.
#[derive(Debug)]
pub(crate) struct Lease {
    bucket: Bucket,
    path: Path,
    own: Object,
}

impl Lease {
    /// The right to rewrite a table's files; `None`: another node does.
    pub async fn to_optimise(bucket: &Bucket, table: &str) -> Result<Option<Self>> {
        bucket.look_at_clock().await?;
        Self::take(bucket, Path::from(format!("leases/optimise/{table}")), OPTIMISING).await
    }

    /// Takes a lease that is free, or older than `age`.
    pub(super) async fn take(bucket: &Bucket, path: Path, age: Duration) -> Result<Option<Self>> {
        let text = format!("{HELD} {}", bucket.new_name());
        if !bucket.create(&path, &text).await? {
            let Some(there) = bucket.read(&path).await? else { return Ok(None) };
            if !is_takeable(&there, bucket.now_ms(), age) || !bucket.replace(&path, &there, &text).await? {
                return Ok(None);
            }
        }
        let own = bucket.read(&path).await?.filter(|there| there.bytes == text.as_bytes());
        Ok(own.map(|own| Self { bucket: bucket.clone(), path, own }))
    }

    /// Whether it is still this node's; then it is as good as new.
    pub async fn renew(&mut self) -> Result<bool> {
        let text = format!("{HELD} {}", self.bucket.new_name());
        if !self.bucket.replace(&self.path, &self.own, &text).await? {
            return Ok(false);
        }
        let own = self.bucket.read(&self.path).await?.filter(|there| there.bytes == text.as_bytes());
        let is_own = own.is_some();
        self.own = own.unwrap_or_else(|| self.own.clone());
        Ok(is_own)
    }

    /// Gives it back. That this fails costs the next one its age.
    pub async fn give_back(self) {
        let text = format!("{FREE} {}", self.bucket.new_name());
        if let Err(error) = self.bucket.replace(&self.path, &self.own, &text).await {
            tracing::debug!(%error, lease = %self.path, "a lease was not given back");
        }
    }
}

/// Whether a lease may be taken from whoever had it. Pure.
fn is_takeable(there: &Object, now_ms: u64, age: Duration) -> bool {
    let is_old = now_ms.saturating_sub(there.written_ms) >= age.as_millis() as u64;
    is_old || there.bytes.starts_with(FREE.as_bytes())
}
