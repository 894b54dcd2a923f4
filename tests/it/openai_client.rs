//! The official Python client, unmodified, against a real service. `ops/test` installs it and names its interpreter.

use std::path::{Path, PathBuf};
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

/// The demo model with a chat template that knows tools, in Hermes' form.
pub fn with_tools(folder: &Folder) -> PathBuf {
    let template = "{{ bos_token }}{% for tool in tools or [] %}Tool: {{ tool | tojson }}\n{% endfor %}\
        {% for message in messages %}{{ message.role }}: {{ message.content }}\
        {% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}\n{% endfor %}\
        {% if add_generation_prompt %}assistant:{% endif %}";
    with_template(folder, template)
}

/// The demo model with this chat template.
pub fn with_template(folder: &Folder, template: &str) -> PathBuf {
    let model = folder.path().join("chat-model");
    std::fs::create_dir_all(&model).unwrap();
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("ops/demo-model/checkpoint")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    model
}

#[tokio::test]
async fn the_official_python_client_calls_tools_and_makes_responses() {
    let Some(python) = from_outside("OPENAI_TEST_PYTHON", "interpreter that has the openai package") else { return };
    let folder = Folder::new();
    let model = with_tools(&folder);
    let service = folder.serve(&["--model", model.to_str().unwrap()]).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_tools.py");
    let output = Command::new(python).arg(script).arg(service.url("/v1")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn anthropics_and_ollamas_official_clients_work_unmodified() {
    let what = "interpreter that has the anthropic and ollama packages";
    let Some(python) = from_outside("CLIENTS_TEST_PYTHON", what) else { return };
    let folder = Folder::new();
    let model = with_tools(&folder);
    let service = folder.serve(&["--model", model.to_str().unwrap()]).await;
    service.add("world", WORLD).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/other_clients.py");
    let output = Command::new(python).arg(script).arg(service.url("")).arg("world").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn the_official_node_client_works_unmodified() {
    let Some(modules) = from_outside("OPENAI_TEST_NODE", "folder whose node_modules have the openai package") else {
        return;
    };
    let folder = Folder::new();
    let model = with_tools(&folder);
    let service = folder.serve(&["--model", model.to_str().unwrap()]).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.mjs");
    let mut command = Command::new("node");
    let output = command.arg(script).arg(service.url("/v1")).env("OPENAI_TEST_NODE", modules).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
