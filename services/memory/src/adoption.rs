//! The rows of a server that is gone: pending segments and events of objects.
//!
//! A server takes the rows over in this order. It deletes the life row, and from then on the other
//! server adds no row. It moves each pending row to its own, and delivers each event. Then it removes
//! the member row. A crash between any two steps leaves the rest to the next server.
//!
//! The other server may be alive and slow. The move of a pending row and the commit of its content
//! exclude each other, because both remove the row.

use std::sync::Arc;

use bytes::Bytes;
use primitives::Mutant;

use crate::{
    Result,
    broken::Broken,
    collector::Queue,
    events::Outbox,
    members::{BEAT, Members},
    storage::{members, own::MemberId, pending, table::Table},
};

/// Takes over what servers leave.
#[derive(Debug)]
pub(crate) struct Adoption {
    pub(crate) table: Table,
    pub(crate) members: Arc<Members>,
    pub(crate) garbage: Arc<Queue>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) mutant: Mutant<Broken>,
}

impl Adoption {
    /// Runs until it is dropped.
    pub(crate) async fn run(&self) {
        loop {
            self.table.clock.sleep(BEAT).await;
            for member in self.members.gone() {
                match self.adopt(member).await {
                    Ok(()) => tracing::info!("took over the rows of a server that is gone"),
                    Err(error) => {
                        tracing::debug!(%error, "the rows of a server cannot be taken over yet");
                    }
                }
            }
        }
    }

    async fn adopt(&self, member: MemberId) -> Result<()> {
        let is_broken = self.mutant.breaks(Broken::CommitsAfterEnd);
        if !is_broken {
            members::end(&self.table, member).await?;
        }
        let mut from = Some(Bytes::new());
        while let Some(start) = from {
            let (ids, next) = pending::page(&self.table, Some(member), start).await?;
            for (id, _) in ids {
                pending::adopt(&self.table, member, id, is_broken).await?;
                // A move that another server made first is not there.
                self.garbage.add(id);
            }
            from = next;
        }
        self.outbox.deliver_all(Some(member)).await?;
        members::forget(&self.table, member).await
    }
}
