//! What reuse needs beside attention: how far stored K and V are from fresh ones, and copies of blocks.

use super::Check;
use super::compare::Tolerance;
use crate::launch::{self, Element};
use ragstone_kernels::dtype::KvDtype::{self, Bf16, F16, F32};
use ragstone_kernels::error::Result;

pub(super) fn check(check: &mut Check) -> Result<()> {
    for [count, kv_dim] in check.shapes(&[[1, 2], [7, 31], [33, 160]], [60, 2000]) {
        for compared in [1, 2, 3] {
            for dtype in [F32, F16, Bf16] {
                deviation(check, dtype, (count, kv_dim), compared)?;
            }
        }
    }
    let fixed = [[1, 1, 1, 1], [3, 16, 17, 49], [2, 100, 6, 4], [1, 4096, 1, 1], [3, 4100, 1, 13], [2, 9000, 9, 1]];
    for [parts, bytes, to_gap, from_gap] in check.shapes(&fixed, [9, 20_000, 64, 64]) {
        for shift in [0, 1] {
            copy(check, parts, bytes as usize, [to_gap as usize - 1, from_gap as usize - 1], shift)?;
        }
    }
    Ok(())
}

/// `compared`: 1 K, 2 V, 3 both.
fn deviation(check: &mut Check, dtype: KvDtype, (count, kv_dim): (u32, u32), compared: u32) -> Result<()> {
    const ROWS: u32 = 9;
    const TOKENS: u32 = 14;
    let len = kv_dim as usize;
    let mut side = |rows: u32| check.random(dtype, rows as usize * len, 1.0);
    let fresh = [side(ROWS)?, side(ROWS)?];
    let stored = [side(TOKENS)?, side(TOKENS)?];
    let pairs: Vec<[u32; 2]> = (0..count).map(|_| [check.below(ROWS), check.below(TOKENS)]).collect();
    let (list, out) = (check.session.upload(&pairs)?, check.room(F32, count as usize)?);
    // What is not compared may be missing.
    let sides = |of: &[super::inputs::Input; 2]| {
        let [k, v] = of.each_ref().map(|side| side.at);
        (if compared & 1 != 0 { k } else { 0 }, if compared & 2 != 0 { v } else { 0 })
    };
    let pairs_there = (list.pointer(), count);
    let (element, out_there) = (Element::from(dtype), out.pointer());
    let launch = launch::deviation(element, out_there, sides(&fresh), sides(&stored), pairs_there, kv_dim, compared);
    check.run(&launch)?;
    let wanted = pairs.iter().map(|[row, token]| {
        let squares = (0..2).filter(|side| compared & (1 << side) != 0).map(|side| {
            let off = |i: usize| fresh[side].f64(*row as usize * len + i) - stored[side].f64(*token as usize * len + i);
            (0..len).map(|i| off(i) * off(i)).sum::<f64>()
        });
        squares.sum::<f64>()
    });
    let wanted: Vec<f64> = wanted.collect();
    let got = check.read(F32, &out, count as usize)?;
    let case = format!("{count} pairs of {kv_dim}, compared {compared}");
    check.compare(&launch.name, &case, &got, &wanted, Tolerance::new(1e-5, 1e-6));
    Ok(())
}

/// Parts with gaps between them; `shift` bytes from an address that is aligned. What lies in the gaps stays.
fn copy(check: &mut Check, parts: u32, bytes: usize, [to_gap, from_gap]: [usize; 2], shift: usize) -> Result<()> {
    let (to_stride, from_stride) = (bytes + to_gap, bytes + from_gap);
    let mut from = vec![0; shift + parts as usize * from_stride];
    check.random.fill(&mut from);
    let mut wanted = vec![0xa5; shift + parts as usize * to_stride];
    let (there, out) = (check.session.upload(&from)?, check.session.upload(&wanted)?);
    for part in 0..parts as usize {
        let (to, at) = (shift + part * to_stride, shift + part * from_stride);
        wanted[to..to + bytes].copy_from_slice(&from[at..at + bytes]);
    }
    let launch = launch::copy_parts(
        (out.pointer() + shift as u64, to_stride as u64),
        (there.pointer() + shift as u64, from_stride as u64),
        parts,
        bytes as u64,
    );
    check.run(&launch)?;
    let got = check.session.download(out.pointer(), wanted.len())?;
    check.compare_bytes(&launch.name, &format!("{parts} parts of {bytes} bytes"), &got, &wanted);
    Ok(())
}
