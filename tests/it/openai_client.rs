//! The official Python client, unmodified, against a real service. `ops/test` installs it and names its interpreter.

use std::process::Command;

use crate::harness::{Folder, WORLD};

#[tokio::test]
async fn the_official_python_client_works_unmodified() {
    let Some(python) = std::env::var_os("OPENAI_TEST_PYTHON") else {
        println!("skipped: OPENAI_TEST_PYTHON names no interpreter that has the openai package; ops/test installs one");
        return;
    };
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let output = Command::new(python).arg(script).arg(service.url("/v1")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
