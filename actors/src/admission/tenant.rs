//! Names of tenants.

use ragstone_corpus::is_name;

use crate::error::{Error, ErrorKind, Result};

/// Bytes of a tenant's name.
const MAX_TENANT_BYTES: usize = 64;
/// Tenants of one warm-up.
const MAX_TENANTS: usize = 1024;

/// Checks a tenant's name, wherever it comes from: it goes into logs, listings and every entry's header. The empty one is
/// the default tenant's.
///
/// # Errors
/// `InvalidInput`.
pub fn check_tenant(name: &str) -> Result<()> {
    let is_printable = name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if name.len() <= MAX_TENANT_BYTES && is_printable && name.trim() == name {
        return Ok(());
    }
    let mut shown = name.escape_default().to_string();
    shown.truncate(MAX_TENANT_BYTES);
    let message = format!(
        "`{shown}` cannot name a tenant: use at most {MAX_TENANT_BYTES} printable ASCII characters, without spaces at the ends"
    );
    Err(Error::new(ErrorKind::InvalidInput, message))
}

/// Checks the name of a tenant that is given its first key: its collections are called by it, so that it is named as they are. Keys that
/// are there may be of others.
///
/// # Errors
/// `InvalidInput`.
pub fn check_new_tenant(name: &str) -> Result<()> {
    check_tenant(name)?;
    if name.is_empty() || is_name(name) {
        return Ok(());
    }
    let message = format!(
        "`{name}` cannot name a tenant: use at most {MAX_TENANT_BYTES} of the letters a to z and A to Z, digits, dots, dashes and underscores"
    );
    Err(Error::new(ErrorKind::InvalidInput, message))
}

/// Checks the tenants of a warm-up.
///
/// # Errors
/// `InvalidInput` for a bad name or too many.
pub fn check_tenants(names: &[String]) -> Result<()> {
    if names.len() > MAX_TENANTS {
        let message = format!("{} tenants are too many at once; use at most {MAX_TENANTS}", names.len());
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    names.iter().try_for_each(|name| check_tenant(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_name_is_short_and_printable() {
        for name in ["", "a", "Team 7 / blue", &"x".repeat(64)] {
            check_tenant(name).unwrap();
        }
        for name in [" a", "a ", " ", "a\nb", "a\u{1b}[2J", "é", "\u{0}", &"x".repeat(65), &"é".repeat(100)] {
            let error = check_tenant(name).unwrap_err();
            assert!(error.to_string().is_ascii() && error.to_string().len() < 200, "{error}");
        }
    }

    #[test]
    fn a_new_tenant_is_named_as_collections_are() {
        for name in ["", "acme", "Team_7.blue-x", &"x".repeat(64)] {
            check_new_tenant(name).unwrap();
        }
        for name in ["a b", "a/b", "..", ".", "a\tb", "Team 7 / blue", &"x".repeat(65)] {
            check_new_tenant(name).unwrap_err();
        }
    }
}
