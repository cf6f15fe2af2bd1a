//! The files that a function sees: the system's programs and libraries, its code, its own `/tmp`;
//! nothing else.
//!
//! The new root is a file system in memory, built at a path that only this process sees, and made
//! read-only at the end. Folders of the host are opened before a mount covers them, and are bound
//! through their descriptors.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{PermissionsExt as _, symlink},
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, open},
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::Mode,
    unistd::pivot_root,
};

use super::about;
use crate::{
    order::{Launch, Network, Order, RUNTIME_ROOT, Role, TASK_ROOT},
    system::{cloned_tree, mount_tree, restrict_mounts},
};

/// The path of the new root while it is built. For this process alone, it covers the host's folder.
const ROOT: &str = "/tmp";
/// The code of all functions in a spare. The folder above it has no permissions, so init reaches it
/// and the interpreter does not.
const ALL_CODE: &str = "/var/task/all";
/// Programs and libraries of the system.
const SYSTEM: [&str; 8] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt",
];
/// The files that programs read in `/etc`.
const LOOKED_UP: [&str; 9] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki",
    "/etc/python3",
    "/etc/ssl",
];
/// The same, for functions with a network.
const LOOKED_UP_WITH_NETWORK: [&str; 4] = [
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
];
const DEVICES: [&str; 5] = ["full", "null", "random", "urandom", "zero"];

/// A folder or file of the host, and its path inside.
struct Shown {
    from: OwnedFd,
    is_folder: bool,
    to: PathBuf,
}

pub(super) fn build(order: &Order, user: Option<u32>) -> io::Result<()> {
    private()?;
    let shown = open_all(order)?;
    let volume = open_volume(order)?;
    let devices = open_devices()?;
    mount_memory(ROOT, "size=16m,nr_inodes=100k,mode=755")?;
    let root = Path::new(ROOT);
    // Before what is shown: an interpreter may lie below them.
    let scratch = format!("size={},nr_inodes=1m,mode=1777", order.launch.scratch_bytes);
    for (place, options) in [("tmp", scratch.as_str()), ("dev/shm", "size=64m,mode=1777")] {
        fs::create_dir_all(root.join(place))?;
        mount_memory(&format!("{ROOT}/{place}"), options)?;
    }
    links_of_the_system(root)?;
    for Shown {
        from,
        is_folder,
        to,
    } in &shown
    {
        let target = inside(root, to);
        make_place(&target, *is_folder)?;
        bind(from, &target).map_err(about(to.display()))?;
    }
    if let Some((from, to)) = &volume {
        let target = inside(root, to);
        make_place(&target, true)?;
        appear(from, &target).map_err(about(to.display()))?;
    }
    if order.role == Role::Spare {
        fs::set_permissions(
            inside(root, Path::new(TASK_ROOT)),
            fs::Permissions::from_mode(0o000),
        )?;
    }
    bind_devices(root, devices)?;
    accounts(root, user)?;
    fs::create_dir_all(root.join("proc"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("proc"),
        &root.join("proc"),
        Some("proc"),
        flags,
        None::<&str>,
    )
    .map_err(about("/proc of its own"))?;
    enter(root)
}

fn open_devices() -> io::Result<Vec<(PathBuf, OwnedFd)>> {
    let paths = DEVICES.iter().map(|name| Path::new("/dev").join(name));
    paths
        .map(|path| {
            let device = opened(&path)?;
            Ok((path, device))
        })
        .collect()
}

fn bind_devices(root: &Path, devices: Vec<(PathBuf, OwnedFd)>) -> io::Result<()> {
    fs::create_dir_all(root.join("dev"))?;
    for (path, from) in devices {
        let target = inside(root, &path);
        make_place(&target, false)?;
        appear(&from, &target).map_err(about(path.display()))?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(to, root.join("dev").join(name))?;
    }
    Ok(())
}

/// Hides later mounts from other processes.
fn private() -> io::Result<()> {
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)?;
    Ok(())
}

fn mount_memory(place: &str, options: &str) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some(options)).map_err(about(place))
}

fn open_all(order: &Order) -> io::Result<Vec<Shown>> {
    let Launch {
        folders,
        code,
        runtime,
        network,
        ..
    } = &order.launch;
    let shown = |from: &Path, to: &Path| {
        Ok(Shown {
            from: opened(from)?,
            is_folder: from.is_dir(),
            to: to.to_owned(),
        })
    };
    let network = match network {
        Network::Host => &LOOKED_UP_WITH_NETWORK[..],
        Network::None => &[],
    };
    let looked_up = SYSTEM.iter().chain(&LOOKED_UP).chain(network);
    // A link of the host's root becomes a link inside.
    let system = looked_up
        .filter(|path| !(SYSTEM.contains(path) && Path::new(path).is_symlink()))
        .map(Path::new)
        .filter(|path| path.exists());
    let code_at = match order.role {
        Role::Function => TASK_ROOT,
        Role::Spare => ALL_CODE,
    };
    system
        .chain(folders.iter().map(PathBuf::as_path))
        .map(|path| (path, path))
        .chain([
            (&**code, Path::new(code_at)),
            (&**runtime, Path::new(RUNTIME_ROOT)),
        ])
        .map(|(from, to)| shown(from, to))
        .collect()
}

/// The mount of its volume, and its folder inside.
fn open_volume(order: &Order) -> io::Result<Option<(OwnedFd, &Path)>> {
    let volume = order.launch.volume.as_ref();
    volume
        .map(|(from, to)| Ok((opened(from)?, to.as_path())))
        .transpose()
}

fn opened(path: &Path) -> io::Result<OwnedFd> {
    let opened = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
    opened.map_err(about(path.display()))
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn make_place(target: &Path, is_folder: bool) -> io::Result<()> {
    if is_folder {
        return fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::File::create(target).map(drop)
}

/// Creates `/bin` and the like, where they are links on the host.
fn links_of_the_system(root: &Path) -> io::Result<()> {
    for path in SYSTEM.map(Path::new) {
        if path.is_symlink() {
            symlink(fs::read_link(path)?, inside(root, path))?;
        }
    }
    Ok(())
}

fn bind(from: &OwnedFd, target: &Path) -> io::Result<()> {
    appear(from, target)?;
    // Includes mounts below it, which would otherwise stay writable.
    restrict_mounts(target)
}

fn appear(from: &OwnedFd, target: &Path) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", from.as_raw_fd());
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(
        Some(path.as_str()),
        target,
        None::<&str>,
        flags,
        None::<&str>,
    )?;
    Ok(())
}

/// Gives the function's user a name.
fn accounts(root: &Path, user: Option<u32>) -> io::Result<()> {
    let user = user.unwrap_or_else(|| nix::unistd::Uid::effective().as_raw());
    let etc = root.join("etc");
    fs::create_dir_all(&etc)?;
    fs::write(
        etc.join("passwd"),
        format!("root:x:0:0:root:/:/bin/sh\nfunction:x:{user}:{user}::/tmp:/bin/sh\n"),
    )?;
    fs::write(
        etc.join("group"),
        format!("root:x:0:\nfunction:x:{user}:\n"),
    )?;
    for (name, text) in [
        ("hosts", "127.0.0.1 localhost\n"),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n",
        ),
    ] {
        if !etc.join(name).exists() {
            fs::write(etc.join(name), text)?;
        }
    }
    fs::set_permissions(&etc, fs::Permissions::from_mode(0o755))
}

/// Replaces the code of all functions by that of `order`, and sets the size of `/tmp`.
pub(super) fn narrow(spare: &Order, order: &Order) -> io::Result<()> {
    let below = order
        .launch
        .code
        .strip_prefix(&spare.launch.code)
        .map_err(io::Error::other)?;
    if below.as_os_str().is_empty()
        || !below
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
    {
        return Err(io::Error::other(
            "the code is not below that of all functions",
        ));
    }
    // Needs a detached copy: a folder inside a mount that is gone cannot be mounted any more.
    let code = cloned_tree(&Path::new(ALL_CODE).join(below))
        .map_err(about(order.launch.code.display()))?;
    umount2(ALL_CODE, MntFlags::MNT_DETACH)?;
    mount_tree(&code, Path::new(TASK_ROOT)).map_err(about(TASK_ROOT))?;
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let size = format!("size={}", order.launch.scratch_bytes);
    mount(
        None::<&str>,
        "/tmp",
        None::<&str>,
        flags,
        Some(size.as_str()),
    )
    .map_err(about("/tmp"))
}

fn enter(root: &Path) -> io::Result<()> {
    let before = root.join("before");
    fs::create_dir(&before)?;
    pivot_root(root, &before)?;
    std::env::set_current_dir("/")?;
    umount2("/before", MntFlags::MNT_DETACH)?;
    fs::remove_dir("/before")?;
    let flags = MsFlags::MS_REMOUNT
        | MsFlags::MS_BIND
        | MsFlags::MS_RDONLY
        | MsFlags::MS_NOSUID
        | MsFlags::MS_NODEV;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)?;
    Ok(())
}
