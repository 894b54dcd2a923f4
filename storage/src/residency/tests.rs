use proptest::prelude::*;

use super::*;
use crate::ErrorKind;
use crate::entry::tests::{MODEL, entry_behind};
use crate::store::tests::{Folder, put};
use crate::tier::Put;

fn segment(kind: SegmentKind, tokens: &[u32]) -> Segment {
    Segment { kind, tokens: tokens.into() }
}

fn root(tokens: &[u32]) -> Segment {
    segment(SegmentKind::Root, tokens)
}

fn passage(tokens: &[u32]) -> Segment {
    segment(SegmentKind::Passage, tokens)
}

fn question(tokens: &[u32]) -> Segment {
    segment(SegmentKind::Question, tokens)
}

fn key(parent: Option<KvKey>, tokens: &[u32]) -> KvKey {
    KvKey::derive(&MODEL, "", parent.as_ref(), tokens)
}

/// E(xact), B(ehind root), - (missing), one letter a segment.
fn letters(residency: &Residency) -> String {
    let letter = |at: &SegmentResidency| match at.state {
        SegmentState::Exact { .. } => 'E',
        SegmentState::BehindRoot { .. } => 'B',
        SegmentState::Missing => '-',
    };
    residency.segments.iter().map(letter).collect()
}

#[test]
fn the_exact_path_comes_first_then_entries_behind_the_root() {
    let folder = Folder::new();
    let store = folder.open(1 << 20, 1 << 20);
    let file = |parent: Option<KvKey>, tokens: &[u32]| {
        put(&store, Tier::Host, entry_behind(parent, tokens));
        key(parent, tokens)
    };
    let root_key = file(None, &[1]);
    let a = file(Some(root_key), &[2, 2]);
    file(Some(a), &[3, 3]);
    file(Some(root_key), &[4]);
    let look_up = |segments: &[Segment]| look_up_prompt(&store, "", segments).unwrap();

    let found = look_up(&[root(&[1]), passage(&[2, 2]), passage(&[3, 3]), passage(&[4]), question(&[9])]);
    assert_eq!(letters(&found), "EEEB-");
    assert_eq!(found.found.len(), 4);
    assert_eq!(found.segments[1].behind_root, Some(Tier::Host), "one entry with two uses");
    assert_eq!(found.segments[2].behind_root, None, "filed behind its passage only");
    assert_eq!(found.segments[3].state, SegmentState::BehindRoot { key: key(Some(root_key), &[4]), tier: Tier::Host });

    // Another order: the passage behind the root alone is blended, the one filed behind it is not found.
    let found = look_up(&[root(&[1]), passage(&[3, 3]), passage(&[2, 2]), passage(&[4])]);
    assert_eq!(letters(&found), "E-BB");
    // The same passage twice: exact at its own place, a candidate at the second.
    assert_eq!(letters(&look_up(&[root(&[1]), passage(&[2, 2]), passage(&[2, 2])])), "EEB");
    // Another root, another tenant, no root: nothing.
    assert_eq!(letters(&look_up(&[root(&[7]), passage(&[2, 2])])), "--");
    assert_eq!(letters(&look_up(&[passage(&[2, 2]), question(&[1])])), "--");
    let other = look_up_prompt(&store, "tenant", &[root(&[1]), passage(&[2, 2])]).unwrap();
    assert_eq!(letters(&other), "--");
    // A question is never looked up, even if a passage of its tokens is there.
    assert_eq!(letters(&look_up(&[root(&[1]), question(&[2, 2])])), "E-");
    // An empty segment is no link of the chain.
    assert_eq!(letters(&look_up(&[root(&[1]), passage(&[]), passage(&[2, 2]), passage(&[3, 3])])), "E-EE");
}

#[test]
fn what_is_found_is_pinned() {
    let folder = Folder::new();
    let entry = entry_behind(None, &[1]);
    let bytes = entry.header().total_bytes();
    let store = folder.open(bytes, 0);
    put(&store, Tier::Host, entry);
    let residency = look_up_prompt(&store, "", &[root(&[1])]).unwrap();
    let newcomer = Arc::new(entry_behind(None, &[2]));
    assert_eq!(store.write(Tier::Host, &newcomer).unwrap(), Some(Put::Refused));
    assert!(store.contains(&key(None, &[1])).is_some(), "pinned: the newcomer is refused");
    drop(residency);
    put(&store, Tier::Host, entry_behind(None, &[2]));
    assert!(store.contains(&key(None, &[1])).is_none());
}

#[test]
fn keys_are_asked_for_once() {
    let folder = Folder::new();
    let store = folder.open(1 << 20, 1 << 20);
    look_up_prompt(&store, "", &[root(&[1]), passage(&[2]), passage(&[3]), passage(&[]), question(&[4])]).unwrap();
    // Root and both passages behind the root: the path ended at the root, so no chain key is asked for behind it.
    assert_eq!(store.status().host.misses, 3);
    put(&store, Tier::Host, entry_behind(None, &[1]));
    look_up_prompt(&store, "", &[root(&[1]), passage(&[2]), question(&[4])]).unwrap();
    assert_eq!((store.status().host.misses, store.status().host.hits), (4, 1), "chain and behind-root key are one");
}

#[test]
fn segments_stand_in_order() {
    let (root, passage, question) = (root(&[1]), passage(&[2]), question(&[3]));
    for wrong in [
        vec![passage.clone(), root.clone()],
        vec![root.clone(), root.clone()],
        vec![root.clone(), question.clone(), passage.clone()],
        vec![question.clone(), question.clone()],
    ] {
        assert_eq!(prompt_keys(&MODEL, "", &wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    for right in [vec![], vec![root], vec![question.clone()], vec![passage.clone(), passage, question]] {
        assert!(prompt_keys(&MODEL, "", &right).is_ok());
    }
}

proptest! {
    /// A key says what stands before: change a token of any earlier segment, and every later chain key changes; a
    /// passage's key behind the root changes with the root only.
    #[test]
    fn keys_cover_what_stands_before(
        segments in prop::collection::vec(prop::collection::vec(0u32..3, 0..4), 1..6), which: prop::sample::Index
    ) {
        let kind = |index| if index == 0 { SegmentKind::Root } else { SegmentKind::Passage };
        let prompt = |segments: &[Vec<u32>]| {
            let segments = segments.iter().enumerate().map(|(index, tokens)| segment(kind(index), tokens));
            prompt_keys(&MODEL, "", &segments.collect::<Vec<_>>()).unwrap()
        };
        let before = prompt(&segments);
        let changed = which.index(segments.len());
        let mut other = segments.clone();
        other[changed].push(99);
        let after = prompt(&other);
        for index in 0..segments.len() {
            if segments[index].is_empty() {
                prop_assert_eq!(before[index].chain_key, None);
                continue;
            }
            let is_same = before[index].chain_key == after[index].chain_key;
            prop_assert_eq!(is_same, index < changed, "chain key of {}", index);
            if index > 0 {
                let is_same = before[index].behind_root_key == after[index].behind_root_key;
                prop_assert_eq!(is_same, changed != 0 && changed != index, "key behind the root of {}", index);
            }
        }
    }
}
