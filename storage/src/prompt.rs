//! A prompt, from its segments to what is done about each: segments and their keys, what is resident of them, the load plan, and what
//! the tiers' policies are told of it. Each module here knows those before it, and the tiers know the first alone.

pub mod plan;
pub mod residency;
pub mod segment;
mod uses;

pub use self::uses::record_use;
pub(crate) use self::uses::uses_of;
