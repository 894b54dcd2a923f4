//! The `tojson` filter of chat templates, which writes what Python's `json.dumps` would.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

/// `value | tojson`, `value | tojson(indent=4)`. Nothing is escaped for HTML, and non-ASCII stays as it is.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // What else `json.dumps` takes changes the spelling in ways that no published template relies on.
    let failed = |error| Error::new(ErrorKind::BadSerialization, "tojson failed").with_source(error);
    let mut bytes = Vec::new();
    match indent {
        Some(width) => {
            let spaces = vec![b' '; width.min(16)];
            let formatter = PrettyFormatter::with_indent(&spaces);
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter)).map_err(failed)?;
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)).map_err(failed)?,
    }
    String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// One line, with a space behind each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
