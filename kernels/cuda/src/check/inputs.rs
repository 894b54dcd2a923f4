//! Random inputs, in device memory and on the host.

use super::Check;
use crate::session::Buffer;
use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::error::Result;

/// Values in device memory, and the same on the host.
pub(super) struct Input {
    /// As they were rounded.
    pub(super) values: Vec<f32>,
    /// Where the first one lies.
    pub(super) at: u64,
    memory: Buffer,
}

impl Input {
    pub(super) fn buffer(&self) -> &Buffer {
        &self.memory
    }

    pub(super) fn f64(&self, index: usize) -> f64 {
        f64::from(self.values[index])
    }
}

/// How far a rounded value is from what was rounded, as a share of it.
pub(super) fn rounding(dtype: KvDtype) -> f64 {
    match dtype {
        KvDtype::F32 => 2.0_f64.powi(-24),
        KvDtype::F16 => 2.0_f64.powi(-11),
        KvDtype::Bf16 => 2.0_f64.powi(-8),
    }
}

impl Check {
    /// A number from 0 to `bound` - 1.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.random.u32(0..bound)
    }

    /// `fixed`, and as many random shapes as the options say, each size from 1 to that of `most`.
    pub(super) fn shapes<const N: usize>(&mut self, fixed: &[[u32; N]], most: [u32; N]) -> Vec<[u32; N]> {
        let random = (0..self.options.shapes).map(|_| most.map(|most| 1 + self.random.u32(0..most)));
        fixed.iter().copied().chain(random.collect::<Vec<_>>()).collect()
    }

    /// 0 to `count` - 1, in a random order.
    pub(super) fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        self.random.shuffle(&mut order);
        order
    }

    /// About normally distributed numbers of that standard deviation.
    pub(super) fn noise(&mut self, count: usize, spread: f32) -> Vec<f32> {
        // Of three uniform numbers the sum has a variance of a quarter.
        let random = &mut self.random;
        (0..count).map(|_| (random.f32() + random.f32() + random.f32() - 1.5) * 2.0 * spread).collect()
    }

    /// Random values of that type.
    pub(super) fn random(&mut self, dtype: KvDtype, count: usize, spread: f32) -> Result<Input> {
        self.shifted(dtype, count, spread, 0)
    }

    /// As [`random`](Self::random), from `shift` values behind an aligned address on.
    pub(super) fn shifted(&mut self, dtype: KvDtype, count: usize, spread: f32, shift: usize) -> Result<Input> {
        let noise = self.noise(shift + count, spread);
        let mut input = self.given(dtype, noise)?;
        input.at += (shift * dtype.size_in_bytes()) as u64;
        input.values.drain(..shift);
        Ok(input)
    }

    /// These values, rounded to that type.
    pub(super) fn given(&self, dtype: KvDtype, mut values: Vec<f32>) -> Result<Input> {
        let memory = self.session.upload(&dtype.encode(&values))?;
        dtype.round(&mut values);
        Ok(Input { values, at: memory.pointer(), memory })
    }

    /// Room for results: no numbers, so that what is not written is seen.
    pub(super) fn room(&self, dtype: KvDtype, count: usize) -> Result<Buffer> {
        self.session.upload(&dtype.encode(&vec![f32::NAN; count]))
    }

    /// What lies there.
    pub(super) fn read(&self, dtype: KvDtype, from: &Buffer, count: usize) -> Result<Vec<f32>> {
        let bytes = self.session.download(from.pointer(), count * dtype.size_in_bytes())?;
        let mut values = vec![0.0; count];
        dtype.decode(&bytes, &mut values)?;
        Ok(values)
    }
}
