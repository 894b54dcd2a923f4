//! `ragstone doctor` says what is wrong before and while a service runs, and changes nothing; `ragstone man`.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::harness::{Folder, Ran};

/// Findings of `doctor` with these arguments, and whether it was content.
fn doctor(folder: &Folder, arguments: &[&str]) -> (Ran, Value) {
    let ran = folder.run(&[&["doctor", "--json"], arguments].concat());
    let said: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert_eq!(said["ok"] == true, ran.code == Some(0), "{ran:?}");
    (ran, said["findings"].clone())
}

/// The first finding about something.
fn about<'a>(findings: &'a Value, what: &str) -> &'a Value {
    let found = findings.as_array().unwrap().iter().find(|finding| finding["what"] == what);
    found.unwrap_or_else(|| panic!("nothing about {what} in {findings}"))
}

const ANY_PORT: [&str; 2] = ["--set", "listen=127.0.0.1:0"];

#[test]
fn a_new_machine_is_looked_at_and_nothing_is_left_there() {
    let folder = Folder::new();
    let (_, findings) = doctor(&folder, &ANY_PORT);
    for what in ["version", "settings", "processor", "model", "embedder", "data folder", "format", "service", "address"]
    {
        assert_ne!(about(&findings, what)["state"], "problem", "{findings}");
    }
    assert!(about(&findings, "settings")["found"].as_str().unwrap().contains("listen (--set)"), "{findings}");
    let bucket = folder.path().join("bucket");
    let (_, found) =
        doctor(&folder, &[&ANY_PORT[..], &["--set", &format!("object_url=file://{}", bucket.display())]].concat());
    assert_eq!(about(&found, "bucket")["state"], "warning");
    assert!(!folder.data().exists() && !bucket.exists());
    let text = folder.run(&[&["doctor"], &ANY_PORT[..]].concat()).succeeded().stdout;
    assert!(text.lines().all(|line| ["ok ", "warning ", "   "].iter().any(|state| line.starts_with(state))), "{text}");
}

#[test]
fn what_would_keep_a_service_from_starting_is_a_problem_with_what_to_do() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (taken, health) = (format!("listen={address}"), format!("health_listen={address}"));
    let file = folder.write("file", "");
    let below = format!("data={}", file.join("data").display());
    let broken = folder.write("model/config.json", "{").parent().unwrap().display().to_string();
    // Nothing listens on port 1.
    let dead = ["object_url=s3://bucket", "object_options.region=r", "object_options.endpoint=http://127.0.0.1:1"];
    let dead = [&dead[..], &["object_options.allow_http=true", "object_timeout_ms=300"]].concat();
    let dead: Vec<&str> = dead.iter().flat_map(|set| ["--set", set]).collect();
    let log = format!("audit_log={}", file.join("log").display());
    let cases: [(&[&str], &str, &str); 10] = [
        (&["--set", &taken], "address", "another program listens there"),
        (&["--set", "listen=0.0.0.0:0"], "address", "--allow-anyone"),
        (&["--set", &below], "data folder", "cannot be written to"),
        (&["--model", &broken], "model", "config.json"),
        (&["--model", "nobody/has-this", "--offline"], "model", "not on this machine"),
        (&["--set", "kernels=portable", "--set", "device_bytes=1000TiB"], "memory", "MiB weights"),
        (&dead, "bucket", "object_url"),
        (&["--set", "tls_certificate=/none.pem", "--set", "tls_key=/none.pem"], "TLS", "/none.pem"),
        (&["--set", &health], "health", "health_listen"),
        (&["--set", &log], "audit log", "cannot be written to"),
    ];
    for (arguments, what, words) in cases {
        if what == "memory" && !cfg!(target_os = "linux") {
            continue; // Elsewhere the system is not asked.
        }
        let listens = arguments.iter().any(|argument| argument.starts_with("listen="));
        let arguments = if listens { arguments.to_vec() } else { [&ANY_PORT[..], arguments].concat() };
        let (ran, findings) = doctor(&folder, &arguments);
        let finding = about(&findings, what);
        assert_eq!(finding["state"], "problem", "{finding}");
        assert!(finding.to_string().contains(words), "no {words} in {finding}");
        ran.failed_with(&["1 problem found"]);
    }
    std::fs::create_dir_all(folder.data()).unwrap();
    std::fs::write(folder.data().join("FORMAT"), "{\"format\":99}\n").unwrap();
    assert_eq!(about(&doctor(&folder, &ANY_PORT).1, "format")["state"], "problem");
}

#[tokio::test]
async fn a_running_service_is_asked_and_a_killed_one_is_told() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let (_, findings) = doctor(&folder, &[]);
    assert_eq!(
        about(&findings, "blending"),
        &json!({ "what": "blending", "state": "ok", "found": "on", "advice": null })
    );
    assert_eq!(about(&findings, "store")["state"], "ok");
    let found = about(&findings, "service")["found"].as_str().unwrap();
    assert!(found.contains(&format!("process {}", service.pid())), "{found}");
    assert!(
        !findings.as_array().unwrap().iter().any(|finding| finding["what"] == "address"),
        "it listens there itself"
    );
    service.kill();
    let (_, findings) = doctor(&folder, &ANY_PORT);
    let gone = about(&findings, "service");
    assert!(gone["state"] == "warning" && gone["found"].as_str().unwrap().contains("does not answer"), "{gone}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::new();
    assert!(folder.run(&["man"]).succeeded().stdout.contains(".TH ragstone 1"));
    let out = folder.path().join("man1");
    folder.run(&["man", "--out", out.to_str().unwrap()]).succeeded();
    let page = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(page("ragstone.1").contains("cache"));
    assert!(page("ragstone-cache-warm.1").contains("The job is durable"));
    let file = folder.write("file", "");
    folder.run(&["man", "--out", file.join("x").to_str().unwrap()]).failed_with(&["cannot write manual pages"]);
}
