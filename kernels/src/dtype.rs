//! The element types of keys and values, of weights, and of what is computed.

use std::fmt;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::error::{Error, Result};

/// What matrix products and attention are computed in. Sums, norms, softmax and the residual stream are f32 either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDtype {
    /// Factors are f32: the reference.
    F32,
    /// Factors are rounded to bf16; f32 weights are kept rounded.
    Bf16,
}

impl ComputeDtype {
    /// The name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// How a model's weights are kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    /// As the checkpoint has them, f16 as f32; [`WeightFormat::Native`] where they are quantized blocks.
    Stored,
    /// Widened to f32, whatever the checkpoint has.
    F32,
    /// Rounded to bf16.
    Bf16,
    /// Rounded to 8 bits, a scale for each output feature. Activations of the products are rounded to 8 bits too; on a GPU to bf16.
    Q8,
    /// Rounded to 4 bits in groups of 32 inputs, with a step and a least value each; embeddings and output head as [`WeightFormat::Q8`].
    /// Activations of the products are rounded to 8 bits.
    Q4,
    /// A quantized file's own blocks, as far as products know them. What [`WeightFormat::Stored`] comes to for such a file; not for settings.
    #[serde(skip)]
    Native,
}

impl WeightFormat {
    /// The name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
            Self::Native => "native",
        }
    }

    /// What stands for it where what was computed is kept: its name. Of [`WeightFormat::Native`] a number more, to be raised when a block's values
    /// are kept or multiplied otherwise, so that what was computed before is computed again.
    pub fn identity(self) -> &'static str {
        match self {
            Self::Native => "native-3",
            other => other.name(),
        }
    }
}

/// The element type of stored keys and values. K and V are rounded to this type as they leave their projection, so that
/// what comes back from a store has the bits of what was just computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    F32,
    F16,
    Bf16,
}

impl KvDtype {
    /// Bytes of one element.
    pub fn size_in_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// The type of that [`name`](KvDtype::name).
    ///
    /// # Errors
    /// `InvalidInput` for any other name.
    pub fn from_name(name: &str) -> Result<Self> {
        [Self::F32, Self::F16, Self::Bf16]
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| Error::invalid_input(format!("\"{name}\" is not a KV dtype; take f32, f16 or bf16")))
    }

    /// Rounds to the nearest representable values, ties to even. What is beyond f16's range becomes its greatest
    /// value: an infinite key would turn a whole attention row into NaN.
    pub fn round(self, values: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::F16 => {
                let mut halves = [f16::ZERO; 256];
                for chunk in values.chunks_mut(halves.len()) {
                    chunk.iter_mut().for_each(|value| *value = saturate(*value));
                    halves[..chunk.len()].convert_from_f32_slice(chunk);
                    halves[..chunk.len()].convert_to_f32_slice(chunk);
                }
            }
            Self::Bf16 => {
                values.iter_mut().for_each(|value| *value = f32::from_bits(u32::from(bf16_bits(*value)) << 16));
            }
        }
    }

    /// The values as little-endian bytes, rounded as [`KvDtype::round`] does.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(values.len() * self.size_in_bytes());
        match self {
            Self::F32 => values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes())),
            Self::F16 => {
                let mut halves = [f16::ZERO; 256];
                for chunk in values.chunks(halves.len()) {
                    let halves = &mut halves[..chunk.len()];
                    let saturated: Vec<f32> = chunk.iter().map(|value| saturate(*value)).collect();
                    halves.convert_from_f32_slice(&saturated);
                    halves.iter().for_each(|half| bytes.extend_from_slice(&half.to_le_bytes()));
                }
            }
            Self::Bf16 => values.iter().for_each(|value| bytes.extend_from_slice(&bf16_bits(*value).to_le_bytes())),
        }
        bytes
    }

    /// Whether every value of little-endian `bytes` is a finite number. One pass without branches, at the speed of memory.
    pub fn all_finite(self, bytes: &[u8]) -> bool {
        // What is not finite has an exponent of ones only.
        match self {
            Self::F32 => {
                let (words, _) = bytes.as_chunks::<4>();
                no_word(words, |word| u32::from(u32::from_le_bytes(word) & 0x7F80_0000 == 0x7F80_0000))
            }
            Self::F16 => no_half(bytes, 0x7C00),
            Self::Bf16 => no_half(bytes, 0x7F80),
        }
    }

    /// Reads little-endian `bytes` into `out`.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes are not exactly as many values as `out` holds.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        if bytes.len() != out.len() * self.size_in_bytes() {
            return Err(Error::invalid_input(format!(
                "{} bytes are not {} values of {self}; the entry belongs to another model",
                bytes.len(),
                out.len()
            )));
        }
        match self {
            Self::F32 => {
                let (words, _) = bytes.as_chunks::<4>();
                out.iter_mut().zip(words).for_each(|(out, word)| *out = f32::from_le_bytes(*word));
            }
            Self::F16 => {
                let mut halves = [f16::ZERO; 256];
                for (out, bytes) in out.chunks_mut(halves.len()).zip(bytes.chunks(2 * halves.len())) {
                    let (words, _) = bytes.as_chunks::<2>();
                    let halves = &mut halves[..out.len()];
                    halves.iter_mut().zip(words).for_each(|(half, word)| *half = f16::from_le_bytes(*word));
                    halves.convert_to_f32_slice(out);
                }
            }
            Self::Bf16 => {
                let (words, _) = bytes.as_chunks::<2>();
                let widen = |word: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16);
                out.iter_mut().zip(words).for_each(|(out, word)| *out = widen(*word));
            }
        }
        Ok(())
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn no_half(bytes: &[u8], exponent: u16) -> bool {
    let (halves, _) = bytes.as_chunks::<2>();
    no_word(halves, |half| u16::from(u16::from_le_bytes(half) & exponent == exponent))
}

/// Whether `is_bad` is zero for every word. Branches once a block only, so that the block is vectorised.
fn no_word<const SIZE: usize, T: Copy + Default + PartialEq + std::ops::BitOr<Output = T>>(
    words: &[[u8; SIZE]],
    is_bad: impl Fn([u8; SIZE]) -> T,
) -> bool {
    let good = |block: &[[u8; SIZE]]| block.iter().fold(T::default(), |bad, word| bad | is_bad(*word)) == T::default();
    words.chunks(4096).all(good)
}

fn saturate(value: f32) -> f32 {
    value.clamp(f16::MIN.to_f32_const(), f16::MAX.to_f32_const())
}

/// The nearest f16, ties to even; what is beyond its range becomes its greatest value.
pub(crate) fn f16_bits(value: f32) -> u16 {
    f16::from_f32(saturate(value)).to_bits()
}

/// The nearest bf16, ties to even; a NaN stays one. Without branches, so that loops over it become vectors.
#[inline]
pub fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<f32> {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut values: Vec<f32> = (0..1000).map(|_| (rng.f32() - 0.5) * 10f32.powi(rng.i32(-6..5))).collect();
        values.extend([0.0, -0.0, 1.0, 65504.0, -65504.0, f32::from_bits(0x3f80_8000), f32::from_bits(0x3f81_8000)]);
        values
    }

    #[test]
    fn rounded_values_survive_bytes_bit_for_bit() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let mut values = samples();
            let bytes_unrounded = dtype.encode(&values);
            dtype.round(&mut values);
            let bytes = dtype.encode(&values);
            assert_eq!(bytes, bytes_unrounded, "encoding rounds as `round` does");
            assert_eq!(bytes.len(), values.len() * dtype.size_in_bytes());
            let mut back = vec![0.0; values.len()];
            dtype.decode(&bytes, &mut back).unwrap();
            assert!(back.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits()), "{dtype}");
            assert_eq!(dtype.decode(&bytes[1..], &mut back).unwrap_err().kind(), crate::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn what_is_not_finite_is_seen_at_every_place() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let mut values = samples();
            // The largest of each type, and more than a block.
            values.resize(9000, 3.0e4);
            let whole = dtype.encode(&values);
            assert!(dtype.all_finite(&whole) && dtype.all_finite(&[]));
            // Bits, because encoding f16 makes infinities finite.
            let exponents = match dtype {
                KvDtype::F32 => [&0x7F80_0000_u32.to_le_bytes()[..], &0xFFC0_0001_u32.to_le_bytes()],
                KvDtype::F16 => [&0x7C00_u16.to_le_bytes()[..], &0xFE01_u16.to_le_bytes()],
                KvDtype::Bf16 => [&0x7F80_u16.to_le_bytes()[..], &0xFFC1_u16.to_le_bytes()],
            };
            for at in [0, 1, 4095, 4096, 8999] {
                for bits in exponents {
                    let mut bytes = whole.clone();
                    let at = at * dtype.size_in_bytes();
                    bytes[at..at + bits.len()].copy_from_slice(bits);
                    assert!(!dtype.all_finite(&bytes), "{dtype} {bits:x?} at {at}");
                }
            }
        }
    }

    #[test]
    fn rounding_agrees_with_half() {
        for value in samples() {
            assert_eq!(bf16_bits(value), half::bf16::from_f32(value).to_bits(), "{value}");
        }
        assert!(half::bf16::from_bits(bf16_bits(f32::NAN)).is_nan());
        let mut beyond = [1e9, -1e9];
        KvDtype::F16.round(&mut beyond);
        assert_eq!(beyond, [65504.0, -65504.0]);
    }

    #[test]
    fn names_are_read_back() {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            assert_eq!(KvDtype::from_name(dtype.name()).unwrap(), dtype);
        }
        assert!(KvDtype::from_name("int8").unwrap_err().to_string().contains("f32, f16 or bf16"));
    }
}
