//! How large this machine's caches are.

use std::path::Path;
use std::sync::OnceLock;

/// A processor's second-level cache where the system does not say.
const USUAL_L2_BYTES: usize = 1 << 20;

/// Whether so many bytes do not fit into a processor's second-level cache.
pub(crate) fn exceeds_l2(bytes: usize) -> bool {
    static L2_BYTES: OnceLock<usize> = OnceLock::new();
    bytes > *L2_BYTES.get_or_init(|| l2_bytes(Path::new("/sys/devices/system/cpu/cpu0/cache")))
}

/// As `folder` says, which is laid out as Linux's `/sys/devices/system/cpu/cpu0/cache`.
fn l2_bytes(folder: &Path) -> usize {
    let text = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    let of_level_2 = (0..8).find(|index| text(&format!("index{index}/level")).trim() == "2");
    of_level_2.and_then(|index| size(text(&format!("index{index}/size")).trim())).unwrap_or(USUAL_L2_BYTES)
}

/// `1024K` or `2M`.
fn size(text: &str) -> Option<usize> {
    let unit = text.chars().last()?;
    let shift = match unit {
        'K' => 10,
        'M' => 20,
        _ => return None,
    };
    text.strip_suffix(unit)?.parse::<usize>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_level_is_read_as_the_system_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        for (index, level, size) in [(0, "1", "48K"), (1, "1", "32K"), (2, "2", "2048K"), (3, "3", "32M")] {
            let of = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&of).unwrap();
            std::fs::write(of.join("level"), format!("{level}\n")).unwrap();
            std::fs::write(of.join("size"), format!("{size}\n")).unwrap();
        }
        assert_eq!(l2_bytes(folder.path()), 2 << 20);
        assert_eq!(l2_bytes(&folder.path().join("index0")), USUAL_L2_BYTES);
        assert_eq!([size("0K"), size("8M"), size("12"), size("K"), size("")], [None, Some(8 << 20), None, None, None]);
    }
}
