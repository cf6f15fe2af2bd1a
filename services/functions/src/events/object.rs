//! Changes of objects as events of functions, in the format of S3's notifications.

use std::fmt::Write as _;

use bytes::Bytes;
use ports::Timestamp;
use serde_json::json;

use super::{
    context::Context,
    format::{encode, in_milliseconds},
};
use crate::{
    error::Result,
    ids::{registered_name, uuid},
    manifest::Change,
};

/// A change of an object.
#[derive(Debug, Clone, Copy)]
pub struct ObjectEvent<'a> {
    /// Differs from that of any other change, and grows.
    pub id: u128,
    /// Its name in S3's terms, such as `ObjectCreated:Put`.
    pub name: &'a str,
    /// Its kind.
    pub change: Change,
    /// The bucket.
    pub bucket: &'a str,
    /// The key.
    pub key: &'a str,
    /// When.
    pub time: Timestamp,
    /// The size of the new object in bytes.
    pub bytes: u64,
    /// Its ETag.
    pub etag: &'a str,
}

impl ObjectEvent<'_> {
    fn payload(&self, function: &str) -> Bytes {
        let mut object = json!({
            "key": url_encoded(self.key),
            "sequencer": format!("{:032X}", self.id),
        });
        if self.change == Change::Created {
            object["size"] = self.bytes.into();
            object["eTag"] = self.etag.into();
        }
        encode(&json!({ "Records": [{
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "awsRegion": "us-east-1",
            "eventTime": in_milliseconds(self.time),
            "eventName": self.name,
            "userIdentity": { "principalId": "landfast" },
            "requestParameters": { "sourceIPAddress": "127.0.0.1" },
            "responseElements": { "x-amz-request-id": format!("{:016X}", self.id as u64), "x-amz-id-2": "" },
            "s3": {
                "s3SchemaVersion": "1.0",
                "configurationId": function,
                "bucket": {
                    "name": self.bucket,
                    "ownerIdentity": { "principalId": "landfast" },
                    "arn": format!("arn:aws:s3:::{}", self.bucket),
                },
                "object": object,
            },
        }] }))
    }
}

/// A key as S3's notifications write it: percent-encoded, with a plus sign for a space.
fn url_encoded(key: &str) -> String {
    let mut encoded = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b' ' => encoded.push('+'),
            _ if byte.is_ascii_alphanumeric() || b"-_.*/".contains(&byte) => {
                encoded.push(byte.into());
            }
            _ => write!(encoded, "%{byte:02X}").expect("a string takes all"),
        }
    }
    encoded
}

impl Context {
    /// Sends the event to each function that follows the object. It is durable when this returns.
    ///
    /// Errors: `Port`, also while such a function is not in place yet.
    pub(crate) async fn send_object_event(&self, event: &ObjectEvent<'_>) -> Result<()> {
        let ObjectEvent {
            bucket,
            key,
            change,
            ..
        } = *event;
        let promised = self.lookup.pending.promised.following(bucket, key, change);
        let functions = self.lookup.catalogue.following(bucket, key, change);
        if promised.iter().any(|name| !functions.contains(name)) {
            return Err(ports::Error::unavailable("send the event of an object").into());
        }
        for name in functions {
            let id = Bytes::from(uuid(event.id.to_be_bytes()).to_string());
            let (payload, function) = (event.payload(&name), registered_name(&name));
            let sent = self
                .parts
                .functions
                .send(&function, Some(id), payload)
                .await?;
            self.parts.queue.externalize(sent.point).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_as_in_a_form() {
        assert_eq!(url_encoded("in/a b+c&ä.jpg"), "in/a+b%2Bc%26%C3%A4.jpg");
    }
}
