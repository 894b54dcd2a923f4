//! Rotary position embedding ("RoFormer: Enhanced Transformer with Rotary Position Embedding", equation 34), in the
//! half-split form of Hugging Face checkpoints: element i is paired with element i + head_dim / 2.

use std::sync::OnceLock;

use crate::config::{ModelConfig, RopeConfig};

/// Positions whose angles are computed together.
const CHUNK: usize = 1024;

/// The rotation of query and key heads; of a model that has none, one that leaves them as they are. Angles are computed when a position
/// is first met, then kept.
#[derive(Debug)]
pub struct Rope {
    head_dim: usize,
    /// Radians per position, one for each pair of elements that is turned; those of a head that stand behind the pairs stay.
    frequencies: Vec<f32>,
    attention_factor: f32,
    /// By position / `CHUNK`: `[CHUNK][2][pairs]`, the cosines of a position and then its sines.
    chunks: Vec<OnceLock<Box<[f32]>>>,
}

impl Rope {
    /// The rotation of a model, its scaling included; of layers without a window, where layers differ.
    pub fn new(config: &ModelConfig) -> Self {
        config.rope().map_or_else(|| Self::none(config.head_dim), |rope| Self::of(rope, config))
    }

    /// One of a model's rotations.
    pub fn of(rope: &RopeConfig, config: &ModelConfig) -> Self {
        let (frequencies, attention_factor) = rope.inverse_frequencies(config.rotated);
        Self {
            head_dim: config.head_dim,
            ..Self::from_frequencies(frequencies, attention_factor, config.max_positions)
        }
    }

    /// No rotation, of heads `[head_dim]`.
    pub fn none(head_dim: usize) -> Self {
        Self { head_dim, frequencies: Vec::new(), attention_factor: 1.0, chunks: Vec::new() }
    }

    /// A rotation by `frequencies` (radians per position, one for each pair), cosines and sines multiplied by
    /// `attention_factor`; angles of positions below `kept_positions` are kept.
    pub fn from_frequencies(frequencies: Vec<f32>, attention_factor: f32, kept_positions: usize) -> Self {
        let chunks = (0..kept_positions.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Self { head_dim: 2 * frequencies.len(), frequencies, attention_factor, chunks }
    }

    /// A rotation of the first elements of heads of `head_dim`.
    #[cfg(test)]
    pub(crate) fn of_part(head_dim: usize, frequencies: Vec<f32>, kept_positions: usize) -> Self {
        Self { head_dim, ..Self::from_frequencies(frequencies, 1.0, kept_positions) }
    }

    /// Values of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// How many cosines and sines a position has.
    pub fn angles_len(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Rotates one head `[head_dim]` in place to `position`.
    pub fn rotate(&self, head: &mut [f32], position: u32) {
        self.with_angles(position, |cos, sin| rotate_by(head, cos, sin));
    }

    /// Rotates each head of a row `[heads * head_dim]` in place to `position`.
    pub fn rotate_row(&self, row: &mut [f32], position: u32) {
        self.with_angles(position, |cos, sin| {
            for head in row.chunks_exact_mut(self.head_dim) {
                rotate_by(head, cos, sin);
            }
        });
    }

    /// The cosines and then the sines of `count` positions from `first` on, [`angles_len`](Self::angles_len) of each; `None` where they are not
    /// kept beside each other.
    pub(crate) fn kept_angles(&self, first: u32, count: usize) -> Option<&[f32]> {
        let (chunk, start) = (first as usize / CHUNK, first as usize % CHUNK);
        if start + count > CHUNK {
            return None;
        }
        let angles = self.chunks.get(chunk)?.get_or_init(|| self.chunk(chunk));
        Some(&angles[start * self.angles_len()..(start + count) * self.angles_len()])
    }

    fn chunk(&self, chunk: usize) -> Box<[f32]> {
        (chunk * CHUNK..(chunk + 1) * CHUNK).flat_map(|position| self.angles(position)).collect()
    }

    /// Copies the cosines and then the sines of `position`, [`angles_len`](Self::angles_len) in all.
    pub fn copy_angles(&self, position: u32, to: &mut [f32]) {
        self.with_angles(position, |cos, sin| {
            let (to_cos, to_sin) = to.split_at_mut(cos.len());
            to_cos.copy_from_slice(cos);
            to_sin.copy_from_slice(sin);
        });
    }

    /// Calls `then` with the cosines and sines of `position`, one each a pair.
    fn with_angles<T>(&self, position: u32, then: impl FnOnce(&[f32], &[f32]) -> T) -> T {
        let pairs = self.frequencies.len();
        let position = position as usize;
        match self.chunks.get(position / CHUNK) {
            Some(chunk) => {
                let angles = chunk.get_or_init(|| self.chunk(position / CHUNK));
                then_split(&angles[position % CHUNK * 2 * pairs..][..2 * pairs], pairs, then)
            }
            None => then_split(&self.angles(position), pairs, then),
        }
    }

    /// The angle itself is rounded to f32, as it is where checkpoints are trained; its cosine and sine are then exact
    /// to the last bit.
    fn angles(&self, position: usize) -> Vec<f32> {
        let angle = |frequency: &f32| f64::from(position as f32 * frequency);
        let factor = f64::from(self.attention_factor);
        let cosines = self.frequencies.iter().map(|frequency| (angle(frequency).cos() * factor) as f32);
        let sines = self.frequencies.iter().map(|frequency| (angle(frequency).sin() * factor) as f32);
        cosines.chain(sines).collect()
    }
}

fn then_split<T>(angles: &[f32], pairs: usize, then: impl FnOnce(&[f32], &[f32]) -> T) -> T {
    let (cos, sin) = angles.split_at(pairs);
    then(cos, sin)
}

fn rotate_by(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope() -> Rope {
        Rope::from_frequencies(vec![1.0, 0.1, 0.003], 1.0, 1500)
    }

    #[test]
    fn pairs_turn_by_position_times_frequency() {
        let rope = rope();
        // Inside the table, in its last chunk, and beyond it.
        for position in [0_u32, 7, 1499, 5000] {
            let mut head = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
            rope.rotate(&mut head, position);
            for (pair, frequency) in [1.0_f32, 0.1, 0.003].into_iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                let (a, b) = ((pair + 1) as f64, (pair + 4) as f64);
                assert!((f64::from(head[pair]) - (a * angle.cos() - b * angle.sin())).abs() < 1e-5);
                assert!((f64::from(head[pair + 3]) - (b * angle.cos() + a * angle.sin())).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn a_row_turns_head_by_head() {
        let rope = rope();
        let mut row: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mut heads = row.clone();
        rope.rotate_row(&mut row, 33);
        heads.chunks_mut(6).for_each(|head| rope.rotate(head, 33));
        assert_eq!(row, heads);
    }

    #[test]
    fn a_model_without_a_rotation_has_its_heads_as_they_are() {
        let rope = Rope::none(4);
        let mut row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        rope.rotate_row(&mut row, 77);
        rope.rotate(&mut row[..4], 3);
        assert_eq!((row, rope.head_dim()), ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 4));
    }

    #[test]
    fn of_a_head_that_is_turned_in_part_the_rest_stays() {
        let (whole, part) = (rope(), Rope { head_dim: 8, ..rope() });
        let mut row: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let mut heads = row.clone();
        part.rotate_row(&mut row, 33);
        heads.chunks_mut(8).for_each(|head| whole.rotate(&mut head[..6], 33));
        assert_eq!(row, heads);
        assert_eq!((row[6], row[15]), (6.0, 15.0));
    }

    #[test]
    fn products_depend_on_distance_only() {
        let rope = rope();
        let product = |p: u32, q: u32| {
            let (mut a, mut b) = ([0.3, -1.0, 2.0, 0.5, 0.25, 1.0], [1.0, 0.7, -0.2, 0.1, 2.0, -1.5]);
            rope.rotate(&mut a, p);
            rope.rotate(&mut b, q);
            a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>()
        };
        assert!((product(5, 2) - product(105, 102)).abs() < 1e-4);
    }
}
