//! Clients that break the rules: one clear error, and the connection ends; others do not notice.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;

use ragstone_env::ErrorKind;

use super::*;

/// Sends bytes as they are, and gives what comes back until the end.
fn raw(place: &Place, bytes: &[u8]) -> Vec<Reply> {
    let mut stream = UnixStream::connect(place.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut replies = Vec::new();
    let mut tick = || panic!("the daemon neither answers nor ends");
    while let Some(body) = wire::read(&mut stream, &Env::system(), &mut tick).unwrap() {
        replies.push(serde_json::from_slice(&body).unwrap());
    }
    replies
}

fn framed(body: &str) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body.as_bytes()].concat()
}

fn assert_refused(replies: &[Reply], what: &str) {
    let [.., Reply::Error { kind: Fault::Protocol, message, .. }] = replies else { panic!("{what}: {replies:?}") };
    let errors = replies.iter().filter(|reply| matches!(reply, Reply::Error { .. })).count();
    assert!(errors == 1 && !message.is_empty(), "{what}: {replies:?}");
}

#[test]
fn what_is_no_message_gets_one_error_and_the_end() {
    let place = Place::new(PLENTY, 0);
    let daemon = place.daemon();
    let mut good = place.engine("good", &namespace());
    good.store(&[1]);
    let hello = serde_json::to_string(&good.hello_request(&namespace())).unwrap();
    let long_key = "ab".repeat(MOST_KEY_BYTES + 1);
    let many = vec!["\"ab\""; MOST_KEYS + 1].join(",");
    let bodies: Vec<(&str, String)> = vec![
        ("no JSON", "hello".into()),
        ("no object", "[]".into()),
        ("cut", "{\"op\":\"has\"".into()),
        ("not UTF-8", "{\"op\":\"\u{0}".into()),
        ("unknown verb", r#"{"op":"format","id":1}"#.into()),
        ("unknown field", r#"{"op":"status","id":1,"force":true}"#.into()),
        ("negative id", r#"{"op":"status","id":-1}"#.into()),
        ("no hello", r#"{"op":"has","id":1,"keys":["ab"]}"#.into()),
        ("deep", "[".repeat(100_000)),
    ];
    for (what, body) in bodies {
        assert_refused(&raw(&place, &framed(&body)), what);
    }
    for (what, body) in [
        ("second hello", hello.clone()),
        ("no keys", r#"{"op":"has","id":1,"keys":[]}"#.into()),
        ("empty key", r#"{"op":"has","id":1,"keys":[""]}"#.into()),
        ("odd key", r#"{"op":"has","id":1,"keys":["abc"]}"#.into()),
        ("no hexadecimal digits", r#"{"op":"has","id":1,"keys":["zz"]}"#.into()),
        ("long key", format!(r#"{{"op":"has","id":1,"keys":["{long_key}"]}}"#)),
        ("many keys", format!(r#"{{"op":"has","id":1,"keys":[{many}]}}"#)),
        ("fewer rows", r#"{"op":"store","id":1,"keys":["ab","cd"],"rows":[0]}"#.into()),
        ("row beyond", format!(r#"{{"op":"store","id":1,"keys":["ab"],"rows":[{ROWS}]}}"#)),
        ("row far beyond", format!(r#"{{"op":"load","id":1,"keys":["ab"],"rows":[{}]}}"#, u64::MAX)),
        ("row before", r#"{"op":"load","id":1,"keys":["ab"],"rows":[-1]}"#.into()),
    ] {
        let replies = raw(&place, &[framed(&hello), framed(&body)].concat());
        assert!(matches!(replies[0], Reply::Hello { .. }), "{what}: {replies:?}");
        assert_refused(&replies, what);
    }
    for length in [0, (MOST_MESSAGE_BYTES + 1) as u32, u32::MAX] {
        assert_refused(&raw(&place, &length.to_le_bytes()), "length");
    }
    assert_eq!(good.load(&[1]), [true], "others go on");
    drop(daemon);
}

#[test]
fn hellos_of_no_use_are_refused_with_the_reason() {
    let place = Place::new(PLENTY, 0);
    let _daemon = place.daemon();
    let engine = place.silent_engine("e");
    let hello = engine.hello_of(&namespace());
    let dir = place.dir.path().to_owned();
    let (region, staging) = (engine.region.0.clone(), engine.staging.0.clone());
    std::os::unix::fs::symlink(&region.path, dir.join("link")).unwrap();
    let with = |change: &dyn Fn(&mut RegionSpec)| {
        let mut changed = region.clone();
        change(&mut changed);
        Request::Hello(Hello { region: changed, ..hello.clone() }.into())
    };
    let socket = place.socket();
    let mut wrong = vec![
        ("short file", "bytes", with(&|region| region.rows += 1)),
        ("no rows", "rows", with(&|region| region.rows = 0)),
        ("rows overflow", "large", with(&|region| (region.rows, region.stride) = (1 << 32, u64::MAX))),
        ("rows too many", "rows", with(&|region| region.rows = u64::MAX)),
        ("stride too small", "stride", with(&|region| region.stride = BLOCK - 1)),
        ("no file", "opened", with(&|region| region.path = dir.join("none"))),
        ("folder", "not a file", with(&|region| region.path = dir.clone())),
        ("link", "opened", with(&|region| region.path = dir.join("link"))),
        ("socket", "opened", with(&|region| region.path = socket.clone())),
        ("device", "not a file", with(&|region| region.path = "/dev/zero".into())),
        ("relative", "absolute", with(&|region| region.path = "region".into())),
    ];
    for (version, block_bytes, weights, word) in [
        (VERSION + 1, BLOCK, "c0ffee00".repeat(8), "version"),
        (VERSION, 0, "c0ffee00".repeat(8), "bytes"),
        (VERSION, u64::MAX, "c0ffee00".repeat(8), "bytes"),
        (VERSION, BLOCK, "/models/llama".to_owned(), "weights"),
    ] {
        let namespace = Namespace { weights, ..namespace() };
        let (region, staging) = (region.clone(), staging.clone());
        let hello = Hello { version, namespace, block_bytes, region, staging };
        wrong.push((word, word, Request::Hello(hello.into())));
    }
    for (what, word, request) in wrong {
        let error = place.connect().call(&request).expect_err(what);
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(word), "{what}: {error}");
    }
    // Another user's memory is not read, even by a daemon that could.
    if std::os::unix::fs::chown(&region.path, Some(12_345), None).is_ok() {
        let error = place.connect().call(&Request::Hello(hello.into())).unwrap_err();
        assert!(error.to_string().contains("user"), "{error}");
    }
}

/// A client may die between any two bytes of a message.
#[test]
fn a_connection_that_ends_at_any_byte_leaves_nothing_behind() {
    let place = Place::new(PLENTY, 0);
    let daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    engine.store(&[1]);
    let hello = framed(&serde_json::to_string(&engine.hello_request(&namespace())).unwrap());
    let requests = [
        Request::Has { id: 1, keys: keys(&[1, 2]), pin: true },
        Request::Store { id: 2, keys: keys(&[1]), rows: vec![1], after: None, compute_us: 0 },
        Request::Load { id: 3, keys: keys(&[1]), rows: vec![0] },
    ];
    let bodies = requests.iter().flat_map(|request| framed(&serde_json::to_string(request).unwrap()));
    let whole: Vec<u8> = hello.into_iter().chain(bodies).collect();
    for end in 0..whole.len() {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.write_all(&whole[..end]).unwrap();
        drop(stream);
        // Never more at once than may be.
        wait_until(|| engine_is_alone(&daemon, 8));
    }
    // Pins of the dead are given back.
    wait_until(|| engine_is_alone(&daemon, 1) && daemon.blocks().pinned_bytes() == 0);
    assert_eq!(engine.load(&[1]), [true]);
    assert_eq!(engine.has(&[2], false), [false]);
}

fn engine_is_alone(daemon: &Server, most: u64) -> bool {
    daemon.connections() <= most
}

#[test]
fn the_socket_is_its_users_and_one_daemons() {
    let place = Place::new(PLENTY, 0);
    let other = Place::new(PLENTY, 0);
    let daemon = place.daemon();
    let metadata = std::fs::symlink_metadata(place.socket()).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let blocks = || Blocks::open(&other.dir.path().join("data"), &other.options, other.env.clone()).unwrap();
    let second = Server::start(&place.socket(), blocks(), other.env.clone()).err().unwrap();
    assert!(second.kind() == ErrorKind::Unavailable && second.to_string().contains("already"), "{second}");
    drop(daemon);
    assert!(!place.socket().exists(), "it is removed");
    // What a killed daemon leaves.
    drop(std::os::unix::net::UnixListener::bind(place.socket()).unwrap());
    assert!(place.socket().exists());
    let daemon = Server::start(&place.socket(), blocks(), other.env.clone()).unwrap();
    place.engine("e", &namespace());
    drop(daemon);
    std::fs::write(place.socket(), "a file of somebody's").unwrap();
    assert!(Server::start(&place.socket(), blocks(), other.env.clone()).is_err());
    assert_eq!(std::fs::read(place.socket()).unwrap(), b"a file of somebody's");
}

#[test]
fn more_clients_than_may_connect_are_told_so() {
    let place = Place::new(PLENTY, 0);
    let daemon = place.daemon();
    let mut clients: Vec<Client> = (0..MOST_CONNECTIONS).map(|_| place.connect()).collect();
    wait_until(|| daemon.connections() == MOST_CONNECTIONS as u64);
    let error = place.connect().receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    clients.pop();
    wait_until(|| daemon.connections() < MOST_CONNECTIONS as u64);
    place.engine("e", &namespace());
}

#[test]
fn a_client_that_reads_nothing_does_not_hold_the_daemon() {
    let place = Place::new(PLENTY, 0);
    let daemon = place.daemon();
    let mut stream = UnixStream::connect(place.socket()).unwrap();
    stream.write_all(&framed(r#"{"op":"status","id":1}"#)).unwrap();
    drop(daemon);
    // It ended, and what it had not read of ours may have reset the connection.
    let ended = stream.read_to_end(&mut Vec::new());
    assert!(
        ended.as_ref().map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true),
        "{ended:?}"
    );
}

#[test]
fn a_daemon_whose_socket_is_gone_or_anothers_ends_all_the_same() {
    let place = Place::new(PLENTY, 0);
    let daemon = place.daemon();
    std::fs::remove_file(place.socket()).unwrap();
    drop(daemon);
    let daemon = place.daemon();
    std::fs::remove_file(place.socket()).unwrap();
    let other = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
    drop(daemon);
    assert!(place.socket().exists(), "it is another's");
    drop(other);
}
