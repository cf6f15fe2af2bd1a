//! The operations that this server has. s3s answers all others with `NotImplemented`.

// The table below names all the types.
#[allow(clippy::wildcard_imports)]
use s3s::{S3, S3Request, S3Response, S3Result, dto::*};

use crate::{acl, buckets, copy, get, lists, objects, tags, upload_lists, uploads};

/// Serves each operation by the module of its topic.
#[derive(Debug, Clone)]
pub(crate) struct Handler {
    pub(crate) service: memory::Service,
}

/// Operations that need no more of a request than its input.
macro_rules! operations {
    ($($name:ident: $input:ty => $output:ty = $call:path;)*) => {
        #[async_trait::async_trait]
        impl S3 for Handler {
            $(
                async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                    $call(&self.service, request.input).await.map(S3Response::new)
                }
            )*

            async fn list_buckets(
                &self,
                request: S3Request<ListBucketsInput>,
            ) -> S3Result<S3Response<ListBucketsOutput>> {
                buckets::list(&self.service, request).await.map(S3Response::new)
            }

            async fn put_object(
                &self,
                request: S3Request<PutObjectInput>,
            ) -> S3Result<S3Response<PutObjectOutput>> {
                objects::put(&self.service, request).await
            }

            async fn upload_part(
                &self,
                request: S3Request<UploadPartInput>,
            ) -> S3Result<S3Response<UploadPartOutput>> {
                uploads::part(&self.service, request).await.map(S3Response::new)
            }

            async fn complete_multipart_upload(
                &self,
                request: S3Request<CompleteMultipartUploadInput>,
            ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
                uploads::complete(&self.service, request).await.map(S3Response::new)
            }
        }
    };
}

operations! {
    create_bucket: CreateBucketInput => CreateBucketOutput = buckets::create;
    delete_bucket: DeleteBucketInput => DeleteBucketOutput = buckets::delete;
    head_bucket: HeadBucketInput => HeadBucketOutput = buckets::head;
    get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput = buckets::location;
    get_bucket_versioning: GetBucketVersioningInput => GetBucketVersioningOutput = buckets::versioning;
    get_bucket_acl: GetBucketAclInput => GetBucketAclOutput = acl::of_bucket;
    put_bucket_acl: PutBucketAclInput => PutBucketAclOutput = acl::put_of_bucket;
    get_object_acl: GetObjectAclInput => GetObjectAclOutput = acl::of_object;
    put_object_acl: PutObjectAclInput => PutObjectAclOutput = acl::put_of_object;
    get_object: GetObjectInput => GetObjectOutput = get::get;
    head_object: HeadObjectInput => HeadObjectOutput = get::head;
    get_object_attributes: GetObjectAttributesInput => GetObjectAttributesOutput = get::attributes;
    delete_object: DeleteObjectInput => DeleteObjectOutput = objects::delete;
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput = objects::delete_batch;
    copy_object: CopyObjectInput => CopyObjectOutput = copy::object;
    get_object_tagging: GetObjectTaggingInput => GetObjectTaggingOutput = tags::get;
    put_object_tagging: PutObjectTaggingInput => PutObjectTaggingOutput = tags::put;
    delete_object_tagging: DeleteObjectTaggingInput => DeleteObjectTaggingOutput = tags::delete;
    list_objects: ListObjectsInput => ListObjectsOutput = lists::list;
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output = lists::list_v2;
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput = uploads::create;
    upload_part_copy: UploadPartCopyInput => UploadPartCopyOutput = copy::part;
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput = uploads::abort;
    list_parts: ListPartsInput => ListPartsOutput = upload_lists::parts;
    list_multipart_uploads: ListMultipartUploadsInput => ListMultipartUploadsOutput = upload_lists::uploads;
}
