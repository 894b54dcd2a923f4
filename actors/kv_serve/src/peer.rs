//! Whether the other end of a socket is still there.

use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};

/// Ends listening, and who waits for a client: by the socket itself, since its file may be gone, or another daemon's by now.
pub fn stop_listening(listener: &UnixListener) {
    // SAFETY: one descriptor, open while `listener` is borrowed. That it fails says that it has ended.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Whether the peer has closed its end, or half of it, up to this moment. The kernel notes that at once, whatever is still unread.
///
/// This is what makes a store safe: a client that gives a job up shuts its connection down first, and only then uses the rows for something else. Who
/// copies a row and then finds the connection open has copied what the client meant. Where this side reads no more, as the daemon ends, it says true, too.
pub fn has_hung_up(stream: &UnixStream) -> bool {
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one descriptor, open while `stream` is borrowed; the call returns at once.
    let found = unsafe { libc::poll(&raw mut polled, 1, 0) };
    found != 0
}

/// Whether the peer reads nothing more, though it may still write. A message of no bytes says so, and is none.
#[cfg(test)]
pub fn is_read_no_more(stream: &UnixStream) -> bool {
    let nothing: [u8; 0] = [];
    // SAFETY: one descriptor, open while `stream` is borrowed; no byte is read.
    let sent = unsafe { libc::send(stream.as_raw_fd(), nothing.as_ptr().cast(), 0, libc::MSG_NOSIGNAL) };
    sent < 0
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
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!is_read_no_more(&ours));
        theirs.shutdown(Shutdown::Read).unwrap();
        assert!(is_read_no_more(&ours) && !has_hung_up(&ours));
        assert_eq!(user_of(&UnixStream::pair().unwrap().0), Some(user()));
    }
}
