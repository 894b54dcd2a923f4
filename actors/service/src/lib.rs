//! The service: a data folder, opened by one process, and reached over HTTP and the Model Context Protocol.
//!
//! - [`service::Service`]: an opened data folder that answers at an address. `ragstone serve` is one, and a command that finds none
//!   running starts one of its own ([`access`]).
//! - [`api`]: what is sent and answered. [`http`]: the paths. [`client::Client`]: their caller.
//! - [`config::Config`]: every setting, and where its value comes from.
//!
//! ```
//! use ragstone_service::config::{Config, Flags};
//!
//! let flags = Flags { set: vec!["host_bytes=2GiB".into()], ..Flags::default() };
//! let config = Config::load(None, &flags).unwrap();
//! assert_eq!(config.settings.host_bytes, 2 << 30);
//! ```

pub mod access;
pub mod api;
pub mod client;
pub mod config;
pub mod conversations;
pub mod data_folder;
#[cfg(unix)]
pub mod file_limit;
#[cfg(test)]
#[path = "../../../tests/fuzz/driver.rs"]
mod fuzz;
pub mod http;
pub mod ingest;
mod lanes;
pub mod mcp;
pub mod server;
pub mod service;
pub mod telemetry;
pub mod watch;

use ragstone_env::error;
