//! An answer's K and V, filed as it grows: so that a prompt that goes on from it (the next turn of a conversation) finds them.

use std::sync::Arc;

use ragstone_kernels::backend::{Backend, KvBytes};
use ragstone_kernels::forward::{Interest, Next, Seen, Selector};
use ragstone_storage::key::KvKey;
use ragstone_storage::segment::{Segment, SegmentKind, TEXT_TOKENS};
use ragstone_storage::tier::device::KeptSegment;

use crate::prefill::{LayerBytes, OpenText};

/// Files a text that is long enough for a segment, and says under which key; `None` where nothing more of it can be kept. Called on
/// the engine's thread: it must not wait.
pub type FileText = Arc<dyn Fn(FullText) -> Option<KvKey> + Send + Sync>;

/// [`TEXT_TOKENS`] tokens of text and their K and V.
pub struct FullText {
    /// What stands before it.
    pub parent: Option<KvKey>,
    /// Its token ids.
    pub tokens: Arc<[u32]>,
    /// First layer first.
    pub layers: Vec<LayerBytes>,
    /// What a prefill would take to compute it, in microseconds.
    pub compute_us: u64,
}

/// The text of one answer, from the question's tokens on. As a [`Selector`] it takes the K and V of a pass's token and of the draft behind
/// it; what of that is not [pushed](Self::push) is overwritten by the next pass.
pub(super) struct GrowingText {
    open: OpenText,
    file: FileText,
    /// What of it was filed.
    kept: Vec<KeptSegment>,
    /// Where the open text begins, in tokens from the start of the prompt.
    begin: usize,
    /// Bytes of a token's K, and of its V, in one layer; 0 before the first pass.
    token_bytes: (usize, usize),
    us_per_token: f64,
    /// Until a value is not finite, or a text could not be kept: then nothing behind it is filed, either.
    is_filed: bool,
}

impl GrowingText {
    /// `open` ends the prompt, which has `prompt_tokens` tokens, each of which took so long.
    pub(super) fn new(open: OpenText, file: FileText, prompt_tokens: usize, us_per_token: f64) -> Self {
        let begin = prompt_tokens - open.tokens.len();
        Self { open, file, kept: Vec::new(), begin, token_bytes: (0, 0), us_per_token, is_filed: true }
    }

    /// `token`, whose K and V were taken in the pass, is part of it now; of a pass's tokens in their order.
    pub(super) fn push(&mut self, token: u32) {
        self.open.tokens.push(token);
        if self.open.tokens.len() < TEXT_TOKENS || !self.is_filed {
            return;
        }
        let tokens: Arc<[u32]> = std::mem::take(&mut self.open.tokens).into();
        // What was taken of a draft behind it stays: it may be right, too.
        let (k_bytes, v_bytes) = self.token_bytes;
        let rest = |(k, v): &mut LayerBytes| {
            let at = |bytes: usize, all: &[u8]| (tokens.len() * bytes).min(all.len());
            (k.split_off(at(k_bytes, k)), v.split_off(at(v_bytes, v)))
        };
        let rest = self.open.layers.iter_mut().map(rest).collect();
        let layers = std::mem::replace(&mut self.open.layers, rest);
        let compute_us = (self.us_per_token * tokens.len() as f64) as u64;
        let full = FullText { parent: self.open.parent, tokens: tokens.clone(), layers, compute_us };
        let Some(key) = (self.file)(full) else {
            self.is_filed = false;
            return;
        };
        self.begin += tokens.len();
        self.open.parent = Some(key);
        self.kept.push(KeptSegment {
            key,
            segment: Segment { kind: SegmentKind::Text, tokens, place: None },
            end: self.begin,
        });
    }

    /// What a token took to prefill, in microseconds.
    pub(super) fn us_per_token(&self) -> f64 {
        self.us_per_token
    }

    /// Tokens whose K and V nobody else has: those behind what was filed. `None`: they cannot be filed any more.
    pub(super) fn unfiled_tokens(&self) -> Option<usize> {
        self.is_filed.then_some(self.open.tokens.len())
    }

    /// K and V of a pass's token and of the draft behind it, in one layer.
    fn take_rows(&mut self, layer: usize, rows: usize, KvBytes { k, v, is_finite }: KvBytes) {
        if !self.is_filed {
            return;
        }
        let (all_k, all_v) = &mut self.open.layers[layer];
        self.token_bytes = (k.len() / rows, v.len() / rows);
        // A pass that broke is repeated, and drafts can be wrong: what was taken of them goes first.
        let before = self.open.tokens.len();
        all_k.truncate(before * self.token_bytes.0);
        all_v.truncate(before * self.token_bytes.1);
        all_k.extend(k);
        all_v.extend(v);
        self.is_filed = is_finite;
    }

    /// What was filed, in order.
    pub(super) fn kept(&self) -> &[KeptSegment] {
        &self.kept
    }
}

impl<B: Backend> Selector<B> for GrowingText {
    fn interest(&self) -> Interest {
        if self.is_filed { Interest::FreshKv } else { Interest::Nothing }
    }

    fn take_fresh(&mut self, layer: usize, rows: usize, kv: KvBytes) {
        self.take_rows(layer, rows, kv);
    }

    fn take(&mut self, seen: &Seen<'_, B>, _: &mut B::Pool) -> Next {
        if self.is_filed {
            let rows = seen.places.len();
            self.take_rows(seen.layer, rows, seen.export(0..rows));
        }
        Next::Go
    }
}
