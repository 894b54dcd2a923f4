//! The text of a paragraph's runs: with notes and addresses, without what is deleted, struck or hidden.

use std::collections::HashMap;

use roxmltree::Node;

use super::styles::{Look, Styles};
use crate::address;
use crate::relations::Relation;
use crate::xml::{self, attribute, child, name};

/// Places whose text was left out.
#[derive(Debug, Default)]
pub struct Places {
    pub struck: usize,
    pub hidden: usize,
}

/// What runs refer to.
pub struct Runs<'a> {
    pub styles: &'a Styles,
    pub relations: &'a HashMap<String, Relation>,
    /// Footnotes and endnotes, by kind and number.
    pub notes: &'a HashMap<String, String>,
}

/// What a paragraph says.
#[derive(Debug, Default)]
pub struct Said {
    pub text: String,
    /// The texts of boxes that hang on it: they stand beside it, and not in it.
    pub boxes: Vec<String>,
}

impl Said {
    /// All of it, where there is one line for it.
    pub fn joined(self) -> String {
        let mut text = self.text;
        for said in self.boxes {
            text.push(' ');
            text.push_str(&said);
        }
        text
    }
}

/// What is still to be done, the next last.
enum Step<'a, 'i> {
    Node(Node<'a, 'i>),
    /// A box ends, and what is around goes on.
    BoxEnds(Reading),
    /// The text from `start` on was a link.
    LinkEnds {
        start: usize,
        address: String,
    },
}

/// A field, such as a link or a page's number: an instruction, then what it came to.
#[derive(Default)]
struct Field {
    instruction: String,
    /// Where its result begins.
    start: Option<usize>,
}

/// Why a run's text is not read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unread {
    Struck,
    Hidden,
}

/// A paragraph as it is put together.
#[derive(Default)]
struct Reading {
    text: String,
    boxes: Vec<String>,
    fields: Vec<Field>,
    /// What the run before was.
    last: Option<Unread>,
}

impl Reading {
    /// Without two blanks where something between them was left out.
    fn push(&mut self, text: &str) {
        let is_joint = self.last.take().is_some() && self.text.ends_with([' ', '\u{a0}']);
        self.text.push_str(if is_joint { text.trim_start_matches(' ') } else { text });
    }

    fn field(&mut self, node: Node<'_, '_>) {
        match attribute(node, "fldCharType") {
            Some("begin") => self.fields.push(Field::default()),
            Some("separate") => {
                if let Some(field) = self.fields.last_mut() {
                    field.start = Some(self.text.len());
                }
            }
            Some("end") => {
                if let Some(Field { instruction, start: Some(start) }) = self.fields.pop()
                    && let Some(address) = address::of_field(&instruction)
                {
                    address::put(&mut self.text, start, address);
                }
            }
            _ => {}
        }
    }
}

impl Runs<'_> {
    /// The text of a paragraph of a style that looks like `look`.
    pub fn text(&self, paragraph: Node<'_, '_>, look: Look, places: &mut Places) -> Said {
        let mut reading = Reading::default();
        let mut waiting: Vec<Step<'_, '_>> = children(paragraph).collect();
        while let Some(step) = waiting.pop() {
            let node = match step {
                Step::Node(node) => node,
                Step::LinkEnds { start, address } => {
                    address::put(&mut reading.text, start, &address);
                    continue;
                }
                Step::BoxEnds(around) => {
                    let inner = std::mem::replace(&mut reading, around);
                    reading.boxes.extend(std::iter::once(inner.text).chain(inner.boxes));
                    continue;
                }
            };
            match name(node) {
                "r" => match self.unread(node, look) {
                    Some(why) => {
                        leave_out(node, why, &mut reading, places);
                        waiting.extend(children(node).filter(|step| is_of_field(step)));
                    }
                    None => waiting.extend(children(node)),
                },
                "hyperlink" | "fldSimple" => {
                    if let Some(address) = self.address(node) {
                        waiting.push(Step::LinkEnds { start: reading.text.len(), address });
                    }
                    waiting.extend(children(node));
                }
                "txbxContent" => {
                    waiting.push(Step::BoxEnds(std::mem::take(&mut reading)));
                    waiting.extend(children(node));
                }
                "p" => {
                    // Of a box, or of a note.
                    reading.push("\n");
                    waiting.extend(children(node));
                }
                // `rt` is how a word is pronounced, and would stand before it.
                "" | "pPr" | "rPr" | "del" | "moveFrom" | "delText" | "Fallback" | "rt" => {}
                _ if self.put(node, &mut reading) => {}
                _ => waiting.extend(children(node)),
            }
        }
        Said { text: reading.text, boxes: reading.boxes }
    }

    /// Text, or what stands for some; `false` for other elements.
    fn put(&self, node: Node<'_, '_>, reading: &mut Reading) -> bool {
        match name(node) {
            "t" => reading.push(&xml::text(node)),
            "tab" | "ptab" => reading.push("\t"),
            "br" | "cr" => reading.push("\n"),
            "noBreakHyphen" => reading.push("-"),
            "fldChar" => reading.field(node),
            "instrText" => {
                if let Some(field) = reading.fields.last_mut().filter(|field| field.start.is_none()) {
                    field.instruction.push_str(&xml::text(node));
                }
            }
            note @ ("footnoteReference" | "endnoteReference") => {
                let kind = note.trim_end_matches("Reference");
                let id = attribute(node, "id").unwrap_or_default();
                if let Some(note) = self.notes.get(&format!("{kind} {id}")).filter(|note| !note.is_empty()) {
                    reading.push(&format!(" ({note})"));
                }
            }
            _ => return false,
        }
        true
    }

    fn unread(&self, run: Node<'_, '_>, of_paragraph: Look) -> Option<Unread> {
        let properties = child(run, "rPr");
        let own = properties.map(Look::of).unwrap_or_default();
        let style = properties.and_then(|node| attribute(child(node, "rStyle")?, "val"));
        let look = own.over(style.map(|id| self.styles.look(id)).unwrap_or_default()).over(of_paragraph);
        let hidden = look.hidden.filter(|is| *is).map(|_| Unread::Hidden);
        hidden.or_else(|| look.struck.filter(|is| *is).map(|_| Unread::Struck))
    }

    /// Where a link leads.
    fn address(&self, link: Node<'_, '_>) -> Option<String> {
        if name(link) == "fldSimple" {
            return address::of_field(attribute(link, "instr")?).map(str::to_owned);
        }
        let id = link.attributes().find(|attribute| attribute.name() == "id" && attribute.namespace().is_some())?;
        Some(self.relations.get(id.value())?.target.clone())
    }
}

fn children<'a, 'i>(node: Node<'a, 'i>) -> impl Iterator<Item = Step<'a, 'i>> {
    node.children().rev().map(Step::Node)
}

fn is_of_field(step: &Step<'_, '_>) -> bool {
    matches!(step, Step::Node(node) if matches!(name(*node), "fldChar" | "instrText"))
}

/// Counts a place, unless the run before was of the same.
fn leave_out(run: Node<'_, '_>, why: Unread, reading: &mut Reading, places: &mut Places) {
    let says = run.descendants().filter(|node| name(*node) == "t").any(|node| !xml::text(node).trim().is_empty());
    if !says || reading.last == Some(why) {
        return;
    }
    reading.last = Some(why);
    match why {
        Unread::Struck => places.struck += 1,
        Unread::Hidden => places.hidden += 1,
    }
}
