//! What calibrations found, by model. Their form is whoever makes them.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Catalog, read_json, sled_error, to_json};
use crate::Result;

impl Catalog {
    /// What was found of a model; `None` if nothing was, or it cannot be read: it is calibrated again then.
    ///
    /// # Errors
    /// As sled says.
    pub fn calibration<T: DeserializeOwned>(&self, model: &str) -> Result<Option<T>> {
        let row = self.settings.get(row(model)).map_err(sled_error)?;
        Ok(row.and_then(|value| read_json(&value)))
    }

    /// Notes what was found of a model; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_calibration<T: Serialize>(&self, model: &str, found: &T) -> Result<()> {
        self.settings.insert(row(model), to_json(found)?).map_err(sled_error)?;
        self.flush()
    }
}

fn row(model: &str) -> String {
    format!("calibration.{model}")
}
