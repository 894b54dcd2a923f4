//! Kernels by what they are for: each family is checked by a file beside this one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Check;
use super::{attention, bits, experts, positions, products, quantized, reuse, rows, values};
use ragstone_kernels::error::{Error, Result};

/// Kernels that are checked together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    Values,
    Rows,
    Positions,
    Products,
    Experts,
    Quantized,
    Attention,
    Reuse,
    Bits,
}

/// How the check of a family went.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FamilyCheck {
    pub family: Family,
    pub seconds: f64,
    /// Why it did not come to its end; what its kernels computed is said of them.
    pub problem: Option<String>,
}

impl Family {
    /// In the order in which they are checked.
    pub const ALL: [Self; 9] = [
        Self::Values,
        Self::Rows,
        Self::Positions,
        Self::Products,
        Self::Experts,
        Self::Quantized,
        Self::Attention,
        Self::Reuse,
        Self::Bits,
    ];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::Rows => "rows",
            Self::Positions => "positions",
            Self::Products => "products",
            Self::Experts => "experts",
            Self::Quantized => "quantized",
            Self::Attention => "attention",
            Self::Reuse => "reuse",
            Self::Bits => "bits",
        }
    }

    pub(crate) fn check(self, check: &mut Check, ordinal: usize) -> Result<()> {
        match self {
            Self::Values => values::check(check),
            Self::Rows => rows::check(check),
            Self::Positions => positions::check(check),
            Self::Products => products::check(check),
            Self::Experts => experts::check(check),
            Self::Quantized => quantized::check(check),
            Self::Attention => attention::check(check),
            Self::Reuse => reuse::check(check),
            Self::Bits => bits::check(check, ordinal),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Family {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|family| family.name() == text);
        found.ok_or_else(|| {
            Error::invalid_input(format!("there is no family of kernels {text}: take one of {}", known()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_read_by_its_name_and_others_are_listed() {
        for family in Family::ALL {
            assert_eq!(family.to_string().parse::<Family>().unwrap(), family);
        }
        let error = "gemm".parse::<Family>().unwrap_err().to_string();
        assert!(error.contains("gemm") && error.contains("values, rows, positions"), "{error}");
    }
}
