//! Connects, and restores the session after the server went away.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixStream, unix::OwnedReadHalf},
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use transactions::{Error, Result, serializable::model::Granted};

use super::{
    client::{Client, undo_all},
    held::Undo,
    held_locks::Ticket,
    link::Link,
};
use crate::{
    send_buffer,
    wire::{Answer, Call, Fault, Hello, Request, Welcome},
};

/// How long the server may take to introduce itself.
const WELCOME_MAX: Duration = Duration::from_secs(5);
/// The first pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest, well below the time in which locks can be reclaimed.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// How many requests of a restoration are under way at once.
const AT_ONCE: usize = 64;
/// How long the goodbye may take.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// A connection that the server accepted.
#[derive(Debug)]
pub(super) struct Connection {
    link: Arc<Link>,
    reader: OwnedReadHalf,
    welcome: Welcome,
}

/// The start of the server that the session's locks and holds are known to.
#[derive(Debug, Clone, Copy)]
struct Restored {
    server: u128,
    /// No server knows all of them: a restoration did not come to its end.
    is_incomplete: bool,
}

/// Connects once. Errors: `Unavailable`.
pub(super) async fn connect(client: &Client) -> Result<Connection> {
    let server = &client.config.server;
    let unavailable = |why: String| Error::Unavailable(why.into());
    let introduced = timeout(WELCOME_MAX, introduce(client)).await;
    let (stream, welcome) = introduced
        .map_err(|_| unavailable(format!("{server}: the server does not answer")))?
        .map_err(|error| {
            unavailable(format!(
                "{server}: cannot reach a server: {error}; is it running?"
            ))
        })?;
    let welcome = Welcome::decode(&welcome)
        .ok_or_else(|| unavailable(format!("{server}: that is no server of volumes")))??;
    let (reader, writer) = stream.into_split();
    Ok(Connection {
        link: Arc::new(Link::new(writer, client.possessions.clone())),
        reader,
        welcome,
    })
}

async fn introduce(client: &Client) -> std::io::Result<(UnixStream, [u8; Welcome::BYTES])> {
    let mut stream = client.config.server.dial().await?;
    send_buffer::enlarge(&stream);
    stream
        .write_all(&Hello::new(client.session).encode())
        .await?;
    let mut welcome = [0; Welcome::BYTES];
    stream.read_exact(&mut welcome).await?;
    Ok((stream, welcome))
}

/// Serves the client until `stopped` is closed, and ends the session then.
pub(super) async fn run(
    client: Arc<Client>,
    first: Option<Connection>,
    undos: mpsc::Receiver<Undo>,
    stopped: watch::Receiver<()>,
) {
    tokio::select! {
        biased;
        () = keep_connected(&client, first, stopped) => {}
        () = undo_all(&client, undos) => {}
        () = keep_a_timer(client.config.wait_max / 2) => {}
    }
}

/// Always has a timer that is due before those of calls. Otherwise the timer of a call could be the
/// first one, which costs a call of the system: the thread that waits for timers is woken.
async fn keep_a_timer(period: Duration) {
    loop {
        sleep(period).await;
    }
}

async fn keep_connected(
    client: &Client,
    mut next: Option<Connection>,
    mut stopped: watch::Receiver<()>,
) {
    let mut restored = None;
    loop {
        let Connection {
            link,
            reader,
            welcome,
        } = if let Some(connection) = next.take() {
            connection
        } else {
            tokio::select! {
                biased;
                _ = stopped.changed() => return,
                connection = reconnect(client) => connection,
            }
        };
        let restored = restored.get_or_insert(Restored {
            server: welcome.server,
            is_incomplete: false,
        });
        let run = link.run(reader);
        let serve = async {
            restore(client, &link, &welcome, restored).await;
            client.connects(Arc::clone(&link));
            let _ = stopped.changed().await;
            let goodbye = timeout(GOODBYE_MAX, link.request(&Request::Goodbye));
            let _ = goodbye.await;
        };
        let is_stopped = tokio::select! {
            biased;
            () = run => false,
            () = serve => true,
        };
        link.end();
        client.disconnects();
        if is_stopped {
            return;
        }
    }
}

async fn reconnect(client: &Client) -> Connection {
    let mut pause = PAUSE;
    loop {
        match connect(client).await {
            Ok(connection) => return connection,
            Err(error) => client.failed(error),
        }
        sleep(pause).await;
        pause = PAUSE_MAX.min(pause * 2);
    }
}

/// Opens the volumes again. A server that does not know the session also learns of its holds and
/// locks. Waits on if the connection ends: its reader then gives up for both.
async fn restore(client: &Client, link: &Link, welcome: &Welcome, restored: &mut Restored) {
    let volumes = client.held().volumes.clone();
    for (number, name) in volumes {
        // A volume that is gone fails its calls.
        settled(link, &Request::Open(number, name)).await;
    }
    let is_other = welcome.server != restored.server;
    if is_other && !restored.is_incomplete {
        client.connected.send_modify(|state| state.restarts += 1);
    }
    if !welcome.is_resumed || is_other {
        restored.is_incomplete = true;
    }
    if !restored.is_incomplete {
        return;
    }
    let holds = client.held().holds.clone();
    let holds = holds.into_iter().map(|(volume, session, key)| async move {
        let request = Request::On(volume, Call::Hold(session, key));
        settled(link, &request).await;
    });
    stream::iter(holds)
        .buffer_unordered(AT_ONCE)
        .for_each(|()| async {})
        .await;
    let locks = client.held().locks.all();
    let locks = locks.into_iter().map(|ticket| async move {
        let is_kept = is_other && welcome.may_reclaim && reclaims(link, &ticket).await;
        (!is_kept).then_some(ticket)
    });
    let lost: Vec<Option<Ticket>> = stream::iter(locks)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for ticket in lost.into_iter().flatten() {
        lose(client, &ticket);
    }
    *restored = Restored {
        server: welcome.server,
        is_incomplete: false,
    };
}

/// Whether the lock is in force again.
async fn reclaims(link: &Link, ticket: &Ticket) -> bool {
    let call = Call::Reclaim(ticket.owner, ticket.lock.clone());
    let answer = settled(link, &Request::On(ticket.volume, call)).await;
    answer == Answer::Granted(Granted::Yes)
}

/// Another client may have had the lock meanwhile.
fn lose(client: &Client, ticket: &Ticket) {
    client
        .held()
        .locks
        .take(&ticket.unlocking(ticket.lock.bytes));
    client.connected.send_modify(|state| state.locks_lost += 1);
    tracing::warn!(
        key = ?ticket.lock.key,
        pid = ticket.lock.pid,
        "a lock was lost while the server was away: another client may have had it"
    );
}

/// The answer, once the server can serve.
async fn settled(link: &Link, request: &Request) -> Answer {
    let mut pause = PAUSE;
    loop {
        match link.request(request).await {
            Ok(Answer::Failed(Fault::Unavailable(_))) => {
                sleep(pause).await;
                pause = PAUSE_MAX.min(pause * 2);
            }
            Ok(answer) => return answer,
            Err(_) => std::future::pending().await,
        }
    }
}
