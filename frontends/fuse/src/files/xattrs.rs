//! Calls on extended attributes.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use files::{Ino, model::SetMode};
use futures_util::future::FutureExt as _;
use nix::libc;

use super::{
    Node,
    answer::{Answer, Outcome},
};
use crate::wire::{Errno, Reply};

/// Access control lists are here. The kernel would not check those that we store.
const SYSTEM: &[u8] = b"system.";

/// Errors: `EOPNOTSUPP` for attributes of the system.
pub(super) fn check(name: &[u8]) -> Result<(), Errno> {
    if name.starts_with(SYSTEM) {
        Err(Errno::EOPNOTSUPP)
    } else {
        Ok(())
    }
}

/// Errors: `ERANGE` if the caller's buffer is too short.
fn sized(value: Bytes, size: u32) -> Outcome {
    if size == 0 {
        Ok(Answer::Reply(Reply::Length(value.len() as u32)))
    } else if value.len() > size as usize {
        Err(Errno::new(libc::ERANGE))
    } else {
        Ok(Answer::Data(value))
    }
}

impl Node {
    pub(super) async fn get_xattr(self: Arc<Self>, ino: Ino, size: u32, name: Bytes) -> Outcome {
        let value = self.calls.run(move |transaction| {
            let name = name.clone();
            async move { transaction.getxattr(ino, &name).await }.boxed()
        });
        sized(value.await?, size)
    }

    pub(super) async fn set_xattr(
        self: Arc<Self>,
        ino: Ino,
        flags: u32,
        name: Bytes,
        value: Bytes,
    ) -> Outcome {
        let mode = match flags.cast_signed() {
            0 => SetMode::Any,
            libc::XATTR_CREATE => SetMode::Create,
            libc::XATTR_REPLACE => SetMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let set = self.calls.change(move |transaction| {
            let (name, value) = (name.clone(), value.clone());
            async move { transaction.setxattr(ino, mode, &name, &value).await }.boxed()
        });
        set.await?;
        Ok(Answer::Done)
    }

    pub(super) async fn list_xattrs(self: Arc<Self>, ino: Ino, size: u32) -> Outcome {
        let names = self
            .calls
            .run(move |transaction| transaction.listxattr(ino).boxed());
        let mut list = BytesMut::new();
        for name in names.await? {
            list.put_slice(&name);
            list.put_u8(0);
        }
        sized(list.freeze(), size)
    }

    pub(super) async fn remove_xattr(self: Arc<Self>, ino: Ino, name: Bytes) -> Outcome {
        let removed = self.calls.change(move |transaction| {
            let name = name.clone();
            async move { transaction.removexattr(ino, &name).await }.boxed()
        });
        removed.await?;
        Ok(Answer::Done)
    }
}
