//! `ragstone page`

use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::data_folder::DataFolder;
use crate::error::{Error, ErrorKind, Result};

/// Prints the page's address, with the owner's token behind `#`: browsers send no server what stands there.
pub async fn run(config: &Config) -> Result<()> {
    let path = config.data()?;
    let folder = DataFolder::existing(&path)?;
    let missing = || {
        let message = format!("no service runs on {}; start one with `ragstone serve`", path.display());
        Error::new(ErrorKind::Unavailable, message)
    };
    let record = folder.service_record().ok_or_else(missing)?;
    if !Client::new(&record.address, &record.token)?.is_process(record.pid).await {
        return Err(missing());
    }
    // What listens on every address is reached on one.
    let address = record.address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
    output::line(&format!("{address}/#token={}", record.token))
}
