//! Pages of uploads and of their parts.

use std::collections::BTreeSet;

use memory::model::{Upload, UploadId, UploadedPart};
use s3s::{
    S3Error, S3Result,
    dto::{
        Initiator, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput,
        ListPartsOutput, MultipartUpload, Part, StorageClass,
    },
};

use crate::{
    acl::{OWNER, owner},
    checksums::{self, set_sums},
    conditions::{etag, time},
    errors::{from_service, invalid_argument},
    lists::{Encoding, items_max},
    uploads::{id, text},
};

fn standard() -> StorageClass {
    StorageClass::from_static(StorageClass::STANDARD)
}

fn initiator() -> Initiator {
    Initiator {
        display_name: Some(OWNER.to_owned()),
        id: Some(OWNER.to_owned()),
    }
}

pub(crate) async fn parts(
    service: &memory::Service,
    input: ListPartsInput,
) -> S3Result<ListPartsOutput> {
    let upload_id = id(&input.upload_id)?;
    let max = items_max(input.max_parts, "max-parts")?;
    let marker = input.part_number_marker.unwrap_or(0);
    let after = u16::try_from(marker).map_err(|_| {
        invalid_argument("Argument part-number-marker must be an integer between 0 and 10000")
    })?;
    // One more than the page shows whether it is the last.
    let found = service.parts(&input.bucket, &input.key, upload_id, after, max + 1);
    let (upload, mut parts) = found.await.map_err(from_service)?;
    let is_truncated = parts.len() > max && max > 0;
    parts.truncate(max);
    let next = parts.last().map(|part| i32::from(part.number));
    let sums = &upload.attributes.checksums;
    Ok(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        checksum_algorithm: checksums::algorithms(sums),
        checksum_type: checksums::kind(sums),
        initiator: Some(initiator()),
        owner: Some(owner()),
        storage_class: Some(standard()),
        is_truncated: Some(is_truncated),
        max_parts: Some(max as i32),
        part_number_marker: Some(marker),
        next_part_number_marker: Some(next.unwrap_or(marker)),
        parts: (!parts.is_empty()).then(|| parts.iter().map(part).collect()),
        ..ListPartsOutput::default()
    })
}

fn part(uploaded: &UploadedPart) -> Part {
    let mut part = Part {
        e_tag: Some(etag(&uploaded.etag)),
        last_modified: Some(time(uploaded.modified)),
        part_number: Some(i32::from(uploaded.number)),
        size: i64::try_from(uploaded.bytes).ok(),
        ..Part::default()
    };
    set_sums!(part, &uploaded.checksums);
    part
}

pub(crate) async fn uploads(
    service: &memory::Service,
    input: ListMultipartUploadsInput,
) -> S3Result<ListMultipartUploadsOutput> {
    let encoding = Encoding::chosen(input.encoding_type.as_ref())?;
    let max = items_max(input.max_uploads, "max-uploads")?;
    let prefix = input.prefix.unwrap_or_default();
    let delimiter = input.delimiter.filter(|text| !text.is_empty());
    let after = after(
        input.key_marker.as_deref(),
        input.upload_id_marker.as_deref(),
    )?;
    let mut page = Page {
        prefix: &prefix,
        delimiter: delimiter.as_deref(),
        max,
        uploads: Vec::new(),
        prefixes: BTreeSet::new(),
        last: after,
        is_truncated: false,
    };
    page.fill(service, &input.bucket).await?;
    let prefixes: Vec<_> = page.prefixes.iter().cloned().collect();
    let (key, upload) = page.last.clone().filter(|_| page.is_truncated).unzip();
    Ok(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        prefix: Some(encoding.write(&prefix)),
        delimiter: delimiter.as_deref().map(|text| encoding.write(text)),
        key_marker: Some(encoding.write(input.key_marker.as_deref().unwrap_or(""))),
        upload_id_marker: Some(input.upload_id_marker.unwrap_or_default()),
        max_uploads: Some(max as i32),
        is_truncated: Some(page.is_truncated),
        next_key_marker: key.map(|key| encoding.write(&key)),
        next_upload_id_marker: upload.map(text),
        common_prefixes: encoding.prefixes(&prefixes),
        encoding_type: input.encoding_type,
        uploads: page.uploads(encoding),
        request_charged: None,
    })
}

/// A marker without an id is past all uploads of its key. An id without a key counts for nothing.
fn after(key: Option<&str>, upload: Option<&str>) -> Result<Option<(String, UploadId)>, S3Error> {
    let Some(key) = key.filter(|key| !key.is_empty()) else {
        return Ok(None);
    };
    let upload = upload.filter(|upload| !upload.is_empty());
    let upload =
        upload.map(|upload| id(upload).map_err(|_| invalid_argument("Invalid uploadId marker")));
    let upload = upload.transpose()?.unwrap_or(UploadId(u128::MAX));
    Ok(Some((key.to_owned(), upload)))
}

struct Page<'a> {
    prefix: &'a str,
    delimiter: Option<&'a str>,
    max: usize,
    uploads: Vec<Upload>,
    prefixes: BTreeSet<String>,
    /// The last upload that is in the page or under one of its prefixes.
    last: Option<(String, UploadId)>,
    is_truncated: bool,
}

impl Page<'_> {
    async fn fill(&mut self, service: &memory::Service, bucket: &str) -> Result<(), S3Error> {
        if self.max == 0 {
            return service.bucket(bucket).await.map(drop).map_err(from_service);
        }
        loop {
            let wanted = self.max + 1;
            let found = service.uploads(bucket, self.prefix, self.last.clone(), wanted);
            let found = found.await.map_err(from_service)?;
            let is_last = found.len() < wanted;
            for upload in found {
                if !self.add(upload) {
                    self.is_truncated = true;
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Whether there was room.
    fn add(&mut self, upload: Upload) -> bool {
        let common = self.common(&upload.key);
        let is_known = common
            .as_ref()
            .is_some_and(|one| self.prefixes.contains(one));
        if !is_known && self.uploads.len() + self.prefixes.len() == self.max {
            return false;
        }
        self.last = Some((upload.key.clone(), upload.id));
        match common {
            Some(common) => drop(self.prefixes.insert(common)),
            None => self.uploads.push(upload),
        }
        true
    }

    fn common(&self, key: &str) -> Option<String> {
        let delimiter = self.delimiter?;
        let at = key.strip_prefix(self.prefix)?.find(delimiter)?;
        Some(key[..self.prefix.len() + at + delimiter.len()].to_owned())
    }

    fn uploads(&self, encoding: Encoding) -> Option<Vec<MultipartUpload>> {
        let uploads = self.uploads.iter().map(|upload| MultipartUpload {
            checksum_algorithm: checksums::algorithms(&upload.attributes.checksums),
            checksum_type: checksums::kind(&upload.attributes.checksums),
            initiated: Some(time(upload.begun)),
            initiator: Some(initiator()),
            key: Some(encoding.write(&upload.key)),
            owner: Some(owner()),
            storage_class: Some(standard()),
            upload_id: Some(text(upload.id)),
        });
        (!self.uploads.is_empty()).then(|| uploads.collect())
    }
}

#[cfg(test)]
mod tests {
    use memory::model::Attributes;

    use super::*;

    fn upload(key: &str) -> Upload {
        Upload {
            id: UploadId(1),
            key: key.to_owned(),
            begun: ports::Timestamp(0),
            attributes: Attributes::default(),
        }
    }

    #[test]
    fn uploads_under_a_delimiter_share_one_place_of_a_page() {
        let mut page = Page {
            prefix: "a/",
            delimiter: Some("/"),
            max: 2,
            uploads: Vec::new(),
            prefixes: BTreeSet::new(),
            last: None,
            is_truncated: false,
        };
        for key in ["a/b/1", "a/b/2", "a/c"] {
            assert!(page.add(upload(key)), "{key}");
        }
        assert!(!page.add(upload("a/d")));
        assert_eq!(page.prefixes, BTreeSet::from(["a/b/".to_owned()]));
        assert_eq!(page.uploads[0].key, "a/c");
        assert_eq!(page.last, Some(("a/c".to_owned(), UploadId(1))));
    }

    #[test]
    fn a_key_marker_alone_is_past_all_uploads_of_its_key() {
        let past = after(Some("k"), None).expect("a marker");
        assert_eq!(past, Some(("k".to_owned(), UploadId(u128::MAX))));
        assert_eq!(after(None, Some("x")).expect("ignored"), None);
        assert!(after(Some("k"), Some("x")).is_err());
    }
}
