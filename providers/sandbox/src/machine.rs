//! The machine's processes, its available memory and its clock, as the kernel reports them.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

/// All descendants of `process`, parents first. One that starts meanwhile may be missing.
pub(crate) fn descendants_of(process: u32) -> Vec<u32> {
    let mut all = children_of(process);
    let mut next = 0;
    while let Some(process) = all.get(next) {
        let children = children_of(*process);
        all.extend(children);
        next += 1;
    }
    all
}

/// The children of a process; each of its threads lists its own.
fn children_of(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let texts = threads
        .map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let children = |text: String| -> Vec<u32> {
        text.split_ascii_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect()
    };
    texts.flat_map(children).collect()
}

pub(crate) fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Whether a process runs or is ready to run. A stopped process is not, nor is one that has ended.
pub(crate) fn is_running(process: u32) -> bool {
    !matches!(state(process), None | Some('T' | 't' | 'Z' | 'X'))
}

/// Whether a process has not ended. A zombie has.
pub(crate) fn is_alive(process: u32) -> bool {
    !matches!(state(process), None | Some('Z' | 'X'))
}

/// The state of a process, in the kernel's letters; none: there is no such process.
fn state(process: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    text.rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next())
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
