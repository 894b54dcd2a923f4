//! What enters the first layer: tokens, and where positions are learned, these.

use rayon::prelude::*;

use super::Model;
use crate::backend::check_tokens;
use crate::error::Result;
use crate::matrix::Matrix;

/// The embedding table `[vocab, hidden]`, where it is not the output head's.
pub enum Embedding {
    Tied,
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl Embedding {
    /// Bytes in memory, those of the output head aside.
    pub(super) fn size_in_bytes(&self) -> usize {
        match self {
            Self::Tied => 0,
            Self::F32(values) => values.len() * 4,
            Self::Bf16(bits) => bits.len() * 2,
        }
    }
}

impl Model {
    /// The embeddings of `tokens`, each at its position, `[tokens, hidden]`.
    ///
    /// # Errors
    /// `InvalidInput` for an id outside the vocabulary, and for a position that a learned table does not have.
    pub fn embed_tokens(&self, tokens: &[u32], positions: &[u32]) -> Result<Matrix> {
        let hidden = self.config.hidden_size;
        check_tokens(&self.config, tokens, positions)?;
        let mut out = Matrix::zeros(tokens.len(), hidden);
        let rows = out.as_mut_slice().par_chunks_mut(hidden).with_min_len(64).zip(tokens).zip(positions);
        rows.for_each(|((out, token), position)| {
            self.embedding_row(*token as usize, out);
            if self.config.embedding_scale != 1.0 {
                out.iter_mut().for_each(|out| *out *= self.config.embedding_scale);
            }
            if let Some(table) = &self.position_table {
                let row = *position as usize + self.config.positions_skipped;
                let place = &table[row * hidden..][..hidden];
                out.iter_mut().zip(place).for_each(|(out, place)| *out += place);
            }
            if let Some(norm) = &self.embedding_norm {
                let embedded = out.to_vec();
                norm.row(&embedded, out, self.config.norm_eps);
            }
        });
        Ok(out)
    }

    fn embedding_row(&self, token: usize, out: &mut [f32]) {
        let start = token * out.len();
        match &self.embedding {
            Embedding::Tied => self.head.weight_row(token, out),
            Embedding::F32(values) => out.copy_from_slice(&values[start..start + out.len()]),
            Embedding::Bf16(bits) => {
                let widen = |bits: &u16| f32::from_bits(u32::from(*bits) << 16);
                out.iter_mut().zip(&bits[start..]).for_each(|(out, bits)| *out = widen(bits));
            }
        }
    }
}
