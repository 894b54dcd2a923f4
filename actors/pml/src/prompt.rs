//! What a prompt imports from its schema, and what it adds.

use super::Role;
use super::document::{Child, Element, Place, read, wrong};
use ragstone_env::Result;

/// A prompt that is derived from a schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The name of its schema.
    pub schema: String,
    pub(super) items: Vec<PromptItem>,
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PromptItem {
    /// Text of its own; not blank, and without white space at its edges.
    Text(String),
    /// What somebody says.
    Role(Role, Vec<PromptItem>),
    /// A module of the schema, or of the module that this stands in.
    Import(Import),
}

/// A module that is imported.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Import {
    pub name: String,
    /// Arguments by parameter, as they are written.
    pub arguments: Vec<(String, String)>,
    pub items: Vec<PromptItem>,
    pub at: Place,
}

impl Prompt {
    /// Reads a prompt.
    ///
    /// # Errors
    /// `InvalidInput` with line and column.
    pub fn parse(text: &str) -> Result<Self> {
        let root = read(text)?;
        if root.name != "prompt" {
            return Err(wrong(root.at, format!("a prompt begins with <prompt schema=\"…\">, not <{}>", root.name)));
        }
        root.only(&["schema"])?;
        let schema = root.required("schema")?.to_owned();
        Ok(Self { schema, items: items(&root, None)? })
    }
}

fn items(of: &Element, role: Option<Role>) -> Result<Vec<PromptItem>> {
    let mut items = Vec::with_capacity(of.children.len());
    for child in &of.children {
        match child {
            Child::Text(text) if text.trim().is_empty() => {}
            Child::Text(text) => items.push(PromptItem::Text(text.trim().to_owned())),
            Child::Element(element) => match (Role::of(&element.name), role) {
                (Some(inner), Some(outer)) => {
                    let (inner, outer) = (inner.name(), outer.name());
                    return Err(wrong(
                        element.at,
                        format!("<{inner}> inside <{outer}>: nobody speaks within another's words"),
                    ));
                }
                (Some(own), None) => {
                    element.only(&[])?;
                    items.push(PromptItem::Role(own, self::items(element, Some(own))?));
                }
                (None, _) => items.push(PromptItem::Import(Import {
                    name: element.name.clone(),
                    arguments: element.attributes().to_vec(),
                    items: self::items(element, role)?,
                    at: element.at,
                })),
            },
        }
    }
    Ok(items)
}
