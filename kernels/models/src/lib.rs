//! Models as files: where they are, where they come from, what they need of disk and memory.
//!
//! - [`model_source`], [`embedder_source`]: the folder of the model that a setting names. Fetched where it must be and may be.
//! - [`hub`], [`wheel`]: the two places that models come from. What they send is checked before it is written.
//! - [`need`]: what a model takes, known from the heads of its files before it is fetched. [`machine`]: what there is.
//!
//! ```
//! use ragstone_models::hub::HubId;
//!
//! let id = HubId::parse("Qwen/Qwen2.5-0.5B-Instruct@main").unwrap();
//! assert_eq!(id.name, "Qwen/Qwen2.5-0.5B-Instruct");
//! assert!(HubId::parse("./models/mine").is_none(), "a path");
//! ```

pub mod embedder_source;
pub mod hub;
pub mod kind;
pub mod machine;
pub mod model_source;
pub mod need;
pub mod wheel;

use ragstone_env::error;
