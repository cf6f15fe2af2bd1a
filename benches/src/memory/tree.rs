//! The CPU time and the memory of a process with all of its descendants.
//!
//! Landfast keeps objects in the memory of child processes, so that a figure about its first process
//! alone would hide their share.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::Result;

/// Linux reports CPU time in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// A process in `/proc`.
#[derive(Debug, Clone, Copy)]
struct Entry {
    parent: u32,
    /// Its own, and that of children that have ended.
    cpu_ticks: u64,
}

/// The CPU time of process `root` and its descendants so far, user and system.
pub fn cpu(root: u32) -> Result<Duration> {
    let entries = entries()?;
    let ticks: u64 = descendants(&entries, root)
        .iter()
        .filter_map(|pid| entries.get(pid))
        .map(|entry| entry.cpu_ticks)
        .sum();
    Ok(TICK * u32::try_from(ticks)?)
}

/// The anonymous memory of process `root`, and of its descendants together, in bytes.
pub fn anonymous_bytes(root: u32) -> Result<(u64, u64)> {
    let pids = descendants(&entries()?, root);
    let children = pids.iter().filter(|pid| **pid != root);
    Ok((anonymous(root), children.copied().map(anonymous).sum()))
}

fn anonymous(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = field.and_then(|field| field.trim().strip_suffix("kB")?.trim().parse().ok());
    kibibytes.map_or(0, |kibibytes: u64| kibibytes * 1_024)
}

fn entries() -> Result<BTreeMap<u32, Entry>> {
    let mut entries = BTreeMap::new();
    for file in fs::read_dir("/proc")? {
        let Some(pid) = file?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // A process may end between the two reads.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if let Some(entry) = entry(&stat) {
            entries.insert(pid, entry);
        }
    }
    Ok(entries)
}

/// Reads a line of `/proc/PID/stat`; the program's name in it may hold anything.
fn entry(stat: &str) -> Option<Entry> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>());
    Some(Entry {
        parent: fields.get(1)?.parse().ok()?,
        cpu_ticks: ticks.sum::<Result<u64, _>>().ok()?,
    })
}

fn descendants(entries: &BTreeMap<u32, Entry>, root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = entries.iter().filter(|(_, entry)| entry.parent == parent);
        found.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_count_with_their_own_children() {
        let stat = |parent: u32, ticks: u64| {
            entry(&format!(
                "42 (a) b 1) S {parent} 42 42 0 -1 4194560 100 0 0 0 {ticks} 1 2 3 20 0 9 0"
            ))
            .expect("an entry")
        };
        let entries = BTreeMap::from([
            (5, stat(1, 1)),
            (6, stat(5, 10)),
            (7, stat(6, 100)),
            (8, stat(1, 9)),
        ]);
        assert_eq!(descendants(&entries, 5), [5, 6, 7]);
        assert_eq!(entries[&7].cpu_ticks, 106);
    }
}
