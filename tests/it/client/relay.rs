//! A relay between the Rust client and the real program that loses the response to a chosen
//! request. A network, or the death of a server, may do so at any moment; the relay does it at a
//! certain one.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::timeout,
};

use super::WAIT_MAX;

const BUFFER_BYTES: usize = 64 * 1024;

/// The fate of the response to a request that a server has served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The connection is reset, and the next request passes again.
    Once,
    /// The connection is reset, and so are all later ones.
    Always,
    /// It never arrives.
    Silence,
}

/// A relay in this process.
#[derive(Debug, Clone)]
pub(super) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// None: connections are reset once a request has arrived.
    upstream: Mutex<Option<SocketAddr>>,
    /// The requests that fail contain this.
    fault: Mutex<Option<(&'static str, Loss)>>,
    /// The heads of all requests so far.
    heads: Mutex<Vec<String>>,
    lost: Notify,
    healed: Notify,
}

impl Relay {
    pub(super) async fn to(upstream: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            fault: Mutex::default(),
            heads: Mutex::default(),
            lost: Notify::new(),
            healed: Notify::new(),
        });
        let relay = Self {
            address,
            shared: Arc::clone(&shared),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relayed(client, Arc::clone(&shared)));
            }
        });
        relay
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on requests that contain `pattern` reach the server, and their responses are lost.
    pub(super) fn lose(&self, pattern: &'static str, loss: Loss) {
        *self.shared.fault.lock().expect("sound") = Some((pattern, loss));
    }

    /// Loses no more responses.
    pub(super) fn heal(&self) {
        *self.shared.fault.lock().expect("sound") = None;
    }

    /// Waits until a response has been lost. Its connection is reset when [`Relay::connect`] is
    /// called.
    pub(super) async fn has_lost_one(&self) {
        let lost = self.shared.lost.notified();
        timeout(WAIT_MAX, lost)
            .await
            .expect("the request that is to be lost was never sent");
    }

    /// Continues with the server at `upstream`.
    pub(super) fn connect(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().expect("sound") = Some(upstream);
        self.shared.healed.notify_one();
    }

    /// The requests so far whose head contains `pattern`.
    pub(super) fn requests(&self, pattern: &str) -> Vec<String> {
        let heads = self.shared.heads.lock().expect("sound");
        heads
            .iter()
            .filter(|head| head.contains(pattern))
            .cloned()
            .collect()
    }
}

/// One connection, until either side ends it or a response is lost.
async fn relayed(mut client: TcpStream, shared: Arc<Shared>) {
    let mut asked = vec![0; BUFFER_BYTES];
    let mut answered = vec![0; BUFFER_BYTES];
    let mut losing = None;
    let mut server: Option<TcpStream> = None;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(1..) = read else { return };
                let bytes = &asked[..read.unwrap_or_default()];
                let head = String::from_utf8_lossy(bytes).into_owned();
                losing = losing.or_else(|| shared.loss_of(&head));
                shared.heads.lock().expect("sound").push(head);
                if server.is_none() {
                    let Some(upstream) = *shared.upstream.lock().expect("sound") else { return reset(&client) };
                    server = TcpStream::connect(upstream).await.ok();
                }
                let Some(server) = &mut server else { return reset(&client) };
                if server.write_all(bytes).await.is_err() {
                    return reset(&client);
                }
            }
            read = async { server.as_mut().expect("connected").read(&mut answered).await }, if server.is_some() => {
                let Ok(1..) = read else { return reset(&client) };
                match losing {
                    Some(Loss::Silence) => {
                        shared.lost.notify_one();
                        return std::future::pending().await;
                    }
                    Some(Loss::Once) => {
                        shared.lost.notify_one();
                        shared.healed.notified().await;
                        return reset(&client);
                    }
                    Some(Loss::Always) => return reset(&client),
                    None => {}
                }
                if client.write_all(&answered[..read.unwrap_or_default()]).await.is_err() {
                    return;
                }
            }
        }
    }
}

impl Shared {
    fn loss_of(&self, request: &str) -> Option<Loss> {
        let mut fault = self.fault.lock().expect("sound");
        let (pattern, loss) = (*fault)?;
        request.contains(pattern).then(|| {
            if loss != Loss::Always {
                *fault = None;
            }
            loss
        })
    }
}

/// The connection ends with a reset when it is dropped, instead of in order.
fn reset(client: &TcpStream) {
    let _ = client.set_zero_linger();
}
