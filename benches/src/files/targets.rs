//! The file systems under test, their processes and their mounts.
//!
//! Processes get a process group of their own, so that Ctrl-C reaches the bench alone. It then
//! unmounts and stops everything in order. A directory is removed only if nothing is mounted below.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;

use super::{
    functions::{Server, VOLUME},
    volume_files,
};
use crate::server::{free_address, fresh};

const READY_WAIT: Duration = Duration::from_secs(30);
const STOP_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A file system under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A directory of the disk, twice.
    Ext4,
    /// One brick on the disk, and two FUSE mounts with the caches that are usual.
    Glusterfs,
    /// The same without the caches that show changes of the other mount late.
    GlusterfsStrict,
    /// A data directory on the disk, and two FUSE mounts.
    Landfast,
}

impl Kind {
    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Glusterfs => "GlusterFS",
            Self::GlusterfsStrict => "GlusterFS strict",
            Self::Landfast => "Landfast",
        }
    }
}

/// A file system that is ready.
#[derive(Debug)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Two directories that show the same files.
    pub roots: [PathBuf; 2],
    /// Landfast's server, where the bench started it.
    pub server: Option<Server>,
}

/// Where programs are, and where files may be.
#[derive(Debug)]
pub struct Setting {
    /// Our program.
    pub landfast: PathBuf,
    /// The absolute scratch directory.
    pub scratch: PathBuf,
    /// Two given mounts of Landfast; none: the bench starts it.
    pub given: Option<[PathBuf; 2]>,
}

/// The processes and mounts that are to end with the bench.
#[derive(Debug, Default)]
pub struct Running {
    started: Mutex<Started>,
}

#[derive(Debug, Default)]
struct Started {
    mounts: Vec<PathBuf>,
    processes: Vec<Child>,
}

impl Target {
    /// Starts a file system with empty directories. Its processes and mounts are added to `running`.
    pub fn start(kind: Kind, setting: &Setting, running: &Running) -> Result<Self> {
        let directory = setting.scratch.join(kind.name().replace(' ', "-"));
        ensure!(
            mounts_below(&directory)?.is_empty(),
            "an earlier run left mounts below {}; unmount them first",
            directory.display()
        );
        let directory = fresh(&directory)?;
        let started = match (kind, &setting.given) {
            (Kind::Ext4, _) => {
                let root = fresh(&directory.join("files"))?;
                Ok((root.clone(), root, None))
            }
            (Kind::Glusterfs, _) => glusterfs(&directory, false, running),
            (Kind::GlusterfsStrict, _) => glusterfs(&directory, true, running),
            (Kind::Landfast, Some([one, two])) => Ok((one.clone(), two.clone(), None)),
            (Kind::Landfast, None) => landfast(&setting.landfast, &directory, running),
        };
        let (one, two, server) = started.with_context(|| format!("start {}", kind.name()))?;
        Ok(Self {
            kind,
            roots: [one, two],
            server,
        })
    }

    /// Makes an empty directory `name`, and returns it as both mounts show it.
    pub fn directory(&self, name: &str) -> Result<[PathBuf; 2]> {
        let paths = [self.roots[0].join(name), self.roots[1].join(name)];
        self.remove(name)?;
        fs::create_dir(&paths[0]).with_context(|| paths[0].display().to_string())?;
        let begun = Instant::now();
        // A peer may show an absent name from its cache for a while.
        while !paths[1].is_dir() {
            ensure!(
                begun.elapsed() < STOP_WAIT,
                "the second mount of {} does not show {name}",
                self.kind.name()
            );
            thread::sleep(POLL);
        }
        Ok(paths)
    }

    /// Removes the directory `name` with everything in it.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.roots[0].join(name);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

type Ready = (PathBuf, PathBuf, Option<Server>);

fn glusterfs(directory: &Path, is_strict: bool, running: &Running) -> Result<Ready> {
    let brick = fresh(&directory.join("brick"))?;
    let port = free_address()?.port();
    let graphs = [directory.join("server.vol"), directory.join("client.vol")];
    fs::write(&graphs[0], volume_files::server(&brick, port))?;
    fs::write(&graphs[1], volume_files::client(port, is_strict))?;
    let gluster = |program: &str, graph: &Path, log: &str| {
        let mut command = Command::new(program);
        command.arg("-N").arg("-f").arg(graph);
        command.arg("-l").arg(directory.join(log));
        command
    };
    let server = gluster("glusterfsd", &graphs[0], "server.log");
    running.spawn(server, &directory.join("server.out"))?;
    wait("the brick", || {
        Ok(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
    })?;
    let mut roots = Vec::new();
    for name in ["one", "two"] {
        let root = fresh(&directory.join(name))?;
        let mut client = gluster("glusterfs", &graphs[1], &format!("{name}.log"));
        if is_strict {
            client.args(["--attribute-timeout=0", "--entry-timeout=0"]);
            // SQLite reads again once it has a lock; pages that the kernel kept would be old.
            client.arg("--direct-io-mode=enable");
        }
        client.arg(&root);
        running.mount(client, &root, &directory.join(format!("{name}.out")))?;
        roots.push(root);
    }
    let [one, two] = roots.try_into().expect("two names");
    // A client answers before it is connected to the brick, with an error.
    wait("the first call", || {
        Ok(fs::write(one.join("ready"), "").is_ok())
    })?;
    Ok((one, two, None))
}

fn landfast(program: &Path, directory: &Path, running: &Running) -> Result<Ready> {
    let program = program
        .canonicalize()
        .with_context(|| program.display().to_string())?;
    let data = fresh(&directory.join("data"))?;
    let mut server = Command::new(&program);
    server.arg("serve").arg("--data-dir").arg(&data);
    for front_end in ["--zookeeper", "--http"] {
        server.args([front_end, "127.0.0.1:0"]);
    }
    server.args(["--s3", "off", "--routes", "off"]);
    let output = directory.join("serve.out");
    running.spawn(server, &output)?;
    let mut found = None;
    wait("the server", || {
        let printed = fs::read_to_string(&output)?;
        let ready = printed.lines().find(|line| line.starts_with("ready "));
        let mut words = ready.into_iter().flat_map(str::split_whitespace);
        found = words.find_map(|word| Some(format!("http://{}", word.strip_prefix("http=")?)));
        Ok(found.is_some())
    })?;
    let url = found.context("the server prints its address")?;
    let created = Command::new(&program)
        .args(["files", "create", VOLUME, "--url"])
        .arg(&url)
        .output()?;
    ensure!(
        created.status.success(),
        "landfast files create: {}",
        String::from_utf8_lossy(&created.stderr).trim()
    );
    let mut roots = Vec::new();
    for name in ["one", "two"] {
        let root = fresh(&directory.join(name))?;
        let mut mount = Command::new(&program);
        mount.args(["files", "mount", VOLUME]).arg(&root);
        mount.arg("--data-dir").arg(&data);
        running.mount(mount, &root, &directory.join(format!("{name}.out")))?;
        roots.push(root);
    }
    let [one, two] = roots.try_into().expect("two names");
    Ok((one, two, Some(Server { program, url, data })))
}

impl Running {
    fn started(&self) -> MutexGuard<'_, Started> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process that ends with the bench. What it prints goes to `output`.
    pub fn spawn(&self, mut command: Command, output: &Path) -> Result<Pid> {
        let printed = File::create(output)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(printed.try_clone()?)
            .stderr(printed)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", command.get_program().display()))?;
        let pid = Pid::from_raw(child.id() as i32);
        self.started().processes.push(child);
        Ok(pid)
    }

    /// Waits until that process ends by itself.
    pub fn wait(&self, pid: Pid) -> Result<()> {
        loop {
            let mut started = self.started();
            let child = started.processes.iter_mut();
            let child = { child }.find(|child| child.id() == pid.as_raw() as u32);
            let ended = child.context("the bench was stopped")?.try_wait()?;
            if let Some(status) = ended {
                started
                    .processes
                    .retain(|child| child.id() != pid.as_raw() as u32);
                ensure!(status.success(), "{status}");
                return Ok(());
            }
            drop(started);
            thread::sleep(POLL);
        }
    }

    fn mount(&self, command: Command, root: &Path, output: &Path) -> Result<()> {
        self.started().mounts.push(root.to_owned());
        let pid = self.spawn(command, output)?;
        wait(&format!("the mount on {}", root.display()), || {
            let mut started = self.started();
            for child in &mut started.processes {
                if child.id() == pid.as_raw() as u32
                    && let Some(status) = child.try_wait()?
                {
                    bail!("{status}: {}", fs::read_to_string(output)?.trim());
                }
            }
            Ok(!mounts_below(root)?.is_empty())
        })
    }

    /// Unmounts everything, then stops all processes. Repeated calls do nothing.
    pub fn stop(&self) {
        let mut started = self.started();
        for root in started.mounts.drain(..).rev() {
            unmount(&root);
        }
        for mut child in started.processes.drain(..).rev() {
            stop(&mut child);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An error means that nothing is mounted any more. A mount that stays busy is detached: its
/// process is stopped next, which ends the calls that kept it busy.
fn unmount(root: &Path) {
    let begun = Instant::now();
    while let Err(error) = umount2(root, MntFlags::UMOUNT_NOFOLLOW) {
        if error != Errno::EBUSY || begun.elapsed() > STOP_WAIT / 5 {
            let _ = umount2(root, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
            return;
        }
        thread::sleep(POLL);
    }
}

fn stop(child: &mut Child) {
    let begun = Instant::now();
    // To the whole group, so to the clients of a script also. An error means that all are gone.
    let _ = kill(Pid::from_raw(-(child.id() as i32)), Signal::SIGTERM);
    while let Ok(None) = child.try_wait() {
        if begun.elapsed() > STOP_WAIT {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        thread::sleep(POLL);
    }
}

/// Removes the scratch directory, unless something is mounted below it.
pub fn clear(scratch: &Path) -> Result<()> {
    let mounts = mounts_below(scratch)?;
    ensure!(
        mounts.is_empty(),
        "{} stays: something is mounted on {mounts:?}",
        scratch.display()
    );
    match fs::remove_dir_all(scratch) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// The mount points at or below `path`.
fn mounts_below(path: &Path) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let points = points.map(|point| PathBuf::from(point.replace("\\040", " ")));
    Ok(points.filter(|point| point.starts_with(path)).collect())
}

fn wait(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !ready()? {
        ensure!(
            begun.elapsed() < READY_WAIT,
            "{what} was not ready within {READY_WAIT:?}"
        );
        thread::sleep(POLL);
    }
    Ok(())
}

/// Writes everything to the disk and drops the kernel's caches, where this user may.
pub fn drop_caches() {
    nix::unistd::sync();
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "3") {
        eprintln!("the kernel's caches stay, and uncached figures are too good: {error}");
    }
}

/// The programs of a file system that are not installed.
pub fn missing_programs(kind: Kind) -> Vec<&'static str> {
    let needed: &[&str] = match kind {
        Kind::Ext4 | Kind::Landfast => &[],
        Kind::Glusterfs | Kind::GlusterfsStrict => &["glusterfs", "glusterfsd"],
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| {
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    };
    { needed.iter().copied() }
        .filter(|program| !is_there(program))
        .collect()
}
