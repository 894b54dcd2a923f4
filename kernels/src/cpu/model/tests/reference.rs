//! The forward as a textbook has it: dense, in f64, one token after the other.

use super::super::feed_forward::{Expand, FeedForward, Part};
use super::super::{Embedding, Model, Norm};
use super::alibi_slopes;
use crate::config::{FeedForwardKind, Positions};
use crate::linear::Linear;

pub(super) fn logits(model: &Model, tokens: &[u32]) -> Vec<Vec<f64>> {
    let config = &model.config;
    let each = tokens.iter().enumerate();
    let mut hidden: Vec<Vec<f64>> = each.map(|(at, token)| embedding(model, *token as usize, at)).collect();
    let slopes = (config.positions == Positions::Alibi).then(|| alibi_slopes(config.heads));
    for (index, layer) in model.layers.iter().enumerate() {
        let normed: Vec<_> = hidden.iter().map(|row| norm(row, &layer.input_norm, config.norm_eps)).collect();
        let heads = |linear: &Linear, weight: &Option<Vec<f32>>, rotate: bool| -> Vec<Vec<Vec<f64>>> {
            let head = |position: usize, head: &[f64]| {
                let weight = weight.as_ref().filter(|_| !config.qk_norm_of_rows);
                let head = weight.map_or(head.to_vec(), |weight| rms_norm(head, weight, config.norm_eps));
                if rotate && !config.unrotated.contains(&index) { rotated(model, index, &head, position) } else { head }
            };
            let whole = |row: Vec<f64>| match weight {
                Some(weight) if config.qk_norm_of_rows => rms_norm(&row, weight, config.norm_eps),
                _ => row,
            };
            let rows = normed.iter().enumerate();
            rows.map(|(p, row)| whole(dense(linear, row)).chunks(config.head_dim).map(|h| head(p, h)).collect())
                .collect()
        };
        let q = heads(&layer.q, &layer.q_norm, true);
        let k = heads(&layer.k, &layer.k_norm, true);
        let v = heads(&layer.v, &None, false);
        for (position, hidden) in hidden.iter_mut().enumerate() {
            let first = config.window(index).map_or(0, |window| (position + 1).saturating_sub(window as usize));
            let mut mixed = Vec::new();
            for (head, q) in q[position].iter().enumerate() {
                let kv = head / (config.heads / config.kv_heads);
                let scores: Vec<f64> = (first..=position)
                    .map(|key| {
                        let bias = slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
                        let score = dot(q, &k[key][kv]) * f64::from(config.attention_scale);
                        (score - bias * (position - key) as f64).exp()
                    })
                    .collect();
                let total: f64 = scores.iter().sum();
                mixed.extend((0..config.head_dim).map(|d| {
                    scores.iter().zip(first..).map(|(score, key)| score / total * v[key][kv][d]).sum::<f64>()
                }));
            }
            let normed_output = |part: usize, row: Vec<f64>| match &layer.output_norms {
                Some(norms) => norm(&row, &norms[part], config.norm_eps),
                None => row,
            };
            add(hidden, &scaled(config.residual_scale, normed_output(0, dense(&layer.o, &mixed))));
            let normed = norm(hidden, &layer.post_norm, config.norm_eps);
            let added = match &layer.feed_forward {
                FeedForward::One(part) => feed_forward(model, part, config.intermediate_size, &normed),
                FeedForward::Experts(mixture) => {
                    let scores = dense(&mixture.router, &normed);
                    experts(model, &scores, |expert, width| feed_forward(model, &mixture.parts[expert], width, &normed))
                }
            };
            add(hidden, &scaled(config.residual_scale, normed_output(1, added)));
        }
    }
    let normed = hidden.iter().map(|row| norm(row, &model.final_norm, config.norm_eps));
    normed.map(|row| scaled(config.logits_scale, dense(&model.head, &row))).collect()
}

fn feed_forward(model: &Model, part: &Part, width: usize, normed: &[f64]) -> Vec<f64> {
    let kind = model.config.feed_forward;
    let inner = (0..width).map(|column| match &part.expand {
        Expand::Gated(gate_up) => {
            // Sixteen columns of gate, then the same of up.
            let gate = column / 16 * 32 + column % 16;
            let (gate, up) = (output(gate_up, gate, normed), output(gate_up, gate + 16, normed));
            let gate = match kind {
                FeedForwardKind::GatedGelu => gelu(gate),
                _ => gate / (1.0 + (-gate).exp()),
            };
            gate * up
        }
        Expand::Plain(up) if kind == FeedForwardKind::PlainRelu => output(up, column, normed).max(0.0),
        Expand::Plain(up) => gelu(output(up, column, normed)),
    });
    dense(&part.down, &inner.collect::<Vec<f64>>())
}

/// The chosen experts' sum, as transformers has it: softmax, the greatest, and perhaps over their sum.
fn experts(model: &Model, scores: &[f64], run: impl Fn(usize, usize) -> Vec<f64>) -> Vec<f64> {
    let rule = model.config.experts.as_ref().unwrap();
    let total: f64 = scores.iter().map(|score| score.exp()).sum();
    let mut shares: Vec<(f64, usize)> = scores.iter().map(|score| score.exp() / total).zip(0..).collect();
    shares.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    shares.truncate(rule.per_row);
    let over = if rule.is_normalized { shares.iter().map(|(share, _)| share).sum() } else { 1.0 };
    let mut sum = vec![0.0; model.config.hidden_size];
    for (share, expert) in shares {
        let out = run(expert, rule.intermediate_size);
        sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += share / over * out);
    }
    sum
}

fn scaled(factor: f32, row: Vec<f64>) -> Vec<f64> {
    row.into_iter().map(|x| f64::from(factor) * x).collect()
}

fn embedding(model: &Model, token: usize, position: usize) -> Vec<f64> {
    let hidden = model.config.hidden_size;
    let mut embedded: Vec<f64> = match &model.embedding {
        Embedding::Tied => weights(&model.head, token),
        Embedding::F32(values) => values[token * hidden..][..hidden].iter().map(|x| f64::from(*x)).collect(),
        Embedding::Bf16(bits) => {
            bits[token * hidden..][..hidden].iter().map(|bits| half::bf16::from_bits(*bits).to_f64()).collect()
        }
    };
    embedded.iter_mut().for_each(|x| *x *= f64::from(model.config.embedding_scale));
    if let Some(table) = &model.position_table {
        embedded
            .iter_mut()
            .zip(&table[(position + model.config.positions_skipped) * hidden..])
            .for_each(|(x, place)| *x += f64::from(*place));
    }
    model.embedding_norm.as_ref().map_or(embedded.clone(), |weights| norm(&embedded, weights, model.config.norm_eps))
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    x / 2.0 * (1.0 + inner.tanh())
}

fn weights(linear: &Linear, row: usize) -> Vec<f64> {
    let mut weights = vec![0.0; linear.in_features()];
    linear.weight_row(row, &mut weights);
    weights.into_iter().map(f64::from).collect()
}

fn output(linear: &Linear, row: usize, x: &[f64]) -> f64 {
    f64::from(linear.bias(row)) + dot(&weights(linear, row), x)
}

fn dense(linear: &Linear, x: &[f64]) -> Vec<f64> {
    (0..linear.out_features()).map(|row| output(linear, row, x)).collect()
}

fn rotated(model: &Model, layer: usize, head: &[f64], position: usize) -> Vec<f64> {
    let local = model.config.local_rope.as_ref().filter(|_| model.config.windows[layer].is_some());
    let Some(rope) = local.or(model.config.rope()) else { return head.to_vec() };
    let (frequencies, factor) = rope.inverse_frequencies(model.config.rotated);
    let pairs = frequencies.len();
    let turn = |i: usize| {
        let angle = position as f64 * f64::from(frequencies[i % pairs]);
        let (a, b) = (head[i % pairs], head[i % pairs + pairs]);
        let (sin, cos) = angle.sin_cos();
        f64::from(factor) * if i < pairs { a * cos - b * sin } else { b * cos + a * sin }
    };
    (0..2 * pairs).map(turn).chain(head[2 * pairs..].iter().copied()).collect()
}

fn norm(row: &[f64], norm: &Norm, epsilon: f32) -> Vec<f64> {
    match norm {
        Norm::None { .. } => row.to_vec(),
        Norm::Rms(weight) => rms_norm(row, weight, epsilon),
        Norm::Layer { weight, bias } => {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let centred: Vec<f64> = row.iter().map(|x| x - mean).collect();
            let normed = rms_norm(&centred, weight, epsilon);
            normed.iter().zip(bias).map(|(x, bias)| x + f64::from(*bias)).collect()
        }
    }
}

fn rms_norm(row: &[f64], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    row.iter().zip(weight).map(|(x, weight)| x / (mean + f64::from(epsilon)).sqrt() * f64::from(*weight)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}
