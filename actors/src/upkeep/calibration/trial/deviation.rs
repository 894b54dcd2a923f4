//! How far reused KV is from a full prefill's, and what that does to attention: what figures 6 to 8 of "CacheBlend: Fast Large Language
//! Model Serving for RAG with Cached Knowledge Fusion" (section 4) show.

use std::ops::Range;

use ragstone_kernels::backend::Backend;
use ragstone_kernels::deviation::{Compared, kv_deviation};
use ragstone_kernels::forward::{Chunk, Forward, Keep, Outcome, Placed, Places, Rider, Selector, Wanted};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::LayerKv;
use ragstone_kernels::pool::KvData;
use ragstone_storage::prompt::plan::{PlanOptions, ReuseMode, plan};
use ragstone_storage::prompt::residency::Residency;
use ragstone_storage::segment::{Segment, SegmentKind};

use super::{Trials, keys, tokens_of};
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::LayerLoads;
use crate::prefill::{LayerBytes, Selection};

/// What one prompt's reused KV is away from its full prefill's.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptDeviation {
    /// By layer, by token of the blended passages: the length (L2) of the difference of K, before rotation, and V together.
    pub kv: Vec<Vec<f32>>,
    /// By way, by layer: the length (L2) of the difference of the forward attention, which is what the tokens behind the passages look
    /// at, the mean over heads.
    pub attention: Vec<Vec<f32>>,
}

impl<B: Backend> Trials<B> {
    /// A prompt's deviation, of attention in each of `ways`.
    ///
    /// # Errors
    /// `Cancelled`, and those of the model.
    pub fn deviation(&mut self, prompt: usize, ways: &[(Selection, f32)]) -> Result<PromptDeviation> {
        let segments = self.prompts[prompt].clone();
        let primer = self.fillers.clone();
        let (kv, full) = self.fully(&segments)?;
        let mut attention = Vec::with_capacity(ways.len());
        for (selection, ratio) in ways {
            let (plan, loads) = self.fused(&segments, *selection, *ratio, &primer)?;
            self.prefill(&segments, plan, loads, *selection)?;
            let seen = self.forward_attention(&segments)?;
            attention.push(seen.iter().zip(&full).map(|(seen, full)| distance(seen, full)).collect());
        }
        Ok(PromptDeviation { kv, attention })
    }

    /// What a full prefill computes: how far stored KV is from it, and its forward attention.
    fn fully(&mut self, segments: &[Segment]) -> Result<(Vec<Vec<f32>>, Vec<Matrix>)> {
        let primer = self.fillers.clone();
        let found = keys(segments, &primer)?;
        let root_key = found.first().filter(|it| it.kind == SegmentKind::SystemPrompt).and_then(|root| root.chain_key);
        let blended = found.iter().filter(|it| it.kind == SegmentKind::Passage && it.parent != root_key);
        let pairs: Vec<_> = blended.filter_map(|it| it.chain_key.zip(it.standalone_key)).collect();
        // Stores what is behind system prompt and primer.
        self.fused(segments, Selection::default(), 0.0, &primer)?;
        let residency = Residency { segments: found, ..Residency::default() };
        let plan = plan(&residency, &PlanOptions::fixed(0.0, ReuseMode::ExactOnly), None)?;
        let done = self.prefill(segments, plan, LayerLoads::none(), Selection::default())?;
        let attention = self.forward_attention(segments)?;
        let mut kv = vec![Vec::new(); self.model.config().layers];
        for (chain, standalone) in pairs {
            let not_there = || Error::new(ErrorKind::Internal, "the model's keys and values are not finite");
            let fresh = done.fresh.iter().find(|fresh| fresh.key == chain).ok_or_else(not_there)?;
            let stored = self.stored.get(&standalone).ok_or_else(not_there)?;
            for ((of_layer, fresh), stored) in kv.iter_mut().zip(&fresh.layers).zip(stored) {
                of_layer.extend(self.token_deviation(fresh, (&stored.k, &stored.v))?);
            }
        }
        Ok((kv, attention))
    }

    /// One layer's, a value a token.
    fn token_deviation(&self, fresh: &LayerBytes, stored: (&[u8], &[u8])) -> Result<Vec<f32>> {
        let layout = self.model.kv_layout();
        let data = |bytes| KvData::Bytes(layout.dtype, bytes);
        let decoded = |bytes: &[u8]| {
            let mut values = vec![0.0; bytes.len() / layout.dtype.size_in_bytes()];
            layout.dtype.decode(bytes, &mut values)?;
            Ok::<_, Error>(Matrix::from_vec(values.len() / layout.kv_dim(), layout.kv_dim(), values))
        };
        let fresh = LayerKv { k: decoded(&fresh.0)?, v: decoded(&fresh.1)? };
        let pairs = (0..fresh.k.rows()).map(|token| (token, token));
        let squares = kv_deviation(&fresh, data(stored.0), data(stored.1), pairs, Compared::Both)?;
        Ok(squares.into_iter().map(f32::sqrt).collect())
    }

    /// What the tokens behind the passages look at, by layer, `[rows, slots]`, once a prefill has put all KV in place: those tokens are
    /// computed once more over it, and come out as they were.
    fn forward_attention(&mut self, segments: &[Segment]) -> Result<Vec<Matrix>> {
        let rows = behind_passages(segments);
        let tokens = tokens_of(segments);
        let key_positions: Vec<u32> = (0..tokens.len() as u32).collect();
        let places = Places::of(rows.start as u32..rows.end as u32, &key_positions);
        let chunk = Chunk::embed(&*self.model, &tokens[rows], places, Wanted::Nothing)?;
        let mut watch = Watch { layers: Vec::new() };
        let rider = Rider { chunk, blocks: &self.blocks, key_positions: &key_positions, selector: Some(&mut watch) };
        let mut passed = Forward::new(&*self.model, &mut self.pool).pass(vec![rider]);
        match passed.outcomes.pop() {
            Some(Outcome::Failed(error)) => Err(error),
            _ => Ok(watch.layers),
        }
    }
}

/// The tokens that are computed in every way.
fn behind_passages(segments: &[Segment]) -> Range<usize> {
    let behind = segments.iter().rev().take_while(|it| matches!(it.kind, SegmentKind::Text | SegmentKind::Question));
    let rows: usize = behind.map(|it| it.tokens.len()).sum();
    let all: usize = segments.iter().map(|it| it.tokens.len()).sum();
    all - rows..all
}

/// Frobenius norm of the difference.
fn distance(one: &Matrix, two: &Matrix) -> f32 {
    one.as_slice().iter().zip(two.as_slice()).map(|(one, two)| (one - two) * (one - two)).sum::<f32>().sqrt()
}

/// Takes down what a chunk looks at.
struct Watch {
    layers: Vec<Matrix>,
}

impl<B: Backend> Selector<B> for Watch {
    fn select_by_attention(&mut self, seen: &Placed<'_, B>) -> Keep {
        self.layers.push(seen.attention_weights(0..seen.places.len()));
        Keep::All
    }
}
