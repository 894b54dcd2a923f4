//! A model's weights in device memory: matrices `[outputs, inputs]` in f32, bf16 or 8 bits, vectors in f32.

use std::sync::Arc;

use super::launch::hopper::Product;
use super::launch::quantized::Q8;
use super::launch::{self, Element};
use super::quantized::{Quantized, line_bytes};
use super::session::{Buffer, Session};
use ragstone_kernels::activation::Activation;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::bf16_bits;
use ragstone_kernels::error::{Error, Result};
use ragstone_kernels::linear::{GroupedRows, Precision, Weights};
use ragstone_kernels::model::{Embedding, Expand, FeedForward, Layer, Mixture, Norm, Packer, Part, Parts};

/// A matrix, with its bias.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) weights: Buffer,
    /// Of weights of 8 bits: one for each output.
    pub(super) scales: Option<Buffer>,
    pub(super) bias: Option<Buffer>,
    /// Of what is multiplied by the weights; theirs too, unless they have scales.
    pub(super) element: Element,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
}

impl Matrix {
    /// The weights, if they have 8 bits.
    pub(super) fn q8(&self) -> Option<Q8> {
        self.scales.as_ref().map(|scales| Q8 { lines: self.weights.pointer(), scales: scales.pointer() })
    }

    /// Rows `x` times its weights, to `to`.
    pub(super) fn product(&self, x: &Buffer, rows: usize, to: u64) -> Product {
        Product {
            out: to,
            x: x.pointer(),
            w: self.weights.pointer(),
            bias: self.bias.as_ref().map_or(0, Buffer::pointer),
            shape: (rows as u32, self.outputs as u32, self.inputs as u32),
        }
    }

    /// Whether [`Product`]s take it, of any rows that begin where a buffer does.
    pub(super) fn fits_hopper(&self) -> bool {
        self.outputs.is_multiple_of(2) && self.inputs.is_multiple_of(8)
    }

    /// Bytes of an output's weights, a scale aside.
    fn row_bytes(&self) -> usize {
        match self.scales {
            Some(_) => line_bytes(self.inputs),
            None => self.inputs * self.element.size_in_bytes(),
        }
    }
}

/// A norm's weights.
#[derive(Debug)]
pub(super) enum DeviceNorm {
    Rms(Buffer),
    Layer { weight: Buffer, bias: Buffer },
    None,
}

/// A norm of heads, or of whole rows of Q or K.
#[derive(Debug)]
pub(super) struct HeadNorm {
    pub(super) weight: Buffer,
    pub(super) len: usize,
}

/// A feed-forward part.
#[derive(Debug)]
pub(super) struct DevicePart {
    /// Gate and up, or up alone.
    pub(super) up: Matrix,
    pub(super) down: Matrix,
}

/// What follows a layer's attention.
#[derive(Debug)]
pub(super) enum DeviceFeedForward {
    One(DevicePart),
    /// A matrix has the rows of all experts, expert after expert.
    Experts {
        router: Matrix,
        all: DevicePart,
    },
}

impl DeviceFeedForward {
    /// The only part, or that of all experts.
    pub(super) fn part(&self) -> &DevicePart {
        let (Self::One(part) | Self::Experts { all: part, .. }) = self;
        part
    }

    fn matrices(&self) -> Vec<&Matrix> {
        match self {
            Self::One(DevicePart { up, down }) => vec![up, down],
            Self::Experts { router, all: DevicePart { up, down } } => vec![router, up, down],
        }
    }
}

/// A layer's weights.
#[derive(Debug)]
pub(super) struct DeviceLayer {
    pub(super) input_norm: DeviceNorm,
    pub(super) q: Matrix,
    pub(super) k: Matrix,
    pub(super) v: Matrix,
    pub(super) o: Matrix,
    pub(super) q_norm: Option<HeadNorm>,
    pub(super) k_norm: Option<HeadNorm>,
    pub(super) post_norm: DeviceNorm,
    pub(super) output_norms: Option<[DeviceNorm; 2]>,
    pub(super) feed_forward: DeviceFeedForward,
}

/// All of a model's weights.
#[derive(Debug)]
pub(super) struct DeviceWeights {
    /// `[vocab, hidden]`; the head's where there is none.
    pub(super) embedding: Option<(Buffer, Element)>,
    pub(super) position_table: Option<Buffer>,
    pub(super) embedding_norm: Option<DeviceNorm>,
    pub(super) layers: Vec<DeviceLayer>,
    pub(super) final_norm: DeviceNorm,
    pub(super) head: Matrix,
}

impl DeviceWeights {
    /// Bytes of matrices and tables.
    pub(super) fn size_in_bytes(&self) -> usize {
        let matrix = |matrix: &Matrix| {
            let scale = if matrix.scales.is_some() { Element::F32.size_in_bytes() } else { 0 };
            matrix.outputs * (matrix.row_bytes() + scale)
        };
        let of_layer = |l: &DeviceLayer| {
            [&l.q, &l.k, &l.v, &l.o].into_iter().chain(l.feed_forward.matrices()).map(matrix).sum::<usize>()
        };
        let layers = self.layers.iter().map(of_layer);
        let tables = [self.embedding.as_ref().map(|(table, _)| table), self.position_table.as_ref()];
        layers.sum::<usize>() + matrix(&self.head) + tables.into_iter().flatten().map(Buffer::len).sum::<usize>()
    }
}

/// Copies matrices to a device.
pub(super) struct OnDevice(pub(super) Arc<Session>);

impl OnDevice {
    fn matrix(
        &self,
        (outputs, inputs): (usize, usize),
        parts: &[Weights<'_>],
        biases: &[&[f32]],
        precision: Precision,
    ) -> Result<Matrix> {
        let plain = |element: Element| -> Result<(Element, Buffer, Option<Buffer>)> {
            let as_they_are: Option<Vec<&[u8]>> = parts.iter().map(|part| bytes_of(*part, element)).collect();
            if let Some(parts) = as_they_are {
                return Ok((element, self.0.upload_parts(&parts)?, None));
            }
            let mut bytes = Vec::with_capacity(parts.len() * outputs * inputs * element.size_in_bytes());
            parts.iter().for_each(|part| extend(&mut bytes, *part, element));
            Ok((element, self.0.upload(&bytes)?, None))
        };
        let (element, weights, scales) = match precision {
            Precision::F32 => plain(Element::F32)?,
            Precision::Bf16 => plain(Element::Bf16)?,
            Precision::Q8 => {
                let Quantized { lines, scales } = Quantized::of(parts, inputs);
                (Element::Bf16, self.0.upload(&lines)?, Some(self.0.upload(&scales)?))
            }
            Precision::Q4 => {
                return Err(Error::unsupported(
                    "the CUDA backend keeps weights in f32, bf16 or 8 bits: set `weights` to q8, or take `--device cpu`",
                ));
            }
        };
        let bias = (!biases.is_empty()).then(|| self.0.upload(&biases.concat())).transpose()?;
        Ok(Matrix { weights, scales, bias, element, outputs: parts.len() * outputs, inputs })
    }

    fn vector(&self, values: &[f32]) -> Result<Buffer> {
        self.0.upload(values)
    }

    fn norm(&self, norm: &Norm) -> Result<DeviceNorm> {
        Ok(match norm {
            Norm::Rms(weight) => DeviceNorm::Rms(self.vector(weight)?),
            Norm::Layer { weight, bias } => {
                DeviceNorm::Layer { weight: self.vector(weight)?, bias: self.vector(bias)? }
            }
            Norm::None { .. } => DeviceNorm::None,
        })
    }

    fn head_norm(&self, weight: Option<&Vec<f32>>) -> Result<Option<HeadNorm>> {
        weight.map(|weight| Ok(HeadNorm { weight: self.vector(weight)?, len: weight.len() })).transpose()
    }

    fn layer(&self, layer: Layer<Matrix>) -> Result<DeviceLayer> {
        let feed_forward = match layer.feed_forward {
            FeedForward::One(part) => DeviceFeedForward::One(part.into()),
            FeedForward::Experts(Mixture { router, mut parts }) => {
                let all = parts.pop().ok_or_else(|| Error::internal("a mixture without experts"))?;
                DeviceFeedForward::Experts { router, all: all.into() }
            }
        };
        let output_norms = match &layer.output_norms {
            Some([attention, feed_forward]) => Some([self.norm(attention)?, self.norm(feed_forward)?]),
            None => None,
        };
        Ok(DeviceLayer {
            input_norm: self.norm(&layer.input_norm)?,
            q_norm: self.head_norm(layer.q_norm.as_ref())?,
            k_norm: self.head_norm(layer.k_norm.as_ref())?,
            post_norm: self.norm(&layer.post_norm)?,
            output_norms,
            q: layer.q,
            k: layer.k,
            v: layer.v,
            o: layer.o,
            feed_forward,
        })
    }

    /// Matrices of one shape as a single one, each one's rows behind those of the one before.
    fn stacked(&self, matrices: &[Matrix]) -> Result<Matrix> {
        let first = matrices.first().ok_or_else(|| Error::internal("a mixture without experts"))?;
        let (element, inputs) = (first.element, first.inputs);
        let weights: Vec<&Buffer> = matrices.iter().map(|matrix| &matrix.weights).collect();
        let weights = self.joined(&weights, first.outputs * first.row_bytes())?;
        let by_output = |of: fn(&Matrix) -> Option<&Buffer>| {
            let all: Option<Vec<&Buffer>> = matrices.iter().map(of).collect();
            all.map(|all| self.joined(&all, first.outputs * Element::F32.size_in_bytes())).transpose()
        };
        let (scales, bias) = (by_output(|matrix| matrix.scales.as_ref())?, by_output(|matrix| matrix.bias.as_ref())?);
        Ok(Matrix { weights, scales, bias, element, outputs: matrices.len() * first.outputs, inputs })
    }

    /// The first `bytes` of each buffer, one behind the other.
    fn joined(&self, buffers: &[&Buffer], bytes: usize) -> Result<Buffer> {
        let all = self.0.allocate(buffers.len() * bytes)?;
        for (index, buffer) in buffers.iter().enumerate() {
            let to = all.pointer() + (index * bytes) as u64;
            self.0.launch(&launch::copy_parts((to, 0), (buffer.pointer(), 0), 1, bytes as u64))?;
        }
        Ok(all)
    }

    /// Copies what is not there yet.
    pub(super) fn finish(&self, parts: Parts<Matrix>) -> Result<DeviceWeights> {
        let embedding = match &parts.embedding {
            Embedding::Tied => None,
            Embedding::F32(values) => Some((self.0.upload(values)?, Element::F32)),
            Embedding::Bf16(bits) => Some((self.0.upload(bits)?, Element::Bf16)),
        };
        Ok(DeviceWeights {
            embedding,
            position_table: parts.position_table.as_deref().map(|table| self.vector(table)).transpose()?,
            embedding_norm: parts.embedding_norm.as_ref().map(|norm| self.norm(norm)).transpose()?,
            layers: parts.layers.into_iter().map(|layer| self.layer(layer)).collect::<Result<_>>()?,
            final_norm: self.norm(&parts.final_norm)?,
            head: parts.head,
        })
    }
}

impl Packer for OnDevice {
    type Linear = Matrix;

    fn linear(
        &self,
        outputs: usize,
        inputs: usize,
        weights: Weights<'_>,
        bias: Option<&[f32]>,
        precision: Precision,
    ) -> Result<Matrix> {
        self.matrix((outputs, inputs), &[weights], bias.as_slice(), precision)
    }

    fn gate_up(
        &self,
        outputs: usize,
        inputs: usize,
        weights: [Weights<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        precision: Precision,
        _: Activation,
    ) -> Result<Matrix> {
        self.matrix((outputs, inputs), &weights, bias.as_ref().map_or(&[], |both| &both[..]), precision)
    }

    fn grouped(&self, _: usize, _: usize, _: &GroupedRows<'_>, _: Option<&[f32]>) -> Result<Matrix> {
        Err(Error::internal("quantized blocks came as far as the device; they are unpacked before"))
    }

    fn grouped_gate_up(
        &self,
        outputs: usize,
        inputs: usize,
        rows: [&GroupedRows<'_>; 2],
        _: Option<[&[f32]; 2]>,
        _: Activation,
    ) -> Result<Matrix> {
        self.grouped(outputs, inputs, rows[0], None)
    }

    /// One part that has all of them. An expert's own memory is free again for those of the next layer.
    fn experts(&self, parts: Vec<Part<Matrix>>) -> Result<Vec<Part<Matrix>>> {
        let is_gated = parts.iter().all(|part| matches!(part.expand, Expand::Gated(_)));
        let parts = parts.into_iter().map(DevicePart::from).map(|part| (part.up, part.down));
        let (ups, downs): (Vec<Matrix>, Vec<Matrix>) = parts.unzip();
        let up = self.stacked(&ups)?;
        let expand = if is_gated { Expand::Gated(up) } else { Expand::Plain(up) };
        Ok(vec![Part { expand, down: self.stacked(&downs)? }])
    }
}

impl From<Part<Matrix>> for DevicePart {
    fn from(part: Part<Matrix>) -> Self {
        let (Expand::Gated(up) | Expand::Plain(up)) = part.expand;
        Self { up, down: part.down }
    }
}

/// Refuses what the backend does not run.
pub(super) fn check_supported(config: &ModelConfig) -> Result<()> {
    let experts = config.experts.as_ref().map_or(0, |experts| experts.count);
    let problem = if config.head_dim > launch::MOST_HEAD_DIM {
        "heads of more than 256 elements"
    } else if experts > launch::experts::MOST_EXPERTS {
        "more than 4,096 experts"
    } else {
        return Ok(());
    };
    Err(Error::unsupported(format!("the CUDA backend does not run {problem} yet; take `--device cpu`")))
}

/// Weights that are of that type already.
fn bytes_of(weights: Weights<'_>, element: Element) -> Option<&[u8]> {
    match (weights, element) {
        (Weights::F32(values), Element::F32) => Some(bytemuck::cast_slice(values)),
        (Weights::Bf16(bits), Element::Bf16) => Some(bytemuck::cast_slice(bits)),
        _ => None,
    }
}

fn extend(bytes: &mut Vec<u8>, weights: Weights<'_>, element: Element) {
    match (weights, element) {
        (Weights::F32(values), Element::F32) => bytes.extend_from_slice(bytemuck::cast_slice(values)),
        (Weights::F32(values), _) => {
            values.iter().for_each(|value| bytes.extend_from_slice(&bf16_bits(*value).to_le_bytes()));
        }
        (Weights::Bf16(bits), Element::F32) => {
            bits.iter().for_each(|bits| bytes.extend_from_slice(&(u32::from(*bits) << 16).to_le_bytes()));
        }
        (Weights::Bf16(bits), _) => bytes.extend_from_slice(bytemuck::cast_slice(bits)),
    }
}
