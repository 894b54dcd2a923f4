//! What tests need from outside the clone, for the tests of every crate: a variable names it, and `ops/test` sets them all.

use std::ffi::OsString;
use std::io::Write;

/// What the variable `name` holds. `None` where it is not set, for the caller to end its test: that is said on standard
/// error, past the capture of a test's output. `what` says what the variable should have named.
///
/// # Panics
/// Where it is not set and `CI` is: a check that does not run must not look like one that passed.
pub fn from_outside(name: &str, what: &str) -> Option<OsString> {
    match found(name, what, std::env::var_os(name), std::env::var_os("CI")) {
        Ok(value) => Some(value),
        Err(Missing::Skip(why)) => {
            let _ = writeln!(std::io::stderr(), "skipped: {why}");
            None
        }
        Err(Missing::Fail(why)) => panic!("not run: {why}"),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Missing {
    Skip(String),
    Fail(String),
}

fn found(name: &str, what: &str, value: Option<OsString>, ci: Option<OsString>) -> Result<OsString, Missing> {
    let is_set = |value: &OsString| !value.is_empty();
    value.filter(is_set).ok_or_else(|| match ci.filter(is_set) {
        None => Missing::Skip(format!("{name} names no {what}; ops/test sets it")),
        Some(_) => Missing::Fail(format!("{name} names no {what}, and CI is set; run ops/test, which sets it")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_skipped_by_people_and_fails_in_continuous_integration() {
        let with = |value: &str, ci: Option<&str>| found("X", "thing", Some(value.into()), ci.map(OsString::from));
        assert_eq!(with("/here", Some("true")), Ok("/here".into()));
        assert!(matches!(with("", Some("true")), Err(Missing::Fail(why)) if why.contains("X names no thing")));
        assert!(matches!(with("", None), Err(Missing::Skip(_))));
        assert!(matches!(with("", Some("")), Err(Missing::Skip(_))));
    }
}
