//! A Redis that is far away: a proxy that delays every response by a round trip, and the response
//! to a write for longer.
//!
//! The delay is latency and not occupation: responses in flight at the same time overlap, and keep
//! their order. The proxy matches responses to commands by counting: Redis answers each command of
//! a connection once, in order.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// How many bytes are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The simulated distance.
#[derive(Debug, Clone, Copy)]
pub struct Distance {
    /// The latency of any response.
    pub round_trip: Duration,
    /// The total latency of the response to a write.
    pub write: Duration,
}

/// The number of commands that have passed.
#[derive(Debug, Default)]
pub struct Passed {
    writes: AtomicU64,
    others: AtomicU64,
}

impl Passed {
    /// The number of writes, and of other commands.
    pub fn counts(&self) -> (u64, u64) {
        (
            self.writes.load(Ordering::Relaxed),
            self.others.load(Ordering::Relaxed),
        )
    }
}

/// A proxy before `server`, for as long as the runtime lasts. Returns its listening address and its
/// command counters.
///
/// Errors: it cannot listen.
pub async fn distant(
    server: SocketAddr,
    distance: Distance,
) -> io::Result<(SocketAddr, Arc<Passed>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let passed = Arc::<Passed>::default();
    let counted = Arc::clone(&passed);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            // The task ends when either end closes.
            tokio::spawn(async move { carry(near, server, distance, &counted).await });
        }
    });
    Ok((address, passed))
}

async fn carry(
    near: TcpStream,
    server: SocketAddr,
    distance: Distance,
    passed: &Passed,
) -> io::Result<()> {
    let far = TcpStream::connect(server).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (mut near_reads, mut near_writes) = near.into_split();
    let (far_reads, mut far_writes) = far.into_split();
    let (asked, mut answers_due) = mpsc::unbounded_channel();
    let there = async {
        let mut commands = Messages::new(&mut near_reads);
        while let Some(command) = commands.next().await? {
            let is_write = is_write(&command);
            let counter = if is_write {
                &passed.writes
            } else {
                &passed.others
            };
            counter.fetch_add(1, Ordering::Relaxed);
            let due = Instant::now()
                + if is_write {
                    distance.write
                } else {
                    distance.round_trip
                };
            let _ = asked.send(due);
            far_writes.write_all(&command).await?;
        }
        Ok::<(), io::Error>(())
    };
    let (deliver, mut delivered) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let back = async {
        let mut answers = Messages::new(far_reads);
        let mut latest = Instant::now();
        while let Some(answer) = answers.next().await? {
            // Pushed messages answer no command.
            let due = answers_due.recv().await.unwrap_or_else(Instant::now);
            latest = latest.max(due);
            let _ = deliver.send((latest, answer));
        }
        Ok::<(), io::Error>(())
    };
    let out = async {
        while let Some((due, answer)) = delivered.recv().await {
            sleep_until(due).await;
            near_writes.write_all(&answer).await?;
        }
        Ok::<(), io::Error>(())
    };
    tokio::select! {
        ended = there => ended,
        ended = back => ended,
        ended = out => ended,
    }
}

/// Whether a command may change something. Scripts may, as the provider uses them.
fn is_write(command: &[u8]) -> bool {
    let is_named = |name: &[u8]| {
        let mut parts = command.split(|byte| *byte == b'\n');
        parts
            .nth(2)
            .is_some_and(|part| part.trim_ascii_end().eq_ignore_ascii_case(name))
    };
    [
        &b"EVALSHA"[..],
        b"EVAL",
        b"SET",
        b"DEL",
        b"HSET",
        b"XADD",
        b"EXEC",
    ]
    .into_iter()
    .any(is_named)
}

/// RESP messages, one after the other, unparsed.
struct Messages<R> {
    from: R,
    held: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Messages<R> {
    fn new(from: R) -> Self {
        Self {
            from,
            held: Vec::new(),
        }
    }

    /// The next message; none at the end of the stream.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(length) = length(&self.held) {
                let rest = self.held.split_off(length);
                return Ok(Some(std::mem::replace(&mut self.held, rest)));
            }
            let mut piece = vec![0; PIECE_BYTES];
            let read = self.from.read(&mut piece).await?;
            if read == 0 {
                return Ok(None);
            }
            self.held.extend_from_slice(&piece[..read]);
        }
    }
}

/// The length of the first message; none if it is incomplete.
fn length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || {
        std::str::from_utf8(&bytes[1..end - 2])
            .ok()?
            .parse::<i64>()
            .ok()
    };
    match bytes[0] {
        b'$' | b'=' | b'!' => {
            let whole = end + usize::try_from(number()?).map_or(0, |length| length + 2);
            (bytes.len() >= whole).then_some(whole)
        }
        kind @ (b'*' | b'~' | b'>' | b'%' | b'|') => {
            let of_pairs = if matches!(kind, b'%' | b'|') { 2 } else { 1 };
            let count = usize::try_from(number()?).unwrap_or(0) * of_pairs;
            (0..count).try_fold(end, |from, _| Some(from + length(&bytes[from..])?))
        }
        _ => Some(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_wherever_they_break_off() {
        let messages: [&[u8]; 6] = [
            b"+OK\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"$5\r\nab\r\nc\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"%1\r\n+a\r\n:1\r\n",
        ];
        for message in messages {
            assert_eq!(
                length(&[message, b"+more\r\n"].concat()),
                Some(message.len())
            );
            for end in 0..message.len() {
                assert_eq!(length(&message[..end]), None, "{:?}", &message[..end]);
            }
        }
    }

    #[test]
    fn scripts_are_writes_and_looks_are_none() {
        assert!(is_write(b"*2\r\n$7\r\nEVALSHA\r\n$1\r\na\r\n"));
        assert!(!is_write(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"));
    }
}
