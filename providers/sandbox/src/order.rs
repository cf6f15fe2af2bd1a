//! The order from the server to a launcher: the program, its limits and its isolation. Both sides
//! import it.
//!
//! An order travels over one Unix socket as four bytes with its length and its postcard encoding.
//! The descriptors that the program keeps come with the first byte. A spare gets a second order,
//! that of its function.

use std::{
    ffi::OsString,
    io::{self, Read as _},
    mem,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::system::receive_with;

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
const ORDER_BYTES_MAX: usize = 4 << 20;

/// A launch of a program. Paths are the host's.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
    /// A mount of the host, and the folder in which it appears inside, writable.
    pub(crate) volume: Option<(PathBuf, PathBuf)>,
    pub(crate) memory_bytes: u64,
    pub(crate) processes_max: u32,
    /// The size of its `/tmp`, in bytes.
    pub(crate) scratch_bytes: u64,
    pub(crate) network: Network,
    /// Whether S3 clients inside find the server's address too.
    pub(crate) has_objects: bool,
    /// Descriptors that the program keeps, each with the variable that tells it the number.
    #[serde(skip)]
    pub(crate) descriptors: Vec<(String, Arc<OwnedFd>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Network {
    /// Its own loopback alone.
    #[default]
    None,
    /// The machine's network.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// A program that runs at once.
    Function,
    /// An interpreter that waits for a second order before it runs any function's code.
    Spare,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Isolation {
    pub(crate) is_isolated: bool,
    /// A control group bounds its memory. Otherwise a limit on the size of its data does.
    pub(crate) is_memory_grouped: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) role: Role,
    pub(crate) launch: Launch,
    pub(crate) isolation: Isolation,
    /// The membership files of its control groups.
    pub(crate) groups: Vec<PathBuf>,
    pub(crate) parent: u32,
    /// The variables of the descriptors that come with the order.
    variables: Vec<String>,
}

impl Order {
    pub(crate) fn new(
        role: Role,
        mut launch: Launch,
        isolation: Isolation,
        groups: Vec<PathBuf>,
    ) -> Self {
        // Without a root of its own, the process sees its files at their places on the host.
        if !isolation.is_isolated {
            let roots = [
                (TASK_ROOT, launch.code.as_path()),
                (RUNTIME_ROOT, launch.runtime.as_path()),
            ];
            let values = launch.environment.iter_mut().map(|(_, value)| value);
            for text in launch.command.iter_mut().chain(values) {
                *text = on_host(mem::take(text), &roots);
            }
        }
        let variables = launch.descriptors.iter().map(|(name, _)| name.clone());
        Self {
            role,
            isolation,
            groups,
            parent: std::process::id(),
            variables: variables.collect(),
            launch,
        }
    }

    /// An order for a trial of the isolation, which executes nothing.
    pub(crate) fn trial() -> Self {
        let launch = Launch {
            code: "/usr".into(),
            runtime: "/usr".into(),
            scratch_bytes: 1 << 20,
            ..Launch::default()
        };
        let isolation = Isolation {
            is_isolated: true,
            is_memory_grouped: true,
        };
        Self::new(Role::Function, launch, isolation, Vec::new())
    }

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
            return Err(io::Error::other("the order is too long"));
        }
        let mut bytes = vec![0; length];
        socket.read_exact(&mut bytes)?;
        let mut order: Self = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        if order.variables.len() != descriptors.len() {
            return Err(io::Error::other("the order lacks descriptors"));
        }
        order.launch.descriptors = order.variables.iter().cloned().zip(descriptors).collect();
        Ok(order)
    }
}

fn read_length(socket: &mut UnixStream) -> io::Result<(usize, Vec<Arc<OwnedFd>>)> {
    let mut length = [0; 4];
    let (read, descriptors) = receive_with(socket, &mut length)?;
    let descriptors = descriptors.into_iter().map(Arc::new).collect();
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
/// of the listener. S3 clients find it `with_objects`.
pub(crate) fn served_at(
    address: &str,
    with_objects: bool,
) -> impl Iterator<Item = (&'static str, String)> {
    let url = format!("http://{address}");
    let objects = with_objects.then(|| ("AWS_ENDPOINT_URL_S3", url.clone()));
    [
        ("AWS_LAMBDA_RUNTIME_API", address.to_owned()),
        ("LANDFAST_URL", url),
    ]
    .into_iter()
    .chain(objects)
}
