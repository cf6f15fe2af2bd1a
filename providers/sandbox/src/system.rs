//! System calls that no crate wraps without `unsafe`, each behind a function that is sound for any
//! argument.
//!
//! The launcher uses them, a process with one thread. The server uses those for received
//! descriptors.

// Why: forking, waiting for any child, flags of an interface and of mounts, received descriptors.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    io::{self, IoSlice, IoSliceMut},
    mem,
    os::{
        fd::{AsRawFd, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use nix::{
    sys::{
        resource::Resource,
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
            recvmsg, sendmsg, socket,
        },
    },
    unistd::{ForkResult, Pid, fork},
};

/// The most descriptors that come with one message.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// Descriptor 0, once: none if it was taken before.
pub(crate) fn take_standard_input() -> Option<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: only the launcher calls this, before it opens anything. It was started with this
    // descriptor, and this is its only owner.
    Some(unsafe { OwnedFd::from_raw_fd(0) })
}

/// The socket that the server gave this program as descriptor `number`, once: none if it was taken
/// before, or is a standard stream.
pub(crate) fn take_control(number: RawFd) -> Option<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if number <= 2 || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the number is from the variable that the launcher sets for a program that it becomes.
    // The program got this descriptor with it. Only this function takes it, and only once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Forks. Errors: the system's, or that this process has other threads, whose locks the child would
/// inherit.
pub(crate) fn forked() -> io::Result<ForkResult> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() > 1) {
        return Err(io::Error::other(
            "a process with several threads is not forked",
        ));
    }
    // SAFETY: there is no other thread, so nothing is in the middle of anything in the child.
    Ok(unsafe { fork() }?)
}

/// The result of a system call. Errors: the one that it reported by a negative number.
fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Marks every descriptor but the first three to be closed when a program is executed.
pub(crate) fn close_on_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: integers; nothing is closed now. The wrapper of the C library is newer than the call.
    let marked = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    checked(marked).map(drop)
}

/// Makes the mount at `path`, and every mount below it, read-only and without devices or programs
/// of other users.
pub(crate) fn restrict_mounts(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: all zeros is a valid request.
    let mut change: libc::mount_attr = unsafe { mem::zeroed() };
    change.attr_set = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    // SAFETY: the path ends with a zero byte; the request lives as long as the call, and its size
    // is its own.
    let changed = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE as libc::c_uint,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    checked(changed).map(drop)
}

/// The mounts at `path` and below it, as a detached tree.
pub(crate) fn cloned_tree(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as libc::c_uint;
    // SAFETY: the path ends with a zero byte.
    let tree = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    let tree = checked(tree)?;
    // SAFETY: the kernel has just made it for this call, so there is no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(tree as i32) })
}

pub(crate) fn mount_tree(tree: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: both paths end with a zero byte; the descriptor is open.
    let mounted = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    checked(mounted).map(drop)
}

pub(crate) fn limit_other(process: Pid, resource: Resource, most: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    let before = std::ptr::null_mut();
    // SAFETY: the limit lives as long as the call, which only reads it; the earlier one is not
    // asked for.
    let limited =
        unsafe { libc::prlimit(process.as_raw(), resource as _, &raw const limit, before) };
    checked(limited.into()).map(drop)
}

/// Waits for any child. Returns the kernel's wait status.
pub(crate) fn wait_for_any() -> io::Result<(Pid, i32)> {
    let mut status = 0;
    // SAFETY: the status is ours to be written, and lives as long as the call.
    let ended = unsafe { libc::waitpid(-1, &raw mut status, 0) };
    checked(ended.into())?;
    Ok((Pid::from_raw(ended), status))
}

/// A child that has ended, without waiting; none: no child has. Errors: there are no children.
pub(crate) fn ended_child() -> io::Result<Option<Pid>> {
    let mut status = 0;
    // SAFETY: the status is ours to be written, and lives as long as the call.
    let ended = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    checked(ended.into())?;
    Ok((ended > 0).then(|| Pid::from_raw(ended)))
}

/// Sends `bytes` with copies of `descriptors`. Returns how many bytes were sent.
pub(crate) fn send_with(
    socket: &impl AsRawFd,
    bytes: &[u8],
    descriptors: &[RawFd],
) -> io::Result<usize> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let rights = &rights[..usize::from(!descriptors.is_empty())];
    let (parts, flags) = ([IoSlice::new(bytes)], MsgFlags::MSG_NOSIGNAL);
    Ok(sendmsg::<()>(
        socket.as_raw_fd(),
        &parts,
        rights,
        flags,
        None,
    )?)
}

/// Receives bytes, and at most [`DESCRIPTORS_MAX`] descriptors that come with them. Returns how many
/// bytes were received.
pub(crate) fn receive_with(
    socket: &impl AsRawFd,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let (mut parts, flags) = ([IoSliceMut::new(bytes)], MsgFlags::MSG_CMSG_CLOEXEC);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let descriptors = message.cmsgs()?.flat_map(|part| match part {
        ControlMessageOwned::ScmRights(descriptors) => descriptors,
        _ => Vec::new(),
    });
    // SAFETY: the kernel has just made them for this message, so they have no other owner.
    let owned = descriptors.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    let owned = owned.collect();
    Ok((message.bytes, owned))
}

/// Switches on the loopback of this network namespace: in a new one it is off.
pub(crate) fn raise_loopback() -> io::Result<()> {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (place, letter) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = *letter as libc::c_char;
    }
    // SAFETY: the descriptor is open, and the request is what these calls read and write. The first
    // one fills in the flags.
    unsafe {
        let request = &raw mut request;
        checked(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, request).into())?;
        (*request).ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        checked(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, request).into())?;
    }
    Ok(())
}
