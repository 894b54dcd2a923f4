//! What this machine has left: memory, and room on its disks.

use std::path::Path;

use ragstone_env::mebibytes;

use crate::error::{Error, ErrorKind, Result};

/// Bytes that a new program can have, by the kernel's estimate, and within the bound of the container, if this is in one. `None` where
/// the system does not tell.
pub fn available_memory() -> Option<u64> {
    let free = meminfo_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let number = |path: &str| std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(path)).ok()?.trim().parse().ok();
    let group: Option<u64> =
        number("memory.max").map(|most: u64| most.saturating_sub(number("memory.current").unwrap_or(0)));
    Some(group.map_or(free, |group| group.min(free)))
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that this user may still write where `path` is, or will be. `None` where the system does not tell.
pub fn free_bytes(path: &Path) -> Option<u64> {
    free_bytes_at(path.ancestors().find(|path| path.exists())?)
}

#[cfg(unix)]
fn free_bytes_at(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes_at(_: &Path) -> Option<u64> {
    None
}

/// Refuses to write more than there is room for. `variable` names the folder that another disk may have.
///
/// # Errors
/// `Full`.
pub fn check_room(path: &Path, bytes: u64, what: &str, variable: &str) -> Result<()> {
    match free_bytes(path) {
        Some(free) if free < bytes => {
            let (bytes, free) = (mebibytes(bytes), mebibytes(free));
            let message = format!(
                "{what} needs {bytes:.0} MiB, and {free:.0} MiB are free where {} is: make room, or set {variable} to a folder on a larger disk",
                path.display()
            );
            Err(Error::new(ErrorKind::Full, message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_estimate_is_read() {
        let text = "MemTotal:       24000 kB\nMemFree: 1 kB\nMemAvailable:   20000 kB\n";
        assert_eq!(meminfo_available(text), Some(20_000 << 10));
        for bad in
            ["", "MemAvailable:", "MemAvailable: x kB", "MemAvailable: 99999999999999999999 kB", "MemAvailable: 5"]
        {
            assert_eq!(meminfo_available(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_where_it_is_not_there_yet_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not/there/yet");
        check_room(&path, 1, "x", "HF_HOME").unwrap();
        if let Some(free) = free_bytes(&path) {
            assert!(free > 0);
            let error = check_room(&path, u64::MAX, "x", "HF_HOME").unwrap_err();
            assert!(error.kind() == ErrorKind::Full && error.to_string().contains("HF_HOME"), "{error}");
        }
    }
}
