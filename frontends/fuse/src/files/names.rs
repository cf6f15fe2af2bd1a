//! Calls on names and attributes.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use files::{
    Ino,
    model::{Access, Attributes, Kind, Privileges, RenameMode, SetAttributes},
};
use futures_util::future::FutureExt as _;
use nix::libc;

use super::{
    Creator, Node,
    answer::{Answer, Outcome},
};
use crate::wire::{Entry, Errno, Opened, Reply, SetAttr};

/// Defines calls that make a name: they run `$make` and return the attributes of the new inode.
macro_rules! makers {
    ($($(#[$doc:meta])* $name:ident: $make:ident($($more:ident: $type:ty)?);)*) => {
        impl Node {
            $(
                $(#[$doc])*
                pub(super) async fn $name(
                    self: Arc<Self>,
                    parent: Ino,
                    access: Access,
                    $($more: $type,)?
                    name: Bytes,
                ) -> Outcome {
                    let made = self.calls.change(move |transaction| {
                        let name = name.clone();
                        async move {
                            let ino = transaction.$make(parent, access, $($more,)? &name).await?;
                            transaction.getattr(ino).await
                        }
                        .boxed()
                    });
                    Ok(self.found(&made.await?))
                }
            )*
        }
    };
}

makers! {
    make_node: mknod(device: u32);
    make_directory: mkdir();
}

impl Node {
    pub(super) async fn lookup(self: Arc<Self>, parent: Ino, name: Bytes) -> Outcome {
        let is_shown = self.invocations.is_some();
        let asked = name.clone();
        if let Some(invocations) = &self.invocations {
            // Before the call: an end of the transaction meanwhile expires the name.
            invocations.give_name(parent, name);
        }
        let found = self.calls.run(move |transaction| {
            let name = asked.clone();
            async move {
                if is_shown {
                    transaction.stat_entry(parent, &name).await
                } else {
                    transaction.stat(parent, &name).await
                }
            }
            .boxed()
        });
        let found = found.await;
        let mut entry = match found {
            Ok(attributes) => self.entry(&attributes),
            // An entry without an inode lets the kernel remember that the name is free.
            Err(files::Errno::ENOENT) if !self.caching.ttl.is_zero() => Entry {
                name_ttl: self.caching.name_ttl,
                ..Entry::default()
            },
            Err(errno) => return Err(errno.into()),
        };
        if self.invocations.is_some() {
            entry.name_ttl = self.caching.ttl;
            if found.is_ok_and(|found| found.kind == Kind::Directory) {
                // The transaction depends on them only if a program asks for them.
                entry.attributes_ttl = Duration::ZERO;
            }
        }
        Ok(Answer::Reply(Reply::Entry(entry)))
    }

    pub(super) async fn get_attributes(self: Arc<Self>, ino: Ino) -> Outcome {
        let found = self
            .calls
            .run(move |transaction| transaction.getattr(ino).boxed());
        Ok(self.attributes(&found.await?))
    }

    pub(super) async fn set_attributes(self: Arc<Self>, ino: Ino, set: SetAttr) -> Outcome {
        self.changes(ino);
        let set = set_attributes(set);
        let changed = self.calls.change(move |transaction| {
            async move {
                transaction.setattr(ino, set).await?;
                transaction.getattr(ino).await
            }
            .boxed()
        });
        Ok(self.attributes(&changed.await?))
    }

    /// Creates and opens a file.
    pub(super) async fn create(
        self: Arc<Self>,
        parent: Ino,
        access: Access,
        flags: u32,
        name: Bytes,
    ) -> Outcome {
        let made = self.calls.open_created(parent, access, name);
        let attributes = match made.await {
            // The name was free when the kernel looked. ESTALE lets it look again, and check whether
            // the caller may open that file.
            Err(files::Errno::EEXIST) if flags & libc::O_EXCL as u32 == 0 => {
                return Err(Errno::new(libc::ESTALE));
            }
            made => made?,
        };
        self.opens_new(attributes.ino);
        Ok(self.created(&attributes, flags))
    }

    /// Creates and opens a file without a name.
    pub(super) async fn create_unnamed(
        self: Arc<Self>,
        parent: Ino,
        access: Access,
        flags: u32,
    ) -> Outcome {
        let ino = self.calls.open_unnamed(parent, access).await?;
        let found = self
            .calls
            .run(move |transaction| transaction.getattr(ino).boxed());
        match found.await {
            Ok(attributes) => {
                self.opens_new(ino);
                Ok(self.created(&attributes, flags))
            }
            Err(errno) => {
                self.calls.close(ino).await?;
                Err(errno.into())
            }
        }
    }

    pub(super) async fn symlink(
        self: Arc<Self>,
        parent: Ino,
        by: Creator,
        name: Bytes,
        target: Bytes,
    ) -> Outcome {
        let access = by.with(0o777);
        let made = self.calls.change(move |transaction| {
            let (name, target) = (name.clone(), target.clone());
            async move {
                let ino = transaction.symlink(parent, access, &name, &target).await?;
                transaction.getattr(ino).await
            }
            .boxed()
        });
        Ok(self.found(&made.await?))
    }

    pub(super) async fn read_link(self: Arc<Self>, ino: Ino) -> Outcome {
        let target = self
            .calls
            .run(move |transaction| transaction.readlink(ino).boxed());
        Ok(Answer::Data(target.await?))
    }

    pub(super) async fn link(self: Arc<Self>, ino: Ino, parent: Ino, name: Bytes) -> Outcome {
        let linked = self.calls.change(move |transaction| {
            let name = name.clone();
            async move {
                transaction.link(ino, parent, &name).await?;
                transaction.getattr(ino).await
            }
            .boxed()
        });
        Ok(self.found(&linked.await?))
    }

    pub(super) async fn unlink(self: Arc<Self>, parent: Ino, name: Bytes) -> Outcome {
        let unlinked = self.calls.change(move |transaction| {
            let name = name.clone();
            async move { transaction.unlink(parent, &name).await }.boxed()
        });
        unlinked.await?;
        Ok(Answer::Done)
    }

    pub(super) async fn remove_directory(self: Arc<Self>, parent: Ino, name: Bytes) -> Outcome {
        let removed = self.calls.change(move |transaction| {
            let name = name.clone();
            async move { transaction.rmdir(parent, &name).await }.boxed()
        });
        removed.await?;
        Ok(Answer::Done)
    }

    pub(super) async fn rename(
        self: Arc<Self>,
        from: Ino,
        to: Ino,
        flags: u32,
        name: Bytes,
        name_new: Bytes,
    ) -> Outcome {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::EINVAL),
        };
        if let Some(invocations) = &self.invocations {
            // The kernel moves what it knows of the names.
            invocations.give_name(from, name.clone());
            invocations.give_name(to, name_new.clone());
        }
        let renamed = self.calls.change(move |transaction| {
            let (name, name_new) = (name.clone(), name_new.clone());
            async move { transaction.rename(from, to, mode, &name, &name_new).await }.boxed()
        });
        renamed.await?;
        Ok(Answer::Done)
    }

    /// Notes that a file is opened that the kernel has no pages of.
    fn opens_new(&self, ino: Ino) {
        if let Some(invocations) = &self.invocations {
            invocations.open(ino, true);
            invocations.decided(ino, true, None);
            invocations.change(ino);
        }
    }

    fn created(&self, attributes: &Attributes, flags: u32) -> Answer {
        if self.gathers_writes() {
            self.writers.open(attributes.ino, flags);
        }
        let opened = Opened {
            handle: 0,
            flags: self.caching.open_flags,
        };
        Answer::Reply(Reply::Created(self.entry(attributes), opened))
    }

    fn found(&self, attributes: &Attributes) -> Answer {
        Answer::Reply(Reply::Entry(self.entry(attributes)))
    }

    fn attributes(&self, attributes: &Attributes) -> Answer {
        let ttl = self.ttl(attributes);
        Answer::Reply(Reply::Attributes(self.given(attributes), ttl))
    }
}

fn set_attributes(set: SetAttr) -> SetAttributes {
    SetAttributes {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime,
        mtime: set.mtime,
        privileges: privileges(set.kills_privileges),
    }
}

/// The effect of a request on set-user-ID bits.
pub(super) fn privileges(kills: bool) -> Privileges {
    if kills {
        Privileges::Clear
    } else {
        Privileges::Keep
    }
}
