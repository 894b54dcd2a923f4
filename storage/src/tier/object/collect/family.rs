//! Which objects of a bucket stand behind which. Pure.

use std::collections::HashMap;

use super::{Content, Found};
use crate::key::KvKey;

/// Who stands behind whom.
pub(super) struct Family {
    /// The readable objects of a key: one of each name space and key at most.
    of_key: HashMap<KvKey, Vec<usize>>,
    /// When an object, or anything behind it, was written last.
    pub youngest_ms: Vec<u64>,
}

impl Family {
    pub fn of(found: &[Found]) -> Self {
        let mut of_key: HashMap<KvKey, Vec<usize>> = HashMap::new();
        for (index, object) in found.iter().enumerate() {
            if matches!(object.content, Content::Behind(_)) {
                of_key.entry(object.key).or_default().push(index);
            }
        }
        let mut family = Self { of_key, youngest_ms: found.iter().map(|object| object.modified_ms).collect() };
        for (index, object) in found.iter().enumerate() {
            family.rejuvenate(found, index, object.modified_ms);
        }
        family
    }

    /// Makes an object's ancestors no older than it. Ends even where parents stood in a circle.
    fn rejuvenate(&mut self, found: &[Found], index: usize, modified_ms: u64) {
        let mut at = index;
        while let Some(parents) = self.parents(found, at).map(<[usize]>::to_vec) {
            let older: Vec<_> = parents.into_iter().filter(|&parent| self.youngest_ms[parent] < modified_ms).collect();
            older.iter().for_each(|&parent| self.youngest_ms[parent] = modified_ms);
            let Some(&next) = older.first() else { return };
            at = next;
        }
    }

    pub fn parents(&self, found: &[Found], index: usize) -> Option<&[usize]> {
        let Content::Behind(Some(parent)) = found[index].content else { return None };
        self.of_key.get(&parent).map(Vec::as_slice)
    }

    /// The nearest of the object's ancestors that is not there.
    pub fn missing(&self, found: &[Found], index: usize) -> Option<KvKey> {
        let mut at = index;
        for _ in 0..found.len() {
            match (found[at].content, self.parents(found, at)) {
                (Content::Behind(parent), None) => return parent,
                (_, Some([next, ..])) => at = *next,
                _ => return None,
            }
        }
        None
    }

    pub fn depth(&self, found: &[Found], index: usize) -> usize {
        let mut at = index;
        for depth in 0..found.len() {
            let Some([next, ..]) = self.parents(found, at) else { return depth };
            at = *next;
        }
        found.len()
    }
}
