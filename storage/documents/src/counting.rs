//! Numbers of lists, as they are written.

/// Longer rows of letters are no numbers that a person reads.
const MAX_REPEATED: u32 = 20;

/// How a list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    Decimal,
    /// 01, 02.
    PaddedDecimal,
    LowerLetter,
    UpperLetter,
    LowerRoman,
    UpperRoman,
    Bullet,
    /// No number.
    Nothing,
}

impl Counting {
    /// As Word calls it. What counts in words or in other scripts is written in digits.
    pub fn of_word(name: &str) -> Self {
        match name {
            "decimalZero" => Self::PaddedDecimal,
            "lowerLetter" => Self::LowerLetter,
            "upperLetter" => Self::UpperLetter,
            "lowerRoman" => Self::LowerRoman,
            "upperRoman" => Self::UpperRoman,
            "bullet" => Self::Bullet,
            "none" => Self::Nothing,
            _ => Self::Decimal,
        }
    }

    /// As OpenDocument calls it: by its first number.
    pub fn of_open_document(first: &str) -> Self {
        match first {
            "" => Self::Nothing,
            "a" => Self::LowerLetter,
            "A" => Self::UpperLetter,
            "i" => Self::LowerRoman,
            "I" => Self::UpperRoman,
            "01" => Self::PaddedDecimal,
            _ => Self::Decimal,
        }
    }

    /// A number as text.
    pub fn write(self, number: u32) -> String {
        match self {
            Self::PaddedDecimal => format!("{number:02}"),
            Self::LowerLetter => letters(number).unwrap_or_else(|| number.to_string()),
            Self::UpperLetter => letters(number).map_or_else(|| number.to_string(), |text| text.to_uppercase()),
            Self::LowerRoman => roman(number).unwrap_or_else(|| number.to_string()).to_lowercase(),
            Self::UpperRoman => roman(number).unwrap_or_else(|| number.to_string()),
            Self::Decimal => number.to_string(),
            Self::Bullet | Self::Nothing => String::new(),
        }
    }
}

/// a to z, then aa, bb and so on.
fn letters(number: u32) -> Option<String> {
    let at = number.checked_sub(1)?;
    let letter = char::from(b'a' + u8::try_from(at % 26).ok()?);
    let times = at / 26 + 1;
    (times <= MAX_REPEATED).then(|| letter.to_string().repeat(times as usize))
}

fn roman(number: u32) -> Option<String> {
    const DIGITS: [(u32, &str); 13] = [
        (1000, "M"),
        (900, "CM"),
        (500, "D"),
        (400, "CD"),
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ];
    if !(1..4000).contains(&number) {
        return None;
    }
    let (mut rest, mut text) = (number, String::new());
    for (value, digit) in DIGITS {
        while rest >= value {
            text.push_str(digit);
            rest -= value;
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_lists_have_them() {
        for (counting, expected) in [
            (Counting::Decimal, ["1", "4", "28", "0"]),
            (Counting::PaddedDecimal, ["01", "04", "28", "00"]),
            (Counting::LowerLetter, ["a", "d", "bb", "0"]),
            (Counting::UpperLetter, ["A", "D", "BB", "0"]),
            (Counting::LowerRoman, ["i", "iv", "xxviii", "0"]),
            (Counting::UpperRoman, ["I", "IV", "XXVIII", "0"]),
        ] {
            assert_eq!([1, 4, 28, 0].map(|number| counting.write(number)), expected);
        }
        assert_eq!(Counting::LowerLetter.write(u32::MAX), u32::MAX.to_string());
        assert_eq!(Counting::UpperRoman.write(1994), "MCMXCIV");
    }
}
