use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;
use crate::entry::tests::{MODEL, entry_behind};
use crate::policy::PolicyKind;
use crate::segment::{Apart, Place};
use crate::store::tests::{Folder, put};
use crate::tier::Put;
use crate::tier::device::{DeviceOptions, KeptSegment};

fn segment(kind: SegmentKind, tokens: &[u32]) -> Segment {
    Segment { kind, tokens: tokens.into(), place: None }
}

fn root(tokens: &[u32]) -> Segment {
    segment(SegmentKind::SystemPrompt, tokens)
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

/// E(xact), B(ehind root), L(ossy), - (missing), one letter a segment.
fn letters(residency: &Residency) -> String {
    let letter = |at: &SegmentResidency| match at.best() {
        Some((CandidateKind::Exact, ..)) => 'E',
        Some((CandidateKind::Standalone, ..)) => 'B',
        Some((CandidateKind::Lossy, ..)) => 'L',
        None => '-',
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
    let look_up =
        |segments: &[Segment]| look_up_prompt(&store, None, Precision::Exact, "", &Primer::none(), segments).unwrap();

    let found = look_up(&[root(&[1]), passage(&[2, 2]), passage(&[3, 3]), passage(&[4]), question(&[9])]);
    assert_eq!(letters(&found), "EEEB-");
    assert_eq!(found.found.len(), 4);
    assert_eq!(found.segments[1].standalone_tier, Some(Tier::Host), "one entry with two uses");
    assert_eq!(found.segments[2].standalone_tier, None, "filed behind its passage only");
    assert_eq!(found.segments[3].best(), Some((CandidateKind::Standalone, key(Some(root_key), &[4]), Tier::Host)));

    // Another order: the passage after the system prompt alone is blended, the one filed behind it is not found.
    let found = look_up(&[root(&[1]), passage(&[3, 3]), passage(&[2, 2]), passage(&[4])]);
    assert_eq!(letters(&found), "E-BB");
    // The same passage twice: exact at its own place, a candidate at the second.
    assert_eq!(letters(&look_up(&[root(&[1]), passage(&[2, 2]), passage(&[2, 2])])), "EEB");
    // Another root, another tenant, no root: nothing.
    assert_eq!(letters(&look_up(&[root(&[7]), passage(&[2, 2])])), "--");
    assert_eq!(letters(&look_up(&[passage(&[2, 2]), question(&[1])])), "--");
    let other =
        look_up_prompt(&store, None, Precision::Exact, "tenant", &Primer::none(), &[root(&[1]), passage(&[2, 2])])
            .unwrap();
    assert_eq!(letters(&other), "--");
    // A question is never looked up, even if a passage of its tokens is there.
    assert_eq!(letters(&look_up(&[root(&[1]), question(&[2, 2])])), "E-");
    // An empty segment is no link of the chain.
    assert_eq!(letters(&look_up(&[root(&[1]), passage(&[]), passage(&[2, 2]), passage(&[3, 3])])), "E-EE");
}

#[test]
fn the_device_comes_first_and_serves_the_exact_path_only() {
    let folder = Folder::new();
    let store = folder.open(1 << 20, 1 << 20);
    let options = DeviceOptions { blocks: 8, block_bytes: 10, policy: PolicyKind::Lru, cache: true };
    let device = DeviceTier::new(options).unwrap();
    let prompt = [root(&[1; 9]), passage(&[]), passage(&[2; 20]), passage(&[3; 4]), question(&[9])];
    let residency = look_up_prompt(&store, Some(&device), Precision::Exact, "", &Primer::none(), &prompt).unwrap();
    let keys: Vec<_> = residency.segments.iter().filter_map(|at| at.chain_key).collect();
    let path: Vec<KeptSegment> = [(0, 9), (2, 29)]
        .iter()
        .map(|&(index, end)| {
            let at = &residency.segments[index];
            KeptSegment { key: at.chain_key.unwrap(), segment: prompt[index].clone(), end }
        })
        .collect();
    let seen = residency.device.unwrap();
    let (mut table, _) = device.begin(Some(&seen), 0, 34, true).unwrap();
    drop(device.keep(&seen, &path, &mut table, 1.0));
    put(&store, Tier::Host, entry_behind(Some(keys[1]), &[3; 4]));
    put(&store, Tier::Host, entry_behind(Some(keys[0]), &[3; 4]));

    let found = look_up_prompt(&store, Some(&device), Precision::Exact, "", &Primer::none(), &prompt).unwrap();
    let tiers = found.segments.iter().map(|at| at.best().map(|(_, _, tier)| tier));
    assert_eq!(tiers.collect::<Vec<_>>(), [Some(Tier::Device), None, Some(Tier::Device), Some(Tier::Host), None]);
    assert_eq!(found.device.as_ref().map(DevicePath::tokens), Some(29));
    assert_eq!(found.segments[2].standalone_tier, None, "only an entry can be blended");
    assert_eq!(found.found.len(), 1);
    // Listed, though no entry of them is anywhere.
    store.set_device(device.clone());
    let mut listed = Vec::new();
    store.entries(&Tier::ALL, &mut |info| listed.push((info.summary.key, info.tiers, info.summary.parent))).unwrap();
    for (key, tiers, parent) in [
        (keys[0], vec![Tier::Device], None),
        (keys[1], vec![Tier::Device], Some(keys[0])),
        (key(Some(keys[1]), &[3; 4]), vec![Tier::Host], Some(keys[1])),
    ] {
        assert!(listed.contains(&(key, tiers, parent)), "{key}: {listed:?}");
    }
    // In another place the passage has no blocks.
    let other = [root(&[1; 9]), passage(&[3; 4]), passage(&[2; 20])];
    let found = look_up_prompt(&store, Some(&device), Precision::Exact, "", &Primer::none(), &other).unwrap();
    assert_eq!(letters(&found), "EE-");
    // Without a device nothing of it is seen.
    assert_eq!(
        letters(&look_up_prompt(&store, None, Precision::Exact, "", &Primer::none(), &prompt).unwrap()),
        "---E-",
        "behind a hole"
    );
}

#[test]
fn a_tenant_has_keys_of_its_own_for_every_segment() {
    let prompt = [root(&[1]), passage(&[2]), passage(&[3]), passage(&[2]), question(&[4])];
    let keys = |salt: &str| prompt_keys(&MODEL, salt, &Primer::none(), &prompt).unwrap();
    for (mine, other) in keys("a").iter().zip(&keys("b")) {
        assert_eq!(mine.chain_key.is_some(), other.chain_key.is_some());
        assert!(mine.chain_key.is_none() || mine.chain_key != other.chain_key);
        assert!(mine.standalone_key.is_none() || mine.standalone_key != other.standalone_key);
    }
}

#[test]
fn what_is_found_is_pinned() {
    let folder = Folder::new();
    let entry = entry_behind(None, &[1]);
    let bytes = entry.header().total_bytes();
    let store = folder.open(bytes, 0);
    put(&store, Tier::Host, entry);
    let residency = look_up_prompt(&store, None, Precision::Exact, "", &Primer::none(), &[root(&[1])]).unwrap();
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
    look_up_prompt(
        &store,
        None,
        Precision::Exact,
        "",
        &Primer::none(),
        &[root(&[1]), passage(&[2]), passage(&[3]), passage(&[]), question(&[4])],
    )
    .unwrap();
    // Root, both passages after the system prompt, and the second one behind the first: an exact entry behind a hole is found.
    assert_eq!(store.status().host.misses, 4);
    put(&store, Tier::Host, entry_behind(None, &[1]));
    look_up_prompt(&store, None, Precision::Exact, "", &Primer::none(), &[root(&[1]), passage(&[2]), question(&[4])])
        .unwrap();
    assert_eq!((store.status().host.misses, store.status().host.hits), (5, 1), "chain and behind-root key are one");
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
        assert_eq!(prompt_keys(&MODEL, "", &Primer::none(), &wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    for right in [vec![], vec![root], vec![question.clone()], vec![passage.clone(), passage, question]] {
        assert!(prompt_keys(&MODEL, "", &Primer::none(), &right).is_ok());
    }
}

fn placed(segment: Segment, start: u32) -> Segment {
    Segment { place: Some(Place { start, apart: None }), ..segment }
}

/// What stands behind a gap was computed with it, and with no other; an argument that is never filed is part of what stands before.
#[test]
fn gaps_and_what_is_not_filed_are_in_the_keys() {
    let first = passage(&[1, 2]);
    let chain = |between: Option<Segment>, start: u32| {
        let prompt = [vec![first.clone()], between.into_iter().collect(), vec![placed(passage(&[3]), start)]].concat();
        prompt_keys(&MODEL, "", &Primer::none(), &prompt).unwrap().pop().unwrap().chain_key.unwrap()
    };
    let without = key(Some(key(None, &[1, 2])), &[3]);
    assert_eq!(chain(None, 2), without);
    let others = [
        chain(None, 3),
        chain(None, 4),
        chain(Some(placed(question(&[7]), 2)), 4),
        chain(Some(placed(question(&[8]), 2)), 4),
    ];
    for (index, other) in others.iter().enumerate() {
        assert!(*other != without && !others[..index].contains(other), "{index}");
    }
    // Not before the end of what stands before it.
    let overlapping = [first.clone(), placed(passage(&[3]), 1)];
    assert_eq!(prompt_keys(&MODEL, "", &Primer::none(), &overlapping).unwrap_err().kind(), ErrorKind::InvalidInput);
    let middle = prompt_keys(&MODEL, "", &Primer::none(), &[first, placed(question(&[7]), 2), passage(&[3])]).unwrap();
    assert_eq!(middle[1].chain_key, None);
}

/// A module has the key that it has in the prompt in which it is computed, wherever it stands.
#[test]
fn a_module_has_one_entry_wherever_it_stands() {
    let behind: Arc<[Segment]> = [placed(question(&[7, 7]), 0)].into();
    let module = |start| Segment {
        place: Some(Place { start, apart: Some(Apart { behind: behind.clone(), start: 5 }) }),
        ..segment(SegmentKind::Module, &[3, 4])
    };
    let (own, apart) = module(40).apart(&MODEL, "").unwrap();
    assert_eq!(prompt_keys(&MODEL, "", &Primer::none(), &apart).unwrap()[1].chain_key, Some(own));
    for start in [2, 5, 90] {
        let keys = prompt_keys(&MODEL, "", &Primer::none(), &[passage(&[1, 2]), module(start)]).unwrap();
        assert_eq!((keys[1].standalone_key, keys[1].position), (Some(own), Some(start)));
        assert_ne!(keys[1].chain_key, Some(own));
    }
    assert_eq!(Segment::end_of(&[passage(&[1, 2]), module(90)]), 92);
    // Where it is computed at its positions in the layout, the key covers them.
    let in_place = |start| {
        let behind: Arc<[Segment]> = [placed(question(&[7, 7]), start - 5)].into();
        let place = Some(Place { start, apart: Some(Apart { behind, start }) });
        Segment { place, ..segment(SegmentKind::Module, &[3, 4]) }.apart(&MODEL, "").unwrap()
    };
    assert_eq!(in_place(5).0, own, "at the beginning there is no difference");
    let (moved, apart) = in_place(40);
    assert!(moved != own && moved != in_place(41).0);
    assert_eq!(prompt_keys(&MODEL, "", &Primer::none(), &apart).unwrap()[1].chain_key, Some(moved));
}

#[test]
fn the_device_keeps_modules_under_what_they_are_and_where_they_stand() {
    let module = |tokens: &[u32], start: u32, behind: &[Segment]| Segment {
        place: Some(Place { start, apart: Some(Apart { behind: behind.into(), start: 4 * behind.len() as u32 }) }),
        ..segment(SegmentKind::Module, tokens)
    };
    let prompt = |argument: u32, at: u32, behind: &[Segment]| {
        let text = module(&[1, 2], 0, &[]);
        let end = [placed(question(&[argument]), 20), module(&[5, 6], 30, &[]), placed(question(&[9]), 40)];
        let prompt = [&[text, module(&[3, 4], at, behind)], &end[..]].concat();
        prompt_keys(&MODEL, "", &Primer::none(), &prompt).unwrap()
    };
    let before = prompt(7, 10, &[]);
    assert_eq!(before[0].device_key, before[0].chain_key, "exact, as it begins the prompt");
    assert!(before[1].device_key.is_some() && before[1].device_key != before[1].chain_key);
    assert_ne!(before[1].device_key, before[1].standalone_key);
    let is_kept = before.iter().map(|at| at.device_key.is_some());
    assert_eq!(is_kept.collect::<Vec<_>>(), [true, true, true, true, false], "what ends a prompt is never kept");
    let same = |other: &[SegmentResidency]| {
        before.iter().zip(other).take_while(|(one, other)| one.device_key == other.device_key).count()
    };
    assert_eq!(same(&prompt(8, 10, &[])), 2, "another argument");
    assert_eq!(same(&prompt(7, 11, &[])), 1, "another place");
    assert_eq!(same(&prompt(7, 10, &[placed(question(&[3]), 0)])), 1, "computed after something else");
    // Without modules it is the exact path.
    for at in
        prompt_keys(&MODEL, "", &Primer::none(), &[root(&[1]), passage(&[2]), passage(&[]), question(&[4])]).unwrap()
    {
        assert_eq!(at.device_key, at.chain_key);
    }
}

proptest! {
    /// A key says what stands before: change a token of any earlier segment, and every later chain key changes; a
    /// passage's key after the system prompt changes with the root only.
    #[test]
    fn keys_cover_what_stands_before(
        segments in prop::collection::vec(prop::collection::vec(0u32..3, 0..4), 1..6), which: prop::sample::Index
    ) {
        let kind = |index| if index == 0 { SegmentKind::SystemPrompt } else { SegmentKind::Passage };
        let prompt = |segments: &[Vec<u32>]| {
            let segments = segments.iter().enumerate().map(|(index, tokens)| segment(kind(index), tokens));
            prompt_keys(&MODEL, "", &Primer::none(), &segments.collect::<Vec<_>>()).unwrap()
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
                let is_same = before[index].standalone_key == after[index].standalone_key;
                prop_assert_eq!(is_same, changed != 0 && changed != index, "key after the system prompt of {}", index);
            }
        }
    }
}
