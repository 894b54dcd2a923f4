//! Weights of 8 bits as the device has them: what `kernels/cuda/q8.cuh` says, of the CPU's values.

use rayon::prelude::*;

use ragstone_kernels::linear::{Weights, round_to_q8};

/// Inputs that are put in another order together.
const CHUNK: usize = 16;
/// What zero is.
const ZERO: u8 = 128;

/// Bytes of an output's line.
pub(super) fn line_bytes(inputs: usize) -> usize {
    inputs.next_multiple_of(CHUNK)
}

/// Where an input stands in its line.
fn place(input: usize) -> usize {
    let within = input % CHUNK;
    input - within + within % 8 / 2 * 4 + within / 8 * 2 + within % 2
}

/// A matrix rounded as the CPU rounds it.
pub(super) struct Quantized {
    /// `[outputs, line_bytes]`
    pub(super) lines: Vec<u8>,
    /// `[outputs]`
    pub(super) scales: Vec<f32>,
}

impl Quantized {
    /// Of matrices of so many inputs, one's outputs behind those of the one before.
    pub(super) fn of(parts: &[Weights<'_>], inputs: usize) -> Self {
        let mut all = Self { lines: Vec::new(), scales: Vec::new() };
        for part in parts {
            match part {
                Weights::F32(values) => all.add(values, inputs, |value| *value),
                Weights::Bf16(bits) => all.add(bits, inputs, |bits| f32::from_bits(u32::from(*bits) << 16)),
            }
        }
        all
    }

    fn add<T: Sync>(&mut self, values: &[T], inputs: usize, widen: impl Fn(&T) -> f32 + Sync) {
        let (bytes, first) = (line_bytes(inputs), self.scales.len());
        let outputs = values.len() / inputs;
        self.lines.resize((first + outputs) * bytes, ZERO);
        self.scales.resize(first + outputs, 0.0);
        let lines = self.lines[first * bytes..].par_chunks_mut(bytes).zip(self.scales[first..].par_iter_mut());
        lines.zip(values.par_chunks(inputs)).for_each_init(
            || vec![0.0; inputs],
            |wide, ((line, scale), row)| {
                wide.iter_mut().zip(row).for_each(|(to, value)| *to = widen(value));
                *scale = round_to_q8(wide, |input, quant| line[place(input)] = (i16::from(quant) + 128) as u8);
            },
        );
    }

    /// The integer of an input, before it is multiplied with its output's scale.
    pub(super) fn quant(&self, output: usize, input: usize, inputs: usize) -> f32 {
        f32::from(self.lines[output * line_bytes(inputs) + place(input)]) - f32::from(ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragstone_kernels::dtype::bf16_bits;
    use ragstone_kernels::linear::{Linear, Precision};

    /// Each input has the place that an mma's lane takes it from: word t of 16 is inputs 2t, 2t + 1, 2t + 8, 2t + 9.
    #[test]
    fn inputs_have_the_order_of_lanes() {
        let mut by_place = [0; 32];
        (0..32).for_each(|input| by_place[place(input)] = input);
        let expected = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];
        assert_eq!(by_place[..16], expected);
        assert_eq!(by_place[16..], expected.map(|input| 16 + input));
    }

    #[test]
    fn values_are_those_of_the_cpu_and_padding_is_zero() {
        let mut random = fastrand::Rng::with_seed(3);
        for (outputs, inputs) in [(1, 1), (3, 16), (5, 40), (2, 129)] {
            let values: Vec<f32> = (0..2 * outputs * inputs).map(|_| random.f32() - 0.5).collect();
            let (f32s, other) = values.split_at(outputs * inputs);
            let bits: Vec<u16> = other.iter().map(|value| bf16_bits(*value)).collect();
            let parts = [Weights::F32(f32s), Weights::Bf16(&bits)];
            let quantized = Quantized::of(&parts, inputs);
            assert_eq!(
                (quantized.lines.len(), quantized.scales.len()),
                (2 * outputs * line_bytes(inputs), 2 * outputs)
            );
            for (at, part) in parts.into_iter().enumerate() {
                let cpu = Linear::new(outputs, inputs, part, None, Precision::Q8);
                let mut row = vec![0.0; inputs];
                for output in 0..outputs {
                    cpu.weight_row(output, &mut row);
                    let scale = quantized.scales[at * outputs + output];
                    let ours = (0..inputs).map(|input| scale * quantized.quant(at * outputs + output, input, inputs));
                    assert!(ours.eq(row.iter().copied()), "{outputs}x{inputs}, output {output} of matrix {at}");
                }
            }
            let used: Vec<usize> = (0..inputs).map(place).collect();
            let padding = (0..line_bytes(inputs)).filter(|at| !used.contains(at));
            assert!(padding.map(|at| quantized.lines[at]).all(|byte| byte == ZERO));
        }
    }

    #[test]
    fn a_weight_that_is_no_number_shows() {
        for odd in [f32::NAN, f32::INFINITY] {
            let quantized = Quantized::of(&[Weights::F32(&[1.0, odd, 2.0, 1.0])], 2);
            assert!(quantized.scales[0].is_nan() && quantized.scales[1] == 2.0 / 127.0);
        }
    }
}
