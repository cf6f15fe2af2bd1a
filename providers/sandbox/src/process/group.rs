//! The control groups of one process: its limits, its freezing, and the kernel's kills.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::enforcement::{Enforcement, Hierarchy};
use crate::order::Launch;

/// A process's group in each hierarchy.
#[derive(Debug)]
pub(crate) struct Group {
    memory: Option<Hierarchy>,
    processes: Option<Hierarchy>,
    freezer: Option<Hierarchy>,
    /// The kernel's file with the peak memory use; kept open, because every invocation reads it.
    peak: Option<File>,
    /// The kernel's file with the number of members that it ended for lack of memory.
    kills: Option<File>,
    /// All of its folders, each once.
    folders: Vec<PathBuf>,
}

impl Group {
    pub(super) fn make(enforcement: &Enforcement, launch: &Launch) -> io::Result<Self> {
        // All launchers of this process create groups in one folder.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let below = |hierarchy: &Option<Hierarchy>| {
            let Hierarchy { folder, is_v2 } = hierarchy.as_ref()?;
            Some(Hierarchy {
                folder: folder.join(number.to_string()),
                is_v2: *is_v2,
            })
        };
        let memory = below(&enforcement.memory_groups);
        let processes = below(&enforcement.process_groups);
        let freezer = below(&enforcement.freezer);
        let mut folders = Vec::new();
        for Hierarchy { folder, .. } in [&memory, &processes, &freezer].into_iter().flatten() {
            if !folders.contains(folder) {
                folders.push(folder.clone());
            }
        }
        // On an error, dropping the group removes its folders.
        let mut group = Self {
            memory,
            processes,
            freezer,
            peak: None,
            kills: None,
            folders,
        };
        for folder in &group.folders {
            make_folder(folder)?;
        }
        group.limit(launch)?;
        let said = |name_v2: &str, name_v1: &str| {
            let Hierarchy { folder, is_v2 } = group.memory.as_ref()?;
            File::open(folder.join(if *is_v2 { name_v2 } else { name_v1 })).ok()
        };
        let peak = said("memory.peak", "memory.max_usage_in_bytes");
        let kills = said("memory.events", "memory.oom_control");
        (group.peak, group.kills) = (peak, kills);
        Ok(group)
    }

    pub(super) fn limit(&self, launch: &Launch) -> io::Result<()> {
        if let Some(memory) = &self.memory {
            let bytes = launch.memory_bytes.to_string();
            let set = |file: &str, value: &str| fs::write(memory.folder.join(file), value);
            if memory.is_v2 {
                set("memory.max", &bytes)?;
                // Fails on a machine without swap.
                let _ = set("memory.swap.max", "0");
                // The kernel then ends all members together: survivors might wait for a killed one.
                // Fails before Linux 4.19.
                let _ = set("memory.oom.group", "1");
            } else {
                // The sum with swap must never be below the other limit, even while both grow.
                // Fails where swap is not counted.
                let _ = set("memory.memsw.limit_in_bytes", "-1");
                set("memory.limit_in_bytes", &bytes)?;
                let _ = set("memory.memsw.limit_in_bytes", &bytes);
            }
        }
        if let Some(processes) = &self.processes {
            // The launcher and init are two more.
            let most = u64::from(launch.processes_max) + 2;
            fs::write(processes.folder.join("pids.max"), most.to_string())?;
        }
        Ok(())
    }

    pub(super) fn members(&self) -> Vec<PathBuf> {
        self.folders
            .iter()
            .map(|folder| folder.join("cgroup.procs"))
            .collect()
    }

    /// Freezes or thaws it; none: there is no freezer.
    pub(super) fn freeze(&self, is_frozen: bool) -> Option<io::Result<()>> {
        let file = self.freezer.as_ref()?.folder.join("cgroup.freeze");
        Some(fs::write(file, if is_frozen { "1" } else { "0" }))
    }

    /// Whether every member is frozen; none: there is no freezer.
    pub(super) fn is_frozen(&self) -> Option<bool> {
        let events = self.freezer.as_ref()?.folder.join("cgroup.events");
        let text = fs::read_to_string(events).unwrap_or_default();
        Some(text.lines().any(|line| line == "frozen 1"))
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        let Some(folder) = self.folders.first() else {
            return Ok(());
        };
        if let Some(freezer) = &self.freezer
            && fs::write(freezer.folder.join("cgroup.kill"), "1").is_ok()
        {
            return Ok(());
        }
        for process in fs::read_to_string(folder.join("cgroup.procs"))?.split_ascii_whitespace() {
            if let Ok(process) = process.parse() {
                // The process may have ended. Its number is not reused before it has left the
                // group.
                let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
            }
        }
        Ok(())
    }

    pub(crate) fn memory_peak(&self) -> Option<u64> {
        let mut digits = [0; 24];
        let length = self.peak.as_ref()?.read_at(&mut digits, 0).ok()?;
        std::str::from_utf8(&digits[..length])
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// How many members the kernel has ended for lack of memory.
    pub(crate) fn out_of_memory_kills(&self) -> u64 {
        let mut text = [0; 512];
        let read = self
            .kills
            .as_ref()
            .and_then(|kills| kills.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills
            .and_then(|kills| kills.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Removes it. Whether nothing is left of it.
    pub(super) fn remove(&self) -> bool {
        self.folders.iter().all(|folder| is_removed(folder))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Creates a group's folder. An existing one is the remains of a server with the same process
/// number.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(folder)?;
            fs::create_dir(folder)
        }
        made => made,
    }
}

fn is_removed(folder: &Path) -> bool {
    match fs::remove_dir(folder) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_left_by_a_server_of_the_same_number_is_replaced_unless_it_is_in_use() {
        let above = tempfile::tempdir().expect("a directory");
        let folder = above.path().join("1");
        for _ in 0..2 {
            make_folder(&folder).expect("made");
        }
        fs::create_dir(folder.join("below")).expect("made");
        assert!(make_folder(&folder).is_err());
    }
}
