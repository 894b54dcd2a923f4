//! A question that searches again for what the model begins to answer, through HTTP and the command line.

use serde_json::{Value, json};

use crate::harness::{Folder, error_message};

const CHAT: &str = "/v1/chat/completions";
const QUESTION: &str = "Who is the chair of Bornix Brewery?";
/// The second page names what the first says, and nothing of the question.
const PAGES: &[(&str, &str)] = &[
    ("Bornix Brewery", "Bornix Brewery makes glue. The chair of Bornix Brewery is Jomi Jorrud."),
    ("Jomi Jorrud", "Jomi Jorrud plays harp. Jomi Jorrud keeps 12 doves."),
    ("Calnix Bakery", "Calnix Bakery makes candles. The chair of Calnix Bakery is Mira Dorman."),
    ("Mira Dorman", "Mira Dorman likes plums. Mira Dorman visits Torbury."),
];

fn titles(citations: &Value) -> Vec<&str> {
    citations.as_array().unwrap().iter().map(|citation| citation["title"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_second_round_finds_what_the_first_cannot() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", PAGES).await;
    let asked = |more: Value| {
        let mut extension = json!({ "collection": "world", "top_k": 1, "reuse": "exact" });
        extension.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0, "max_tokens": 8, "ragstone": extension })
    };
    let once = service.ask(CHAT, &asked(json!({}))).await;
    assert_eq!(titles(&once["ragstone"]["citations"]), ["Bornix Brewery"]);
    assert!(once["ragstone"]["report"].get("rounds").is_none());
    let twice = service.ask(CHAT, &asked(json!({ "rounds": 3, "round_tokens": 8, "speculate": false }))).await;
    assert_eq!(titles(&twice["ragstone"]["citations"]), ["Bornix Brewery", "Jomi Jorrud"]);
    let rounds = twice["ragstone"]["report"]["rounds"].as_array().unwrap();
    assert_eq!((rounds.len(), &rounds[0]["query"], &rounds[1]["query"]), (3, &json!(QUESTION), &json!("Jomi Jorrud")));
    assert_eq!((&rounds[1]["passages"], &rounds[2]["passages"]), (&json!([2]), &json!([])));
    assert!(rounds[1]["cached_tokens"].as_u64() > Some(0));
    // A round says in words what is searched for next; the answer has the form that is asked for.
    let schema = json!({
        "type": "object",
        "properties": { "chair": { "type": "string", "maxLength": 12 } },
        "required": ["chair"],
        "additionalProperties": false
    });
    let mut formed = asked(json!({ "rounds": 3, "round_tokens": 8, "speculate": false }));
    formed["max_tokens"] = json!(60);
    formed["response_format"] = json!({ "type": "json_schema", "json_schema": { "name": "chair", "schema": schema } });
    let formed = service.ask(CHAT, &formed).await;
    assert_eq!(titles(&formed["ragstone"]["citations"]), ["Bornix Brewery", "Jomi Jorrud"]);
    assert_eq!(formed["ragstone"]["report"]["rounds"][1]["query"], "Jomi Jorrud");
    let content = formed["choices"][0]["message"]["content"].as_str().unwrap();
    let answer: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {formed}"));
    assert!(answer["chair"].is_string() && answer.as_object().unwrap().len() == 1, "{answer}");
    for (field, value) in
        [("rounds", json!(0)), ("rounds", json!(9)), ("round_tokens", json!(0)), ("rounds", json!("two"))]
    {
        let (status, error) = service.post(CHAT, &asked(json!({ field: value }))).await;
        assert_eq!(status, 400);
        assert!(value == "two" || error_message(&error).contains(field), "{error}");
    }
    let nowhere = json!({ "messages": [{ "role": "user", "content": "?" }], "ragstone": { "rounds": 2 } });
    let (status, error) = service.post(CHAT, &nowhere).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("ragstone.rounds")));

    let words = ["ask", QUESTION, "--collection", "world", "--top-k", "1", "--rounds", "2", "--no-speculation"];
    let told = folder.run(&words).succeeded().stdout;
    assert!(told.contains("round 1      passages 1;") && told.contains("round 2      passages 2;"), "{told}");
    let json = folder.json(&[&words[..], &["--json"]].concat());
    assert_eq!(json["report"]["rounds"][1]["query"], "Jomi Jorrud");
}
