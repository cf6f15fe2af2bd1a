//! A key-value store with a fast near copy and a durable far one, and a barrier for output.
//!
//! A write returns when it is ordered near. A caller that makes output visible first waits until
//! the write is durable far.
//!
//! A *shard* of keys has one owner, [`Synchrony`], over a near store (any
//! [`KeyValue`](ports::KeyValue) with transactions) and a far one. A writer uses a [`Lane`], which
//! is a `KeyValue` itself. Each run of a workflow has one lane, whose order is kept far through all
//! failures. [`Externalize::externalize`](ports::Externalize::externalize) is the barrier.
//!
//! Promises
//! - **E1** The far store never has a write that the durable near store lacks (rule W-2).
//! - **E2** The far store has a prefix of each lane's writes, never without the writes of other
//!   lanes that the lane had read or overwritten. The changes of one call are there as a whole or
//!   not at all.
//! - **E3** A barrier that returned `Ok` covers all that its lane had written and read up to the
//!   point, with its dependencies: they survive the loss of the near store.
//! - **E4** Each write is applied far once, even if requests are repeated, late or never answered.
//! - **E5** A read sees the last acknowledged write, whether the key is near, far, being sent,
//!   being fetched or evicted.
//! - **E6** A transient far error is retried in order, without end, and [`Synchrony::health`]
//!   reports it. A permanent one poisons its lane from that write on, and every lane that depends
//!   on it: their barriers and later writes fail with it.
//! - **E7** Writers wait while the pending writes exceed the limits of bytes and age; none is
//!   dropped.
//! - **E8** A write that is too large for the far store is refused near.
//! - **E9** After a start the unsent tail is in place before the first call, and later writes
//!   follow it.
//! - **E10** A shard has one owner. After a successor's claim, no write of the predecessor becomes
//!   far, and no barrier of it returns `Ok`. An owner that gives signs of life (barriers; over a
//!   shared near store writes, too) keeps the shard until it releases it.
//! - **E11** A barrier with nothing pending makes no far call while the lease holds. Without
//!   waiting callers there are no calls at all.
//! - **E12** Beside pending writes, the near store holds clean items only up to a limit.
//!
//! Not promised: that a direct reader of the far store sees the last write (it sees a causal
//! prefix). If the near store is lost permanently, writes that no barrier covered may be lost.
//!
//! Reading order: `layout` (rows and keys), `stream` (when records are sent, without I/O), `engine`
//! (reads, writes, barriers, the sender, the cleaner, the lease), `opening`.
//! `docs/design/0004-synchrony.md` describes the state after a death at each point.
//!
//! From `external-synchrony.txt`, sections 3.1 to 3.5. Unlike the paper, the stream is stored,
//! several batches are under way, and a shard has an owner.

mod broken;
mod engine;
mod health;
mod lane;
mod layout;
mod opening;
mod options;
mod owner;
mod stream;
mod synchrony;

pub use broken::Broken;
pub use engine::Stores;
pub use health::{Ended, Failing, Health};
pub use lane::Lane;
pub use layout::far_items;
pub use opening::Awaited;
pub use options::{Mode, Options};
pub use synchrony::Synchrony;
