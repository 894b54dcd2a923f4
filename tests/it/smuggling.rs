//! Requests whose end can be read in two ways. A proxy before the service may take the one and the service the other: then what a client
//! put behind the first end would be another client's request. They are refused, and the connection is closed.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Folder, Service};

const HIDDEN: &str = "GET /v1/collections HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// All that the service says to what is sent on one connection, until it closes that.
async fn said(service: &Service, sent: &str) -> String {
    let mut stream = TcpStream::connect(service.address.strip_prefix("http://").unwrap()).await.unwrap();
    // It may be closed before all is sent.
    let _ = stream.write_all(sent.as_bytes()).await;
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn a_request_with_two_ends_hides_no_other() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let length = HIDDEN.len();
    let chunks = format!("{length:x}\r\n{HIDDEN}\r\n0\r\n\r\n");
    for (framing, body) in [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked".to_owned(), format!("0\r\n\r\n{HIDDEN}")),
        (format!("Transfer-Encoding: chunked\r\nContent-Length: {length}"), chunks.clone()),
        (format!("Content-Length: 0\r\nContent-Length: {length}"), HIDDEN.to_owned()),
        (format!("Content-Length: {length}, 0"), HIDDEN.to_owned()),
        (format!("Content-Length: +{length}"), HIDDEN.to_owned()),
        (format!("Content-Length : {length}"), HIDDEN.to_owned()),
        ("Content-Length: 0x0".to_owned(), HIDDEN.to_owned()),
        ("Content-Length: -1".to_owned(), HIDDEN.to_owned()),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity".to_owned(), chunks.clone()),
        ("Transfer-Encoding: chunked, identity".to_owned(), chunks.clone()),
        ("Transfer-Encoding: xchunked".to_owned(), chunks.clone()),
        ("Transfer-Encoding: identity".to_owned(), HIDDEN.to_owned()),
        ("Transfer-Encoding : chunked".to_owned(), chunks.clone()),
        ("X: y\r\n Transfer-Encoding: chunked".to_owned(), chunks.clone()),
        ("X: y\rTransfer-Encoding: chunked".to_owned(), chunks.clone()),
        ("Transfer-Encoding: chunked".to_owned(), format!("0x0\r\n\r\n{HIDDEN}")),
        ("Transfer-Encoding: chunked".to_owned(), format!("ffffffffffffffff0\r\n\r\n{HIDDEN}")),
        ("Transfer-Encoding: chunked".to_owned(), format!("1\n0\n\n{HIDDEN}")),
    ] {
        let sent = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n\r\n{body}"
        );
        let answers = said(&service, &sent).await;
        assert!(answers.starts_with("HTTP/1.1 400"), "{sent}\n{answers}");
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{sent}\n{answers}");
    }
    let older =
        format!("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    let answers = said(&service, &older).await;
    assert!(answers.matches("HTTP/1.").count() == 1 && !answers.contains(" 200 "), "{answers}");
    // What has one end is answered, one after the other.
    let body = r#"{"prompt": "a", "max_tokens": 1}"#;
    let first = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let last = HIDDEN.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    assert_eq!(said(&service, &format!("{first}{last}")).await.matches("HTTP/1.1 200").count(), 2);
}
