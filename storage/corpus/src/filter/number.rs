//! Numbers of filters and of metadata, compared with each other.

use std::cmp::Ordering;

/// A number. An integer keeps all of its digits: identifiers of 19 digits are one number to a float, and some hundreds of documents.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    /// A number of JSON.
    pub fn of(given: &serde_json::Number) -> Option<Self> {
        given.as_i128().map(Self::Integer).or_else(|| given.as_f64().map(Self::Float))
    }

    /// A text that is a number. `nan` and `inf` are words.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let float = || text.parse::<f64>().ok().filter(|float| float.is_finite()).map(Self::Float);
        text.parse::<i128>().ok().map(Self::Integer).or_else(float)
    }

    fn as_float(self) -> f64 {
        match self {
            Self::Integer(integer) => integer as f64,
            Self::Float(float) => float,
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

/// Two integers are compared as such; where one of the two is a float, both as floats, so that 1 is 1.0.
impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Integer(one), Self::Integer(other)) => Some(one.cmp(other)),
            (one, other) => one.as_float().partial_cmp(&other.as_float()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(given: serde_json::Value) -> Number {
        given.as_number().and_then(Number::of).unwrap()
    }

    #[test]
    fn integers_are_compared_by_all_of_their_digits() {
        // As floats these two are one number.
        let (less, more) = (9_007_199_254_740_992_u64, 9_007_199_254_740_993_u64);
        assert!(of(json!(less)) < of(json!(more)) && of(json!(less)) != of(json!(more)));
        assert_eq!(Number::read(" 9007199254740993 "), Some(of(json!(more))));
        assert!(of(json!(u64::MAX)) > of(json!(u64::MAX - 1)) && of(json!(u64::MAX)) > of(json!(i64::MAX)));
        assert!(of(json!(i64::MIN)) < of(json!(i64::MIN + 1)) && of(json!(i64::MIN)) < of(json!(0)));
        // More than JSON's integers have.
        assert!(Number::read("18446744073709551616") > Some(of(json!(u64::MAX))));
    }

    #[test]
    fn floats_equal_the_integers_that_they_are() {
        assert_eq!(of(json!(1)), of(json!(1.0)));
        for (text, number) in [("1e3", json!(1000)), ("-0", json!(-0.0)), ("+7", json!(7)), ("007", json!(7.0))] {
            assert_eq!(Number::read(text), Some(of(number)), "{text}");
        }
        assert!(of(json!(1)) < of(json!(1.5)) && of(json!(-2)) > of(json!(-2.5)));
        let long = format!("1{}", "0".repeat(41));
        assert_eq!(Number::read(&long), Some(of(json!(1e41))), "longer than any integer");
        for word in ["", "nan", "inf", "-inf", "1_000", "0x10", "1 2"] {
            assert_eq!(Number::read(word), None, "{word}");
        }
    }
}
