//! The tree of an HTML page: what html5ever builds, as a list of nodes that know their neighbours.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};

use html5ever::interface::{ElemName, ElementFlags, NodeOrText, QuirksMode, TreeSink};
use html5ever::tendril::{StrTendril, TendrilSink};
use html5ever::tree_builder::TreeBuilderOpts;
use html5ever::{Attribute, LocalName, Namespace, ParseOpts, QualName, parse_document};

use super::attributes::{self, MAX_ATTRIBUTES};

/// Elements in one another. Pages of people have some dozens.
const MAX_DEPTH: u16 = 512;
/// What is parsed between two looks at how deep and how large it is. Each paragraph repeats all formatting that was not closed before it, so that
/// a chunk may make some hundred thousand nodes.
const CHUNK_BYTES: usize = 2 << 10;
/// Nodes and attributes of a page: one for each of its bytes, as many as this of a small page, and this of any. A node takes about a hundred bytes.
const LEAST_ROOM: usize = 200_000;
const MOST_ROOM: usize = 4_000_000;

/// A node, by its place in the list.
pub type NodeId = u32;

/// The page itself.
pub const DOCUMENT: NodeId = 0;

/// What a node is.
#[derive(Debug)]
pub enum Data {
    Element {
        name: QualName,
        attributes: Vec<Attribute>,
    },
    Text(StrTendril),
    /// The page, a comment and the like.
    Other,
}

#[derive(Debug)]
pub struct Node {
    pub data: Data,
    pub parent: Option<NodeId>,
    pub next: Option<NodeId>,
    pub first: Option<NodeId>,
    previous: Option<NodeId>,
    last: Option<NodeId>,
    depth: u16,
}

/// A page's nodes.
#[derive(Debug)]
pub struct Dom {
    nodes: RefCell<Vec<Node>>,
    is_too_deep: Cell<bool>,
    /// Nodes and attributes that it may still have.
    room: Cell<usize>,
    is_too_much: Cell<bool>,
}

/// The nodes of a page.
///
/// # Errors
/// Where they nest too deep, or are more than a page of this length has.
pub fn parse(source: &str) -> Result<Vec<Node>, String> {
    attributes::check(source)?;
    let room = source.len().clamp(LEAST_ROOM, MOST_ROOM);
    let tree_builder = TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() };
    let dom = Dom {
        nodes: RefCell::new(vec![node(Data::Other)]),
        is_too_deep: Cell::new(false),
        room: Cell::new(room),
        is_too_much: Cell::new(false),
    };
    let mut parser = parse_document(dom, ParseOpts { tree_builder, ..ParseOpts::default() });
    let mut rest = source;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rest.ceil_char_boundary(CHUNK_BYTES));
        parser.process(StrTendril::from_slice(chunk));
        if parser.tokenizer.sink.sink.is_too_deep.get() {
            return Err(format!(
                "it nests too deep: more than {MAX_DEPTH} elements in one another; convert it to text first"
            ));
        }
        if parser.tokenizer.sink.sink.is_too_much.get() {
            return Err(format!(
                "its {} bytes of HTML make more than {room} elements and attributes; convert it to text first",
                source.len()
            ));
        }
        rest = after;
    }
    Ok(parser.finish())
}

impl Node {
    /// The local name of an element.
    pub fn name(&self) -> &str {
        match &self.data {
            Data::Element { name, .. } => &name.local,
            _ => "",
        }
    }

    /// One of an element's attributes.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        match &self.data {
            Data::Element { attributes, .. } => {
                attributes.iter().find(|attribute| &*attribute.name.local == name).map(|attribute| &*attribute.value)
            }
            _ => None,
        }
    }
}

fn node(data: Data) -> Node {
    Node { data, parent: None, next: None, first: None, previous: None, last: None, depth: 0 }
}

impl Dom {
    fn add(&self, mut data: Data) -> NodeId {
        if let Data::Element { attributes, .. } = &mut data
            && !self.takes(attributes.len())
        {
            // The page is refused; up to the end of its chunk they would be kept.
            *attributes = Vec::new();
        }
        self.takes(1);
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(node(data));
        // There is room for far fewer.
        (nodes.len() - 1) as NodeId
    }

    /// Whether there is room for so many more nodes or attributes.
    fn takes(&self, count: usize) -> bool {
        let left = self.room.get().checked_sub(count);
        self.room.set(left.unwrap_or(0));
        self.is_too_much.set(self.is_too_much.get() || left.is_none());
        left.is_some()
    }

    /// Puts a node among a parent's children: before one of them, or last.
    fn insert(&self, parent: NodeId, before: Option<NodeId>, id: NodeId) {
        self.detach(id);
        let mut nodes = self.nodes.borrow_mut();
        let previous = match before {
            Some(before) => nodes[before as usize].previous.replace(id),
            None => nodes[parent as usize].last.replace(id),
        };
        match previous {
            Some(previous) => nodes[previous as usize].next = Some(id),
            None => nodes[parent as usize].first = Some(id),
        }
        let depth = nodes[parent as usize].depth.saturating_add(1);
        self.is_too_deep.set(self.is_too_deep.get() || depth > MAX_DEPTH);
        let node = &mut nodes[id as usize];
        (node.parent, node.previous, node.next, node.depth) = (Some(parent), previous, before, depth);
    }

    fn detach(&self, id: NodeId) {
        let mut nodes = self.nodes.borrow_mut();
        let node = &mut nodes[id as usize];
        let (parent, previous, next) = (node.parent.take(), node.previous.take(), node.next.take());
        let Some(parent) = parent else { return };
        match previous {
            Some(previous) => nodes[previous as usize].next = next,
            None => nodes[parent as usize].first = next,
        }
        match next {
            Some(next) => nodes[next as usize].previous = previous,
            None => nodes[parent as usize].last = previous,
        }
    }

    /// Adds to the text that stands there already; whether there is one.
    fn extend_text(&self, id: Option<NodeId>, more: &StrTendril) -> bool {
        let mut nodes = self.nodes.borrow_mut();
        match id.map(|id| &mut nodes[id as usize].data) {
            Some(Data::Text(text)) => {
                text.push_tendril(more);
                true
            }
            _ => false,
        }
    }

    fn put(&self, parent: NodeId, before: Option<NodeId>, child: NodeOrText<NodeId>) {
        let id = match child {
            NodeOrText::AppendNode(id) => id,
            NodeOrText::AppendText(text) => {
                let previous = {
                    let nodes = self.nodes.borrow();
                    before.map_or(nodes[parent as usize].last, |before| nodes[before as usize].previous)
                };
                if self.extend_text(previous, &text) {
                    return;
                }
                self.add(Data::Text(text))
            }
        };
        self.insert(parent, before, id);
    }

    fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.nodes.borrow()[id as usize].parent
    }
}

/// An element's name while its page is built.
#[derive(Debug)]
pub struct Name(QualName);

impl ElemName for Name {
    fn ns(&self) -> &Namespace {
        &self.0.ns
    }

    fn local_name(&self) -> &LocalName {
        &self.0.local
    }
}

impl TreeSink for Dom {
    type Handle = NodeId;
    type Output = Vec<Node>;
    type ElemName<'a> = Name;

    fn finish(self) -> Vec<Node> {
        self.nodes.into_inner()
    }

    fn parse_error(&self, _: Cow<'static, str>) {}

    fn get_document(&self) -> NodeId {
        DOCUMENT
    }

    fn elem_name<'a>(&'a self, target: &'a NodeId) -> Name {
        match &self.nodes.borrow()[*target as usize].data {
            Data::Element { name, .. } => Name(name.clone()),
            _ => Name(QualName::new(None, Namespace::default(), LocalName::default())),
        }
    }

    fn create_element(&self, name: QualName, attributes: Vec<Attribute>, _: ElementFlags) -> NodeId {
        self.add(Data::Element { name, attributes })
    }

    fn create_comment(&self, _: StrTendril) -> NodeId {
        self.add(Data::Other)
    }

    fn create_pi(&self, _: StrTendril, _: StrTendril) -> NodeId {
        self.add(Data::Other)
    }

    fn append(&self, parent: &NodeId, child: NodeOrText<NodeId>) {
        self.put(*parent, None, child);
    }

    fn append_based_on_parent_node(&self, element: &NodeId, previous: &NodeId, child: NodeOrText<NodeId>) {
        match self.parent(*element) {
            Some(parent) => self.put(parent, Some(*element), child),
            None => self.put(*previous, None, child),
        }
    }

    fn append_doctype_to_document(&self, _: StrTendril, _: StrTendril, _: StrTendril) {}

    /// A template's content is its children here; neither is shown.
    fn get_template_contents(&self, target: &NodeId) -> NodeId {
        *target
    }

    fn same_node(&self, one: &NodeId, other: &NodeId) -> bool {
        one == other
    }

    fn set_quirks_mode(&self, _: QuirksMode) {}

    fn append_before_sibling(&self, sibling: &NodeId, child: NodeOrText<NodeId>) {
        if let Some(parent) = self.parent(*sibling) {
            self.put(parent, Some(*sibling), child);
        }
    }

    fn add_attrs_if_missing(&self, target: &NodeId, more: Vec<Attribute>) {
        if let Data::Element { attributes, .. } = &mut self.nodes.borrow_mut()[*target as usize].data {
            // Each is compared with all others.
            for attribute in more {
                if attributes.len() < MAX_ATTRIBUTES && attributes.iter().all(|known| known.name != attribute.name) {
                    attributes.push(attribute);
                }
            }
        }
    }

    fn remove_from_parent(&self, target: &NodeId) {
        self.detach(*target);
    }

    fn reparent_children(&self, node: &NodeId, new_parent: &NodeId) {
        loop {
            let child = self.nodes.borrow()[*node as usize].first;
            let Some(child) = child else { return };
            self.insert(*new_parent, None, child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formatting that is never closed, and is repeated in each paragraph.
    fn repeated(formats: usize, paragraphs: usize) -> String {
        let formats: String = (0..formats).map(|id| format!("<b id={id}>")).collect();
        format!("<p>{formats}{}", "<p>x".repeat(paragraphs))
    }

    #[test]
    fn a_page_makes_no_more_nodes_than_its_bytes() {
        // 400 elements for each of 60,000 paragraphs.
        let page = repeated(400, 60_000);
        assert!(page.len() < 256 << 10);
        assert!(parse(&page).unwrap_err().contains("elements and attributes"));
        // Attributes are repeated, too.
        let attributes: String = (0..MAX_ATTRIBUTES).map(|at| format!(" a{at}")).collect();
        let page = format!("<p><b{attributes}>{}", "<p>x".repeat(10_000));
        assert!(parse(&page).unwrap_err().contains("elements and attributes"));
        let nodes = parse(&repeated(10, 2_000)).unwrap();
        assert!(nodes.len() > 20_000, "{}", nodes.len());
    }

    #[test]
    fn an_ordinary_page_has_room() {
        let page = "<tr><td>x<td class=a>y<br>".repeat(20_000);
        assert!(parse(&format!("<table>{page}</table>")).is_ok());
    }

    #[test]
    fn attributes_that_tags_of_a_body_add_are_bounded() {
        let page: String = (0..2 * MAX_ATTRIBUTES).map(|at| format!("<body a{at}>")).collect();
        let nodes = parse(&page).unwrap();
        let of_body = nodes.iter().find(|node| node.name() == "body").unwrap();
        let Data::Element { attributes, .. } = &of_body.data else { panic!("an element") };
        assert_eq!(attributes.len(), MAX_ATTRIBUTES);
    }
}
