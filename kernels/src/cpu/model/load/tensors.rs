//! Tensors as they are packed: parts, rows, and turned round.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::linear::Weights;
use crate::weights::Tensor;

pub(super) fn both(biases: &[Option<Vec<f32>>; 2]) -> Option<[&[f32]; 2]> {
    match biases {
        [Some(gate), Some(up)] => Some([gate, up]),
        _ => None,
    }
}

pub(in super::super) fn weights<'a>(tensor: &'a Tensor<'_>) -> Weights<'a> {
    match tensor {
        Tensor::F32(values) => Weights::F32(values),
        Tensor::Bf16(bits) => Weights::Bf16(bits),
    }
}

/// `len` values of a tensor from one on.
pub(super) fn part_of<'a>(tensor: &'a Tensor<'_>, from: usize, len: usize) -> Weights<'a> {
    match tensor {
        Tensor::F32(values) => Weights::F32(&values[from..from + len]),
        Tensor::Bf16(bits) => Weights::Bf16(&bits[from..from + len]),
    }
}

/// Some rows of a tensor, `[rows, inputs]`.
pub(super) fn rows_of(tensor: &Tensor<'_>, inputs: usize, rows: &[usize]) -> Tensor<'static> {
    fn pick<T: Copy + Send + Sync>(values: &[T], inputs: usize, rows: &[usize]) -> Cow<'static, [T]> {
        rows.par_iter().flat_map_iter(|row| values[row * inputs..][..inputs].iter().copied()).collect::<Vec<T>>().into()
    }
    match tensor {
        Tensor::F32(values) => Tensor::F32(pick(values, inputs, rows)),
        Tensor::Bf16(bits) => Tensor::Bf16(pick(bits, inputs, rows)),
    }
}

/// A tensor `[inputs, outputs]` as `[outputs, inputs]`.
pub(super) fn transposed(tensor: &Tensor<'_>, outputs: usize) -> Tensor<'static> {
    fn turn<T: Copy + Send + Sync>(values: &[T], outputs: usize) -> Cow<'static, [T]> {
        let row = |output: usize| values[output..].iter().step_by(outputs).copied();
        (0..outputs).into_par_iter().flat_map_iter(row).collect::<Vec<T>>().into()
    }
    match tensor {
        Tensor::F32(values) => Tensor::F32(turn(values, outputs)),
        Tensor::Bf16(bits) => Tensor::Bf16(turn(bits, outputs)),
    }
}
