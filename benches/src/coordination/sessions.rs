//! Many open sessions: the time to notify a watcher in each of them, and their memory.
//!
//! They come from many loopback addresses, so that neither a server's bound of connections per
//! address nor the ports of one address matter.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::wire;

const PER_ADDRESS: usize = 200;
const OPENED_TOGETHER: usize = 64;
const SESSION_TIMEOUT_MS: i32 = 40_000;
const WAIT: Duration = Duration::from_secs(30);
/// The xid of an event.
const EVENT_XID: i32 = -1;

/// Open sessions of one server.
#[derive(Debug)]
pub struct Sessions(Vec<TcpStream>);

impl Sessions {
    /// Opens `count` sessions, some at a time.
    pub async fn open(server: SocketAddr, count: usize) -> Result<Self> {
        let (mut sessions, mut opening) = (Vec::with_capacity(count), JoinSet::new());
        for index in 0..count {
            if opening.len() == OPENED_TOGETHER
                && let Some(opened) = opening.join_next().await
            {
                sessions.push(opened??);
            }
            opening.spawn(open(server, index));
        }
        while let Some(opened) = opening.join_next().await {
            sessions.push(opened??);
        }
        Ok(Self(sessions))
    }

    /// Arms a data watch on `path` in every session, sets the node, and returns the time from
    /// the set until the last session has its event.
    pub async fn notify_all(&mut self, path: &str) -> Result<Duration> {
        let mut watch = wire::get_data(path);
        let last = watch.len() - 1;
        watch[last] = 1;
        for chunk in self.0.chunks_mut(OPENED_TOGETHER) {
            for session in &mut *chunk {
                session.write_all(&watch).await?;
            }
            for session in chunk {
                while receive(session).await? == EVENT_XID {}
            }
        }
        let begun = Instant::now();
        let setter = self.0.first_mut().context("no session")?;
        setter.write_all(&wire::set_data(path, b"changed")).await?;
        for session in &mut self.0 {
            let xid = receive(session).await?;
            ensure!(xid == EVENT_XID, "expected an event, got the reply {xid}");
        }
        let elapsed = begun.elapsed();
        // The reply of the set comes after its event.
        receive(&mut self.0[0]).await?;
        Ok(elapsed)
    }

    /// Keeps every session alive.
    pub async fn ping(&mut self) -> Result<()> {
        for session in &mut self.0 {
            session.write_all(&wire::ping()).await?;
        }
        for session in &mut self.0 {
            receive(session).await?;
        }
        Ok(())
    }
}

async fn open(server: SocketAddr, index: usize) -> Result<TcpStream> {
    let address = index / PER_ADDRESS;
    let from = Ipv4Addr::new(127, 1, (address / 250) as u8, (address % 250 + 1) as u8);
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let mut stream = socket.connect(server).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&wire::connect(SESSION_TIMEOUT_MS)).await?;
    let mut answer = [0; 41];
    let answered = timeout(WAIT, stream.read_exact(&mut answer)).await;
    answered.context("no session was given")??;
    Ok(stream)
}

/// Reads one packet, and returns its xid.
async fn receive(stream: &mut TcpStream) -> Result<i32> {
    let read = async {
        let length = stream.read_i32().await?;
        let mut packet = vec![0; usize::try_from(length)?];
        stream.read_exact(&mut packet).await?;
        let xid = packet.first_chunk::<4>().context("a short packet")?;
        Ok(i32::from_be_bytes(*xid))
    };
    timeout(WAIT, read).await.context("a packet is 30 s late")?
}
