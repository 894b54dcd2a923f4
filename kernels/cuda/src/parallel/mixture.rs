//! A mixture of experts over all ranks: each has a share of every expert's outputs, and routes rows by all scores.

use super::layer::{AllSteps, OF_FEED_FORWARD, count};
use super::ranks::Slice;
use crate::launch::Element;
use crate::layer::{Hidden, Steps};
use crate::session::Buffer;
use crate::weights::{DeviceFeedForward, DevicePart, Matrix};
use ragstone_kernels::error::{Error, Result};

impl AllSteps<'_> {
    /// Adds what the experts make of rows.
    pub(super) fn mixture(&self, layer: usize, hidden: &[Hidden]) -> Result<()> {
        let (rows, width) = (count(hidden), self.config.hidden_size);
        let rule = self.config.experts_of(layer);
        let rule = rule.ok_or_else(|| Error::internal("a layer has experts that its model has not"))?;
        let normed = self.each(|rank, steps| steps.norm(&steps.layer(layer).post_norm, hidden[rank], Element::F32))?;
        let scores = self.each(|rank, steps| {
            let router = router(steps, layer)?;
            let buffer = steps.product(router, &normed[rank], rows)?;
            Ok(Slice { buffer, width: router.outputs * Element::F32.size_in_bytes() })
        })?;
        let scores = self.on.all_gather(scores, rows)?;
        let routes = self.each(|rank, steps| steps.routes(rule, &scores[rank], rows, &experts(steps, layer).up))?;
        let factors = |(normed, steps): (Buffer, &Steps<'_>)| {
            steps.factors(normed, experts(steps, layer).up.element, rows * width)
        };
        let x = normed.into_iter().zip(&self.steps).map(factors).collect::<Result<Vec<_>>>()?;
        let inner = self.each(|rank, steps| {
            let all = experts(steps, layer);
            let (buffer, width) = steps.expand(all, &x[rank], &routes[rank])?;
            Ok(Slice { buffer, width: width * all.down.element.size_in_bytes() })
        })?;
        let inner = self.on.all_gather(inner, rows * rule.per_row)?;
        let sum = self.each(|rank, steps| {
            let (buffer, width) = steps.contract(experts(steps, layer), &inner[rank], &routes[rank])?;
            Ok(Slice { buffer, width: width * Element::F32.size_in_bytes() })
        })?;
        self.add_rows(layer, sum, OF_FEED_FORWARD, hidden)
    }
}

/// This rank's share of a layer's experts.
fn experts<'a>(steps: &Steps<'a>, layer: usize) -> &'a DevicePart {
    steps.on.weights.layers[layer].feed_forward.part()
}

/// What scores a layer's experts.
fn router<'a>(steps: &Steps<'a>, layer: usize) -> Result<&'a Matrix> {
    match &steps.on.weights.layers[layer].feed_forward {
        DeviceFeedForward::Experts { router, .. } => Ok(router),
        DeviceFeedForward::One(_) => Err(Error::internal("a layer has no experts that its model has")),
    }
}
