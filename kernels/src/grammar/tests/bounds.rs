//! What a grammar may be at the most: refused beyond it, and compiled below it on a part of the stack that there is.

use super::*;

/// `{"n0000": value, …}`
fn names(count: usize, value: &Value) -> Map<String, Value> {
    (0..count).map(|index| (format!("n{index:04}"), value.clone())).collect()
}

fn optional(count: usize) -> Value {
    json!({ "type": "object", "properties": names(count, &json!({ "type": "null" })), "additionalProperties": false })
}

fn required(count: usize) -> Value {
    let names: Vec<String> = names(count, &Value::Null).into_iter().map(|(name, _)| name).collect();
    json!({ "type": "object", "required": names })
}

/// References each of which needs the next, within what `around` puts around one.
fn references(count: usize, around: impl Fn(Value) -> Value) -> Value {
    let definition = |index: usize| {
        let next = json!({ "$ref": format!("#/$defs/d{}", index + 1) });
        (format!("d{index}"), if index + 1 < count { around(next) } else { json!({ "type": "null" }) })
    };
    let definitions: Map<String, Value> = (0..count).map(definition).collect();
    json!({ "$ref": "#/$defs/d0", "$defs": definitions })
}

/// Rules each of which needs the next.
fn rules(count: usize) -> GrammarSpec {
    let rules: String = (0..count - 2).map(|index| format!("r{index}: r{}\n", index + 1)).collect();
    GrammarSpec::Lark(format!("start: r0\n{rules}r{}: \"a\"\n", count - 2))
}

fn groups(count: usize, [open, close]: [&str; 2]) -> GrammarSpec {
    GrammarSpec::Lark(format!("start: {}\"a\"{}", open.repeat(count), close.repeat(count)))
}

fn counted(count: usize) -> Value {
    let mut schema = optional(count);
    schema["minProperties"] = json!(1);
    schema["maxProperties"] = json!(1);
    schema
}

fn patterns(count: usize) -> Value {
    let patterns: Map<String, Value> =
        (0..count).map(|index| (format!("^\\w{{{}}}$", 30 + index), json!({}))).collect();
    json!({ "type": "object", "properties": names(100, &json!({})), "patternProperties": patterns })
}

/// Definitions of which each needs the next one twice, with something beside it: a copy is made of each.
fn copied(count: usize) -> Value {
    let both = |next: Value| {
        let one = json!({ "allOf": [next, { "type": "object" }] });
        json!({ "type": "object", "properties": { "a": one.clone(), "b": one } })
    };
    references(count, both)
}

#[test]
fn more_than_there_may_be_is_refused_before_it_is_compiled() {
    let array = |next| json!({ "type": "array", "items": next });
    for (spec, words) in [
        (GrammarSpec::JsonSchema(optional(1001)), "1001 properties; use at most 1000"),
        (GrammarSpec::JsonSchema(required(4000)), "4000 properties"),
        (GrammarSpec::JsonSchema(references(1500, |next| next)), "levels"),
        (GrammarSpec::JsonSchema(references(700, |next| next)), "levels"),
        (GrammarSpec::JsonSchema(references(500, array)), "levels"),
        (GrammarSpec::JsonSchema(copied(14)), "copies"),
        (GrammarSpec::JsonSchema(counted(101)), "beside minProperties"),
        (GrammarSpec::JsonSchema(patterns(17)), "17 patterns"),
        (GrammarSpec::JsonSchema(json!({ "enum": vec![0; 20_000] })), "values; use at most 10000"),
        (GrammarSpec::JsonSchema(json!({ "type": "string", "pattern": "a?".repeat(1001) })), "1001 repeats"),
        (rules(1001), "1001 colons"),
        (groups(1001, ["(", ")"]), "1001 opening brackets"),
        (GrammarSpec::Lark(format!("start: {}", "\"a\"? ".repeat(1001))), "1001 repeats"),
        (GrammarSpec::Lark(format!("start: %json {}", required(1001))), "1001 properties"),
        (GrammarSpec::Regex("(a?b)?".repeat(501)), "1002 repeats"),
        (GrammarSpec::Calls { rules: "start: json".into(), schema: required(1001) }, "1001 properties"),
    ] {
        let error = crate::grammar::bounds::check(&spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    // What refers to itself, or to nothing, is no endless count.
    let itself = json!({ "$ref": "#", "type": "object", "allOf": [{ "$ref": "#/nowhere" }, { "$ref": "#" }] });
    crate::grammar::bounds::check(&GrammarSpec::JsonSchema(itself)).unwrap();
}

/// Whatever the compiler makes of them, it does not run out of its stack, nor does whoever follows what it made.
#[test]
fn the_most_that_is_taken_compiles_on_a_quarter_of_the_stack() {
    let world = World::new(NAMES[0]);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(1).stack_size(STACK_BYTES / 4).build().unwrap();
    let choices: Vec<Value> = (0..400).map(|index| json!({ "const": format!("c{index}") })).collect();
    let deep = (0..30).fold(json!({ "type": "null" }), |inner, _| json!({ "type": "array", "items": inner }));
    let array = |next| json!({ "type": "array", "items": next });
    let object = |next| json!({ "type": "object", "properties": { "a": next }, "additionalProperties": false });
    let all = |next| json!({ "allOf": [next, { "description": "x" }] });
    let beside = |next: Value| json!({ "type": "array", "items": { "$ref": next["$ref"], "type": "array" } });
    for spec in [
        GrammarSpec::JsonSchema(optional(1000)),
        GrammarSpec::JsonSchema(required(1000)),
        GrammarSpec::JsonSchema(references(590, |next| next)),
        GrammarSpec::JsonSchema(references(390, array)),
        GrammarSpec::JsonSchema(references(290, object)),
        GrammarSpec::JsonSchema(references(100, all)),
        GrammarSpec::JsonSchema(references(100, beside)),
        GrammarSpec::JsonSchema(copied(10)),
        GrammarSpec::JsonSchema(counted(100)),
        GrammarSpec::JsonSchema(patterns(16)),
        GrammarSpec::JsonSchema(json!({ "allOf": [{ "anyOf": choices.clone() }, { "anyOf": choices }] })),
        GrammarSpec::JsonSchema(json!({ "enum": (0..9_000).map(|index| index.to_string()).collect::<Vec<_>>() })),
        GrammarSpec::JsonSchema(deep),
        rules(1000),
        groups(1000, ["(", ")"]),
        groups(1000, ["[", "]"]),
        groups(1000, ["~", ""]),
        GrammarSpec::Lark(format!("start: {}", "\"a\"? ".repeat(1000))),
        GrammarSpec::Lark(format!("start: {}", vec!["\"a\""; 2000].join(" | "))),
        GrammarSpec::Regex(format!("{}a{}", "(".repeat(200), ")?".repeat(200))),
        GrammarSpec::Regex("(a?b)?".repeat(500)),
        GrammarSpec::Regex("(a{1000}b{1000}){1000}".repeat(300)),
    ] {
        let shown: String = format!("{spec:?}").chars().take(60).collect();
        crate::grammar::bounds::check(&spec).unwrap_or_else(|error| panic!("{shown}: {error}"));
        // Running out of a stack says nothing of who did.
        eprintln!("{shown}");
        let compiled = threads.install(|| world.compiler.compile(&spec));
        match compiled {
            Ok(constraint) => follow(&world, constraint, &shown),
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput, "{shown}: {error}"),
        }
    }
}

/// Follows some tokens, on a thread of an ordinary stack.
fn follow(world: &World, constraint: Constraint, shown: &str) {
    let params = SamplingParams { temperature: 1.0, ..Default::default() };
    let mut sampler = Sampler::answering(params, &[], world.tokenizer.eos_ids()).constrained(Some(constraint));
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..8 {
        match sampler.sample(&world.logits(&mut random)) {
            Ok(_) if sampler.is_complete() => return,
            Ok(_) => {}
            Err(error) => return assert_eq!(error.kind(), ErrorKind::InvalidInput, "{shown}: {error}"),
        }
    }
}

/// A thousand properties, each of which may come next.
#[test]
fn many_optional_properties_are_followed() {
    let world = World::new(NAMES[0]);
    for count in [500, 1000] {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(1).stack_size(STACK_BYTES).build().unwrap();
        let spec = GrammarSpec::JsonSchema(optional(count));
        let constraint = threads.install(|| world.compiler.compile(&spec)).unwrap();
        let params = SamplingParams { temperature: 1.0, ..Default::default() };
        let mut sampler = Sampler::answering(params, &[], world.tokenizer.eos_ids()).constrained(Some(constraint));
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20 {
            sampler.sample(&world.logits(&mut random)).unwrap_or_else(|error| panic!("{count}: {error}"));
            if sampler.is_complete() {
                break;
            }
        }
    }
}
