//! Rotation, and placing into the pool.

use super::Check;
use super::compare::Tolerance;
use super::inputs::{Input, rounding};
use crate::launch::{self, Element, Fresh, Heads, Turn};
use crate::session::Buffer;
use ragstone_kernels::dtype::KvDtype::{self, Bf16, F16, F32};
use ragstone_kernels::error::Result;
use ragstone_kernels::pool::BLOCK_TOKENS;

/// Positions that there are angles for.
const POSITIONS: u32 = 40;

pub(super) fn check(check: &mut Check) -> Result<()> {
    // Rows, half of a head, pairs that are turned: all, some, none.
    let fixed = [[1, 1, 1], [2, 3, 1], [7, 32, 32], [17, 40, 20], [33, 3, 0]];
    let shapes = check.shapes(&fixed, [60, 128, 128]);
    for [rows, half, pairs] in shapes {
        let pairs = pairs.min(half);
        for dtype in [F32, F16, Bf16] {
            rotate(check, dtype, (rows, 3, 2 * half), pairs)?;
            place(check, dtype, (rows, 2, 2 * half), pairs)?;
            place_fresh(check, dtype, Heads { heads: 4, kv_heads: 2, head_dim: 2 * half }, rows, pairs)?;
        }
    }
    Ok(())
}

/// `[positions][2][pairs]`: cosines, then sines. Nothing where nothing is turned.
fn angles(check: &Check, pairs: u32) -> Result<Option<Input>> {
    if pairs == 0 {
        return Ok(None);
    }
    let angle = |position: u32, pair: u32| f64::from(position) / 100_f64.powf(f64::from(pair) / f64::from(pairs));
    let of = |position| {
        let cosines = (0..pairs).map(move |pair| angle(position, pair).cos() as f32);
        cosines.chain((0..pairs).map(move |pair| angle(position, pair).sin() as f32))
    };
    check.given(F32, (0..POSITIONS).flat_map(of).collect()).map(Some)
}

fn turn(angles: Option<&Input>, pairs: u32) -> Turn {
    Turn { angles: angles.map_or(0, |angles| angles.at), pairs }
}

/// A head at `position`.
fn turned(head: &[f32], angles: Option<&Input>, position: u32, pairs: u32) -> Vec<f64> {
    let mut head: Vec<f64> = head.iter().map(|value| f64::from(*value)).collect();
    let Some(angles) = angles else { return head };
    let pairs = pairs as usize;
    for pair in 0..pairs {
        let first = position as usize * 2 * pairs + pair;
        let (cosine, sine) = (angles.f64(first), angles.f64(first + pairs));
        let (a, b) = (head[pair], head[pair + pairs]);
        head[pair] = a * cosine - b * sine;
        head[pair + pairs] = b * cosine + a * sine;
    }
    head
}

/// Where both halves of a rotation nearly cancel, the error is that of the halves.
fn tolerance(dtype: KvDtype) -> Tolerance {
    Tolerance::new(rounding(dtype) + 1e-6, 2e-6)
}

fn rotate(check: &mut Check, dtype: KvDtype, (rows, heads, head_dim): (u32, u32, u32), pairs: u32) -> Result<()> {
    const SCALE: f32 = 0.25;
    let (count, len) = ((rows * heads * head_dim) as usize, head_dim as usize);
    let (input, angles) = (check.random(F32, count, 1.0)?, angles(check, pairs)?);
    let positions: Vec<u32> = (0..rows).map(|_| check.below(POSITIONS)).collect();
    let (positions_there, out) = (check.session.upload(&positions)?, check.room(dtype, count)?);
    let places = (out.pointer(), input.at, positions_there.pointer());
    let shape = Heads { heads, kv_heads: heads, head_dim };
    let launch = launch::rotate(Element::from(dtype), places, turn(angles.as_ref(), pairs), SCALE, rows, shape);
    check.run(&launch)?;
    let wanted: Vec<f64> =
        input.values.chunks(len).enumerate().fold(Vec::with_capacity(count), |mut all, (head, values)| {
            let position = positions[head / heads as usize];
            all.extend(turned(values, angles.as_ref(), position, pairs).iter().map(|value| value * f64::from(SCALE)));
            all
        });
    let got = check.read(dtype, &out, count)?;
    let case = format!("{rows} rows of {heads} heads of {head_dim}, {pairs} pairs");
    check.compare(&launch.name, &case, &got, &wanted, tolerance(dtype));
    Ok(())
}

/// Tokens go to slots in no order, of blocks in no order; what no token is written to stays.
fn place(check: &mut Check, dtype: KvDtype, (tokens, kv_heads, head_dim): (u32, u32, u32), pairs: u32) -> Result<()> {
    const BEFORE: f32 = 77.0;
    let (len, kv_dim) = (head_dim as usize, (kv_heads * head_dim) as usize);
    let own_blocks = tokens / BLOCK_TOKENS as u32 + 3;
    let pool_blocks = own_blocks + 4;
    let (k, v) =
        (check.random(dtype, tokens as usize * kv_dim, 1.0)?, check.random(dtype, tokens as usize * kv_dim, 1.0)?);
    let angles = angles(check, pairs)?;
    let blocks = check.shuffled(pool_blocks);
    let mut slots = check.shuffled(own_blocks * BLOCK_TOKENS as u32);
    slots.truncate(tokens as usize);
    let positions: Vec<u32> = (0..tokens).map(|_| check.below(POSITIONS)).collect();
    let pool_len = pool_blocks as usize * BLOCK_TOKENS * kv_dim;
    let (mut wanted_k, mut wanted_v) = (vec![f64::from(BEFORE); pool_len], vec![f64::from(BEFORE); pool_len]);
    for token in 0..tokens as usize {
        let (block, in_block) = (blocks[slots[token] as usize / BLOCK_TOKENS], slots[token] as usize % BLOCK_TOKENS);
        for head in 0..kv_heads as usize {
            let from = token * kv_dim + head * len;
            let to = ((block as usize * kv_heads as usize + head) * BLOCK_TOKENS + in_block) * len;
            let key = turned(&k.values[from..from + len], angles.as_ref(), positions[token], pairs);
            wanted_k[to..to + len].copy_from_slice(&key);
            (0..len).for_each(|i| wanted_v[to + i] = v.f64(from + i));
        }
    }
    let (keys, values) = (check.given(dtype, vec![BEFORE; pool_len])?, check.given(dtype, vec![BEFORE; pool_len])?);
    let lists = [check.session.upload(&blocks)?, check.session.upload(&slots)?, check.session.upload(&positions)?];
    let [blocks, slots, positions] = lists.each_ref().map(|list| list.pointer());
    let launch = launch::place(
        Element::from(dtype),
        (keys.at, values.at),
        (k.at, v.at),
        (blocks, slots, positions),
        turn(angles.as_ref(), pairs),
        tokens,
        Heads { heads: kv_heads, kv_heads, head_dim },
    );
    check.run(&launch)?;
    let case = format!("{tokens} tokens of {kv_heads} heads of {head_dim}, {pairs} pairs");
    let got = check.read(dtype, keys.buffer(), pool_len)?;
    check.compare(&launch.name, &format!("keys of {case}"), &got, &wanted_k, tolerance(dtype));
    let got = check.read(dtype, values.buffer(), pool_len)?;
    check.compare(&launch.name, &format!("values of {case}"), &got, &wanted_v, Tolerance::exact());
    Ok(())
}

/// A step's rows in one launch have the bits of several.
fn place_fresh(check: &mut Check, dtype: KvDtype, heads: Heads, rows: u32, pairs: u32) -> Result<()> {
    let (query_dim, kv_dim, count) = (heads.query_dim(), heads.kv_dim(), rows as usize);
    let (element, angles) = (Element::from(dtype), angles(check, pairs)?);
    let turn = turn(angles.as_ref(), pairs);
    let own_blocks = rows / BLOCK_TOKENS as u32 + 2;
    let blocks = check.shuffled(own_blocks + 3);
    let mut slots = check.shuffled(own_blocks * BLOCK_TOKENS as u32);
    slots.truncate(count);
    let positions: Vec<u32> = (0..rows).map(|_| check.below(POSITIONS)).collect();
    let lists = [check.session.upload(&blocks)?, check.session.upload(&slots)?, check.session.upload(&positions)?];
    let [blocks_at, slots_at, positions_at] = lists.each_ref().map(|list| list.pointer());
    let fresh = [query_dim, kv_dim, kv_dim].map(|width| check.random(F32, count * width, 1.0));
    let [q, k, v] = fresh;
    let (q, k, v) = (q?, k?, v?);
    let pool_len = blocks.len() * BLOCK_TOKENS * kv_dim;
    let room = |check: &Check| -> Result<[Buffer; 5]> {
        let all = [count * query_dim, count * kv_dim, count * kv_dim, pool_len, pool_len];
        let [a, b, c, d, e] = all.map(|count| check.room(dtype, count));
        Ok([a?, b?, c?, d?, e?])
    };
    let (apart, at_once) = (room(check)?, room(check)?);
    let at = |buffers: &[Buffer; 5]| buffers.each_ref().map(Buffer::pointer);
    const SCALE: f32 = 0.125;
    let [q_to, k_to, v_to, keys, values] = at(&apart);
    check.run(&launch::rotate(element, (q_to, q.at, positions_at), turn, SCALE, rows, heads))?;
    for (from, to) in [(&k, k_to), (&v, v_to)] {
        check.run(&launch::convert(element, to, from.at, (count * kv_dim) as u64))?;
    }
    let places = (blocks_at, slots_at, positions_at);
    check.run(&launch::place(element, (keys, values), (k_to, v_to), places, turn, rows, heads))?;
    let [q_to, k_to, v_to, keys, values] = at(&at_once);
    let of = Fresh { from: [q.at, k.at, v.at], to: [q_to, k_to, v_to], pool: (keys, values), scale: SCALE };
    let launch = launch::place_fresh(element, of, places, turn, rows, heads);
    check.run(&launch)?;
    let widths = [count * query_dim, count * kv_dim, count * kv_dim, pool_len, pool_len];
    for (which, width) in widths.into_iter().enumerate() {
        let read = |of: &[Buffer; 5]| check.session.download(of[which].pointer(), width * dtype.size_in_bytes());
        let (got, wanted) = (read(&at_once)?, read(&apart)?);
        let case = format!("output {which} of {rows} rows, {}/{} heads, {pairs} pairs", heads.heads, heads.kv_heads);
        check.compare_bytes(&launch.name, &case, &got, &wanted);
    }
    Ok(())
}
