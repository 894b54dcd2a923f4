//! The date that a chat template may ask for.

use std::fmt::Write;
use std::str::FromStr;

use crate::error::{Error, Result};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment in UTC, to the second. This crate has no clock: the caller says what time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    days: i64,
    /// Seconds into the day.
    seconds: u32,
}

impl Date {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub fn from_unix_ms(unix_ms: u64) -> Self {
        let seconds = unix_ms / 1000;
        Self { days: (seconds / 86_400) as i64, seconds: (seconds % 86_400) as u32 }
    }

    /// Year, month 1 to 12, day of the month 1 to 31, in the proleptic Gregorian calendar.
    fn civil(self) -> (i64, u32, u32) {
        // Years that begin in March put the leap day last, so month lengths follow one linear rule, and 400 of them
        // have 146,097 days.
        let days = self.days + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        (year, month as u32, day as u32)
    }

    fn from_civil(year: i64, month: u32, day: u32, seconds: u32) -> Self {
        let year = year - i64::from(month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let march_month = i64::from((month + 9) % 12);
        let day_of_year = (153 * march_month + 2) / 5 + i64::from(day) - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        Self { days: era * 146_097 + day_of_era - 719_468, seconds }
    }

    /// C's `strftime`, for the fields that dates are written with; an unknown field stays as it is written.
    pub fn format(self, format: &str) -> String {
        let (year, month, day) = self.civil();
        let (hour, minute, second) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        let month_name = MONTHS[month as usize - 1];
        let weekday = (self.days + 4).rem_euclid(7) as usize;
        let mut text = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            let mut field = characters.next().unwrap_or('%');
            // glibc's flag for "no leading zero".
            let bare = field == '-';
            if bare {
                field = characters.next().unwrap_or('-');
            }
            let width = if bare { 0 } else { 2 };
            let hour_12 = (hour + 11) % 12 + 1;
            // Writing into a String cannot fail.
            let _ = match field {
                'Y' => write!(text, "{year}"),
                'y' => write!(text, "{:0width$}", year.rem_euclid(100)),
                'm' => write!(text, "{month:0width$}"),
                'd' => write!(text, "{day:0width$}"),
                'e' => write!(text, "{day:2}"),
                'B' => write!(text, "{month_name}"),
                'b' | 'h' => write!(text, "{}", &month_name[..3]),
                'A' => write!(text, "{}", DAYS[weekday]),
                'a' => write!(text, "{}", &DAYS[weekday][..3]),
                'j' => write!(text, "{:03}", self.days - Self::from_civil(year, 1, 1, 0).days + 1),
                'H' => write!(text, "{hour:0width$}"),
                'I' => write!(text, "{hour_12:0width$}"),
                'M' => write!(text, "{minute:0width$}"),
                'S' => write!(text, "{second:0width$}"),
                'p' => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
                'F' => write!(text, "{year}-{month:02}-{day:02}"),
                'T' => write!(text, "{hour:02}:{minute:02}:{second:02}"),
                'Z' => write!(text, "UTC"),
                'z' => write!(text, "+0000"),
                '%' => write!(text, "%"),
                other => write!(text, "%{other}"),
            };
        }
        text
    }
}

impl FromStr for Date {
    type Err = Error;

    /// `2026-11-21`, or with a time, `2026-11-21T05:06:07`; UTC.
    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
            let date: Vec<u32> = date.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
            let time: Vec<u32> =
                time.trim_end_matches('Z').split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
            let (&[year, month, day], &[hour, minute, second]) = (&date[..], &time[..]) else { return None };
            if hour > 23 || minute > 59 || second > 59 || !(1..=12).contains(&month) || year > 9999 {
                return None;
            }
            let found = Self::from_civil(i64::from(year), month, day, hour * 3600 + minute * 60 + second);
            // A day that the month does not have lands in another one.
            (found.civil() == (i64::from(year), month, day)).then_some(found)
        };
        read().ok_or_else(|| {
            Error::invalid_input(format!("{text:?} is not a date; write 2026-11-21 or 2026-11-21T05:06:07"))
        })
    }
}
