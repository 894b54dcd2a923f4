//! A beam search in the engine: a sequence group whose answers fork and end by each other's scores (PagedAttention, section 4.4). Beams share
//! the blocks of what they have in common; one that goes on twice is forked, and copies a block when it first writes to it; one that does
//! not go on gives its own back at once.

use ragstone_kernels::sampling::{BeamRow, Beams, Continuation, Sampled, Sampler};
use ragstone_storage::block::BlockTable;
use tokio::sync::mpsc;

use super::sequence::Tail;
use super::{DecodeSpec, Decoded};
use crate::error::{Error, ErrorKind, Result};
use crate::report::FinishReason;

/// The search of one group. Its beams are the group's tails, in the search's order; what they say is sent when it is over.
pub(super) struct BeamGroup {
    beams: Beams,
    /// For the best answer first. Each beam's tail has one of them, too, so that whoever leaves or fails is noticed as with other tails.
    outputs: Vec<mpsc::Sender<Decoded>>,
}

impl BeamGroup {
    /// The search that `decode` asks for, if it does: as wide as there are answers.
    pub(super) fn of(decode: &[DecodeSpec]) -> Option<Self> {
        let first = decode.first()?;
        let search = first.sampler.params().beams?;
        let beams = Beams::new(decode.len(), search, first.max_tokens, &first.end_tokens);
        Some(Self { beams, outputs: decode.iter().map(|spec| spec.output.clone()).collect() })
    }

    /// The beams behind a prompt whose logits these are, in `table`, which has a token at each of `key_positions`. None where the search is
    /// over already.
    pub(super) fn begin(
        &mut self,
        decode: &[DecodeSpec],
        table: BlockTable,
        key_positions: Vec<u32>,
        logits: Vec<f32>,
    ) -> Vec<Tail> {
        let Some(first) = decode.first() else { return Vec::new() };
        let mut prompt = Tail::of_beam(first.clone(), table, key_positions, 0);
        prompt.hear(logits);
        self.step(vec![prompt])
    }

    /// Goes on from beams that all heard what may come behind them. None where the search is over: then the answers were sent.
    pub(super) fn step(&mut self, mut tails: Vec<Tail>) -> Vec<Tail> {
        match self.choose(&tails) {
            Ok(next) if next.is_empty() => {
                self.end();
                Vec::new()
            }
            Ok(next) => self.go_on(&mut tails, &next),
            Err(error) => {
                self.fail(&error);
                Vec::new()
            }
        }
    }

    fn choose(&mut self, tails: &[Tail]) -> Result<Vec<Continuation>> {
        let heard = |tail: &Tail| -> Result<(Vec<f32>, Vec<f32>)> {
            let logits = tail.heard().unwrap_or_default().to_vec();
            Ok((tail.spec.sampler.scores(&logits)?, logits))
        };
        let heard: Vec<(Vec<f32>, Vec<f32>)> = tails.iter().map(heard).collect::<Result<_>>()?;
        let samplers = tails.iter().map(|tail| &tail.spec.sampler);
        let describe: Vec<_> =
            heard.iter().zip(samplers).map(|((_, logits), sampler)| describing(sampler, logits)).collect();
        let pairs = heard.iter().zip(&describe);
        let rows: Vec<BeamRow<'_>> =
            pairs.map(|((scores, _), describe)| BeamRow { scores: &scores[..], sampled: describe }).collect();
        Ok(self.beams.step(&rows))
    }

    /// The tails of the next step. Of a beam's continuations, the last one has its table, and those before it forks.
    fn go_on(&self, tails: &mut [Tail], next: &[Continuation]) -> Vec<Tail> {
        let mut left = vec![0; tails.len()];
        next.iter().for_each(|next| left[next.parent] += 1);
        let mut beams = Vec::with_capacity(next.len());
        for (Continuation { parent, token }, output) in next.iter().zip(&self.outputs) {
            left[*parent] -= 1;
            let tail = &mut tails[*parent];
            let mut spec = DecodeSpec { output: output.clone(), ..tail.spec.clone() };
            if let Err(error) = spec.sampler.choose(*token) {
                self.fail(&error);
                return Vec::new();
            }
            let table = if left[*parent] > 0 { tail.table.fork() } else { tail.table.take() };
            beams.push(Tail::of_beam(spec, table, tail.key_positions.clone(), *token));
        }
        beams
    }

    fn end(&self) {
        let found = self.beams.clone().into_hypotheses();
        for (output, hypothesis) in self.outputs.iter().zip(&found) {
            // The channel holds a whole answer; a client that left is no error.
            for token in &hypothesis.tokens {
                let _ = output.try_send(Decoded::Token(token.clone()));
            }
            let reason = if hypothesis.ended { FinishReason::Stop } else { FinishReason::Length };
            let _ = output.try_send(Decoded::End(reason));
        }
        // Where hardly any token is possible, there may be fewer texts than beams.
        let found = found.len();
        for output in self.outputs.iter().skip(found) {
            let message = format!("the beam search found no more than {found} answers; ask for as many, or fewer");
            let _ = output.try_send(Decoded::Failed(Error::new(ErrorKind::InvalidInput, message)));
        }
    }

    fn fail(&self, error: &Error) {
        for output in &self.outputs {
            let _ = output.try_send(Decoded::Failed(Error::new(error.kind(), error.to_string())));
        }
    }
}

fn describing<'l>(sampler: &'l Sampler, logits: &'l [f32]) -> impl Fn(u32) -> Sampled + 'l {
    |id| sampler.describe(logits, id)
}
