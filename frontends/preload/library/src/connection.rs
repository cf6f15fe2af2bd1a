//! The connection to the server: the shared memory, and the values of the environment variables.

use std::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int},
    mem::{self, MaybeUninit},
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU8, Ordering},
};

use preload_frontend::{cache::Cache, environment, shared::Region, wire::VERSION};

use crate::sys::{PathBuffer, Result, complain, errno, set_errno, syscall};

/// The exit status of a program whose server cannot be reached.
const EXIT_UNREACHABLE: c_int = 126;

const LD_PRELOAD: &str = "LD_PRELOAD";

const NEW: u8 = 0;
const CONNECTING: u8 = 1;
const ACTIVE: u8 = 2;
const INACTIVE: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NEW);
static FOUND: Once<Connection> = Once(UnsafeCell::new(MaybeUninit::uninit()));

/// The memory and the paths that a program needs to reach its server.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) region: Region,
    /// Bytes that can be read without a request.
    pub(crate) cache: Cache,
    /// The path of the server's socket.
    socket: PathBuffer,
    /// The server's folder.
    pub(crate) folder: PathBuffer,
    /// The path at which the program sees the volume.
    pub(crate) at: PathBuffer,
    /// The value of `LD_PRELOAD`.
    preload: PathBuffer,
}

/// A value that is written before `STATE` says so, and never again.
struct Once<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: the state orders the only write before all reads.
unsafe impl<T: Sync> Sync for Once<T> {}

/// The connection, made at its first use; `None` if the program has no volume, or is connecting.
pub(crate) fn get() -> Option<&'static Connection> {
    if STATE.load(Ordering::Acquire) == NEW {
        connect_once();
    }
    if STATE.load(Ordering::Acquire) != ACTIVE {
        return None;
    }
    // SAFETY: the value was written before the state.
    Some(unsafe { (*FOUND.0.get()).assume_init_ref() })
}

/// The shared memory.
pub(crate) fn region() -> Option<&'static Region> {
    get().map(|connection| &connection.region)
}

/// Whether the server is still there.
pub(crate) fn is_served() -> bool {
    get().is_some_and(|start| {
        let connected = connect(&start.socket);
        connected.map(close).is_ok()
    })
}

fn connect_once() {
    let order = (Ordering::Acquire, Ordering::Relaxed);
    if STATE
        .compare_exchange(NEW, CONNECTING, order.0, order.1)
        .is_err()
    {
        return;
    }
    let saved = errno();
    let (Some(socket), Some(at)) = (variable(environment::SOCKET), variable(environment::AT))
    else {
        STATE.store(INACTIVE, Ordering::Release);
        return;
    };
    match connected(socket, at) {
        Ok(found) => {
            // SAFETY: only the thread that has set the state to `CONNECTING` writes, and only once.
            unsafe { (*FOUND.0.get()).write(found) };
            STATE.store(ACTIVE, Ordering::Release);
        }
        Err(errno) => {
            let mut number = PathBuffer::new();
            let _ = number.push_number(errno.unsigned_abs().into());
            complain(&[
                b"cannot reach the server at ",
                socket,
                b" (errno ",
                number.as_bytes(),
                b"); end this program, or unset LD_PRELOAD",
            ]);
            let _ = syscall!(SYS_exit_group, EXIT_UNREACHABLE);
        }
    }
    set_errno(saved);
}

fn variable(name: &str) -> Option<&'static [u8]> {
    let mut buffer = PathBuffer::new();
    buffer.push(name.as_bytes()).ok()?;
    // SAFETY: the name ends with a NUL.
    let value: *const c_char = unsafe { libc::getenv(buffer.as_ptr()) };
    // SAFETY: a value is a string, and those of the start are not changed before it.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

fn connected(socket: &[u8], at: &[u8]) -> Result<Connection> {
    let mut path = PathBuffer::new();
    path.push(socket)?;
    let connection = connect(&path)?;
    let received = receive(connection);
    close(connection);
    let (region, cache) = received?;
    let end = socket.iter().rposition(|byte| *byte == b'/');
    let end = end.ok_or(libc::EINVAL)?;
    let mut start = Connection {
        region,
        cache,
        socket: path,
        folder: PathBuffer::new(),
        at: PathBuffer::new(),
        preload: PathBuffer::new(),
    };
    start
        .preload
        .push(variable(LD_PRELOAD).unwrap_or_default())?;
    start.folder.push(&socket[..end])?;
    start.at.push(at)?;
    Ok(start)
}

fn connect(path: &PathBuffer) -> Result<c_int> {
    // SAFETY: all bytes zero are an address.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let socket = syscall!(SYS_socket, libc::AF_UNIX, kind, 0)? as c_int;
    let len = size_of::<libc::sockaddr_un>();
    match syscall!(SYS_connect, socket, &raw const address, len) {
        Ok(_) => Ok(socket),
        Err(errno) => {
            close(socket);
            Err(errno)
        }
    }
}

fn close(fd: c_int) {
    let _ = syscall!(SYS_close, fd);
}

/// Receives the shared memory.
fn receive(socket: c_int) -> Result<(Region, Cache)> {
    let mut greeting = [0_u8; 12];
    let mut control = [0_u64; 8];
    let mut part = libc::iovec {
        iov_base: greeting.as_mut_ptr().cast(),
        iov_len: greeting.len(),
    };
    // SAFETY: all bytes zero are a message without parts.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_WAITALL;
    let received = loop {
        match syscall!(SYS_recvmsg, socket, &raw mut message, flags) {
            Err(libc::EINTR) => {}
            received => break received?,
        }
    };
    // SAFETY: the kernel has written the header and its control part, which is large enough.
    let [region, cache] = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let bytes = libc::CMSG_LEN(2 * size_of::<c_int>() as u32) as usize;
        if header.is_null()
            || (*header).cmsg_type != libc::SCM_RIGHTS
            || (*header).cmsg_len != bytes
        {
            return Err(libc::EPROTO);
        }
        libc::CMSG_DATA(header)
            .cast::<[c_int; 2]>()
            .read_unaligned()
    };
    let (version, bytes) = greeting.split_at(4);
    let is_ours = received == greeting.len() && version == VERSION.to_le_bytes();
    let bytes = bytes.try_into().map_or(0, u64::from_le_bytes);
    let mapped = if is_ours {
        // SAFETY: the descriptors were just received, and are closed below.
        let files = unsafe {
            [
                BorrowedFd::borrow_raw(region),
                BorrowedFd::borrow_raw(cache),
            ]
        };
        let mapped = Region::open(files[0], bytes as usize)
            .and_then(|region| Ok((region, Cache::open(files[1])?)));
        mapped.map_err(|error| error.raw_os_error().unwrap_or(libc::EPROTO))
    } else {
        Err(libc::EPROTO)
    };
    close(region);
    close(cache);
    mapped
}

/// Whether `path` is in the folder of the server.
pub(crate) fn in_folder<'p>(path: &'p [u8], folder: &str) -> Option<&'p [u8]> {
    let start = get()?;
    let rest = path.strip_prefix(start.folder.as_bytes())?;
    let rest = rest.strip_prefix(b"/")?.strip_prefix(folder.as_bytes())?;
    matches!(rest.first(), None | Some(b'/')).then_some(rest)
}

/// The kernel's working directory.
pub(crate) fn kernel_cwd() -> Result<PathBuffer> {
    let mut path = PathBuffer::new();
    path.fill(|bytes| {
        let len = syscall!(SYS_getcwd, bytes.as_mut_ptr(), bytes.len())?;
        // The length includes the NUL.
        Ok(len.saturating_sub(1))
    })?;
    Ok(path)
}

/// The variables that lead a program to its server, with their values at the start of this one.
pub(crate) fn variables() -> Option<[(&'static [u8], &'static [u8]); 3]> {
    let start = get()?;
    Some([
        (LD_PRELOAD.as_bytes(), start.preload.as_bytes()),
        (environment::SOCKET.as_bytes(), start.socket.as_bytes()),
        (environment::AT.as_bytes(), start.at.as_bytes()),
    ])
}
