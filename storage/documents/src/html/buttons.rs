//! Buttons whose words are text. Most are there to be clicked; but the headings of answers that open and close are buttons, too.

use html5ever::LocalName;

use super::dom::{Data, Node, NodeId};
use super::names::{heading_level, is_unread};
use super::visit::visit;

/// What a button is called from then on whose words are text.
pub const SAID: &str = "said-button";

/// A heading that is being looked at.
#[derive(Default)]
struct Heading {
    /// Whether it has words that are in no button.
    has_words: bool,
    buttons: Vec<NodeId>,
}

/// Gives buttons whose words are text another name, so that whatever leaves out buttons reads them.
pub fn rename(nodes: &mut [Node]) {
    for id in said(nodes) {
        if let Data::Element { name, .. } = &mut nodes[id as usize].data {
            name.local = LocalName::from(SAID);
        }
    }
}

/// Those that open and close what they stand above, and those that a heading consists of: beside its words, one only does something to it.
fn said(nodes: &[Node]) -> Vec<NodeId> {
    let (mut said, mut headings, mut buttons) = (Vec::new(), Vec::<Heading>::new(), 0_usize);
    visit(nodes, |id, node, is_end| {
        let name = node.name();
        if is_end {
            buttons -= usize::from(name == "button");
            if is_heading(node)
                && let Some(heading) = headings.pop()
            {
                if !heading.has_words {
                    said.extend(heading.buttons);
                }
                if let Some(around) = headings.last_mut() {
                    around.has_words |= heading.has_words;
                }
            }
            return true;
        }
        if name == "button" {
            buttons += 1;
            match headings.last_mut() {
                _ if opens(node) => said.push(id),
                Some(heading) => heading.buttons.push(id),
                None => {}
            }
        } else if is_unread(name) {
            return false;
        }
        if let Data::Text(text) = &node.data
            && buttons == 0
            && let Some(heading) = headings.last_mut()
        {
            heading.has_words |= text.contains(char::is_alphanumeric);
        }
        if is_heading(node) {
            headings.push(Heading::default());
        }
        true
    });
    said
}

fn is_heading(node: &Node) -> bool {
    heading_level(node.name()).is_some()
        || matches!(node.name(), "summary" | "dt")
        || node.attribute("role") == Some("heading")
}

/// Whether a button opens and closes a part of the page. One that opens a menu is none.
fn opens(button: &Node) -> bool {
    let is_menu = button.attribute("aria-haspopup").is_some_and(|opened| opened != "false");
    let mut toggles = ["data-bs-toggle", "data-toggle"].into_iter().filter_map(|name| button.attribute(name));
    let is_said = ["aria-expanded", "aria-controls"].into_iter().any(|name| button.attribute(name).is_some());
    !is_menu && (is_said || toggles.any(|toggled| matches!(toggled, "collapse" | "tab" | "pill")))
}
