//! Changes of an object's row: each is one conditional write (M1).

use ports::key_value::Version;

use super::{Service, check_key};
use crate::{
    Error, Result,
    broken::Broken,
    events::{Event, Kind},
    fragment::Segment,
    model::{Attributes, Conditions, Object, VersionId},
    storage::{
        buckets, members, objects,
        pending::{self, PendingId},
        rows::ObjectRow,
        table::{Found, Table, Write},
    },
};

/// How often a change begins again because another change came first.
pub(super) const ATTEMPTS_MAX: u32 = 64;

pub(super) fn version(table: &Table) -> VersionId {
    VersionId(table.unique())
}

impl Service {
    /// Puts the row together with `more`, which names its content.
    pub(super) async fn put_row(
        &self,
        bucket: &str,
        key: &str,
        (row, kind): (ObjectRow, Kind),
        more: Option<Write>,
        conditions: &Conditions,
    ) -> Result<Object> {
        check_key(key)?;
        let note = self.outbox.note(&Event {
            id: row.version.0,
            kind,
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            time: row.modified,
            bytes: row.place.bytes(),
            etag: row.etag.text(),
        })?;
        for attempt in 0..ATTEMPTS_MAX {
            let known = buckets::find_to_add(&self.table, bucket).await?;
            let (found, point) = objects::read(&self.table, known.id, key).await?;
            let is_checked = attempt > 0 && self.table.mutant.breaks(Broken::ChecksConditionsEarly);
            let present = found.as_ref().map(|one| &one.row);
            if let Err(error) = objects::check(conditions, present)
                && !is_checked
            {
                self.table.externalize(point).await?;
                return Err(error);
            }
            let mut writes = vec![
                objects::put(known.id, key, &row, before(found.as_ref())),
                known.unchanged(),
            ];
            writes.extend(more.clone());
            writes.extend(note.clone());
            let changed = self.change(found.as_ref(), writes).await;
            // A change that failed may have been made.
            if note.is_some() && !matches!(changed, Ok(false)) {
                self.outbox.has_noted();
            }
            if changed? {
                return Ok(row.object(key));
            }
        }
        Err(Error::Contended)
    }

    /// Makes the changes, and makes the segments of `replaced` garbage with them. Whether they were
    /// made. They are durable then.
    pub(super) async fn change(
        &self,
        replaced: Option<&Found<ObjectRow>>,
        writes: Vec<Write>,
    ) -> Result<bool> {
        let segments = replaced.map_or(&[][..], |found| &found.row.place.segments);
        self.change_segments(segments, writes).await
    }

    /// The same for `segments`.
    pub(super) async fn change_segments(
        &self,
        segments: &[Segment],
        mut writes: Vec<Write>,
    ) -> Result<bool> {
        let id = PendingId(self.table.unique());
        if !segments.is_empty() {
            writes.push(pending::put(&self.table, id, segments.to_vec()));
        }
        writes.extend(self.table.while_alive());
        let written = self.table.write(writes).await;
        // A change that failed may have been made, also one that was refused: by the first attempt, whose answer was lost. The
        // collector waits until it is durable.
        if !segments.is_empty() {
            self.garbage.add(id);
        }
        let Some(receipt) = written? else {
            if let Some(member) = self.table.member()
                && !members::lives(&self.table, member).await?
            {
                return Err(pending::taken_for_gone());
            }
            return Ok(false);
        };
        self.table.externalize(receipt.point).await?;
        Ok(true)
    }

    /// Deletes the object. An object that is not there is no error, unless a condition asks for it.
    ///
    /// Errors: `NoSuchBucket`, `ConditionFailed`, `NoSuchObject`, `Contended`.
    pub async fn delete(&self, bucket: &str, key: &str, conditions: &Conditions) -> Result<()> {
        let (bucket, key, conditions) = (bucket.to_owned(), key.to_owned(), conditions.clone());
        self.to_its_end(
            |service| async move { service.delete_row(&bucket, &key, &conditions).await },
        )
        .await
    }

    async fn delete_row(&self, bucket: &str, key: &str, conditions: &Conditions) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let known = buckets::find(&self.table, bucket).await?;
            let (found, point) = objects::read(&self.table, known.id, key).await?;
            let checked = objects::check(conditions, found.as_ref().map(|one| &one.row));
            let Some(present) = found.as_ref().filter(|_| checked.is_ok()) else {
                self.table.externalize(point).await?;
                return checked;
            };
            let note = self.outbox.note(&Event {
                id: self.table.unique(),
                kind: Kind::Deleted,
                bucket: bucket.to_owned(),
                key: key.to_owned(),
                time: self.table.now(),
                bytes: 0,
                etag: String::new(),
            })?;
            let mut writes = vec![objects::delete(known.id, key, present.version)];
            writes.extend(note.clone());
            let changed = self.change(found.as_ref(), writes).await;
            // A change that failed may have been made.
            if note.is_some() && !matches!(changed, Ok(false)) {
                self.outbox.has_noted();
            }
            if changed? {
                return Ok(());
            }
        }
        Err(Error::Contended)
    }

    /// Replaces the attributes of the present version, and nothing else.
    ///
    /// Errors: `NoSuchBucket`, `NoSuchObject`, `ConditionFailed`, `Contended`.
    pub async fn set_attributes(
        &self,
        bucket: &str,
        key: &str,
        attributes: Attributes,
        conditions: &Conditions,
    ) -> Result<Object> {
        for _ in 0..ATTEMPTS_MAX {
            let known = buckets::find(&self.table, bucket).await?;
            let (found, point) = objects::read(&self.table, known.id, key).await?;
            let checked = objects::check(conditions, found.as_ref().map(|one| &one.row));
            let Some(present) = found.filter(|_| checked.is_ok()) else {
                self.table.externalize(point).await?;
                return Err(checked.err().unwrap_or(Error::NoSuchObject));
            };
            let row = ObjectRow {
                attributes: attributes.clone(),
                ..present.row
            };
            let put = objects::put(known.id, key, &row, Some(present.version));
            if self.change(None, vec![put]).await? {
                return Ok(row.object(key));
            }
        }
        Err(Error::Contended)
    }
}

fn before(found: Option<&Found<ObjectRow>>) -> Option<Version> {
    found.map(|found| found.version)
}
