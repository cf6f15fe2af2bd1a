//! The location of a store's packs in the object store: a path prefix generated once for each
//! store.
//!
//! Two stores may share a bucket, and a store that is configured with another bucket must detect
//! that before a reader misses a value. So the store holds the prefix, and a marker object under it
//! confirms that this is the bucket.
//!
//! The object is created first, and the row is durable before it is used. A crash in between leaves
//! an object without values.
//!
//! A store that returned to an earlier state without its objects, by a backup or a loss, assigns
//! node numbers again, and unknown packs exist under them. A new node therefore numbers its packs
//! after those that exist.

use ports::{
    Condition, Item, Update,
    key_value::{Name, Outcome, Scan, Value},
    objects::{self, ObjectError, ObjectPath, ObjectStoreExt as _, PutMode, PutPayload},
};

use crate::{
    Error, Result,
    broken::Broken,
    node::Node,
    packing::Packing,
    storage::{layout, store::Store},
};

use super::find;
use crate::context::SharedObjects;

/// The first part of the path of all packs.
const PACKS: &str = "packs";
/// The marker object that identifies their store.
const STORE: &str = "store";
const HOME: &str = "home";

impl Packing {
    /// Finds the location of `store`'s packs, if it has any or an object store is configured.
    /// Errors: `WrongObjects` if there are packs, and this object store does not hold them.
    pub(crate) async fn find_home(&self, store: &Store) -> Result<()> {
        let row = store.get(&layout::packs_home()).await?.value;
        let known = row.as_deref().and_then(home_of);
        let home = match (&self.objects, known) {
            (None, None) => return Ok(()),
            (None, Some(_)) => return has_none(store).await,
            (Some(objects), Some(home)) => live_there(store, objects, home).await?,
            (Some(objects), None) => move_in(self, store, objects).await?,
        };
        // The same at each start.
        self.home.get_or_init(|| home);
        Ok(())
    }

    /// Makes `node`, which does not serve yet, number its packs after those that exist under its
    /// number.
    pub(crate) async fn pass_packs(&self, node: &Node) -> Result<()> {
        let takes_any = Broken::TakesAnyPackForItsOwn;
        if self.objects.is_none() || self.context.breaks(takes_any) {
            return Ok(());
        }
        if let Some(last) = self.numbers_of(node, node.id).await?.into_iter().max() {
            tracing::warn!(
                node = node.id.0,
                last,
                "there are packs that this store does not know: it was restored to an earlier state, and its objects were not"
            );
            node.packs.state().last = last;
        }
        Ok(())
    }
}

fn home_of(row: &Item) -> Option<String> {
    row.bytes(HOME)
        .map(|home| String::from_utf8_lossy(home).into_owned())
}

/// Checks that there are no packs. Errors: there are some.
async fn has_none(store: &Store) -> Result<()> {
    let page = store.scan(&Scan::partition(layout::PACKS, 1)).await?.value;
    if page.items.is_empty() {
        return Ok(());
    }
    Err(Error::WrongObjects("none was given".into()))
}

/// Checks `home`, which another node has generated. Errors: it is not in this object store.
async fn live_there(store: &Store, objects: &SharedObjects, home: String) -> Result<String> {
    let place = ObjectPath::from(format!("{home}/{STORE}"));
    let look = || objects.head(&place);
    if find(store, "look at", &place, look).await?.is_some() {
        return Ok(home);
    }
    Err(Error::WrongObjects(
        format!("the one given is not this store's, since there is no {place}").into(),
    ))
}

async fn move_in(packing: &Packing, store: &Store, objects: &SharedObjects) -> Result<String> {
    let home = format!("{PACKS}/{:016x}", packing.context.entropy.next_u64());
    let place = ObjectPath::from(format!("{home}/{STORE}"));
    let put = async || match objects
        .put_opts(&place, PutPayload::default(), PutMode::Create.into())
        .await
    {
        Ok(_) | Err(ObjectError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(objects::failed(format!("put {place}"), error)),
    };
    store.again(put).await?;
    let attributes = vec![(Name::from(HOME), Value::Bytes(home.clone().into()))];
    let (outcome, point) = store
        .update(Update::put(layout::packs_home(), attributes).when(Condition::Absent))
        .await?;
    store.externalize(point).await?;
    match outcome {
        Outcome::Done(_) => Ok(home),
        // A lost answer; or another node was faster, perhaps with another object store.
        Outcome::Conflict(row) => {
            let home = row.as_deref().and_then(home_of).unwrap_or_default();
            live_there(store, objects, home).await
        }
    }
}
