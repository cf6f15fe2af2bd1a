//! The machine's processes, and what memory they have left, as the kernel lists them.

use std::fs;

/// All processes below `process`, without itself, parents first. What is started meanwhile may be missing.
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

/// The children of a process, as far as it says: each of its threads has its own.
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

/// What the machine could still give, as its kernel estimates.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Whether it runs, or would if its turn came; not if it is stopped or has ended.
pub(crate) fn is_running(process: u32) -> bool {
    !matches!(state(process), None | Some('T' | 't' | 'Z' | 'X'))
}

/// Whether it has not ended; of one that has, its parent may still have to take note.
pub(crate) fn is_alive(process: u32) -> bool {
    !matches!(state(process), None | Some('Z' | 'X'))
}

/// What the kernel says that it does; none: it is not there.
fn state(process: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Its name, in parentheses, may hold anything.
    text.rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next())
}
