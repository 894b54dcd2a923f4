use proptest::prelude::*;
use serde_json::json;

use super::*;

fn matches(filter: Value, metadata: Value) -> bool {
    let Value::Object(metadata) = metadata else { panic!("no object") };
    Filter::parse(&filter).unwrap().matches(&metadata)
}

fn refused(filter: &Value) -> String {
    let error = Filter::parse(filter).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().len() < 400, "{error}");
    error.to_string()
}

fn one(kind: &str, value: impl Into<Value>) -> Value {
    json!({ "type": kind, "key": "k", "value": value.into() })
}

#[test]
fn values_are_compared_as_what_they_are() {
    for (kind, value, entry, expected) in [
        ("eq", json!("en"), json!("en"), true),
        ("eq", json!("en"), json!("EN"), false),
        ("eq", json!("7"), json!("007"), false),
        ("eq", json!(7), json!("007"), true),
        ("eq", json!("7"), json!(7.0), true),
        ("eq", json!(true), json!("true"), true),
        ("eq", json!("false"), json!(false), true),
        ("eq", json!(1), json!(true), false),
        ("eq", json!("de"), json!(["en", "de"]), true),
        ("eq", json!("x"), json!({"x": "x"}), false),
        ("ne", json!("en"), json!("de"), true),
        ("ne", json!("en"), Value::Null, true),
        ("in", json!(["a", 2]), json!("2"), true),
        ("in", json!([]), json!("2"), false),
        ("nin", json!(["a", 2]), json!("b"), true),
        ("nin", json!(["a"]), json!(["b", "a"]), false),
        ("prefix", json!("doc/"), json!("doc/a"), true),
        ("prefix", json!("doc/"), json!("Doc/a"), false),
        ("prefix", json!("%"), json!("doc"), false),
        ("gt", json!(9), json!("10"), true),
        ("gt", json!("9"), json!("10"), true),
        ("lt", json!("2024-03-01"), json!("2024-02-29"), true),
        ("lte", json!("2024-02"), json!("2024-02"), true),
        ("gte", json!("2024-03-01T00:00:00Z"), json!("2024-02-29T23:59:59Z"), false),
        ("gt", json!(2000), json!("2024-02-29"), false),
        ("lt", json!(2000), json!("2024-02-29"), false),
        ("gt", json!("nan"), json!("oh"), true),
        ("lt", json!(1e308), json!("inf"), false),
        ("lt", json!(2), json!([3, 1]), true),
        ("eq", json!(1), json!(1.0), true),
        ("eq", json!(1.0), json!("1"), true),
        ("eq", json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_993_u64), true),
        ("eq", json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992_u64), false),
        ("ne", json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992_u64), true),
        ("in", json!([9_007_199_254_740_993_u64]), json!("9007199254740992"), false),
        ("eq", json!("9007199254740993"), json!(9_007_199_254_740_992_u64), false),
        ("eq", json!("9007199254740993"), json!(9_007_199_254_740_993_u64), true),
        ("gt", json!(9_007_199_254_740_992_u64), json!(9_007_199_254_740_993_u64), true),
        ("gte", json!(9_007_199_254_740_993_u64), json!("9007199254740992"), false),
        ("gte", json!("9007199254740993"), json!("9007199254740992"), false),
        ("eq", json!(u64::MAX), json!(u64::MAX), true),
        ("eq", json!(u64::MAX), json!(u64::MAX - 1), false),
        ("lt", json!(u64::MAX), json!(i64::MIN), true),
    ] {
        assert_eq!(matches(one(kind, value.clone()), json!({ "k": entry })), expected, "{kind} {value} {entry}");
    }
    assert!(matches(json!({"type": "exists", "key": "k"}), json!({"k": ""})));
    assert!(!matches(json!({"type": "exists", "key": "k"}), json!({"k": null})));
    assert!(matches(one("ne", 1), json!({})), "what is not there is not equal");
}

#[test]
fn letters_are_the_same_in_each_form_of_unicode() {
    let (composed, apart) = ("U\u{308}bung/a".replace("U\u{308}", "Ü"), "U\u{308}bung/a");
    for (value, entry) in [(composed.as_str(), apart), (apart, composed.as_str()), (apart, apart)] {
        for kind in ["eq", "prefix", "suffix", "contains", "gte", "lte"] {
            assert!(matches(one(kind, value), json!({ "k": entry })), "{kind} {value} {entry}");
        }
    }
}

#[test]
fn conditions_are_joined() {
    let (yes, no) = (one("eq", 1), one("eq", 2));
    for (kind, filters, expected) in [
        ("and", json!([yes, yes]), true),
        ("and", json!([yes, no]), false),
        ("or", json!([no, yes]), true),
        ("or", json!([no]), false),
    ] {
        let joined = json!({ "type": kind, "filters": filters });
        assert_eq!(matches(joined.clone(), json!({"k": 1})), expected);
        assert_eq!(matches(json!({ "type": "not", "filter": joined }), json!({"k": 1})), !expected);
    }
    let filters = vec![Filter::parse(&yes).unwrap(), Filter::parse(&no).unwrap()];
    let all = Filter::all_of(filters).unwrap().unwrap();
    assert_eq!(serde_json::to_value(&all).unwrap(), json!({ "type": "and", "filters": [yes, no] }));
    assert_eq!(serde_json::from_value::<Filter>(serde_json::to_value(&all).unwrap()).unwrap(), all);
    assert_eq!(Filter::all_of(Vec::new()).unwrap(), None);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let in_and = |filter: Value| json!({ "type": "and", "filters": [one("eq", 1), filter] });
    for (filter, place) in [
        (json!("k = 1"), "`filter` must be an object"),
        (json!({}), "`filter.type` must be one of eq"),
        (json!({"type": "like", "key": "k", "value": "%"}), "`filter.type`"),
        (in_and(json!({"type": 3})), "`filter.filters[1].type`"),
        (json!({"type": "eq", "value": 1}), "`filter.key` is missing"),
        (json!({"type": "eq", "key": "", "value": 1}), "`filter.key` must be"),
        (json!({"type": "eq", "key": "x".repeat(257), "value": 1}), "`filter.key` must be"),
        (json!({"type": "eq", "key": ["k"], "value": 1}), "`filter.key` must be"),
        (json!({"type": "eq", "key": "k"}), "`filter.value` is missing"),
        (one("eq", Value::Null), "`filter.value` must be a text"),
        (one("eq", json!({"$ne": 1})), "`filter.value` must be a text"),
        (one("eq", "x".repeat(1025)), "`filter.value` must be a text of at most"),
        (one("in", "x"), "`filter.value` must be a list"),
        (one("in", json!(vec![0; 1025])), "too many values"),
        (one("gt", true), "compares by size"),
        (one("prefix", 3), "compares texts"),
        (json!({"type": "eq", "key": "k", "value": 1, "mode": "x"}), "has a field that `eq` does not know"),
        (json!({"type": "exists", "key": "k", "value": true}), "has a field that `exists` does not know"),
        (json!({"type": "and", "filters": []}), "not empty"),
        (json!({"type": "or", "filters": {"type": "eq"}}), "must be a list of conditions"),
        (json!({"type": "not", "filter": []}), "`filter.filter` must be an object"),
        (json!({"type": "and", "filters": vec![one("eq", 1); 64]}), "at most 64 conditions"),
    ] {
        let message = refused(&filter);
        assert!(message.contains(place), "{message}");
    }
}

#[test]
fn depth_is_bounded_before_it_costs_anything() {
    let deep = |levels: usize| (1..levels).fold(one("eq", 1), |inner, _| json!({ "type": "not", "filter": inner }));
    Filter::parse(&deep(8)).unwrap();
    assert!(refused(&deep(9)).contains("too deep"));
    let text = r#"{"type":"not","filter":"#.repeat(100_000);
    assert!(serde_json::from_str::<Filter>(&text).is_err(), "and no overflow of the stack");
}

proptest! {
    /// Whatever stands in a key or value is that text and nothing else.
    #[test]
    fn no_text_means_anything(key in any::<String>(), value in any::<String>(), other in any::<String>()) {
        prop_assume!(!key.is_empty() && key.len() <= MAX_KEY_BYTES && value.len() <= MAX_VALUE_BYTES);
        let filter = json!({ "type": "eq", "key": key, "value": value });
        let entry = |value: &str| Value::Object([(key.clone(), value.into())].into_iter().collect());
        prop_assert!(matches(filter.clone(), entry(&value)));
        prop_assert_eq!(matches(filter, entry(&other)), other == value);
    }
}
