//! Who asks, and whether there is room: keys, tenants and their quotas, turns among clients, deadlines, durable jobs.
//!
//! Everything here is decided before a question costs anything. Nothing here knows of models or stored KV.

pub mod api_keys;
pub(crate) mod blocking;
pub(crate) mod caller;
pub(crate) mod deadline;
pub mod jobs;
pub(crate) mod metering;
pub mod quotas;
pub mod size;
pub mod tenant;
pub mod turns;
