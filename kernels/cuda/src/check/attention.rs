//! Attention near its definition, and its bits the same whole, split over the context, in larger tiles and row by row.
//!
//! Sequences have blocks in no order, positions in no order and with gaps, and slots that are hidden. These hold no numbers: a kernel
//! that reads them is seen.

use super::Check;
use super::compare::Tolerance;
use super::inputs::{Input, rounding};
use crate::attention::{HostTables, Tables, tile_rows, wide_tile_rows};
use crate::launch::{self, Element, Heads, SEGMENT, hopper};
use ragstone_kernels::backend::{RowGroup, SequenceView};
use ragstone_kernels::dtype::KvDtype::{self, Bf16, F16, F32};
use ragstone_kernels::error::Result;
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};

const HIDDEN: u32 = u32::MAX;

/// What attends to what.
#[derive(Debug, Clone)]
struct Case {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    /// 0 for none.
    window: u32,
    has_slopes: bool,
    /// Rows and slots of each sequence.
    sequences: Vec<(u32, u32)>,
    /// Whether sequences are as prompts are, without gaps and hidden slots.
    is_plain: bool,
}

fn case(
    [heads, kv_heads, head_dim, window]: [u32; 4],
    has_slopes: bool,
    sequences: &[(u32, u32)],
    is_plain: bool,
) -> Case {
    Case { heads, kv_heads, head_dim, window, has_slopes, sequences: sequences.to_vec(), is_plain }
}

fn cases(check: &mut Check) -> Vec<Case> {
    let mut cases = vec![
        case([1, 1, 2, 0], false, &[(1, 1)], false),
        case([2, 1, 6, 0], true, &[(2, 5), (1, 17)], false),
        case([4, 2, 64, 9], true, &[(17, 130), (1, 513)], false),
        case([14, 2, 64, 0], false, &[(1, 1100), (2, 33)], false),
        case([3, 3, 8, 0], false, &[(70, 90)], false),
        case([8, 1, 96, 20], false, &[(9, 129)], false),
        case([6, 2, 128, 0], false, &[(2, 600), (30, 66)], false),
        case([2, 1, 250, 0], false, &[(7, 40)], false),
        case([4, 1, 64, 0], false, &[(40, 200), (1, 640), (16, 16)], true),
        case([2, 1, 128, 150], false, &[(40, 300), (1, 64)], true),
        case([2, 2, 256, 40], true, &[(20, 130)], true),
    ];
    for [group, kv_heads, half, rows, slots] in check.shapes(&[], [8, 4, 128, 40, 1500]) {
        let (window, is_plain) = (check.below(3) * slots / 4, check.below(2) == 1);
        let sequences = [(rows.min(slots), slots), (1, slots / 2 + 1)];
        cases.push(case([group * kv_heads, kv_heads, 2 * half, window], check.below(2) == 1, &sequences, is_plain));
    }
    if check.options.large {
        cases.push(case([28, 4, 128, 0], false, &[(1, 16_384), (64, 4096)], true));
    }
    cases
}

pub(super) fn check(check: &mut Check) -> Result<()> {
    for of in cases(check) {
        for dtype in [F32, F16, Bf16] {
            let batch = Batch::new(check, dtype, of.clone())?;
            mixed(check, &batch)?;
            looked_at(check, &batch)?;
        }
    }
    Ok(())
}

struct Sequence {
    row_positions: Vec<u32>,
    key_positions: Vec<u32>,
    blocks: Vec<BlockId>,
}

/// What is attended to, on both sides.
struct Batch {
    of: Case,
    dtype: KvDtype,
    sequences: Vec<Sequence>,
    q: Input,
    keys: Input,
    values: Input,
    slopes: Input,
}

impl Batch {
    fn new(check: &mut Check, dtype: KvDtype, of: Case) -> Result<Self> {
        let blocks_of = |slots: u32| slots.div_ceil(BLOCK_TOKENS as u32);
        let pool_blocks = 2 + of.sequences.iter().map(|(_, slots)| blocks_of(*slots)).sum::<u32>();
        let mut free: Vec<BlockId> = check.shuffled(pool_blocks).into_iter().map(BlockId).collect();
        let mut sequences = Vec::new();
        for &(rows, slots) in &of.sequences {
            let blocks = free.split_off(free.len() - blocks_of(slots) as usize);
            let (row_positions, key_positions) = positions(check, (rows, slots), of.is_plain);
            sequences.push(Sequence { row_positions, key_positions, blocks });
        }
        let (head, rows) = (of.head_dim as usize, of.sequences.iter().map(|(rows, _)| *rows as usize).sum::<usize>());
        let spread = 1.5 / (head as f32).sqrt();
        let q = check.random(dtype, rows * of.heads as usize * head, spread)?;
        let len = pool_blocks as usize * of.kv_heads as usize * BLOCK_TOKENS * head;
        let (mut keys, mut values) = (vec![f32::NAN; len], vec![f32::NAN; len]);
        for sequence in &sequences {
            for slot in (0..sequence.key_positions.len()).filter(|slot| sequence.key_positions[*slot] != HIDDEN) {
                for kv_head in 0..of.kv_heads as usize {
                    let at = place(&of, sequence, slot, kv_head);
                    keys[at..at + head].copy_from_slice(&check.noise(head, 1.0));
                    values[at..at + head].copy_from_slice(&check.noise(head, 1.0));
                }
            }
        }
        let slopes = check.given(F32, (0..of.heads).map(|head| 0.02 * (head + 1) as f32).collect())?;
        let (keys, values) = (check.given(dtype, keys)?, check.given(dtype, values)?);
        Ok(Self { of, dtype, sequences, q, keys, values, slopes })
    }

    fn rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.row_positions.len()).sum()
    }

    /// Of keys, or values.
    fn pool_lines(&self) -> u32 {
        (self.keys.values.len() / self.of.head_dim as usize) as u32
    }

    fn heads(&self) -> Heads {
        Heads { heads: self.of.heads, kv_heads: self.of.kv_heads, head_dim: self.of.head_dim }
    }

    /// Each sequence's rows.
    fn groups(&self) -> Vec<RowGroup<'_>> {
        let mut first = 0;
        let group = |sequence: &'_ Sequence| {
            let rows = first..first + sequence.row_positions.len();
            first = rows.end;
            rows
        };
        let rows: Vec<_> = self.sequences.iter().map(group).collect();
        let groups = self.sequences.iter().zip(rows);
        groups
            .map(|(sequence, rows)| RowGroup {
                rows,
                positions: &sequence.row_positions,
                sequence: SequenceView { blocks: &sequence.blocks, key_positions: &sequence.key_positions },
            })
            .collect()
    }

    /// The softmax weights that a query gives to each slot of its sequence; all zero if it sees none.
    fn weights(&self, sequence: &Sequence, (row, position): (usize, u32), head: usize) -> Vec<f64> {
        let (len, heads) = (self.of.head_dim as usize, self.of.heads as usize);
        let sees = |key: u32| key <= position && (self.of.window == 0 || position - key < self.of.window);
        let kv_head = head / (self.of.heads / self.of.kv_heads) as usize;
        let slope = if self.of.has_slopes { self.slopes.f64(head) } else { 0.0 };
        let score = |slot: usize| {
            let key = sequence.key_positions[slot];
            if !sees(key) {
                return f64::NEG_INFINITY;
            }
            let (q, k) = ((row * heads + head) * len, place(&self.of, sequence, slot, kv_head));
            (0..len).map(|i| self.q.f64(q + i) * self.keys.f64(k + i)).sum::<f64>() - slope * f64::from(position - key)
        };
        let mut weights: Vec<f64> = (0..sequence.key_positions.len()).map(score).collect();
        let greatest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        weights.iter_mut().for_each(|w| *w = if w.is_finite() { (*w - greatest).exp() } else { 0.0 });
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().filter(|_| sum > 0.0).for_each(|weight| *weight /= sum);
        weights
    }

    /// By definition: `[rows, heads * head_dim]`.
    fn wanted(&self) -> Vec<f64> {
        let (len, group) = (self.of.head_dim as usize, (self.of.heads / self.of.kv_heads) as usize);
        let mut out = Vec::new();
        let mut row = 0;
        for sequence in &self.sequences {
            for position in &sequence.row_positions {
                for head in 0..self.of.heads as usize {
                    let mut sums = vec![0.0; len];
                    let weights = self.weights(sequence, (row, *position), head);
                    for (slot, weight) in weights.into_iter().enumerate().filter(|(_, weight)| *weight != 0.0) {
                        let at = place(&self.of, sequence, slot, head / group);
                        sums.iter_mut().enumerate().for_each(|(i, sum)| *sum += weight * self.values.f64(at + i));
                    }
                    out.extend(sums);
                }
                row += 1;
            }
        }
        out
    }

    fn named(&self) -> String {
        let Case { heads, kv_heads, head_dim, window, sequences, .. } = &self.of;
        format!("{heads}/{kv_heads} heads of {head_dim}, window {window}, rows and slots {sequences:?}")
    }
}

/// Where a slot's K or V begins.
fn place(of: &Case, sequence: &Sequence, slot: usize, kv_head: usize) -> usize {
    let block = sequence.blocks[slot / BLOCK_TOKENS].0 as usize;
    ((block * of.kv_heads as usize + kv_head) * BLOCK_TOKENS + slot % BLOCK_TOKENS) * of.head_dim as usize
}

/// Of rows and of slots. Some rows see nothing: they stand before the first key.
fn positions(check: &mut Check, (rows, slots): (u32, u32), is_plain: bool) -> (Vec<u32>, Vec<u32>) {
    if is_plain {
        return ((slots - rows..slots).collect(), (0..slots).collect());
    }
    let spread = slots + slots / 3;
    let mut keys: Vec<u32> = check.shuffled(spread + 2).into_iter().map(|position| position + 3).collect();
    keys.truncate(slots as usize);
    keys.iter_mut().for_each(|key| *key = if check.below(8) == 0 { HIDDEN } else { *key });
    ((0..rows).map(|_| check.below(spread + 6)).collect(), keys)
}

/// Attention of some groups' rows, whole or split over the context; also the name of the kernel that walks over it.
fn attend(
    check: &Check,
    batch: &Batch,
    groups: &[RowGroup<'_>],
    rows: usize,
    splits: bool,
) -> Result<(String, Vec<f32>)> {
    attend_in(check, batch, groups, (rows, false), splits)
}

/// The same in tiles of one of the two kernels: of so many rows, and whether they are those for compute capability 9.0.
fn attend_in(
    check: &Check,
    batch: &Batch,
    groups: &[RowGroup<'_>],
    (rows, is_wide): (usize, bool),
    splits: bool,
) -> Result<(String, Vec<f32>)> {
    let (heads, element) = (batch.heads(), Element::from(batch.dtype));
    let tables = Tables::upload(&check.session, HostTables::of(groups, rows), is_wide)?;
    let slopes = batch.of.has_slopes.then(|| batch.slopes.buffer());
    let window = (batch.of.window > 0).then_some(batch.of.window);
    let context = tables.context((batch.keys.at, batch.values.at), batch.pool_lines(), slopes, window);
    let first = groups.first().map_or(0, |group| group.rows.start);
    let count = groups.iter().map(|group| group.rows.len()).sum::<usize>() * (heads.heads * heads.head_dim) as usize;
    let q = batch.q.at + (first * (heads.heads * heads.head_dim) as usize * batch.dtype.size_in_bytes()) as u64;
    let out = check.room(F32, count)?;
    let segments = tables.host.most_slots().div_ceil(SEGMENT).max(1);
    let partial = check.session.allocate(tables.partial_bytes(segments, heads))?;
    let split = splits.then(|| (partial.pointer(), segments));
    let launches = tables.launches(element, ((out.pointer(), Element::F32), q), split, context, heads)?;
    launches.iter().try_for_each(|launch| check.run(launch))?;
    Ok((launches[0].name.clone(), check.read(F32, &out, count)?))
}

fn mixed(check: &mut Check, batch: &Batch) -> Result<()> {
    let (groups, case, dtype) = (batch.groups(), batch.named(), batch.dtype);
    let at_once = tile_rows(Element::from(dtype), batch.heads());
    let (kernel, whole) = attend(check, batch, &groups, at_once, false)?;
    // Weights are rounded, their sum is not.
    let (wanted, tolerance) = (batch.wanted(), Tolerance::new(0.0, 2.0 * rounding(dtype) + 1e-5));
    check.compare(&kernel, &case, &whole, &wanted, tolerance);
    let (_, split) = attend(check, batch, &groups, at_once, true)?;
    check.compare("attention_combine", &case, &split, &wanted, tolerance);
    check.same_bits(&format!("attention of {dtype}: whole and split context"), &case, &split, &whole);
    let (_, larger) = attend(check, batch, &groups, 2 * at_once + 1, false)?;
    check.same_bits(&format!("attention of {dtype}: small and large tiles"), &case, &larger, &whole);
    if check.session.is_hopper() && check.options.own && hopper::attends(Element::from(dtype), batch.heads()) {
        for splits in [false, true] {
            let tiles = (wide_tile_rows(batch.heads()), true);
            let (kernel, wide) = attend_in(check, batch, &groups, tiles, splits)?;
            check.compare(&kernel, &case, &wide, &wanted, tolerance);
            check.same_bits(&format!("attention of {dtype}: kernels for all GPUs and for 9.0"), &case, &wide, &whole);
        }
    }
    let width = (batch.of.heads * batch.of.head_dim) as usize;
    for row in [0, batch.rows() / 2, batch.rows() - 1] {
        let alone: Vec<_> = groups.iter().filter_map(|group| alone(group, row)).collect();
        let (_, alone) = attend(check, batch, &alone, 1, false)?;
        let what = format!("attention of {dtype}: a row alone and beside others");
        check.same_bits(&what, &format!("row {row} of {case}"), &alone, &whole[row * width..(row + 1) * width]);
    }
    Ok(())
}

/// The group of one row, if it is one of `group`'s.
fn alone<'a>(group: &RowGroup<'a>, row: usize) -> Option<RowGroup<'a>> {
    let at = row.checked_sub(group.rows.start).filter(|_| group.rows.contains(&row))?;
    Some(RowGroup { rows: row..row + 1, positions: &group.positions[at..=at], sequence: group.sequence })
}

/// What the first sequence's rows look at.
fn looked_at(check: &mut Check, batch: &Batch) -> Result<()> {
    let (sequence, heads) = (&batch.sequences[0], batch.heads());
    let (rows, slots) = (sequence.row_positions.len(), sequence.key_positions.len());
    let mut wanted = vec![0.0; rows * slots];
    for (row, position) in sequence.row_positions.iter().enumerate() {
        for head in 0..batch.of.heads as usize {
            let weights = batch.weights(sequence, (row, *position), head);
            let to = wanted[row * slots..].iter_mut();
            to.zip(weights).for_each(|(to, weight)| *to += weight / f64::from(batch.of.heads));
        }
    }
    let tables = Tables::upload(&check.session, HostTables::of(&batch.groups()[..1], rows), false)?;
    let slopes = batch.of.has_slopes.then(|| batch.slopes.buffer());
    let window = (batch.of.window > 0).then_some(batch.of.window);
    let context = tables.context((batch.keys.at, batch.values.at), batch.pool_lines(), slopes, window);
    let out = check.room(F32, rows * slots)?;
    let (element, shape) = (Element::from(batch.dtype), (rows as u32, slots as u32));
    let launch = launch::attention_weights(element, out.pointer(), batch.q.at, context, shape, heads);
    check.run(&launch)?;
    let got = check.read(F32, &out, rows * slots)?;
    check.compare(&launch.name, &batch.named(), &got, &wanted, Tolerance::new(2e-5, 2e-6));
    Ok(())
}
