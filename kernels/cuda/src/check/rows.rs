//! Embedding, norms, and rows that are gathered.

use super::Check;
use super::compare::Tolerance;
use super::inputs::rounding;
use crate::launch::{self, Element};
use ragstone_kernels::dtype::KvDtype::{self, Bf16, F32};
use ragstone_kernels::error::Result;

pub(super) fn check(check: &mut Check) -> Result<()> {
    for [rows, hidden] in check.shapes(&[[1, 1], [2, 3], [7, 64], [33, 300]], [50, 1000]) {
        for (dtype, learned) in [(F32, false), (F32, true), (Bf16, false), (Bf16, true)] {
            embed(check, dtype, (rows, hidden), learned)?;
        }
    }
    for [rows, width] in check.shapes(&[[1, 1], [2, 5], [7, 64], [3, 255], [2, 1000]], [20, 4000]) {
        for dtype in [F32, Bf16] {
            norms(check, dtype, (rows, width))?;
        }
    }
    for [rows, heads, head_dim] in check.shapes(&[[1, 3, 2], [2, 3, 6], [7, 1, 64], [33, 3, 80]], [20, 8, 256]) {
        head_norm(check, (rows, heads, head_dim))?;
    }
    for [count, pairs, shift] in
        check.shapes(&[[1, 1, 0], [17, 3, 0], [5, 8, 1], [3, 500, 0], [4, 24, 1]], [30, 700, 2])
    {
        gather(check, (count, 2 * pairs), shift as usize)?;
    }
    Ok(())
}

const SCALE: f32 = 1.5;

fn embed(check: &mut Check, dtype: KvDtype, (rows, hidden): (u32, u32), learned: bool) -> Result<()> {
    const VOCABULARY: u32 = 11;
    const SKIPPED: u32 = 2;
    let width = hidden as usize;
    let table = check.random(dtype, VOCABULARY as usize * width, 1.0)?;
    let learned_table = check.random(F32, 9 * width, 1.0)?;
    let tokens: Vec<u32> = (0..rows).map(|_| check.below(VOCABULARY)).collect();
    let positions: Vec<u32> = (0..rows).map(|_| check.below(7)).collect();
    let (tokens_there, positions_there) = (check.session.upload(&tokens)?, check.session.upload(&positions)?);
    let count = rows as usize * width;
    let out = check.room(F32, count)?;
    let launch = launch::embed(
        Element::from(dtype),
        (out.pointer(), table.at, tokens_there.pointer()),
        (positions_there.pointer(), if learned { learned_table.at } else { 0 }, SKIPPED),
        SCALE,
        (rows, hidden),
    );
    check.run(&launch)?;
    let wanted: Vec<f64> = (0..count)
        .map(|i| {
            let (row, column) = (i / width, i % width);
            let position = (positions[row] + SKIPPED) as usize * width + column;
            let added = if learned { learned_table.f64(position) } else { 0.0 };
            table.f64(tokens[row] as usize * width + column) * f64::from(SCALE) + added
        })
        .collect();
    let got = check.read(F32, &out, count)?;
    check.compare(&launch.name, &format!("{rows}x{hidden}"), &got, &wanted, Tolerance::new(1e-6, 1e-6));
    Ok(())
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// Of rows whose mean is far from zero, where a variance by squares would cancel.
fn norms(check: &mut Check, dtype: KvDtype, (rows, width): (u32, u32)) -> Result<()> {
    const EPSILON: f32 = 1e-5;
    let (count, len) = ((rows * width) as usize, width as usize);
    let far: Vec<f32> = check.noise(count, 3.0).into_iter().map(|value| value + 1000.0).collect();
    let (input, weight, bias) = (check.given(F32, far)?, check.random(F32, len, 1.0)?, check.random(F32, len, 1.0)?);
    let (mut rms, mut layer) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for row in input.values.chunks(len) {
        let values = || row.iter().map(|x| f64::from(*x));
        let middle = mean(values());
        let squares = mean(values().map(|x| x * x));
        let variance = mean(values().map(|x| (x - middle) * (x - middle)));
        for (i, x) in values().enumerate() {
            rms.push(x / (squares + f64::from(EPSILON)).sqrt() * weight.f64(i));
            layer.push((x - middle) / (variance + f64::from(EPSILON)).sqrt() * weight.f64(i) + bias.f64(i));
        }
    }
    let (case, element, error) = (format!("{rows}x{width}"), Element::from(dtype), rounding(dtype));
    let out = check.room(dtype, count)?;
    let launch = launch::rms_norm(element, out.pointer(), input.at, weight.at, EPSILON, rows, width);
    check.run(&launch)?;
    let got = check.read(dtype, &out, count)?;
    check.compare(&launch.name, &case, &got, &rms, Tolerance::new(error + 1e-5, 1e-5));

    let out = check.room(dtype, count)?;
    let weights = (weight.at, bias.at);
    let launch = launch::layer_norm(element, out.pointer(), input.at, weights, EPSILON, (rows, width));
    check.run(&launch)?;
    let got = check.read(dtype, &out, count)?;
    // A mean near 1000 has an error of 1000 / 2^24, which a small deviation makes greater.
    let absolute = if width < 8 { 0.5 } else { 1e-3 };
    check.compare(&launch.name, &case, &got, &layer, Tolerance::new(error + 1e-4, absolute));
    Ok(())
}

fn head_norm(check: &mut Check, (rows, heads, head_dim): (u32, u32, u32)) -> Result<()> {
    const EPSILON: f32 = 1e-6;
    let (count, len) = ((rows * heads * head_dim) as usize, head_dim as usize);
    let (values, weight) = (check.random(F32, count, 1.0)?, check.random(F32, len, 1.0)?);
    let mut wanted = Vec::with_capacity(count);
    for head in values.values.chunks(len) {
        let squares = mean(head.iter().map(|x| f64::from(*x) * f64::from(*x)));
        let share = (squares + f64::from(EPSILON)).sqrt();
        wanted.extend(head.iter().enumerate().map(|(i, x)| f64::from(*x) / share * weight.f64(i)));
    }
    let launch = launch::head_norm(values.at, weight.at, EPSILON, rows, heads, head_dim);
    check.run(&launch)?;
    let got = check.read(F32, values.buffer(), count)?;
    let case = format!("{rows} rows of {heads} heads of {head_dim}");
    check.compare(&launch.name, &case, &got, &wanted, Tolerance::new(1e-5, 1e-6));
    Ok(())
}

/// `shift` pairs of bytes before the rows: an address that is not aligned to 16 bytes.
fn gather(check: &mut Check, (count, row_bytes): (u32, u32), shift: usize) -> Result<()> {
    const ROWS: u32 = 13;
    let (bytes, shift) = (row_bytes as usize, 2 * shift);
    let mut from = vec![0; shift + ROWS as usize * bytes];
    check.random.fill(&mut from);
    let rows: Vec<u32> = (0..count).map(|_| check.below(ROWS)).collect();
    let (there, list) = (check.session.upload(&from)?, check.session.upload(&rows)?);
    let out = check.session.upload(&vec![0_u8; count as usize * bytes])?;
    let from_there = there.pointer() + shift as u64;
    let launch = launch::gather_rows(out.pointer(), from_there, list.pointer(), count, row_bytes);
    check.run(&launch)?;
    let wanted: Vec<u8> =
        rows.iter().flat_map(|row| &from[shift + *row as usize * bytes..][..bytes]).copied().collect();
    let got = check.session.download(out.pointer(), wanted.len())?;
    check.compare_bytes(&launch.name, &format!("{count} rows of {row_bytes} bytes"), &got, &wanted);
    Ok(())
}
