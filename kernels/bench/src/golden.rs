//! A trained model's answers on a GPU beside what the processor makes of the same texts in f32, which tests hold to transformers.
//!
//! The GPU gives its likeliest tokens. The processor then reads prompt and answer and says at each place how much likelier its own favourite is than
//! the token that was taken: the regret, in nats, 0 where both take the same. The processor in the checkpoint's own type is measured the same way:
//! that is what rounding alone does, and a GPU may have twice of it. Answers must also have the same bits alone, in pieces, beside others and
//! without graphs. `ops/gpu/golden.py` does the same with the whole program and transformers, where both are there.

use std::ops::Range;
use std::path::Path;

use ragstone_cuda::{CudaModel, GpuList};
use ragstone_kernels::backend::Backend;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::forward::{Chunk, Forward, Outcome, Places, Rider, Wanted};
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};
use ragstone_kernels::sampling::argmax;
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_terminal::output;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Passages of a prompt.
const PASSAGES: usize = 4;
/// Rows of a prompt in pieces.
const PIECE: usize = 100;
/// Beside twice what rounding alone does, as `ops/gpu/golden.py` has it.
const MORE: Regret = Regret { mean: 0.002, p99: 0.05, max: 0.1 };

/// A question with passages, as `examples/world/held-out.json` has them.
#[derive(Debug, Deserialize)]
struct Question {
    question: String,
    ctxs: Vec<Passage>,
}

#[derive(Debug, Deserialize)]
struct Passage {
    title: String,
    text: String,
}

/// Nats: mean, 99th percentile by the nearest rank, greatest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Regret {
    pub mean: f64,
    pub p99: f64,
    pub max: f64,
}

/// In the form of `ops/gpu/golden.py`.
#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub device: String,
    pub questions: usize,
    pub tokens: usize,
    pub reference: &'static str,
    pub rounding: Rounding,
    pub limits: Regret,
    pub modes: Vec<Mode>,
    pub ok: bool,
}

/// What the processor in the checkpoint's type would regret.
#[derive(Debug, Serialize)]
pub struct Rounding {
    pub dtype: &'static str,
    pub regret: Regret,
}

/// Answers that were computed in one way.
#[derive(Debug, Serialize)]
pub struct Mode {
    pub mode: &'static str,
    pub positions: usize,
    pub regret: Regret,
    /// How far log-probabilities of the taken tokens are from the reference's.
    pub logprob_off: Regret,
    pub same_bits_as_alone: bool,
    pub ok: bool,
}

/// Compares the first `questions` of a file, `tokens` of each answer.
///
/// # Errors
/// Where the model, the file or the GPU cannot be used.
pub fn compare(gpus: GpuList, folder: &Path, file: &Path, questions: usize, tokens: usize) -> Result<Report> {
    let prompts = prompts(folder, file, questions)?;
    let cuda = CudaModel::load(folder, gpus, LoadOptions::default())?;
    let exact = LoadOptions {
        kv_dtype: Some(KvDtype::F32),
        weights: Some(WeightFormat::F32),
        compute: Some(ComputeDtype::F32),
        ..Default::default()
    };
    let (exact, rounded) = (Model::load(folder, exact)?, Model::load(folder, LoadOptions::default())?);
    let alone = answers(&cuda, &prompts, tokens, (1, usize::MAX))?;
    let references = alone.iter().zip(&prompts).map(|(answer, prompt)| logprobs(&exact, prompt, &answer.ids));
    let references = references.collect::<Result<Vec<_>>>()?;
    let mut noise = Vec::new();
    for ((answer, prompt), theirs) in alone.iter().zip(&prompts).zip(&references) {
        let taken = logprobs(&rounded, prompt, &answer.ids)?;
        noise.extend(taken.iter().zip(theirs).map(|(taken, theirs)| regret(theirs, best(taken))));
    }
    let noise = Regret::of(noise)?;
    let limits = noise.doubled_and(MORE);
    let mut modes = vec![mode("alone", &alone, &alone, &references, limits)?];
    modes.push(mode("in pieces", &answers(&cuda, &prompts, tokens, (1, PIECE))?, &alone, &references, limits)?);
    modes.push(mode("batched", &answers(&cuda, &prompts, tokens, (8, usize::MAX))?, &alone, &references, limits)?);
    if cuda.replays_graphs() {
        cuda.replay_graphs(false);
        let plain = answers(&cuda, &prompts, tokens, (1, usize::MAX))?;
        modes.push(mode("without graphs", &plain, &alone, &references, limits)?);
    }
    Ok(Report {
        model: folder.display().to_string(),
        device: cuda.gpu(),
        questions: prompts.len(),
        tokens,
        reference: "the processor in f32",
        rounding: Rounding { dtype: rounded.arithmetic().compute.name(), regret: noise },
        limits,
        ok: modes.iter().all(|mode| mode.ok),
        modes,
    })
}

/// The tokens of each prompt.
fn prompts(folder: &Path, file: &Path, count: usize) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(file).map_err(|error| Error::io("cannot read", file, error))?;
    let questions: Vec<Question> = serde_json::from_str(&text)
        .map_err(|error| Error::invalid_input(format!("{} has no questions with passages: {error}", file.display())))?;
    let tokenizer = Tokenizer::from_folder(folder)?;
    let tokens = |one: &Question| {
        let passages = one.ctxs.iter().take(PASSAGES);
        let passages: String = passages.map(|of| format!("Passage: {} | {}\n", of.title, of.text)).collect();
        let question = &one.question;
        tokenizer
            .encode(&format!("Answer each question from the passages.\n{passages}Question: {question}\nAnswer:"), true)
    };
    questions.iter().take(count).map(tokens).collect()
}

/// An answer, with the logits that each of its tokens was taken by.
#[derive(Debug)]
struct Answer {
    ids: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// A prompt with room for its answer.
struct Sequence {
    blocks: Vec<BlockId>,
    positions: Vec<u32>,
    tokens: Vec<u32>,
}

/// Sequences that share a pool.
struct Group<'a, B: Backend> {
    model: &'a B,
    pool: B::Pool,
    sequences: Vec<Sequence>,
}

impl<'a, B: Backend> Group<'a, B> {
    fn new(model: &'a B, prompts: &[Vec<u32>], more: usize) -> Self {
        let mut next = 0;
        let mut sequence = |prompt: &Vec<u32>| {
            let (count, first) = ((prompt.len() + more).div_ceil(BLOCK_TOKENS) as u32, next);
            next += count;
            let positions = (0..(prompt.len() + more) as u32).collect();
            Sequence { blocks: (first..next).map(BlockId).collect(), positions, tokens: prompt.clone() }
        };
        let sequences = prompts.iter().map(&mut sequence).collect();
        Self { model, pool: model.new_pool(next as usize), sequences }
    }

    /// Computes so much of each sequence, and gives the logits of all these rows, or of the last one.
    fn pass(&mut self, rows: &[Range<usize>], wanted: Wanted) -> Result<Vec<Vec<Vec<f32>>>> {
        let rider = |(sequence, rows): (&'_ Sequence, &Range<usize>)| {
            let places = Places::of(rows.start as u32..rows.end as u32, &sequence.positions);
            Ok((Chunk::embed(self.model, &sequence.tokens[rows.clone()], places, wanted)?, rows.end))
        };
        let chunks = self.sequences.iter().zip(rows).map(rider).collect::<Result<Vec<_>>>()?;
        let riders = self.sequences.iter().zip(chunks).map(|(sequence, (chunk, end))| Rider {
            chunk,
            blocks: &sequence.blocks,
            key_positions: &sequence.positions[..end],
            selector: None,
        });
        let passed = Forward::new(self.model, &mut self.pool).pass(riders.collect());
        self.model.check()?;
        let width = passed.logits.cols();
        let of = |outcome| match outcome {
            Outcome::Done(rows) => {
                let all = &passed.logits.as_slice()[rows.start * width..rows.end * width];
                Ok(all.chunks(width).map(<[f32]>::to_vec).collect())
            }
            Outcome::Failed(error) => Err(error),
            _ => Err(Error::internal("a pass that nobody stops stopped")),
        };
        passed.outcomes.into_iter().map(of).collect()
    }
}

/// The likeliest tokens after each prompt: so many prompts together, each in pieces of so many rows.
fn answers<B: Backend>(
    model: &B,
    prompts: &[Vec<u32>],
    tokens: usize,
    (at_once, piece): (usize, usize),
) -> Result<Vec<Answer>> {
    let mut all = Vec::new();
    for prompts in prompts.chunks(at_once) {
        let mut group = Group::new(model, prompts, tokens);
        let (mut answers, mut done) = (Vec::new(), vec![0_usize; prompts.len()]);
        answers.resize_with(prompts.len(), || Answer { ids: Vec::new(), logits: Vec::new() });
        while answers.iter().any(|answer| answer.ids.len() < tokens) {
            let ends =
                group.sequences.iter().zip(&done).map(|(of, done)| of.tokens.len().min(done.saturating_add(piece)));
            let rows: Vec<Range<usize>> = done.iter().zip(ends).map(|(done, end)| *done..end).collect();
            let logits = group.pass(&rows, Wanted::Last)?;
            for (index, mut last) in logits.into_iter().enumerate() {
                done[index] = rows[index].end;
                let sequence = &mut group.sequences[index];
                if done[index] < sequence.tokens.len() {
                    continue;
                }
                let last = last.pop().unwrap_or_default();
                let id = argmax(&last).ok_or_else(|| Error::internal("the model's logits are not numbers"))? as u32;
                sequence.tokens.push(id);
                answers[index].ids.push(id);
                answers[index].logits.push(last);
            }
        }
        all.extend(answers);
    }
    Ok(all)
}

/// Log-probabilities of every token of the vocabulary at each place of an answer, the tokens before it being given.
fn logprobs<B: Backend>(model: &B, prompt: &[u32], ids: &[u32]) -> Result<Vec<Vec<f64>>> {
    let mut group = Group::new(model, &[prompt.to_vec()], ids.len());
    group.sequences[0].tokens.extend(&ids[..ids.len().saturating_sub(1)]);
    let all = 0..group.sequences[0].tokens.len();
    let rows = group.pass(&[all], Wanted::All)?.pop().unwrap_or_default();
    Ok(rows[prompt.len() - 1..].iter().map(|logits| log_softmax(logits)).collect())
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - most) - sum.ln()).collect()
}

fn best(logprobs: &[f64]) -> usize {
    (0..logprobs.len()).max_by(|a, b| logprobs[*a].total_cmp(&logprobs[*b])).unwrap_or(0)
}

fn regret(theirs: &[f64], taken: usize) -> f64 {
    theirs[best(theirs)] - theirs[taken]
}

/// `references` are those of what was said alone: answers that differ from it are judged up to there.
fn mode(
    mode: &'static str,
    answers: &[Answer],
    alone: &[Answer],
    references: &[Vec<Vec<f64>>],
    limits: Regret,
) -> Result<Mode> {
    let (mut regrets, mut off, mut same) = (Vec::new(), Vec::new(), true);
    for ((answer, alone), theirs) in answers.iter().zip(alone).zip(references) {
        for (index, (logits, theirs)) in answer.logits.iter().zip(theirs).enumerate() {
            let id = answer.ids[index] as usize;
            regrets.push(regret(theirs, id));
            off.push((theirs[id] - log_softmax(logits)[id]).abs());
            same &= logits.iter().zip(&alone.logits[index]).all(|(a, b)| a.to_bits() == b.to_bits());
            if answer.ids[index] != alone.ids[index] {
                break;
            }
        }
    }
    let positions = regrets.len();
    let (regret, logprob_off) = (Regret::of(regrets)?, Regret::of(off)?);
    let ok = same && regret.is_within(limits);
    Ok(Mode { mode, positions, regret, logprob_off, same_bits_as_alone: same, ok })
}

impl Regret {
    fn of(mut values: Vec<f64>) -> Result<Self> {
        values.sort_by(f64::total_cmp);
        let (Some(max), count) = (values.last().copied(), values.len()) else {
            return Err(Error::invalid_input("no question with passages is in that file"));
        };
        let mean = values.iter().sum::<f64>() / count as f64;
        Ok(Self { mean, p99: values[(count * 99).div_ceil(100) - 1], max })
    }

    fn doubled_and(self, more: Self) -> Self {
        Self { mean: 2.0 * self.mean + more.mean, p99: 2.0 * self.p99 + more.p99, max: 2.0 * self.max + more.max }
    }

    fn is_within(self, limits: Self) -> bool {
        self.mean <= limits.mean && self.p99 <= limits.p99 && self.max <= limits.max
    }
}

/// For people, or as JSON; an error where something is off.
///
/// # Errors
/// See above.
pub fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        output::json(report)?;
    } else {
        let line = |name: &str, of: Regret, more: &str| {
            output::line(&format!("{name:<22} {:>8.4} {:>8.4} {:>8.4}   {more}", of.mean, of.p99, of.max))
        };
        output::line("regret in nats             mean      p99      max")?;
        line(&format!("{} by rounding alone", report.rounding.dtype), report.rounding.regret, "")?;
        line("limit", report.limits, "")?;
        for of in &report.modes {
            let same = if of.same_bits_as_alone { "same bits" } else { "OTHER BITS" };
            line(of.mode, of.regret, &format!("{same}, {}", if of.ok { "ok" } else { "NOT ok" }))?;
        }
    }
    match report.modes.iter().find(|mode| !mode.ok) {
        Some(mode) => Err(Error::internal(format!("answers computed {} are off", mode.mode))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_none_for_the_favourite_and_within_limits() {
        let theirs = log_softmax(&[1.0, 3.0, 2.0]);
        assert!((theirs.iter().map(|of| of.exp()).sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(regret(&theirs, 1), 0.0);
        assert!((regret(&theirs, 2) - 1.0).abs() < 1e-6);
        let of = Regret::of((1..=200).map(f64::from).collect()).unwrap();
        assert_eq!(of, Regret { mean: 100.5, p99: 198.0, max: 200.0 });
        assert!(of.is_within(of) && !of.doubled_and(MORE).is_within(of));
        assert!(Regret::of(Vec::new()).is_err());
    }

    #[test]
    fn a_bit_or_another_token_is_seen() {
        let answer =
            |ids: &[u32], first: f32| Answer { ids: ids.to_vec(), logits: vec![vec![first, 0.0], vec![0.5, 1.0]] };
        let alone = [answer(&[0, 1], 2.0)];
        let references = vec![vec![log_softmax(&[2.0, 0.0]), log_softmax(&[0.5, 1.0])]];
        let judged = |answers: [Answer; 1]| mode("x", &answers, &alone, &references, MORE).unwrap();
        assert!(judged([answer(&[0, 1], 2.0)]).ok);
        let other = judged([answer(&[0, 1], 2.0_f32.next_up())]);
        assert!(!other.ok && !other.same_bits_as_alone && other.regret.max == 0.0);
        let other = judged([answer(&[1, 1], 2.0)]);
        assert!(!other.ok && other.positions == 1 && other.regret.max > 1.9);
    }
}
