//! A mixture of experts on the device: rows find their experts and their way back without the host. What it computes, and why a row's bits
//! do not depend on the others, is said where the CPU does it (`cpu/model/feed_forward.rs`).

use super::launch::experts::{self as launch, Groups, Mix};
use super::launch::quantized::expert_gemm_q8;
use super::launch::{Element, ProductTile};
use super::layer::Steps;
use super::session::Buffer;
use super::weights::{DevicePart, Matrix};
use ragstone_kernels::config::Experts;
use ragstone_kernels::error::Result;

/// Which rows go through which experts, in device memory.
pub(super) struct Routes {
    mix: Mix,
    tile: ProductTile,
    /// `[rows, per_row]`
    weights: Buffer,
    counts: Buffer,
    starts: Buffer,
    tile_starts: Buffer,
    rows: Buffer,
    places: Buffer,
}

impl Routes {
    fn groups(&self) -> Groups {
        let [counts, starts, tile_starts] = [&self.counts, &self.starts, &self.tile_starts].map(Buffer::pointer);
        Groups { counts, starts, tile_starts, rows: self.rows.pointer(), places: self.places.pointer() }
    }
}

impl Steps<'_> {
    /// What the experts make of normed rows on their way in: of each choice, by place, `[choices, width]` in the type that the way out takes. And
    /// the width: this device's share of the values between the two.
    pub(super) fn expand(&self, all: &DevicePart, x: &Buffer, routes: &Routes) -> Result<(Buffer, usize)> {
        let up = self.expert_product(&all.up, (x, routes.rows.pointer()), routes)?;
        let width = self.inner_width(all.up.outputs / routes.mix.experts as usize);
        let inner = self.activated(&up, all.down.element, routes.mix.choices() as usize, width)?;
        Ok((inner, width))
    }

    /// Each row's sum of what its experts make of that, f32 `[rows, width]`. And the width: this device's share of a row.
    pub(super) fn contract(&self, all: &DevicePart, inner: &Buffer, routes: &Routes) -> Result<(Buffer, usize)> {
        let out = self.expert_product(&all.down, (inner, 0), routes)?;
        let width = all.down.outputs / routes.mix.experts as usize;
        let sum = self.values(Element::F32, routes.mix.rows as usize, width)?;
        let (to, from, places) = (sum.pointer(), out.pointer(), routes.places.pointer());
        let combine = launch::combine_experts(to, from, routes.weights.pointer(), places, routes.mix, width as u32);
        self.on.session.launch(&combine)?;
        Ok((sum, width))
    }

    /// Of scores `[rows, experts]`; for products with such matrices.
    pub(super) fn routes(&self, rule: &Experts, scores: &Buffer, rows: usize, all: &Matrix) -> Result<Routes> {
        let mix = Mix { rows: rows as u32, experts: rule.count as u32, per_row: rule.per_row as u32 };
        let list = |len: usize| self.on.session.allocate(4 * len);
        let choices = rows * rule.per_row;
        let chosen = list(choices)?;
        let routes = Routes {
            mix,
            tile: if all.q8().is_some() { mix.tile_q8() } else { mix.tile(all.element) },
            weights: list(choices)?,
            counts: list(rule.count)?,
            starts: list(rule.count + 1)?,
            tile_starts: list(rule.count + 1)?,
            rows: list(choices)?,
            places: list(choices)?,
        };
        let to = (chosen.pointer(), routes.weights.pointer());
        self.on.session.launch(&launch::route(to, scores.pointer(), mix, rule.is_normalized))?;
        self.on.session.run(&launch::group_choices(routes.groups(), chosen.pointer(), mix, routes.tile))?;
        Ok(routes)
    }

    /// Each expert's product, by place: f32 `[choices, outputs]`. `list` says which row of `x` is at a place, unless it is null.
    fn expert_product(&self, all: &Matrix, (x, list): (&Buffer, u64), routes: &Routes) -> Result<Buffer> {
        let outputs = all.outputs / routes.mix.experts as usize;
        let out = self.values(Element::F32, routes.mix.choices() as usize, outputs)?;
        let bias = all.bias.as_ref().map_or(0, Buffer::pointer);
        let (tile, groups, mix) = (routes.tile, routes.groups(), routes.mix);
        let shape = (outputs as u32, all.inputs as u32);
        let places = (out.pointer(), x.pointer(), list);
        self.on.session.launch(&match all.q8() {
            Some(weights) => expert_gemm_q8(tile, places, (weights, bias), groups, mix, shape),
            None => launch::expert_gemm(tile, places, (all.weights.pointer(), bias), groups, mix, shape),
        })?;
        Ok(out)
    }
}
