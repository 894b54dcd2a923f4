//! The look-up: finds stored KV for each segment of a prompt.
//!
//! A segment has up to three candidates, the closest to a full prefill first:
//!
//! 1. Its exact entry: computed after exactly the tokens that precede the segment here. It is looked for even if entries of
//!    earlier segments are missing, because a full prefill computes the same KV.
//! 2. Its standalone entry, for blending. A passage's was computed after system prompt and primer, and serves at any place but
//!    the first, which nothing precedes. A module's was computed in a prompt of its own.
//! 3. The bucket's copy of a passage in 8 bits, if the bucket keeps 8 bits.

use std::collections::HashMap;

use serde::Serialize;

use crate::Result;
use crate::key::{Fingerprint, KvKey};
use crate::prompt::primer::Primer;
use crate::segment::{Links, Segment, SegmentKind, check_order};
use crate::store::{Found, KvStore, ObjectsFound, Wanted};
use crate::tier::device::{DevicePath, DeviceTier};
use crate::tier::{Precision, Tier};

/// What is known of a prompt's segments, one for one. Keep it until everything is loaded: it pins what was found.
#[derive(Debug, Default)]
pub struct Residency {
    /// One for each segment of the prompt, in order.
    pub segments: Vec<SegmentResidency>,
    /// What was found, open and pinned.
    pub found: HashMap<KvKey, Found>,
    /// The leading segments that are on the device; `None` if it was not asked.
    pub device: Option<DevicePath>,
    /// The store's epoch before the look-up: what is computed for this prompt was planned in it.
    pub epoch: u64,
}

/// What is known of one segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentResidency {
    /// What it is.
    pub kind: SegmentKind,
    /// Length in tokens.
    pub tokens: u32,
    /// The position of its first token; `None`: right behind what is before it.
    pub position: Option<u32>,
    /// Key of everything before it: the parent under which it is filed if computed exactly. `None` at the start.
    pub parent: Option<KvKey>,
    /// Its key behind everything before it. `None` for the question and for an empty segment, which have no entry.
    pub chain_key: Option<KvKey>,
    /// A passage's key behind the system prompt, if the prompt has one, and the primer; a module's behind what it is computed after.
    pub standalone_key: Option<KvKey>,
    /// Where the entry of `standalone_key` is, whether it is a candidate or not.
    pub standalone_tier: Option<Tier>,
    /// What the device keeps it under: its key behind everything before it as long as all of that is exact; from the first module on
    /// that is not, a key of which modules stand before it, and where. `None` for what ends the prompt, and for an empty segment.
    pub device_key: Option<KvKey>,
    /// What can be loaded for it, closest to what would be computed first. None for the question and for an empty segment.
    pub candidates: Vec<Candidate>,
}

#[cfg(test)]
impl SegmentResidency {
    /// What is closest to what would be computed: what it is, its entry, and where that is.
    pub(crate) fn best(&self) -> Option<(CandidateKind, KvKey, Tier)> {
        self.candidates.first().map(|candidate| (candidate.kind, candidate.key, candidate.tier))
    }
}

/// KV that can be loaded for a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// How close it is to what would be computed.
    pub kind: CandidateKind,
    /// The entry.
    pub key: KvKey,
    /// The fastest tier that has it: where it would be loaded from.
    pub tier: Tier,
    /// The tiers that are known to have it. A slower one is not asked where object storage would be.
    pub tiers: Vec<Tier>,
    /// What would be read, in bytes; 0 on the device.
    pub bytes: u64,
}

/// How close a candidate is to what would be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateKind {
    /// KV that was computed after exactly what stands before it here: what a full prefill computes, whatever becomes of the
    /// segments before it.
    Exact,
    /// KV that was computed behind root and primer, or apart from the prompt: for blending.
    Standalone,
    /// KV close to what was computed, behind what stands before it here or behind system prompt and primer: for blending, and never more.
    /// Passages only: behind a system prompt that is not exact, nothing could be kept.
    Lossy,
}

/// Looks up a prompt of the tenant `salt`: an optional root, then passages and text, then an optional question. Pins what it
/// finds. BLOCKS on the disk, and on object storage, for entries that are not in host memory.
///
/// The `device`, if there is one, is asked first: blocks that are there need no entry. They serve the exact path, and modules that are
/// taken as they are, never a passage's blend, as their K is rotated to its place. `precision` says whether lossy entries are of use,
/// `primer` what standalone entries were computed behind.
///
/// # Errors
/// `InvalidInput` if the segments stand in another order, or the prompt is longer than 2^32 tokens.
pub fn look_up_prompt(
    store: &KvStore,
    device: Option<&DeviceTier>,
    precision: Precision,
    salt: &str,
    primer: &Primer,
    segments: &[Segment],
) -> Result<Residency> {
    let epoch = store.epoch();
    let keys = prompt_keys(store.fingerprint(), salt, primer, segments)?;
    let on_path = segments.iter().zip(&keys).filter_map(|(segment, at)| Some((at.device_key?, segment)));
    let device = device.map(|device| device.find(salt, on_path));
    let mut with_key = keys.iter().enumerate().filter(|(_, at)| at.device_key.is_some());
    let elsewhere = with_key.nth(device.as_ref().map_or(0, DevicePath::segments));
    let elsewhere = elsewhere.map_or(keys.len(), |(index, _)| index);
    let objects = find_objects(store, precision, &segments[elsewhere..], &keys[elsewhere..]);
    let root_key = keys.first().filter(|first| first.kind == SegmentKind::SystemPrompt).and_then(|root| root.chain_key);
    let mut residency = Residency { segments: keys, found: HashMap::new(), device, epoch };
    for (index, (segment, at)) in segments.iter().zip(&mut residency.segments).enumerate() {
        if let Some(device_key) = at.device_key.filter(|_| index < elsewhere) {
            at.standalone_tier = at.standalone_key.and_then(|key| store.contains(&key));
            let (kind, key) = match at.chain_key == Some(device_key) {
                true => (CandidateKind::Exact, device_key),
                false => (CandidateKind::Standalone, at.standalone_key.unwrap_or(device_key)),
            };
            let tiers = store.tiers_of(&key, Tier::Device);
            at.candidates = vec![Candidate { kind, key, tier: Tier::Device, tiers, bytes: 0 }];
            continue;
        }
        let Some(chain_key) = at.chain_key else { continue };
        let mut look_up = |kind: CandidateKind, key: KvKey| {
            let hit = match kind {
                CandidateKind::Lossy => store.look_up_lossy(&objects, &key, &segment.tokens)?,
                _ => store.look_up_with(&objects, &key, &segment.tokens)?,
            };
            let (tier, bytes) = (hit.tier, hit.entry.stored_bytes());
            let tiers = store.tiers_of(&key, tier);
            // Another segment may have found it exactly: that one is to be loaded as it is.
            residency.found.entry(key).or_insert(hit);
            Some(Candidate { kind, key, tier, tiers, bytes })
        };
        let exact = look_up(CandidateKind::Exact, chain_key);
        let is_near = exact.as_ref().is_some_and(|exact| exact.tier <= Tier::Host);
        // Behind the primer it is a later passage: in the first place it would be farther from a full prefill than anywhere else.
        let is_first = at.kind == SegmentKind::Passage && at.parent == root_key;
        let standalone = match at.standalone_key {
            Some(key) if key != chain_key && !is_first && !is_near => look_up(CandidateKind::Standalone, key),
            _ => None,
        };
        at.standalone_tier = match (at.standalone_key, &exact, &standalone) {
            (None, ..) => None,
            (Some(key), exact, _) if key == chain_key => exact.as_ref().map(|exact| exact.tier),
            (_, _, Some(candidate)) => Some(candidate.tier),
            (Some(key), ..) => store.contains(&key).or_else(|| objects.contains(&key).then_some(Tier::Object)),
        };
        at.candidates = exact.into_iter().chain(standalone).collect();
        if at.candidates.is_empty() {
            // What was computed after the same prefix is closer than what was behind the primer.
            let keys = [at.chain_key, at.standalone_key.filter(|_| !is_first)].into_iter().flatten();
            at.candidates = keys.filter_map(|key| look_up(CandidateKind::Lossy, key)).take(1).collect();
        }
    }
    Ok(residency)
}

/// Text segments that object storage is asked for at first. Where it has all of them, it is asked for so many times more.
const FIRST_TEXTS: usize = 4;
const MORE_TEXTS: usize = 4;

/// Asks object storage for what is not on the device: all at once, but for text, of which mostly nothing is there where
/// something before it is not.
fn find_objects(
    store: &KvStore,
    precision: Precision,
    segments: &[Segment],
    keys: &[SegmentResidency],
) -> ObjectsFound {
    let path = segments.iter().zip(keys).filter(|(_, at)| at.chain_key.is_some());
    let wanted = |(segment, at): &(&'_ Segment, &'_ SegmentResidency)| {
        let standalone = at.standalone_key.filter(|key| at.chain_key != Some(*key));
        let precision = if at.kind == SegmentKind::Passage { precision } else { Precision::Exact };
        let tokens = segment.tokens.clone();
        let keys = [at.chain_key, standalone].into_iter().flatten();
        keys.map(move |key| (key, tokens.clone(), precision)).collect::<Vec<_>>()
    };
    let (texts, mut asked): (Vec<_>, Vec<_>) = path.partition(|(_, at)| at.kind == SegmentKind::Text);
    let (mut found, mut from, mut count) = (ObjectsFound::default(), 0, FIRST_TEXTS);
    loop {
        let wave = &texts[from..texts.len().min(from + count)];
        asked.extend(wave);
        let keys: Vec<_> = asked.drain(..).flat_map(|at| wanted(&at)).collect();
        let wanted = keys.iter().map(|(key, tokens, precision)| Wanted { key, tokens, precision: *precision });
        found.extend(store.find_wanted(wanted));
        let is_there = |at: &SegmentResidency| {
            at.chain_key.is_some_and(|key| found.contains(&key) || store.contains(&key).is_some())
        };
        (from, count) = (from + wave.len(), count * MORE_TEXTS);
        if from == texts.len() || !wave.iter().all(|(_, at)| is_there(at)) {
            return found;
        }
    }
}

/// The keys of every segment of a prompt, with nothing looked up yet. Pure. An empty segment has no KV: it has no key,
/// and what stands behind it has the same parent as it.
///
/// # Errors
/// As [`look_up_prompt`].
pub fn prompt_keys(
    fingerprint: &Fingerprint,
    salt: &str,
    primer: &Primer,
    segments: &[Segment],
) -> Result<Vec<SegmentResidency>> {
    check_order(segments)?;
    let mut links = Links::new(fingerprint, salt);
    let (mut device, last) = (links.clone(), segments.len().saturating_sub(1));
    let mut primed = primer.key(fingerprint, salt, None);
    let keys = segments.iter().enumerate().map(|(index, segment)| {
        let position = segment.place.as_ref().map(|place| place.start);
        if let Some(start) = position.filter(|_| !segment.tokens.is_empty()) {
            links.skip_to(start);
            device.skip_to(start);
        }
        let parent = links.parent;
        let key = links.push(&segment.tokens);
        let apart = segment.apart(fingerprint, salt).map(|(key, _)| key);
        let device_key = match apart {
            Some(apart) if Some(apart) != key => device.push_module(&apart, segment.tokens.len()),
            _ => device.push(&segment.tokens),
        };
        let chain_key = key.filter(|_| segment.kind != SegmentKind::Question);
        let standalone = |primed: Option<KvKey>| KvKey::derive(fingerprint, salt, primed.as_ref(), &segment.tokens);
        let at = SegmentResidency {
            kind: segment.kind,
            tokens: segment.tokens.len() as u32,
            position,
            parent,
            chain_key,
            standalone_key: match segment.kind {
                SegmentKind::Passage => chain_key.map(|_| standalone(primed)),
                _ => apart,
            },
            standalone_tier: None,
            device_key: device_key.filter(|_| segment.kind != SegmentKind::Question || index != last),
            candidates: Vec::new(),
        };
        if segment.kind == SegmentKind::SystemPrompt {
            primed = primer.key(fingerprint, salt, chain_key);
        }
        at
    });
    Ok(keys.collect())
}

#[cfg(test)]
mod tests;
