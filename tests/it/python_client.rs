//! examples/python, installed by pip, against a real service, with the real LangChain and LlamaIndex. `ops/test` installs these and
//! names their interpreter.

use std::path::Path;
use std::process::Command;

use crate::harness::{Folder, WORLD};
use crate::outside::from_outside;

/// Without what a build leaves behind: pip writes beside what it builds.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if !path.is_dir() {
            std::fs::copy(&path, to.join(name)).unwrap();
        } else if name != "build" && name != "__pycache__" {
            copy(&path, &to.join(name));
        }
    }
}

#[tokio::test]
async fn the_package_installs_and_works_with_langchain_and_llama_index() {
    let Some(python) = from_outside("PYTHON_TEST_PYTHON", "interpreter that has langchain-core and llama-index-core")
    else {
        return;
    };
    let folder = Folder::new();
    let (source, installed) = (folder.path().join("python"), folder.path().join("installed"));
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/python"), &source);
    let mut pip = Command::new(&python);
    pip.args(["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]);
    let output = pip.args(["--no-build-isolation", "--target"]).arg(&installed).arg(&source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let service = folder.serve(&["--set", "vector_index_rows=1000000"]).await;
    service.add("world", WORLD).await;
    let mut script = Command::new(python);
    script
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python_client.py"))
        .arg(&service.address)
        .arg(folder.token());
    script.env("PYTHONPATH", installed).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = tokio::task::spawn_blocking(move || script.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
