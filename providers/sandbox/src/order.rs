//! The order from the server to a launcher: the program, its limits and its isolation. Both sides
//! import it.
//!
//! An order travels over one Unix socket as four bytes with its length and its postcard encoding.
//! The descriptors that the program keeps come with the first byte. A spare gets a second order,
//! that of its function.

use std::{
    ffi::OsString,
    io::{self, IoSliceMut, Read as _},
    os::{
        fd::{AsRawFd as _, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::sys::socket::{MsgFlags, recvmsg};
use serde::{Deserialize, Serialize};

use crate::system::all_received;

/// The first argument that makes this program a launcher.
pub const LAUNCHER_ARGUMENT: &str = "sandbox-launcher";
/// The second argument of a launcher that only tries to isolate itself.
pub(crate) const TRIAL_ARGUMENT: &str = "trial";

/// Where a function finds its code.
pub(crate) const TASK_ROOT: &str = "/var/task";
/// Where a function finds the runtime clients.
pub(crate) const RUNTIME_ROOT: &str = "/var/runtime";
/// The variable with the descriptor on which a spare receives its function. A function that sets
/// this variable itself is started without a spare.
pub(crate) const SPARE_VARIABLE: &str = "LANDFAST_SPARE";

/// The byte by which a spare confirms that it has become an instance.
pub(crate) const ADOPTED: u8 = b'A';
/// The longest order.
const ORDER_BYTES_MAX: usize = 4 << 20;
/// The most descriptors that a program keeps.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// A launch of a program. Paths are the host's.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// The program and its arguments, as seen inside.
    pub(crate) command: Vec<OsString>,
    /// The whole environment, except `AWS_LAMBDA_RUNTIME_API` and `LANDFAST_URL`. The launcher adds
    /// these two with its listener's address, unless they are here.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Folders that the program needs, seen inside at the same place.
    pub(crate) folders: Vec<PathBuf>,
    /// Appears read-only at `/var/task`, where the program starts.
    pub(crate) code: PathBuf,
    /// Appears read-only at `/var/runtime`.
    pub(crate) runtime: PathBuf,
    /// The memory limit.
    pub(crate) memory_bytes: u64,
    /// The most processes and threads.
    pub(crate) processes_max: u32,
    /// The size of its `/tmp`, in bytes.
    pub(crate) scratch_bytes: u64,
    /// The network that it reaches.
    pub(crate) network: Network,
    /// Descriptors that the program keeps, each with the variable that tells it the number.
    pub(crate) descriptors: Vec<(&'static str, Arc<OwnedFd>)>,
}

/// The network that a process reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Network {
    /// Its own loopback alone.
    None,
    /// The machine's network.
    Host,
}

/// The two kinds of launched programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// A program that runs at once.
    Function,
    /// An interpreter that waits for a second order before it runs any function's code.
    Spare,
}

/// The isolation that the machine enforces for a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Isolation {
    /// It has namespaces of its own.
    pub(crate) is_isolated: bool,
    /// Its system calls are filtered.
    pub(crate) is_filtered: bool,
    /// A control group bounds its memory.
    pub(crate) is_memory_grouped: bool,
}

/// An order to a launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) role: Role,
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) code: PathBuf,
    pub(crate) runtime: PathBuf,
    pub(crate) memory_bytes: u64,
    pub(crate) processes_max: u32,
    pub(crate) scratch_bytes: u64,
    pub(crate) network: Network,
    /// The membership files of its control groups.
    pub(crate) groups: Vec<PathBuf>,
    /// Whether namespaces isolate it.
    pub(crate) is_isolated: bool,
    /// Whether its system calls are filtered.
    pub(crate) is_filtered: bool,
    /// Whether a control group bounds its memory. Otherwise a limit on the size of its data does.
    pub(crate) is_memory_grouped: bool,
    /// The process that started the launcher.
    pub(crate) parent: u32,
    /// The variables with the numbers of the descriptors that come with the order.
    pub(crate) variables: Vec<String>,
    /// These descriptors.
    #[serde(skip)]
    pub(crate) descriptors: Vec<Arc<OwnedFd>>,
}

impl Order {
    pub(crate) fn new(
        role: Role,
        launch: Launch,
        isolation: Isolation,
        groups: Vec<PathBuf>,
    ) -> Self {
        let Launch {
            command,
            environment,
            code,
            runtime,
            descriptors,
            ..
        } = launch;
        let roots = [
            (TASK_ROOT, code.as_path()),
            (RUNTIME_ROOT, runtime.as_path()),
        ];
        // Without a root of its own, the process sees its files at their places on the host.
        let seen = |text: OsString| {
            if isolation.is_isolated {
                text
            } else {
                on_host(text, &roots)
            }
        };
        let command = command.into_iter().map(seen).collect();
        let environment = environment
            .into_iter()
            .map(|(name, value)| (name, seen(value)))
            .collect();
        let (variables, descriptors) = descriptors
            .into_iter()
            .map(|(variable, descriptor)| (variable.to_owned(), descriptor))
            .unzip();
        Self {
            role,
            command,
            environment,
            folders: launch.folders,
            code,
            runtime,
            memory_bytes: launch.memory_bytes,
            processes_max: launch.processes_max,
            scratch_bytes: launch.scratch_bytes,
            network: launch.network,
            groups,
            is_isolated: isolation.is_isolated,
            is_filtered: isolation.is_filtered,
            is_memory_grouped: isolation.is_memory_grouped,
            parent: std::process::id(),
            variables,
            descriptors,
        }
    }

    /// An order for a trial of the isolation, which executes nothing.
    pub(crate) fn trial() -> Self {
        Self {
            role: Role::Function,
            command: Vec::new(),
            environment: Vec::new(),
            folders: Vec::new(),
            code: "/usr".into(),
            runtime: "/usr".into(),
            memory_bytes: 0,
            processes_max: 1,
            scratch_bytes: 1 << 20,
            network: Network::None,
            groups: Vec::new(),
            is_isolated: true,
            is_filtered: false,
            is_memory_grouped: true,
            parent: 0,
            variables: Vec::new(),
            descriptors: Vec::new(),
        }
    }

    /// Its length and encoding.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        let order = postcard::to_stdvec(self).map_err(io::Error::other)?;
        let mut bytes = (order.len() as u32).to_le_bytes().to_vec();
        bytes.extend(order);
        Ok(bytes)
    }

    /// Reads an order, in the launcher.
    pub(crate) fn read(socket: &mut UnixStream) -> io::Result<Self> {
        let (length, descriptors) = read_length(socket)?;
        if length > ORDER_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the order is too long",
            ));
        }
        let mut bytes = vec![0; length];
        socket.read_exact(&mut bytes)?;
        let mut order: Self = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        if order.variables.len() != descriptors.len() {
            return Err(io::Error::other("the order lacks descriptors"));
        }
        order.descriptors = descriptors;
        Ok(order)
    }
}

/// The length of an order, and the descriptors that come with it.
fn read_length(socket: &mut UnixStream) -> io::Result<(usize, Vec<Arc<OwnedFd>>)> {
    let mut length = [0; 4];
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut parts = [IoSliceMut::new(&mut length)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let read = message.bytes;
    let descriptors = all_received(&message)?.into_iter().map(Arc::new).collect();
    socket.read_exact(&mut length[read..])?;
    Ok((u32::from_le_bytes(length) as usize, descriptors))
}

/// `text`, or, if it is a path below one of `roots`, the same file's path on the host.
fn on_host(text: OsString, roots: &[(&str, &Path); 2]) -> OsString {
    let found = roots
        .iter()
        .find_map(|(root, host)| Some((host, Path::new(&text).strip_prefix(root).ok()?)));
    match found {
        Some((host, rest)) if rest.as_os_str().is_empty() => host.as_os_str().to_owned(),
        Some((host, rest)) => host.join(rest).into(),
        None => text,
    }
}

/// Whether every sandbox shows this folder.
pub(crate) fn is_of_the_system(folder: &Path) -> bool {
    folder == Path::new("/")
        || ["/usr", "/opt"]
            .iter()
            .any(|system| folder.starts_with(system))
}

/// The variables with the server's address for an instance. Only its launcher knows the `address`
/// of the listener.
pub(crate) fn served_at(address: &str) -> [(&'static str, String); 2] {
    [
        ("AWS_LAMBDA_RUNTIME_API", address.to_owned()),
        ("LANDFAST_URL", format!("http://{address}")),
    ]
}
