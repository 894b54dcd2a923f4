//! What operators do about stored entries: which ones they mean, what those are of, which leave the tiers, which are pinned. Decisions
//! are pure functions of a listing; each verb has a dry run that decides the same and changes nothing.

mod evict;
mod filter;
mod listing;
mod pin;

pub use self::evict::{Evicted, LeftTier};
pub use self::filter::{EntryFilter, EntryMatcher};
pub use self::listing::{EntryOf, EntryPage, ListedEntry, MOST_LISTED};
pub use self::pin::Pinned;
