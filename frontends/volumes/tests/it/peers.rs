//! Peers that break off, speak something else, or mean harm.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use in_process::SystemEntropy;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    time::{Instant, sleep},
};
use transactions::{
    Error,
    serializable::{
        Volumes as _,
        model::{Granted, LockMode, Wait},
        volumes::VolumeName,
    },
};
use volumes_frontend::{
    RemoteVolumes, bind,
    frames::{self, ANSWER_BYTES_MAX, Frames, REQUEST_BYTES_MAX},
    remote,
    wire::{
        Answer, Call, Fault, Hello, Refusal, Request, SessionKey, VERSION, VolumeNumber, Welcome,
        decode_answer, decode_request,
    },
};

use crate::world::{
    GRACE, World, demo, key, lock, open, owner, settings, soon, takes, until, value,
};

const VOLUME: VolumeNumber = VolumeNumber(3);

/// A client without any of the rules of ours.
struct Peer {
    stream: UnixStream,
    frames: Frames,
    welcome: Welcome,
    number: u64,
}

impl Peer {
    async fn connect(path: &Path, session: u128) -> Result<Self, Refusal> {
        let mut stream = UnixStream::connect(path).await.expect("it listens");
        let hello = Hello::new(SessionKey(session));
        let welcome = introduce(&mut stream, hello).await.expect("an answer")?;
        let mut peer = Self {
            stream,
            frames: Frames::new(ANSWER_BYTES_MAX),
            welcome,
            number: 0,
        };
        let opened = peer.ask(&Request::Open(VOLUME, demo())).await;
        assert!(matches!(opened, Some(Answer::Opened(_))), "{opened:?}");
        Ok(peer)
    }

    fn frame(&mut self, request: &Request) -> Vec<u8> {
        let mut out = BytesMut::new();
        self.number += 1;
        assert!(frames::put(
            &mut out,
            self.number,
            request,
            REQUEST_BYTES_MAX
        ));
        out.to_vec()
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("sent");
    }

    /// The next answer; `None`: the server closed the connection.
    async fn answer(&mut self) -> Option<(u64, Answer)> {
        loop {
            if let Some(frame) = self.frames.next_frame().expect("frames") {
                return Some((frame.number, decode_answer(&frame.body).expect("an answer")));
            }
            let read = soon(self.stream.read_buf(self.frames.buffer())).await;
            if read.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    async fn ask(&mut self, request: &Request) -> Option<Answer> {
        let frame = self.frame(request);
        self.send(&frame).await;
        let (number, answer) = self.answer().await?;
        assert_eq!(number, self.number);
        Some(answer)
    }

    async fn lock(&mut self, mode: LockMode) -> Answer {
        let call = Call::Lock(owner(1), lock("a", mode, Wait::Never));
        self.ask(&Request::On(VOLUME, call))
            .await
            .expect("an answer")
    }
}

/// The answer to a hello; `None`: the peer closed the connection.
async fn introduce(stream: &mut UnixStream, hello: Hello) -> Option<Result<Welcome, Refusal>> {
    stream.write_all(&hello.encode()).await.expect("sent");
    let mut welcome = [0; Welcome::BYTES];
    soon(stream.read_exact(&mut welcome)).await.ok()?;
    Welcome::decode(&welcome)
}

#[tokio::test]
async fn a_session_that_comes_back_in_time_keeps_its_locks() {
    let world = World::new().await;
    let client = world.client().await;
    let volume = open(&client).await;
    let exclusive = || lock("a", LockMode::Exclusive, Wait::Never);
    let mut peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    assert!(!peer.welcome.is_resumed && !peer.welcome.may_reclaim);
    assert_eq!(
        peer.lock(LockMode::Exclusive).await,
        Answer::Granted(Granted::Yes)
    );
    drop(peer);
    let mut peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    assert!(peer.welcome.is_resumed);
    sleep(GRACE * 2).await;
    assert!(
        !takes(&*volume, 1, exclusive()).await,
        "the session is here"
    );
    assert_eq!(
        peer.lock(LockMode::Unlocked).await,
        Answer::Granted(Granted::Yes)
    );
    assert_eq!(
        peer.lock(LockMode::Exclusive).await,
        Answer::Granted(Granted::Yes)
    );
    drop(peer);
    let left = Instant::now();
    until(async || takes(&*volume, 1, exclusive()).await).await;
    assert!(left.elapsed() >= GRACE / 2, "{:?}", left.elapsed());
    let peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    assert!(!peer.welcome.is_resumed);
}

#[tokio::test]
async fn the_wait_of_a_lock_ends_with_its_connection() {
    let world = World::new().await;
    let client = world.client().await;
    let volume = open(&client).await;
    let exclusive = || lock("a", LockMode::Exclusive, Wait::Never);
    assert!(takes(&*volume, 1, exclusive()).await);
    let mut peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    let call = Call::Lock(owner(1), lock("a", LockMode::Exclusive, Wait::UntilGranted));
    let frame = peer.frame(&Request::On(VOLUME, call));
    peer.send(&frame).await;
    // An answer to a later request: the lock waits.
    assert_eq!(
        peer.ask(&Request::On(VOLUME, Call::IsHeld(key("a")))).await,
        Some(Answer::IsHeld(false))
    );
    drop(peer);
    sleep(GRACE / 8).await;
    assert!(takes(&*volume, 1, lock("a", LockMode::Unlocked, Wait::Never)).await);
    assert!(takes(&*volume, 2, exclusive()).await, "the wait went on");
}

#[tokio::test]
async fn locks_are_reclaimed_after_a_restart_alone() {
    let world = World::new().await;
    let mut peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    let reclaim = Call::Reclaim(owner(1), lock("a", LockMode::Exclusive, Wait::Never));
    let answer = peer.ask(&Request::On(VOLUME, reclaim)).await;
    let why = "the time to reclaim locks is over".to_owned();
    assert_eq!(answer, Some(Answer::Failed(Fault::Invalid(why))));
}

#[tokio::test]
async fn other_protocols_and_versions_are_refused() {
    let world = World::new().await;
    let mut stream = UnixStream::connect(world.path()).await.expect("it listens");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .expect("sent");
    let mut rest = Vec::new();
    let read = soon(stream.read_to_end(&mut rest)).await;
    assert!(
        read.map_or(true, |read| read == 0),
        "it is closed without a word"
    );
    let mut stream = UnixStream::connect(world.path()).await.expect("it listens");
    let hello = Hello {
        version: VERSION + 1,
        session: SessionKey(7),
    };
    let refused = introduce(&mut stream, hello).await;
    assert_eq!(refused, Some(Err(Refusal::Version(VERSION))));
}

#[tokio::test]
async fn connections_have_a_limit_and_the_reason_is_told() {
    let world = World::new().await;
    let path = world.path().with_extension("few");
    let config = volumes_frontend::server::Config {
        connections_max: 1,
        path: path.clone(),
        ..world.config()
    };
    let server = bind(
        config,
        Arc::clone(&world.volumes),
        &SystemEntropy::default(),
    );
    let running = tokio::spawn(server.expect("it listens").run(std::future::pending()));
    let first = Peer::connect(&path, 7).await.expect("welcome");
    let entropy = SystemEntropy::default();
    let second = RemoteVolumes::connect(remote::Config::new(&path), &entropy);
    let Err(Error::Unavailable(why)) = second.await else {
        panic!("there is no place");
    };
    assert!(why.contains("as many connections"), "{why}");
    drop(first);
    until(async || Peer::connect(&path, 8).await.is_ok()).await;
    running.abort();
}

#[tokio::test]
async fn hostile_bytes_do_no_harm() {
    let world = World::new().await;
    let client = world.client().await;
    let volume = open(&client).await;
    let mut peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    // A body that does not decode is refused, and the connection goes on.
    for body in [&[][..], &[9, 9, 9], &[1, 255, 255, 255], &[1, 0, 3, 1, 1]] {
        let mut frame = (8 + body.len() as u32).to_be_bytes().to_vec();
        frame.extend(5_u64.to_be_bytes());
        frame.extend(body);
        peer.send(&frame).await;
        let answer = peer.answer().await.expect("an answer");
        assert!(
            matches!(answer, (5, Answer::Failed(Fault::Invalid(_)))),
            "{answer:?}"
        );
    }
    let unknown = Request::On(VolumeNumber(99), Call::Snapshot);
    assert_eq!(
        peer.ask(&unknown).await,
        Some(Answer::Failed(Fault::NoSuchVolume))
    );
    let cancel = peer.frame(&Request::Cancel(1 << 40));
    peer.send(&cancel).await;
    // A length that no request has ends it, before a byte of the body came.
    peer.send(&u32::MAX.to_be_bytes()).await;
    assert_eq!(peer.answer().await, None);
    // So does one without a number.
    let mut peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    peer.send(&[0, 0, 0, 3, 1, 2, 3]).await;
    assert_eq!(peer.answer().await, None);
    // A frame that is cut off changes nothing.
    let mut peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    let proposal = crate::world::put(1, "a", b"1").into();
    let frame = peer.frame(&Request::On(VOLUME, Call::Commit(proposal)));
    peer.send(&frame[..frame.len() - 1]).await;
    drop(peer);
    assert_eq!(value(&*volume, "a").await, None);
}

#[tokio::test]
async fn a_thousand_answers_wait_for_a_peer_that_does_not_read() {
    let world = World::new().await;
    let mut peer = Peer::connect(&world.path(), 7).await.expect("welcome");
    let proposal = crate::world::put(1, "a", &vec![7; 60_000]).into();
    peer.ask(&Request::On(VOLUME, Call::Commit(proposal)))
        .await
        .expect("committed");
    let keys = volumes_frontend::wire::List(vec![key("a"); 10]);
    let read = Request::On(
        VOLUME,
        Call::GetMany(transactions::serializable::model::At::Tail, keys),
    );
    let frames: Vec<u8> = (0..1_000).flat_map(|_| peer.frame(&read)).collect();
    // 600 MB of answers: the server stops to read before it has them all in memory.
    peer.send(&frames).await;
    for _ in 0..1_000 {
        let (_, answer) = peer.answer().await.expect("an answer");
        assert!(matches!(answer, Answer::Values(values, _) if values.found.len() == 10));
    }
}

#[tokio::test]
async fn a_socket_has_one_server_and_files_are_not_replaced() {
    let world = World::new().await;
    let bind = |path: &Path| {
        let config = volumes_frontend::server::Config::new(path);
        bind(
            config,
            Arc::clone(&world.volumes),
            &SystemEntropy::default(),
        )
    };
    let taken = bind(&world.path()).expect_err("another server listens there");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    let file = world.path().with_extension("file");
    std::fs::write(&file, "precious").expect("a file");
    let refused = bind(&file).expect_err("a file is there");
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&file).expect("a file"), b"precious");
    let long = file.with_file_name("n".repeat(200));
    let refused = bind(&long).expect_err("the name is too long");
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}

/// A server that answers hellos, and breaks off in the middle of the answer to every first request
/// of a connection. Counts the requests by kind: creations, reads.
async fn breaks_off(listener: UnixListener, counts: Arc<[AtomicU32; 2]>) {
    loop {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut hello = [0; Hello::BYTES];
        stream.read_exact(&mut hello).await.expect("a hello");
        let welcome = Welcome {
            server: 1,
            is_resumed: true,
            may_reclaim: false,
        };
        stream
            .write_all(&Welcome::encode(Ok(welcome)))
            .await
            .expect("sent");
        let mut frames = Frames::new(REQUEST_BYTES_MAX);
        let frame = loop {
            if let Some(frame) = frames.next_frame().expect("frames") {
                break frame;
            }
            if stream.read_buf(frames.buffer()).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let kind = match decode_request(&frame.body).expect("a request") {
            Request::Create(..) => 0,
            _ => 1,
        };
        let seen = counts[kind].fetch_add(1, Ordering::SeqCst);
        let mut out = BytesMut::new();
        let answer = Answer::Listed(volumes_frontend::wire::List(Vec::new()));
        assert!(frames::put(
            &mut out,
            frame.number,
            &answer,
            ANSWER_BYTES_MAX
        ));
        let is_whole = kind == 1 && seen == 3;
        let out: Bytes = out.freeze();
        let end = if is_whole { out.len() } else { out.len() - 1 };
        stream.write_all(&out[..end]).await.expect("sent");
        if is_whole {
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn only_requests_that_may_be_repeated_are() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).expect("it listens");
    let counts = Arc::<[AtomicU32; 2]>::default();
    let server = tokio::spawn(breaks_off(listener, Arc::clone(&counts)));
    let entropy = SystemEntropy::default();
    let client = RemoteVolumes::connect(remote::Config::new(&path), &entropy);
    let client = client.await.expect("a server");
    let created = soon(client.create(VolumeName::new("v").expect("a name"), settings())).await;
    let Err(Error::Unavailable(why)) = created else {
        panic!("{created:?}");
    };
    assert!(why.contains("look whether the call took effect"), "{why}");
    assert_eq!(soon(client.list()).await, Ok(Vec::new()));
    let counted = [0, 1].map(|kind| counts[kind].load(Ordering::SeqCst));
    assert_eq!(counted, [1, 4]);
    server.abort();
}
