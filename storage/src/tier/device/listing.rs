//! What the tier holds, one by one: for people.

use super::{DeviceTier, TIER};
use crate::key::{Fingerprint, SegmentDigest};
use crate::tier::EntrySummary;

impl DeviceTier {
    /// Calls `each` for every segment that is kept, in no order. What only an entry knows is zero: its layers, what computing
    /// it took, and when that was. Memory only.
    pub fn list(&self, fingerprint: &Fingerprint, each: &mut dyn FnMut(EntrySummary)) {
        let state = self.state();
        let summary = |(id, node): (&_, &super::Node)| EntrySummary {
            key: state.tree.key(*id),
            parent: state.tree.parent(*id).map(|parent| state.tree.key(parent)),
            segment: SegmentDigest::of(fingerprint, &node.segment.tokens),
            fingerprint: *fingerprint,
            tenant: node.tenant.clone(),
            tokens: node.segment.tokens.len() as u32,
            layers: 0,
            bytes: state.tree.size_bytes(*id),
            compute_us: 0,
            created_unix_ms: 0,
        };
        debug_assert!(state.nodes.keys().all(|id| state.tree.is_in(*id, TIER)));
        let found: Vec<EntrySummary> = state.nodes.iter().map(summary).collect();
        // Whoever is told may ask the tier.
        drop(state);
        found.into_iter().for_each(each);
    }
}
