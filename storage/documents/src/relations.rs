//! What the parts of Office's files refer to: other parts, and addresses.

use std::collections::HashMap;

use super::archive::{Archive, resolve};
use super::xml::{self, attribute, name};

/// What a part refers to.
#[derive(Debug)]
pub struct Relation {
    /// The last word of its type.
    pub kind: String,
    /// The part, if it is one of the archive.
    pub path: Option<String>,
    /// As it is written.
    pub target: String,
}

/// The relations of a part, by their ids.
///
/// # Errors
/// Where they cannot be read.
pub fn of(archive: &mut Archive<'_>, part: &str) -> Result<HashMap<String, Relation>, String> {
    let (folder, file) = part.rsplit_once('/').unwrap_or(("", part));
    let place = format!("{folder}/_rels/{file}.rels");
    let Some(text) = archive.text(&place)? else { return Ok(HashMap::new()) };
    let parsed = xml::parse(&text, &place)?;
    let mut relations = HashMap::new();
    for node in parsed.descendants().filter(|node| name(*node) == "Relationship") {
        let (Some(id), Some(target)) = (attribute(node, "Id"), attribute(node, "Target")) else { continue };
        let kind = attribute(node, "Type").and_then(|kind| kind.rsplit('/').next()).unwrap_or_default().to_owned();
        let path = resolve(part, target);
        relations.insert(id.to_owned(), Relation { kind, path, target: target.to_owned() });
    }
    Ok(relations)
}
