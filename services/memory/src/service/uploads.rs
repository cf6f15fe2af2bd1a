//! Uploads in parts.
//!
//! A part is a segment that the part's row names. A completion is one change: the object's row names
//! the segments of its parts, and the upload's row says that it has ended and which parts were used.
//! The rows of the parts are removed after that, and the segments of unused parts become garbage.

use std::collections::BTreeMap;

use md5::{Digest as _, Md5};

use super::{
    Service,
    changes::{self, ATTEMPTS_MAX},
    check_key,
    stored::Stored,
};
use crate::{
    Error, Result,
    events::Kind,
    model::{
        Attributes, Conditions, NamedPart, OBJECT_BYTES_MAX, Object, PART_BYTES_MIN,
        PART_NUMBER_MAX, Upload, UploadId, UploadedPart,
    },
    storage::{
        buckets, pending,
        rows::{ETag, ObjectRow, PartRow, Place, UploadRow, hex, unhex},
        table::Found,
        uploads,
    },
};

impl Service {
    /// Begins an upload in parts. Errors: `NoSuchBucket`, `TooLarge` for a key or too many uploads.
    pub async fn begin_upload(
        &self,
        bucket: &str,
        key: &str,
        attributes: Attributes,
    ) -> Result<UploadId> {
        check_key(key)?;
        let row = UploadRow {
            key: key.to_owned(),
            begun: self.table.now(),
            attributes,
            ended: None,
        };
        let bucket = bucket.to_owned();
        self.to_its_end(|service| async move { service.begin(&bucket, &row).await })
            .await
    }

    async fn begin(&self, bucket: &str, row: &UploadRow) -> Result<UploadId> {
        let id = UploadId(self.table.unique());
        for _ in 0..ATTEMPTS_MAX {
            let known = buckets::find_to_add(&self.table, bucket).await?;
            let writes = vec![uploads::begin(known.id, id, row), known.unchanged()];
            let begun = self.change(None, writes).await;
            // A change that failed may have been made.
            self.upload_limit.remains(id);
            if begun? {
                return Ok(id);
            }
        }
        Err(Error::Contended)
    }

    /// Makes `stored` part `number` of the upload. It replaces an earlier one.
    ///
    /// Errors: `NoSuchUpload`, `InvalidPart`, `Contended`.
    pub async fn commit_part(
        &self,
        bucket: &str,
        key: &str,
        upload: UploadId,
        number: u16,
        stored: Stored,
        checksums: BTreeMap<String, String>,
    ) -> Result<UploadedPart> {
        if number == 0 || number > PART_NUMBER_MAX {
            return Err(Error::InvalidPart(number));
        }
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.to_its_end(|service| async move {
            let part = (upload, number);
            service
                .put_part(&bucket, &key, part, stored, checksums)
                .await
        })
        .await
    }

    async fn put_part(
        &self,
        bucket: &str,
        key: &str,
        (upload, number): (UploadId, u16),
        mut stored: Stored,
        checksums: BTreeMap<String, String>,
    ) -> Result<UploadedPart> {
        let row = PartRow {
            modified: self.table.now(),
            md5: stored.md5(),
            checksums,
            place: stored.place(),
        };
        for _ in 0..ATTEMPTS_MAX {
            let known = buckets::find(&self.table, bucket).await?;
            let found = uploads::find(&self.table, known.id, key, upload).await?;
            let (before, _) = uploads::read_part(&self.table, known.id, upload, number).await?;
            // A completion may have read the part that is replaced. It must not name garbage.
            let guard = match before {
                Some(_) => uploads::renew(known.id, upload, &found),
                None => uploads::unchanged(known.id, upload, &found),
            };
            let part = uploads::put_part(known.id, (upload, number), &row, before.as_ref());
            let mut writes = vec![part, guard];
            let named = stored.pending();
            writes.extend(named.map(|id| pending::remove(&self.table, id)));
            let replaced = before.map(|before| before.row.place.segments);
            let replaced = replaced.unwrap_or_default();
            if self.change_segments(&replaced, writes).await? {
                stored.set_committed();
                return Ok(row.part(number));
            }
        }
        Err(Error::Contended)
    }

    /// The upload and its parts after number `after`, `items_max` at most. Errors: `NoSuchUpload`.
    pub async fn parts(
        &self,
        bucket: &str,
        key: &str,
        upload: UploadId,
        after: u16,
        items_max: usize,
    ) -> Result<(Upload, Vec<UploadedPart>)> {
        let known = buckets::find(&self.table, bucket).await?;
        let found = uploads::find(&self.table, known.id, key, upload).await?;
        let parts =
            uploads::parts_of(&self.table, known.id, upload, after, Some(items_max)).await?;
        let parts = parts.iter().map(|(number, part)| part.row.part(*number));
        Ok((found.row.upload(upload), parts.collect()))
    }

    /// Makes the named parts one object (M1). `checksums` are those of the whole object.
    ///
    /// Errors: `NoSuchUpload`, `InvalidPart`, `InvalidPartOrder`, `PartTooSmall`, `TooLarge`, and
    /// those of [`Self::commit`].
    pub async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: UploadId,
        parts: &[NamedPart],
        checksums: BTreeMap<String, String>,
        conditions: &Conditions,
    ) -> Result<Object> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let (parts, conditions) = (parts.to_vec(), conditions.clone());
        self.to_its_end(|service| async move {
            let completion = Completion {
                upload,
                parts: &parts,
                checksums,
                conditions: &conditions,
            };
            match service.complete(&bucket, &key, &completion).await {
                Err(Error::NoSuchUpload) => service.completed(&bucket, &key, &parts).await,
                completed => completed,
            }
        })
        .await
    }

    async fn complete(
        &self,
        bucket: &str,
        key: &str,
        completion: &Completion<'_>,
    ) -> Result<Object> {
        let (upload, parts) = (completion.upload, completion.parts);
        for _ in 0..ATTEMPTS_MAX {
            let known = buckets::find(&self.table, bucket).await?;
            let found = uploads::find(&self.table, known.id, key, upload).await?;
            let stored = uploads::parts_of(&self.table, known.id, upload, 0, None).await?;
            let (etag, place) = composed(parts, &stored.into_iter().collect())?;
            let attributes = Attributes {
                checksums: completion.checksums.clone(),
                ..found.row.attributes.clone()
            };
            let row = ObjectRow {
                version: changes::version(&self.table),
                modified: self.table.now(),
                etag,
                attributes,
                place,
            };
            let used = parts.iter().map(|part| part.number).collect();
            let end = uploads::end(known.id, upload, &found, used);
            let put = self.put_row(
                bucket,
                key,
                (row, Kind::CompletedUpload),
                Some(end),
                completion.conditions,
            );
            match put.await {
                // The upload has changed, if the object has not.
                Err(Error::Contended) => {}
                Ok(object) => {
                    self.remove_parts_later(known.id, upload);
                    return Ok(object);
                }
                Err(error) => {
                    let is_refused = matches!(error, Error::ConditionFailed | Error::Backlog(_));
                    if !is_refused {
                        self.upload_limit.may_have_ended(upload);
                    }
                    return Err(error);
                }
            }
        }
        Err(Error::Contended)
    }

    /// The object of an upload that was completed before with the same parts: the client has not
    /// received the answer, and asks again.
    async fn completed(&self, bucket: &str, key: &str, parts: &[NamedPart]) -> Result<Object> {
        let mut md5 = Md5::new();
        for part in parts {
            md5.update(unhex(&part.etag).ok_or(Error::NoSuchUpload)?);
        }
        let etag = ETag {
            md5: md5.finalize().into(),
            parts: Some(parts.len() as u16),
        };
        match self.head(bucket, key).await {
            Ok(object) if object.etag == etag.text() => Ok(object),
            Ok(_) | Err(Error::NoSuchObject) => Err(Error::NoSuchUpload),
            Err(error) => Err(error),
        }
    }

    /// Ends an upload without an object. Errors: `NoSuchUpload`.
    pub async fn abort_upload(&self, bucket: &str, key: &str, upload: UploadId) -> Result<()> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.to_its_end(|service| async move { service.abort(&bucket, &key, upload).await })
            .await
    }

    pub(super) async fn abort(&self, bucket: &str, key: &str, upload: UploadId) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let known = buckets::find(&self.table, bucket).await?;
            let found = uploads::find(&self.table, known.id, key, upload).await?;
            let end = uploads::end(known.id, upload, &found, Vec::new());
            let ended = self.change(None, vec![end]).await;
            if ended.is_err() {
                self.upload_limit.may_have_ended(upload);
            }
            if ended? {
                self.remove_parts_later(known.id, upload);
                return Ok(());
            }
        }
        Err(Error::Contended)
    }

    /// The uploads of keys that begin with `prefix`, in the order of keys and ids, after `after`.
    pub async fn uploads(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<(String, UploadId)>,
        items_max: usize,
    ) -> Result<Vec<Upload>> {
        let known = buckets::find(&self.table, bucket).await?;
        let all = uploads::all(&self.table, known.id).await?;
        let open = all
            .into_iter()
            .filter(|(_, found)| found.row.ended.is_none());
        let shown = open.map(|(id, found)| ((found.row.key.clone(), id), found.row));
        let mut shown: Vec<_> = shown
            .filter(|(place, row)| row.key.starts_with(prefix) && Some(place) > after.as_ref())
            .collect();
        shown.sort_by(|(one, _), (other, _)| one.cmp(other));
        shown.truncate(items_max);
        let uploads = shown.into_iter().map(|((_, id), row)| row.upload(id));
        Ok(uploads.collect())
    }
}

/// A completion of an upload, as its client asks for it.
struct Completion<'a> {
    upload: UploadId,
    parts: &'a [NamedPart],
    checksums: BTreeMap<String, String>,
    conditions: &'a Conditions,
}

/// The ETag and the place of an object of these parts.
fn composed(named: &[NamedPart], stored: &BTreeMap<u16, Found<PartRow>>) -> Result<(ETag, Place)> {
    if named.is_empty() {
        return Err(Error::InvalidPart(0));
    }
    let (mut md5, mut place, mut last) = (Md5::new(), Place::default(), 0);
    for (index, part) in named.iter().enumerate() {
        if part.number <= last {
            return Err(Error::InvalidPartOrder);
        }
        last = part.number;
        let found = stored.get(&part.number);
        let row = found.map(|found| &found.row);
        let row = row.filter(|row| hex(&row.md5) == part.etag);
        let row = row.ok_or(Error::InvalidPart(part.number))?;
        if row.place.bytes() < PART_BYTES_MIN && index + 1 < named.len() {
            return Err(Error::PartTooSmall(part.number));
        }
        md5.update(row.md5);
        // Content in a row is below the smallest part, so it is the last.
        place
            .append(&row.place)
            .map_err(|_| Error::PartTooSmall(last))?;
    }
    let etag = ETag {
        md5: md5.finalize().into(),
        parts: Some(named.len() as u16),
    };
    if place.bytes() > OBJECT_BYTES_MAX {
        return Err(Error::TooLarge("an object has at most 5 TiB"));
    }
    Ok((etag, place))
}
