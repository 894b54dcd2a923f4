mod bounds;

use std::path::Path;

use serde_json::Map;

use super::*;
use crate::sampling::{Sampler, SamplingParams};

const NAMES: [&str; 2] = ["byte_level", "byte_fallback"];

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers").join(name)).unwrap()
}

/// As long as a row of logits of a model whose embedding is padded.
fn vocabulary(tokenizer: &Tokenizer) -> usize {
    (0..).find(|id| tokenizer.token(*id).is_none()).unwrap() as usize + 7
}

struct World {
    tokenizer: Tokenizer,
    vocabulary: usize,
    compiler: GrammarCompiler,
}

impl World {
    fn new(name: &str) -> Self {
        let tokenizer = tokenizer(name);
        let vocabulary = vocabulary(&tokenizer);
        Self { compiler: GrammarCompiler::new(&tokenizer, vocabulary).unwrap(), tokenizer, vocabulary }
    }

    fn sampler(&self, spec: &GrammarSpec, temperature: f32) -> Sampler {
        let params = SamplingParams { temperature, logprobs: Some(2), ..Default::default() };
        let constraint = self.compiler.compile(spec).unwrap_or_else(|error| panic!("{error}: {spec:?}"));
        Sampler::answering(params, &[], self.tokenizer.eos_ids()).constrained(Some(constraint))
    }

    fn logits(&self, random: &mut fastrand::Rng) -> Vec<f32> {
        (0..self.vocabulary).map(|_| random.f32() * 8.0).collect()
    }

    /// Goes on for at most `left` tokens; whether the answer came to its end.
    fn go_on(&self, sampler: &mut Sampler, random: &mut fastrand::Rng, ids: &mut Vec<u32>, left: usize) -> bool {
        for _ in 0..left {
            let id = sampler.sample(&self.logits(random)).unwrap().id;
            if self.tokenizer.eos_ids().contains(&id) {
                return true;
            }
            ids.push(id);
            if sampler.is_complete() {
                return true;
            }
        }
        false
    }

    fn answer(&self, spec: &GrammarSpec, random: &mut fastrand::Rng, most: usize) -> (String, bool) {
        let (mut sampler, mut ids) = (self.sampler(spec, 2.0), Vec::new());
        let ended = self.go_on(&mut sampler, random, &mut ids, most);
        (self.text(&ids), ended)
    }

    fn text(&self, ids: &[u32]) -> String {
        let bytes = ids.iter().flat_map(|id| self.tokenizer.token_bytes(*id)).collect();
        String::from_utf8(bytes).unwrap_or_default()
    }
}

/// A schema of the subset that [`fits`] checks.
fn schema(random: &mut fastrand::Rng, depth: usize) -> Value {
    match random.usize(0..if depth == 0 { 7 } else { 10 }) {
        0 => json!({ "type": "boolean" }),
        1 => json!({ "type": "null" }),
        2 => {
            let least = random.i64(-500..500);
            json!({ "type": "integer", "minimum": least, "maximum": least + random.i64(0..2000) })
        }
        3 => json!({ "type": "number", "minimum": -1, "maximum": 1.5 }),
        4 => json!({ "type": "string", "minLength": random.usize(0..3), "maxLength": random.usize(3..12) }),
        5 => json!({ "enum": ["red", "gr\"ün", 7, null, true, "1.5"] }),
        6 => json!({ "type": "string", "pattern": "^[a-f]{2,4}-[0-9]{1,3}$" }),
        7 => {
            json!({ "type": "array", "items": schema(random, depth - 1), "minItems": random.usize(0..2), "maxItems": random.usize(2..5) })
        }
        8 => json!({ "anyOf": [schema(random, depth - 1), schema(random, depth - 1)] }),
        _ => object(random, depth),
    }
}

fn object(random: &mut fastrand::Rng, depth: usize) -> Value {
    let names = ["a", "name", "größe", "a b", "\"q\"", "type"];
    let count = random.usize(0..names.len());
    let properties: Map<String, Value> =
        names[..count].iter().map(|name| ((*name).to_owned(), schema(random, depth.saturating_sub(1)))).collect();
    let required: Vec<&str> = names[..count].iter().copied().filter(|_| random.bool()).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// A second reading of JSON Schema, for the keywords that [`schema`] uses.
fn fits(value: &Value, schema: &Value) -> bool {
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| fits(value, schema));
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    let number = |key: &str| schema[key].as_f64();
    match schema["type"].as_str().unwrap() {
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        kind @ ("integer" | "number") => {
            let Some(number_of) = value.as_f64() else { return false };
            let is_whole = kind == "number" || number_of.fract() == 0.0;
            is_whole && number("minimum").unwrap() <= number_of && number_of <= number("maximum").unwrap()
        }
        "string" => {
            let Some(text) = value.as_str() else { return false };
            if schema["pattern"].is_string() {
                let Some((letters, digits)) = text.split_once('-') else { return false };
                let all = |text: &str, set: &str| text.chars().all(|c| set.contains(c));
                return (2..=4).contains(&letters.len())
                    && all(letters, "abcdef")
                    && (1..=3).contains(&digits.len())
                    && all(digits, "0123456789");
            }
            let length = text.chars().count() as f64;
            number("minLength").unwrap() <= length && length <= number("maxLength").unwrap()
        }
        "array" => {
            let Some(items) = value.as_array() else { return false };
            let length = items.len() as f64;
            number("minItems").unwrap() <= length
                && length <= number("maxItems").unwrap()
                && items.iter().all(|item| fits(item, &schema["items"]))
        }
        _ => {
            let Some(map) = value.as_object() else { return false };
            let required = schema["required"].as_array().unwrap();
            required.iter().all(|name| map.contains_key(name.as_str().unwrap()))
                && map
                    .iter()
                    .all(|(name, value)| schema["properties"].get(name).is_some_and(|schema| fits(value, schema)))
        }
    }
}

/// Random schemas, and models that say anything: what comes to its end parses, and fits.
#[test]
fn a_fuzz_of_schemas_always_parses() {
    for name in NAMES {
        let world = World::new(name);
        let mut random = fastrand::Rng::with_seed(15);
        let mut ended = 0;
        for case in 0..150 {
            let schema = object(&mut random, 3);
            let (text, has_ended) = world.answer(&GrammarSpec::JsonSchema(schema.clone()), &mut random, 600);
            if has_ended {
                ended += 1;
                let value =
                    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{case} {error}: {text:?} {schema}"));
                assert!(fits(&value, &schema), "{case}: {text} {schema}");
            }
        }
        assert!(ended > 120, "{name}: only {ended} of 150 came to an end");
    }
}

#[test]
fn any_object_an_expression_and_a_grammar() {
    for name in NAMES {
        let world = World::new(name);
        let mut random = fastrand::Rng::with_seed(3);
        let mut ended = 0;
        for _ in 0..20 {
            let (text, has_ended) = world.answer(&GrammarSpec::json_object(), &mut random, 800);
            ended += usize::from(has_ended);
            // A number without bounds may be one that no double holds: it is JSON all the same.
            let parsed = serde_json::from_str::<Map<String, Value>>(&text);
            let is_too_great = |error: &serde_json::Error| error.to_string().contains("number out of range");
            assert!(!has_ended || parsed.as_ref().err().is_none_or(is_too_great), "{parsed:?} {text:?}");
        }
        assert!(ended > 0, "{name}");
        for _ in 0..20 {
            let (text, has_ended) = world.answer(&GrammarSpec::Regex("(ab|c)[0-9]{3}".into()), &mut random, 20);
            let digits = text.strip_prefix("ab").or(text.strip_prefix('c')).unwrap();
            assert!(has_ended && digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}");
            let grammar = "start: \"(\" start \")\" | \"x\"";
            let (text, has_ended) = world.answer(&GrammarSpec::Lark(grammar.into()), &mut random, 400);
            let depth = text.matches('(').count();
            assert!(!has_ended || text == format!("{}x{}", "(".repeat(depth), ")".repeat(depth)), "{text:?}");
        }
    }
}

/// An answer may be preempted behind any token, and `n` answers begin with one prompt: a clone goes on as the original would.
#[test]
fn grammars_that_differ_have_different_hashes() {
    let schema = |text: &str| GrammarSpec::JsonSchema(serde_json::from_str(text).unwrap());
    let calls = |rules: &str, schema| GrammarSpec::Calls { rules: rules.to_owned(), schema };
    let [first, second] = [r#"{"properties":{"a":{},"b":{}}}"#, r#"{"properties":{"b":{},"a":{}}}"#];
    let all = [
        schema(first),
        schema(second),
        GrammarSpec::json_object(),
        GrammarSpec::Regex("a".into()),
        GrammarSpec::Lark("a".into()),
        calls("a", json!({})),
        calls("a{", json!({})),
        calls("", json!("a")),
    ];
    let digests: std::collections::BTreeSet<_> = all.iter().map(GrammarSpec::digest).collect();
    assert_eq!(digests.len(), all.len());
    assert_eq!(schema(first).digest(), all[0].digest());
}

#[test]
fn clones_go_on_independently() {
    let world = World::new(NAMES[0]);
    let mut random = fastrand::Rng::with_seed(9);
    for cut in 0..12 {
        let spec = GrammarSpec::JsonSchema(object(&mut random, 2));
        let (mut sampler, mut ids) = (world.sampler(&spec, 1.0), Vec::new());
        if world.go_on(&mut sampler, &mut fastrand::Rng::with_seed(cut), &mut ids, cut as usize) {
            continue;
        }
        let (mut other, mut others) = (sampler.clone(), ids.clone());
        let ended = world.go_on(&mut sampler, &mut fastrand::Rng::with_seed(77), &mut ids, 300);
        assert_eq!(world.go_on(&mut other, &mut fastrand::Rng::with_seed(77), &mut others, 300), ended);
        assert_eq!(ids, others);
    }
}

/// The mask, token by token: exactly those whose text goes on with what the expression matches.
#[test]
fn the_mask_is_what_the_text_says() {
    for name in NAMES {
        let world = World::new(name);
        let spec = GrammarSpec::Regex("[ab]+".into());
        let mut constraint = world.compiler.compile(&spec).unwrap();
        assert!(!constraint.conforms());
        let fits = |id: u32| {
            let bytes = world.tokenizer.token_bytes(id);
            !bytes.is_empty() && bytes.iter().all(|byte| b"ab".contains(byte))
        };
        let mut masked = vec![0.0f32; world.vocabulary];
        constraint.mask(&mut masked).unwrap();
        for (id, logit) in masked.iter().enumerate() {
            assert_eq!(*logit == 0.0, fits(id as u32), "{name} {id} at the start");
        }
        let letter = (0..world.vocabulary as u32).find(|id| fits(*id)).unwrap();
        constraint.note(letter).unwrap();
        assert!(constraint.conforms() && !constraint.is_complete());
        let mut masked = vec![0.0f32; world.vocabulary];
        constraint.mask(&mut masked).unwrap();
        for (id, logit) in masked.iter().enumerate() {
            let may_follow = fits(id as u32) || world.tokenizer.eos_ids().contains(&(id as u32));
            assert_eq!(*logit == 0.0, may_follow, "{name} {id} behind a letter");
        }
        let digit = (0..world.vocabulary as u32).find(|id| world.tokenizer.token_bytes(*id) == b"7").unwrap();
        assert!(constraint.note(digit).is_err());
    }
}

#[test]
fn log_probabilities_are_the_models_own() {
    let world = World::new(NAMES[0]);
    let logits = world.logits(&mut fastrand::Rng::with_seed(1));
    let sampled = world.sampler(&GrammarSpec::json_object(), 0.0).sample(&logits).unwrap();
    let free = Sampler::new(SamplingParams { logprobs: Some(2), ..Default::default() }).sample(&logits).unwrap();
    assert_eq!(world.tokenizer.token_bytes(sampled.id).first(), Some(&b'{'));
    assert_eq!(sampled.top, free.top);
    assert!(sampled.logprob < free.logprob && sampled.logprob.is_finite());
}

#[test]
fn what_is_wrong_or_too_much_is_refused_and_says_why() {
    let world = World::new(NAMES[0]);
    let deep = (0..100).fold(json!({ "type": "null" }), |inner, _| json!({ "type": "array", "items": inner }));
    let names: Map<String, Value> = (0..5000).map(|index| (format!("{index:020}"), json!({}))).collect();
    for (spec, words) in [
        (GrammarSpec::JsonSchema(json!(true)), "must be an object"),
        (GrammarSpec::JsonSchema(json!({ "type": "strin" })), "strin"),
        (GrammarSpec::JsonSchema(json!({ "$ref": "http://example.org/a" })), "$ref"),
        (GrammarSpec::JsonSchema(json!({ "type": "string", "format": "no such" })), "no such"),
        (GrammarSpec::JsonSchema(deep), "deeper than 64"),
        (GrammarSpec::JsonSchema(json!({ "properties": names })), "at most 65536"),
        (GrammarSpec::Regex("a(".into()), "regex"),
        (GrammarSpec::Regex("a".repeat(70_000)), "at most 65536"),
        (GrammarSpec::Lark("start: nowhere".into()), "nowhere"),
        (GrammarSpec::Lark(String::new()), ""),
    ] {
        let shown: String = format!("{spec:?}").chars().take(100).collect();
        let Err(error) = world.compiler.compile(&spec) else { panic!("{shown} was compiled") };
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(words) && error.to_string().len() < 500, "{error}");
    }
}
