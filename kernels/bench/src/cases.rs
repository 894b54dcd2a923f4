//! Kernels one by one: shapes, results, and measuring them in turn.

use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;

use crate::Spread;
use crate::error::Result;

/// Rows, inputs and outputs of a linear layer.
#[derive(Debug, Clone, Copy)]
pub struct LinearShape {
    pub rows: usize,
    pub inputs: usize,
    pub outputs: usize,
}

impl std::str::FromStr for LinearShape {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let sizes: Vec<usize> = text.split('x').filter_map(|size| size.parse().ok()).collect();
        match sizes[..] {
            [rows, inputs, outputs] if text.matches('x').count() == 2 && !sizes.contains(&0) => {
                // A gigabyte of f32 weights, and of inputs and outputs.
                let is_small = |a: usize, b: usize| a.checked_mul(b).is_some_and(|size| size <= 1 << 28);
                if is_small(rows, inputs) && is_small(rows, outputs) && is_small(inputs, outputs) {
                    return Ok(Self { rows, inputs, outputs });
                }
                Err("a matrix of over 2^28 values; take a smaller shape".into())
            }
            _ => Err("write ROWSxINPUTSxOUTPUTS, such as 512x896x4864".into()),
        }
    }
}

/// One by its sizes.
pub const fn shape(rows: usize, inputs: usize, outputs: usize) -> LinearShape {
    LinearShape { rows, inputs, outputs }
}

/// What a kernel took.
#[derive(Debug, Clone, Serialize)]
pub struct CaseResult {
    pub kernel: &'static str,
    pub path: &'static str,
    /// Of weights and products, or of keys and values.
    pub precision: &'static str,
    pub shape: String,
    pub seconds: Spread,
    /// Zero where only bytes are moved.
    pub gflops: Spread,
    /// Of what must be read and written at least.
    pub gbps: Spread,
    /// The greater of the shares of the arithmetic ceiling and of the reading ceiling, as both were just before it; the median of rounds. Over 1
    /// for what stays in caches.
    pub of_ceiling: f64,
}

/// Seconds of every case, each sampled once a round: a change of the machine's speed meets all of them.
///
/// # Errors
/// Those of `sample`.
pub fn in_turn<C>(runs: usize, cases: &mut [C], mut sample: impl FnMut(&mut C) -> Result<f64>) -> Result<Vec<Spread>> {
    let progress = Progress::new("measuring", Unit::Items);
    let total = (runs * cases.len()) as u64;
    let mut samples = vec![Vec::new(); cases.len()];
    for round in 0..runs {
        for (index, case) in cases.iter_mut().enumerate() {
            progress.set((round * samples.len() + index) as u64, total);
            samples[index].push(sample(case)?);
        }
    }
    Ok(samples.into_iter().map(Spread::of).collect())
}

/// Of some numbers of rows those that look at `tokens`; each once, also where there are fewer tokens.
pub fn rows_of(rows: &[usize], tokens: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = rows.iter().map(|rows| *rows.min(&tokens)).collect();
    rows.dedup();
    rows
}

/// For people.
///
/// # Errors
/// Where standard output cannot be written.
pub fn print_results(results: &[CaseResult]) -> Result<()> {
    output::line(
        "kernel            path        type  shape               ms (min .. max)             GFLOP/s    GB/s  of ceiling",
    )?;
    for result in results {
        output::line(&format!(
            "{:<17} {:<11} {:<5} {:<15} {} {:>8} {:>7.1} {:>11.2}",
            result.kernel,
            result.path,
            result.precision,
            result.shape,
            result.seconds.milliseconds(),
            if result.gflops.median > 0.0 { format!("{:.0}", result.gflops.median) } else { "-".into() },
            result.gbps.median,
            result.of_ceiling,
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read() {
        let shape: LinearShape = "1x20x300".parse().unwrap();
        assert_eq!((shape.rows, shape.inputs, shape.outputs), (1, 20, 300));
        for wrong in ["", "1x2", "1x2x3x4", "0x2x3", "1x-2x3", "axbxc", "1xx2x3", "99999999x99999999x1"] {
            assert!(wrong.parse::<LinearShape>().is_err(), "{wrong}");
        }
    }
}
