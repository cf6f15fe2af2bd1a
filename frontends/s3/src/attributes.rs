//! Headers and metadata of objects, from a request into the service and back.

use std::collections::BTreeMap;

use memory::model::Attributes;
use s3s::{
    S3Error,
    dto::{Metadata, Timestamp, TimestampFormat},
};

use crate::{
    errors::{Refusal, not_implemented},
    tags,
};

/// The most bytes of a user's metadata, names and values together.
const METADATA_BYTES_MAX: usize = 2048;

/// The headers that are stored and given back.
pub(crate) const CACHE_CONTROL: &str = "cache-control";
pub(crate) const CONTENT_DISPOSITION: &str = "content-disposition";
pub(crate) const CONTENT_ENCODING: &str = "content-encoding";
pub(crate) const CONTENT_LANGUAGE: &str = "content-language";
pub(crate) const CONTENT_TYPE: &str = "content-type";
pub(crate) const EXPIRES: &str = "expires";
pub(crate) const REDIRECT: &str = "x-amz-website-redirect-location";

/// The type of an object whose client gave none.
pub(crate) const DEFAULT_TYPE: &str = "binary/octet-stream";

/// The fields of a request that become attributes.
#[derive(Debug)]
pub(crate) struct Given<'a> {
    pub(crate) headers: [(&'static str, Option<&'a String>); 6],
    pub(crate) expires: Option<&'a Timestamp>,
    pub(crate) metadata: Option<&'a Metadata>,
    pub(crate) tagging: Option<&'a String>,
}

/// The fields of a PUT, copy or new upload.
macro_rules! given {
    ($input:expr) => {
        $crate::attributes::Given {
            headers: [
                (
                    $crate::attributes::CACHE_CONTROL,
                    $input.cache_control.as_ref(),
                ),
                (
                    $crate::attributes::CONTENT_DISPOSITION,
                    $input.content_disposition.as_ref(),
                ),
                (
                    $crate::attributes::CONTENT_ENCODING,
                    $input.content_encoding.as_ref(),
                ),
                (
                    $crate::attributes::CONTENT_LANGUAGE,
                    $input.content_language.as_ref(),
                ),
                (
                    $crate::attributes::CONTENT_TYPE,
                    $input.content_type.as_ref(),
                ),
                (
                    $crate::attributes::REDIRECT,
                    $input.website_redirect_location.as_ref(),
                ),
            ],
            expires: $input.expires.as_ref(),
            metadata: $input.metadata.as_ref(),
            tagging: $input.tagging.as_ref(),
        }
    };
}

/// Refuses the fields of a PUT, copy or new upload that ask for more than this server does.
macro_rules! refuse_unsupported {
    ($input:expr) => {
        $crate::attributes::refuse(&[
            (
                "canned ACLs but `private`",
                $crate::attributes::is_shared($input.acl.as_ref().map(|acl| acl.as_str())),
            ),
            (
                "grants",
                $input.grant_full_control.is_some()
                    || $input.grant_read.is_some()
                    || $input.grant_read_acp.is_some()
                    || $input.grant_write_acp.is_some(),
            ),
            (
                "object lock",
                $input.object_lock_mode.is_some()
                    || $input.object_lock_legal_hold_status.is_some()
                    || $input.object_lock_retain_until_date.is_some(),
            ),
            (
                "server-side encryption",
                $input.server_side_encryption.is_some()
                    || $input.sse_customer_algorithm.is_some()
                    || $input.sse_customer_key.is_some()
                    || $input.ssekms_key_id.is_some(),
            ),
            (
                "storage classes but STANDARD",
                $input
                    .storage_class
                    .as_ref()
                    .is_some_and(|class| class.as_str() != "STANDARD"),
            ),
        ])
    };
}
pub(crate) use {given, refuse_unsupported};

/// Errors: `NotImplemented` with the first that is asked for.
pub(crate) fn refuse(asked: &[(&'static str, bool)]) -> Result<(), S3Error> {
    let first = asked.iter().find(|(_, is_asked)| *is_asked);
    first.map_or(Ok(()), |(what, _)| Err(not_implemented(what)))
}

/// Whether a canned ACL grants others anything. All objects are the one owner's alone.
pub(crate) fn is_shared(acl: Option<&str>) -> bool {
    let private = ["private", "bucket-owner-full-control", "bucket-owner-read"];
    acl.is_some_and(|acl| !private.contains(&acl))
}

impl Given<'_> {
    /// Errors: `MetadataTooLarge`, and those of tags.
    pub(crate) fn into_attributes(self) -> Result<Attributes, S3Error> {
        let tags = self.tagging.map(|header| tags::of_header(header));
        let metadata: BTreeMap<_, _> = self
            .metadata
            .cloned()
            .unwrap_or_default()
            .into_iter()
            .collect();
        let bytes: usize = metadata
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if bytes > METADATA_BYTES_MAX {
            let message = format!(
                "Your metadata headers have {bytes} bytes, more than the {METADATA_BYTES_MAX} that are allowed."
            );
            return Err(Refusal::bad("MetadataTooLarge", message).into());
        }
        Ok(Attributes {
            headers: self.stored_headers(),
            metadata,
            tags: tags.transpose()?.unwrap_or_default(),
            checksums: BTreeMap::new(),
        })
    }

    fn stored_headers(&self) -> BTreeMap<String, String> {
        let given = self.headers.iter();
        let given = given.filter_map(|(name, value)| Some((*name, (*value)?.clone())));
        let mut headers: BTreeMap<_, _> = given
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        if let Some(encoding) = headers.remove(CONTENT_ENCODING)
            && let Some(encoding) = without_chunks(&encoding)
        {
            headers.insert(CONTENT_ENCODING.to_owned(), encoding);
        }
        if let Some(expires) = self.expires.and_then(http_date) {
            headers.insert(EXPIRES.to_owned(), expires);
        }
        headers
    }
}

/// `aws-chunked` is an encoding of the request, not of the object.
fn without_chunks(encoding: &str) -> Option<String> {
    let kept = encoding.split(',').map(str::trim);
    let kept: Vec<_> = kept
        .filter(|one| !one.is_empty() && *one != "aws-chunked")
        .collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

fn http_date(at: &Timestamp) -> Option<String> {
    let mut text = Vec::new();
    at.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// The stored `Expires`.
pub(crate) fn expires(attributes: &Attributes) -> Option<Timestamp> {
    let text = attributes.headers.get(EXPIRES)?;
    Timestamp::parse(TimestampFormat::HttpDate, text).ok()
}

/// The user's metadata, if there is any.
pub(crate) fn metadata(attributes: &Attributes) -> Option<Metadata> {
    let pairs = attributes.metadata.iter();
    let pairs: Metadata = pairs
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    (!pairs.is_empty()).then_some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_the_request_is_not_stored() {
        assert_eq!(without_chunks("aws-chunked"), None);
        assert_eq!(without_chunks("gzip, aws-chunked").as_deref(), Some("gzip"));
        assert_eq!(without_chunks("gzip").as_deref(), Some("gzip"));
    }

    #[test]
    fn metadata_of_more_than_two_kilobytes_is_refused() {
        let given = |bytes: usize| {
            let metadata = Metadata::from([("name".to_owned(), "v".repeat(bytes - 4))]);
            let headers = [
                (CACHE_CONTROL, None),
                (CONTENT_DISPOSITION, None),
                (CONTENT_ENCODING, None),
                (CONTENT_LANGUAGE, None),
                (CONTENT_TYPE, None),
                (REDIRECT, None),
            ];
            let given = Given {
                headers,
                expires: None,
                metadata: Some(&metadata),
                tagging: None,
            };
            given
                .into_attributes()
                .map(|attributes| attributes.metadata.len())
        };
        assert_eq!(given(2048).expect("the most"), 1);
        let error = given(2049).expect_err("one more");
        assert_eq!(error.code().as_str(), "MetadataTooLarge");
    }
}
