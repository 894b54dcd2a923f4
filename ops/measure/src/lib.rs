//! Measuring: `ragstone bench`, `ragstone eval`, `ragstone simulate`.
//!
//! - [`bench`]: how fast this machine is. Each benchmark runs its modes in turn, and prints medians with their spread.
//! - [`eval`]: how good retrieval and answers are, on data sets of questions.
//! - [`commands`]: the command line of both, and of the simulator, which is `ragstone_storage::simulate`.
//!
//! The service knows nothing of it: what a measurement needs is public where it is.
//!
//! ```
//! use ragstone_measure::bench::Spread;
//!
//! let spread = Spread::of([3.0, 1.0, 2.0]);
//! assert_eq!((spread.least, spread.median, spread.greatest), (1.0, 2.0, 3.0));
//! ```

// Commands await what awaits more: the layout of their futures is deeper than the compiler goes by itself.
#![recursion_limit = "256"]

pub mod bench;
pub mod commands;
pub mod eval;

use ragstone_env::error;
