//! The nodes of a page in its order.

use super::dom::{DOCUMENT, Node, NodeId};

/// All nodes, each when it begins, and again with its children when it ends; where `look` says no, neither its children nor its end.
pub fn visit(nodes: &[Node], look: impl FnMut(NodeId, &Node, bool) -> bool) {
    visit_below(nodes, DOCUMENT, look);
}

/// As [`visit`], of one node and what is below it.
pub fn visit_below(nodes: &[Node], top: NodeId, mut look: impl FnMut(NodeId, &Node, bool) -> bool) {
    let mut at = top;
    let mut is_entered = look(at, &nodes[at as usize], false);
    loop {
        let node = &nodes[at as usize];
        let next = if let Some(first) = node.first.filter(|_| is_entered) {
            first
        } else {
            if is_entered {
                look(at, node, true);
            }
            match (node.next, node.parent) {
                _ if at == top => return,
                (Some(next), _) => next,
                (None, None) => return,
                (None, Some(parent)) => match end(nodes, parent, top, &mut look) {
                    Some(next) => next,
                    None => return,
                },
            }
        };
        at = next;
        is_entered = look(at, &nodes[at as usize], false);
    }
}

/// Ends a node, and those around it that end with it; what comes next.
fn end(
    nodes: &[Node],
    mut at: NodeId,
    top: NodeId,
    look: &mut impl FnMut(NodeId, &Node, bool) -> bool,
) -> Option<NodeId> {
    loop {
        let node = &nodes[at as usize];
        look(at, node, true);
        match node.next {
            _ if at == top => return None,
            Some(next) => return Some(next),
            None => at = node.parent?,
        }
    }
}
