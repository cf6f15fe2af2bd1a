//! Objects that hold large values of volumes: their names, and the calls on them.
//!
//! An object is written once, before the rows that name it, and its name is never used again.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use ports::objects::{
    self, ObjectError, ObjectPath, ObjectStore as _, ObjectStoreExt as _, PutMode, PutPayload,
};

use crate::{
    Error, Result,
    context::SharedObjects,
    model::KeyspaceId,
    serializable::rows::{ObjectId, Place},
    storage::store::Store,
};

/// The folder of the objects of all volumes.
const FOLDER: &str = "volumes";

fn folder(keyspace: KeyspaceId) -> ObjectPath {
    ObjectPath::from_iter([FOLDER.to_owned(), keyspace.0.to_string()])
}

fn path(keyspace: KeyspaceId, id: ObjectId) -> ObjectPath {
    folder(keyspace).join(format!("{:032x}", u128::from_be_bytes(id.0)))
}

/// The name of an object, for people.
pub(crate) fn name(keyspace: KeyspaceId, id: ObjectId) -> String {
    path(keyspace, id).to_string()
}

/// Puts an object once. Errors: it may have been put nevertheless.
pub(crate) async fn put(
    objects: &SharedObjects,
    keyspace: KeyspaceId,
    id: ObjectId,
    values: PutPayload,
) -> Result<()> {
    let path = path(keyspace, id);
    let put = objects
        .put_opts(&path, values, PutMode::Create.into())
        .await;
    put.map_err(|error| objects::failed(format!("put {path}"), error))?;
    Ok(())
}

/// The values at `places`, all of one object; `None`: there is no such object. Errors: `Corrupt` if
/// one is not what was put.
pub(crate) async fn get(
    store: &Store,
    objects: &SharedObjects,
    keyspace: KeyspaceId,
    id: ObjectId,
    places: &[Place],
) -> Result<Option<Vec<Bytes>>> {
    let path = path(keyspace, id);
    let range = |place: &Place| {
        let start = u64::from(place.offset);
        start..start + u64::from(place.bytes)
    };
    let ranges: Vec<_> = places.iter().map(range).collect();
    let read = || async {
        match objects.get_ranges(&path, &ranges).await {
            Ok(found) => Ok(Some(found)),
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(objects::failed(format!("read {path}"), error)),
        }
    };
    let Some(found) = store.again(read).await? else {
        return Ok(None);
    };
    let is_sound = |(place, value): (&Place, &Bytes)| {
        value.len() == place.bytes as usize && crc32fast::hash(value) == place.crc
    };
    if places.len() != found.len() || !places.iter().zip(&found).all(is_sound) {
        let why = format!("a value of a volume is damaged in the object {path}");
        return Err(Error::Corrupt(why.into()));
    }
    Ok(Some(found))
}

/// Deletes an object, if it exists.
pub(crate) async fn delete(
    store: &Store,
    objects: &SharedObjects,
    keyspace: KeyspaceId,
    id: ObjectId,
) -> Result<()> {
    let path = path(keyspace, id);
    let delete = || async {
        match objects.delete(&path).await {
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(error) => Err(objects::failed(format!("delete {path}"), error)),
        }
    };
    store.again(delete).await
}

/// All objects of a volume.
pub(crate) async fn list(
    store: &Store,
    objects: &SharedObjects,
    keyspace: KeyspaceId,
) -> Result<Vec<ObjectId>> {
    let folder = folder(keyspace);
    let list = || async {
        let listed = objects.list(Some(&folder)).try_collect::<Vec<_>>().await;
        listed.map_err(|error| objects::failed(format!("list {folder}"), error))
    };
    let listed = store.again(list).await?;
    let id = |name: &str| u128::from_str_radix(name, 16).ok();
    let ids = listed
        .iter()
        .filter_map(|found| id(found.location.filename()?));
    Ok(ids.map(|id| ObjectId(id.to_be_bytes())).collect())
}
