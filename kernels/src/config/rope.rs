//! Rotary embedding parameters and the frequencies that follow from them.

use std::f32::consts::PI;

use serde::{Deserialize, Serialize};

use super::MOST_POSITIONS;
use super::fields::Fields;
use crate::error::{Error, Result};

/// The greatest base of the frequencies; published models have up to 10^9 or so.
const MOST_THETA: f64 = 1e18;
/// The greatest factor of a scaling.
const MOST_FACTOR: f64 = 1e6;

/// How rotary frequencies follow from a model's configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// The base of the frequencies.
    pub theta: f64,
    pub scaling: RopeScaling,
}

/// What is done to the frequencies so that a model reads further than it was pre-trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "rope_type")]
pub enum RopeScaling {
    None,
    /// Position interpolation: every frequency divided by `factor`.
    Linear {
        factor: f64,
    },
    Llama3(Llama3Scaling),
    Yarn(YarnScaling),
    /// Every frequency divided by a factor of its own, one a pair: how GGUF files state Llama 3's rule.
    Factors {
        factors: Vec<f32>,
    },
    LongRope(LongRopeScaling),
}

/// Llama 3.1's rule: long wavelengths are interpolated, short ones kept, those between are blended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    /// Context length of the pre-training in tokens.
    pub original_max_positions: usize,
}

/// YaRN ("YaRN: Efficient Context Window Extension of Large Language Models", section 3: NTK by parts and the
/// attention temperature).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct YarnScaling {
    pub factor: f64,
    /// Context length of the pre-training in tokens.
    pub original_max_positions: usize,
    /// Rotations over the original context above which a dimension is kept as it is.
    pub beta_fast: f64,
    /// Rotations below which a dimension is wholly interpolated.
    pub beta_slow: f64,
    /// What cos and sin are multiplied by.
    pub attention_factor: f64,
    /// Round the borders of the blended range to whole dimensions.
    pub truncate: bool,
}

/// LongRoPE ("LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens"), as far as prompts go that are no longer than those of the
/// pre-training. Of longer ones every frequency is another, that of the first token, too: their KV would have nothing in common with that of
/// shorter ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LongRopeScaling {
    /// What frequencies are divided by, one a pair (`short_factor`).
    pub factors: Vec<f32>,
    /// Context length of the pre-training in tokens.
    pub original_max_positions: usize,
    /// What cos and sin are multiplied by.
    pub attention_factor: f64,
}

impl RopeConfig {
    /// Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (transformers 4); and the part of a head that is turned.
    pub(super) fn read(fields: &Fields<'_>, max_positions: usize, default_theta: f64) -> Result<(Self, f64)> {
        let parameters = match fields.object("rope_parameters")? {
            Some(parameters) => Some(parameters),
            None => fields.object("rope_scaling")?,
        };
        Self::read_of(parameters, fields, max_positions, default_theta)
    }

    /// A rotation that is not scaled.
    pub(super) fn plain(theta: f64) -> Result<Self> {
        check_theta(theta)?;
        Ok(Self { theta, scaling: RopeScaling::None })
    }

    /// Reads given parameters; those that they lack are the file's.
    pub(super) fn read_of(
        parameters: Option<Fields<'_>>,
        fields: &Fields<'_>,
        max_positions: usize,
        default_theta: f64,
    ) -> Result<(Self, f64)> {
        let mut theta: Option<f64> = None;
        let mut partial: Option<f64> = None;
        if let Some(parameters) = &parameters {
            theta = parameters.optional("rope_theta", "a number")?;
            partial = parameters.optional("partial_rotary_factor", "a number")?;
        }
        if theta.is_none() {
            theta = fields.optional("rope_theta", "a number")?;
        }
        if partial.is_none() {
            partial = fields.optional("partial_rotary_factor", "a number")?;
        }
        let partial = partial.unwrap_or(1.0);
        if !(partial > 0.0 && partial <= 1.0) {
            return Err(Error::invalid_model(format!(
                "config.json: `partial_rotary_factor` is {partial}, not above 0 and at most 1; fetch the model again"
            )));
        }
        let theta = theta.unwrap_or(default_theta);
        check_theta(theta)?;
        let scaling = match parameters {
            Some(parameters) => RopeScaling::read(&parameters, fields, max_positions)?,
            None => RopeScaling::None,
        };
        Ok((Self { theta, scaling }, partial))
    }

    /// Longest context in tokens when `config.json` states `stated`: linear and YaRN stretch it, Llama 3's files
    /// state the stretched length already; LongRoPE's do, too, and of that only the original one is covered.
    ///
    /// # Errors
    /// `InvalidModel` for a length that no model has.
    pub(super) fn max_positions(&self, stated: usize) -> Result<usize> {
        // A float above the range of an integer becomes its greatest.
        let stretched = match &self.scaling {
            RopeScaling::None | RopeScaling::Llama3(_) | RopeScaling::Factors { .. } => stated,
            RopeScaling::Linear { factor } => (stated as f64 * factor) as usize,
            RopeScaling::Yarn(yarn) => (yarn.original_max_positions as f64 * yarn.factor) as usize,
            RopeScaling::LongRope(long) => return Ok(stated.min(long.original_max_positions)),
        };
        if stretched > MOST_POSITIONS {
            return Err(Error::invalid_model(format!(
                "config.json: `factor` of the rotary scaling stretches the context to {stretched} positions, beyond \
                 {MOST_POSITIONS}; fetch the model again"
            )));
        }
        Ok(stated.max(stretched))
    }

    /// Whether every frequency that follows is a number that can be used; that each parameter is in its range does not say so.
    pub(super) fn check(&self, head_dim: usize) -> Result<()> {
        if let RopeScaling::LongRope(long) = &self.scaling
            && long.factors.len() != head_dim / 2
        {
            return Err(Error::invalid_model(format!(
                "config.json: `short_factor` has {} entries for {} frequencies; fetch the model again",
                long.factors.len(),
                head_dim / 2
            )));
        }
        let (frequencies, attention_factor) = self.inverse_frequencies(head_dim);
        let all_good = frequencies.iter().all(|frequency| frequency.is_finite() && *frequency >= 0.0);
        if all_good && attention_factor.is_finite() && attention_factor > 0.0 {
            return Ok(());
        }
        Err(Error::invalid_model(
            "config.json: the rotary parameters (`rope_theta`, `rope_scaling` or `rope_parameters`) give frequencies that are no \
             numbers; fetch the model again",
        ))
    }

    /// Angles per position, `[head_dim / 2]` in radians, and the factor that cos and sin are multiplied by. Of a head that is turned in part,
    /// `head_dim` is that part.
    ///
    /// Element i rotates the pair (i, i + head_dim / 2). Computed in f32 step by step as transformers does, so
    /// that angles at large positions agree with it.
    pub fn inverse_frequencies(&self, head_dim: usize) -> (Vec<f32>, f32) {
        let mut frequencies: Vec<f32> =
            (0..head_dim / 2).map(|i| 1.0 / (self.theta as f32).powf((2 * i) as f32 / head_dim as f32)).collect();
        let mut attention_factor = 1.0;
        match &self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                frequencies.iter_mut().for_each(|frequency| *frequency /= *factor as f32);
            }
            RopeScaling::Factors { factors } => {
                frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= factor);
            }
            RopeScaling::LongRope(long) => {
                // As transformers does it: the factor first.
                for (i, (frequency, factor)) in frequencies.iter_mut().zip(&long.factors).enumerate() {
                    *frequency = 1.0 / (factor * (self.theta as f32).powf((2 * i) as f32 / head_dim as f32));
                }
                attention_factor = long.attention_factor as f32;
            }
            RopeScaling::Llama3(llama3) => {
                frequencies.iter_mut().for_each(|frequency| *frequency = llama3.scale(*frequency));
            }
            RopeScaling::Yarn(yarn) => {
                let (low, high) = yarn.blended_range(head_dim, self.theta);
                for (i, frequency) in frequencies.iter_mut().enumerate() {
                    let interpolate = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    let keep = 1.0 - interpolate;
                    *frequency = *frequency / yarn.factor as f32 * (1.0 - keep) + *frequency * keep;
                }
                attention_factor = yarn.attention_factor as f32;
            }
        }
        (frequencies, attention_factor)
    }
}

impl RopeScaling {
    fn read(parameters: &Fields<'_>, config: &Fields<'_>, max_positions: usize) -> Result<Self> {
        let kind: Option<String> = match parameters.optional("rope_type", "a string")? {
            Some(kind) => Some(kind),
            None => parameters.optional("type", "a string")?,
        };
        let Some(kind) = kind else {
            // One set a layer type, as some other families write it.
            if parameters.values().any(serde_json::Value::is_object) {
                return Err(Error::unsupported("rotary parameters that differ by layer type are not supported"));
            }
            return Ok(Self::None);
        };
        match kind.as_str() {
            "default" => Ok(Self::None),
            "linear" => Ok(Self::Linear { factor: factor(parameters, "factor")? }),
            "llama3" => Ok(Self::Llama3(Llama3Scaling::read(parameters, config, max_positions)?)),
            "longrope" => Ok(Self::LongRope(LongRopeScaling::read(parameters, config, max_positions)?)),
            "yarn" => Ok(Self::Yarn(YarnScaling::read(parameters, config, max_positions)?)),
            other => Err(Error::unsupported(format!(
                "rotary scaling of type {other} is not supported; take a model with default, linear, llama3, yarn or longrope"
            ))),
        }
    }
}

impl Llama3Scaling {
    fn read(parameters: &Fields<'_>, config: &Fields<'_>, max_positions: usize) -> Result<Self> {
        let read = Self {
            factor: factor(parameters, "factor")?,
            low_freq_factor: positive(parameters, "low_freq_factor")?
                .ok_or_else(|| Error::invalid_model("config.json lacks `low_freq_factor`; fetch the model again"))?,
            high_freq_factor: positive(parameters, "high_freq_factor")?
                .ok_or_else(|| Error::invalid_model("config.json lacks `high_freq_factor`; fetch the model again"))?,
            original_max_positions: original_positions(parameters, config, max_positions)?,
        };
        if read.low_freq_factor >= read.high_freq_factor {
            return Err(Error::invalid_model(format!(
                "config.json: `low_freq_factor` {} is not below `high_freq_factor` {}; fetch the model again",
                read.low_freq_factor, read.high_freq_factor
            )));
        }
        Ok(read)
    }

    fn scale(&self, frequency: f32) -> f32 {
        let original = self.original_max_positions as f32;
        let (low, high) = (self.low_freq_factor as f32, self.high_freq_factor as f32);
        let wavelength = 2.0 * PI / frequency;
        if wavelength > original / low {
            return frequency / self.factor as f32;
        }
        if wavelength < original / high {
            return frequency;
        }
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / self.factor as f32 + smooth * frequency
    }
}

impl YarnScaling {
    fn read(parameters: &Fields<'_>, config: &Fields<'_>, max_positions: usize) -> Result<Self> {
        let original_max_positions = original_positions(parameters, config, max_positions)?;
        let factor = match parameters.has("factor") {
            true => factor(parameters, "factor")?,
            false => in_range("factor", max_positions as f64 / original_max_positions as f64)?,
        };
        let number = |key| parameters.optional::<f64>(key, "a number");
        let attention_factor = match (number("attention_factor")?, number("mscale")?, number("mscale_all_dim")?) {
            (Some(attention_factor), _, _) => attention_factor,
            (None, Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                temperature(factor, mscale) / temperature(factor, all)
            }
            _ => temperature(factor, 1.0),
        };
        Ok(Self {
            factor,
            original_max_positions,
            beta_fast: positive(parameters, "beta_fast")?.unwrap_or(32.0),
            beta_slow: positive(parameters, "beta_slow")?.unwrap_or(1.0),
            attention_factor,
            truncate: parameters.flag("truncate", true)?,
        })
    }

    /// The dimensions between which keeping a frequency fades into interpolating it.
    fn blended_range(&self, head_dim: usize, theta: f64) -> (f32, f32) {
        let dimension = |rotations: f64| {
            head_dim as f64 * (self.original_max_positions as f64 / (rotations * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (dimension(self.beta_fast), dimension(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let low = low.max(0.0);
        let mut high = high.min(head_dim as f64 - 1.0);
        if low == high {
            high += 0.001;
        }
        (low as f32, high as f32)
    }
}

impl LongRopeScaling {
    fn read(parameters: &Fields<'_>, config: &Fields<'_>, max_positions: usize) -> Result<Self> {
        let factors: Option<Vec<f32>> = parameters.optional("short_factor", "a list of numbers")?;
        let factors =
            factors.ok_or_else(|| Error::invalid_model("config.json lacks `short_factor`; fetch the model again"))?;
        if !factors.iter().all(|factor| (1e-3..=MOST_FACTOR as f32).contains(factor)) {
            return Err(Error::invalid_model(
                "config.json: `short_factor` has factors that no model has; fetch the model again",
            ));
        }
        let original_max_positions = original_positions(parameters, config, max_positions)?;
        let stretched = match parameters.has("factor") {
            true => factor(parameters, "factor")?,
            false => max_positions as f64 / original_max_positions as f64,
        };
        let own =
            if stretched <= 1.0 { 1.0 } else { (1.0 + stretched.ln() / (original_max_positions as f64).ln()).sqrt() };
        let attention_factor = parameters.optional("attention_factor", "a number")?.unwrap_or(own);
        Ok(Self { factors, original_max_positions, attention_factor })
    }
}

fn check_theta(theta: f64) -> Result<()> {
    if theta > 1.0 && theta <= MOST_THETA {
        return Ok(());
    }
    Err(Error::invalid_model(format!(
        "config.json: `rope_theta` is {theta}, not above 1 and at most {MOST_THETA:e}; fetch the model again"
    )))
}

/// YaRN's recommended attention temperature, 0.1 ln(s) + 1.
fn temperature(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

fn factor(parameters: &Fields<'_>, key: &str) -> Result<f64> {
    in_range(key, parameters.number(key)?)
}

fn in_range(key: &str, factor: f64) -> Result<f64> {
    if (1.0..=MOST_FACTOR).contains(&factor) {
        return Ok(factor);
    }
    Err(Error::invalid_model(format!(
        "config.json: rotary scaling `{key}` is {factor}, outside 1..={MOST_FACTOR}; fetch the model again"
    )))
}

/// A number that may be left out; 0 counts as left out, as transformers reads it.
fn positive(parameters: &Fields<'_>, key: &str) -> Result<Option<f64>> {
    match parameters.optional::<f64>(key, "a positive number")? {
        Some(0.0) | None => Ok(None),
        Some(value) if value > 0.0 && value <= MOST_FACTOR => Ok(Some(value)),
        Some(value) => Err(Error::invalid_model(format!(
            "config.json: rotary scaling `{key}` is {value}, not above 0 and at most {MOST_FACTOR}; fetch the model again"
        ))),
    }
}

fn original_positions(parameters: &Fields<'_>, config: &Fields<'_>, max_positions: usize) -> Result<usize> {
    let key = "original_max_position_embeddings";
    let stated: Option<usize> = match parameters.optional(key, "a positive integer")? {
        Some(stated) => Some(stated),
        None => config.optional(key, "a positive integer")?,
    };
    match stated {
        Some(stated) if !(1..=MOST_POSITIONS).contains(&stated) => Err(Error::invalid_model(format!(
            "config.json: `{key}` is {stated}, outside 1..={MOST_POSITIONS}; fetch the model again"
        ))),
        Some(stated) => Ok(stated),
        None => Ok(max_positions),
    }
}
