//! Data sets of other programs: records whose fields are called as somebody else wished.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Folder, error_message};

const FIELDS: [&str; 6] = ["--text-field", "body.plain", "--title-field", "name", "--id-field", "pk"];

fn wells(folder: &Folder) -> String {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("storage/documents/src/fixtures/wells-zstd.parquet");
    folder.write("sets/wells.parquet", std::fs::read(fixture).unwrap()).to_str().unwrap().to_owned()
}

#[test]
fn rows_of_a_data_set_are_documents_by_the_fields_that_are_named() {
    let folder = Folder::new();
    let wells = wells(&folder);
    let ingest = |fields: &[&str]| {
        let ran = folder.run(&[&["ingest", &wells, "--collection", "wells", "--json"], fields].concat()).succeeded();
        serde_json::from_str::<Value>(&ran.stdout).unwrap()
    };
    let report = ingest(&FIELDS);
    assert_eq!((&report["documents_added"], &report["files_partly"]), (&json!(2), &json!(1)), "{report}");
    let told = report["skipped"].to_string();
    assert!(
        told.contains("row 3: there is no `body.plain`; it has `pk`") && told.contains("column of bytes `photo`"),
        "{told}"
    );
    assert_eq!(ingest(&FIELDS)["documents_unchanged"], 2);
    let listed = folder.json(&["documents", "list", "--collection", "wells", "--json"]);
    let told = |at: usize| (listed[at]["id"].clone(), listed[at]["title"].clone());
    assert_eq!((told(0), told(1)), ((json!("7"), json!("The north well")), (json!("8"), json!(""))), "{listed}");
    assert!(listed[0]["source"].as_str().unwrap().ends_with("wells.parquet#R1"), "{listed}");
    let found = folder.json(&[
        "search",
        "well",
        "--collection",
        "wells",
        "--filter",
        "kind=dug",
        "--filter",
        "tags=stone",
        "--json",
    ]);
    assert!(found.to_string().contains("nine metres deep"), "{found}");
    // With other fields the same rows are other documents.
    assert_eq!(
        ingest(&["--text-field", "body.plain", "--text-field", "kind", "--id-field", "pk"])["documents_replaced"],
        2
    );
    std::fs::remove_file(&wells).unwrap();
    let notes = folder.write("sets/notes.md", "One lantern.");
    let sets = notes.parent().unwrap().to_str().unwrap();
    let report = folder.json(&["ingest", sets, "--collection", "wells", "--prune", "--json"]);
    assert_eq!(report["documents_pruned"], 3, "the row that has a kind and no text as well: {report}");
    // The folder above has the data folder in it, which is no text of anybody's.
    let above = folder.path().to_str().unwrap();
    let report = folder.json(&["ingest", above, "--collection", "wells", "--json"]);
    assert_eq!((&report["files"], &report["hidden"]), (&json!(1), &json!(1)), "{report}");
    folder.run(&["ingest", sets, "--text-field", ""]).failed_with(&["a field's name has 1 to 200 bytes"]);
}

#[tokio::test]
async fn an_upload_says_which_fields_are_what_as_well() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let put = async |name: &str, fields: &Value, body: Vec<u8>| {
        let url = service.url(&format!("/v1/collections/lamps/files/{name}"));
        let query = [("fields", fields.to_string())];
        let reply = reqwest::Client::new().put(url).query(&query).body(body).send().await.unwrap();
        (reply.status().as_u16(), reply.json::<Value>().await.unwrap())
    };
    let csv = b"nr,answer\n1,Two lamps burn.\n2,No lamp burns.\n".to_vec();
    let (status, added) = put("lamps.csv", &json!({ "text": ["answer"], "id": "nr" }), csv).await;
    assert_eq!((status, &added["documents_added"]), (200, &json!(2)), "{added}");
    let (status, refused) = put("lamps.csv", &json!({ "texts": ["answer"] }), Vec::new()).await;
    assert_eq!(status, 400, "{refused}");
    assert!(error_message(&refused).contains("`fields` must be a JSON object"), "{refused}");
    assert_eq!(service.stop(), 0);
}
