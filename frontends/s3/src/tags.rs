//! Tags of objects: in XML, and in the header of a PUT.

use std::collections::BTreeMap;

use memory::model::{Conditions, ETags, Object};
use percent_encoding::percent_decode_str;
use s3s::{
    S3Error, S3Result,
    dto::{
        DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput,
        GetObjectTaggingOutput, PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
    },
};

use crate::errors::{Refusal, from_conditional, from_service, invalid_argument, no_versions};

const TAGS_MAX: usize = 10;
const KEY_CHARS_MAX: usize = 128;
const VALUE_CHARS_MAX: usize = 256;

/// Tags by their keys.
pub(crate) type Tags = BTreeMap<String, String>;

/// The tags of `x-amz-tagging`, which has the form of a query.
///
/// Errors: `InvalidArgument`, `InvalidTag`, `BadRequest`.
pub(crate) fn of_header(header: &str) -> Result<Tags, S3Error> {
    let pairs = header.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(key)?, decode(value)?))
    });
    collect(pairs.collect::<Result<Vec<_>, S3Error>>()?)
}

fn decode(text: &str) -> Result<String, S3Error> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded.map(Into::into).map_err(|_| {
        invalid_argument("The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded.")
    })
}

fn collect(pairs: Vec<(String, String)>) -> Result<Tags, S3Error> {
    if pairs.len() > TAGS_MAX {
        let message = format!("Object tags cannot be greater than {TAGS_MAX}");
        return Err(Refusal::bad("BadRequest", message).into());
    }
    let invalid = |message| Err(Refusal::bad("InvalidTag", message).into());
    let mut tags = Tags::new();
    for (key, value) in pairs {
        if key.is_empty() || key.chars().count() > KEY_CHARS_MAX {
            return invalid("The TagKey you have provided is invalid");
        }
        if value.chars().count() > VALUE_CHARS_MAX {
            return invalid("The TagValue you have provided is invalid");
        }
        if tags.insert(key, value).is_some() {
            return invalid("Cannot provide multiple Tags with the same key");
        }
    }
    Ok(tags)
}

pub(crate) async fn get(
    service: &memory::Service,
    input: GetObjectTaggingInput,
) -> S3Result<GetObjectTaggingOutput> {
    no_versions(input.version_id.as_deref())?;
    let object = service.head(&input.bucket, &input.key).await;
    let tags = object.map_err(from_service)?.attributes.tags;
    let tag_set = tags.into_iter().map(|(key, value)| Tag {
        key: Some(key),
        value: Some(value),
    });
    Ok(GetObjectTaggingOutput {
        tag_set: tag_set.collect(),
        version_id: None,
    })
}

pub(crate) async fn put(
    service: &memory::Service,
    input: PutObjectTaggingInput,
) -> S3Result<PutObjectTaggingOutput> {
    no_versions(input.version_id.as_deref())?;
    let tag_set = input.tagging.tag_set.into_iter();
    let pairs = tag_set.map(|tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default()));
    let tags = collect(pairs.collect())?;
    replace(service, &input.bucket, &input.key, tags).await?;
    Ok(PutObjectTaggingOutput::default())
}

pub(crate) async fn delete(
    service: &memory::Service,
    input: DeleteObjectTaggingInput,
) -> S3Result<DeleteObjectTaggingOutput> {
    no_versions(input.version_id.as_deref())?;
    replace(service, &input.bucket, &input.key, Tags::new()).await?;
    Ok(DeleteObjectTaggingOutput::default())
}

/// The condition keeps the other attributes of a version that a PUT installs in between.
async fn replace(
    service: &memory::Service,
    bucket: &str,
    key: &str,
    tags: Tags,
) -> S3Result<Object> {
    let object = service.head(bucket, key).await.map_err(from_service)?;
    let conditions = Conditions {
        if_match: Some(ETags::OneOf(vec![object.etag])),
        if_none_match: None,
    };
    let mut attributes = object.attributes;
    attributes.tags = tags;
    let replaced = service.set_attributes(bucket, key, attributes, &conditions);
    replaced.await.map_err(|error| match error {
        memory::Error::ConditionFailed => from_conditional(memory::Error::Contended),
        error => from_service(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_tags_is_decoded_like_a_query() {
        let tags = of_header("a+b=c%3Dd&empty=&bare").expect("tags");
        let expected = [("a b", "c=d"), ("bare", ""), ("empty", "")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(tags, Tags::from(expected));
        assert!(of_header("").expect("none").is_empty());
    }

    #[test]
    fn tags_beyond_their_bounds_are_refused() {
        let eleven = (0..11)
            .map(|n| format!("k{n}=v"))
            .collect::<Vec<_>>()
            .join("&");
        let long_key = format!("{}=v", "k".repeat(129));
        let long_value = format!("k={}", "v".repeat(257));
        let refused = [
            (eleven, "BadRequest"),
            (long_key, "InvalidTag"),
            (long_value, "InvalidTag"),
            ("a=1&a=2".to_owned(), "InvalidTag"),
            ("a=%ff".to_owned(), "InvalidArgument"),
        ];
        for (header, code) in refused {
            let error = of_header(&header).expect_err(code);
            assert_eq!(error.code().as_str(), code, "{header}");
        }
    }
}
