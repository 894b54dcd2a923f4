//! Samples of `/metrics`, in Prometheus's text format (version 0.0.4).

use crate::error::{Error, Result};

/// One line of the exposition.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

/// All samples of one scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<Sample>);

impl Samples {
    /// Reads an exposition. Comments are passed over, and so are the times of samples.
    ///
    /// # Errors
    /// `Internal` with the line that is no sample.
    pub fn read(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let read = |line: &str| {
            sample(line).ok_or_else(|| {
                let shown: String = line.chars().take(200).collect();
                Error::internal(format!("/metrics has a line that is no sample: {shown:?}"))
            })
        };
        Ok(Self(lines.map(read).collect::<Result<_>>()?))
    }

    /// The sum of a metric's samples that have all of `labels`; `None` where there is none.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found =
            self.named(name).filter(|sample| labels.iter().all(|(label, value)| sample.label(label) == Some(value)));
        let first = found.next()?.value;
        Some(found.fold(first, |sum, sample| sum + sample.value))
    }

    /// Upper bounds and cumulative counts of a histogram's buckets, by bound; the last bound is infinite.
    pub fn buckets(&self, name: &str) -> Vec<(f64, f64)> {
        let bucket = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.named(&bucket) {
            let Some(bound) = sample.label("le").and_then(|le| le.parse::<f64>().ok()) else { continue };
            match buckets.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }

    /// Those of one name.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }
}

impl Sample {
    /// The value of a label that it has.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

/// `name{label="value",…} 1.5 1795272644232`, with or without labels and time.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then(|| Sample { name: name.to_owned(), labels, value })
}

/// Labels up to `}`, and what stands after it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = unquoted(quoted)?;
        labels.push((name.trim().to_owned(), value));
        rest = after;
    }
}

/// A label's value up to its closing quote, and what stands after that.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_exporter_writes_is_read() {
        let text = "# HELP a what\n# TYPE a counter\na 3\n\nb{x=\"1\",y=\"a\\\"b\\\\c\\nd}\"} 2.5e3 1795272644232\nb{x=\"2\"} 1\n";
        let samples = Samples::read(text).unwrap();
        assert_eq!(samples.get("a", &[]), Some(3.0));
        assert_eq!(samples.get("b", &[("y", "a\"b\\c\nd}")]), Some(2500.0));
        assert_eq!(samples.get("b", &[]), Some(2501.0), "all of them together");
        assert_eq!(samples.get("b", &[("x", "3")]), None);
        assert_eq!(samples.get("c", &[]), None);
    }

    #[test]
    fn buckets_come_by_their_bounds() {
        let text = "t_bucket{le=\"+Inf\"} 9\nt_bucket{le=\"0.5\"} 4\nt_bucket{le=\"0.1\"} 1\nt_sum 3\nt_count 9\n";
        let samples = Samples::read(text).unwrap();
        assert_eq!(samples.buckets("t"), [(0.1, 1.0), (0.5, 4.0), (f64::INFINITY, 9.0)]);
        assert!(samples.buckets("u").is_empty());
    }

    #[test]
    fn a_line_that_is_no_sample_is_an_error_that_shows_it() {
        for line in ["a", "a x", "a{b=\"c} 1", "a{b} 1", "{b=\"c\"} 1", "<html> and more"] {
            let error = Samples::read(&format!("ok 1\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }
}
