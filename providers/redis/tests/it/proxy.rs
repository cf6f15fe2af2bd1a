//! A network that breaks at the worst moment: between a server and the answer to what it did.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What happens to the next command that runs a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Next {
    /// It passes.
    Passes = 0,
    /// It reaches the server and is executed; its answer is lost with the connection.
    LosesAnswer = 1,
    /// It is lost with the connection.
    IsLost = 2,
}

/// A way to a server.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    next: Arc<AtomicU8>,
}

impl Proxy {
    /// A way to the server on `port`.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener
            .local_addr()
            .expect("a listener has an address")
            .port();
        let next = Arc::new(AtomicU8::new(Next::Passes as u8));
        let armed = Arc::clone(&next);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                    tokio::spawn(carry(client, server, Arc::clone(&armed)));
                }
            }
        });
        Self { port: own, next }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Decides about the next script.
    pub(crate) fn next(&self, next: Next) {
        self.next.store(next as u8, Ordering::SeqCst);
    }

    /// Whether what was decided has happened.
    pub(crate) fn has_happened(&self) -> bool {
        self.next.load(Ordering::SeqCst) == Next::Passes as u8
    }
}

/// Carries bytes both ways until one side closes, or until what is armed happens.
async fn carry(mut client: TcpStream, mut server: TcpStream, armed: Arc<AtomicU8>) {
    let (mut up, mut down) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Some(read) = read.ok().filter(|read| *read > 0) else { return };
                let sent = &up[..read];
                let is_script = sent.windows(7).any(|window| window == b"EVALSHA");
                let fate = if is_script { armed.swap(Next::Passes as u8, Ordering::SeqCst) } else { 0 };
                if fate == Next::IsLost as u8 || server.write_all(sent).await.is_err() {
                    return;
                }
                if fate == Next::LosesAnswer as u8 {
                    // The server has done it once it answers.
                    drop(server.read(&mut down).await);
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Some(read) = read.ok().filter(|read| *read > 0) else { return };
                if client.write_all(&down[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}
