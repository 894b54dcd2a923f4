//! What this machine was seen to take, by model, kernels and threads.

use super::{Catalog, read_json, to_json};
use crate::Result;
use crate::cost::CostProfile;

/// Before the rows of these, among the settings.
pub(super) const PREFIX: &str = "costs.";

impl Catalog {
    /// What is known of a machine; `None` if nothing is, or it cannot be read: it is measured again then.
    ///
    /// # Errors
    /// As sled says.
    pub fn costs(&self, name: &str) -> Result<Option<CostProfile>> {
        Ok(self.settings.get(row(name)).and_then(|value| read_json(&value)))
    }

    /// Notes what is known of a machine.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_costs(&self, name: &str, costs: &CostProfile) -> Result<()> {
        self.settings.insert(row(name), to_json(costs)?)
    }
}

fn row(name: &str) -> String {
    format!("{PREFIX}{name}")
}
