//! Decoding: all running sequences advance by one token a step.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ragstone_kernels::attention::{RowGroup, SequenceView};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::Model;
use ragstone_kernels::pool::{KvData, KvPool};
use ragstone_storage::block::BlockTable;
use ragstone_storage::tier::device::DevicePath;

use super::{DecodeSpec, Decoded, engine_panicked};
use crate::error::Result;
use crate::report::FinishReason;

/// A sequence behind its prefill.
pub(super) struct Running {
    spec: DecodeSpec,
    table: BlockTable,
    /// Spare what the table shares with the device tier: evicting it would free nothing.
    _paths: Vec<DevicePath>,
    /// The token generated last: its K and V are not in the blocks yet.
    token: u32,
    /// Position of `token`.
    position: u32,
    /// Positions of the filled slots and of `token`'s.
    key_positions: Vec<u32>,
    generated: usize,
}

impl Running {
    /// Draws the first token. `None`: the answer is complete already, or nobody wants it.
    pub(super) fn begin(
        spec: DecodeSpec,
        table: BlockTable,
        paths: Vec<DevicePath>,
        position: u32,
        logits: &[f32],
    ) -> Option<Self> {
        let key_positions = (0..=position).collect();
        let mut running = Self { spec, table, _paths: paths, token: 0, position, key_positions, generated: 0 };
        running.take(logits).then_some(running)
    }

    /// Draws a token from `logits` and sends it; whether the sequence goes on.
    fn take(&mut self, logits: &[f32]) -> bool {
        let sampled = match self.spec.sampler.sample(logits) {
            Ok(sampled) => sampled,
            Err(error) => {
                self.send(Decoded::Failed(error.into()));
                return false;
            }
        };
        let id = sampled.id;
        if self.spec.end_tokens.contains(&id) {
            self.send(Decoded::End(FinishReason::Stop));
            return false;
        }
        self.generated += 1;
        self.token = id;
        if !self.send(Decoded::Token(sampled)) {
            return false;
        }
        if self.generated >= self.spec.max_tokens {
            self.send(Decoded::End(FinishReason::Length));
            return false;
        }
        true
    }

    /// Whether somebody still listens. The channel holds a whole answer, so it is never full.
    fn send(&self, item: Decoded) -> bool {
        self.spec.output.try_send(item).is_ok()
    }

    /// `logits` stand behind `token`, whose K and V are in place now; whether the sequence goes on.
    fn advance(&mut self, logits: &[f32]) -> bool {
        self.position += 1;
        self.key_positions.push(self.position);
        self.take(logits)
    }
}

/// Advances every running sequence by one token and drops those that ended.
///
/// A panic is charged to the sequence that causes it: the step is repeated one sequence at a time, which the kernels'
/// row invariance and the idempotent writes make harmless to the others.
pub(super) fn step(running: &mut Vec<Running>, model: &Model, pool: &mut KvPool) {
    running.retain(|sequence| !sequence.spec.output.is_closed());
    if running.is_empty() {
        return;
    }
    let mut batch: Vec<&mut Running> = running.iter_mut().collect();
    let together = catch_unwind(AssertUnwindSafe(|| logits(&batch, model, pool)));
    let goes_on: Vec<bool> = match together {
        Ok(Ok(logits)) => {
            batch.iter_mut().enumerate().map(|(row, sequence)| sequence.advance(logits.row(row))).collect()
        }
        _ => batch.iter_mut().map(|sequence| alone(sequence, model, pool)).collect(),
    };
    let mut goes_on = goes_on.into_iter();
    running.retain(|_| goes_on.next().unwrap_or(false));
}

fn alone(sequence: &mut Running, model: &Model, pool: &mut KvPool) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(|| logits(&[sequence], model, pool)));
    let error = match outcome {
        Ok(Ok(logits)) => return sequence.advance(logits.row(0)),
        Ok(Err(error)) => error,
        Err(panic) => engine_panicked(panic.as_ref()),
    };
    sequence.send(Decoded::Failed(error));
    false
}

/// Logits behind each sequence's last token, `[sequences, vocab]`; writes that token's K and V into its blocks.
fn logits(batch: &[&mut Running], model: &Model, pool: &mut KvPool) -> Result<Matrix> {
    let tokens: Vec<u32> = batch.iter().map(|sequence| sequence.token).collect();
    let mut hidden = model.embed(&tokens)?;
    for layer in 0..model.config().layers {
        let kv = model.project_kv(layer, &hidden);
        for (row, sequence) in batch.iter().enumerate() {
            let place = std::slice::from_ref(&sequence.position);
            debug_assert!(sequence.table.is_writable(sequence.position as usize), "nobody else reads what is written");
            let (k, v) = (KvData::F32(kv.k.row(row)), KvData::F32(kv.v.row(row)));
            pool.write(layer, model.rope(), sequence.table.blocks(), place, place, k, v)?;
        }
        let groups: Vec<RowGroup<'_>> = batch
            .iter()
            .enumerate()
            .map(|(row, sequence)| RowGroup {
                rows: row..row + 1,
                positions: std::slice::from_ref(&sequence.position),
                sequence: SequenceView { blocks: sequence.table.blocks(), key_positions: &sequence.key_positions },
            })
            .collect();
        model.finish_layer(layer, &mut hidden, &groups, pool);
    }
    Ok(model.logits(&hidden))
}
