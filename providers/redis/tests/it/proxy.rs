//! A proxy that breaks the connection between a script's execution and its reply.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// The fault that strikes the next script command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    /// None.
    None = 0,
    /// The command is executed; its reply is lost with the connection.
    LosesReply = 1,
    /// The command is lost with the connection.
    LosesCommand = 2,
}

/// A proxy before a server.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    next: Arc<AtomicU8>,
}

impl Proxy {
    /// A proxy before the server on `port`.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener
            .local_addr()
            .expect("a listener has an address")
            .port();
        let next = Arc::new(AtomicU8::new(Fault::None as u8));
        let armed = Arc::clone(&next);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                    tokio::spawn(forward(client, server, Arc::clone(&armed)));
                }
            }
        });
        Self { port: own, next }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the fault for the next script.
    pub(crate) fn set_fault(&self, fault: Fault) {
        self.next.store(fault as u8, Ordering::SeqCst);
    }

    /// Whether the fault has struck.
    pub(crate) fn has_struck(&self) -> bool {
        self.next.load(Ordering::SeqCst) == Fault::None as u8
    }
}

/// Forwards bytes in both directions until one side closes or the fault strikes.
async fn forward(mut client: TcpStream, mut server: TcpStream, armed: Arc<AtomicU8>) {
    let (mut up, mut down) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Some(read) = read.ok().filter(|read| *read > 0) else { return };
                let sent = &up[..read];
                let is_script = sent.windows(7).any(|window| window == b"EVALSHA");
                let fault = if is_script { armed.swap(Fault::None as u8, Ordering::SeqCst) } else { 0 };
                if fault == Fault::LosesCommand as u8 || server.write_all(sent).await.is_err() {
                    return;
                }
                if fault == Fault::LosesReply as u8 {
                    // The first reply shows that the server has executed the script.
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
