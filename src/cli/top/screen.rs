//! The terminal while `top` runs: a screen of its own, no cursor, keys at once and without an echo. As it was, when this goes.

use std::io::{Result, Write};

use console::Term;

/// Another screen, whose end brings the old one back; and a cursor that does not blink about.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the first column of the first row; to the end of a line; to the end of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// Holds the terminal.
pub struct Screen {
    #[cfg(unix)]
    keys: Option<keys::Immediate>,
}

impl Screen {
    /// Takes the terminal.
    pub fn enter() -> Result<Self> {
        let screen = Self {
            #[cfg(unix)]
            keys: keys::Immediate::enter(),
        };
        write(ENTER)?;
        Ok(screen)
    }

    /// Rows and columns, as they are now; 24 and 80 where the terminal does not tell.
    pub fn size(&self) -> (u16, u16) {
        Term::stdout().size_checked().filter(|(rows, columns)| *rows > 0 && *columns > 0).unwrap_or((24, 80))
    }

    /// Shows these lines in the place of what was there.
    pub fn draw(&self, lines: &[String]) -> Result<()> {
        let lines: Vec<String> = lines.iter().map(|line| format!("{line}{CLEAR_LINE}")).collect();
        // No new line behind the last one: it would scroll.
        write(&format!("{HOME}{}{CLEAR_REST}", lines.join("\r\n")))
    }

    /// Whether keys arrive one by one.
    pub fn has_keys(&self) -> bool {
        #[cfg(unix)]
        return self.keys.is_some();
        #[cfg(not(unix))]
        false
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone need not be put right.
        let _ = write(LEAVE);
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(unix)]
mod keys {
    use std::io::IsTerminal;

    /// Keys arrive one by one, and are not echoed. Ctrl-C stays a signal; Ctrl-Z is nothing: whoever stops this process would be left
    /// with its screen.
    pub struct Immediate(libc::termios);

    impl Immediate {
        /// `None` where standard input is no terminal, or does not obey.
        pub fn enter() -> Option<Self> {
            if !std::io::stdin().is_terminal() {
                return None;
            }
            let before = attributes()?;
            let mut now = before;
            now.c_lflag &= !(libc::ICANON | libc::ECHO);
            now.c_cc[libc::VMIN] = 1;
            now.c_cc[libc::VTIME] = 0;
            // `_POSIX_VDISABLE` of Linux and of the BSDs.
            now.c_cc[libc::VSUSP] = if cfg!(any(target_os = "linux", target_os = "android")) { 0 } else { 0xff };
            set(&now).then_some(Self(before))
        }
    }

    impl Drop for Immediate {
        fn drop(&mut self) {
            set(&self.0);
        }
    }

    fn attributes() -> Option<libc::termios> {
        let mut attributes = std::mem::MaybeUninit::uninit();
        // SAFETY: the call fills in what it is given where it succeeds, and it is read only then.
        unsafe { (libc::tcgetattr(libc::STDIN_FILENO, attributes.as_mut_ptr()) == 0).then(|| attributes.assume_init()) }
    }

    fn set(attributes: &libc::termios) -> bool {
        // SAFETY: it reads what it is given, which `attributes` filled in, and keeps no pointer to it.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, attributes) == 0 }
    }
}
