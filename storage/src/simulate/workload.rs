//! What is simulated: requests as paths of the tree.

use std::collections::HashMap;

use serde::Serialize;

use crate::key::KvKey;
use crate::{Error, Result};

/// A segment behind everything before it: what a node of the knowledge tree stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathNode {
    /// What stands before it.
    pub parent: Option<u32>,
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
    /// No request yet.
    pub fn new(has_system_prompt: bool) -> Self {
        Self { nodes: Vec::new(), requests: Vec::new(), has_system_prompt, by_label: HashMap::new() }
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
                self.nodes.push(PathNode { parent, tokens: *tokens });
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
