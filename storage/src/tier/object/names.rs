//! Names of objects.
//!
//! ```text
//! name   = <prefix> / v1    / <fingerprint> / <segment digest> / <key>                   lower-case hexadecimal
//!          <prefix> / v1q8  / …                                                          lossy, see `q8.rs`
//!          <prefix> / s1    / <number of the key> / <fingerprint> / <segment> / <key>    sealed, see `sealed.rs`
//!          <prefix> / s1q8  / …                                                          both
//! ```
//! What follows from texts does not stand in the name of a sealed object, but its keyed hash: who has none of the keys cannot try
//! texts, and nodes with the same key have the same names.
//!
//! ```text
//! hash   = BLAKE3-keyed(names, 1 | fingerprint), or (names, 2 | segment digest), of which the first half stands, or (names, 3 | key)
//! ```

use std::fmt;

use object_store::path::Path;

use super::codec::Codec;
use super::keys::{KeyNumber, ObjectKey, ObjectKeys};
use crate::entry::EntryHeader;
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::tier::{EntryId, Precision};

/// What is exact is never mixed with what is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Exact,
    Lossy,
}

impl Space {
    pub const ALL: [Self; 2] = [Self::Exact, Self::Lossy];

    pub fn of(codec: Codec) -> Self {
        if codec.is_exact() { Self::Exact } else { Self::Lossy }
    }

    pub fn holding(precision: Precision) -> Self {
        match precision {
            Precision::Exact => Self::Exact,
            Precision::Lossy => Self::Lossy,
        }
    }

    fn plain(self) -> &'static str {
        match self {
            Self::Exact => "v1",
            Self::Lossy => "v1q8",
        }
    }

    fn sealed(self) -> &'static str {
        match self {
            Self::Exact => "s1",
            Self::Lossy => "s1q8",
        }
    }
}

/// Where names of one kind lie: what is sealed by one key, or by none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Room {
    pub space: Space,
    /// `None`: not sealed.
    pub key: Option<KeyNumber>,
}

/// An object's name taken apart. In a sealed room the last two are the keyed hashes of what they are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub room: Room,
    pub fingerprint: Fingerprint,
    pub id: EntryId,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.room.key {
            None => write!(f, "entry {}", self.id.key),
            Some(number) => write!(f, "the entry that is {} by the key {number}", self.id.key),
        }
    }
}

/// Makes names and reads them.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: Path,
    keys: ObjectKeys,
    accept_unsealed: bool,
}

impl Names {
    /// `accept_unsealed`: whether what is not sealed is read although there are keys.
    pub fn new(prefix: Path, keys: ObjectKeys, accept_unsealed: bool) -> Self {
        Self { prefix, keys, accept_unsealed }
    }

    #[cfg(test)]
    pub fn keys(&self) -> &ObjectKeys {
        &self.keys
    }

    /// Where entries are written.
    pub fn written(&self, space: Space) -> Room {
        Room { space, key: self.keys.first().map(|key| key.number) }
    }

    /// Where entries are read, in this order.
    pub fn read(&self, space: Space) -> impl Iterator<Item = Room> + '_ {
        let sealed = self.keys.iter().map(move |key| Room { space, key: Some(key.number) });
        let plain = self.keys.is_empty() || self.accept_unsealed;
        sealed.chain(plain.then_some(Room { space, key: None }))
    }

    /// Where an entry may lie at all, as far as this node can tell: from all of them it is removed.
    pub fn all(&self, space: Space) -> impl Iterator<Item = Room> + '_ {
        let sealed = self.keys.iter().map(move |key| Room { space, key: Some(key.number) });
        sealed.chain(std::iter::once(Room { space, key: None }))
    }

    /// Whether entries are read that this node would write elsewhere.
    pub fn has_older(&self) -> bool {
        self.read(Space::Exact).count() > 1
    }

    /// Whether nothing is sealed.
    pub fn is_plain(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether entries of a room are read.
    pub fn reads(&self, room: Room) -> bool {
        self.read(room.space).any(|read| read == room)
    }

    /// The key of a room; `None` for one that is not sealed, or by a key that this node does not have.
    pub fn key_of(&self, room: Room) -> Option<&ObjectKey> {
        self.keys.get(room.key?)
    }

    /// Everything of a name space that is not sealed, and everything that is.
    pub fn folders(&self, space: Space) -> [Path; 2] {
        [space.plain(), space.sealed()].map(|part| self.prefix.clone().join(part))
    }

    fn room(&self, room: Room) -> Path {
        match room.key {
            None => self.prefix.clone().join(room.space.plain()),
            Some(number) => self.prefix.clone().join(room.space.sealed()).join(number.to_string()),
        }
    }

    /// Every entry of a model in a room.
    pub fn model(&self, room: Room, fingerprint: &Fingerprint) -> Path {
        self.room(room).join(self.fingerprint(room, fingerprint).to_string())
    }

    /// Every entry of a segment in a room.
    pub fn segment(&self, room: Room, fingerprint: &Fingerprint, segment: &SegmentDigest) -> Path {
        self.model(room, fingerprint).join(self.segment_part(room, segment).to_string())
    }

    /// A fingerprint as it stands in a room's names.
    pub fn fingerprint(&self, room: Room, fingerprint: &Fingerprint) -> Fingerprint {
        self.key_of(room).map_or(*fingerprint, |key| Fingerprint(hidden(key, 1, &fingerprint.0)))
    }

    fn segment_part(&self, room: Room, segment: &SegmentDigest) -> SegmentDigest {
        let Some(key) = self.key_of(room) else { return *segment };
        let mut half = [0; 16];
        half.copy_from_slice(&hidden(key, 2, &segment.0)[..16]);
        SegmentDigest(half)
    }

    /// The name of a model's entry in a room.
    pub fn name(&self, room: Room, fingerprint: &Fingerprint, id: &EntryId) -> Name {
        let key = self.key_of(room).map_or(id.key, |key| KvKey(hidden(key, 3, id.key.as_bytes())));
        let id = EntryId { key, segment: self.segment_part(room, &id.segment) };
        Name { room, fingerprint: self.fingerprint(room, fingerprint), id }
    }

    /// Whether an entry belongs under a name.
    pub fn is_of(&self, name: &Name, header: &EntryHeader) -> bool {
        self.name(name.room, &header.fingerprint, &header.id()) == *name
    }

    /// Where nodes look at the bucket's clock.
    pub fn clocks(&self) -> Path {
        self.prefix.clone().join("clock")
    }

    /// What one of them writes for that: no entry, and gone again at once, unless that node ended meanwhile.
    pub fn clock(&self, number: u64) -> Path {
        self.clocks().join(format!("{number:016x}"))
    }

    /// Whether an object was written to look at the clock.
    pub fn is_clock(&self, path: &Path) -> bool {
        let number = path.filename().and_then(|name| u64::from_str_radix(name, 16).ok());
        number.is_some_and(|number| self.clock(number) == *path)
    }

    pub fn object(&self, name: &Name) -> Path {
        let model = self.room(name.room).join(name.fingerprint.to_string());
        model.join(name.id.segment.to_string()).join(name.id.key.to_string())
    }

    /// The parts of an object's name; `None` if we do not write such names.
    pub fn parse(&self, path: &Path) -> Option<Name> {
        let mut parts = path.prefix_match(&self.prefix)?;
        let first = parts.next()?;
        let plain = Space::ALL.into_iter().find(|space| space.plain() == first.as_ref());
        let room = match plain {
            Some(space) => Room { space, key: None },
            None => {
                let space = Space::ALL.into_iter().find(|space| space.sealed() == first.as_ref())?;
                Room { space, key: Some(KeyNumber::parse(parts.next()?.as_ref())?) }
            }
        };
        let fingerprint: Fingerprint = parts.next()?.as_ref().parse().ok()?;
        let segment = parts.next()?.as_ref().parse().ok()?;
        let key = parts.next()?.as_ref().parse().ok()?;
        let name = Name { room, fingerprint, id: EntryId { key, segment } };
        // Also refuses upper-case digits: one entry, one name.
        (parts.next().is_none() && self.object(&name) == *path).then_some(name)
    }
}

/// What stands in names for `bytes`, which are a `kind` of thing.
fn hidden(key: &ObjectKey, kind: u8, bytes: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new_keyed(&key.names).update(&[kind]).update(bytes).finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::tests::{MODEL, entry_behind};

    const SECRET: [u8; 32] = [7; 32];

    fn plain() -> Names {
        Names::new(Path::from("a/b"), ObjectKeys::default(), false)
    }

    fn name_of(names: &Names, space: Space) -> Name {
        names.name(names.written(space), &MODEL, &entry_behind(None, &[1, 2]).header().id())
    }

    #[test]
    fn names() {
        let entry = entry_behind(None, &[1, 2]);
        let sealed = Names::new(Path::from("a/b"), ObjectKeys::of(&[SECRET, [8; 32]]), false);
        for names in [plain(), sealed] {
            for space in Space::ALL {
                let name = name_of(&names, space);
                let path = names.object(&name);
                assert_eq!(names.parse(&path), Some(name));
                assert!(path.prefix_matches(&names.segment(name.room, &MODEL, &entry.header().segment())));
                assert!(names.folders(space).iter().filter(|folder| path.prefix_matches(folder)).count() == 1);
                assert!(names.is_of(&name, entry.header()));
                assert!(!names.is_of(&name, entry_behind(None, &[1, 3]).header()));
            }
        }
    }

    #[test]
    fn other_names_are_not_ours() {
        let entry = entry_behind(None, &[1, 2]);
        let names = plain();
        let path = names.object(&name_of(&names, Space::Exact));
        let hex = "11".repeat(32);
        let drawn = format!("a/b/v1/{hex}/{}/{}", entry.header().segment(), entry.header().key);
        assert_eq!(path.as_ref(), drawn);
        for other in [
            format!("{drawn}/x"),
            drawn.replace("/v1/", "/v2/"),
            drawn.replace("/v1/", "/s1/"),
            drawn.replace("/v1/", "/s1/00112233445566FF/"),
            drawn.replace("/v1/", "/v1/00112233445566ff/"),
            drawn.replacen("a/b", "a", 1),
            drawn[..drawn.len() - 1].to_owned(),
            drawn.to_uppercase(),
            drawn.replace(&hex, &hex.replace('1', "A")).replace("A", "B"),
            "a/b/v1/photo.jpg".to_owned(),
        ] {
            assert_eq!(names.parse(&Path::from(other.as_str())), None, "{other}");
        }
        // By a key that this node does not have: it is known for what it is.
        let other = names.parse(&Path::from(drawn.replace("/v1/", "/s1/00112233445566ff/"))).unwrap();
        assert!(other.room.key.is_some() && !names.reads(other.room));
    }

    #[test]
    fn what_is_sealed_has_names_of_its_own_for_each_key_and_the_same_on_every_node() {
        let one = Names::new(Path::from("a"), ObjectKeys::of(&[SECRET]), false);
        let other = Names::new(Path::from("a"), ObjectKeys::of(&[[9; 32]]), false);
        let (name, entry) = (name_of(&one, Space::Exact), entry_behind(None, &[1, 2]));
        assert_ne!(name.id.key, name_of(&other, Space::Exact).id.key);
        assert_eq!(name, name_of(&Names::new(Path::from("a"), ObjectKeys::of(&[SECRET, [9; 32]]), true), Space::Exact));
        let path = one.object(&name).to_string();
        let header = entry.header();
        for told in [header.key.to_string(), header.segment().to_string(), MODEL.to_string()] {
            assert!(!path.contains(&told), "{path}");
        }
    }

    #[test]
    fn rooms_are_read_in_the_order_of_keys_and_what_is_not_sealed_where_that_is_accepted() {
        let keys = ObjectKeys::of(&[SECRET, [9; 32]]);
        let numbers: Vec<_> = keys.iter().map(|key| Some(key.number)).collect();
        let read = |keys: &ObjectKeys, accept| {
            let names = Names::new(Path::from("a"), keys.clone(), accept);
            let read: Vec<_> = names.read(Space::Lossy).map(|room| room.key).collect();
            assert_eq!(names.written(Space::Lossy).key, read[0]);
            assert_eq!(names.has_older(), read.len() > 1);
            assert_eq!(names.all(Space::Lossy).count(), keys.iter().len() + 1);
            read
        };
        assert_eq!(read(&keys, false), numbers);
        assert_eq!(read(&keys, true), [&numbers[..], &[None]].concat());
        assert_eq!(read(&ObjectKeys::default(), false), [None]);
    }
}
