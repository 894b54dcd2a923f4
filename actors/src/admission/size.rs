//! Sizes in bytes, as people write them: `536870912`, `512MiB`, `2G`, `1.5GB`.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{Error as _, Visitor};

/// What may stand behind a number, in small letters.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// The units, for help texts and errors.
pub const UNITS_HELP: &str =
    "units are kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024)";

/// Reads a size: a number of bytes, or a number with a unit; large and small letters are the same.
///
/// # Errors
/// What is wrong with it, and which units there are.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = |why: &str| {
        format!("`{text}` is {why}: write a number of bytes, or one with a unit, such as 512MiB; {UNITS_HELP}")
    };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    if number.is_empty() {
        return Err(wrong("no size"));
    }
    let unit = unit.trim().to_ascii_lowercase();
    let known = UNITS.iter().find(|(name, _)| *name == unit);
    let (_, factor) = known.ok_or_else(|| wrong("a size in an unknown unit"))?;
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(*factor).ok_or_else(|| wrong("too large"));
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong("no size"))? * *factor as f64;
    whole(bytes).ok_or_else(|| wrong("no whole number of bytes"))
}

/// As every number that has no more digits than an `f64` can hold.
fn whole(bytes: f64) -> Option<u64> {
    (0.0..9.0e15).contains(&bytes).then(|| bytes.round() as u64).filter(|whole| (bytes - *whole as f64).abs() < 1e-3)
}

/// Reads a setting: a number of bytes, or text as [`parse`] takes it.
///
/// # Errors
/// As [`parse`]; and for a number below 0, or greater than `T` can be.
pub fn deserialize<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let bytes = deserializer.deserialize_any(Bytes)?;
    T::try_from(bytes).map_err(|_| D::Error::custom(format!("{bytes} bytes are more than this machine can have")))
}

/// The same of a setting that may be left out.
///
/// # Errors
/// As [`deserialize`].
pub fn deserialize_some<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    struct Some<T>(PhantomData<T>);

    impl<'de, T: TryFrom<u64>> Visitor<'de> for Some<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            Bytes.expecting(f)
        }

        fn visit_none<E: serde::de::Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_unit<E: serde::de::Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
            deserialize(deserializer).map(Option::Some)
        }
    }
    deserializer.deserialize_option(Some(PhantomData))
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number of bytes, or one with a unit, such as 512MiB; {UNITS_HELP}")
    }

    fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<u64, E> {
        Ok(bytes)
    }

    fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<u64, E> {
        u64::try_from(bytes).map_err(|_| E::custom(format!("{bytes} is below 0")))
    }

    /// `2e9`
    fn visit_f64<E: serde::de::Error>(self, bytes: f64) -> Result<u64, E> {
        whole(bytes).ok_or_else(|| E::custom(format!("{bytes} is no whole number of bytes")))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        parse(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::Error as Fault;

    use super::*;

    #[test]
    fn units_of_1000_and_of_1024_are_told_apart() {
        for (text, bytes) in [
            ("0", 0),
            ("2147483648", 2 << 30),
            ("7B", 7),
            ("2GB", 2_000_000_000),
            ("2G", 2 << 30),
            ("2 GiB", 2 << 30),
            ("512mib", 512 << 20),
            ("64k", 64 << 10),
            ("3kB", 3000),
            ("1.5GB", 1_500_000_000),
            ("0.5KiB", 512),
            ("1T", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_names_the_units() {
        for text in ["", "x", "2X", "GB", "-1", "1e3", "2Gb/s", "1.2.3MB", "0.1B", "99999999TB", "2 0 GB", "NaN", "inf"]
        {
            let error = parse(text).expect_err(text);
            assert!(error.contains("GiB") && error.contains("powers of 1000"), "{error}");
        }
    }

    fn read<'de, T: TryFrom<u64>>(given: impl IntoDeserializer<'de, Fault>) -> Result<T, String> {
        deserialize(given.into_deserializer()).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_numbers_or_text() {
        assert_eq!(read("1GiB"), Ok(1_u64 << 30));
        assert_eq!(read(7_u64), Ok(7_u64));
        assert_eq!(read(7_i64), Ok(7_u64));
        assert_eq!(read(2e9), Ok(2_000_000_000_u64));
        assert_eq!(read("255"), Ok(255_u8));
        for (error, word) in [
            (read::<u64>(-1_i64), "below 0"),
            (read::<u64>(0.5), "whole"),
            (read::<u64>(f64::NAN), "whole"),
            (read::<u64>(true), "512MiB"),
            (read::<u8>("1k").map(u64::from), "more than"),
        ] {
            let error = error.unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
