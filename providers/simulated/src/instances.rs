//! The instances port in memory: a program is a Rust future, and dies when the seed says so.
//!
//! Each message to an instance may kill it, with the chance that
//! [`Faults::kill_instances`](crate::Faults::kill_instances) sets.
//!
//! Invariants
//! - An instance is one task. When it is dead, its program and its ends of all channels are
//!   dropped.
//! - The cause of a death is known only after that.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    future::{BoxFuture, Either, select},
    stream::FuturesUnordered,
};
use ports::{
    Error, Instances, Result,
    contract::instances::Command,
    instances::{Channel, Death, Instance, Limits, Region, Spec},
};
use tokio::sync::{Notify, mpsc, watch};

use crate::{cloud::Cloud, run::lock};

/// The messages on their way in each direction of a channel.
const MESSAGES_MAX: usize = 64;
/// The channels that a program has not accepted yet.
const CHANNELS_MAX: usize = 64;
/// The signal of a kill.
const SIGKILL: i32 = 9;
const LIMITS: Limits = Limits {
    message_bytes_max: 4 << 20,
    shared_memory_bytes_max: 64 << 20,
    bounds_memory: true,
};

/// An instance as its program sees it.
#[derive(Debug)]
pub struct Inside {
    /// Its number, which no other instance has.
    pub number: u64,
    /// Its arguments, environment and memory.
    pub spec: Spec,
    /// The shared region, if the spec asked for one.
    pub memory: Option<Arc<SimulatedRegion>>,
    channels: mpsc::Receiver<End>,
}

impl Inside {
    /// The next channel that the caller opens; none: it opens no more.
    pub async fn accept(&mut self) -> Option<End> {
        self.channels.recv().await
    }
}

/// The code of all instances. It returns how the instance dies by itself.
pub type Program = Arc<dyn Fn(Inside) -> BoxFuture<'static, Death> + Send + Sync>;

/// One end of a channel.
#[derive(Debug)]
pub struct End {
    send: mpsc::Sender<Bytes>,
    receive: tokio::sync::Mutex<mpsc::Receiver<Bytes>>,
}

impl End {
    fn pair() -> (Self, Self) {
        let ((to, theirs), (back, ours)) =
            (mpsc::channel(MESSAGES_MAX), mpsc::channel(MESSAGES_MAX));
        let end = |send, receive| Self {
            send,
            receive: tokio::sync::Mutex::new(receive),
        };
        (end(to, ours), end(back, theirs))
    }

    /// The next message from the other side; none: it has closed the channel.
    pub async fn receive(&self) -> Option<Bytes> {
        self.receive.lock().await.recv().await
    }

    /// Sends a message. Whether the other side still has the channel.
    pub async fn send(&self, message: Bytes) -> bool {
        self.send.send(message).await.is_ok()
    }
}

/// Instances of one program.
pub struct SimulatedInstances {
    cloud: Arc<Cloud>,
    program: Program,
    started: AtomicU64,
}

impl Debug for SimulatedInstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedInstances").finish_non_exhaustive()
    }
}

impl SimulatedInstances {
    pub(crate) fn new(cloud: Arc<Cloud>, program: Program) -> Self {
        Self {
            cloud,
            program,
            started: AtomicU64::new(0),
        }
    }
}

#[async_trait]
impl Instances for SimulatedInstances {
    async fn start(&self, spec: &Spec) -> Result<Arc<dyn Instance>> {
        if spec.shared_bytes > LIMITS.shared_memory_bytes_max {
            return Err(Error::invalid("start an instance with too large a region"));
        }
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let region =
            (spec.shared_bytes > 0).then(|| Arc::new(SimulatedRegion::new(spec.shared_bytes)));
        let (open, channels) = mpsc::channel(CHANNELS_MAX);
        let inside = Inside {
            number,
            spec: spec.clone(),
            memory: region.clone(),
            channels,
        };
        let (kill, death) = (Arc::new(Notify::new()), watch::Sender::new(None));
        let instance = SimulatedInstance {
            number,
            cloud: Arc::clone(&self.cloud),
            open,
            region,
            kill: Arc::clone(&kill),
            death: death.subscribe(),
        };
        let (cloud, program) = (Arc::clone(&self.cloud), (self.program)(inside));
        self.cloud.record("start", instance.to_string(), "");
        tokio::spawn(async move {
            let cause = tokio::select! {
                biased;
                () = kill.notified() => Death::Killed(SIGKILL),
                cause = program => cause,
            };
            cloud.record("death", format!("instance#{number}"), format!("{cause:?}"));
            death.send_replace(Some(cause));
        });
        Ok(Arc::new(instance))
    }

    fn limits(&self) -> &Limits {
        &LIMITS
    }
}

#[derive(Debug)]
struct SimulatedInstance {
    number: u64,
    cloud: Arc<Cloud>,
    open: mpsc::Sender<End>,
    region: Option<Arc<SimulatedRegion>>,
    kill: Arc<Notify>,
    death: watch::Receiver<Option<Death>>,
}

impl fmt::Display for SimulatedInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance#{}", self.number)
    }
}

fn dead() -> Error {
    Error::unavailable("reach an instance that is dead, or has closed the channel")
}

#[async_trait]
impl Instance for SimulatedInstance {
    async fn channel(&self) -> Result<Arc<dyn Channel>> {
        let (ours, theirs) = End::pair();
        self.open.send(theirs).await.map_err(|_| dead())?;
        Ok(Arc::new(SimulatedChannel {
            end: ours,
            cloud: Arc::clone(&self.cloud),
            kill: Arc::clone(&self.kill),
        }))
    }

    fn memory(&self) -> Option<Arc<dyn Region>> {
        let region = self.region.as_ref()?;
        Some(Arc::clone(region) as Arc<dyn Region>)
    }

    async fn died(&self) -> Death {
        let mut death = self.death.clone();
        let cause = death.wait_for(Option::is_some).await;
        cause
            .ok()
            .and_then(|cause| *cause)
            .unwrap_or(Death::Killed(SIGKILL))
    }

    fn end(&self) {
        self.kill.notify_one();
    }
}

impl Drop for SimulatedInstance {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug)]
struct SimulatedChannel {
    end: End,
    cloud: Arc<Cloud>,
    kill: Arc<Notify>,
}

#[async_trait]
impl Channel for SimulatedChannel {
    async fn send(&self, message: Bytes) -> Result<()> {
        if message.len() > LIMITS.message_bytes_max {
            return Err(Error::invalid("send a message that is too long"));
        }
        if self
            .cloud
            .faults
            .draw_instance_death(&mut self.cloud.random())
        {
            self.kill.notify_one();
        }
        if self.end.send(message).await {
            Ok(())
        } else {
            Err(dead())
        }
    }

    async fn receive(&self) -> Result<Option<Bytes>> {
        Ok(self.end.receive().await)
    }
}

/// A region of memory that both sides of an instance hold.
#[derive(Debug)]
pub struct SimulatedRegion(Mutex<Vec<u8>>);

impl SimulatedRegion {
    fn new(bytes: u64) -> Self {
        Self(Mutex::new(vec![0; bytes as usize]))
    }

    /// Calls `with` on the `bytes` bytes from `offset` on.
    fn at(&self, offset: u64, bytes: usize, with: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut region = lock(&self.0);
        let part = usize::try_from(offset).ok().and_then(|from| {
            let to = from.checked_add(bytes)?;
            region.get_mut(from..to)
        });
        with(part.ok_or_else(|| Error::invalid("access memory outside of a region"))?);
        Ok(())
    }
}

impl Region for SimulatedRegion {
    fn bytes(&self) -> u64 {
        lock(&self.0).len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.at(offset, buffer.len(), |part| buffer.copy_from_slice(part))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.at(offset, bytes.len(), |part| part.copy_from_slice(bytes))
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.at(offset, bytes, |part| part.fill(0))
    }
}

/// A program that obeys the commands of the contract.
pub fn obedient() -> Program {
    Arc::new(|inside| Box::pin(obey(inside)))
}

async fn obey(mut inside: Inside) -> Death {
    let facts = Facts {
        number: inside.number,
        environment: inside.spec.environment.clone(),
        memory_bytes: inside.spec.memory_bytes,
        memory: inside.memory.clone(),
    };
    let mut serving = FuturesUnordered::new();
    loop {
        let accepted = {
            let accept = std::pin::pin!(inside.accept());
            let served = async {
                if serving.is_empty() {
                    std::future::pending::<()>().await;
                }
                serving.next().await.flatten()
            };
            match select(accept, std::pin::pin!(served)).await {
                Either::Left((Some(end), _)) => end,
                Either::Left((None, _)) => return Death::Exited(0),
                Either::Right((Some(death), _)) => return death,
                Either::Right((None, _)) => continue,
            }
        };
        serving.push(serve(&facts, accepted));
    }
}

/// What the commands of the contract ask of an instance.
struct Facts {
    number: u64,
    environment: BTreeMap<String, String>,
    memory_bytes: u64,
    memory: Option<Arc<SimulatedRegion>>,
}

/// Serves one channel until it is closed; returns how the instance dies, if a command says so.
async fn serve(facts: &Facts, end: End) -> Option<Death> {
    while let Some(message) = end.receive().await {
        let command = Command::parse(&message).expect("the contract's commands are well formed");
        let region = || facts.memory.as_ref().expect("the case asked for a region");
        let answer = match command {
            Command::Echo(text) => Bytes::from(text),
            Command::Long(bytes) => Bytes::from(vec![b'x'; bytes]),
            Command::Instance => Bytes::from(facts.number.to_string()),
            Command::Variable(name) => {
                Bytes::from(facts.environment.get(&name).cloned().unwrap_or_default())
            }
            Command::Read(offset, bytes) => {
                let mut read = vec![0; bytes];
                region().read(offset, &mut read).expect("inside");
                Bytes::from(read)
            }
            Command::Write(offset, text) => {
                region().write(offset, text.as_bytes()).expect("inside");
                Bytes::from("written")
            }
            Command::Hold(megabytes) if megabytes << 20 > facts.memory_bytes => {
                return Some(Death::OutOfMemory);
            }
            Command::Hold(_) => Bytes::from("held"),
            Command::Children(_) => Bytes::from("started"),
            Command::Exit(status) => return Some(Death::Exited(status)),
        };
        if !end.send(answer).await {
            break;
        }
    }
    None
}
