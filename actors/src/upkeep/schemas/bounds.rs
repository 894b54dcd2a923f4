//! How many schemas are kept, and how large.

use ragstone_storage::catalog::{KeptSchemas, SchemaRecord};

use crate::error::{Error, ErrorKind, Result};

/// Schemas of a tenant, and of a data folder.
const MOST_OF_TENANT: usize = 256;
const MOST_SCHEMAS: usize = 4096;
/// Bytes of a schema with its sources, of a tenant's, and of all that are kept.
const MOST_BYTES: usize = 8 << 20;
const MOST_BYTES_OF_TENANT: u64 = 32 << 20;
const MOST_BYTES_OF_ALL: u64 = 1 << 30;
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
pub(super) fn check_room(others: &KeptSchemas, more: &SchemaRecord) -> Result<()> {
    let bytes = more.bytes();
    let refused = if bytes > MOST_BYTES {
        format!("the schema and its sources have {bytes} bytes, and {MOST_BYTES} are the most that are kept")
    } else if others.of_tenant >= MOST_OF_TENANT || others.bytes_of_tenant + bytes as u64 > MOST_BYTES_OF_TENANT {
        format!(
            "{MOST_OF_TENANT} schemas of a tenant with {} MiB are the most that are kept; remove one",
            MOST_BYTES_OF_TENANT >> 20
        )
    } else if others.of_all >= MOST_SCHEMAS || others.bytes_of_all + bytes as u64 > MOST_BYTES_OF_ALL {
        "the data folder keeps as many schemas as it may; remove some".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidInput, refused))
}
