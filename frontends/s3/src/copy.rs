//! Copies of objects, into an object or into a part of an upload.

use std::ops::Range;

use futures_util::StreamExt;
use memory::model::{Attributes, Conditions, ETags, Object, SEGMENT_BYTES_MAX};
use memory::service::Opened;
use s3s::{
    S3Error, S3Result, StdError,
    dto::{
        CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult, CopySource,
        MetadataDirective, TaggingDirective, UploadPartCopyInput, UploadPartCopyOutput,
    },
};

use crate::{
    attributes::{given, refuse_unsupported},
    checksums::{self, Algorithm, set_sums},
    conditions::{ReadConditions, etag, time},
    content::{self, Claim, Source},
    errors::{
        from_conditional, from_service, invalid_argument, invalid_request, no_versions,
        not_implemented,
    },
    objects::{check_key, with_kind},
    range::of_copy,
    uploads,
};

/// The bucket and key of a source.
///
/// Errors: `NotImplemented` for access points, `NoSuchVersion`.
fn source(source: &CopySource) -> Result<(&str, &str), S3Error> {
    match source {
        CopySource::Bucket {
            bucket,
            key,
            version_id,
        } => {
            no_versions(version_id.as_deref())?;
            Ok((bucket, key))
        }
        _ => Err(not_implemented("access points")),
    }
}

/// Opens the source under its conditions. Unlike those of a GET, none of them means "not modified".
async fn open(
    service: &memory::Service,
    (bucket, key): (&str, &str),
    conditions: &ReadConditions,
) -> Result<Opened, S3Error> {
    let opened = service.open(bucket, key).await.map_err(from_service)?;
    let checked = conditions.check(opened.object());
    checked.map_err(|_| from_service(memory::Error::ConditionFailed))?;
    Ok(opened)
}

fn read(opened: Opened, range: Range<u64>) -> Source {
    let content = opened.read(range);
    Box::pin(content.map(|bytes| bytes.map_err(StdError::from)))
}

/// The conditions on the source.
macro_rules! source_conditions {
    ($input:expr) => {
        ReadConditions {
            if_match: $input.copy_source_if_match.take(),
            if_none_match: $input.copy_source_if_none_match.take(),
            modified_since: $input.copy_source_if_modified_since.take(),
            unmodified_since: $input.copy_source_if_unmodified_since.take(),
        }
    };
}

pub(crate) async fn object(
    service: &memory::Service,
    mut input: CopyObjectInput,
) -> S3Result<CopyObjectOutput> {
    refuse_unsupported!(input)?;
    check_key(&input.key)?;
    let conditions = source_conditions!(input);
    let from = source(&input.copy_source)?;
    let opened = open(service, from, &conditions).await?;
    let is_onto_itself = from == (input.bucket.as_str(), input.key.as_str());
    let attributes = attributes(&input, opened.object(), is_onto_itself)?;
    let asked = input.checksum_algorithm.as_ref();
    let asked = asked
        .map(|name| Algorithm::parse(name.as_str()))
        .transpose()?;
    let copied = if is_onto_itself && asked.is_none() {
        onto_itself(service, &input, opened.object(), attributes).await?
    } else {
        of_content(service, &input, opened, attributes, asked).await?
    };
    let mut result = CopyObjectResult {
        e_tag: Some(etag(&copied.etag)),
        last_modified: Some(time(copied.modified)),
        checksum_type: checksums::kind(&copied.attributes.checksums),
        ..CopyObjectResult::default()
    };
    set_sums!(result, &copied.attributes.checksums);
    Ok(CopyObjectOutput {
        copy_object_result: Some(result),
        ..CopyObjectOutput::default()
    })
}

/// The attributes of the copy, by the directives.
///
/// Errors: `InvalidRequest` for a copy onto itself that changes nothing, `InvalidArgument`.
fn attributes(
    input: &CopyObjectInput,
    of_source: &Object,
    is_onto_itself: bool,
) -> Result<Attributes, S3Error> {
    let replaces = |directive: Option<&str>, name: &str| match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(invalid_argument(format!("Unknown {name} directive."))),
    };
    let metadata = input
        .metadata_directive
        .as_ref()
        .map(MetadataDirective::as_str);
    let metadata = replaces(metadata, "metadata")?;
    let tagging = input
        .tagging_directive
        .as_ref()
        .map(TaggingDirective::as_str);
    let tagging = replaces(tagging, "tagging")?;
    if is_onto_itself && !metadata && !tagging && input.checksum_algorithm.is_none() {
        return Err(invalid_request(
            "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes.",
        ));
    }
    let given = given!(input).into_attributes()?;
    let stored = &of_source.attributes;
    let mut kept = stored.clone();
    if metadata {
        kept.headers = given.headers;
        kept.metadata = given.metadata;
    }
    if tagging {
        kept.tags = given.tags;
    }
    Ok(kept)
}

/// The content stays where it is.
async fn onto_itself(
    service: &memory::Service,
    input: &CopyObjectInput,
    object: &Object,
    attributes: Attributes,
) -> Result<Object, S3Error> {
    let conditions = Conditions {
        if_match: Some(ETags::OneOf(vec![object.etag.clone()])),
        if_none_match: None,
    };
    let replaced = service.set_attributes(&input.bucket, &input.key, attributes, &conditions);
    replaced.await.map_err(from_conditional)
}

/// The checksums of a source in parts are of its parts, so that a copy, which has none, computes its
/// own.
async fn of_content(
    service: &memory::Service,
    input: &CopyObjectInput,
    opened: Opened,
    mut attributes: Attributes,
    asked: Option<Algorithm>,
) -> Result<Object, S3Error> {
    let bytes = opened.object().bytes;
    if bytes > SEGMENT_BYTES_MAX {
        return Err(invalid_request(format!(
            "The specified copy source is larger than the maximum allowable size for a copy source: {SEGMENT_BYTES_MAX}"
        )));
    }
    let claim = Claim {
        algorithm: asked.or_else(|| Algorithm::of(&attributes.checksums)),
        ..Claim::default()
    };
    let (body, computed) = content::body(read(opened, 0..bytes), bytes, claim);
    let stored = service.store(&input.bucket, body, Some(bytes)).await;
    let stored = stored.map_err(from_service)?.as_copy();
    attributes.checksums = with_kind(computed.take());
    let conditions = Conditions::default();
    let copied = service.commit(&input.bucket, &input.key, stored, attributes, &conditions);
    copied.await.map_err(from_service)
}

pub(crate) async fn part(
    service: &memory::Service,
    mut input: UploadPartCopyInput,
) -> S3Result<UploadPartCopyOutput> {
    let number = uploads::part_number(input.part_number)?;
    let id = uploads::id(&input.upload_id)?;
    let conditions = source_conditions!(input);
    let (bucket, key) = (input.bucket.as_str(), input.key.as_str());
    let upload = uploads::find(service, bucket, key, id).await?;
    let opened = open(service, source(&input.copy_source)?, &conditions).await?;
    let whole = opened.object().bytes;
    let range = match input.copy_source_range.as_deref() {
        Some(header) => of_copy(header, whole)?,
        None => 0..whole,
    };
    let bytes = range.end - range.start;
    if bytes > SEGMENT_BYTES_MAX {
        let message = format!("The part has {bytes} bytes, more than {SEGMENT_BYTES_MAX}.");
        return Err(invalid_request(message));
    }
    let claim = Claim {
        algorithm: uploads::algorithm(&upload, None)?,
        ..Claim::default()
    };
    let (body, computed) = content::body(read(opened, range), bytes, claim);
    let stored = service.store(bucket, body, Some(bytes)).await;
    let stored = stored.map_err(from_service)?;
    let committed = service.commit_part(bucket, key, id, number, stored, computed.take());
    let part = committed.await.map_err(from_service)?;
    let mut result = CopyPartResult {
        e_tag: Some(etag(&part.etag)),
        last_modified: Some(time(part.modified)),
        ..CopyPartResult::default()
    };
    set_sums!(result, &part.checksums);
    Ok(UploadPartCopyOutput {
        copy_part_result: Some(result),
        ..UploadPartCopyOutput::default()
    })
}
