//! What collections are called: by people, and on disk.
//!
//! A collection belongs to a tenant, and its full name says to which: `TENANT/NAME`. Those of the default tenant, the empty name, are
//! called `NAME` alone. As names of collections have no slash, the last one parts the two, so that nothing else has to be kept of who
//! owns what, and no two tenants can want the same name.

use crate::{Error, ErrorKind, Result};

/// A collection's name stands in a path: letters, digits, `.`, `_`, `-`, and no more than this.
const MAX_NAME_BYTES: usize = 64;
/// Of a tenant's name.
const MAX_TENANT_BYTES: usize = 64;
/// Before the tables of the default tenant, so that no name of a collection can be a name that LanceDB keeps for itself.
const PREFIX: &str = "passages-";
/// Before those of others: the tenant's letters and digits, and of all else `_` and two hex digits, as LanceDB's names have letters, digits, `.`, `_`
/// and `-`; then `-` and the name.
const TENANT_PREFIX: &str = "of-";
/// The same two of tables that are on their way to take another's place; as long, so that a name that fits fits here, too.
const BUILDING: [&str; 2] = ["building-", "ob-"];
const BUILT: [&str; 2] = ["rebuilt--", "or-"];
/// Bytes of a table's name, as LanceDB bounds it.
const MAX_TABLE_BYTES: usize = 128;

/// What a table of a collection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is searched.
    Serving,
    /// It is to take that one's place, and has not all passages yet.
    Building,
    /// It has taken that one's place; the next start gives it that one's name.
    Built,
}

/// Whose a collection is, by its full name.
pub fn tenant_of(collection: &str) -> &str {
    collection.rsplit_once('/').map_or("", |(tenant, _)| tenant)
}

/// The full name that `given` means to somebody of the tenant `own`: a name without a slash is one of its own, `/NAME` is one of the
/// default tenant's, everything else is a full name.
pub fn full_name(own: &str, given: &str) -> String {
    match given.strip_prefix('/') {
        Some(name) if !name.contains('/') => name.to_owned(),
        _ if own.is_empty() || given.contains('/') => given.to_owned(),
        _ => format!("{own}/{given}"),
    }
}

/// What [`full_name`] makes `collection` of again, as short as it is.
pub fn shown_name(own: &str, collection: &str) -> String {
    match collection.rsplit_once('/') {
        Some((tenant, name)) if tenant == own => name.to_owned(),
        None if !own.is_empty() => format!("/{collection}"),
        _ => collection.to_owned(),
    }
}

/// Whether it can name a collection or a tenant: both stand in paths, where `.` and `..` mean something else.
pub fn is_name(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=MAX_NAME_BYTES).contains(&part.len()) && part.bytes().all(allowed) && !matches!(part, "." | "..")
}

/// Checks a full name that is to be a collection's.
///
/// # Errors
/// `InvalidInput`.
pub fn check_name(collection: &str) -> Result<()> {
    let mut parts = collection.split('/');
    if parts.clone().count() <= 2 && parts.all(is_name) && table_name(collection).len() <= MAX_TABLE_BYTES {
        return Ok(());
    }
    Err(no_name(collection))
}

/// Checks a full name that may be one of a collection that is there: earlier versions took any printable name for a tenant's.
///
/// # Errors
/// `InvalidInput`.
pub fn check_stored_name(collection: &str) -> Result<()> {
    let (tenant, name) = collection.rsplit_once('/').unwrap_or(("", collection));
    let is_printable = tenant.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let is_tenant = tenant.len() <= MAX_TENANT_BYTES && is_printable && tenant.trim() == tenant;
    // The default tenant's collections have one full name, not two.
    let is_full = !tenant.is_empty() || !collection.starts_with('/');
    let is_own = is_name(name) || matches!(name, "." | "..");
    if is_own && is_tenant && is_full && table_name(collection).len() <= MAX_TABLE_BYTES {
        return Ok(());
    }
    Err(no_name(collection))
}

fn no_name(collection: &str) -> Error {
    let shown: String = collection.escape_debug().take(2 * MAX_NAME_BYTES).collect();
    let mut message = format!(
        "`{shown}` cannot name a collection: use 1 to {MAX_NAME_BYTES} of the letters a to z and A to Z, digits, dots, dashes and \
         underscores"
    );
    if collection.contains('/') {
        message.push_str(", and TENANT/NAME, both of these, for a tenant's: one slash, and a shorter name where the tenant's is long");
    }
    Error::new(ErrorKind::InvalidInput, message)
}

/// The table of a collection.
pub(super) fn table_name(collection: &str) -> String {
    match collection.rsplit_once('/') {
        None => format!("{PREFIX}{collection}"),
        Some((tenant, name)) => {
            let escape = |byte: u8| match byte {
                letter if letter.is_ascii_alphanumeric() => char::from(letter).to_string(),
                other => format!("_{other:02x}"),
            };
            let tenant: String = tenant.bytes().map(escape).collect();
            format!("{TENANT_PREFIX}{tenant}-{name}")
        }
    }
}

/// The table of a collection at a stage.
pub(super) fn table_at(collection: &str, stage: Stage) -> String {
    let serving = table_name(collection);
    let [own, tenants] = match stage {
        Stage::Serving => return serving,
        Stage::Building => BUILDING,
        Stage::Built => BUILT,
    };
    match serving.strip_prefix(PREFIX) {
        Some(name) => format!("{own}{name}"),
        None => format!("{tenants}{}", serving.strip_prefix(TENANT_PREFIX).unwrap_or_default()),
    }
}

/// The collection of a table, and what the table is for; `None` for one that is none of ours.
pub(super) fn stage_of(table: &str) -> Option<(String, Stage)> {
    for (stage, [own, tenants]) in [(Stage::Building, BUILDING), (Stage::Built, BUILT)] {
        let serving = table.strip_prefix(own).map(|name| format!("{PREFIX}{name}"));
        let serving = serving.or_else(|| table.strip_prefix(tenants).map(|name| format!("{TENANT_PREFIX}{name}")));
        if let Some(serving) = serving {
            return collection_of(&serving).map(|name| (name, stage));
        }
    }
    collection_of(table).map(|name| (name, Stage::Serving))
}

/// The collection of a table; `None` for one that is none of ours.
fn collection_of(table: &str) -> Option<String> {
    if let Some(name) = table.strip_prefix(PREFIX) {
        return Some(name.to_owned());
    }
    let (escaped, name) = table.strip_prefix(TENANT_PREFIX)?.split_once('-')?;
    let mut parts = escaped.split('_');
    let mut tenant = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        tenant.push(u8::from_str_radix(digits, 16).ok()?);
        tenant.extend_from_slice(rest.as_bytes());
    }
    let collection = format!("{}/{name}", String::from_utf8(tenant).ok()?);
    // Only what we would have written.
    (check_stored_name(&collection).is_ok() && table_name(&collection) == table).then_some(collection)
}

/// What an error that there is no such collection has as its field.
pub const COLLECTION: &str = "collection";

/// There is no such collection.
pub(super) fn unknown(name: &str) -> Error {
    let message = format!("there is no collection `{name}`: `ragstone collections list` names those that there are");
    Error::of_field(ErrorKind::NotFound, COLLECTION, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_collections_have_tables_of_their_own() {
        let long = format!("{}/{}", "x".repeat(64), "y".repeat(60));
        let names = [
            "notes",
            "a.b_c-9",
            "acme/notes",
            "Team_7 / blue/notes",
            "/x/notes",
            "passages-/passages-",
            "a-b/-c",
            &long,
        ];
        for name in names {
            check_stored_name(name).unwrap();
            let table = table_name(name);
            assert!(table.len() <= MAX_TABLE_BYTES);
            assert!(table.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)), "{table}");
            assert_eq!(collection_of(&table).as_deref(), Some(name));
            for stage in [Stage::Serving, Stage::Building, Stage::Built] {
                let staged = table_at(name, stage);
                assert_eq!(
                    (staged.len(), stage_of(&staged)),
                    (table.len(), Some((name.to_owned(), stage))),
                    "{staged}"
                );
            }
        }
        assert_eq!(table_name("notes"), "passages-notes", "as earlier versions have it");
        for table in
            ["other", "of-", "of-a", "of--a", "of-a_-b", "of-a_6-b", "of-a_zz-b", "of-_61-a", "of-a_2D-b", "of-a-b c"]
        {
            assert_eq!(collection_of(table), None, "{table}");
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused_in_a_message_that_is_short() {
        let long = "x".repeat(65);
        let long_tenant = format!("{long}/a");
        let wide = format!("{}/{}", "-".repeat(40), "y".repeat(40));
        let bad = [
            &wide,
            "",
            "/",
            "a/",
            "/a",
            " a/b",
            "a /b",
            "a\n/b",
            "é/b",
            "no good",
            "a b",
            "a\u{202e}b",
            &long,
            &long_tenant,
        ];
        for name in bad {
            check_stored_name(name).unwrap_err();
            let error = check_name(name).unwrap_err();
            let text = error.to_string();
            let steers = |c: char| c.is_control() || c == '\u{202e}';
            assert!(!text.contains(steers) && text.len() < 350, "{error}");
        }
    }

    #[test]
    fn a_new_collections_tenant_is_named_as_collections_are() {
        for name in ["notes", "a.b_c-9", "acme/notes", "..a/b..", "-/-"] {
            check_name(name).unwrap();
            check_stored_name(name).unwrap();
        }
        for name in ["a b/c", "../../etc", "../etc", "a/..", "..", ".", "a//b", "x/y/z", "/x/y", "Team_7 / blue/notes"]
        {
            let error = check_name(name).unwrap_err().to_string();
            assert_eq!(error.contains("TENANT/NAME"), name.contains('/'), "{error}");
        }
        check_name("a\tb/c").unwrap_err();
        for name in ["a b/c", "../../etc", "x/y/z", ".."] {
            check_stored_name(name).unwrap();
        }
    }

    #[test]
    fn what_is_meant_depends_on_who_says_it() {
        for (own, given, full) in [
            ("", "notes", "notes"),
            ("", "/notes", "notes"),
            ("", "acme/notes", "acme/notes"),
            ("acme", "notes", "acme/notes"),
            ("acme", "acme/notes", "acme/notes"),
            ("acme", "/notes", "notes"),
            ("acme", "other/notes", "other/notes"),
            ("a/b", "notes", "a/b/notes"),
            ("acme", "/a/notes", "/a/notes"),
        ] {
            assert_eq!(full_name(own, given), full, "{own} {given}");
            assert_eq!(full_name(own, &shown_name(own, full)), full, "{own} {full}");
        }
        assert_eq!(["notes", "acme/notes", "a/b/notes"].map(tenant_of), ["", "acme", "a/b"]);
        assert_eq!((shown_name("acme", "acme/notes"), shown_name("acme", "notes")), ("notes".into(), "/notes".into()));
    }
}
