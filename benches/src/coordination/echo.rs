//! A server that answers every request at once, with a reply of the right length: the most that
//! this generator, these sockets and this framing allow.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::wire;

const READ_BYTES: usize = 256 * 1024;
/// Length of a reply with a Stat and nothing else, after its length field.
const STAT_REPLY_BYTES: usize = 16 + 68;

/// Serves at `address` until the process ends, on one thread.
pub async fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            // A client that is gone needs no answer.
            let _ = converse(stream).await;
        });
    }
}

async fn converse(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let (mut received, mut filled) = (vec![0; READ_BYTES], 0);
    let (mut replies, mut answered) = (Vec::new(), 0_i32);
    loop {
        let bytes = stream.read(&mut received[filled..]).await?;
        if bytes == 0 {
            return Ok(());
        }
        filled += bytes;
        let mut used = 0;
        while let Some(length) = wire::frame_bytes(&received[used..filled])? {
            match answered {
                0 => replies.extend_from_slice(&wire::connected(1)),
                xid => reply(&mut replies, xid),
            }
            answered += 1;
            used += 4 + length;
        }
        received.copy_within(used..filled, 0);
        filled -= used;
        stream.write_all(&replies).await?;
        replies.clear();
    }
}

fn reply(replies: &mut Vec<u8>, xid: i32) {
    let start = replies.len();
    replies.resize(start + 4 + STAT_REPLY_BYTES, 0);
    replies[start..start + 4].copy_from_slice(&(STAT_REPLY_BYTES as i32).to_be_bytes());
    replies[start + 4..start + 8].copy_from_slice(&xid.to_be_bytes());
}
