//! Which namespaces were evicted lately. A job that began before is not to store blocks of them after, and what was pinned before is looked up anew.

use std::collections::VecDeque;
use std::sync::Mutex;

use ragstone_env::lock::locked;
use ragstone_env::{Error, ErrorKind};
use ragstone_storage::opaque::parse_salt;

/// Evictions beyond which the oldest is forgotten; then nothing is stored by jobs that began before it.
const MOST_RECENT: usize = 64;

/// The namespaces that somebody names: by the first digits of their digest, of one tenant or of all.
#[derive(Debug, Clone)]
pub struct Named {
    pub digits: String,
    pub tenant: Option<String>,
}

impl Named {
    /// The digest of a namespace that is named, by the salt of its entries.
    pub fn digest_of(&self, salt: &str) -> Option<String> {
        let (tenant, digest) = parse_salt(salt)?;
        let digest = hex::encode(digest);
        let is_tenants = self.tenant.as_deref().is_none_or(|named| named == tenant);
        (!self.digits.is_empty() && digest.starts_with(&self.digits) && is_tenants).then_some(digest)
    }

    /// That it names `what`, and not one namespace.
    pub fn unclear(&self, what: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("{what} begins with '{}'; `status` lists them", self.digits))
    }
}

/// The evictions since the daemon started.
#[derive(Debug, Default)]
pub struct Evictions(Mutex<Marks>);

#[derive(Debug, Default)]
struct Marks {
    count: u64,
    /// Marks up to this one may be forgotten.
    floor: u64,
    recent: VecDeque<(u64, Named)>,
}

impl Evictions {
    /// Counted up at the begin and at the end of each.
    pub fn count(&self) -> u64 {
        locked(&self.0).count
    }

    /// From now on jobs that began before store nothing of these.
    pub fn begin(&self, named: Named) {
        let mut marks = locked(&self.0);
        marks.count += 1;
        let count = marks.count;
        marks.recent.push_back((count, named));
        if marks.recent.len() > MOST_RECENT
            && let Some((forgotten, _)) = marks.recent.pop_front()
        {
            marks.floor = forgotten;
        }
    }

    /// All of them that there were are removed.
    pub fn end(&self) {
        locked(&self.0).count += 1;
    }

    /// Whether the namespace of a salt may have been evicted since the count was `since`.
    pub fn covers(&self, salt: &str, since: u64) -> bool {
        let marks = locked(&self.0);
        let mut later = marks.recent.iter().rev().take_while(|(count, _)| *count > since);
        since < marks.floor || later.any(|(_, named)| named.digest_of(salt).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(digits: &str, tenant: Option<&str>) -> Named {
        Named { digits: digits.to_owned(), tenant: tenant.map(ToOwned::to_owned) }
    }

    #[test]
    fn what_began_before_is_covered_and_what_began_after_is_not() {
        let evictions = Evictions::default();
        let salt = format!("alice/{}", "ab".repeat(32));
        let before = evictions.count();
        assert!(!evictions.covers(&salt, before));
        for other in [named("", None), named("cd", None), named("ab", Some("bob"))] {
            evictions.begin(other);
        }
        assert!(!evictions.covers(&salt, before));
        evictions.begin(named("abab", Some("alice")));
        assert!(evictions.covers(&salt, before));
        assert!(!evictions.covers(&salt, evictions.count()));
        let running = evictions.count();
        evictions.end();
        assert!(evictions.count() > running && !evictions.covers(&salt, running));
    }

    #[test]
    fn marks_are_bounded_and_forgetting_them_refuses_more_never_less() {
        let evictions = Evictions::default();
        let salt = format!("alice/{}", "ab".repeat(32));
        evictions.begin(named("ab", None));
        (0..2 * MOST_RECENT).for_each(|_| evictions.begin(named("cd", None)));
        assert!(locked(&evictions.0).recent.len() <= MOST_RECENT);
        assert!(evictions.covers(&salt, 0));
        assert!(!evictions.covers(&salt, evictions.count()));
    }
}
