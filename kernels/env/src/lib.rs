//! What every room stands on: one error type, and what the process has from its system.
//!
//! - [`Error`] with its [`ErrorKind`]: what went wrong, and what the caller should do.
//! - [`Env`]: the clock, randomness, threads and planted faults. A seed replays a run.
//! - [`lock`]: locks by name. [`damage`]: where damaged files are put aside. [`durable`]: names that outlive a power cut.
//!
//! ```
//! use ragstone_env::Env;
//!
//! let env = Env::seeded(7, 0);
//! assert_eq!(env.random_u64(), Env::seeded(7, 0).random_u64());
//! ```

pub mod damage;
pub mod durable;
mod env;
pub mod error;
pub mod lock;

pub use env::*;
pub use error::{Error, ErrorKind, Result};

/// Bytes as MiB, for people.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
