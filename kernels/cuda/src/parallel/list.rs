//! GPUs by number.

use std::fmt;
use std::str::FromStr;

use ragstone_kernels::error::{Error, Result};

/// The GPUs that a model lies on, by their numbers, counted from 0: one, or several that share it, the first share on the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuList(Vec<usize>);

impl GpuList {
    /// # Errors
    /// `InvalidInput` where there is none, and where one is named twice.
    pub fn new(ordinals: Vec<usize>) -> Result<Self> {
        if ordinals.is_empty() {
            return Err(Error::invalid_input("no GPU is named; take a number, counted from 0"));
        }
        match ordinals.iter().enumerate().find(|(index, ordinal)| ordinals[..*index].contains(ordinal)) {
            Some((_, twice)) => Err(Error::invalid_input(format!("GPU {twice} is named twice; name each once"))),
            None => Ok(Self(ordinals)),
        }
    }

    /// Their numbers, at least one.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// The only one; `None` where there are several.
    pub fn only(&self) -> Option<usize> {
        if let [ordinal] = self.0[..] { Some(ordinal) } else { None }
    }
}

impl From<usize> for GpuList {
    fn from(ordinal: usize) -> Self {
        Self(vec![ordinal])
    }
}

impl FromStr for GpuList {
    type Err = Error;

    /// Reads `1`, or `0,1`.
    fn from_str(text: &str) -> Result<Self> {
        let number = |part: &str| part.parse().ok();
        let ordinals: Option<Vec<usize>> = text.split(',').map(number).collect();
        Self::new(ordinals.ok_or_else(|| Error::invalid_input(format!("\"{text}\" names no GPUs; take 0, or 0,1")))?)
    }
}

impl fmt::Display for GpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, ordinal) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{ordinal}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written_and_name_no_gpu_twice() {
        for (text, ordinals) in [("0", vec![0]), ("3", vec![3]), ("1,0,12", vec![1, 0, 12])] {
            let list: GpuList = text.parse().unwrap();
            assert_eq!((list.as_slice(), list.to_string().as_str()), (ordinals.as_slice(), text));
            assert_eq!(list.only(), (ordinals.len() == 1).then_some(ordinals[0]));
        }
        for (text, why) in [("0,1,0", "GPU 0 is named twice"), ("", "names no GPUs"), ("0,", "names no GPUs")] {
            let error = text.parse::<GpuList>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(GpuList::new(Vec::new()).is_err());
    }
}
