//! Whether the other end of a socket is still there.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Whether the peer has closed its end, or half of it, up to this moment. The kernel notes that at once, whatever is still unread.
///
/// This is what makes a store safe: a client that gives a job up closes its connection first, and only then uses the rows for something else. Who
/// copies a row and then finds the connection open has copied what the client meant.
pub fn has_hung_up(stream: &UnixStream) -> bool {
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one descriptor, open while `stream` is borrowed; the call returns at once.
    let found = unsafe { libc::poll(&raw mut polled, 1, 0) };
    found != 0
}

/// Who runs this process.
pub fn user() -> u32 {
    // SAFETY: it only answers.
    unsafe { libc::geteuid() }
}

/// Who is at the other end of a socket; `None` if the system does not say.
pub fn user_of(stream: &UnixStream) -> Option<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is as long as the length says, and lives through the call.
    let answered = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    (answered == 0).then_some(credentials.uid)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;

    use super::*;

    #[test]
    fn a_closed_peer_is_seen_at_once_whatever_is_unread() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert!(!has_hung_up(&ours));
        theirs.write_all(b"unread").unwrap();
        assert!(!has_hung_up(&ours));
        theirs.shutdown(Shutdown::Write).unwrap();
        assert!(has_hung_up(&ours), "half");
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(has_hung_up(&ours));
        assert_eq!(user_of(&UnixStream::pair().unwrap().0), Some(user()));
    }
}
