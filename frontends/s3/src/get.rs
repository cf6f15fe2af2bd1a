//! GET, HEAD and the attributes of an object.

use http::{HeaderMap, HeaderValue, StatusCode, header};
use memory::model::Object;
use s3s::{
    S3Error, S3Result,
    dto::{
        Checksum, ChecksumMode, GetObjectAttributesInput, GetObjectAttributesOutput,
        GetObjectAttributesParts, GetObjectInput, GetObjectOutput, HeadObjectInput,
        HeadObjectOutput, ObjectAttributes, ObjectPart, StorageClass,
    },
};

use crate::{
    attributes::{
        CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE,
        DEFAULT_TYPE, REDIRECT, expires, metadata,
    },
    checksums::{self, Sums, set_sums},
    conditions::{ReadConditions, Unmet, etag, time},
    content::Download,
    errors::{Refusal, from_service, invalid_argument, no_versions},
    range::Slice,
};

/// The fields that GET and HEAD share.
macro_rules! describe {
    ($output:expr, $object:expr, $slice:expr, $sums:expr) => {{
        let (object, slice): (&Object, &Slice) = ($object, $slice);
        let stored = |name: &str| object.attributes.headers.get(name).cloned();
        $output.accept_ranges = Some("bytes".to_owned());
        $output.cache_control = stored(CACHE_CONTROL);
        $output.content_disposition = stored(CONTENT_DISPOSITION);
        $output.content_encoding = stored(CONTENT_ENCODING);
        $output.content_language = stored(CONTENT_LANGUAGE);
        $output.content_type = stored(CONTENT_TYPE).or_else(|| Some(DEFAULT_TYPE.to_owned()));
        $output.website_redirect_location = stored(REDIRECT);
        $output.content_length = i64::try_from(slice.bytes()).ok();
        $output.content_range = slice.content_range.clone();
        $output.parts_count = slice.parts_count;
        $output.e_tag = Some(etag(&object.etag));
        $output.expires = expires(&object.attributes);
        $output.last_modified = Some(time(object.modified));
        $output.metadata = metadata(&object.attributes);
        if let Some(sums) = $sums {
            set_sums!($output, sums);
            $output.checksum_type = checksums::kind(sums);
        }
    }};
}

pub(crate) async fn get(
    service: &memory::Service,
    input: GetObjectInput,
) -> S3Result<GetObjectOutput> {
    no_versions(input.version_id.as_deref())?;
    let opened = service.open(&input.bucket, &input.key).await;
    let opened = opened.map_err(from_service)?;
    let object = opened.object();
    let conditions = ReadConditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
        modified_since: input.if_modified_since,
        unmodified_since: input.if_unmodified_since,
    };
    check(&conditions, object)?;
    let slice = Slice::of(object, input.range, input.part_number)?;
    let mut output = GetObjectOutput::default();
    describe!(
        output,
        object,
        &slice,
        sums(object, input.checksum_mode.as_ref(), &slice)
    );
    output.tag_count = i32::try_from(object.attributes.tags.len())
        .ok()
        .filter(|n| *n > 0);
    let bytes = slice.bytes();
    output.body = Some(Download::blob(opened.read(slice.range), bytes));
    Ok(output)
}

pub(crate) async fn head(
    service: &memory::Service,
    input: HeadObjectInput,
) -> S3Result<HeadObjectOutput> {
    no_versions(input.version_id.as_deref())?;
    let object = service.head(&input.bucket, &input.key).await;
    let object = object.map_err(from_service)?;
    let conditions = ReadConditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
        modified_since: input.if_modified_since,
        unmodified_since: input.if_unmodified_since,
    };
    check(&conditions, &object)?;
    let slice = Slice::of(&object, input.range, input.part_number)?;
    let mut output = HeadObjectOutput::default();
    describe!(
        output,
        &object,
        &slice,
        sums(&object, input.checksum_mode.as_ref(), &slice)
    );
    if let Some(value) = input.response_content_type {
        output.content_type = Some(value);
    }
    output.content_disposition = input
        .response_content_disposition
        .or(output.content_disposition);
    output.content_encoding = input.response_content_encoding.or(output.content_encoding);
    output.content_language = input.response_content_language.or(output.content_language);
    output.cache_control = input.response_cache_control.or(output.cache_control);
    output.expires = input.response_expires.or(output.expires);
    Ok(output)
}

/// A 304 has the headers that a cache needs.
fn check(conditions: &ReadConditions, object: &Object) -> Result<(), S3Error> {
    match conditions.check(object) {
        Ok(()) => Ok(()),
        Err(Unmet::Failed) => Err(from_service(memory::Error::ConditionFailed)),
        Err(Unmet::NotModified) => {
            let refusal = Refusal::new("NotModified", StatusCode::NOT_MODIFIED, "Not Modified");
            let mut error = S3Error::from(refusal);
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(&format!("\"{}\"", object.etag)) {
                headers.insert(header::ETAG, value);
            }
            error.set_headers(headers);
            Err(error)
        }
    }
}

/// The stored checksums are of the whole object, so that a partial response has none.
fn sums<'a>(object: &'a Object, mode: Option<&ChecksumMode>, slice: &Slice) -> Option<&'a Sums> {
    let is_enabled = mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
    let is_whole = slice.content_range.is_none();
    (is_enabled && is_whole).then_some(&object.attributes.checksums)
}

pub(crate) async fn attributes(
    service: &memory::Service,
    input: GetObjectAttributesInput,
) -> S3Result<GetObjectAttributesOutput> {
    no_versions(input.version_id.as_deref())?;
    let object = service.head(&input.bucket, &input.key).await;
    let object = object.map_err(from_service)?;
    // s3s keeps a list in one header as one item.
    let asked = input
        .object_attributes
        .iter()
        .flat_map(|names| names.as_str().split(','));
    let asked: Vec<_> = asked.map(str::trim).collect();
    let wants = |name| asked.contains(&name);
    let mut output = GetObjectAttributesOutput {
        last_modified: Some(time(object.modified)),
        ..GetObjectAttributesOutput::default()
    };
    if wants(ObjectAttributes::ETAG) {
        output.e_tag = Some(etag(&object.etag));
    }
    if wants(ObjectAttributes::OBJECT_SIZE) {
        output.object_size = i64::try_from(object.bytes).ok();
    }
    if wants(ObjectAttributes::STORAGE_CLASS) {
        output.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD));
    }
    let sums = &object.attributes.checksums;
    if wants(ObjectAttributes::CHECKSUM) && !sums.is_empty() {
        let mut checksum = Checksum::default();
        set_sums!(checksum, sums);
        checksum.checksum_type = checksums::kind(sums);
        output.checksum = Some(checksum);
    }
    if wants(ObjectAttributes::OBJECT_PARTS) && !object.parts.is_empty() {
        output.object_parts = Some(parts(&object, input.max_parts, input.part_number_marker)?);
    }
    Ok(output)
}

fn parts(
    object: &Object,
    max: Option<i32>,
    after: Option<i32>,
) -> Result<GetObjectAttributesParts, S3Error> {
    let natural = |number: i32| {
        usize::try_from(number)
            .map_err(|_| invalid_argument("max-parts and part-number-marker are not negative"))
    };
    let max = natural(max.unwrap_or(1000))?.min(1000);
    let after = natural(after.unwrap_or(0))?;
    let numbered = object.parts.iter().zip(1..).skip(after).take(max);
    let page: Vec<_> = numbered
        .map(|(bytes, number)| ObjectPart {
            part_number: Some(number),
            size: i64::try_from(*bytes).ok(),
            ..ObjectPart::default()
        })
        .collect();
    let last = after + page.len();
    Ok(GetObjectAttributesParts {
        is_truncated: Some(last < object.parts.len()),
        max_parts: i32::try_from(max).ok(),
        next_part_number_marker: i32::try_from(last).ok(),
        part_number_marker: i32::try_from(after).ok(),
        parts: Some(page),
        total_parts_count: i32::try_from(object.parts.len()).ok(),
    })
}
