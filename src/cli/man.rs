//! `ragstone man`

use std::path::Path;

use ragstone_terminal::output;

use crate::error::{Error, Result};

/// Prints the program's page, or writes a page for each command into `folder`, which is created where it is missing.
pub fn write(command: clap::Command, folder: Option<&Path>) -> Result<()> {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(|error| Error::internal(format!("the manual page cannot be written: {error}")))?;
        return output::text(&String::from_utf8_lossy(&page));
    };
    let failed = |error: std::io::Error| Error::io("cannot write manual pages to", folder, error);
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)
}
