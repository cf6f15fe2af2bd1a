//! New namespaces of this process. A mount namespace of its own hides its mounts from other
//! processes. Where it has no right to mount, it also gets a user namespace.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::{Gid, Uid, getegid, geteuid},
};

/// The directory that holds the mount points of volumes by default.
pub(super) const MOUNTS: &str = "/mnt";
/// The options of the file system there: room for one directory.
const MOUNTS_OPTIONS: &str = "mode=755,size=64k";

/// The right by which this process makes namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// It makes none.
    None,
    /// Its own.
    Own,
    /// A user namespace of its own.
    UserNamespace,
}

/// A user and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) user: Uid,
    pub(super) group: Gid,
}

impl Identity {
    pub(super) const ROOT: Self = Self {
        user: Uid::from_raw(0),
        group: Gid::from_raw(0),
    };

    /// The present one of this process.
    pub(super) fn current() -> Self {
        Self {
            user: geteuid(),
            group: getegid(),
        }
    }
}

/// Moves this process, which must have one thread, into a mount namespace of its own.
pub(super) fn enter() -> anyhow::Result<Right> {
    let right = match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => Right::Own,
        Err(Errno::EPERM) => {
            let outside = Identity::current();
            enter_user_namespace(CloneFlags::CLONE_NEWNS, outside, outside).context(
                "this user may not make a mount namespace; run it as root, or let users make \
                 user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)",
            )?;
            Right::UserNamespace
        }
        Err(error) => return Err(error).context("a new mount namespace"),
    };
    // Otherwise a mount would propagate to the namespace that this one was copied from.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .context("the mounts cannot be made private")?;
    Ok(right)
}

/// Enters a user namespace, and those of `more`, in which `outside` appears as `inside`.
pub(super) fn enter_user_namespace(
    more: CloneFlags,
    inside: Identity,
    outside: Identity,
) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER | more)?;
    fs::write("/proc/self/setgroups", "deny")?;
    let map = |inside: u32, outside: u32| format!("{inside} {outside} 1");
    let users = map(inside.user.as_raw(), outside.user.as_raw());
    fs::write("/proc/self/uid_map", users)?;
    let groups = map(inside.group.as_raw(), outside.group.as_raw());
    fs::write("/proc/self/gid_map", groups)
}

/// The directory to mount `volume` on: `at`, or else a new one in a file system of this
/// namespace's own on `/mnt`.
pub(super) fn mount_point(at: Option<&Path>, volume: &str) -> anyhow::Result<PathBuf> {
    if let Some(at) = at {
        let point = fs::canonicalize(at)
            .with_context(|| format!("--at {}: it must be a directory", at.display()))?;
        ensure!(
            point.is_dir(),
            "--at {}: it must be a directory",
            at.display()
        );
        return Ok(point);
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("landfast"),
        MOUNTS,
        Some("tmpfs"),
        flags,
        Some(MOUNTS_OPTIONS),
    )
    .with_context(|| format!("nothing can be mounted on {MOUNTS}; name a directory by --at"))?;
    let point = Path::new(MOUNTS).join(volume);
    fs::create_dir(&point).with_context(|| point.display().to_string())?;
    Ok(point)
}
