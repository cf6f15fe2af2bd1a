//! Access control lists: every bucket and object is its owner's alone.

use s3s::{
    S3Error, S3Result,
    dto::{
        AccessControlPolicy, GetBucketAclInput, GetBucketAclOutput, GetObjectAclInput,
        GetObjectAclOutput, Grant, Grantee, Owner, Permission, PutBucketAclInput,
        PutBucketAclOutput, PutObjectAclInput, PutObjectAclOutput, Type,
    },
};

use crate::{
    attributes::{is_shared, refuse},
    errors::{from_service, no_versions},
};

/// The id and name of the one owner.
pub(crate) const OWNER: &str = "landfast";

pub(crate) fn owner() -> Owner {
    Owner {
        display_name: Some(OWNER.to_owned()),
        id: Some(OWNER.to_owned()),
    }
}

fn grants() -> Vec<Grant> {
    vec![Grant {
        grantee: Some(Grantee {
            display_name: Some(OWNER.to_owned()),
            email_address: None,
            id: Some(OWNER.to_owned()),
            type_: Type::from_static(Type::CANONICAL_USER),
            uri: None,
        }),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }]
}

/// Whether a list grants anything to others.
fn shares(policy: Option<&AccessControlPolicy>) -> bool {
    let grants = policy.and_then(|policy| policy.grants.as_deref());
    let grantees = grants
        .unwrap_or_default()
        .iter()
        .map(|grant| grant.grantee.as_ref());
    let mut ids = grantees.map(|grantee| grantee.and_then(|grantee| grantee.id.as_deref()));
    !ids.all(|id| id == Some(OWNER))
}

/// Refuses a list that shares.
macro_rules! refuse_sharing {
    ($input:expr) => {
        refuse(&[
            (
                "canned ACLs but `private`",
                is_shared($input.acl.as_ref().map(|acl| acl.as_str())),
            ),
            (
                "grants to others",
                shares($input.access_control_policy.as_ref())
                    || $input.grant_full_control.is_some()
                    || $input.grant_read.is_some()
                    || $input.grant_read_acp.is_some()
                    || $input.grant_write.is_some()
                    || $input.grant_write_acp.is_some(),
            ),
        ])
    };
}

pub(crate) async fn of_bucket(
    service: &memory::Service,
    input: GetBucketAclInput,
) -> S3Result<GetBucketAclOutput> {
    service.bucket(&input.bucket).await.map_err(from_service)?;
    Ok(GetBucketAclOutput {
        grants: Some(grants()),
        owner: Some(owner()),
    })
}

pub(crate) async fn of_object(
    service: &memory::Service,
    input: GetObjectAclInput,
) -> S3Result<GetObjectAclOutput> {
    no_versions(input.version_id.as_deref())?;
    check_object(service, &input.bucket, &input.key).await?;
    Ok(GetObjectAclOutput {
        grants: Some(grants()),
        owner: Some(owner()),
        request_charged: None,
    })
}

pub(crate) async fn put_of_bucket(
    service: &memory::Service,
    input: PutBucketAclInput,
) -> S3Result<PutBucketAclOutput> {
    refuse_sharing!(input)?;
    service.bucket(&input.bucket).await.map_err(from_service)?;
    Ok(PutBucketAclOutput::default())
}

pub(crate) async fn put_of_object(
    service: &memory::Service,
    input: PutObjectAclInput,
) -> S3Result<PutObjectAclOutput> {
    no_versions(input.version_id.as_deref())?;
    refuse_sharing!(input)?;
    check_object(service, &input.bucket, &input.key).await?;
    Ok(PutObjectAclOutput::default())
}

async fn check_object(service: &memory::Service, bucket: &str, key: &str) -> Result<(), S3Error> {
    let object = service.head(bucket, key).await;
    object.map(drop).map_err(from_service)
}
