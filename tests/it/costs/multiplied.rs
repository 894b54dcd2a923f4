//! A valid value, multiplied: each text and list of it repeated, each object widened, each value nested, one at a time. Pure.

use serde_json::{Map, Value, json};

/// How deep a value is put into itself: as deep as JSON is read.
const DEPTH: usize = 100;

/// Every variant of `value` of about `bytes` bytes, with what was done to it.
pub fn variants(value: &Value, bytes: usize) -> Vec<(String, Value)> {
    let mut places = Vec::new();
    pointers(value, String::new(), &mut places);
    let mut variants = Vec::new();
    for place in places {
        let Some(part) = value.pointer(&place) else { continue };
        for (how, more) in multiply(part, bytes) {
            let mut variant = value.clone();
            if let Some(part) = variant.pointer_mut(&place) {
                *part = more;
                variants.push((format!("{how} `{place}`"), variant));
            }
        }
    }
    variants
}

fn pointers(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| pointers(value, format!("{at}/{index}"), places));
        }
        Value::Object(map) => map.iter().for_each(|(key, value)| pointers(value, format!("{at}/{key}"), places)),
        _ => {}
    }
    places.push(at);
}

fn multiply(part: &Value, bytes: usize) -> Vec<(&'static str, Value)> {
    let times = |one: usize| (bytes / one.max(1)).max(2);
    let mut variants = Vec::new();
    match part {
        Value::String(text) => {
            let text = if text.is_empty() { "a" } else { text };
            variants.push(("repeat", Value::from(text.repeat(times(text.len())))));
            variants.push(("repeat dense", Value::from("!?;:,.".repeat(times(6)))));
        }
        Value::Number(_) => variants.push(("lengthen", json!(1e300))),
        Value::Array(values) if !values.is_empty() => {
            let many = values.iter().cycle().take(times(json!(values).to_string().len()) * values.len());
            variants.push(("repeat", many.cloned().collect()));
        }
        Value::Object(map) => {
            let wide: Map<String, Value> = match map.iter().next() {
                Some((key, value)) => {
                    let one = key.len() + value.to_string().len() + 12;
                    (0..times(one)).map(|index| (format!("{key}{index}"), value.clone())).collect()
                }
                None => (0..times(12)).map(|index| (format!("k{index}"), json!(0))).collect(),
            };
            let both = map.iter().map(|(key, value)| (key.clone(), value.clone())).chain(wide).collect();
            variants.push(("widen", Value::Object(both)));
        }
        _ => {}
    }
    let nested = (0..DEPTH).fold(part.clone(), |inner, _| match part {
        Value::Object(map) => {
            let mut outer = map.clone();
            outer.insert(map.keys().next().cloned().unwrap_or_else(|| "k".into()), inner);
            Value::Object(outer)
        }
        _ => json!([inner]),
    });
    variants.push(("nest", nested));
    variants.push(("many numbers for", json!(vec![0; times(2)])));
    variants
}

#[test]
fn each_part_is_multiplied_in_its_ways() {
    let all = variants(&json!({ "a": ["x"], "b": { "c": 1 } }), 100);
    let done: Vec<&str> = all.iter().map(|(how, _)| how.as_str()).collect();
    for how in ["repeat `/a/0`", "repeat `/a`", "widen `/b`", "nest `/b/c`", "widen ``", "many numbers for `/a`"] {
        assert!(done.contains(&how), "{how}: {done:?}");
    }
    assert!(all.iter().all(|(_, value)| value != &json!({ "a": ["x"], "b": { "c": 1 } })));
}
