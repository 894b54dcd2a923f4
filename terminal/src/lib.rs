//! What a person sees of a command: bars, tables, lines.
//!
//! - [`progress`]: bars on standard error, or a line now and then where no terminal is.
//! - [`table`]: lists for people, or JSON for programs.
//! - [`output`]: standard output, which carries data alone.
//!
//! ```
//! use ragstone_terminal::{output, table};
//!
//! let rows = [vec!["roof".to_owned(), output::count(1, "passage", "passages")]];
//! assert_eq!(table::table(&["document", "has"], &rows), "document  has\nroof      1 passage\n");
//! ```

pub mod output;
pub mod progress;
pub mod table;

use ragstone_env::error;
