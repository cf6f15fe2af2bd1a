//! Content that is stored under no key yet.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Result,
    collector::Queue,
    events::Kind,
    fragment::Segment,
    holds::Hold,
    model::Body,
    storage::{
        pending::PendingId,
        rows::{ETag, Place},
    },
    writer,
};

/// Content that is stored under no key yet. Dropping it discards it.
#[derive(Debug)]
pub struct Stored {
    content: Content,
    md5: [u8; 16],
    is_copy: bool,
}

#[derive(Debug)]
enum Content {
    Inline(Bytes),
    Segment(Uncommitted),
}

#[derive(Debug)]
struct Uncommitted {
    segment: Segment,
    id: PendingId,
    is_committed: bool,
    garbage: Arc<Queue>,
    /// Released after the collector knows of the segment.
    _hold: Hold,
}

impl Drop for Uncommitted {
    fn drop(&mut self) {
        if !self.is_committed {
            self.garbage.add(self.id);
        }
    }
}

impl Stored {
    /// The content is that of another object.
    #[must_use]
    pub fn as_copy(mut self) -> Self {
        self.is_copy = true;
        self
    }

    pub(super) fn kind(&self) -> Kind {
        if self.is_copy { Kind::Copy } else { Kind::Put }
    }

    pub(super) async fn inline(body: Body, bytes: u64) -> Result<Self> {
        let (whole, md5) = writer::collect(body, bytes as usize).await?;
        if whole.len() as u64 != bytes {
            return Err(writer::too_short());
        }
        Ok(Self {
            content: Content::Inline(whole),
            md5,
            is_copy: false,
        })
    }

    pub(super) fn segment(
        segment: Segment,
        id: PendingId,
        hold: Hold,
        garbage: Arc<Queue>,
    ) -> Self {
        Self {
            content: Content::Segment(Uncommitted {
                segment,
                id,
                is_committed: false,
                garbage,
                _hold: hold,
            }),
            md5: [0; 16],
            is_copy: false,
        }
    }

    pub(super) fn set_md5(&mut self, md5: [u8; 16]) {
        self.md5 = md5;
    }

    pub(super) fn place(&self) -> Place {
        match &self.content {
            Content::Inline(bytes) => Place {
                rest: bytes.clone(),
                ..Place::default()
            },
            Content::Segment(stored) => Place {
                segments: vec![stored.segment],
                ..Place::default()
            },
        }
    }

    pub(super) fn pending(&self) -> Option<PendingId> {
        match &self.content {
            Content::Inline(_) => None,
            Content::Segment(stored) => Some(stored.id),
        }
    }

    pub(super) fn etag(&self) -> ETag {
        ETag {
            md5: self.md5,
            parts: None,
        }
    }

    /// A row names it from now on.
    pub(super) fn set_committed(&mut self) {
        if let Content::Segment(stored) = &mut self.content {
            stored.is_committed = true;
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.place().bytes()
    }

    /// The MD5 of its content.
    pub fn md5(&self) -> [u8; 16] {
        self.md5
    }
}
