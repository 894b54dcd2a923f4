//! `ragstone page`

use crate::access;
use crate::cli::output;
use crate::config::Config;
use crate::error::Result;

/// Prints the page's address, with the owner's token behind `#`: browsers send no server what stands there.
pub async fn run(config: &Config) -> Result<()> {
    let (record, _) = access::running(config).await?;
    // What listens on every address is reached on one.
    let address = record.address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
    output::line(&format!("{address}/#token={}", record.token))
}
