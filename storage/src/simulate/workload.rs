//! What is simulated: requests as paths of the tree.

use std::collections::HashMap;

use serde::Serialize;

use crate::key::KvKey;
use crate::segment::SegmentKind;
use crate::{Error, Result};

/// A segment behind everything before it: what a node of the knowledge tree stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathNode {
    /// What stands before it.
    pub parent: Option<u32>,
    /// What it says: the same label is the same text, wherever it stands.
    pub label: u64,
    /// Its length.
    pub tokens: u32,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its path from the root on, as indices into [`Workload::nodes`].
    pub path: Vec<u32>,
    /// Tokens behind the path, computed anew every time.
    pub question_tokens: u32,
}

/// Requests in the order of their arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// All distinct paths; parents stand before their children.
    pub nodes: Vec<PathNode>,
    /// In the order of arrival.
    pub requests: Vec<Request>,
    /// Whether every path begins with a system prompt, which is no document.
    pub has_system_prompt: bool,
    /// What the other nodes are: passages, which can be blended, or text, which cannot.
    pub kind: SegmentKind,
    by_label: HashMap<(Option<u32>, u64), u32>,
}

/// A workload in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WorkloadSummary {
    pub requests: usize,
    /// Distinct paths: nodes of a tree that keeps everything.
    pub nodes: usize,
    /// Of all prompts together.
    pub prompt_tokens: u64,
    /// Of all distinct paths together.
    pub working_set_tokens: u64,
    pub longest_path: usize,
}

impl Workload {
    /// No request yet; behind the system prompt, if there is one, stand passages.
    pub fn new(has_system_prompt: bool) -> Self {
        let kind = SegmentKind::Passage;
        Self { nodes: Vec::new(), requests: Vec::new(), has_system_prompt, kind, by_label: HashMap::new() }
    }

    /// No request yet, of text: histories, of which nothing is known but what they begin with.
    pub fn of_text() -> Self {
        Self { kind: SegmentKind::Text, ..Self::new(false) }
    }

    /// Adds a request. `segments` are labels and lengths, the root first; the same labels behind the same parents are the
    /// same node, of the length that it had first.
    ///
    /// # Errors
    /// `InvalidInput` if the prompt is empty or has 2^31 tokens or more, or if there are 2^32 distinct paths.
    pub fn push(&mut self, segments: &[(u64, u32)], question_tokens: u32) -> Result<()> {
        let total: u64 =
            segments.iter().map(|(_, tokens)| u64::from(*tokens)).sum::<u64>() + u64::from(question_tokens);
        if total == 0 || total >= 1 << 31 {
            return Err(Error::invalid_input(format!(
                "a prompt of {total} tokens; 1 to {} can be simulated",
                (1u64 << 31) - 1
            )));
        }
        let mut path = Vec::with_capacity(segments.len());
        for (label, tokens) in segments {
            let parent = path.last().copied();
            let next = u32::try_from(self.nodes.len());
            let next = next.map_err(|_| Error::invalid_input("more than 2^32 distinct paths cannot be simulated"))?;
            let node = *self.by_label.entry((parent, *label)).or_insert(next);
            if node == next {
                self.nodes.push(PathNode { parent, label: *label, tokens: *tokens });
            }
            path.push(node);
        }
        self.requests.push(Request { path, question_tokens });
        Ok(())
    }

    /// Tokens of a node.
    pub fn tokens(&self, node: u32) -> u32 {
        self.nodes[node as usize].tokens
    }

    /// Length of a request's prompt.
    pub fn prompt_tokens(&self, request: &Request) -> u32 {
        request.path.iter().map(|node| self.tokens(*node)).sum::<u32>() + request.question_tokens
    }

    /// The key of a node's text behind the system prompt of `path`, and the primer, if it is `primed`. Without one it is that of the node
    /// that stands there, if one does.
    pub(super) fn standalone_key(&self, path: &[u32], node: u32, primed: bool) -> KvKey {
        let root = path.first().copied().filter(|_| self.has_system_prompt);
        let label = self.nodes[node as usize].label;
        let first = self.by_label.get(&(root, label)).filter(|_| !primed);
        first.map_or_else(|| standalone_key_of(root, label), |node| key_of(*node))
    }

    /// The workload in numbers.
    pub fn summary(&self) -> WorkloadSummary {
        WorkloadSummary {
            requests: self.requests.len(),
            nodes: self.nodes.len(),
            prompt_tokens: self.requests.iter().map(|request| u64::from(self.prompt_tokens(request))).sum(),
            working_set_tokens: self.nodes.iter().map(|node| u64::from(node.tokens)).sum(),
            longest_path: self.requests.iter().map(|request| request.path.len()).max().unwrap_or(0),
        }
    }
}

/// The key of a workload's node. Keys of real prompts are hashes; these need only be distinct.
pub(super) fn key_of(node: u32) -> KvKey {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&node.to_le_bytes());
    KvKey(bytes)
}

/// The key of a text behind a system prompt, where no path begins so.
fn standalone_key_of(root: Option<u32>, label: u64) -> KvKey {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&root.unwrap_or(u32::MAX).to_le_bytes());
    // No key of a node has it.
    bytes[4] = 1;
    bytes[8..16].copy_from_slice(&label.to_le_bytes());
    KvKey(bytes)
}
