//! Schemas and prompts as XML: parsing the text gives the same values.

use std::fmt::Write;

use super::prompt::PromptItem;
use super::{Item, Module, Parameter, Prompt, Schema};

impl Schema {
    /// The schema as XML, the texts of files that it names written out. [`Schema::parse`] reads the same schema from it, if it is within a
    /// document's bounds: texts of files may exceed them, or have characters that XML has not.
    pub fn to_xml(&self) -> String {
        let mut xml = String::new();
        open(&mut xml, "schema", &[("name", &self.name)], self.items.is_empty() && self.scaffolds.is_empty());
        for names in &self.scaffolds {
            open(&mut xml, "scaffold", &[("modules", &names.join(" "))], true);
        }
        if !(self.items.is_empty() && self.scaffolds.is_empty()) {
            items(&mut xml, &self.items);
            close(&mut xml, "schema");
        }
        xml
    }
}

impl Prompt {
    /// The prompt as XML, which [`Prompt::parse`] reads the same prompt from.
    pub fn to_xml(&self) -> String {
        let mut xml = String::new();
        open(&mut xml, "prompt", &[("schema", &self.schema)], self.items.is_empty());
        if !self.items.is_empty() {
            prompt_items(&mut xml, &self.items);
            close(&mut xml, "prompt");
        }
        xml
    }
}

fn items(xml: &mut String, items: &[Item]) {
    for item in items {
        match item {
            Item::Text(text) => escape(xml, text, false),
            Item::Role(role, said) => {
                open(xml, role.name(), &[], false);
                self::items(xml, said);
                close(xml, role.name());
            }
            Item::Parameter(Parameter { name, length, scaffold }) => {
                let length = length.to_string();
                let mut attributes = vec![("name", name.as_str()), ("length", length.as_str())];
                attributes.extend(scaffold.as_ref().map(|text| ("scaffold", text.as_str())));
                open(xml, "parameter", &attributes, true);
            }
            Item::Module(inner) => module(xml, inner),
            Item::Union(union) => {
                let scaffold: Vec<_> = union.scaffold.iter().map(|name| ("scaffold", name.as_str())).collect();
                open(xml, "union", &scaffold, false);
                union.members.iter().for_each(|member| module(xml, member));
                close(xml, "union");
            }
        }
    }
}

fn module(xml: &mut String, Module { name, cache, items }: &Module) {
    let mut attributes = vec![("name", name.as_str())];
    if !cache {
        attributes.push(("cache", "false"));
    }
    open(xml, "module", &attributes, items.is_empty());
    if !items.is_empty() {
        self::items(xml, items);
        close(xml, "module");
    }
}

fn prompt_items(xml: &mut String, items: &[PromptItem]) {
    for item in items {
        match item {
            PromptItem::Text(text) => escape(xml, text, false),
            PromptItem::Role(role, said) => {
                open(xml, role.name(), &[], false);
                prompt_items(xml, said);
                close(xml, role.name());
            }
            PromptItem::Import(import) => {
                let arguments: Vec<_> =
                    import.arguments.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                open(xml, &import.name, &arguments, import.items.is_empty());
                if !import.items.is_empty() {
                    prompt_items(xml, &import.items);
                    close(xml, &import.name);
                }
            }
        }
    }
}

fn open(xml: &mut String, name: &str, attributes: &[(&str, &str)], is_empty: bool) {
    let _ = write!(xml, "<{name}");
    for (name, value) in attributes {
        let _ = write!(xml, " {name}=\"");
        escape(xml, value, true);
        xml.push('"');
    }
    xml.push_str(if is_empty { "/>" } else { ">" });
}

fn close(xml: &mut String, name: &str) {
    let _ = write!(xml, "</{name}>");
}

/// A carriage return, and white space in an attribute, would be read as something else if it stood there itself.
fn escape(xml: &mut String, text: &str, is_attribute: bool) {
    for c in text.chars() {
        match c {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' if is_attribute => xml.push_str("&quot;"),
            '\n' if is_attribute => xml.push_str("&#10;"),
            '\t' if is_attribute => xml.push_str("&#9;"),
            '\r' => xml.push_str("&#13;"),
            c => xml.push(c),
        }
    }
}
