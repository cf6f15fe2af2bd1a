//! One transaction: calls in program order over one snapshot, committed as one proposal.
//!
//! The mapping checks no permissions: a mount asks the kernel to (`default_permissions`). It
//! records the permissions that such a check needs. A lookup depends on those of the inode, and a
//! call that changes a directory on the directory's.

mod attributes;
mod blocks;
mod data;
mod directory;
mod keys;
mod rename;
mod xattrs;

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::{Clock, DurabilityPoint, Entropy};
use primitives::Mutant;
use transactions::serializable::{
    VolumeStore,
    model::{Key, Lock, LockMode, ProposalId, Refusal, Slot, StageId, Verdict},
};

use crate::{
    broken::Broken,
    error::{Errno, Result},
    inode::{self, Field},
    leased::LeasedVolume,
    model::{Ino, Kind, Time},
    overlay::Overlay,
    remembered::Remembered,
};

pub use self::{
    blocks::Block,
    data::{FILE_BYTES_MAX, READ_BYTES_MAX},
    directory::Listing,
    xattrs::XATTR_BYTES_MAX,
};

/// The pause before a proposal is sent again to a volume that did not answer.
const PAUSE: Duration = Duration::from_millis(50);

/// The state that all transactions of one client share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) store: Arc<dyn VolumeStore>,
    /// The store, if it has a memory.
    pub(crate) leased: Option<Arc<LeasedVolume>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) mutant: Mutant<Broken>,
    pub(crate) remembered: Arc<Remembered>,
    /// Reserved inode numbers that are not used yet.
    numbers: Mutex<std::ops::Range<u64>>,
}

/// Calls on a volume that take effect together. It takes place at its commit, and reads as of its
/// begin. Dropping it forgets it.
///
/// Errors of all calls: `EIO` if the volume does not answer or a value is damaged; `ESTALE` if the
/// snapshot is too old; `ENOENT` for an inode that is gone.
#[derive(Debug)]
pub struct Transaction {
    pub(crate) context: Arc<Context>,
    pub(crate) overlay: Overlay,
    pub(crate) steps: Steps,
    /// The blocks that a call failed to clear, as they are too many for one transaction.
    pub(crate) too_long: Option<(Ino, u64, u64)>,
    /// How many of its blocks have written and not ended well.
    unfinished: Arc<AtomicUsize>,
    /// The number of the next inode that it makes, if its caller has taken one.
    pub(crate) number: Option<Ino>,
}

/// The treatment of a range of more blocks than a transaction can delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Steps {
    /// It deletes those that exist, unless they are too many.
    None,
    /// It asks for transactions before it that delete most of them.
    Ahead,
}

/// The end of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It takes effect. After `point` is externalized it survives any crash.
    Committed {
        /// The point.
        point: DurabilityPoint,
    },
    /// Another transaction wrote a value that it read. Without a key: its snapshot is too old, its
    /// stage is lost, or the volume did not answer one of its calls. Nothing took effect. Begin
    /// again.
    Conflict {
        /// The key that conflicted.
        key: Option<Key>,
    },
}

impl Context {
    pub(crate) fn new(
        store: Arc<dyn VolumeStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        mutant: Mutant<Broken>,
    ) -> Self {
        Self {
            store,
            leased: None,
            clock,
            entropy,
            mutant,
            remembered: Arc::default(),
            numbers: Mutex::new(0..0),
        }
    }

    fn random_bytes(&self) -> [u8; 16] {
        let (high, low) = (self.entropy.next_u64(), self.entropy.next_u64());
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }
}

impl Transaction {
    /// A transaction at `at`; `None`: at its first read.
    pub(crate) fn new(context: Arc<Context>, at: Option<Slot>) -> Self {
        let overlay = Overlay::new(context.store.clone(), at);
        Self {
            context,
            overlay,
            steps: Steps::None,
            too_long: None,
            unfinished: Arc::default(),
            number: None,
        }
    }

    /// The inodes that it changes.
    pub fn changed(&self) -> Vec<Ino> {
        self.overlay.changed()
    }

    /// The point that its answers so far depend on.
    pub fn point(&self) -> DurabilityPoint {
        self.overlay.point()
    }

    /// The slot that its reads are at; `None` before the first.
    pub fn slot(&self) -> Option<Slot> {
        self.overlay.at()
    }

    /// Takes a lock without asking for it (F-1). The transaction conflicts if another session has a
    /// lock on its inode at the commit, or has had one since the begin. A test that finds the lock
    /// free counts as well: the process learns that no other has it. The processes of one
    /// transaction need a table of locks of their own.
    pub fn elide_lock(&mut self, lock: &Lock) {
        if lock.mode != LockMode::Unlocked && !self.context.mutant.breaks(Broken::ElidesHeldLocks) {
            self.overlay.require_unlocked(lock.key.clone());
        }
    }

    /// Commits it. `id` identifies the transaction in repeats; `None`: a random one. While the
    /// volume does not answer, the same proposal is repeated until `is_late` says otherwise.
    /// Errors: `EDQUOT`, `ENOSPC`, `EMLINK`, `EFBIG`, and `EIO`, after which the outcome is not
    /// known.
    pub async fn commit(
        self,
        id: Option<ProposalId>,
        is_late: impl Fn() -> bool + Send,
    ) -> Result<Outcome> {
        Ok(self.commit_at(id, is_late).await?.0)
    }

    /// As [`commit`](Self::commit), with the slot of a transaction that has written anything: its
    /// reads held until there.
    pub async fn commit_at(
        mut self,
        id: Option<ProposalId>,
        is_late: impl Fn() -> bool + Send,
    ) -> Result<(Outcome, Option<Slot>)> {
        let conflict = |key| Ok((Outcome::Conflict { key }, None));
        if self.overlay.needs_no_verdict() {
            self.learn(None);
            let point = self.overlay.point();
            return Ok((Outcome::Committed { point }, None));
        }
        if self.overlay.failure().is_some() {
            // A call has failed half way.
            return conflict(None);
        }
        let id = match id {
            Some(id) => id,
            None => {
                ProposalId::new(self.context.random_bytes().to_vec(), 0).map_err(|_| Errno::EIO)?
            }
        };
        let stage = StageId(self.context.random_bytes());
        let proposal = match self.overlay.propose(id, stage).await {
            Ok(proposal) => proposal,
            // Nothing was proposed yet, so the calls may run again.
            Err(_) if !self.is_final() => return conflict(None),
            Err(errno) => return Err(errno),
        };
        let verdict = loop {
            let answer = self.context.store.commit(proposal.clone()).await;
            let is_unavailable = matches!(answer, Err(transactions::Error::Unavailable(_)));
            if !is_unavailable || is_late() {
                break self.overlay.note(answer)?;
            }
            self.context.clock.sleep(PAUSE).await;
        };
        match verdict {
            Verdict::Committed { slot, .. } => {
                self.learn(Some(slot));
                let slot = (!self.overlay.is_read_only()).then_some(slot);
                let point = self.overlay.point();
                Ok((Outcome::Committed { point }, slot))
            }
            Verdict::Conflict { key } => conflict(Some(key)),
            // A stage is lost if the server has started again.
            Verdict::SnapshotTooOld | Verdict::Refused(Refusal::Stage) => conflict(None),
            Verdict::Refused(refusal) => Err(match refusal {
                Refusal::Quota => Errno::EDQUOT,
                Refusal::NoRoom => Errno::ENOSPC,
                Refusal::OutOfRange(key) if key.name() == "n" => Errno::EMLINK,
                Refusal::OutOfRange(_) | Refusal::TooManyNumbers => Errno::EFBIG,
                Refusal::NoNumber(_) | Refusal::Superseded | Refusal::Stage => Errno::EIO,
            }),
        }
    }

    /// Remembers the values that it has read. If it has committed at `at`, remembers also those
    /// that it has written.
    pub(crate) fn learn(&self, at: Option<Slot>) {
        let known = self.overlay.known(at, self.context.clock.monotonic());
        self.context.remembered.learn(known.into_iter());
    }

    /// The time of a call.
    fn now(&self) -> Time {
        let ms = self.context.clock.now().0;
        Time {
            seconds: (ms / 1_000) as i64,
            nanoseconds: (ms % 1_000) as u32 * 1_000_000,
        }
    }

    /// Reads ahead the keys that the next calls of this transaction read, in one call of the
    /// volume.
    async fn prefetch(&mut self, ino: Ino, fields: &[Field]) -> Result<()> {
        let keys = fields.iter().map(|field| inode::field(ino, *field));
        let keys: Vec<Key> = keys.collect();
        self.overlay.fetch(&keys).await
    }

    /// The type of an inode. Errors: `ENOENT` if it is gone.
    pub(crate) async fn kind(&mut self, ino: Ino) -> Result<Kind> {
        let found = self
            .overlay
            .get(inode::field(ino, Field::Existence))
            .await?;
        inode::kind_in(&found.ok_or(Errno::ENOENT)?)
    }

    /// Sets the times of a change: `ctime`, and for `Mtime` also that.
    fn touch(&mut self, ino: Ino, fields: &[Field]) {
        let now = inode::time_bytes(self.now());
        for field in fields {
            self.overlay.put(inode::field(ino, *field), now.clone());
        }
    }

    /// A number that no inode has had.
    pub(crate) async fn new_ino(&mut self) -> Result<Ino> {
        if let Some(ino) = self.number.take() {
            return Ok(ino);
        }
        if let Some(number) = self.context.numbers.lock().next() {
            return Ok(Ino(number));
        }
        let reserved = self.context.store.reserve_numbers().await;
        let reserved = reserved.map(ports::Read::durable);
        let mut reserved = self.overlay.note(reserved)?;
        let number = reserved.next().ok_or(Errno::EIO)?;
        // Of two calls at once, the range of the first is lost, which costs nothing.
        *self.context.numbers.lock() = reserved;
        Ok(Ino(number))
    }

    /// Whether a refusal is the answer of a state, and not of a volume that another try may reach.
    pub(crate) fn is_final(&self) -> bool {
        use transactions::Error;
        !matches!(
            self.overlay.failure(),
            Some(Error::Unavailable(_) | Error::SnapshotTooOld)
        )
    }

    /// Errors: `ENOENT` if the inode is gone, or about to be deleted.
    pub(crate) async fn must_live(&mut self, ino: Ino) -> Result<()> {
        let keys = [inode::field(ino, Field::Existence), inode::orphan(ino)];
        let [kind, orphan] = self.overlay.get_many(keys).await?;
        if kind.is_none() || orphan == Some(inode::DYING) {
            return Err(Errno::ENOENT);
        }
        Ok(())
    }

    /// Deletes all that an inode consists of, but blocks, entries and the orphan candidate.
    pub(crate) async fn delete_fields(&mut self, ino: Ino) -> Result<()> {
        for name in self.xattr_names(ino).await? {
            self.overlay.delete(inode::xattr(ino, &name));
        }
        for field in Field::ALL {
            self.overlay.delete(inode::field(ino, field));
        }
        Ok(())
    }

    /// Takes a name from an inode that is not a directory.
    fn drop_link(&mut self, ino: Ino) {
        self.overlay.add(inode::field(ino, Field::Links), -1);
        self.overlay.put(inode::orphan(ino), inode::CANDIDATE);
        self.touch(ino, &[Field::Ctime]);
    }

    async fn xattr_names(&mut self, ino: Ino) -> Result<Vec<Bytes>> {
        let (mut names, mut rest) = (Vec::new(), Some(inode::xattrs(ino)));
        while let Some(range) = rest {
            let (found, next) = self.overlay.scan(&range, 1_000).await?;
            names.extend(found.into_iter().map(|entry| entry.name.slice(1..)));
            let following = next.map(|next| range.starting_at(next));
            rest = following.transpose().map_err(|_| Errno::EIO)?;
        }
        Ok(names)
    }
}
