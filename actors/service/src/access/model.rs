//! Whether a running service has the model that a command means. What a model is called says little: a file has its service's name without
//! the ending, and two folders may be called alike. Where names and paths do not settle it, contents do.

use std::path::Path;

use ragstone_kernels::files::ModelFiles;
use ragstone_models::model_source::{self, DEMO_ID};
use ragstone_storage::fingerprint::weights_digest;
use ragstone_terminal::progress::{Progress, Unit};

use crate::api::cache::WholeStatus;
use crate::client::Client;
use crate::data_folder::ServiceRecord;
use crate::error::{Error, ErrorKind, Result};

/// Refuses what would get another model's answer than the one that was named.
///
/// # Errors
/// `Incompatible` where the service has another model.
pub(super) async fn check(wanted: &str, client: &Client, record: &ServiceRecord) -> Result<()> {
    let status: WholeStatus = client.get(&["v1", "cache", "status"]).await?;
    let served = &status.status.model;
    let found = model_source::on_this_machine(wanted);
    let is_same = match &found {
        // Each version has its own, and none is elsewhere than in a data folder.
        _ if model_source::is_demo(wanted) => served.id == DEMO_ID,
        Some(found) if record.models.contains(&found.path) => true,
        Some(found) => {
            let path = found.path.clone();
            let bar = Progress::new("comparing the model with the running service's", Unit::Nothing);
            let digest = bar.during(tokio::task::spawn_blocking(move || digest(&path))).await;
            let digest = digest.map_err(|error| Error::internal(format!("comparing models broke off: {error}")))??;
            digest == served.weights
        }
        // Not fetched yet, or not there.
        None => wanted == served.id,
    };
    if is_same {
        return Ok(());
    }
    let message = format!(
        "the running service of this data folder has model `{}`, not `{wanted}`; stop it and start it with that model, or leave --model \
         out",
        served.id
    );
    Err(Error::new(ErrorKind::Incompatible, message))
}

/// What [`ModelStatus::weights`](ragstone_actors::ragstone::status::ModelStatus::weights) says of a folder or file. BLOCKS, about a second a gigabyte.
fn digest(model: &Path) -> Result<String> {
    weights_digest(&ModelFiles::open(model)?.weight_files()?, None)
}
