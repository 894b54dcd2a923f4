//! Reading an entry's layers by ranges: small ones together, the next ones while the current ones are used.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use bytes::Bytes;
use object_store::path::Path;

use super::client::{Client, Operation, Pending};
use super::layout::Layout;
use crate::entry::EntryHeader;
use crate::tier::TierEntry;
use crate::{Error, Result};

/// Layers are read together until they have this many bytes: a request's latency is then a small part of its time.
pub const SPAN_BYTES: u64 = 4 << 20;
/// Spans that are fetched ahead of the one in use. With it, what a reader holds: as many spans, each below
/// `SPAN_BYTES` and one layer.
const READ_AHEAD: usize = 2;
/// Nothing was read yet.
const NONE: usize = usize::MAX;

/// An entry in the bucket, open for reading. What it holds of the bucket is its name, so another node may delete it: then
/// the next read is `NotFound`.
pub(super) struct ObjectEntry {
    client: Arc<Client>,
    path: Path,
    /// Of the object whose header was read.
    etag: Option<String>,
    layout: Layout,
    spans: Vec<Span>,
    /// The span that was read last, or [`NONE`]: reading on from it, or from anywhere at first, fetches ahead.
    last: AtomicUsize,
}

/// Layers that are read by one request.
struct Span {
    layers: Range<usize>,
    bytes: Range<u64>,
    /// Locked while it is waited for, so that one request serves all who want it.
    state: Mutex<State>,
}

enum State {
    Idle,
    Fetching(Pending<Bytes>),
    Ready(Bytes),
}

impl ObjectEntry {
    /// `whole`: the object's bytes, if they came with its header.
    pub fn new(client: Arc<Client>, path: Path, etag: Option<String>, layout: Layout, whole: Option<&Bytes>) -> Self {
        let spans = spans(&layout.frames, SPAN_BYTES).map(|(layers, bytes)| {
            let ready = whole.map(|whole| State::Ready(whole.slice(bytes.start as usize..bytes.end as usize)));
            Span { layers, bytes, state: Mutex::new(ready.unwrap_or(State::Idle)) }
        });
        let spans = spans.collect();
        Self { client, path, etag, layout, spans, last: AtomicUsize::new(NONE) }
    }

    fn start(&self, bytes: &Range<u64>) -> Pending<Bytes> {
        let (bucket, path, etag, range) =
            (self.client.bucket.clone(), self.path.clone(), self.etag.clone(), bytes.clone());
        let (wanted, is_sealed) = (range.end - range.start, self.layout.seal.is_some());
        let operation = Operation { doing: "read layers of an entry", failpoint: "object.get_frames", bytes: wanted };
        self.client.start(async move {
            let get = async {
                let bytes = bucket.get_layers(&path, etag.as_deref(), range).await?;
                // The object became shorter.
                if bytes.len() as u64 == wanted {
                    Ok(bytes)
                } else {
                    Err(bucket.refused(is_sealed, Error::corrupt(format!("object {path} is cut off"))))
                }
            };
            bucket.operate(operation, get).await
        })
    }

    /// Starts the spans behind `at`, and lets go of those that are out of reach.
    fn look_ahead(&self, at: usize) {
        let last = self.last.swap(at, Ordering::Relaxed);
        let reads_on = last == NONE || at == last || at == last + 1;
        let ahead = if reads_on { at + 1..at + 1 + READ_AHEAD } else { at..at };
        for (index, span) in self.spans.iter().enumerate().filter(|(index, _)| *index != at) {
            // Whoever holds it is waiting for it.
            let Some(mut state) = span.try_lock() else { continue };
            match *state {
                State::Idle if ahead.contains(&index) => *state = State::Fetching(self.start(&span.bytes)),
                State::Idle => {}
                _ if (at..=at + READ_AHEAD).contains(&index) => {}
                _ => *state = State::Idle,
            }
        }
    }

    /// The bytes of a span. BLOCKS.
    fn span(&self, at: usize) -> Result<Bytes> {
        let span = &self.spans[at];
        let mut state = span.lock();
        let pending = match std::mem::replace(&mut *state, State::Idle) {
            State::Ready(bytes) => {
                *state = State::Ready(bytes.clone());
                return Ok(bytes);
            }
            State::Fetching(pending) => pending,
            State::Idle => self.start(&span.bytes),
        };
        self.look_ahead(at);
        let bytes = pending.wait()?;
        *state = State::Ready(bytes.clone());
        Ok(bytes)
    }
}

impl TierEntry for ObjectEntry {
    fn header(&self) -> &Arc<EntryHeader> {
        &self.layout.header
    }

    fn is_exact(&self) -> bool {
        self.layout.codec.is_exact()
    }

    fn stored_bytes(&self) -> u64 {
        self.layout.frames.iter().map(|frame| frame.end - frame.start).sum()
    }

    fn begin(&self, layer: u32) {
        if let Some(first) = self.spans.iter().find(|span| span.layers.contains(&(layer as usize)))
            && let Some(mut state) = first.try_lock()
            && matches!(*state, State::Idle)
        {
            *state = State::Fetching(self.start(&first.bytes));
        }
    }

    fn frame(&self, layer: u32) -> Result<Bytes> {
        self.layout.codec.decode(&self.layout.header, layer, self.stored_frame(layer)?)
    }
}

impl ObjectEntry {
    /// One frame as the codec wrote it; of a sealed object, one that nobody without a key can have written. BLOCKS.
    ///
    /// # Errors
    /// As [`TierEntry::frame`], and `Corrupt` for what is not what was sealed.
    pub fn stored_frame(&self, layer: u32) -> Result<Bytes> {
        let layer = layer as usize;
        let key = &self.layout.header.key;
        let at = self.spans.iter().position(|span| span.layers.contains(&layer));
        let (Some(at), Some(place)) = (at, self.layout.frames.get(layer)) else {
            return Err(Error::not_found(format!("entry {key} has no layer {layer}")));
        };
        let bytes = self.span(at)?;
        let start = self.spans[at].bytes.start;
        let bytes = bytes.slice((place.start - start) as usize..(place.end - start) as usize);
        let Some(seal) = &self.layout.seal else { return Ok(bytes) };
        seal.open(layer as u32, bytes).ok_or_else(|| {
            let what = "it is not what was sealed there, or changed since; it will be recomputed";
            self.client.bucket.refused(true, Error::corrupt(format!("layer {layer} of entry {key}: {what}")))
        })
    }
}

impl Span {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Groups frames, which lie one behind the other, into spans of at least `least` bytes, the last one excepted.
fn spans(frames: &[Range<u64>], least: u64) -> impl Iterator<Item = (Range<usize>, Range<u64>)> + '_ {
    let mut from = 0;
    std::iter::from_fn(move || {
        let first = frames.get(from)?;
        let behind = frames[from..].iter().position(|frame| frame.end - first.start >= least);
        let to = behind.map_or(frames.len(), |behind| from + behind + 1);
        let layers = from..to;
        from = to;
        Some((layers.clone(), first.start..frames[layers.end - 1].end))
    })
}

/// The ranges by which an entry is read, for comparing with plain requests of the same.
pub(super) fn ranges(layout: &Layout) -> Vec<Range<u64>> {
    spans(&layout.frames, SPAN_BYTES).map(|(_, bytes)| bytes).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spans_hold_every_layer_once_and_are_large_enough(
            lengths in prop::collection::vec(1u64..50, 1..40), least in 1u64..120,
        ) {
            let mut at = 1000;
            let frames: Vec<_> = lengths.iter().map(|length| { at += length; at - length..at }).collect();
            let spans: Vec<_> = spans(&frames, least).collect();
            let (mut layer, mut byte) = (0, 1000);
            for (index, (layers, bytes)) in spans.iter().enumerate() {
                prop_assert_eq!((layers.start, bytes.start), (layer, byte));
                prop_assert_eq!(bytes.end, frames[layers.end - 1].end);
                prop_assert!(bytes.end - bytes.start >= least || index == spans.len() - 1);
                prop_assert!(bytes.end - bytes.start < least + 50);
                (layer, byte) = (layers.end, bytes.end);
            }
            prop_assert_eq!((layer, byte), (frames.len(), at));
        }
    }
}
