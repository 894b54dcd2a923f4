//! Claims: which documents a node is adding, so that another one that is given the same at that moment waits instead of adding a second copy.
//!
//! A claim is an object that is created once. It is looked at before the commit and after it: a node that was away for longer than a claim lasts,
//! or whose document somebody deleted meanwhile, hears of it there. The time at which it was made is the rows' generation; of two generations of a
//! document the later one counts.

use std::time::Duration;

use futures::future::join_all;
use object_store::path::Path;

use super::{Bucket, Object};
use crate::{Error, ErrorKind, Result};

/// How long a claim lasts that nobody gives back.
pub(super) const LASTS: Duration = Duration::from_secs(120);
/// How old a claim must be to be removed: nobody is behind one any more.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
const CLAIMS: &str = "claims";
/// Requests under way at once.
const AT_ONCE: usize = 16;
/// The first word of a claim that is in force, and of one whose document was deleted while it was added.
const HELD: &str = "held";
const DELETED: &str = "deleted";

/// Documents that this node has claimed.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    held: Vec<Claim>,
}

#[derive(Debug)]
struct Claim {
    document: String,
    path: Path,
    text: String,
    written_ms: u64,
}

/// What became of claims.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// All are this node's.
    Still,
    /// This document was deleted meanwhile.
    Deleted(String),
    /// Another node took this document over.
    TakenOver(String),
}

impl Claims {
    /// Claims all of `documents`; `Err` within: the first that another node has.
    pub async fn take(
        bucket: &Bucket,
        collection: &str,
        documents: &[String],
    ) -> Result<std::result::Result<Self, String>> {
        let (mut claims, mut busy, mut failed) = (Self::default(), None, None);
        for some in documents.chunks(AT_ONCE) {
            let mut taking = Vec::with_capacity(some.len());
            for document in some {
                taking.push(Claim::take(bucket, collection, document));
            }
            for (document, claim) in some.iter().zip(join_all(taking).await) {
                match claim {
                    Ok(Some(claim)) => claims.held.push(claim),
                    Ok(None) => busy = Some(document.clone()),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if failed.is_some() {
                break;
            }
        }
        if let Some(error) = failed {
            // Whoever tries again would wait for them until they are old.
            claims.give_back(bucket).await;
            return Err(error);
        }
        match busy {
            None => Ok(Ok(claims)),
            // Whoever waits has nothing, so that no two wait for each other.
            Some(document) => {
                claims.give_back(bucket).await;
                Ok(Err(document))
            }
        }
    }

    /// The generation of a document's rows.
    pub fn generation(&self, document: &str) -> u64 {
        self.held.iter().find(|claim| claim.document == document).map_or(0, |claim| claim.written_ms)
    }

    /// Whether they are still in force.
    pub async fn look(&self, bucket: &Bucket) -> Result<Held> {
        for some in self.held.chunks(AT_ONCE) {
            let mut looking = Vec::with_capacity(some.len());
            for claim in some {
                looking.push(bucket.read(&claim.path));
            }
            for (claim, there) in some.iter().zip(join_all(looking).await) {
                match there? {
                    Some(there) if there.bytes == claim.text.as_bytes() => {}
                    Some(there) if there.bytes.starts_with(DELETED.as_bytes()) => {
                        return Ok(Held::Deleted(claim.document.clone()));
                    }
                    _ => return Ok(Held::TakenOver(claim.document.clone())),
                }
            }
        }
        Ok(Held::Still)
    }

    /// Says that those of `documents` are deleted that this node takes out itself, and does without the claims to them. They stay, as those of other
    /// deletions do: a node that slept through an earlier claim hears of it behind its commit. The first that another node took over: nothing
    /// is to be taken out then.
    pub async fn end(&mut self, bucket: &Bucket, documents: &[String]) -> Result<Option<String>> {
        let ended: Vec<&Claim> = self.held.iter().filter(|claim| documents.contains(&claim.document)).collect();
        for some in ended.chunks(AT_ONCE) {
            let mut ending = Vec::with_capacity(some.len());
            for claim in some {
                ending.push(claim.end(bucket));
            }
            for (claim, is_ended) in some.iter().zip(join_all(ending).await) {
                if !is_ended? {
                    return Ok(Some(claim.document.clone()));
                }
            }
        }
        self.held.retain(|claim| !documents.contains(&claim.document));
        Ok(None)
    }

    /// Those of `documents` that were deleted meanwhile.
    pub async fn deleted_of(&self, bucket: &Bucket, documents: &[String]) -> Result<Vec<String>> {
        let mut deleted = Vec::new();
        for claim in self.held.iter().filter(|claim| documents.contains(&claim.document)) {
            let there = bucket.read(&claim.path).await?;
            if there.is_some_and(|there| there.bytes.starts_with(DELETED.as_bytes())) {
                deleted.push(claim.document.clone());
            }
        }
        Ok(deleted)
    }

    /// Gives them back. One that stays is taken over once it is old.
    pub async fn give_back(self, bucket: &Bucket) {
        for some in self.held.chunks(AT_ONCE) {
            let mut removing = Vec::with_capacity(some.len());
            for claim in some {
                // Nobody takes a young one over, so that it is this node's still; what is older may be another's.
                let age_ms = bucket.now_ms().saturating_sub(claim.written_ms);
                if age_ms < LASTS.as_millis() as u64 / 2 {
                    removing.push(claim.remove(bucket));
                }
            }
            for error in join_all(removing).await.into_iter().filter_map(Result::err) {
                tracing::debug!(%error, "a claim was not given back");
            }
        }
    }
}

impl Claim {
    async fn take(bucket: &Bucket, collection: &str, document: &str) -> Result<Option<Self>> {
        let (path, text) = (path_of(collection, document), format!("{HELD} {}", bucket.new_name()));
        let claim = Self { document: document.to_owned(), path, text, written_ms: 0 };
        match claim.write(bucket).await {
            Ok(written_ms) => Ok(written_ms.map(|written_ms| Self { written_ms, ..claim })),
            Err(error) => {
                // It may be there all the same.
                if let Err(error) = claim.remove(bucket).await {
                    tracing::debug!(%error, "a claim was not given back");
                }
                Err(error)
            }
        }
    }

    /// When it was written, by the bucket's clock; `None`: another node has the document.
    async fn write(&self, bucket: &Bucket) -> Result<Option<u64>> {
        if !bucket.create(&self.path, &self.text).await? {
            let Some(there) = bucket.read(&self.path).await? else { return Ok(None) };
            if !is_over(&there, bucket.now_ms()) || !bucket.replace(&self.path, &there, &self.text).await? {
                return Ok(None);
            }
        }
        let own = bucket.read(&self.path).await?.filter(|there| there.bytes == self.text.as_bytes());
        Ok(own.map(|own| own.written_ms))
    }

    /// Says that its document is deleted, unless that is said already; `false`: it is another node's.
    async fn end(&self, bucket: &Bucket) -> Result<bool> {
        let text = format!("{DELETED} {}", bucket.new_name());
        while let Some(there) = bucket.read(&self.path).await? {
            if there.bytes.starts_with(DELETED.as_bytes()) {
                return Ok(true);
            }
            if there.bytes != self.text.as_bytes() {
                return Ok(false);
            }
            if bucket.replace(&self.path, &there, &text).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn remove(&self, bucket: &Bucket) -> Result<()> {
        match bucket.read(&self.path).await? {
            Some(there) if there.bytes == self.text.as_bytes() => bucket.remove(&self.path).await,
            _ => Ok(()),
        }
    }
}

/// Tells whoever is adding `documents` that they are deleted. Before the deletion is committed: what is committed later hears of it.
pub(crate) async fn end(bucket: &Bucket, collection: &str, documents: &[String]) -> Result<()> {
    for some in documents.chunks(AT_ONCE) {
        let mut ending = Vec::with_capacity(some.len());
        for document in some {
            ending.push(end_one(bucket, path_of(collection, document)));
        }
        join_all(ending).await.into_iter().collect::<Result<()>>()?;
    }
    Ok(())
}

async fn end_one(bucket: &Bucket, path: Path) -> Result<()> {
    while let Some(there) = bucket.read(&path).await? {
        let text = format!("{DELETED} {}", bucket.new_name());
        if !there.bytes.starts_with(HELD.as_bytes()) || bucket.replace(&path, &there, &text).await? {
            break;
        }
    }
    Ok(())
}

/// Removes claims that nobody gave back, and those that say that their document was deleted.
pub(crate) async fn sweep(bucket: &Bucket) -> Result<()> {
    bucket.remove_older(&Path::from(CLAIMS), FORGOTTEN).await
}

/// Whether a claim is in nobody's way any more. Pure.
fn is_over(there: &Object, now_ms: u64) -> bool {
    let is_old = now_ms.saturating_sub(there.written_ms) >= LASTS.as_millis() as u64;
    is_old || there.bytes.starts_with(DELETED.as_bytes())
}

fn path_of(collection: &str, document: &str) -> Path {
    let digest = blake3::hash(document.as_bytes()).to_hex();
    Path::from_iter([CLAIMS, collection, digest.as_str()])
}

/// Whose document was deleted while it was added.
pub(crate) fn deleted_meanwhile(collection: &str, document: &str) -> Error {
    let message = format!(
        "document `{document}` was deleted from collection `{collection}` while it was added: it and what was to be stored with it were not \
         stored; send them again where they are wanted"
    );
    Error::new(ErrorKind::Cancelled, message)
}

/// Who was away for longer than a claim lasts.
pub(crate) fn taken_over(collection: &str, document: &str) -> Error {
    let message = format!(
        "document `{document}` of collection `{collection}` was taken over by another node, as adding it took longer than {} s; try again",
        LASTS.as_secs()
    );
    Error::new(ErrorKind::Unavailable, message)
}
