//! What a process took: processor time and memory, as Linux counts them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A request that takes longer is left by its client, which ends it.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Of Linux, on every machine that this runs on.
const TICKS_A_SECOND: f64 = 100.0;

/// What a process has taken since this began.
pub struct Costs {
    pid: u32,
    resident: u64,
    ticks: u64,
}

impl Costs {
    pub fn begin(pid: u32) -> Self {
        // Its peak begins anew.
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("Linux counts from here on");
        Self { pid, resident: status(pid, "VmRSS:"), ticks: ticks(pid) }
    }

    /// What it took until now.
    pub fn end(self) -> Cost {
        Cost {
            memory: status(self.pid, "VmHWM:").saturating_sub(self.resident),
            seconds: (ticks(self.pid) - self.ticks) as f64 / TICKS_A_SECOND,
        }
    }
}

/// What something took.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    /// Bytes beyond what the process had, at the peak.
    pub memory: u64,
    /// Of processor time.
    pub seconds: f64,
}

impl Cost {
    /// The greater of each.
    pub fn or(self, other: Self) -> Self {
        Self { memory: self.memory.max(other.memory), seconds: self.seconds.max(other.seconds) }
    }
}

fn status(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may have spaces: user and system time are the 12th and 13th.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// A request's bytes, as the table counts them, at the least.
const LEAST_BYTES: u64 = 16 << 10;

/// The worst of each path.
#[derive(Default)]
pub struct Table(BTreeMap<String, Worst>);

#[derive(Default)]
struct Worst {
    requests: usize,
    seconds_per_mib: f64,
    slowest: String,
    bytes_per_byte: f64,
    greatest: String,
}

impl Table {
    /// Short requests count as if they were a little longer: each has its constant part.
    pub fn note(&mut self, route: &str, how: &str, status: u16, bytes: u64, cost: Cost) {
        let bytes = bytes.max(LEAST_BYTES);
        let worst = self.0.entry(route.to_owned()).or_default();
        let (seconds, memory) = (cost.seconds / bytes as f64 * f64::from(1 << 20), cost.memory as f64 / bytes as f64);
        worst.requests += 1;
        if seconds >= worst.seconds_per_mib {
            (worst.seconds_per_mib, worst.slowest) = (seconds, format!("{how} ({status})"));
        }
        if memory >= worst.bytes_per_byte {
            (worst.bytes_per_byte, worst.greatest) = (memory, format!("{how} ({status})"));
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| path | requests | processor s a MiB | of | bytes a byte | of |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for (route, worst) in &self.0 {
            let Worst { requests, seconds_per_mib, slowest, bytes_per_byte, greatest } = worst;
            writeln!(
                f,
                "| {route} | {requests} | {seconds_per_mib:.1} | {slowest} | {bytes_per_byte:.0} | {greatest} |"
            )?;
        }
        Ok(())
    }
}
