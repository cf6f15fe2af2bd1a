//! Buckets.

use s3s::{
    S3Request, S3Result,
    dto::{
        Bucket, BucketCannedACL, CreateBucketInput, CreateBucketOutput, DeleteBucketInput,
        DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput,
        GetBucketVersioningInput, GetBucketVersioningOutput, HeadBucketInput, HeadBucketOutput,
        ListBucketsInput, ListBucketsOutput,
    },
};

use crate::{
    access::Grant,
    acl::owner,
    attributes::{is_shared, refuse},
    conditions::time,
    errors::{from_service, invalid_argument},
    lists::{from_token, to_token},
};

/// The region that clients see. Signatures may be for any region.
pub(crate) const REGION: &str = "us-east-1";

/// The most buckets of a page.
const BUCKETS_MAX: i32 = 10_000;

pub(crate) async fn create(
    service: &memory::Service,
    input: CreateBucketInput,
) -> S3Result<CreateBucketOutput> {
    let acl = input.acl.as_ref().map(BucketCannedACL::as_str);
    let is_granted = input.grant_full_control.is_some()
        || input.grant_read.is_some()
        || input.grant_read_acp.is_some()
        || input.grant_write.is_some()
        || input.grant_write_acp.is_some();
    refuse(&[
        ("canned ACLs but `private`", is_shared(acl)),
        ("grants", is_granted),
        (
            "object lock",
            input.object_lock_enabled_for_bucket.unwrap_or(false),
        ),
    ])?;
    let created = service.create_bucket(&input.bucket).await;
    created.map_err(from_service)?;
    Ok(CreateBucketOutput {
        location: Some(format!("/{}", input.bucket)),
    })
}

pub(crate) async fn delete(
    service: &memory::Service,
    input: DeleteBucketInput,
) -> S3Result<DeleteBucketOutput> {
    let deleted = service.delete_bucket(&input.bucket).await;
    deleted.map_err(from_service)?;
    Ok(DeleteBucketOutput {})
}

pub(crate) async fn head(
    service: &memory::Service,
    input: HeadBucketInput,
) -> S3Result<HeadBucketOutput> {
    service.bucket(&input.bucket).await.map_err(from_service)?;
    Ok(HeadBucketOutput {
        bucket_region: Some(REGION.to_owned()),
        ..HeadBucketOutput::default()
    })
}

pub(crate) async fn list(
    service: &memory::Service,
    request: S3Request<ListBucketsInput>,
) -> S3Result<ListBucketsOutput> {
    let (grant, input) = (request.extensions.get::<Grant>(), request.input);
    let max = input.max_buckets.unwrap_or(BUCKETS_MAX);
    if !(1..=BUCKETS_MAX).contains(&max) {
        return Err(invalid_argument("max-buckets must be between 1 and 10000"));
    }
    let after = input
        .continuation_token
        .as_deref()
        .map(from_token)
        .transpose()?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let mut buckets = service.buckets().await.map_err(from_service)?;
    buckets.retain(|bucket| {
        let is_after = after.as_ref().is_none_or(|after| bucket.name > *after);
        let is_seen = grant.is_none_or(|grant| grant.buckets.contains(&bucket.name));
        is_seen && is_after && bucket.name.starts_with(&prefix)
    });
    buckets.sort_by(|a, b| a.name.cmp(&b.name));
    let is_truncated = buckets.len() > max as usize;
    buckets.truncate(max as usize);
    let next = buckets
        .last()
        .filter(|_| is_truncated)
        .map(|last| to_token(&last.name));
    let buckets = buckets.into_iter().map(|bucket| Bucket {
        bucket_region: None,
        creation_date: Some(time(bucket.created)),
        name: Some(bucket.name),
    });
    Ok(ListBucketsOutput {
        buckets: Some(buckets.collect()),
        continuation_token: next,
        owner: Some(owner()),
        prefix: input.prefix,
    })
}

/// S3 says nothing for the region of `us-east-1`.
pub(crate) async fn location(
    service: &memory::Service,
    input: GetBucketLocationInput,
) -> S3Result<GetBucketLocationOutput> {
    service.bucket(&input.bucket).await.map_err(from_service)?;
    Ok(GetBucketLocationOutput::default())
}

/// Never enabled, which S3 says with an empty element.
pub(crate) async fn versioning(
    service: &memory::Service,
    input: GetBucketVersioningInput,
) -> S3Result<GetBucketVersioningOutput> {
    service.bucket(&input.bucket).await.map_err(from_service)?;
    Ok(GetBucketVersioningOutput::default())
}
