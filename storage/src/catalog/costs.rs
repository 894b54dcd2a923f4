//! What this machine was seen to take, by model, kernels and threads.

use super::{Catalog, read_json, sled_error, to_json};
use crate::Result;
use crate::cost::CostProfile;

impl Catalog {
    /// What is known of a machine; `None` if nothing is, or it cannot be read: it is measured again then.
    ///
    /// # Errors
    /// As sled says.
    pub fn costs(&self, name: &str) -> Result<Option<CostProfile>> {
        let row = self.settings.get(row(name)).map_err(sled_error)?;
        Ok(row.and_then(|value| read_json(&value)))
    }

    /// Notes what is known of a machine.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_costs(&self, name: &str, costs: &CostProfile) -> Result<()> {
        self.settings.insert(row(name), to_json(costs)?).map(drop).map_err(sled_error)
    }
}

fn row(name: &str) -> String {
    format!("costs.{name}")
}
