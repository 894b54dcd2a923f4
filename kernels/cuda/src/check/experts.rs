//! Mixtures of experts: which experts rows go through, rows by expert, each expert's products, and the sums of what comes out. What a kernel
//! reads is made by the host, so that one that is wrong spoils no other.

use super::Check;
use super::compare::Tolerance;
use super::inputs::Input;
use crate::launch::experts::{self, Groups, Mix};
use crate::launch::{self, Element};
use crate::session::Buffer;
use ragstone_kernels::dtype::KvDtype::{self, Bf16, F32};
use ragstone_kernels::error::Result;

pub(super) fn check(check: &mut Check) -> Result<()> {
    // Rows, experts, experts of a row, outputs, inputs: as many rows an expert as each tile is for, and experts without rows.
    let fixed = [
        [1, 1, 1, 5, 8],
        [3, 4, 2, 33, 16],
        [9, 64, 8, 17, 33],
        [20, 8, 2, 40, 72],
        [60, 4, 2, 65, 40],
        [130, 5, 3, 66, 64],
    ];
    let mut shapes = check.shapes(&fixed, [150, 40, 8, 150, 400]);
    if check.options.large {
        shapes.push([300, 16, 4, 768, 2048]);
    }
    for [rows, experts, per_row, outputs, inputs] in shapes {
        let mix = Mix { rows, experts, per_row: per_row.min(experts) };
        let chosen = route(check, mix)?;
        combine(check, mix, outputs)?;
        for dtype in [F32, Bf16] {
            let grouped = Grouped::of(mix, &chosen, mix.tile(Element::from(dtype)).rows);
            group(check, mix, dtype, &chosen, &grouped)?;
            for (by_list, has_bias) in [(true, false), (false, true)] {
                product(check, (mix, dtype), (outputs, inputs), &grouped, (by_list, has_bias))?;
            }
        }
    }
    Ok(())
}

fn named(mix: Mix) -> String {
    format!("{} rows, {} of {} experts", mix.rows, mix.per_row, mix.experts)
}

impl Check {
    pub(super) fn list(&self, values: &[u32]) -> Result<Buffer> {
        self.session.upload(values)
    }

    /// Room for numbers: none that is right, so that what is not written is seen.
    fn list_room(&self, count: usize) -> Result<Buffer> {
        self.list(&vec![u32::MAX; count])
    }

    fn compare_list(&mut self, kernel: &str, case: &str, got: &Buffer, wanted: &[u32]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(wanted);
        let got = self.session.download(got.pointer(), bytes.len())?;
        self.compare_bytes(kernel, case, &got, bytes);
        Ok(())
    }
}

/// Scores of which many are equal, and some experts are liked by most rows. Returns whom the rows choose.
fn route(check: &mut Check, mix: Mix) -> Result<Vec<u32>> {
    let (experts, per_row) = (mix.experts as usize, mix.per_row as usize);
    let mut scores = check.noise(mix.rows as usize * experts, 2.0);
    for (at, score) in scores.iter_mut().enumerate() {
        let liked = if at % experts == experts / 2 { 1.5 } else { 0.0 };
        *score = (*score * 4.0).round() / 4.0 + liked;
    }
    let input = check.given(F32, scores)?;
    let mut all = Vec::new();
    for is_normalized in [false, true] {
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        for scores in input.values.chunks(experts) {
            let mut order: Vec<usize> = (0..experts).collect();
            // Stable: of equal ones the lower numbers come first.
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let mut taken = order[..per_row].to_vec();
            taken.sort_unstable();
            let greatest = f64::from(scores[order[0]]);
            let share = |expert: &usize| (f64::from(scores[*expert]) - greatest).exp();
            let shared = if is_normalized { &taken } else { &order };
            let total: f64 = shared.iter().map(share).sum();
            weights.extend(taken.iter().map(|expert| share(expert) / total));
            chosen.extend(taken.iter().map(|expert| *expert as u32));
        }
        let (chosen_there, out) = (check.list_room(chosen.len())?, check.room(F32, weights.len())?);
        let launch = experts::route((chosen_there.pointer(), out.pointer()), input.at, mix, is_normalized);
        check.run(&launch)?;
        check.compare_list(&launch.name, &format!("experts of {}", named(mix)), &chosen_there, &chosen)?;
        let got = check.read(F32, &out, weights.len())?;
        check.compare(&launch.name, &format!("weights of {}", named(mix)), &got, &weights, Tolerance::new(1e-5, 1e-6));
        all = chosen;
    }
    Ok(all)
}

/// Choices by expert, by definition.
pub(super) struct Grouped {
    counts: Vec<u32>,
    pub(super) starts: Vec<u32>,
    pub(super) tile_starts: Vec<u32>,
    /// Of each place.
    pub(super) rows: Vec<u32>,
    /// Of each choice.
    places: Vec<u32>,
    /// Of each place.
    pub(super) experts: Vec<u32>,
}

impl Grouped {
    pub(super) fn of(mix: Mix, chosen: &[u32], tile_rows: u32) -> Self {
        let mut grouped = Self {
            counts: Vec::new(),
            starts: vec![0],
            tile_starts: vec![0],
            rows: Vec::new(),
            places: vec![0; chosen.len()],
            experts: Vec::new(),
        };
        for expert in 0..mix.experts {
            for (choice, _) in chosen.iter().enumerate().filter(|(_, of)| **of == expert) {
                grouped.places[choice] = grouped.rows.len() as u32;
                grouped.rows.push(choice as u32 / mix.per_row);
                grouped.experts.push(expert);
            }
            let start = grouped.starts[expert as usize];
            let count = grouped.rows.len() as u32 - start;
            grouped.counts.push(count);
            grouped.starts.push(start + count);
            grouped.tile_starts.push(grouped.tile_starts[expert as usize] + count.div_ceil(tile_rows));
        }
        grouped
    }
}

fn group(check: &mut Check, mix: Mix, dtype: KvDtype, chosen: &[u32], wanted: &Grouped) -> Result<()> {
    let (experts, choices) = (mix.experts as usize, mix.choices() as usize);
    let (counted, given) = (check.list_room(experts)?, check.list(&wanted.counts)?);
    let (starts, tile_starts) = (check.list_room(experts + 1)?, check.list_room(experts + 1)?);
    let (rows, places, chosen) = (check.list_room(choices)?, check.list_room(choices)?, check.list(chosen)?);
    let to = |counts: &Buffer| Groups {
        counts: counts.pointer(),
        starts: starts.pointer(),
        tile_starts: tile_starts.pointer(),
        rows: rows.pointer(),
        places: places.pointer(),
    };
    let (tile, case) = (mix.tile(Element::from(dtype)), named(mix));
    let [counting, _] = experts::group_choices(to(&counted), chosen.pointer(), mix, tile);
    check.run(&counting)?;
    check.compare_list(&counting.name, &case, &counted, &wanted.counts)?;
    let [_, grouping] = experts::group_choices(to(&given), chosen.pointer(), mix, tile);
    check.run(&grouping)?;
    for (what, got, wanted) in [
        ("starts", &starts, &wanted.starts),
        ("tile_starts", &tile_starts, &wanted.tile_starts),
        ("rows", &rows, &wanted.rows),
        ("places", &places, &wanted.places),
    ] {
        check.compare_list(&grouping.name, &format!("{what} of {case}"), got, wanted)?;
    }
    Ok(())
}

/// With a list, places have rows of `x`; without one, `x` is by place.
fn product(
    check: &mut Check,
    (mix, dtype): (Mix, KvDtype),
    (outputs, inputs): (u32, u32),
    grouped: &Grouped,
    (by_list, has_bias): (bool, bool),
) -> Result<()> {
    let (choices, experts, width, len) =
        (mix.choices() as usize, mix.experts as usize, outputs as usize, inputs as usize);
    let x = check.random(dtype, if by_list { mix.rows as usize } else { choices } * len, 1.0)?;
    let (w, bias) = (check.random(dtype, experts * width * len, 1.0)?, check.random(F32, experts * width, 1.0)?);
    let (starts, tile_starts) = (check.list(&grouped.starts)?, check.list(&grouped.tile_starts)?);
    let (rows, out) = (check.list(&grouped.rows)?, check.room(F32, choices * width)?);
    // The product reads no other table.
    let groups = Groups { counts: 0, starts: starts.pointer(), tile_starts: tile_starts.pointer(), rows: 0, places: 0 };
    let launch = experts::expert_gemm(
        mix.tile(Element::from(dtype)),
        (out.pointer(), x.at, if by_list { rows.pointer() } else { 0 }),
        (w.at, if has_bias { bias.at } else { 0 }),
        groups,
        mix,
        (outputs, inputs),
    );
    check.run(&launch)?;
    let got = check.read(F32, &out, choices * width)?;
    let row_of = |place: usize| if by_list { grouped.rows[place] as usize } else { place };
    let value = |at: &usize| {
        let (place, output) = (at / width, at % width);
        let matrix_row = grouped.experts[place] as usize * width + output;
        let pairs = x.values[row_of(place) * len..][..len].iter().zip(&w.values[matrix_row * len..][..len]);
        let bias = if has_bias { bias.f64(matrix_row) } else { 0.0 };
        bias + pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>()
    };
    let at = check.some_of(choices * width);
    let wanted: Vec<f64> = at.iter().map(value).collect();
    let compared: Vec<f32> = at.iter().map(|at| got[*at]).collect();
    let case = format!("{}, {outputs}x{inputs}", named(mix));
    // As of plain products.
    let each = if dtype == F32 { 1e-6 } else { 2e-6 };
    let tolerance = Tolerance::new(1e-5, each * f64::from(inputs) + 1e-5);
    check.compare(&launch.name, &case, &compared, &wanted, tolerance);
    let bias = has_bias.then_some(&bias);
    as_plain_product(check, dtype, (outputs, inputs), grouped, (&x, &w, bias), &row_of, (&case, &got))
}

/// The rows of the first expert that has some, once more as a plain product.
fn as_plain_product(
    check: &mut Check,
    dtype: KvDtype,
    (outputs, inputs): (u32, u32),
    grouped: &Grouped,
    (x, w, bias): (&Input, &Input, Option<&Input>),
    row_of: &dyn Fn(usize) -> usize,
    (case, got): (&str, &[f32]),
) -> Result<()> {
    let Some(expert) = grouped.counts.iter().position(|count| *count > 0) else { return Ok(()) };
    let (first, count) = (grouped.starts[expert] as usize, grouped.counts[expert]);
    let (len, width) = (inputs as usize, outputs as usize);
    let rows: Vec<f32> =
        (first..first + count as usize).flat_map(|place| &x.values[row_of(place) * len..][..len]).copied().collect();
    let (x, out) = (check.given(dtype, rows)?, check.room(F32, count as usize * width)?);
    let w = w.at + (expert * width * len * dtype.size_in_bytes()) as u64;
    let bias = bias.map_or(0, |bias| bias.at + (4 * expert * width) as u64);
    let places = (out.pointer(), x.at, w, bias);
    check.run(&launch::gemm(Element::from(dtype), places, (count, outputs, inputs), false))?;
    let plain = check.read(F32, &out, count as usize * width)?;
    let what = format!("products of {dtype}: an expert's rows and a plain product's");
    check.same_bits(&what, case, &got[first * width..][..count as usize * width], &plain);
    Ok(())
}

fn combine(check: &mut Check, mix: Mix, width: u32) -> Result<()> {
    let (choices, len, per_row) = (mix.choices() as usize, width as usize, mix.per_row as usize);
    let (input, weights) = (check.random(F32, choices * len, 1.0)?, check.random(F32, choices, 1.0)?);
    let places = check.shuffled(mix.choices());
    let (places_there, count) = (check.list(&places)?, mix.rows as usize * len);
    let out = check.room(F32, count)?;
    let launch = experts::combine_experts(out.pointer(), input.at, weights.at, places_there.pointer(), mix, width);
    check.run(&launch)?;
    let value = |i: usize| {
        let choices = i / len * per_row..(i / len + 1) * per_row;
        choices.map(|choice| weights.f64(choice) * input.f64(places[choice] as usize * len + i % len)).sum::<f64>()
    };
    let wanted: Vec<f64> = (0..count).map(value).collect();
    let got = check.read(F32, &out, count)?;
    check.compare(&launch.name, &format!("{}, width {width}", named(mix)), &got, &wanted, Tolerance::new(1e-5, 1e-5));
    Ok(())
}
