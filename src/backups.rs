//! Backups of the store that a server or a command has open.

use std::{
    io::{self, BufWriter, Write},
    sync::Arc,
};

use anyhow::Context as _;
use bytes::Bytes;
use embedded::{ObjectDirectory, backup::Beside};
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use http_frontend::Backups;
use tokio::sync::mpsc::{self, Sender};

use crate::{
    memory_service::{BUFFER_DIRECTORY, CREDENTIALS_FILE},
    provider::{NamedObjects, Provider},
    settings::{ObjectSettings, Settings},
};

/// The bytes that are sent as one piece.
const PIECE_BYTES: usize = 256 << 10;
/// The pieces that wait for the client.
const PIECES: usize = 4;

/// What the store of these settings has beside itself. `buffer` is the buffer of objects, if it is
/// open.
pub(crate) async fn beside(
    settings: &Settings,
    named: Option<&NamedObjects>,
    buffer: Option<ObjectDirectory>,
) -> anyhow::Result<Beside> {
    let mut beside = Beside {
        files: vec![CREDENTIALS_FILE.to_owned()],
        ..Beside::default()
    };
    match (named, &settings.objects) {
        (Some(NamedObjects::Directory(directory)), _) => beside.named = Some(directory.clone()),
        (Some(NamedObjects::Distant(objects)), Some(ObjectSettings::S3(config))) => {
            beside.distant = Some((config.to_string(), Arc::clone(objects)));
        }
        _ => {}
    }
    let place = settings.data_dir.join(BUFFER_DIRECTORY);
    let buffer = match buffer {
        // An earlier server may have left objects there.
        None if place.is_dir() => {
            let named = place.display().to_string();
            Some(embedded::open_objects(place).await.context(named)?)
        }
        buffer => buffer,
    };
    let buffer = buffer.map(|buffer| (BUFFER_DIRECTORY.to_owned(), buffer));
    beside.directories.extend(buffer);
    Ok(beside)
}

/// Backups of a running server's store.
#[derive(Debug)]
pub(crate) struct ServedBackups {
    pub(crate) provider: Arc<Provider>,
    pub(crate) beside: Arc<Beside>,
}

impl Backups for ServedBackups {
    fn begin(&self) -> Result<BoxStream<'static, io::Result<Bytes>>, String> {
        if self.provider.is_shared() {
            return Err(
                "this server keeps its data in a shared store: back that up by its own means"
                    .to_owned(),
            );
        }
        let (sender, receiver) = mpsc::channel(PIECES);
        let (provider, beside) = (Arc::clone(&self.provider), Arc::clone(&self.beside));
        tokio::task::spawn_blocking(move || {
            let mut out = BufWriter::with_capacity(PIECE_BYTES, Pieces(sender));
            match provider.back_up(&beside, &mut out) {
                Ok(contents) => tracing::info!(
                    records = contents.records,
                    objects = contents.objects,
                    bytes = contents.bytes,
                    "a backup was taken"
                ),
                Err(error) => tracing::warn!("a backup failed: {error:#}"),
            }
        });
        let pieces = stream::unfold(receiver, async |mut receiver| {
            let piece = receiver.recv().await?;
            Some((Ok(piece), receiver))
        });
        Ok(pieces.boxed())
    }
}

/// Sends what is written. A client that takes nothing blocks it, until the listener gives that
/// client up.
struct Pieces(Sender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
