//! PUT, POST and DELETE of objects.

use std::fmt::Write as _;

use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, header};
use memory::model::{Conditions, ETags, SEGMENT_BYTES_MAX};
use s3s::{
    S3Error, S3Request, S3Response, S3Result, TrailingHeaders,
    dto::{
        ChecksumAlgorithm, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput,
        DeleteObjectsOutput, DeletedObject, ETag, Error, ObjectIdentifier, PutObjectInput,
        PutObjectOutput,
    },
};

use crate::{
    attributes::{given, refuse_unsupported},
    checksums::{self, Algorithm, Kind, Sums, check_md5, set_sums, sums_of},
    conditions::{etag, of_write},
    content::{self, Claim},
    errors::{
        Refusal, from_conditional, from_service, from_write, invalid_request, no_versions,
        not_implemented,
    },
    lists::url_encoded,
};

/// The most keys of one batch.
const BATCH_KEYS_MAX: usize = 1000;
/// Keys of one batch that are deleted at once.
const BATCH_AT_ONCE: usize = 16;
/// The length of the content behind the chunks of `aws-chunked`.
const DECODED_LENGTH: &str = "x-amz-decoded-content-length";

/// A form comes here as well. Its file has its length from s3s, which leaves out a zero.
pub(crate) async fn put(
    service: &memory::Service,
    request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    if request.method != Method::POST {
        let bytes = length(request.input.content_length, &request.headers)?;
        return store(service, request, bytes).await;
    }
    let bytes = request.input.content_length.unwrap_or(0).unsigned_abs();
    let key = url_encoded(&request.input.key);
    let location = format!("/{}/{key}", request.input.bucket);
    let mut response = store(service, request, bytes).await?;
    if let Ok(value) = HeaderValue::from_str(&location) {
        response.headers.insert(header::LOCATION, value);
    }
    let etag = response.output.e_tag.as_ref();
    if let Some(Ok(value)) = etag.map(ETag::to_http_header) {
        response.headers.insert(header::ETAG, value);
    }
    Ok(response)
}

async fn store(
    service: &memory::Service,
    request: S3Request<PutObjectInput>,
    bytes: u64,
) -> S3Result<S3Response<PutObjectOutput>> {
    let S3Request {
        input,
        headers,
        trailing_headers,
        ..
    } = request;
    refuse_unsupported!(input)?;
    if input.write_offset_bytes.is_some() {
        return Err(not_implemented("appends"));
    }
    check_key(&input.key)?;
    let mut attributes = given!(input).into_attributes()?;
    let algorithm = input.checksum_algorithm.as_ref();
    let claim = claim(sums_of!(input), algorithm, &headers, trailing_headers)?;
    let (body, computed) = content::body(content::source(input.body), bytes, claim);
    let stored = service.store(&input.bucket, body, Some(bytes)).await;
    let stored = stored.map_err(from_service)?;
    check_md5(input.content_md5.as_deref(), stored.md5())?;
    attributes.checksums = with_kind(computed.take());
    let conditions = of_write(input.if_match.as_ref(), input.if_none_match.as_ref());
    let object = service.commit(&input.bucket, &input.key, stored, attributes, &conditions);
    let object = object
        .await
        .map_err(|error| from_write(error, &conditions))?;
    let mut output = PutObjectOutput {
        e_tag: Some(etag(&object.etag)),
        checksum_type: checksums::kind(&object.attributes.checksums),
        ..PutObjectOutput::default()
    };
    set_sums!(output, &object.attributes.checksums);
    Ok(S3Response::new(output))
}

/// The checksum of one PUT is always of the full object.
pub(crate) fn with_kind(mut sums: Sums) -> Sums {
    if !sums.is_empty() {
        let kind = Kind::FullObject.name().to_owned();
        sums.insert(checksums::TYPE.to_owned(), kind);
    }
    sums
}

/// The length of the content, refused from the headers if it is too large.
///
/// Errors: `MissingContentLength`, `EntityTooLarge`.
pub(crate) fn length(content_length: Option<i64>, headers: &HeaderMap) -> Result<u64, S3Error> {
    let decoded = headers.get(DECODED_LENGTH);
    let decoded = decoded.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let plain = content_length.and_then(|bytes| u64::try_from(bytes).ok());
    let Some(bytes) = decoded.or(plain) else {
        return Err(Refusal::new(
            "MissingContentLength",
            http::StatusCode::LENGTH_REQUIRED,
            "You must provide the Content-Length HTTP header.",
        )
        .into());
    };
    if bytes > SEGMENT_BYTES_MAX {
        let message = format!(
            "Your proposed upload of {bytes} bytes exceeds the maximum of {SEGMENT_BYTES_MAX}. Upload it in parts."
        );
        return Err(Refusal::bad("EntityTooLarge", message).into());
    }
    Ok(bytes)
}

/// The longest key is checked before its content is read.
///
/// Errors: `KeyTooLongError`.
pub(crate) fn check_key(key: &str) -> Result<(), S3Error> {
    if key.len() > memory::model::KEY_BYTES_MAX {
        return Err(Refusal::bad("KeyTooLongError", "Your key is too long.").into());
    }
    Ok(())
}

/// The checksum that the client sent in a header, announced as a trailer, or asked for by name.
///
/// Errors: `InvalidRequest` for several at once, or a malformed one.
pub(crate) fn claim(
    sent: Sums,
    asked: Option<&ChecksumAlgorithm>,
    headers: &HeaderMap,
    trailers: Option<TrailingHeaders>,
) -> Result<Claim, S3Error> {
    if sent.len() > 1 {
        return Err(invalid_request(
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        ));
    }
    if let Some((header, value)) = sent.into_iter().next() {
        let algorithm = Algorithm::of_header(&header);
        if let Some(algorithm) = algorithm {
            checksums::check_form(algorithm, &value)?;
        }
        return Ok(Claim {
            algorithm,
            value: Some(value),
            trailers: None,
        });
    }
    let announced = headers.get("x-amz-trailer");
    let announced = announced
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let announced = announced.split(',').find_map(Algorithm::of_header);
    if let (Some(algorithm), Some(trailers)) = (announced, trailers) {
        return Ok(Claim {
            algorithm: Some(algorithm),
            value: None,
            trailers: Some(trailers),
        });
    }
    let asked = asked.map(|algorithm| Algorithm::parse(algorithm.as_str()));
    Ok(Claim {
        algorithm: asked.transpose()?,
        ..Claim::default()
    })
}

pub(crate) async fn delete(
    service: &memory::Service,
    input: DeleteObjectInput,
) -> S3Result<DeleteObjectOutput> {
    no_versions(input.version_id.as_deref())?;
    if input.if_match_last_modified_time.is_some() || input.if_match_size.is_some() {
        return Err(not_implemented(
            "deletes under a time or size; use If-Match",
        ));
    }
    let conditions = of_write(input.if_match.as_ref(), None);
    let deleted = service.delete(&input.bucket, &input.key, &conditions);
    deleted.await.map_err(from_conditional)?;
    Ok(DeleteObjectOutput::default())
}

pub(crate) async fn delete_batch(
    service: &memory::Service,
    input: DeleteObjectsInput,
) -> S3Result<DeleteObjectsOutput> {
    let objects = input.delete.objects;
    if objects.is_empty() || objects.len() > BATCH_KEYS_MAX {
        let mut message = String::from("The batch must name at least one key and ");
        let _ = write!(message, "at most {BATCH_KEYS_MAX}.");
        return Err(Refusal::bad("MalformedXML", message).into());
    }
    service.bucket(&input.bucket).await.map_err(from_service)?;
    let bucket = input.bucket.as_str();
    let outcomes = stream::iter(objects).map(|object| delete_one(service, bucket, object));
    let outcomes: Vec<_> = outcomes.buffered(BATCH_AT_ONCE).collect().await;
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(one) => deleted.push(one),
            Err(one) => errors.push(one),
        }
    }
    let is_quiet = input.delete.quiet.unwrap_or(false);
    Ok(DeleteObjectsOutput {
        deleted: (!is_quiet).then_some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        request_charged: None,
    })
}

async fn delete_one(
    service: &memory::Service,
    bucket: &str,
    object: ObjectIdentifier,
) -> Result<DeletedObject, Error> {
    let key = object.key;
    let deleted = async {
        no_versions(object.version_id.as_deref())?;
        if object.last_modified_time.is_some() || object.size.is_some() {
            return Err(not_implemented("deletes under a time or size; use an ETag"));
        }
        let if_match = object
            .e_tag
            .map(|etag| ETags::OneOf(vec![etag.into_value()]));
        let conditions = Conditions {
            if_match,
            if_none_match: None,
        };
        let deleted = service.delete(bucket, &key, &conditions);
        deleted.await.map_err(from_conditional)
    };
    match deleted.await {
        Ok(()) => Ok(DeletedObject {
            key: Some(key),
            ..DeletedObject::default()
        }),
        Err(error) => Err(Error {
            code: Some(error.code().as_str().to_owned()),
            message: error.message().map(str::to_owned),
            key: Some(key),
            version_id: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::headers;

    #[test]
    fn the_decoded_length_counts_and_a_missing_or_too_large_one_is_refused() {
        let chunked = headers(&[(DECODED_LENGTH, "5")]);
        assert_eq!(length(Some(99), &chunked).expect("decoded"), 5);
        assert_eq!(length(Some(7), &HeaderMap::new()).expect("plain"), 7);
        let code = |content_length| {
            let refused = length(content_length, &HeaderMap::new()).expect_err("refused");
            refused.code().as_str().to_owned()
        };
        assert_eq!(code(None), "MissingContentLength");
        assert_eq!(code(Some((5 << 30) + 1)), "EntityTooLarge");
    }

    #[test]
    fn two_checksums_at_once_are_refused() {
        let sums = Sums::from([
            ("x-amz-checksum-crc32".to_owned(), "AAAAAA==".to_owned()),
            ("x-amz-checksum-crc32c".to_owned(), "AAAAAA==".to_owned()),
        ]);
        let refused = claim(sums, None, &HeaderMap::new(), None).expect_err("two");
        assert_eq!(refused.code().as_str(), "InvalidRequest");
    }
}
