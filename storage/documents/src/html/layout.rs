//! Which tables arrange a page, and have no data.

use super::dom::{Data, Node, NodeId};
use super::names::is_block;
use super::visit::visit;

/// Tables that have tables in them, or code of several lines, which would be one line in a row.
pub fn layout_tables(nodes: &[Node]) -> Vec<NodeId> {
    let (mut open, mut found, mut code) = (Vec::<NodeId>::new(), Vec::<NodeId>::new(), Code::default());
    visit(nodes, |id, node, is_end| {
        let arranges = match node.name() {
            "table" if is_end => {
                open.pop();
                false
            }
            "table" => true,
            _ => code.goes_on(node, is_end),
        };
        if arranges {
            found.extend(open.last().copied().filter(|last| found.last() != Some(last)));
        }
        if node.name() == "table" && !is_end {
            open.push(id);
        }
        true
    });
    found.sort_unstable();
    found.dedup();
    found
}

/// A `<pre>` that is being looked at.
#[derive(Default)]
struct Code {
    /// How many are around.
    depth: usize,
    has_words: bool,
    /// Whether a line ends behind its first words.
    is_broken: bool,
}

impl Code {
    /// Whether a node is text below its first line.
    fn goes_on(&mut self, node: &Node, is_end: bool) -> bool {
        match (&node.data, node.name()) {
            (_, "pre") if is_end => self.depth = self.depth.saturating_sub(1),
            (_, "pre") if self.depth == 0 => *self = Self { depth: 1, ..Self::default() },
            (_, "pre") => self.depth += 1,
            (Data::Text(text), _) if self.depth > 0 && !is_end => {
                for (index, line) in text.split('\n').enumerate() {
                    self.is_broken |= index > 0 && self.has_words;
                    self.has_words |= !line.trim().is_empty();
                    if self.is_broken && !line.trim().is_empty() {
                        return true;
                    }
                }
            }
            (_, name) if is_end && (name == "br" || is_block(name)) => self.is_broken |= self.has_words,
            _ => {}
        }
        false
    }
}
