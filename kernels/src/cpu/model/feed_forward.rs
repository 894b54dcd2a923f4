//! What a layer does to each row by itself, after its attention: one feed-forward part, or those of some experts.
//!
//! Experts are grouped products: rows are gathered by expert, each expert's go through its layers together, and what comes out is added up
//! row by row. Which experts a row has depends on the row alone, a product's bits do not depend on which rows are in it (see
//! [`linear`](crate::linear)), and a row's sum goes through its experts in the order of their numbers: so that a row's bits are the same
//! whatever stands beside it.

use rayon::prelude::*;

use super::elementwise::{Norm, gelu_row, relu_row};
use super::{Model, ROWS_PER_TASK, Scratch};
use crate::config::{Experts, FeedForwardKind};
use crate::crew;
use crate::linear::{Activations, Input, Linear, Output};
use crate::matrix::Matrix;
use crate::profile;

/// What follows a layer's attention.
pub enum FeedForward<L = Linear> {
    One(Part<L>),
    Experts(Mixture<L>),
}

/// A feed-forward part: all of it, or one expert's.
pub struct Part<L = Linear> {
    pub expand: Expand<L>,
    pub down: L,
}

/// A part's way in.
pub enum Expand<L = Linear> {
    /// Gate and up.
    Gated(L),
    Plain(L),
}

/// Experts, and who chooses them.
pub struct Mixture<L = Linear> {
    /// `[experts, hidden]`; in f32 whatever other products are made in, as a score that is a little off may choose another expert.
    pub router: L,
    pub parts: Vec<Part<L>>,
}

impl<L> Expand<L> {
    pub fn linear(&self) -> &L {
        let (Self::Gated(linear) | Self::Plain(linear)) = self;
        linear
    }
}

impl Part {
    fn size_in_bytes(&self) -> usize {
        self.expand.linear().size_in_bytes() + self.down.size_in_bytes()
    }
}

impl FeedForward {
    /// Bytes of its weights in memory.
    pub(super) fn size_in_bytes(&self) -> usize {
        match self {
            Self::One(part) => part.size_in_bytes(),
            Self::Experts(mixture) => {
                mixture.router.size_in_bytes() + mixture.parts.iter().map(Part::size_in_bytes).sum::<usize>()
            }
        }
    }
}

/// What experts compute on their way.
#[derive(Default)]
pub(super) struct Routed {
    /// What enters them, `[rows, hidden]`.
    normed: Matrix,
    /// `[rows, experts]`
    scores: Matrix,
    /// Of one expert.
    gathered: Activations,
    /// What comes out of them, expert by expert: `[rows * per_row, hidden]`.
    out: Matrix,
}

/// What a part computes on its way.
struct Inside<'a> {
    inner: &'a mut Activations,
    spare: &'a mut Activations,
    plain: &'a mut Matrix,
}

impl Model {
    /// Adds a layer's feed-forward part to `hidden`, `[rows, hidden]`.
    pub(super) fn feed_forward(&self, layer: usize, hidden: &mut [f32], scratch: &mut Scratch) {
        let weights = &self.layers[layer];
        let output_norm = weights.output_norms.as_ref().map(|norms| &norms[1]);
        let Scratch { normed, inner, spare, plain, added, routed, low, .. } = scratch;
        let inside = Inside { inner: &mut *inner, spare, plain };
        match &weights.feed_forward {
            FeedForward::One(part) => {
                self.norm(hidden, &weights.post_norm, part.expand.linear().format(), normed);
                let input = Input::from(&*normed);
                let rows = hidden.len() / self.config.hidden_size;
                let adapted = self.adapted.get(layer).filter(|pairs| pairs.expand.is_some() || pairs.down.is_some());
                self.profile.time(profile::Part::FeedForward, || match adapted {
                    Some(pairs) => {
                        let entering = (&*hidden, &weights.post_norm);
                        self.expand_adapted((part, pairs), entering, input, inside.inner, low);
                    }
                    None => self.expand(part, input, rows, self.config.intermediate_size, inside),
                });
                self.profile.time(profile::Part::FeedForward, || {
                    let more = |out: &mut [f32]| self.add_down(adapted, out, low);
                    self.add(&part.down, &*inner, more, output_norm, hidden, added);
                });
            }
            FeedForward::Experts(mixture) => {
                let rule = self.config.experts.as_ref().expect("a layer with experts is of a model with experts");
                let added = added.reshape(hidden.len() / self.config.hidden_size, 2 * self.config.hidden_size);
                let (sum, spare) = added.as_mut_slice().split_at_mut(hidden.len());
                self.profile.time(profile::Part::FeedForward, || {
                    self.mix(mixture, rule, (hidden, &weights.post_norm), routed, inside, sum);
                    self.add_rows(sum, spare, output_norm, hidden);
                });
            }
        }
    }

    /// What enters a part's way out, `[rows, width]`, in `inside.inner`.
    fn expand(&self, part: &Part, input: Input<'_>, rows: usize, width: usize, inside: Inside<'_>) {
        let Inside { inner, spare, plain } = inside;
        let format = part.down.format();
        match &part.expand {
            Expand::Gated(gate_up) => gate_up.forward_gated(input, format, width, inner, spare),
            Expand::Plain(up) => {
                let plain = plain.reshape(rows, width);
                up.forward(input, Output::Store(plain.as_mut_slice()));
                let activate = self.plain_activation();
                inner.fill(format, rows, width, |row, out| activate(plain.row(row), out));
            }
        }
    }

    /// What stands between the two products of a plain part.
    pub(super) fn plain_activation(&self) -> fn(&[f32], &mut [f32]) {
        if self.config.feed_forward == FeedForwardKind::PlainRelu { relu_row } else { gelu_row }
    }

    /// What the experts make of rows `[rows, hidden]` once these are normed: each row's sum, `[rows, hidden]`.
    fn mix(
        &self,
        mixture: &Mixture,
        rule: &Experts,
        (hidden, norm): (&[f32], &Norm),
        routed: &mut Routed,
        inside: Inside<'_>,
        sum: &mut [f32],
    ) {
        let features = self.config.hidden_size;
        let rows = hidden.len() / features;
        let Routed { normed, scores, gathered, out } = routed;
        let normed = normed.reshape(rows, features);
        let task = ROWS_PER_TASK * features;
        crew::for_each_part(normed.as_mut_slice().chunks_mut(task).zip(hidden.chunks(task)), |_, (to, from)| {
            let rows = to.chunks_mut(features).zip(from.chunks(features));
            rows.for_each(|(to, from)| norm.row(from, to, self.config.norm_eps));
        });
        let normed = &*normed;
        let scores = scores.reshape(rows, rule.count);
        mixture.router.forward(Input::f32(normed.as_slice(), rows), Output::Store(scores.as_mut_slice()));
        let routes = Routes::of(scores, rule);
        let out = out.reshape(rows * rule.per_row, features);
        let Inside { inner, spare, plain } = inside;
        for (part, places) in mixture.parts.iter().zip(routes.starts.windows(2)) {
            let group = &routes.rows[places[0]..places[1]];
            if group.is_empty() {
                continue;
            }
            gathered.fill(part.expand.linear().format(), group.len(), features, |at, to| {
                to.copy_from_slice(normed.row(group[at]));
            });
            let inside = Inside { inner: &mut *inner, spare: &mut *spare, plain: &mut *plain };
            self.expand(part, Input::from(&*gathered), group.len(), rule.intermediate_size, inside);
            let to = &mut out.as_mut_slice()[places[0] * features..places[1] * features];
            part.down.forward(&*inner, Output::Store(to));
        }
        crew::for_each_part(sum.chunks_mut(task), |first, sums| {
            for (row, sum) in sums.chunks_mut(features).enumerate() {
                sum.fill(0.0);
                for choice in &routes.choices[(first * ROWS_PER_TASK + row) * rule.per_row..][..rule.per_row] {
                    sum.iter_mut().zip(out.row(choice.place)).for_each(|(sum, out)| *sum += choice.weight * out);
                }
            }
        });
    }
}

/// Which rows go through which experts.
struct Routes {
    /// By expert, where its rows begin in `rows`; and the end. `[experts + 1]`
    starts: Vec<usize>,
    /// Expert by expert the rows that go through it, ascending.
    rows: Vec<usize>,
    /// `[rows, per_row]`, of each row by the experts' numbers.
    choices: Vec<Choice>,
}

/// One expert of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Choice {
    expert: usize,
    weight: f32,
    /// In [`Routes::rows`].
    place: usize,
}

impl Routes {
    fn of(scores: &Matrix, rule: &Experts) -> Self {
        let rows = (0..scores.rows()).into_par_iter().with_min_len(16);
        let mut choices: Vec<Choice> = rows.flat_map_iter(|row| choose(scores.row(row), rule)).collect();
        let mut starts = vec![0; rule.count + 1];
        choices.iter().for_each(|choice| starts[choice.expert + 1] += 1);
        (0..rule.count).for_each(|expert| starts[expert + 1] += starts[expert]);
        let mut next = starts.clone();
        let mut rows = vec![0; choices.len()];
        for (at, choice) in choices.iter_mut().enumerate() {
            choice.place = next[choice.expert];
            next[choice.expert] += 1;
            rows[choice.place] = at / rule.per_row;
        }
        Self { starts, rows, choices }
    }
}

/// The experts of one row, ascending. Of equal scores the lower number is chosen.
fn choose(scores: &[f32], rule: &Experts) -> impl Iterator<Item = Choice> + use<> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let by_score = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
    order.select_nth_unstable_by(rule.per_row - 1, by_score);
    let greatest = scores.iter().fold(f32::NEG_INFINITY, |greatest, score| greatest.max(*score));
    let share = |expert: usize| (scores[expert] - greatest).exp();
    let mut chosen = order[..rule.per_row].to_vec();
    chosen.sort_unstable();
    let total: f32 = match rule.is_normalized {
        // What the softmax is divided by cancels.
        true => chosen.iter().map(|expert| share(*expert)).sum(),
        false => (0..scores.len()).map(share).sum(),
    };
    let choices: Vec<Choice> =
        chosen.iter().map(|expert| Choice { expert: *expert, weight: share(*expert) / total, place: 0 }).collect();
    choices.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(count: usize, per_row: usize, is_normalized: bool) -> Experts {
        Experts { count, per_row, intermediate_size: 1, is_normalized, dense_layers: Vec::new() }
    }

    #[test]
    fn the_greatest_scores_are_chosen_and_weighed_by_the_softmax() {
        let scores = [0.5, 2.0, -1.0, 1.0];
        let total: f64 = scores.iter().map(|score| f64::exp(*score)).sum();
        for is_normalized in [false, true] {
            let scores = scores.map(|score| score as f32);
            let chosen: Vec<Choice> = choose(&scores, &rule(4, 2, is_normalized)).collect();
            assert_eq!(chosen.iter().map(|choice| choice.expert).collect::<Vec<_>>(), [1, 3]);
            let shares = [2.0_f64.exp() / total, 1.0_f64.exp() / total];
            let over = if is_normalized { shares[0] + shares[1] } else { 1.0 };
            for (choice, share) in chosen.iter().zip(shares) {
                assert!((f64::from(choice.weight) - share / over).abs() < 1e-6, "{choice:?}");
            }
        }
        let all: Vec<usize> = choose(&[1.0; 5], &rule(5, 3, true)).map(|choice| choice.expert).collect();
        assert_eq!(all, [0, 1, 2], "of equal ones the first");
    }

    #[test]
    fn scores_that_are_no_numbers_show_and_do_no_harm() {
        for scores in [[f32::NAN, 1.0, 2.0], [f32::INFINITY, f32::INFINITY, 0.0], [f32::NEG_INFINITY; 3]] {
            let chosen: Vec<Choice> = choose(&scores, &rule(3, 2, false)).collect();
            assert!(chosen.len() == 2 && chosen.iter().any(|choice| choice.weight.is_nan()), "{scores:?}: {chosen:?}");
        }
    }

    #[test]
    fn rows_are_grouped_by_expert_and_find_their_places_again() {
        let scores = Matrix::from_vec(4, 3, vec![1., 2., 3., 3., 2., 1., 0., 5., 1., 2., 0., 2.]);
        let routes = Routes::of(&scores, &rule(3, 2, true));
        assert_eq!((routes.starts, routes.rows), (vec![0, 2, 5, 8], vec![1, 3, 0, 1, 2, 0, 2, 3]));
        let places: Vec<[usize; 2]> = routes.choices.chunks(2).map(|pair| [pair[0].place, pair[1].place]).collect();
        assert_eq!(places, [[2, 5], [0, 3], [4, 6], [1, 7]]);
        let none = Routes::of(&Matrix::default(), &rule(3, 2, true));
        assert!(none.rows.is_empty() && none.choices.is_empty() && none.starts == [0; 4]);
    }
}
