//! The machine that the server runs on.

use std::fs;

/// The bound on function memory by default: a quarter of this machine's memory.
pub(crate) fn memory_bytes_by_default() -> u64 {
    let information = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = information
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: Option<u64> =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map_or(1 << 30, |kib| kib * 1024 / 4)
}
