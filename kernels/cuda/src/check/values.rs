//! Kernels that work value by value: activations, conversions, sums.

use super::Check;
use super::compare::Tolerance;
use super::inputs::rounding;
use crate::launch::{self, Element};
use ragstone_kernels::activation::Activation;
use ragstone_kernels::dtype::KvDtype::{self, Bf16, F16, F32};
use ragstone_kernels::error::Result;

pub(super) fn check(check: &mut Check) -> Result<()> {
    for [rows, width] in check.shapes(&[[1, 1], [3, 7], [17, 255], [2, 300]], [40, 700]) {
        for dtype in [F32, Bf16] {
            gated(check, Activation::Silu, dtype, (rows, width))?;
            gated(check, Activation::Gelu, dtype, (rows, width))?;
        }
    }
    for [count] in check.shapes(&[[1], [255], [256], [1001]], [5000]) {
        for dtype in [F32, Bf16] {
            activate(check, false, dtype, count)?;
            activate(check, true, dtype, count)?;
        }
        sums(check, count)?;
    }
    [F32, F16, Bf16].into_iter().try_for_each(|dtype| convert(check, dtype))
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
}

/// Random values, and those where something might overflow.
fn with_extremes(check: &mut Check, count: usize) -> Vec<f32> {
    let mut values = check.noise(count, 4.0);
    let extremes = [0.0, -0.0, 100.0, -100.0, 1e-30, -1e4, 1e4];
    values.iter_mut().zip(extremes).for_each(|(value, extreme)| *value = extreme);
    values
}

/// e^100 is not a number of f32: what is smaller than 1e-30 may be zero.
fn tolerance(dtype: KvDtype) -> Tolerance {
    Tolerance::new(rounding(dtype) + 2e-5, 1e-6)
}

fn gated(check: &mut Check, activation: Activation, dtype: KvDtype, (rows, width): (u32, u32)) -> Result<()> {
    let count = (rows * width) as usize;
    let values = with_extremes(check, 2 * count);
    let (input, out) = (check.given(F32, values)?, check.room(dtype, count)?);
    let launch = launch::gated(activation, Element::from(dtype), out.pointer(), input.at, rows, width);
    check.run(&launch)?;
    let act = if activation == Activation::Silu { silu } else { gelu };
    let width = width as usize;
    let wanted: Vec<f64> = (0..count)
        .map(|i| {
            let gate = i / width * 2 * width + i % width;
            act(input.f64(gate)) * input.f64(gate + width)
        })
        .collect();
    let got = check.read(dtype, &out, count)?;
    check.compare(&launch.name, &format!("{rows}x{width}"), &got, &wanted, tolerance(dtype));
    Ok(())
}

fn activate(check: &mut Check, is_relu: bool, dtype: KvDtype, count: u32) -> Result<()> {
    let values = with_extremes(check, count as usize);
    let (input, out) = (check.given(F32, values)?, check.room(dtype, count as usize)?);
    let launch = launch::activate(is_relu, Element::from(dtype), out.pointer(), input.at, count.into());
    check.run(&launch)?;
    let act = |x: &f32| if is_relu { f64::from(x.max(0.0)) } else { gelu(f64::from(*x)) };
    let wanted: Vec<f64> = input.values.iter().map(act).collect();
    let got = check.read(dtype, &out, count as usize)?;
    check.compare(&launch.name, &format!("{count} values"), &got, &wanted, tolerance(dtype));
    Ok(())
}

fn sums(check: &mut Check, count: u32) -> Result<()> {
    let (case, len) = (format!("{count} values"), count as usize);
    let (to, from) = (check.random(F32, len, 1.0)?, check.random(F32, len, 1.0)?);
    let launch = launch::add_scaled(to.at, from.at, 0.3, count.into());
    check.run(&launch)?;
    let wanted: Vec<f64> = (0..len).map(|i| to.f64(i) + f64::from(0.3_f32) * from.f64(i)).collect();
    let got = check.read(F32, to.buffer(), len)?;
    check.compare(&launch.name, &case, &got, &wanted, Tolerance::new(1e-6, 1e-6));

    let launch = launch::scale_values(from.at, 0.3, count.into());
    check.run(&launch)?;
    let wanted: Vec<f64> = (0..len).map(|i| f64::from(0.3_f32) * from.f64(i)).collect();
    let got = check.read(F32, from.buffer(), len)?;
    check.compare(&launch.name, &case, &got, &wanted, Tolerance::new(1e-6, 0.0));
    Ok(())
}

/// Also ties between two neighbours of each type, what is just beside them, and what is beyond f16: bit for bit as the processor rounds.
fn convert(check: &mut Check, dtype: KvDtype) -> Result<()> {
    let mut values = check.noise(4000, 10.0);
    for exponent in -30..17 {
        let step = |power: i32| 2.0_f32.powi(power);
        for fraction in [1.0, 1.0 + step(-8), 1.0 + 3.0 * step(-8), 1.0 + step(-11), 1.0 + 3.0 * step(-11), 1.999_999_9]
        {
            let x = fraction * step(exponent);
            values.extend([x, -x, x.next_down()]);
        }
    }
    values.extend([0.0, -0.0, 65_519.0, 65_520.0, -1e30]);
    let (wanted, count) = (dtype.encode(&values), values.len());
    let (input, out) = (check.given(F32, values)?, check.room(dtype, count)?);
    let launch = launch::convert(Element::from(dtype), out.pointer(), input.at, count as u64);
    check.run(&launch)?;
    let got = check.session.download(out.pointer(), wanted.len())?;
    check.compare_bytes(&launch.name, &format!("{count} values"), &got, &wanted);
    Ok(())
}
