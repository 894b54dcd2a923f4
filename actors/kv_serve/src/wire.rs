//! Messages on a stream.
//!
//! ```text
//! message = length u32, little-endian | as many bytes of JSON, one object
//! ```

use std::io::{ErrorKind as Io, Read, Write};
use std::time::Duration;

use ragstone_env::{Env, Error, ErrorKind, Result, Stopwatch};
use serde::Serialize;

/// The longest message that is read or written, in bytes.
pub const MOST_MESSAGE_BYTES: usize = 1 << 20;
/// How long a message may take from its first byte to its last.
const MOST_TIME: Duration = Duration::from_secs(30);

/// Writes one message.
///
/// # Errors
/// `InvalidInput` if it is too long; `Unavailable` if the peer does not take it.
pub fn write(stream: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let body = serde_json::to_vec(message)
        .map_err(|error| Error::internal(format!("a message cannot be written: {error}")))?;
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= MOST_MESSAGE_BYTES);
    let Some(length) = length else {
        let message = format!("a message of {} bytes, {MOST_MESSAGE_BYTES} at the most", body.len());
        return Err(Error::invalid_input(message));
    };
    // In one piece: a reader that polls sees no half of it.
    let whole = [&length.to_le_bytes()[..], &body].concat();
    stream.write_all(&whole).and_then(|()| stream.flush()).map_err(|error| gone(&error))
}

/// Reads one message; `None` where the stream ends, also within a message. Where the stream has a read timeout, `tick` is called each time it passes.
///
/// # Errors
/// `InvalidInput` for a length that no message has; `DeadlineExceeded` if it takes too long; `Unavailable` if the stream fails.
pub fn read(stream: &mut impl Read, env: &Env, tick: &mut dyn FnMut()) -> Result<Option<Vec<u8>>> {
    let mut begun = None;
    let mut prefix = [0; 4];
    if !fill(stream, &mut prefix, env, &mut begun, tick)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(prefix) as usize;
    if length == 0 || length > MOST_MESSAGE_BYTES {
        return Err(Error::invalid_input(format!(
            "a message of {length} bytes; 1 to {MOST_MESSAGE_BYTES} are allowed"
        )));
    }
    let mut body = vec![0; length];
    Ok(fill(stream, &mut body, env, &mut begun, tick)?.then_some(body))
}

/// Fills the buffer; false where the stream ends before.
fn fill(
    stream: &mut impl Read,
    buffer: &mut [u8],
    env: &Env,
    begun: &mut Option<Stopwatch>,
    tick: &mut dyn FnMut(),
) -> Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(false),
            Ok(read) => filled += read,
            Err(error) if error.kind() == Io::Interrupted => {}
            Err(error) if matches!(error.kind(), Io::WouldBlock | Io::TimedOut) => tick(),
            // As good as an end: nothing was asked for.
            Err(error) if error.kind() == Io::ConnectionReset => return Ok(false),
            Err(error) => return Err(gone(&error)),
        }
        let has_begun = filled > 0 || begun.is_some();
        if has_begun && begun.get_or_insert_with(|| env.stopwatch()).elapsed() > MOST_TIME {
            let message = format!("a message that took longer than {} s", MOST_TIME.as_secs());
            return Err(Error::new(ErrorKind::DeadlineExceeded, message));
        }
    }
    Ok(true)
}

fn gone(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the other end of the socket is gone: {error}; connect again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives some bytes, and then nothing for ever.
    struct Silent<'a>(&'a [u8]);

    impl Read for Silent<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Err(Io::WouldBlock.into());
            }
            self.0.read(buffer)
        }
    }

    #[test]
    fn a_message_of_which_only_the_length_comes_takes_too_long() {
        let env = Env::seeded(1, 0);
        for begin in [&8_u32.to_le_bytes()[..], &[8], &[8, 0, 0, 0, b'{']] {
            let mut ticks = 0;
            let mut tick = || {
                ticks += 1;
                env.advance(Duration::from_secs(10));
                assert!(ticks < 10, "it waits for ever");
            };
            let error = read(&mut Silent(begin), &env, &mut tick).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        }
    }
}
