//! Changes of objects that start functions.

use async_trait::async_trait;
use functions::{Error, ObjectEvent, manifest::Change};
use memory::events::{Event, Kind, Subscribers};

/// The deployed functions as subscribers of the memory service.
#[derive(Debug)]
pub(crate) struct ToFunctions(pub(crate) functions::Service);

fn change(kind: Kind) -> Change {
    match kind {
        Kind::Put | Kind::Copy | Kind::CompletedUpload => Change::Created,
        Kind::Deleted => Change::Removed,
    }
}

#[async_trait]
impl Subscribers for ToFunctions {
    fn want(&self, bucket: &str, key: &str, kind: Kind) -> bool {
        self.0.follows_object(bucket, key, change(kind))
    }

    async fn deliver(&self, event: &Event) -> ports::Result<()> {
        let name = match event.kind {
            Kind::Put => "ObjectCreated:Put",
            Kind::Copy => "ObjectCreated:Copy",
            Kind::CompletedUpload => "ObjectCreated:CompleteMultipartUpload",
            Kind::Deleted => "ObjectRemoved:Delete",
        };
        let event = ObjectEvent {
            id: event.id,
            name,
            change: change(event.kind),
            bucket: &event.bucket,
            key: &event.key,
            time: event.time,
            bytes: event.bytes,
            etag: &event.etag,
        };
        match self.0.send_object_event(event).await {
            Err(Error::Port(error)) => Err(error),
            Err(error) => Err(ports::Error::unavailable(error.to_string())),
            Ok(()) => Ok(()),
        }
    }
}
