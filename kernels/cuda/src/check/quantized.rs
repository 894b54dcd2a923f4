//! Weights of 8 bits: products near the exact sums and with the bits that bf16 gives for the same integers, those of experts, and embeddings.

use super::Check;
use super::compare::Tolerance;
use super::experts::Grouped;
use super::inputs::Input;
use super::products::{self, Shape};
use crate::launch::experts::{Groups, Mix};
use crate::launch::quantized::{Q8, embed_q8, expert_gemm_q8, gemm_q8};
use crate::launch::{self, Element};
use crate::quantized::{Quantized, line_bytes};
use crate::session::Buffer;
use ragstone_kernels::dtype::KvDtype::{Bf16, F32};
use ragstone_kernels::error::Result;
use ragstone_kernels::linear::Weights;

pub(super) fn check(check: &mut Check) -> Result<()> {
    products::shapes(check).into_iter().try_for_each(|shape| product(check, shape))?;
    let mixes = [[1, 1, 1, 5, 8], [3, 4, 2, 33, 16], [9, 64, 8, 17, 33], [60, 4, 2, 65, 40], [130, 5, 3, 66, 64]];
    for [rows, experts, per_row, outputs, inputs] in check.shapes(&mixes, [150, 40, 8, 150, 400]) {
        let mix = Mix { rows, experts, per_row: per_row.min(experts) };
        for (by_list, has_bias) in [(true, false), (false, true)] {
            of_experts(check, mix, (outputs, inputs), (by_list, has_bias))?;
        }
    }
    for [rows, hidden] in check.shapes(&[[1, 1], [2, 3], [7, 64], [33, 300]], [50, 1000]) {
        [false, true].into_iter().try_for_each(|learned| embed(check, (rows, hidden), learned))?;
    }
    Ok(())
}

/// As of other products.
fn tolerance(inputs: u32) -> Tolerance {
    Tolerance::new(1e-5, 2e-6 * f64::from(inputs) + 1e-5)
}

/// A matrix on both sides.
struct Matrix {
    host: Quantized,
    lines: Buffer,
    scales: Buffer,
    inputs: usize,
}

impl Matrix {
    fn random(check: &mut Check, outputs: usize, inputs: usize) -> Result<Self> {
        let values = check.noise(outputs * inputs, 1.0);
        let host = Quantized::of(&[Weights::F32(&values)], inputs);
        let (lines, scales) = (check.session.upload(&host.lines)?, check.session.upload(&host.scales)?);
        Ok(Self { host, lines, scales, inputs })
    }

    /// From an output on.
    fn at(&self, output: usize) -> Q8 {
        let lines = self.lines.pointer() + (output * line_bytes(self.inputs)) as u64;
        Q8 { lines, scales: self.scales.pointer() + 4 * output as u64 }
    }

    fn f64(&self, output: usize, input: usize) -> f64 {
        f64::from(self.host.quant(output, input, self.inputs)) * f64::from(self.host.scales[output])
    }

    /// The product of an output's weights and a row.
    fn sum(&self, output: usize, row: &[f32]) -> f64 {
        row.iter().enumerate().map(|(input, x)| f64::from(*x) * self.f64(output, input)).sum()
    }
}

fn product(check: &mut Check, of: Shape) -> Result<()> {
    let (rows, outputs, inputs) = (of.rows as usize, of.outputs as usize, of.inputs as usize);
    let x = check.shifted(Bf16, rows * inputs, 1.0, of.shift as usize)?;
    let (w, bias) = (Matrix::random(check, outputs, inputs)?, check.random(F32, outputs, 1.0)?);
    let before = check.noise(rows * outputs, 1.0);
    let launch = |first: u32, rows: u32, out: u64| {
        let x = x.at + 2 * u64::from(first) * u64::from(of.inputs);
        gemm_q8((out, x, if of.has_bias { bias.at } else { 0 }), w.at(0), (rows, of.outputs, of.inputs), of.adds)
    };
    let out = check.given(F32, before.clone())?;
    let whole = launch(0, of.rows, out.at);
    check.run(&whole)?;
    let got = check.read(F32, out.buffer(), rows * outputs)?;
    let places = check.some_of(rows * outputs);
    let value = |at: &usize| {
        let (row, output) = (at / outputs, at % outputs);
        let there = if of.adds { f64::from(before[*at]) } else { 0.0 };
        let bias = if of.has_bias { bias.f64(output) } else { 0.0 };
        there + bias + w.sum(output, &x.values[row * inputs..][..inputs])
    };
    let wanted: Vec<f64> = places.iter().map(value).collect();
    let compared: Vec<f32> = places.iter().map(|at| got[*at]).collect();
    let case = format!("{rows}x{outputs}x{inputs}");
    check.compare(&whole.name, &case, &compared, &wanted, tolerance(of.inputs));

    // Of each tile that has fewer rows, the last ones.
    for few in [1, 16, 17, 64].into_iter().filter(|few| *few < of.rows) {
        let first = (of.rows - few) as usize * outputs;
        let out = check.given(F32, before[first..].to_vec())?;
        check.run(&launch(of.rows - few, few, out.at))?;
        let alone = check.read(F32, out.buffer(), few as usize * outputs)?;
        let case = format!("{few} of {case}");
        check.same_bits("products of q8: rows alone and beside others", &case, &alone, &got[first..]);
    }
    as_bf16(check, (&x, &w), of, &case)
}

/// Without scales: the same sums, in the same order.
fn as_bf16(check: &mut Check, (x, w): (&Input, &Matrix), of: Shape, case: &str) -> Result<()> {
    let (outputs, inputs) = (of.outputs as usize, of.inputs as usize);
    let count = of.rows as usize * outputs;
    let integers = |output| (0..inputs).map(move |input| w.host.quant(output, input, inputs));
    let wide = check.given(Bf16, (0..outputs).flat_map(integers).collect())?;
    let ones = check.given(F32, vec![1.0; outputs])?;
    let (ours, theirs) = (check.room(F32, count)?, check.room(F32, count)?);
    let shape = (of.rows, of.outputs, of.inputs);
    let narrow = Q8 { lines: w.lines.pointer(), scales: ones.at };
    check.run(&gemm_q8((ours.pointer(), x.at, 0), narrow, shape, false))?;
    check.run(&launch::gemm(Element::Bf16, (theirs.pointer(), x.at, wide.at, 0), shape, false))?;
    let (ours, theirs) = (check.read(F32, &ours, count)?, check.read(F32, &theirs, count)?);
    check.same_bits("products of q8 and of the same integers in bf16", case, &ours, &theirs);
    Ok(())
}

/// With a list, places have rows of `x`; without one, `x` is by place.
fn of_experts(
    check: &mut Check,
    mix: Mix,
    (outputs, inputs): (u32, u32),
    (by_list, has_bias): (bool, bool),
) -> Result<()> {
    let (choices, width, len) = (mix.choices() as usize, outputs as usize, inputs as usize);
    let tile = mix.tile_q8();
    let chosen: Vec<u32> =
        (0..mix.rows).flat_map(|row| (0..mix.per_row).map(move |at| (row + at) % mix.experts)).collect();
    let grouped = Grouped::of(mix, &chosen, tile.rows);
    let x = check.random(Bf16, if by_list { mix.rows as usize } else { choices } * len, 1.0)?;
    let w = Matrix::random(check, mix.experts as usize * width, len)?;
    let bias = check.random(F32, mix.experts as usize * width, 1.0)?;
    let [starts, tile_starts, rows] =
        [&grouped.starts, &grouped.tile_starts, &grouped.rows].map(|list| check.list(list));
    let (starts, tile_starts, rows, out) = (starts?, tile_starts?, rows?, check.room(F32, choices * width)?);
    // The product reads no other table.
    let groups = Groups { counts: 0, starts: starts.pointer(), tile_starts: tile_starts.pointer(), rows: 0, places: 0 };
    let places = (out.pointer(), x.at, if by_list { rows.pointer() } else { 0 });
    let weights = (w.at(0), if has_bias { bias.at } else { 0 });
    let launch = expert_gemm_q8(tile, places, weights, groups, mix, (outputs, inputs));
    check.run(&launch)?;
    let got = check.read(F32, &out, choices * width)?;
    let row_of = |place: usize| if by_list { grouped.rows[place] as usize } else { place };
    let value = |at: &usize| {
        let (place, matrix_row) = (at / width, grouped.experts[at / width] as usize * width + at % width);
        let bias = if has_bias { bias.f64(matrix_row) } else { 0.0 };
        bias + w.sum(matrix_row, &x.values[row_of(place) * len..][..len])
    };
    let at = check.some_of(choices * width);
    let wanted: Vec<f64> = at.iter().map(value).collect();
    let compared: Vec<f32> = at.iter().map(|at| got[*at]).collect();
    let case = format!("{} rows, {} of {} experts, {outputs}x{inputs}", mix.rows, mix.per_row, mix.experts);
    check.compare(&launch.name, &case, &compared, &wanted, tolerance(inputs));

    // The first place once more, as a plain product.
    let (expert, alone) = (grouped.experts[0] as usize, check.room(F32, width)?);
    let bias = if has_bias { bias.at + (4 * expert * width) as u64 } else { 0 };
    let row = x.at + (2 * row_of(0) * len) as u64;
    check.run(&gemm_q8((alone.pointer(), row, bias), w.at(expert * width), (1, outputs, inputs), false))?;
    let plain = check.read(F32, &alone, width)?;
    check.same_bits("products of q8: an expert's row and a plain product's", &case, &got[..width], &plain);
    Ok(())
}

fn embed(check: &mut Check, (rows, hidden): (u32, u32), learned: bool) -> Result<()> {
    const VOCABULARY: u32 = 11;
    const SKIPPED: u32 = 2;
    const SCALE: f32 = 1.5;
    let width = hidden as usize;
    let table = Matrix::random(check, VOCABULARY as usize, width)?;
    let learned_table = check.random(F32, 9 * width, 1.0)?;
    let tokens: Vec<u32> = (0..rows).map(|_| check.below(VOCABULARY)).collect();
    let positions: Vec<u32> = (0..rows).map(|_| check.below(7)).collect();
    let (tokens_there, positions_there) = (check.list(&tokens)?, check.list(&positions)?);
    let count = rows as usize * width;
    let out = check.room(F32, count)?;
    let launch = embed_q8(
        (out.pointer(), table.at(0), tokens_there.pointer()),
        (positions_there.pointer(), if learned { learned_table.at } else { 0 }, SKIPPED),
        SCALE,
        (rows, hidden),
    );
    check.run(&launch)?;
    let value = |i: usize| {
        let (row, column) = (i / width, i % width);
        let position = (positions[row] + SKIPPED) as usize * width + column;
        let added = if learned { learned_table.f64(position) } else { 0.0 };
        table.f64(tokens[row] as usize, column) * f64::from(SCALE) + added
    };
    let wanted: Vec<f64> = (0..count).map(value).collect();
    let got = check.read(F32, &out, count)?;
    check.compare(&launch.name, &format!("{rows}x{hidden}"), &got, &wanted, Tolerance::new(1e-6, 1e-6));
    Ok(())
}
