//! What seals one object: keys that are of this object alone, tags, and the cipher.
//!
//! ```text
//! keys of an object = first 96 bytes of BLAKE3-keyed(seals,
//!     salt [32] | seal u8 | space u8: 0 = exact, 1 = lossy | the three parts of its name, as they stand there [32 + 16 + 32])
//!   head    [32]  keys the tags of the header                 tag = BLAKE3-keyed(head, bytes)
//!   frames  [32]  keys the tags of frames                     tag = BLAKE3-keyed(frames, layer u32 | bytes)
//!   cipher  [32]  AES-256-GCM, where it is encrypted          nonce = zero u32 | counter u64, little-endian: 0 = row, layer + 1 = frame
//! ```
//! An object's name and its salt, 32 random bytes, are in its keys: under another name, or beside another salt, no tag fits. No nonce is used
//! twice, because a key is used for one object and a counter for one piece of it; a salt that came again would have to come under the same name.

use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag as CipherTag, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::keys::ObjectKey;
use super::names::{Name, Space};
use crate::{Error, ErrorKind, Result};

pub(super) const TAG_BYTES: usize = 32;
pub(super) const SALT_BYTES: usize = 32;
/// By which an encrypted row is longer.
const CIPHER_TAG_BYTES: usize = 16;

pub(super) type Tag = [u8; TAG_BYTES];
pub(super) type Salt = [u8; SALT_BYTES];

/// How an object is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seal {
    /// Nobody without a key can have written it; everybody can read it.
    Authenticated,
    /// Nor can anybody without a key read it.
    Encrypted,
}

/// Seals and opens the pieces of one object.
pub(super) struct ObjectSeal {
    head: [u8; 32],
    frames: [u8; 32],
    cipher: Option<LessSafeKey>,
}

/// What an object's frames are opened by.
pub(super) struct FrameSeal {
    pub seal: ObjectSeal,
    /// One for each layer; the header's tag is over them.
    pub tags: Vec<Tag>,
}

impl Seal {
    /// Its number in objects; never reused for another.
    pub fn code(self) -> u8 {
        match self {
            Self::Authenticated => 1,
            Self::Encrypted => 2,
        }
    }

    pub fn of_code(code: u8) -> Option<Self> {
        [Self::Authenticated, Self::Encrypted].into_iter().find(|seal| seal.code() == code)
    }
}

/// Of the system's: the environment's randomness is not for secrets, and nothing is decided by a salt.
///
/// # Errors
/// `Unavailable` where the system has none.
pub(super) fn random_salt() -> Result<Salt> {
    let mut salt = [0; SALT_BYTES];
    let failed = |_| Error::new(ErrorKind::Unavailable, "the system gave no random bytes for sealing an entry");
    SystemRandom::new().fill(&mut salt).map_err(failed)?;
    Ok(salt)
}

impl ObjectSeal {
    pub fn new(key: &ObjectKey, name: &Name, salt: &Salt, seal: Seal) -> Self {
        let space = match name.room.space {
            Space::Exact => 0,
            Space::Lossy => 1,
        };
        let mut hasher = blake3::Hasher::new_keyed(&key.seals);
        hasher.update(salt).update(&[seal.code(), space]);
        hasher.update(&name.fingerprint.0).update(&name.id.segment.0).update(&name.id.key.0);
        let (mut keys, mut head, mut frames) = ([0; 96], [0; 32], [0; 32]);
        hasher.finalize_xof().fill(&mut keys);
        head.copy_from_slice(&keys[..32]);
        frames.copy_from_slice(&keys[32..64]);
        // It fails for a key of another length only.
        let cipher = || UnboundKey::new(&AES_256_GCM, &keys[64..]).ok().map(LessSafeKey::new);
        let cipher = if seal == Seal::Encrypted { cipher() } else { None };
        Self { head, frames, cipher }
    }

    /// Of a part of the header.
    pub fn head_tag(&self, bytes: &[u8]) -> Tag {
        *blake3::keyed_hash(&self.head, bytes).as_bytes()
    }

    /// Whether a part of the header has this tag.
    pub fn fits_head(&self, bytes: &[u8], tag: &[u8]) -> bool {
        <Tag>::try_from(tag).is_ok_and(|tag| blake3::keyed_hash(&self.head, bytes) == blake3::Hash::from_bytes(tag))
    }

    /// The entry row as it stands in the object.
    ///
    /// # Errors
    /// `Internal` if the cipher refuses: it is longer than any entry.
    pub fn close_row(&self, row: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = row.to_vec();
        if let Some(cipher) = &self.cipher {
            let tag = cipher.seal_in_place_separate_tag(nonce(0), Aad::empty(), &mut bytes).map_err(refused)?;
            bytes.extend_from_slice(tag.as_ref());
        }
        Ok(bytes)
    }

    /// The entry row, out of a header whose tag was found to fit; `None` if it is not what was closed.
    pub fn open_row(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut row = bytes.to_vec();
        if let Some(cipher) = &self.cipher {
            let plain = cipher.open_in_place(nonce(0), Aad::empty(), &mut row).ok()?.len();
            row.truncate(plain);
        }
        Some(row)
    }

    /// A frame as it stands in the object, and its tag.
    ///
    /// # Errors
    /// As [`close_row`](Self::close_row).
    pub fn close_frame(&self, layer: u32, frame: Bytes) -> Result<(Bytes, Tag)> {
        let Some(cipher) = &self.cipher else {
            let tag = *self.frame_hash(layer, &frame).as_bytes();
            return Ok((frame, tag));
        };
        let mut bytes = frame.to_vec();
        let sealed = cipher.seal_in_place_separate_tag(nonce(u64::from(layer) + 1), Aad::empty(), &mut bytes);
        let mut tag = [0; TAG_BYTES];
        tag[..CIPHER_TAG_BYTES].copy_from_slice(sealed.map_err(refused)?.as_ref());
        Ok((bytes.into(), tag))
    }

    /// A frame out of an object; `None` if it is not the one that has this tag.
    fn open_frame(&self, layer: u32, bytes: Bytes, tag: &Tag) -> Option<Bytes> {
        let Some(cipher) = &self.cipher else {
            return (self.frame_hash(layer, &bytes) == blake3::Hash::from_bytes(*tag)).then_some(bytes);
        };
        let tag = CipherTag::try_from(&tag[..CIPHER_TAG_BYTES]).ok()?;
        // What was read may be shared by other layers.
        let mut frame = bytes.to_vec();
        drop(bytes);
        let nonce = nonce(u64::from(layer) + 1);
        let plain = cipher.open_in_place_separate_tag(nonce, Aad::empty(), tag, &mut frame, 0..).ok()?.len();
        frame.truncate(plain);
        Some(frame.into())
    }

    fn frame_hash(&self, layer: u32, bytes: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.frames).update(&layer.to_le_bytes()).update(bytes).finalize()
    }
}

impl FrameSeal {
    /// A frame of the object, as its codec wrote it; `None` if somebody changed it, or it is another one.
    pub fn open(&self, layer: u32, bytes: Bytes) -> Option<Bytes> {
        self.seal.open_frame(layer, bytes, self.tags.get(layer as usize)?)
    }
}

impl std::fmt::Debug for FrameSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameSeal({} frames)", self.tags.len())
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

fn refused(_: ring::error::Unspecified) -> Error {
    Error::new(ErrorKind::Internal, "an entry could not be encrypted; please report this")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Fingerprint, KvKey, SegmentDigest};
    use crate::tier::EntryId;
    use crate::tier::object::names::Room;

    const SALT: Salt = [3; 32];

    fn key() -> ObjectKey {
        ObjectKey::new(&[7; 32])
    }

    fn name(space: Space) -> Name {
        let room = Room { space, key: Some(key().number) };
        let id = EntryId { key: KvKey([1; 32]), segment: SegmentDigest([2; 16]) };
        Name { room, fingerprint: Fingerprint([4; 32]), id }
    }

    fn seal(seal: Seal) -> ObjectSeal {
        ObjectSeal::new(&key(), &name(Space::Exact), &SALT, seal)
    }

    #[test]
    fn what_is_closed_opens_and_nothing_else() {
        for kind in [Seal::Authenticated, Seal::Encrypted] {
            let one = seal(kind);
            let frame = Bytes::from_static(b"a layer of K and V");
            let (closed, tag) = one.close_frame(2, frame.clone()).unwrap();
            assert_eq!((closed.len(), closed == frame), (frame.len(), kind == Seal::Authenticated));
            assert_eq!(one.open_frame(2, closed.clone(), &tag), Some(frame.clone()));
            assert_eq!(one.open_frame(1, closed.clone(), &tag), None, "another layer");
            for at in 0..closed.len() {
                let mut changed = closed.to_vec();
                changed[at] ^= 1;
                assert_eq!(one.open_frame(2, changed.into(), &tag), None);
            }
            assert_eq!(one.open_frame(2, closed.slice(1..), &tag), None);
            let mut other_tag = tag;
            other_tag[0] ^= 1;
            assert_eq!(one.open_frame(2, closed.clone(), &other_tag), None);
            let row = one.close_row(b"row").unwrap();
            assert_eq!(row.len(), if kind == Seal::Encrypted { 3 + CIPHER_TAG_BYTES } else { 3 });
            assert_eq!(one.open_row(&row).as_deref(), Some(&b"row"[..]));
            assert!(one.fits_head(b"head", &one.head_tag(b"head")) && !one.fits_head(b"heap", &one.head_tag(b"head")));
            assert!(!one.fits_head(b"head", &one.head_tag(b"head")[1..]));
        }
        assert_eq!(seal(Seal::Encrypted).open_row(b"short"), None);
    }

    #[test]
    fn name_space_salt_key_and_kind_are_in_every_tag() {
        let others = |kind: Seal| {
            let mut other_name = name(Space::Exact);
            other_name.id.key.0[31] ^= 1;
            let mut other_model = name(Space::Exact);
            other_model.fingerprint.0[0] ^= 1;
            let mut other_segment = name(Space::Exact);
            other_segment.id.segment.0[0] ^= 1;
            let swapped = if kind == Seal::Encrypted { Seal::Authenticated } else { Seal::Encrypted };
            [
                ObjectSeal::new(&key(), &other_name, &SALT, kind),
                ObjectSeal::new(&key(), &other_model, &SALT, kind),
                ObjectSeal::new(&key(), &other_segment, &SALT, kind),
                ObjectSeal::new(&key(), &name(Space::Lossy), &SALT, kind),
                ObjectSeal::new(&key(), &name(Space::Exact), &[4; 32], kind),
                ObjectSeal::new(&ObjectKey::new(&[8; 32]), &name(Space::Exact), &SALT, kind),
                ObjectSeal::new(&key(), &name(Space::Exact), &SALT, swapped),
            ]
        };
        for kind in [Seal::Authenticated, Seal::Encrypted] {
            let one = seal(kind);
            let (frame, tag) = one.close_frame(0, Bytes::from_static(b"frame")).unwrap();
            for other in others(kind) {
                assert_eq!(other.open_frame(0, frame.clone(), &tag), None);
                assert!(!other.fits_head(b"head", &one.head_tag(b"head")));
            }
        }
    }

    #[test]
    fn salts_differ() {
        assert_ne!(random_salt().unwrap(), random_salt().unwrap());
    }
}
