//! XML as the formats that are archives have it. Names are compared without their namespaces: what stands where says enough.

use roxmltree::{Document, Node, ParsingOptions};

use super::metadata::FileMetadata;

/// Nodes of one part. Each takes about a hundred bytes.
const MAX_NODES: u32 = 4_000_000;
/// Of one element: the parser compares each with all others.
const MAX_ATTRIBUTES: usize = 2_000;

/// Parses a part.
///
/// # Errors
/// Where it is no XML, or declares entities, which no such format needs.
pub fn parse<'a>(text: &'a str, name: &str) -> Result<Document<'a>, String> {
    check_attributes(text).map_err(|why| format!("its part `{name}` {why}"))?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| match error {
        roxmltree::Error::DtdDetected => {
            format!("its part `{name}` declares entities (a DTD), which is not followed; save it anew")
        }
        roxmltree::Error::NodesLimitReached => {
            format!("its part `{name}` has more than {MAX_NODES} nodes, which one part may have; split it")
        }
        error => format!("its part `{name}` is not readable as XML: {error}"),
    })
}

/// Counts signs of equality between a `<` and the next `>`: no element has more attributes.
fn check_attributes(text: &str) -> Result<(), String> {
    let most = text.split('<').map(|piece| {
        let tag = piece.split('>').next().unwrap_or_default();
        tag.bytes().filter(|byte| *byte == b'=').take(MAX_ATTRIBUTES + 1).count()
    });
    match most.max() {
        Some(count) if count > MAX_ATTRIBUTES => {
            Err(format!("has an element with more than {MAX_ATTRIBUTES} attributes; convert it to text first"))
        }
        _ => Ok(()),
    }
}

/// Parses a file that is XML itself. One may name a DTD, which is not read, but declare no entities.
///
/// # Errors
/// As [`parse`].
pub fn parse_file(text: &str) -> Result<Document<'_>, String> {
    check_attributes(text).map_err(|why| format!("it {why}"))?;
    let allow_dtd = !text.contains("<!ENTITY");
    let options = ParsingOptions { allow_dtd, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| match error {
        roxmltree::Error::DtdDetected => {
            "it declares entities (a DTD), which are not followed; save it without them".into()
        }
        roxmltree::Error::NodesLimitReached => {
            format!("it has more than {MAX_NODES} nodes, which one file may have; split it")
        }
        error => format!("not readable as XML: {error}"),
    })
}

/// The local name of an element; empty for other nodes.
pub fn name<'a>(node: Node<'a, '_>) -> &'a str {
    if node.is_element() { node.tag_name().name() } else { "" }
}

/// An attribute by its local name.
pub fn attribute<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.attributes().find(|attribute| attribute.name() == name).map(|attribute| attribute.value())
}

/// The first child of this name.
pub fn child<'a, 'i>(node: Node<'a, 'i>, wanted: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| name(*child) == wanted)
}

/// The first element below of this name.
pub fn below<'a, 'i>(node: Node<'a, 'i>, wanted: &str) -> Option<Node<'a, 'i>> {
    node.descendants().skip(1).find(|child| name(*child) == wanted)
}

/// All text below an element.
pub fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|text| text.text()).collect()
}

/// What Dublin Core says of a document: the core properties of Office's files, the metadata of a book.
pub fn dublin_core(node: Node<'_, '_>, metadata: &mut FileMetadata) {
    let mut authors = Vec::new();
    for field in node.descendants() {
        let key = match name(field) {
            "creator" | "initial-creator" => {
                authors.push(text(field).trim().to_owned());
                continue;
            }
            "title" => "title",
            "subject" => "subject",
            "description" => "description",
            "keywords" | "keyword" => "keywords",
            "language" => "language",
            "publisher" => "publisher",
            "identifier" => "identifier",
            "category" => "category",
            "created" | "creation-date" => "date",
            // A book's; Office's own is when it was saved last.
            "date" => "date",
            "modified" => "modified",
            _ => continue,
        };
        metadata.add(key, &text(field));
    }
    authors.retain(|author| !author.is_empty());
    authors.dedup();
    metadata.add("author", &authors.join(", "));
}

/// The title that a document gives itself, unless a program did.
pub fn own_title(metadata: &FileMetadata) -> Option<String> {
    let title = metadata.get("title")?;
    let is_made = ["PowerPoint", "Microsoft Word", "Document", "Untitled", "untitled", "Presentation", "Slide 1"]
        .iter()
        .any(|made| {
            title == *made || title.starts_with(&format!("{made} - ")) || title == format!("{made} Presentation")
        });
    (!is_made).then(|| title.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_has_not_more_attributes_than_can_be_compared() {
        let element = |count: usize| {
            let attributes: Vec<String> = (0..count).map(|n| format!("a{n}=\"v\"")).collect();
            format!("<r><x {}/>{}</r>", attributes.join(" "), "=".repeat(5000))
        };
        assert!(parse_file(&element(MAX_ATTRIBUTES)).is_ok());
        assert!(parse_file(&element(MAX_ATTRIBUTES + 1)).unwrap_err().contains("attributes"));
    }
}
