//! Which date a chat template is told. What it prints stands before the passages, so a date that changes every day would
//! make every stored entry useless at midnight.

use ragstone_kernels::chat::Date;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// The date that a chat template is told when it asks for one (setting `prompt.date`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PromptDate {
    /// Always 26 July 2024, which Llama 3's templates print where they are told nothing. Written `pinned`.
    #[default]
    Pinned,
    /// Always this day. Written `2026-11-22`.
    On(Date),
    /// The present moment: entries behind a prompt that prints the date are of use for that day only. Written `today`.
    Today,
}

/// 26 July 2024, 00:00 UTC.
const PINNED_UNIX_MS: u64 = 1_721_952_000_000;

impl PromptDate {
    /// What a template is told on the day `today`.
    pub(crate) fn told(self, today: Date) -> Date {
        match self {
            Self::Pinned => Date::from_unix_ms(PINNED_UNIX_MS),
            Self::On(date) => date,
            Self::Today => today,
        }
    }
}

impl TryFrom<String> for PromptDate {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        match &*text {
            "pinned" => Ok(Self::Pinned),
            "today" => Ok(Self::Today),
            // A time of day would be printed as no one means it.
            day if !day.contains('T') && day.parse::<Date>().is_ok() => Ok(Self::On(day.parse()?)),
            _ => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("{text:?} is no date for prompts; write \"pinned\", \"today\" or a day such as \"2026-11-22\""),
            )),
        }
    }
}

impl From<PromptDate> for String {
    fn from(date: PromptDate) -> Self {
        match date {
            PromptDate::Pinned => "pinned".into(),
            PromptDate::On(date) => date.format("%F"),
            PromptDate::Today => "today".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_written_as_it_was_read() {
        for text in ["pinned", "today", "2026-11-22"] {
            let date = PromptDate::try_from(text.to_owned()).unwrap();
            assert_eq!(String::from(date), text);
        }
        for wrong in ["", "Pinned", "tomorrow", "2026-02-30", "2026-11-22T05:00:00"] {
            let error = PromptDate::try_from(wrong.to_owned()).unwrap_err();
            assert!(error.to_string().contains("2026-11-22"), "{error}");
        }
    }

    #[test]
    fn the_pinned_date_is_what_llama_3_prints_by_itself() {
        let today = "2026-11-22".parse().unwrap();
        assert_eq!(PromptDate::Pinned.told(today).format("%d %b %Y %T"), "26 Jul 2024 00:00:00");
        assert_eq!(PromptDate::Today.told(today), today);
    }
}
