//! What things cost, in microseconds of this machine: a prefill, `T(cached, new)`, measured on a grid and interpolated between; and a
//! read from each tier. Policies, admission and the load plan go by these.

mod costs;
mod price;
mod read;

pub use self::costs::{CostModel, CostProfile, Costs, PrefillCost};
pub use self::price::Prices;
pub use self::read::{ReadCost, ReadMeter};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The profile that stands in where none was measured: see its `source`.
const DEFAULT_PROFILE: &str = include_str!("qwen2.5-0.5b-2cores.json");

/// Far beyond any model, so that sums of times and bytes stay in range.
const MOST_US: f64 = 1e12;
const MOST_KV_BYTES_PER_TOKEN: u64 = 1 << 26;
const MOST_LAYERS: u32 = 1 << 16;
/// Of a byte, or of a weight.
const MOST_US_OF_ONE: f64 = 1e6;

/// A prompt's predicted times, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Prediction {
    /// From the start of its loads to its first token, on an engine that does nothing else.
    pub total_ms: f64,
    /// What its loads take, of the tier that takes longest.
    pub load_ms: f64,
    /// What its computation takes.
    pub compute_ms: f64,
    /// What of that goes into placing what was loaded.
    pub place_ms: f64,
    /// What the computation waits for loads: what the overlap does not hide.
    pub wait_ms: f64,
}

/// Prefill times of one model on one machine.
///
/// ```json
/// {"source": "...", "kv_bytes_per_token": 12288, "layers": 24, "place_us_per_byte": 0.001, "look_us_per_weight": 0.01,
///  "cached_tokens": [0, 512], "new_tokens": [16, 64, 512], "time_us": [[..3 times at 0 cached..], [..3 at 512..]]}
/// ```
///
/// The model's layers and what placing and looking take may be left out: who needs them has them from elsewhere, or asks for them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct CostGrid {
    written: Written,
}

/// The file's form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Model, machine, commit and command.
    source: String,
    /// Bytes of K and V of one token, all layers together.
    kv_bytes_per_token: u64,
    /// As in [`PrefillCost`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layers: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place_us_per_byte: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    look_us_per_weight: Option<f64>,
    /// Rows of the grid, ascending.
    cached_tokens: Vec<u32>,
    /// Columns of the grid, ascending.
    new_tokens: Vec<u32>,
    /// Microseconds, one row for each of `cached_tokens`.
    time_us: Vec<Vec<f64>>,
}

impl CostGrid {
    /// Qwen2.5-0.5B's shape on two CPU cores.
    ///
    /// # Errors
    /// `Internal` if the profile that was compiled in is malformed; a test reads it.
    pub fn measured_default() -> Result<Self> {
        Self::from_json(DEFAULT_PROFILE)
            .map_err(|error| Error::new(crate::ErrorKind::Internal, format!("the built-in profile: {error}")))
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// `InvalidInput` if it is no JSON of that form, an axis is empty or not ascending, rows are missing, or a time is
    /// not a positive number.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| Error::invalid_input(format!("not a profile of prefill times: {error}")))
    }

    /// A grid of times that were measured, in microseconds: a row for each of `cached_tokens`.
    ///
    /// # Errors
    /// As [`CostGrid::from_json`].
    pub fn new(
        source: &str,
        kv_bytes_per_token: u64,
        cached_tokens: Vec<u32>,
        new_tokens: Vec<u32>,
        time_us: Vec<Vec<f64>>,
    ) -> Result<Self> {
        let (layers, place_us_per_byte, look_us_per_weight) = (None, None, None);
        let written = Written {
            source: source.to_owned(),
            kv_bytes_per_token,
            layers,
            place_us_per_byte,
            look_us_per_weight,
            cached_tokens,
            new_tokens,
            time_us,
        };
        Self::try_from(written).map_err(|why| Error::invalid_input(format!("not a profile of prefill times: {why}")))
    }

    /// Where the times come from.
    pub fn source(&self) -> &str {
        &self.written.source
    }

    /// Bytes of K and V of one token, all layers together.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.written.kv_bytes_per_token
    }

    /// The model's layers, where the profile says so.
    pub fn layers(&self) -> Option<u32> {
        self.written.layers
    }

    /// What placing a byte of stored KV and looking at an attention weight take, in microseconds, where the profile says so.
    pub fn place_and_look_us(&self) -> (Option<f64>, Option<f64>) {
        (self.written.place_us_per_byte, self.written.look_us_per_weight)
    }

    /// The same times, of prefills that go through a layer in chunks of at most so many tokens: longer ones are put together of those.
    #[must_use]
    pub fn in_chunks_of(&self, tokens: u32) -> Self {
        let mut written = self.written.clone();
        let kept = written.new_tokens.iter().filter(|new| **new <= tokens).count().max(1);
        written.new_tokens.truncate(kept);
        written.time_us.iter_mut().for_each(|row| row.truncate(kept));
        Self { written }
    }

    /// The longest prefill that was measured, in tokens.
    pub fn most_new_tokens(&self) -> u32 {
        self.written.new_tokens.last().copied().unwrap_or(1)
    }

    /// As [`prefill_us`](Self::prefill_us), and beyond the greatest number of cached tokens as it grows between the last two:
    /// attention looks at each.
    pub fn prefill_us_beyond(&self, cached_tokens: u32, new_tokens: u32) -> f64 {
        let at = |cached| self.prefill_us(cached, new_tokens);
        match self.written.cached_tokens[..] {
            [.., before, last] if cached_tokens > last => {
                let slope = (at(last) - at(before)).max(0.0) / f64::from(last - before);
                at(last) + slope * f64::from(cached_tokens - last)
            }
            _ => at(cached_tokens),
        }
    }

    /// `T(cached, new)` in microseconds: bilinear interpolation (RAGCache, algorithm 1, lines 6 to 9), clamped at the
    /// grid's edges. Nothing new takes no time.
    pub fn prefill_us(&self, cached_tokens: u32, new_tokens: u32) -> f64 {
        if new_tokens == 0 {
            return 0.0;
        }
        let (low_row, high_row, down) = bracket(&self.written.cached_tokens, cached_tokens);
        let (low, high, across) = bracket(&self.written.new_tokens, new_tokens);
        let at = |row: usize, column: usize| self.written.time_us[row][column];
        let t_low = at(low_row, low) + down * (at(high_row, low) - at(low_row, low));
        let t_high = at(low_row, high) + down * (at(high_row, high) - at(low_row, high));
        t_low + across * (t_high - t_low)
    }

    /// `T(cached, new) / new` in microseconds a token: what one request adds to equation 3.
    pub fn cost_per_token(&self, cached_tokens: u32, new_tokens: u32) -> f64 {
        self.prefill_us(cached_tokens, new_tokens) / f64::from(new_tokens.max(1))
    }
}

/// The neighbours of `value` on an axis, and how far it is between them; at the edges the edge twice.
fn bracket(axis: &[u32], value: u32) -> (usize, usize, f64) {
    let above = axis.partition_point(|&point| point <= value);
    match (above.checked_sub(1), axis.get(above)) {
        (None, _) => (0, 0, 0.0),
        (Some(low), None) => (low, low, 0.0),
        (Some(low), Some(&high)) => (low, above, f64::from(value - axis[low]) / f64::from(high - axis[low])),
    }
}

impl TryFrom<Written> for CostGrid {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        for (name, axis) in [("cached_tokens", &written.cached_tokens), ("new_tokens", &written.new_tokens)] {
            if axis.is_empty() || axis.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(format!("`{name}` must hold ascending token counts, at least one"));
            }
        }
        if written.new_tokens[0] == 0 {
            return Err("`new_tokens` must be at least 1".to_owned());
        }
        let (rows, columns) = (written.cached_tokens.len(), written.new_tokens.len());
        if written.time_us.len() != rows || written.time_us.iter().any(|row| row.len() != columns) {
            return Err(format!("`time_us` must hold {rows} rows of {columns} times"));
        }
        if !written.time_us.iter().flatten().all(|time| *time > 0.0 && *time <= MOST_US) {
            return Err("`time_us` must hold positive numbers of at most 1e12, eleven days".to_owned());
        }
        if !(1..=MOST_KV_BYTES_PER_TOKEN).contains(&written.kv_bytes_per_token) {
            return Err(format!("`kv_bytes_per_token` must lie between 1 and {MOST_KV_BYTES_PER_TOKEN}"));
        }
        if !written.layers.is_none_or(|layers| (1..=MOST_LAYERS).contains(&layers)) {
            return Err(format!("`layers` must lie between 1 and {MOST_LAYERS}"));
        }
        for (name, us) in
            [("place_us_per_byte", written.place_us_per_byte), ("look_us_per_weight", written.look_us_per_weight)]
        {
            if !us.is_none_or(|us| (0.0..=MOST_US_OF_ONE).contains(&us)) {
                return Err(format!("`{name}` must lie between 0 and {MOST_US_OF_ONE}"));
            }
        }
        Ok(Self { written })
    }
}

impl From<CostGrid> for Written {
    fn from(grid: CostGrid) -> Self {
        grid.written
    }
}

#[cfg(test)]
mod tests;
