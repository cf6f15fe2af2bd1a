//! The inodes that this client has open: the volume is told the first open and the last close.
//!
//! Opens and closes of one inode reach the volume in their order, and those of different inodes do
//! not wait for each other. The client forgets an inode only after the volume has answered its
//! release. A release without an answer is sent again at the next close or open.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use bytes::Bytes;
use futures_util::future::{FutureExt as _, join};
use parking_lot::Mutex;
use transactions::Error;

use super::{CALL_TIME_MAX, FileSystem, PAUSE_MS_MAX, hold_key};
use crate::{
    error::{Errno, Result},
    model::{Access, Attributes, Ino},
};

/// How often each inode is open.
#[derive(Debug, Default)]
pub(super) struct OpenInodes(Mutex<BTreeMap<Ino, Arc<tokio::sync::Mutex<Opened>>>>);

#[derive(Debug, Default)]
struct Opened {
    count: u64,
    /// The volume may count it as held.
    is_held: bool,
}

impl OpenInodes {
    fn of(&self, ino: Ino) -> Arc<tokio::sync::Mutex<Opened>> {
        self.0.lock().entry(ino).or_default().clone()
    }

    /// Forgets an inode that is neither open nor held, and that no other call is using.
    fn tidy(&self, ino: Ino) {
        let inodes = &mut *self.0.lock();
        let is_unused = inodes.get_mut(&ino).is_some_and(|opened| {
            let opened = Arc::get_mut(opened).map(tokio::sync::Mutex::get_mut);
            opened.is_some_and(|opened| opened.count == 0 && !opened.is_held)
        });
        if is_unused {
            inodes.remove(&ino);
        }
    }
}

impl FileSystem {
    /// Notes that the inode is open: its data stay when its last name goes, until as many calls of
    /// [`close`](Self::close). Errors: `ENOENT` if it is gone.
    pub async fn hold(&self, ino: Ino) -> Result<()> {
        let held = self.hold_one(ino).await;
        self.opened.tidy(ino);
        held
    }

    /// Ends one [`hold`](Self::hold).
    pub async fn close(&self, ino: Ino) -> Result<()> {
        let closed = self.close_one(ino).await;
        self.opened.tidy(ino);
        closed
    }

    /// Creates a regular file without a name, and holds it. Errors: as
    /// [`Transaction::create_unnamed`](crate::Transaction::create_unnamed).
    pub async fn open_unnamed(&self, parent: Ino, access: Access) -> Result<Ino> {
        let number = self.transact(|transaction| transaction.new_ino().boxed());
        let ino = number.await?;
        // Held before it exists, so that the reaper does not take it.
        let made = self.open_new(ino, parent, access).await;
        self.opened.tidy(ino);
        made.map(|()| ino)
    }

    /// Creates a regular file, and holds it. Errors: as
    /// [`Transaction::create`](crate::Transaction::create).
    pub async fn open_created(
        &self,
        parent: Ino,
        access: Access,
        name: &Bytes,
    ) -> Result<Attributes> {
        let number = self.transact(|transaction| transaction.new_ino().boxed());
        let ino = number.await?;
        let made = self.open_created_as(ino, parent, access, name).await;
        self.opened.tidy(ino);
        made
    }

    async fn open_created_as(
        &self,
        ino: Ino,
        parent: Ino,
        access: Access,
        name: &Bytes,
    ) -> Result<Attributes> {
        let opened = self.opened.of(ino);
        let opened = &mut *opened.lock().await;
        opened.is_held = true;
        let store = &self.context.store;
        let held = self.answered(|| store.hold(self.session, hold_key(ino)));
        let made = self.change(move |transaction| {
            let name = name.clone();
            transaction.number = Some(ino);
            async move {
                transaction.create(parent, access, &name).await?;
                transaction.getattr(ino).await
            }
            .boxed()
        });
        // The hold is sent first, so it takes effect before another client can see the file.
        let (held, made) = join(held, made).await;
        if held.is_ok() && made.is_ok() {
            opened.count = 1;
        } else {
            self.release(ino, opened).await?;
        }
        held?;
        made
    }

    async fn open_new(&self, ino: Ino, parent: Ino, access: Access) -> Result<()> {
        let opened = self.opened.of(ino);
        let opened = &mut *opened.lock().await;
        opened.is_held = true;
        let store = &self.context.store;
        self.answered(|| store.hold(self.session, hold_key(ino)))
            .await?;
        let made = self
            .transact(move |transaction| transaction.put_unnamed(ino, parent, access).boxed())
            .await;
        match made {
            Ok(()) => opened.count = 1,
            Err(_) => self.release(ino, opened).await?,
        }
        made
    }

    async fn hold_one(&self, ino: Ino) -> Result<()> {
        let opened = self.opened.of(ino);
        let opened = &mut *opened.lock().await;
        if opened.count == 0 {
            // Set first: a call without an answer may have taken effect.
            opened.is_held = true;
            let store = &self.context.store;
            self.answered(|| store.hold(self.session, hold_key(ino)))
                .await?;
        }
        // After the hold: the reaper marks an inode first, and looks for holds then.
        let found = self
            .transact(move |transaction| transaction.must_live(ino).boxed())
            .await;
        match found {
            Ok(()) => opened.count += 1,
            Err(_) if opened.count == 0 => self.release(ino, opened).await?,
            Err(_) => {}
        }
        found
    }

    async fn close_one(&self, ino: Ino) -> Result<()> {
        let opened = self.opened.of(ino);
        let opened = &mut *opened.lock().await;
        opened.count = opened.count.saturating_sub(1);
        if opened.count == 0 && opened.is_held {
            self.release(ino, opened).await?;
        }
        Ok(())
    }

    async fn release(&self, ino: Ino, opened: &mut Opened) -> Result<()> {
        let (store, key) = (&self.context.store, hold_key(ino));
        self.answered(|| store.release(self.session, &key)).await?;
        opened.is_held = false;
        Ok(())
    }

    /// Repeats a call that may be repeated, while the volume does not answer it and the time of a
    /// call has not passed.
    pub(super) async fn answered<T, F>(&self, call: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = transactions::Result<T>>,
    {
        let clock = &self.context.clock;
        let deadline = clock.monotonic() + CALL_TIME_MAX;
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(Error::Unavailable(_)) if clock.monotonic() < deadline => {
                    let pause = std::time::Duration::from_millis(PAUSE_MS_MAX);
                    clock.sleep(pause).await;
                }
                Err(_) => return Err(Errno::EIO),
            }
        }
    }
}
