//! Power cuts, for tests: what a disk may hold when the power goes.
//!
//! A process runs with a preloaded library that writes down every change of a folder in its order ([`Recorder`]). A [`Disk`] takes these
//! changes one by one, and knows which of them were synced. At any moment it makes a folder as a power cut may leave it ([`Disk::cut`]): with
//! what was synced, and of the rest nothing, or any part ([`Left`]).
//!
//! What is promised here is what POSIX promises, and less than any file system in use gives: a file's content is safe once the file was synced,
//! its name once the folder was. A new file's name is not safe because the file was synced; `sync_file_range` promises nothing.

mod disk;
mod recording;

pub use disk::{Disk, Left};
pub use recording::{Record, Recorder, Recording};
