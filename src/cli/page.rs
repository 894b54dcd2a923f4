//! `ragstone page`

use ragstone_service::access;
use ragstone_service::config::Config;
use ragstone_terminal::output;

use crate::error::{Error, ErrorKind, Result};

/// Prints the page's address, with the owner's token behind `#`: browsers send no server what stands there.
pub async fn run(config: &Config) -> Result<()> {
    let (record, _) = access::running(config).await?;
    if record.passes {
        let message = "a command has the data folder open, and no page; start `ragstone serve` when it has ended (`ragstone ingest \
                       --list` and `ragstone top` show meanwhile how far it is)";
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    output::line(&format!("{}/#token={}", reached_at(record.shown()), record.token))
}

/// Where a browser on this machine reaches a service: one that listens on every address is reached on one.
pub fn reached_at(address: &str) -> String {
    address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
}
