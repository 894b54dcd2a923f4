//! Memory that large work has freed, given back to the system: glibc keeps it for the next allocation, which may never come.

/// Bytes of freed values from which on it is worth while to look for pages that nobody uses: looking takes a millisecond for a gigabyte of
/// them, and what is wanted again comes zeroed, a quarter of a second for a gigabyte.
const WORTH_BYTES: u64 = 32 << 20;

/// Work whose memory nobody needs once it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A prompt had so many fresh tokens, and their KV is filed.
    Prefill { tokens: u64 },
    /// A model was loaded or calibrated, documents were taken in.
    Large,
}

/// What a token of a prefill leaves behind, about: hidden states and fresh KV.
const BYTES_OF_A_TOKEN: u64 = 32 << 10;

/// Whether to give memory back after this.
pub fn is_worth_while(work: Work) -> bool {
    match work {
        Work::Prefill { tokens } => tokens.saturating_mul(BYTES_OF_A_TOKEN) >= WORTH_BYTES,
        Work::Large => true,
    }
}

/// Gives freed memory back to the system, if it is worth while after this work. Takes some milliseconds. Elsewhere than with glibc
/// nothing is done: other allocators give pages back by themselves.
pub fn give_back_after(work: Work) {
    if is_worth_while(work) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: it takes a number, and touches free memory alone; allocations of other threads wait.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_work_is_let_alone() {
        for (work, expected) in [
            (Work::Large, true),
            (Work::Prefill { tokens: 300 }, false),
            (Work::Prefill { tokens: 4096 }, true),
            (Work::Prefill { tokens: u64::MAX }, true),
        ] {
            assert_eq!(is_worth_while(work), expected, "{work:?}");
        }
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn what_was_freed_is_the_system_s_again() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        // Small ones, with one that stays behind them: the heap cannot shrink from its end.
        let mut small: Vec<Vec<u8>> = (0..200_000).map(|index| vec![index as u8; 1 << 10]).collect();
        let last = small.pop();
        let full = resident();
        drop(small);
        give_back_after(Work::Large);
        assert!(resident() + (100 << 20) < full, "{} of {full} bytes are left", resident());
        drop(last);
    }
}
