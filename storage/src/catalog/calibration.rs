//! What calibrations found, by model. Their form is whoever makes them.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::records::Kept;
use super::{Catalog, read_json, to_json};
use crate::Result;

impl Catalog {
    /// What was found of a model; `None` if nothing was, or it cannot be read: it is calibrated again then.
    ///
    /// # Errors
    /// As sled says.
    pub fn calibration<T: DeserializeOwned>(&self, model: &str) -> Result<Option<T>> {
        Ok(self.settings.get(row(model)).and_then(|value| read_json(&value)))
    }

    /// Notes what was found of a model; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_calibration<T: Serialize>(&self, model: &str, found: &T) -> Result<()> {
        self.put(Kept::Settings, row(model).as_bytes(), to_json(found)?)
    }
}

fn row(model: &str) -> String {
    format!("calibration.{model}")
}
