//! Format 2: the disk tier's column family `index`, with a small row an entry.
//!
//! Opening a store of format 1 reads every entry row, token ids and all. With the index it reads about a hundred bytes an
//! entry. The step fills the index from the entry rows and leaves these as they are.

use std::path::Path;

use ragstone_storage::Result;
use ragstone_storage::tier::disk;

use crate::{Check, Step};

pub(crate) const STEP: Step = Step {
    from: 1,
    to: 2,
    what: "an index of the entries on disk, so that a start need not read their tokens",
    automatic: true,
    run,
    verify,
};

fn run(data: &Path) -> Result<String> {
    let kv = data.join("kv");
    // A folder that was stamped and never opened.
    let entries = if kv.exists() { disk::add_index(&kv)? } else { 0 };
    Ok(format!("{entries} entries were indexed"))
}

fn verify(data: &Path) -> Result<Vec<Check>> {
    let kv = data.join("kv");
    if !kv.exists() {
        return Ok(Vec::new());
    }
    let disk::IndexCheck { entries, missing, stale } = disk::check_index(&kv)?;
    let found =
        format!("{entries} entries, {missing} of them without a true index row; {stale} index rows without an entry");
    Ok(vec![Check { what: "every entry on disk has its row in the index".into(), ok: missing + stale == 0, found }])
}
