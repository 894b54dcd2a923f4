//! What is done about a prompt's [segments](crate::segment): what is resident of them, the load plan, and what the tiers' policies are
//! told of it.

pub mod arrange;
pub mod plan;
pub mod primer;
pub mod residency;
mod uses;

pub use self::uses::record_use;
pub(crate) use self::uses::uses_of;
