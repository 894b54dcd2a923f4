//! The primer: a few passages of nobody's, behind which passages' standalone entries are computed.
//!
//! A passage that is computed right behind the system prompt takes itself for the beginning of a document: it makes attention sinks of its
//! own, and has no earlier passage to look back to. Everywhere but in the first place of a prompt that is wrong. Computed behind other
//! passages, which are not in the prompt, it is closer to what a full prefill makes of it, and costs nothing more when it is used
//! (docs/primer.md). The primer is part of the entry's key, as all that an entry is computed behind.

use std::sync::Arc;

use crate::key::{Fingerprint, KvKey};
use crate::segment::{Segment, SegmentKind};

/// Passages that stand between system prompt and passage where a standalone entry is computed. Clones share them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Primer(Arc<[Segment]>);

impl Primer {
    /// Of passages, written as a prompt's are; empty ones are left out.
    pub fn new(passages: impl IntoIterator<Item = Arc<[u32]>>) -> Self {
        let segment = |tokens: Arc<[u32]>| Segment { kind: SegmentKind::Passage, tokens, place: None };
        Self(passages.into_iter().filter(|tokens| !tokens.is_empty()).map(segment).collect())
    }

    /// None: standalone entries are computed right behind the system prompt.
    pub fn none() -> Self {
        Self::default()
    }

    /// Its first passages; all of them where it has no more.
    #[must_use]
    pub fn first(&self, passages: usize) -> Self {
        match self.0.get(..passages) {
            Some(first) if first.len() < self.0.len() => Self(first.into()),
            _ => self.clone(),
        }
    }

    /// Its passages.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Its length in tokens.
    pub fn tokens(&self) -> usize {
        self.0.iter().map(|segment| segment.tokens.len()).sum()
    }

    /// The prompt in which a passage's standalone entry is computed: its last segment is the entry's.
    pub fn prompt(&self, root: Option<&Segment>, passage: Segment) -> Vec<Segment> {
        root.into_iter().chain(self.segments()).cloned().chain([passage]).collect()
    }

    /// What a passage's standalone entry is filed under: the key of all that stands before it, behind `root`.
    pub fn key(&self, fingerprint: &Fingerprint, salt: &str, root: Option<KvKey>) -> Option<KvKey> {
        let link = |parent: Option<KvKey>, segment: &Segment| {
            Some(KvKey::derive(fingerprint, salt, parent.as_ref(), &segment.tokens))
        };
        self.0.iter().fold(root, link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::residency::prompt_keys;

    const MODEL: Fingerprint = Fingerprint([3; 32]);

    fn segment(kind: SegmentKind, tokens: &[u32]) -> Segment {
        Segment { kind, tokens: tokens.into(), place: None }
    }

    #[test]
    fn a_standalone_key_is_the_chain_key_in_the_primers_own_prompt() {
        let (root, passage) = (segment(SegmentKind::SystemPrompt, &[1]), segment(SegmentKind::Passage, &[7, 8]));
        let primer = Primer::new([Arc::from([2, 3]), Arc::from([]), Arc::from([4])]);
        assert_eq!((primer.segments().len(), primer.tokens()), (2, 3));
        let other = segment(SegmentKind::Passage, &[9]);
        let prompt = [root.clone(), other, passage.clone(), segment(SegmentKind::Question, &[5])];
        let mut seen = Vec::new();
        for primer in [Primer::none(), primer.first(1), primer.first(2), primer.first(9)] {
            let at = prompt_keys(&MODEL, "t", &primer, &prompt).unwrap();
            let own = primer.prompt(Some(&root), passage.clone());
            let alone = prompt_keys(&MODEL, "t", &Primer::none(), &own).unwrap();
            assert_eq!(at[2].standalone_key, alone.last().unwrap().chain_key);
            assert_eq!(at[1].standalone_key == at[1].chain_key, primer.segments().is_empty(), "the first passage's");
            let chain: Vec<_> = at.iter().map(|at| at.chain_key).collect();
            let plain = prompt_keys(&MODEL, "t", &Primer::none(), &prompt).unwrap();
            assert_eq!(chain, plain.iter().map(|at| at.chain_key).collect::<Vec<_>>(), "exact keys know of no primer");
            seen.push(at[2].standalone_key);
        }
        assert_eq!(seen[2], seen[3]);
        seen.dedup();
        assert_eq!(seen.len(), 3, "each primer has keys of its own");
        // Without a system prompt it stands at the start.
        let at = prompt_keys(&MODEL, "t", &primer, &prompt[1..]).unwrap();
        assert_eq!(
            at[1].standalone_key,
            prompt_keys(&MODEL, "t", &Primer::none(), &primer.prompt(None, passage)).unwrap()[2].chain_key
        );
    }
}
