use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::segment::SegmentKind;

const MODEL: Fingerprint = Fingerprint([7; 32]);
const PASSAGE_TOKENS: u32 = 10;

/// A system prompt and so many passages, each of its own tokens.
fn prompt(passages: &[u32]) -> Vec<Segment> {
    let segment = |kind, token: u32| Segment { kind, tokens: vec![token; PASSAGE_TOKENS as usize].into(), place: None };
    let passages = passages.iter().map(|passage| segment(SegmentKind::Passage, *passage));
    [segment(SegmentKind::SystemPrompt, 99)].into_iter().chain(passages).collect()
}

/// Keys of every prefix of these paths.
fn stored(paths: &[&[u32]]) -> HashSet<KvKey> {
    let mut keys = HashSet::new();
    for path in paths {
        let mut links = Links::new(&MODEL, "");
        keys.extend(prompt(path).iter().filter_map(|segment| links.push(&segment.tokens)));
    }
    keys
}

fn arrange(passages: &[u32], uses: &[f64], turned_ms: f64, stored: &HashSet<KvKey>) -> Arrangement {
    let segments = prompt(passages);
    let range = 1..segments.len();
    let arranging = Arranging { fingerprint: &MODEL, salt: "", segments: &segments, range, uses, turned_ms };
    arranging.best(|key, _| stored.contains(key).then_some(1.0))
}

#[test]
fn the_deepest_stored_path_comes_first_and_the_rest_as_ranked() {
    let stored = stored(&[&[3, 1, 4], &[4, 3], &[2]]);
    let best = arrange(&[1, 2, 3, 4], &[], 0.0, &stored);
    assert_eq!((&best.order[..], best.stored, best.saved_ms), (&[2, 0, 3, 1][..], 3, 3.0));
    assert_eq!(best.turned, 3);
    // Those that could go on each path that is there: fewer than there are orders.
    assert_eq!(best.looked_up, 18);
}

#[test]
fn pairs_that_are_turned_round_have_a_price() {
    let stored = stored(&[&[3, 1], &[1]]);
    assert_eq!(arrange(&[1, 2, 3], &[], 0.1, &stored).order, [2, 0, 1]);
    let dear = arrange(&[1, 2, 3], &[], 1.0, &stored);
    assert_eq!(
        (&dear.order[..], dear.stored, dear.turned),
        (&[0, 1, 2][..], 1, 0),
        "as ranked, of which the first is stored"
    );
}

#[test]
fn what_is_not_stored_follows_by_popularity_where_that_is_clear() {
    let nothing = HashSet::new();
    let order = |uses: &[f64]| arrange(&[1, 2, 3], uses, 0.1, &nothing).order;
    assert_eq!(order(&[0.0, 0.0, 7.0]), [2, 0, 1]);
    assert_eq!(order(&[4.0, 5.0, 6.0]), [0, 1, 2], "about as popular: by rank");
    assert_eq!(order(&[0.0, f64::NAN, 0.0]), [0, 1, 2]);
}

#[test]
fn nothing_to_arrange_is_as_it_was() {
    assert_eq!(arrange(&[], &[], 0.1, &HashSet::new()).order, [0; 0]);
    assert_eq!(arrange(&[5], &[1.0], 0.1, &HashSet::new()).order, [0]);
    // An empty passage has no entry.
    let segments: Vec<Segment> = prompt(&[1, 2]).into_iter().map(|it| Segment { tokens: [].into(), ..it }).collect();
    let arranging =
        Arranging { fingerprint: &MODEL, salt: "", segments: &segments, range: 1..3, uses: &[], turned_ms: 0.1 };
    let best = arranging.best(|_, _| Some(1.0));
    assert_eq!((&best.order[..], best.stored, best.looked_up), (&[0, 1][..], 0, 0));
}

#[test]
fn look_ups_are_bounded() {
    let passages: Vec<u32> = (0..10).collect();
    let segments = prompt(&passages);
    let range = 1..segments.len();
    let arranging = Arranging { fingerprint: &MODEL, salt: "", segments: &segments, range, uses: &[], turned_ms: 0.0 };
    // Every order is stored: 10! of them.
    let best = arranging.best(|_, _| Some(1.0));
    assert_eq!((best.looked_up, best.stored, best.turned), (MOST_LOOK_UPS, 10, 0));
}

/// Every order of `left` passages.
fn permutations(left: Vec<usize>) -> Vec<Vec<usize>> {
    if left.is_empty() {
        return vec![Vec::new()];
    }
    let behind = |at: usize| {
        let mut rest = left.clone();
        let first = rest.remove(at);
        permutations(rest).into_iter().map(move |tail| [vec![first], tail].concat())
    };
    (0..left.len()).flat_map(behind).collect()
}

proptest! {
    /// The slow reference: all orders, each with what of it is stored.
    #[test]
    fn no_order_is_worth_more(
        paths in proptest::collection::vec(Just((0..5_u32).collect::<Vec<_>>()).prop_shuffle(), 0..6),
        lengths in proptest::collection::vec(1..5_usize, 6),
        turned in 0.0..1.5_f64,
    ) {
        let paths: Vec<&[u32]> = paths.iter().zip(&lengths).map(|(path, length)| &path[..*length]).collect();
        let stored = stored(&paths);
        let passages = [0, 1, 2, 3, 4];
        let found = arrange(&passages, &[], turned, &stored);
        let worth = |order: &[usize]| {
            let mut links = Links::new(&MODEL, "");
            links.push(&prompt(&[])[0].tokens);
            let is_there = |passage: &&usize| {
                links.push(&prompt(&[passages[**passage]])[1].tokens).is_some_and(|key| stored.contains(&key))
            };
            order.iter().take_while(is_there).count() as f64 - turned * super::turned(order) as f64
        };
        let best = permutations((0..5).collect()).iter().map(|order| worth(order)).fold(f64::MIN, f64::max);
        prop_assert!((worth(&found.order) - best).abs() < 1e-9, "{found:?} is worth {}, the best {best}", worth(&found.order));
        prop_assert_eq!(found.stored as f64 - turned * found.turned as f64, worth(&found.order));
        let mut all = found.order.clone();
        all.sort_unstable();
        prop_assert_eq!(all, (0..5).collect::<Vec<_>>());
    }
}
