//! `ragstone page`

use crate::access;
use crate::cli::output;
use crate::config::Config;
use crate::error::Result;

/// Prints the page's address, with the owner's token behind `#`: browsers send no server what stands there.
pub async fn run(config: &Config) -> Result<()> {
    let (record, _) = access::running(config).await?;
    output::line(&format!("{}/#token={}", reached_at(&record.address), record.token))
}

/// Where a browser on this machine reaches a service: one that listens on every address is reached on one.
pub fn reached_at(address: &str) -> String {
    address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
}
