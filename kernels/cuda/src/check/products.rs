//! Matrix products: near the exact sums, and a row's bits the same whatever the tile.

use super::Check;
use super::compare::Tolerance;
use super::inputs::Input;
use crate::launch::hopper::{PRODUCTS_ROWS, Product, products};
use crate::launch::{self, Element};
use crate::session::Launch;
use ragstone_kernels::activation::Activation;
use ragstone_kernels::dtype::KvDtype::{self, Bf16, F32};
use ragstone_kernels::error::Result;

/// What is multiplied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) rows: u32,
    pub(super) outputs: u32,
    pub(super) inputs: u32,
    pub(super) has_bias: bool,
    pub(super) adds: bool,
    /// Values before x, and before w where that is of values: addresses that are not aligned to 16 bytes.
    pub(super) shift: u32,
}

pub(super) fn check(check: &mut Check) -> Result<()> {
    for shape in shapes(check) {
        [F32, Bf16].into_iter().try_for_each(|dtype| product(check, dtype, shape))?;
    }
    Ok(())
}

/// Shapes of products, for weights of any type.
pub(super) fn shapes(check: &mut Check) -> Vec<Shape> {
    // Rows on both sides of each tile's bound; outputs and inputs that fill none.
    let fixed = [
        [1, 1, 1, 0],
        [1, 33, 16, 0],
        [2, 64, 8, 0],
        [7, 65, 100, 0],
        [16, 40, 64, 0],
        [17, 129, 72, 0],
        [33, 31, 200, 1],
        [64, 70, 33, 0],
        [65, 9, 96, 3],
        [130, 66, 136, 0],
        [5, 7, 1000, 0],
    ];
    let mut shapes = check.shapes(&fixed, [200, 200, 600, 4]);
    if check.options.large {
        // Of a model of 7 billion weights: decode, the chosen rows of a blend, prefill.
        shapes.extend([[1, 3584, 18_944, 0], [48, 18_944, 3584, 0], [512, 4608, 3584, 0]]);
    }
    let shape = |(index, [rows, outputs, inputs, shift]): (usize, [u32; 4])| {
        let (has_bias, adds) = (index % 3 != 0, index % 2 == 1);
        Shape { rows, outputs, inputs, has_bias, adds, shift }
    };
    shapes.into_iter().enumerate().map(shape).collect()
}

struct Factors {
    x: Input,
    w: Input,
    bias: Input,
}

impl Factors {
    /// Rows from `first` on, to `out`.
    fn launch(&self, dtype: KvDtype, of: Shape, (first, rows): (u32, u32), out: u64) -> Launch {
        let row_bytes = u64::from(of.inputs) * dtype.size_in_bytes() as u64;
        let x = self.x.at + u64::from(first) * row_bytes;
        let places = (out, x, self.w.at, if of.has_bias { self.bias.at } else { 0 });
        launch::gemm(Element::from(dtype), places, (rows, of.outputs, of.inputs), of.adds)
    }

    fn value(&self, of: Shape, before: &[f32], (row, output): (usize, usize)) -> f64 {
        let (inputs, outputs) = (of.inputs as usize, of.outputs as usize);
        let before = if of.adds { f64::from(before[row * outputs + output]) } else { 0.0 };
        let bias = if of.has_bias { self.bias.f64(output) } else { 0.0 };
        let pairs = self.x.values[row * inputs..][..inputs].iter().zip(&self.w.values[output * inputs..][..inputs]);
        before + bias + pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>()
    }
}

/// Tensor cores may cut off what they sum up where a processor rounds.
fn tolerance(dtype: KvDtype, inputs: u32) -> Tolerance {
    let each = if dtype == F32 { 1e-6 } else { 2e-6 };
    Tolerance::new(1e-5, each * f64::from(inputs) + 1e-5)
}

fn product(check: &mut Check, dtype: KvDtype, of: Shape) -> Result<()> {
    let (rows, outputs, inputs) = (of.rows as usize, of.outputs as usize, of.inputs as usize);
    let factors = Factors {
        x: check.shifted(dtype, rows * inputs, 1.0, of.shift as usize)?,
        w: check.shifted(dtype, outputs * inputs, 1.0, of.shift as usize)?,
        bias: check.random(F32, outputs, 1.0)?,
    };
    let before = check.noise(rows * outputs, 1.0);
    let out = check.given(F32, before.clone())?;
    let launch = factors.launch(dtype, of, (0, of.rows), out.at);
    check.run(&launch)?;
    let got = check.read(F32, out.buffer(), rows * outputs)?;
    let places = check.some_of(rows * outputs);
    let wanted: Vec<f64> = places.iter().map(|at| factors.value(of, &before, (at / outputs, at % outputs))).collect();
    let compared: Vec<f32> = places.iter().map(|at| got[*at]).collect();
    let case = format!("{rows}x{outputs}x{inputs}");
    check.compare(&launch.name, &case, &compared, &wanted, tolerance(dtype, of.inputs));
    if dtype == Bf16 {
        hopper(check, &factors, of, (&before, &got), (&places, &wanted))?;
    }

    // Of each tile that has fewer rows, the last ones.
    for few in [1, 16, 17, 64].into_iter().filter(|few| *few < of.rows) {
        let first = (of.rows - few) as usize * outputs;
        let out = check.given(F32, before[first..].to_vec())?;
        check.run(&factors.launch(dtype, of, (of.rows - few, few), out.at))?;
        let alone = check.read(F32, out.buffer(), few as usize * outputs)?;
        let what = format!("products of {dtype}: rows alone and beside others");
        check.same_bits(&what, &format!("{few} of {case}"), &alone, &got[first..]);
    }
    Ok(())
}

/// The kernels of compute capability 9.0 that take the shape, on such a GPU: near the exact sums, with the bits of the others.
fn hopper(
    check: &mut Check,
    factors: &Factors,
    of: Shape,
    (before, got): (&[f32], &[f32]),
    (places, wanted): (&[usize], &[f64]),
) -> Result<()> {
    let bias = if of.has_bias { factors.bias.at } else { 0 };
    let shape = (of.rows, of.outputs, of.inputs);
    let product = |out: u64| Product { out, x: factors.x.at, w: factors.w.at, bias, shape };
    if !check.session.is_hopper() || !check.options.own || !product(0).fits() {
        return Ok(());
    }
    let (case, multiprocessors) =
        (format!("{}x{}x{}", of.rows, of.outputs, of.inputs), check.session.multiprocessors());
    for which in 0..product(0).each(of.adds, multiprocessors)?.len() {
        let out = check.given(F32, before.to_vec())?;
        let launch = product(out.at).each(of.adds, multiprocessors)?.swap_remove(which);
        check.run(&launch)?;
        let ours = check.read(F32, out.buffer(), before.len())?;
        let compared: Vec<f32> = places.iter().map(|at| ours[*at]).collect();
        check.compare(&launch.name, &case, &compared, wanted, tolerance(Bf16, of.inputs));
        check.same_bits("products of bf16: kernels for all GPUs and for 9.0", &case, &ours, got);
    }
    if of.rows <= PRODUCTS_ROWS && !of.adds {
        // Three times the same matrix, with the sums of one.
        let out = check.room(F32, 3 * before.len())?;
        let at = |which: usize| product(out.pointer() + (4 * which * before.len()) as u64);
        let launch = products([at(0), at(1), at(2)], multiprocessors)?;
        check.run(&launch)?;
        let ours = check.read(F32, &out, 3 * before.len())?;
        for ours in ours.chunks(before.len()) {
            let compared: Vec<f32> = places.iter().map(|at| ours[*at]).collect();
            check.compare(&launch.name, &case, &compared, wanted, tolerance(Bf16, of.inputs));
            check.same_bits("products of bf16: kernels for all GPUs and for 9.0", &case, ours, got);
        }
    }
    if !product(0).fits_gated() {
        return Ok(());
    }
    let (rows, width) = (of.rows as usize, of.outputs as usize / 2);
    for activation in [Activation::Silu, Activation::Gelu] {
        let (both, apart) = (check.room(F32, rows * 2 * width)?, check.room(Bf16, rows * width)?);
        let (x, w) = (factors.x.at, factors.w.at);
        check.run(&launch::gemm(Element::Bf16, (both.pointer(), x, w, bias), shape, false))?;
        let sums = check.read(F32, &both, rows * 2 * width)?;
        let places = (apart.pointer(), both.pointer());
        check.run(&launch::gated(activation, Element::Bf16, places.0, places.1, of.rows, of.outputs / 2))?;
        let apart = check.read(Bf16, &apart, rows * width)?;
        let by = |x: f64| match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            _ => x / (1.0 + (-1.595_769_121_605_731 * (x + 0.044_715 * x * x * x)).exp()),
        };
        let value = |at: usize| {
            let (row, value) = (at / width, at % width);
            by(f64::from(sums[row * 2 * width + value])) * f64::from(sums[row * 2 * width + width + value])
        };
        let wanted: Vec<f64> = (0..rows * width).map(value).collect();
        for which in 0..product(0).each_gated(activation, multiprocessors)?.len() {
            let out = check.room(Bf16, rows * width)?;
            let launch = product(out.pointer()).each_gated(activation, multiprocessors)?.swap_remove(which);
            check.run(&launch)?;
            let ours = check.read(Bf16, &out, rows * width)?;
            check.compare(&launch.name, &case, &ours, &wanted, Tolerance::new(0.005, 1e-5));
            check.same_bits("gates of bf16: in one kernel for 9.0 and in two for all GPUs", &case, &ours, &apart);
        }
    }
    Ok(())
}
