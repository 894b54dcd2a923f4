//! What stored KV is of, for people: the store knows segments, the corpus knows whose they are.

use std::collections::{HashMap, HashSet};

use ragstone_corpus::{PassageTokens, Scope};
use ragstone_storage::key::SegmentDigest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Library, segments_of};
use crate::error::{ErrorKind, Result};

/// The passage that a segment is, as this folder's corpus knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PassageName {
    /// Where it is.
    pub collection: String,
    /// The document's id.
    pub document: String,
    /// The passage's place in the document, from 0.
    pub ordinal: u32,
    /// The document's title.
    pub title: String,
    /// Other places of the corpus with the same content.
    pub also_in: u64,
}

impl Library {
    /// The names of those of `segments` that are passages of `scope`; of several places, the first. Reads the token ids of
    /// all of them; memory does not grow with them. Await it on a multi-thread runtime.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn names(
        &self,
        segments: &HashSet<SegmentDigest>,
        scope: Scope<'_>,
    ) -> Result<HashMap<SegmentDigest, PassageName>> {
        let mut names = HashMap::new();
        if segments.is_empty() {
            return Ok(names);
        }
        let fingerprints = self.fingerprints()?;
        let collections = match scope.collection {
            Some(name) => vec![name.to_owned()],
            None => self.0.corpus.names().await,
        };
        for collection in collections {
            let mut each = |passages: Vec<PassageTokens>| {
                for passage in passages {
                    let of_passage: HashSet<_> = segments_of(&fingerprints, &passage).collect();
                    of_passage
                        .intersection(segments)
                        .for_each(|segment| note(&mut names, *segment, &collection, &passage));
                }
                Ok(())
            };
            let within = Scope { collection: Some(&collection), ..scope };
            match self.0.corpus.scan(within, &mut each).await {
                // It was dropped while we looked.
                Err(error) if error.kind() == ErrorKind::NotFound && scope.collection.is_none() => {}
                // What is damaged has no names; the others have.
                Err(error) if scope.collection.is_none() => {
                    tracing::warn!(collection, %error, "entries of its passages are listed without names");
                }
                scanned => scanned?,
            }
        }
        Ok(names)
    }
}

/// The first place keeps the name, whatever the order in which they come.
fn note(
    names: &mut HashMap<SegmentDigest, PassageName>,
    segment: SegmentDigest,
    collection: &str,
    passage: &PassageTokens,
) {
    let PassageTokens { document_id, ordinal, title, .. } = passage;
    let place = (collection, document_id.as_str(), *ordinal);
    let also_in = match names.get_mut(&segment) {
        Some(known) => {
            known.also_in += 1;
            if place > (known.collection.as_str(), known.document.as_str(), known.ordinal) {
                return;
            }
            known.also_in
        }
        None => 0,
    };
    let (collection, document) = (collection.to_owned(), document_id.clone());
    names.insert(segment, PassageName { collection, document, ordinal: *ordinal, title: title.clone(), also_in });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_places_the_first_is_named_and_the_others_are_counted() {
        let passage = |document: &str, ordinal| PassageTokens {
            id: "0f".into(),
            document_id: document.into(),
            title: format!("About {document}"),
            ordinal,
            token_ids: vec![1, 2].into(),
            earlier_token_ids: None,
        };
        let segment = SegmentDigest([7; 16]);
        let places = [("b", "x", 0), ("a", "z", 1), ("a", "y", 3), ("a", "y", 2), ("c", "a", 0)];
        for turn in 0..places.len() {
            let mut names = HashMap::new();
            for (collection, document, ordinal) in places.iter().cycle().skip(turn).take(places.len()) {
                note(&mut names, segment, collection, &passage(document, *ordinal));
            }
            let first = PassageName {
                collection: "a".into(),
                document: "y".into(),
                ordinal: 2,
                title: "About y".into(),
                also_in: 4,
            };
            assert_eq!(names, HashMap::from([(segment, first)]), "from {turn}");
        }
    }
}
