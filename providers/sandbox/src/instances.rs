//! The instances port: any program as an isolated process of this machine.
//!
//! A program finds two descriptors. `LANDFAST_CONTROL` is a Unix socket: each channel arrives on it
//! as a descriptor that comes with one byte. `LANDFAST_MEMORY` is the shared region, if it has one,
//! as a file in memory (`memfd`), to be mapped or read. A channel is a Unix stream of messages,
//! each after its length in four bytes, the lowest first.
//!
//! The file in memory is sealed, so that its size never changes: neither side can make the other's
//! mapping fault ([`mod@region`]).

mod region;

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixStream as StdUnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::{Buf as _, Bytes, BytesMut};
use ports::{
    Error, Instances, Result,
    instances::{Channel, Death, Instance, Limits, Region, Spec},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf, pipe},
    },
    sync::Mutex,
};

pub(crate) use self::region::Regions;
use self::region::SharedMemory;
use crate::{
    order::{Launch, is_of_the_system},
    process::{Launcher, Running},
    system::send_with,
};

const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The variable that holds the number of the socket on which channels arrive.
pub(crate) const CONTROL_VARIABLE: &str = "LANDFAST_CONTROL";
const SHARED_BYTES_MAX: u64 = 1 << 40;
const LENGTH_BYTES: usize = 4;
const PROCESSES_MAX: u32 = 128;
const SCRATCH_BYTES: u64 = 512 << 20;
/// The longest piece of output in one line of the server's log.
const OUTPUT_BYTES_MAX: usize = 4 * 1024;

#[derive(Debug)]
pub(crate) struct SandboxInstances {
    launcher: Arc<Launcher>,
    /// A folder that appears where functions have their code and their runtime.
    folder: PathBuf,
    limits: Limits,
    regions: Arc<Regions>,
}

impl SandboxInstances {
    pub(crate) fn new(launcher: Arc<Launcher>, folder: PathBuf, regions: Arc<Regions>) -> Self {
        let limits = Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            shared_memory_bytes_max: SHARED_BYTES_MAX,
            bounds_memory: launcher.enforcement.memory_groups.is_some(),
        };
        Self {
            launcher,
            folder,
            limits,
            regions,
        }
    }

    fn launch(&self, spec: &Spec, program: &Path) -> Launch {
        let folder = program.parent().unwrap_or(Path::new("/")).to_owned();
        Launch {
            command: spec.command.iter().map(OsString::from).collect(),
            environment: spec
                .environment
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            folders: Some(folder)
                .filter(|folder| !is_of_the_system(folder))
                .into_iter()
                .collect(),
            code: self.folder.clone(),
            runtime: self.folder.clone(),
            memory_bytes: spec.memory_bytes,
            processes_max: PROCESSES_MAX,
            scratch_bytes: SCRATCH_BYTES,
            ..Launch::default()
        }
    }
}

/// The program of `spec`. Errors: it cannot be run, or the spec exceeds the limits.
fn checked(spec: &Spec) -> Result<PathBuf> {
    let wrong = |why: String| Err(Error::invalid(format!("start an instance: {why}")));
    if spec.shared_bytes > SHARED_BYTES_MAX {
        return wrong(format!("a region has at most {SHARED_BYTES_MAX} bytes"));
    }
    let Some(program) = spec.command.first().map(PathBuf::from) else {
        return wrong("its command is empty".to_owned());
    };
    let is_executable = program.is_absolute()
        && program
            .metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    if !is_executable {
        return wrong(format!(
            "{} is not the absolute path of an executable file",
            program.display()
        ));
    }
    Ok(program)
}

fn unavailable(attempted: &'static str, error: io::Error) -> Error {
    Error::unavailable(attempted).caused_by(error)
}

#[async_trait]
impl Instances for SandboxInstances {
    async fn start(&self, spec: &Spec) -> Result<Arc<dyn Instance>> {
        let failed = |error: io::Error| unavailable("start an instance", error);
        let program = checked(spec)?;
        let (control, theirs) = StdUnixStream::pair().map_err(failed)?;
        control.set_nonblocking(true).map_err(failed)?;
        let control = UnixStream::from_std(control).map_err(failed)?;
        let region = match spec.shared_bytes {
            0 => None,
            bytes => Some(Arc::new(
                SharedMemory::new(bytes, &self.regions).map_err(failed)?,
            )),
        };
        let mut launch = self.launch(spec, &program);
        let theirs = Arc::new(OwnedFd::from(theirs));
        launch.descriptors.push((CONTROL_VARIABLE.into(), theirs));
        if let Some(region) = &region {
            let file = Arc::new(region.descriptor().map_err(failed)?);
            launch.descriptors.push(("LANDFAST_MEMORY".into(), file));
        }
        let process = self.launcher.start(launch).await.map_err(failed)?;
        drop(process.listener);
        let (stdout, stderr) = (process.stdout, process.stderr);
        let output = async move {
            futures_util::join!(log(stdout, program.clone()), log(stderr, program.clone()));
        };
        Ok(Arc::new(SandboxInstance {
            running: Running::watch(process.control, process.exit, |_| output, || {}),
            control,
            region,
        }))
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}

async fn log(mut output: pipe::Receiver, program: PathBuf) {
    let mut buffer = vec![0; OUTPUT_BYTES_MAX];
    while let Ok(bytes @ 1..) = output.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..bytes]);
        tracing::debug!(program = %program.display(), output = text.trim_end(), "an instance printed");
    }
}

#[derive(Debug)]
struct SandboxInstance {
    running: Running,
    control: UnixStream,
    region: Option<Arc<SharedMemory>>,
}

#[async_trait]
impl Instance for SandboxInstance {
    async fn channel(&self) -> Result<Arc<dyn Channel>> {
        const ATTEMPTED: &str = "open a channel to an instance";
        let failed = |error: io::Error| unavailable(ATTEMPTED, error);
        if self.running.death().is_some() {
            return Err(failed(io::ErrorKind::NotConnected.into()));
        }
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let descriptors = [theirs.as_raw_fd()];
        let byte = || send_with(&self.control, &[0], &descriptors);
        let sent = self.control.async_io(Interest::WRITABLE, byte);
        sent.await.map_err(failed)?;
        let ours = UnixStream::from_std(ours).map_err(failed)?;
        Ok(Arc::new(SocketChannel::new(ours)))
    }

    fn memory(&self) -> Option<Arc<dyn Region>> {
        let region = self.region.as_ref()?;
        Some(Arc::clone(region) as Arc<dyn Region>)
    }

    async fn died(&self) -> Death {
        self.running.died().await
    }

    fn end(&self) {
        self.running.control.kill();
    }
}

/// One side of a channel. Both sides have the same format.
#[derive(Debug)]
pub(crate) struct SocketChannel {
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
}

impl SocketChannel {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            reader: Mutex::new(Reader {
                stream: read,
                received: BytesMut::new(),
            }),
            writer: Mutex::new(Writer {
                stream: write,
                rest: BytesMut::new(),
            }),
        }
    }
}

#[derive(Debug)]
struct Reader {
    stream: OwnedReadHalf,
    /// Bytes of messages that are not whole yet, or were not asked for yet.
    received: BytesMut,
}

#[derive(Debug)]
struct Writer {
    stream: OwnedWriteHalf,
    /// The rest of a message whose sender was dropped. It goes before the next message.
    rest: BytesMut,
}

impl Writer {
    async fn flush(&mut self) -> io::Result<()> {
        while !self.rest.is_empty() {
            self.stream.write_buf(&mut self.rest).await?;
        }
        Ok(())
    }
}

impl Reader {
    /// The first message, if it is whole. Errors: its length.
    fn message(&mut self) -> std::result::Result<Option<Bytes>, usize> {
        let Some(length) = self.received.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(length);
        }
        if self.received.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.received.advance(LENGTH_BYTES);
        Ok(Some(self.received.split_to(length).freeze()))
    }
}

#[async_trait]
impl Channel for SocketChannel {
    async fn send(&self, message: Bytes) -> Result<()> {
        const ATTEMPTED: &str = "send a message to an instance";
        if message.len() > MESSAGE_BYTES_MAX {
            let bound = format!("{ATTEMPTED}: it has at most {MESSAGE_BYTES_MAX} bytes");
            return Err(Error::invalid(bound));
        }
        let failed = |error| unavailable(ATTEMPTED, error);
        let mut writer = self.writer.lock().await;
        writer.flush().await.map_err(failed)?;
        let length = (message.len() as u32).to_le_bytes();
        writer.rest.extend_from_slice(&length);
        writer.rest.extend_from_slice(&message);
        writer.flush().await.map_err(failed)
    }

    async fn receive(&self) -> Result<Option<Bytes>> {
        const ATTEMPTED: &str = "receive a message from an instance";
        let mut reader = self.reader.lock().await;
        loop {
            match reader.message() {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(length) => {
                    let why = format!("{ATTEMPTED}: it announces {length} bytes");
                    return Err(Error::corrupt(why));
                }
            }
            let Reader { stream, received } = &mut *reader;
            match stream.read_buf(received).await {
                // A message that is not whole by now never will be.
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(unavailable(ATTEMPTED, error)),
            }
        }
    }
}
