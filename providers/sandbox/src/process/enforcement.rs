//! The isolation that this machine can enforce, and the substitutes where it cannot.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::unistd::Uid;

use crate::{
    machine::is_alive,
    order::{LAUNCHER_ARGUMENT, TRIAL_ARGUMENT},
};

const TRIAL_MAX: Duration = Duration::from_secs(10);
const TRIAL_POLL: Duration = Duration::from_millis(1);
/// How long the remains of earlier servers may take to end.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(1);
const SAID_BYTES_MAX: u64 = 1024;

/// One measure, enforced or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// Its subject: the thing that it protects or bounds.
    pub what: &'static str,
    /// Why it is not enforced, and its substitute; none: it is enforced.
    pub lacks: Option<String>,
}

/// A control group hierarchy in which the server may create groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// The server's group, the parent of those of functions.
    pub(crate) folder: PathBuf,
    pub(crate) is_v2: bool,
}

/// The means of isolation on this machine.
#[derive(Debug, Clone)]
pub struct Enforcement {
    /// Why there are no namespaces; none: there are.
    lacks_namespaces: Option<String>,
    may_choose_users: bool,
    pub(crate) memory_groups: Option<Hierarchy>,
    pub(crate) process_groups: Option<Hierarchy>,
    pub(crate) freezer: Option<Hierarchy>,
}

impl Enforcement {
    /// Examines the machine, lets `program`, which is this program, try the isolation, and creates
    /// a control group for functions where possible. It also removes the groups of earlier servers.
    pub fn probe(program: &Path) -> Self {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let v2 = v2_group(&mounts, &own);
        let of = |controller: &str| {
            let in_v2 = v2
                .clone()
                .filter(|v2| has_controller(&v2.folder, controller));
            in_v2.or_else(|| v1_group(&mounts, &own, controller))
        };
        Self {
            lacks_namespaces: lacks_namespaces(program),
            may_choose_users: may_choose_users(),
            memory_groups: of("memory"),
            process_groups: of("pids"),
            freezer: v2,
        }
    }

    /// A machine without namespaces and control groups, like most containers. For tests of the
    /// substitutes.
    pub fn nothing() -> Self {
        Self {
            lacks_namespaces: Some("a test goes without it".to_owned()),
            may_choose_users: false,
            memory_groups: None,
            process_groups: None,
            freezer: None,
        }
    }

    /// This machine without control groups. For tests.
    #[must_use]
    pub fn without_groups(self) -> Self {
        self.remove();
        Self {
            lacks_namespaces: self.lacks_namespaces,
            may_choose_users: self.may_choose_users,
            ..Self::nothing()
        }
    }

    /// Removes the server's control groups, if they are empty.
    pub fn remove(&self) {
        let groups = [&self.memory_groups, &self.process_groups, &self.freezer];
        for hierarchy in groups.into_iter().flatten() {
            // Of two hierarchies in one folder, the second finds it gone.
            let _ = fs::remove_dir(&hierarchy.folder);
        }
    }

    /// Why functions can reach more than their own; none: they cannot, as on machines with
    /// namespaces.
    pub fn lacks_isolation(&self) -> Option<String> {
        let namespaces = self.lacks_namespaces.as_deref();
        let lacks = [namespaces, self.lacks_scratch(), self.lacks_users()];
        let lacks: Vec<_> = lacks.into_iter().flatten().collect();
        (!lacks.is_empty()).then(|| lacks.join("; "))
    }

    pub(crate) fn has_namespaces(&self) -> bool {
        self.lacks_namespaces.is_none()
    }

    /// Whether a function cannot write the files of the server's user.
    pub(crate) fn separates_users(&self) -> bool {
        self.lacks_users().is_none()
    }

    /// All measures.
    pub fn measures(&self) -> [Measure; 7] {
        let measure = |what, lacks: Option<&str>| Measure {
            what,
            lacks: lacks.map(str::to_owned),
        };
        [
            measure(
                "own processes, files and network",
                self.lacks_namespaces.as_deref(),
            ),
            measure("system calls that reach around the sandbox", None),
            measure(
                "memory_mb",
                self.memory_groups.is_none().then_some(
                    "no memory control group may be made here: each process of a function is bounded by the size of its data instead, to four \
                     times memory_mb and 256 MB; nothing bounds their sum, nor memory that is shared (memfd_create, shared mappings)",
                ),
            ),
            measure("processes", self.lacks_process_groups()),
            measure("scratch_mb", self.lacks_scratch()),
            measure("code, data and processes of others", self.lacks_users()),
            measure(
                "freezing of idle instances",
                self.freezer.is_none().then_some(
                    "no cgroup v2 group may be made here: idle instances are stopped by SIGSTOP instead",
                ),
            ),
        ]
    }

    /// Why no control group bounds processes, and the substitute. `RLIMIT_NPROC` counts all
    /// processes of a user. It is set only where a function has its own user or user namespace,
    /// because it would otherwise count the server's processes.
    fn lacks_process_groups(&self) -> Option<&'static str> {
        match self.process_groups {
            Some(_) => None,
            None if self.has_namespaces() => {
                Some("no pids control group may be made here: RLIMIT_NPROC bounds them instead")
            }
            None => Some(
                "no pids control group may be made here, and there are no namespaces: nothing bounds them; let this user make either, or bound \
                 all that it may start, the server's threads among it (TasksMax of its systemd unit, --pids-limit of its container)",
            ),
        }
    }

    fn lacks_scratch(&self) -> Option<&'static str> {
        (!self.has_namespaces()).then_some(
            "there are no namespaces: /tmp is this machine's, which functions share with each other and with all users; nothing bounds what \
             they write there, and it stays when they have ended",
        )
    }

    fn lacks_users(&self) -> Option<&'static str> {
        (!self.has_namespaces() && !self.may_choose_users).then_some(
            "there are no namespaces, and functions run as this server's user: each may change its own code and that of others, which is run until \
             this server is restarted or other code is deployed; may read and write the data directory; and may end this \
             server and other functions: deploy what you trust as this server alone, or start it as root that may choose users (CAP_SETUID, CAP_SETGID)",
        )
    }
}

/// Why there can be no namespaces. No setting tells this for all machines, so a trial creates them
/// and mounts the files of a function.
fn lacks_namespaces(program: &Path) -> Option<String> {
    let why = trial(program).err()?;
    Some(format!(
        "they cannot be had here ({why}; a container without CAP_SYS_ADMIN, or sysctl user.max_user_namespaces, \
         kernel.unprivileged_userns_clone or kernel.apparmor_restrict_unprivileged_userns): functions see this machine's files, \
         processes and network"
    ))
}

/// Whether each function can have its own user: the server is root, with the capabilities for that.
fn may_choose_users() -> bool {
    /// `CAP_SETGID` and `CAP_SETUID`, in the kernel's numbers.
    const RIGHTS: u64 = 1 << 6 | 1 << 7;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = effective.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    Uid::effective().is_root() && rights.is_some_and(|rights| rights & RIGHTS == RIGHTS)
}

/// Builds an empty sandbox. Errors: the obstacle.
fn trial(program: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command
        .args([LAUNCHER_ARGUMENT, TRIAL_ARGUMENT])
        .env_clear();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let until = Instant::now() + TRIAL_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => thread::sleep(TRIAL_POLL),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("it takes too long".to_owned());
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(SAID_BYTES_MAX).read_to_string(&mut said);
    }
    let said = said.trim();
    Err(said.strip_prefix("landfast: ").unwrap_or(said).to_owned())
}

fn has_controller(folder: &Path, controller: &str) -> bool {
    let text = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
    text.split_ascii_whitespace().any(|name| name == controller)
}

/// The server's group in the version 2 hierarchy, with the controllers it may have.
fn v2_group(mounts: &str, own: &str) -> Option<Hierarchy> {
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A group with its own processes passes no controllers on, so the new group is its sibling.
    let above = if path == "/" {
        path
    } else {
        path.rsplit_once('/').map_or("", |(above, _)| above)
    };
    let folder = make(&mount.join(above.trim_start_matches('/')))?;
    for controller in ["+memory", "+pids"] {
        // Not every machine passes them on here.
        let _ = fs::write(folder.join("cgroup.subtree_control"), controller);
    }
    Some(Hierarchy {
        folder,
        is_v2: true,
    })
}

/// The server's group in the version 1 hierarchy with this controller.
fn v1_group(mounts: &str, own: &str, controller: &str) -> Option<Hierarchy> {
    let has = |options: &str| options.split(',').any(|option| option == controller);
    let mount = mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        match fields.as_slice() {
            [_, path, "cgroup", options, ..] if has(options) => Some(PathBuf::from(*path)),
            _ => None,
        }
    })?;
    let path = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        has(controllers).then_some(path)
    })?;
    Some(Hierarchy {
        folder: make(&mount.join(path.trim_start_matches('/')))?,
        is_v2: false,
    })
}

/// The prefix of the groups' names. The server's process number follows.
const NAME: &str = "landfast-functions-";

/// Creates the server's group below `above`, if allowed.
fn make(above: &Path) -> Option<PathBuf> {
    remove_left_behind(above);
    let folder = above.join(format!("{NAME}{}", std::process::id()));
    match fs::create_dir(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => None,
        _ => Some(folder),
    }
}

/// Removes the groups of earlier servers. Their processes died with the servers, and may still be
/// ending.
fn remove_left_behind(above: &Path) {
    let until = Instant::now() + LEFT_BEHIND_MAX;
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok());
        if process.is_none_or(is_alive) {
            continue;
        }
        while !is_removed(&entry.path()) && Instant::now() < until {
            thread::sleep(TRIAL_POLL);
        }
    }
}

/// Removes the group of one server with those of its functions. Whether it is gone.
fn is_removed(folder: &Path) -> bool {
    for group in fs::read_dir(folder).into_iter().flatten().flatten() {
        // Fails for the group's files, which go with it.
        let _ = fs::remove_dir(group.path());
    }
    fs::remove_dir(folder).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with namespaces and without control groups.
    fn with_namespaces() -> Enforcement {
        Enforcement {
            lacks_namespaces: None,
            ..Enforcement::nothing()
        }
    }

    /// U2: operators rely on the reported bound on processes.
    #[test]
    fn the_reported_bound_on_processes_holds() {
        let process_groups = Some(Hierarchy {
            folder: "/sys/fs/cgroup/pids".into(),
            is_v2: false,
        });
        let grouped = Enforcement {
            process_groups,
            ..Enforcement::nothing()
        };
        assert_eq!(grouped.lacks_process_groups(), None);
        let isolated = with_namespaces().lacks_process_groups().expect("no group");
        assert!(isolated.contains("RLIMIT_NPROC bounds them"), "{isolated}");
        let neither = Enforcement::nothing().lacks_process_groups();
        let neither = neither.expect("no group");
        assert!(
            neither.contains("nothing bounds them") && !neither.contains("NPROC"),
            "{neither}"
        );
    }

    /// U2: operators rely on the reported isolation.
    #[test]
    fn the_reach_of_functions_without_namespaces_is_reported() {
        let (with, without) = (with_namespaces(), Enforcement::nothing());
        assert_eq!((with.lacks_scratch(), with.lacks_users()), (None, None));
        let root = Enforcement {
            may_choose_users: true,
            ..Enforcement::nothing()
        };
        assert_eq!(root.lacks_users(), None, "each has a user of its own");
        assert!(
            without
                .lacks_scratch()
                .is_some_and(|why| why.contains("nothing bounds"))
        );
        let said = without.lacks_users().expect("they are the server's");
        for reached in [
            "its own code and that of others",
            "data directory",
            "end this server",
        ] {
            assert!(said.contains(reached), "{said}");
        }
    }

    #[test]
    fn a_machine_without_namespaces_is_warned_of_and_no_other() {
        assert_eq!(
            with_namespaces().lacks_isolation(),
            None,
            "`landfast doctor` reports memory, processes and freezing"
        );
        assert!(Enforcement::nothing().lacks_isolation().is_some());
    }

    /// A killed process stays a zombie until its parent reaps it, which may be never.
    #[test]
    fn the_groups_of_a_dead_server_go_even_if_it_is_a_zombie() {
        let above = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("cat");
        let mut servers =
            [(); 2].map(|()| command.stdin(Stdio::piped()).spawn().expect("it starts"));
        let folders = servers
            .each_ref()
            .map(|server| above.path().join(format!("{NAME}{}", server.id())));
        for folder in &folders {
            fs::create_dir_all(folder.join("1")).expect("made");
        }
        let [killed, living] = &mut servers;
        killed.kill().expect("it is there");
        let begun = Instant::now();
        while is_alive(killed.id()) {
            assert!(begun.elapsed() < Duration::from_mins(2), "it does not end");
            thread::yield_now();
        }
        assert!(
            Path::new("/proc").join(killed.id().to_string()).exists(),
            "it is a zombie"
        );
        remove_left_behind(above.path());
        assert_eq!(folders.map(|folder| folder.exists()), [false, true]);
        for server in [killed, living] {
            let _ = server.kill();
            server.wait().expect("it has ended");
        }
    }
}
