//! How models know where a token stands.

use serde::{Deserialize, Serialize};

use super::RopeConfig;

/// A model's positional scheme, and with it whether KV that was computed at some positions is of use at others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// Queries and keys are turned by their positions ("RoFormer: Enhanced Transformer with Rotary Position Embedding"). K is
    /// kept before that.
    Rotary(RopeConfig),
    /// A score shrinks by the distance of its key, times a slope that each head has ("Train Short, Test Long: Attention with
    /// Linear Biases Enables Input Length Extrapolation"). No K and no V has a position in it.
    Alibi,
    /// A table has a vector for each position, which is added to a token's embedding. K and V have it in them from the first layer on.
    Learned,
}

impl Positions {
    /// Whether stored K and V can be moved: whether they serve at other positions than those at which they were computed.
    pub fn can_move(&self) -> bool {
        match self {
            Self::Rotary(_) | Self::Alibi => true,
            Self::Learned => false,
        }
    }

    /// The rotation, if there is one.
    pub fn rope(&self) -> Option<&RopeConfig> {
        match self {
            Self::Rotary(rope) => Some(rope),
            Self::Alibi | Self::Learned => None,
        }
    }

    /// What of it a model's fingerprint covers: of a rotary model its parameters.
    pub fn identity(&self) -> String {
        match self {
            Self::Rotary(rope) => format!("{rope:?}"),
            Self::Alibi => "alibi".to_owned(),
            Self::Learned => "learned".to_owned(),
        }
    }
}

/// The slopes of ALiBi, one a head (its section 3 and the authors' code): a geometric sequence from 2^(-8/heads) on. Of a count that is no
/// power of two, those of the next lower power, and then every other one of twice that.
pub(crate) fn alibi_slopes(heads: usize) -> Vec<f32> {
    let below = if heads == 0 { 0 } else { 1 << heads.ilog2() };
    let slope = |number: usize, of: usize| (-8.0 * number as f64 / of as f64).exp2() as f32;
    let first = (1..=below).map(|number| slope(number, below));
    first.chain((0..heads - below).map(|number| slope(2 * number + 1, 2 * below))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_paper_and_of_its_code() {
        let eight: Vec<f32> = (1..=8).map(|power| 0.5_f32.powi(power)).collect();
        assert_eq!(alibi_slopes(8), eight);
        // The authors' `get_slopes(12)`: those of 8 heads, and of 16 heads the first, the third, the fifth and the seventh.
        let more = [0.5_f32.sqrt(), 0.5_f32.powf(1.5), 0.5_f32.powf(2.5), 0.5_f32.powf(3.5)];
        let twelve = alibi_slopes(12);
        assert_eq!(twelve[..8], eight);
        assert!(twelve[8..].iter().zip(more).all(|(ours, theirs)| (ours - theirs).abs() < 1e-6), "{twelve:?}");
        assert_eq!(alibi_slopes(1), [0.5_f32.powi(8)]);
        assert!(alibi_slopes(0).is_empty());
    }

    #[test]
    fn only_learned_positions_are_part_of_keys_and_values() {
        assert!(Positions::Alibi.can_move() && !Positions::Learned.can_move());
    }
}
