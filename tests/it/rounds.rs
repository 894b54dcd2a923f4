//! Retrieval in rounds: what the answer begins with is searched for, too, and a round's prompt finds the KV of the one before.

use serde_json::Value;

use crate::harness::{Folder, error_message};

const QUESTION: &str = "Who is the founder of Calnix Bakery?";

/// The page that names the founder, the founder's own, which the question has no word of, and others.
const PAGES: [(&str, &str); 8] = [
    ("Calnix Bakery", "Calnix Bakery makes candles. The founder of Calnix Bakery is Mira Dorman."),
    ("Mira Dorman", "Mira Dorman owns 7 boats. Mira Dorman wears red. Mira Dorman visits Tarnwick."),
    ("Calnix Works", "Calnix Works makes chairs. The director of Calnix Works is Belo Telrud."),
    ("Garden letter", "The morning market sells figs."),
    ("Jona Wanfell", "Jona Wanfell owns 3 boats. Jona Wanfell wears black."),
    ("Nevbet Tools", "Nevbet Tools opened in 1914. The director of Nevbet Tools is Misa Fengan."),
    ("Harbour letter", "Nine ships lay in the harbour."),
    ("Village report", "The winter was long and cold."),
];

fn ask(folder: &Folder, rounds: &str) -> Value {
    folder.json(&["ask", QUESTION, "--collection", "world", "--top-k", "2", "--rounds", rounds, "--json"])
}

fn titles(answer: &Value) -> Vec<&str> {
    answer["citations"].as_array().unwrap().iter().map(|citation| citation["title"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_second_round_finds_what_the_first_cannot_and_reuses_its_kv() {
    let folder = Folder::new();
    for (title, text) in PAGES {
        folder.write(&format!("corpus/{title}.md"), format!("# {title}\n\n{text}\n"));
    }
    let corpus = folder.path().join("corpus");
    folder.run(&["ingest", corpus.to_str().unwrap(), "--collection", "world"]).succeeded();
    let service = folder.serve(&["--set", "kv_admission=always"]).await;
    let once = ask(&folder, "1");
    assert!(once["report"]["rounds"].is_null(), "{once}");
    assert!(titles(&once).contains(&"Calnix Bakery") && !titles(&once).contains(&"Mira Dorman"), "{once}");

    let twice = ask(&folder, "2");
    assert_eq!(twice["answer"].as_str().unwrap().trim(), "Mira Dorman", "{twice}");
    let (first, both) = (titles(&once), titles(&twice));
    assert_eq!(both[..first.len()], first, "earlier passages stay where they are");
    assert!(both.contains(&"Mira Dorman"), "{both:?}");
    let rounds = twice["report"]["rounds"].as_array().unwrap();
    assert_eq!((rounds.len(), &rounds[0]["query"], &rounds[0]["partial"]), (2, &QUESTION.into(), &Value::Null));
    assert_eq!(rounds[1]["query"], format!("{QUESTION} Mira Dorman"));
    assert_eq!(rounds[1]["passages"], both.len() - first.len());
    // What the first round's prompt computed is not computed by the second's: its passages, exactly.
    let segments = twice["report"]["segments"].as_array().unwrap();
    let passages: Vec<_> = segments.iter().filter(|segment| segment["kind"] == "passage").collect();
    assert!(passages[..first.len()].iter().all(|passage| passage["source"] == "exact"), "{passages:?}");
    // The question was asked before, so all of the beginning's prompt but its last tokens was there.
    let partial = &rounds[1]["partial"]["tokens"];
    assert!(partial["exact"].as_u64().unwrap() > partial["computed"].as_u64().unwrap(), "{partial}");
    let text = folder.run(&["ask", QUESTION, "--collection", "world", "--rounds", "2"]).succeeded().stdout;
    assert!(text.contains("round 2"), "{text}");

    // Where nothing new is found it ends.
    let many = folder.json(&["ask", QUESTION, "--collection", "world", "--top-k", "8", "--rounds", "8", "--json"]);
    assert_eq!(many["report"]["rounds"].as_array().unwrap().len(), 2, "{many}");
    for (field, wanted) in [("0", "rounds"), ("9", "rounds")] {
        folder.run(&["ask", QUESTION, "--collection", "world", "--rounds", field]).failed_with(&[wanted]);
    }
    let body = serde_json::json!({"messages": [{"role": "user", "content": "a"}], "ragstone": {"rounds": 2}});
    let (status, refused) = service.post("/v1/chat/completions", &body).await;
    assert_eq!((status, error_message(&refused).contains("collection")), (400, true), "{refused}");
    // Plans say nothing of what was asked.
    let request = reqwest::Client::new().get(service.url("/v1/cache/plans")).header("x-ragstone-token", folder.token());
    let plans = request.send().await.unwrap().text().await.unwrap();
    assert!(plans.contains("segments") && !plans.contains("Calnix"), "{plans}");
}
