//! The cache verbs over stored entries: list, evict, pin. An entry is named with its collection, document, schema or module.
//!
//! Selecting entries is a pure function of a listing. Each verb has a dry run that decides the same and changes nothing.

mod evict;
mod filter;
mod listing;
mod pin;

pub use self::evict::{Evicted, LeftTier};
pub use self::filter::{EntryFilter, EntryMatcher};
pub use self::listing::{EntryOf, EntryPage, ListedEntry, MOST_LISTED};
pub use self::pin::Pinned;
