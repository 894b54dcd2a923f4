//! How many schemas are kept, and how large.

use ragstone_storage::catalog::SchemaRecord;

use crate::error::{Error, ErrorKind, Result};

/// Schemas of a tenant, and of a data folder.
const MOST_OF_TENANT: usize = 256;
const MOST_SCHEMAS: usize = 4096;
/// Bytes of a schema with its sources, and of all that are kept.
const MOST_BYTES: usize = 8 << 20;
const MOST_BYTES_OF_ALL: usize = 256 << 20;
/// Bytes of a schema's name.
const MOST_NAME_BYTES: usize = 128;

/// Whether a schema can be kept by this name.
pub(super) fn check_name(name: &str) -> Result<()> {
    let is_usable = !["", ".", ".."].contains(&name) && !name.contains(|c: char| c.is_control() || c == '/');
    if is_usable && name.len() <= MOST_NAME_BYTES {
        return Ok(());
    }
    let message = format!("the name of a schema that is kept has 1 to {MOST_NAME_BYTES} printable bytes, and no slash");
    Err(Error::new(ErrorKind::InvalidInput, message))
}

/// Whether one more may be kept.
pub(super) fn check_room(kept: &[SchemaRecord], more: &SchemaRecord) -> Result<()> {
    let bytes = |record: &SchemaRecord| record.schema.len() + record.sources.values().map(String::len).sum::<usize>();
    let others: Vec<&SchemaRecord> =
        kept.iter().filter(|other| (&other.tenant, &other.name) != (&more.tenant, &more.name)).collect();
    let of_tenant = others.iter().filter(|other| other.tenant == more.tenant).count();
    let of_all: usize = others.iter().map(|other| bytes(other)).sum();
    let refused = if bytes(more) > MOST_BYTES {
        format!("the schema and its sources have {} bytes, and {MOST_BYTES} are the most that are kept", bytes(more))
    } else if of_tenant >= MOST_OF_TENANT {
        format!("{MOST_OF_TENANT} schemas of a tenant are the most that are kept; remove one")
    } else if others.len() >= MOST_SCHEMAS || of_all + bytes(more) > MOST_BYTES_OF_ALL {
        "the data folder keeps as many schemas as it may; remove some".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidInput, refused))
}
