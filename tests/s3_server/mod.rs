//! An S3 server that others wrote, for the tests of every crate: `moto` on loopback, with one empty bucket named `bucket`.
//! `ops/test` installs it and names its interpreter.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::outside::from_outside;

/// Prints its address, and ends when its standard input closes.
const SCRIPT: &str = include_str!("../s3_server.py");

/// A running server; ends with the test.
pub struct S3Server {
    child: Child,
    pub endpoint: String,
}

impl S3Server {
    /// `None` where no interpreter is named: the test is skipped, which is said.
    pub fn start() -> Option<Self> {
        let python = from_outside("S3_TEST_PYTHON", "interpreter that has moto[server]")?;
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("S3_TEST_PYTHON can be started");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("http://"), "{line:?}");
        Some(Self { endpoint: line.trim().to_owned(), child })
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
