//! Documents that a node is adding to a collection in object storage.

use crate::Result;
use crate::bucket::{Bucket, Claims, Held, deleted_meanwhile, taken_over};
use crate::table::Leaving;

/// Claims that are given back also where nobody waits for the end of what they are for.
pub(super) struct Claimed {
    bucket: Bucket,
    claims: Option<Claims>,
}

impl Claimed {
    pub fn new(bucket: Bucket, claims: Claims) -> Self {
        Self { bucket, claims: Some(claims) }
    }

    pub fn generation(&self, document: &str) -> u64 {
        self.claims.as_ref().map_or(0, |claims| claims.generation(document))
    }

    pub async fn check(&self, collection: &str) -> Result<()> {
        let Some(claims) = &self.claims else { return Ok(()) };
        match claims.look(&self.bucket).await? {
            Held::Still => Ok(()),
            Held::Deleted(document) => Err(deleted_meanwhile(collection, &document)),
            Held::TakenOver(document) => Err(taken_over(collection, &document)),
        }
    }

    /// Says that `documents` are deleted, which this node is about to take out; what of them is to leave. From then on no check is about them.
    pub async fn end(&mut self, collection: &str, documents: &[String]) -> Result<Vec<Leaving>> {
        let leaving = self.leaving(documents);
        if let Some(claims) = &mut self.claims
            && let Some(document) = claims.end(&self.bucket, documents).await?
        {
            return Err(taken_over(collection, &document));
        }
        Ok(leaving)
    }

    /// What of `documents` is of these claims, and of earlier ones.
    pub fn leaving(&self, documents: &[String]) -> Vec<Leaving> {
        let leaving = |id: &String| Leaving { id: id.clone(), up_to: Some(self.generation(id)) };
        documents.iter().map(leaving).collect()
    }

    pub async fn deleted_of(&self, documents: &[String]) -> Result<Vec<String>> {
        match &self.claims {
            Some(claims) => claims.deleted_of(&self.bucket, documents).await,
            None => Ok(Vec::new()),
        }
    }

    pub async fn give_back(mut self) {
        if let Some(claims) = self.claims.take() {
            claims.give_back(&self.bucket).await;
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(claims) = self.claims.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let bucket = self.bucket.clone();
            runtime.spawn(async move { claims.give_back(&bucket).await });
        }
    }
}
