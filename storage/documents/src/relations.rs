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

/// The relations of a part, by their ids; of the archive itself where the part has no name.
///
/// # Errors
/// Where they cannot be read.
pub fn of(archive: &mut Archive<'_>, part: &str) -> Result<HashMap<String, Relation>, String> {
    let place = match part.rsplit_once('/') {
        Some((folder, file)) => format!("{folder}/_rels/{file}.rels"),
        None => format!("_rels/{part}.rels"),
    };
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

/// The part that a file of Office mainly is, as the archive says; `usual` where it does not.
pub fn main(archive: &mut Archive<'_>, usual: &str) -> String {
    // Without them a document is a document still.
    let relations = of(archive, "").unwrap_or_default();
    part(archive, &relations, "officeDocument", usual)
}

/// The part of this kind that relations name; `usual` where they name none that there is.
pub fn part(archive: &Archive<'_>, relations: &HashMap<String, Relation>, kind: &str, usual: &str) -> String {
    let named =
        relations.values().filter(|relation| relation.kind == kind).filter_map(|relation| relation.path.as_ref());
    // They are in no order.
    named.filter(|path| archive.has(path)).min().map_or_else(|| usual.to_owned(), String::clone)
}
