//! Where the packs of a store lie among the objects: under a name of their own, drawn once.
//!
//! Two stores may share a bucket, and a store that is given another bucket than before must notice before anybody misses a
//! value. So the name stands in the store, and an object under it says that this is the place.
//!
//! The object comes first, and the row is durable before it is used: dies between, and an object without values stays.

use ports::{
    Condition, Update,
    key_value::{Name, Outcome, Scan, Value},
    objects::{self, ObjectError, ObjectPath, ObjectStoreExt as _, PutMode, PutPayload},
};

use super::SharedObjects;
use crate::{Error, Result, engine::Core, layout, store::Store};

/// What all packs lie under.
const PACKS: &str = "packs";
/// The object that says whose they are.
const STORE: &str = "store";
/// The row's attribute.
const HOME: &str = "home";

/// Where the packs of `store` lie, or lay; none: it never had objects, and has none. Errors: `Corrupt` if there are packs, and the objects
/// are not those they are among.
pub(crate) async fn find_home(core: &Core, store: &Store) -> Result<Option<String>> {
    let row = store.get(&layout::packs_home()).await?.value;
    let known = row.as_ref().and_then(|row| row.bytes(HOME)).cloned();
    let known = known.map(|home| String::from_utf8_lossy(&home).into_owned());
    match (&core.objects, known) {
        (None, None) => Ok(None),
        (None, Some(home)) => has_none(store).await.map(|()| Some(home)),
        (Some(objects), Some(home)) => {
            let place = ObjectPath::from(format!("{home}/{STORE}"));
            if is_there(store, objects, &place).await? {
                return Ok(Some(home));
            }
            Err(Error::Corrupt(format!("the objects given are not this store's: no {place}").into()))
        }
        (Some(objects), None) => move_in(core, store, objects).await.map(Some),
    }
}

/// Whether `store` has been given objects.
pub(crate) async fn has_home(store: &Store) -> Result<bool> {
    Ok(store.get(&layout::packs_home()).await?.value.is_some())
}

/// Errors: there are packs after all.
async fn has_none(store: &Store) -> Result<()> {
    let page = store.scan(&Scan::partition(layout::PACKS, 1)).await?.value;
    if page.items.is_empty() {
        return Ok(());
    }
    Err(Error::Corrupt("values of this store lie in an object store, and none was given".into()))
}

async fn is_there(store: &Store, objects: &SharedObjects, place: &ObjectPath) -> Result<bool> {
    let look = async || match objects.head(place).await {
        Ok(_) => Ok(true),
        Err(ObjectError::NotFound { .. }) => Ok(false),
        Err(error) => Err(objects::failed(format!("look at {place}"), error)),
    };
    store.again(look).await
}

async fn move_in(core: &Core, store: &Store, objects: &SharedObjects) -> Result<String> {
    let home = format!("{PACKS}/{:016x}", core.entropy.next_u64());
    let place = ObjectPath::from(format!("{home}/{STORE}"));
    let put = async || match objects.put_opts(&place, PutPayload::default(), PutMode::Create.into()).await {
        Ok(_) | Err(ObjectError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(objects::failed(format!("put {place}"), error)),
    };
    store.again(put).await?;
    let attributes = vec![(Name::from(HOME), Value::Bytes(home.clone().into()))];
    let (outcome, point) =
        store.update(Update::put(layout::packs_home(), attributes).when(Condition::Absent)).await?;
    store.externalize(point).await?;
    match outcome {
        Outcome::Done(_) => Ok(home),
        // An answer that was lost, or somebody else's.
        Outcome::Conflict(row) => {
            let home = row.and_then(|row| row.bytes(HOME).cloned()).unwrap_or_default();
            Ok(String::from_utf8_lossy(&home).into_owned())
        }
    }
}
