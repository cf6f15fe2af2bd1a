//! A front end over TCP with a service in a simulated world without faults. The tests' own bytes
//! are its peers.
//!
//! Everything runs on the test's thread, and no operation in the simulated world takes time. A test
//! that yields often enough has therefore seen all that the others do by themselves.

// A peer outside of the simulated world waits in real time.
#![allow(clippy::disallowed_methods)]

use std::{
    future::pending,
    io::Result,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use coordination::{
    Parts, Service, access,
    dependency::TrackedStore,
    model::{Lifetime, Naming, Request, SessionId, Watching},
    queue_names,
    storage::session,
};
use ports::{
    Event, Handler,
    faults::{Fault, FaultSchedule, FaultyKeyValue},
    functions::{Definition, Failure},
};
use simulated::World;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::ReadHalf},
    sync::{Mutex, MutexGuard},
    task::JoinHandle,
    time::timeout,
};
use zookeeper_frontend::{Config, Statistics, bind};

use crate::requests::{buffer, encode, frame, int, long};

/// How long a test waits for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// The znode of the tests that need one.
const ZNODE: &str = "/n";

/// After this many turns without progress, a task waits for another one.
const TURNS_WITHOUT_PROGRESS: u32 = 10_000;

/// A reply's bytes before its body: a length, an xid, a zxid and an error.
const REPLY_HEAD_BYTES: usize = 20;

/// A service, its front end, and records of their work.
pub(crate) struct Fixture {
    pub(crate) world: World,
    pub(crate) config: Config,
    pub(crate) statistics: Arc<Statistics>,
    /// While a test holds it, the writer waits.
    writer: Arc<Mutex<()>>,
    reads: Arc<Reads>,
    tasks: Vec<JoinHandle<()>>,
}

impl Fixture {
    /// A fixture on a free port of its own, with the bounds of `config`.
    pub(crate) async fn new(config: Config, coordination: coordination::Config) -> Result<Self> {
        let world = World::new(1);
        let reads = Arc::new(Reads::default());
        let items = FaultyKeyValue::new(world.key_value(), reads.clone(), world.clock());
        let parts = Parts {
            system: world.key_value(),
            items: Arc::new(items),
            objects: world.objects(),
            queue: world.queue(),
            functions: world.functions(),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let service = Arc::new(Service::new(parts, coordination));
        let writer = Arc::new(Mutex::new(()));
        for Definition {
            name,
            options,
            handler,
        } in service.functions()
        {
            let handler: Arc<dyn Handler> = if name == queue_names::WRITER {
                Arc::new(HeldUp {
                    inner: handler,
                    by: Arc::clone(&writer),
                })
            } else {
                handler
            };
            world.functions().register(Definition {
                name,
                options,
                handler,
            });
        }
        service.start().await.expect("no fault is injected");
        let server = bind(config.clone(), Arc::new(service.gateway())).await?;
        let (statistics, listen) = (server.statistics(), server.local_address());
        let secure = server.secure_address();
        let secure = secure.zip(config.secure.clone());
        let following = tokio::spawn(async move { service.run().await });
        let tasks = vec![following, tokio::spawn(server.run(pending()))];
        Ok(Self {
            world,
            config: Config {
                listen,
                secure: secure.map(|(address, (_, tls))| (address, tls)),
                ..config
            },
            statistics,
            writer,
            reads,
            tasks,
        })
    }

    /// A fixture with the default bounds.
    pub(crate) async fn with_defaults() -> Result<Self> {
        Self::new(
            Config::new(([127, 0, 0, 1], 0).into()),
            coordination::Config::default(),
        )
        .await
    }

    /// A connected peer that has sent nothing.
    pub(crate) async fn peer(&self) -> Result<Peer> {
        Ok(Peer {
            stream: TcpStream::connect(self.config.listen).await?,
        })
    }

    /// A peer with a session timeout in milliseconds.
    pub(crate) async fn client(&self, timeout_ms: i32) -> Result<Client> {
        let mut peer = self.peer().await?;
        peer.stream.write_all(&connect_request(timeout_ms)).await?;
        let mut opened = [0; 41];
        timeout(PATIENCE, peer.stream.read_exact(&mut opened))
            .await
            .expect("a session is opened")?;
        let session = SessionId(i64::from_be_bytes(
            opened[12..20].try_into().expect("eight bytes"),
        ));
        Ok(Client { peer, session })
    }

    /// A client in a world where [`ZNODE`] has a value of this many bytes.
    pub(crate) async fn client_with_a_znode(
        &self,
        timeout_ms: i32,
        bytes: usize,
    ) -> Result<Client> {
        let mut client = self.client(timeout_ms).await?;
        let request = Request::Create {
            path: ZNODE.into(),
            data: Some(vec![7; bytes].into()),
            acl: access::open(),
            lifetime: Lifetime::Persistent,
            naming: Naming::Given,
        };
        client
            .peer
            .replies(&encode(0, &request, false), 0..=0)
            .await?;
        Ok(client)
    }

    /// Until the guard is dropped, no update is decided.
    pub(crate) async fn hold_the_writer_up(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().await
    }

    /// Number of reads of znodes.
    pub(crate) fn reads(&self) -> usize {
        self.reads.0.load(Relaxed)
    }

    /// Waits until every connection has ended.
    pub(crate) async fn all_gone(&self) {
        let gone = async {
            while self.statistics.connections_open() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, gone).await.expect("the connection ends");
    }

    /// Waits until a session has ended.
    pub(crate) async fn session_gone(&self, session: SessionId) {
        let mut sessions = TrackedStore::new(self.world.key_value());
        let gone = async {
            while session::get(&mut sessions, session)
                .await
                .expect("no fault is injected")
                .is_some()
            {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, gone).await.expect("the session ends");
    }

    /// Sends as many bytes as the server takes, until it waits for its peer or for a blocked
    /// function. Returns their number.
    pub(crate) async fn press(&self, peer: &Peer, bytes: &[u8]) -> Result<usize> {
        let progress = || {
            (
                self.statistics.bytes_received.get(),
                self.statistics.bytes_sent.get(),
                self.reads(),
            )
        };
        let (mut sent, mut turns, mut before) = (0, 0, progress());
        while turns < TURNS_WITHOUT_PROGRESS {
            turns += 1;
            if sent < bytes.len() {
                match peer.stream.try_write(&bytes[sent..]) {
                    Ok(written) => (sent, turns) = (sent + written, 0),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            tokio::task::yield_now().await;
            if progress() != before {
                (before, turns) = (progress(), 0);
            }
        }
        Ok(sent)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// One connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
}

impl Peer {
    /// All remaining bytes to the peer. Fails if the connection does not end with an orderly close.
    pub(crate) async fn rest(&mut self) -> Result<Vec<u8>> {
        let mut rest = Vec::new();
        timeout(PATIENCE, self.stream.read_to_end(&mut rest))
            .await
            .expect("the connection ends")?;
        Ok(rest)
    }

    /// Sends the bytes, and meanwhile reads replies. They must have these xids, in this order,
    /// without an error.
    pub(crate) async fn replies(&mut self, bytes: &[u8], xids: RangeInclusive<i32>) -> Result<()> {
        let (mut reader, mut writer) = self.stream.split();
        let replies = async {
            for xid in xids {
                assert_eq!(reply(&mut reader).await?, (xid, 0));
            }
            Ok(())
        };
        let both = async { tokio::try_join!(writer.write_all(bytes), replies) };
        timeout(PATIENCE, both).await.expect("it is answered")?;
        Ok(())
    }
}

/// The xid and error of the next reply.
pub(crate) async fn reply(reader: &mut ReadHalf<'_>) -> Result<(i32, i32)> {
    let mut head = [0; REPLY_HEAD_BYTES];
    reader.read_exact(&mut head).await?;
    let integer = |at: usize| i32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let mut body = vec![0; integer(0) as usize + 4 - REPLY_HEAD_BYTES];
    reader.read_exact(&mut body).await?;
    Ok((integer(4), integer(16)))
}

/// A connection with a session.
pub(crate) struct Client {
    pub(crate) peer: Peer,
    pub(crate) session: SessionId,
}

/// The bytes of a request that sets [`ZNODE`] to a value of this many bytes.
pub(crate) fn set(xid: i32, bytes: usize) -> Vec<u8> {
    let data = Some(vec![7; bytes].into());
    encode(
        xid,
        &Request::SetData {
            path: ZNODE.into(),
            data,
            version: -1,
        },
        false,
    )
}

/// The bytes of a request that gets [`ZNODE`].
pub(crate) fn get(xid: i32) -> Vec<u8> {
    encode(
        xid,
        &Request::GetData {
            path: ZNODE.into(),
            watching: Watching::No,
        },
        false,
    )
}

/// A connect request for a new session, as kazoo sends it.
pub(crate) fn connect_request(timeout_ms: i32) -> Vec<u8> {
    frame(
        &[
            int(0),
            long(0),
            int(timeout_ms),
            long(0),
            buffer(Some(&[0; 16])),
            vec![0],
        ]
        .concat(),
    )
}

/// A function that a test can block.
#[derive(Debug)]
struct HeldUp {
    inner: Arc<dyn Handler>,
    by: Arc<Mutex<()>>,
}

#[async_trait]
impl Handler for HeldUp {
    async fn handle(&self, event: Event) -> std::result::Result<Bytes, Failure> {
        drop(self.by.lock().await);
        self.inner.handle(event).await
    }
}

/// Counts reads, and injects no fault.
#[derive(Debug, Default)]
struct Reads(AtomicUsize);

impl FaultSchedule for Reads {
    fn next(&self, operation: &'static str) -> Fault {
        self.0
            .fetch_add(usize::from(operation == "key_value.get"), Relaxed);
        Fault::None
    }
}
