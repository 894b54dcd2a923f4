//! The official Python client, unmodified, against a real service. `ops/test` installs it and names its interpreter.

use std::process::Command;

use crate::harness::{Folder, WORLD};
use crate::outside::from_outside;

#[tokio::test]
async fn the_official_python_client_works_unmodified() {
    let Some(python) = from_outside("OPENAI_TEST_PYTHON", "interpreter that has the openai package") else { return };
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let output = Command::new(python).arg(script).arg(service.url("/v1")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
