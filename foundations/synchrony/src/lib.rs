//! A store that orders near and is durable far, with a barrier for what leaves.
//!
//! A write returns when it is ordered near; whoever lets something out waits until it is durable far.
//!
//! A *range* of keys has one owner, [`Synchrony`], over a near store (any [`KeyValue`](ports::KeyValue) that transacts) and a far
//! one. Who writes does so in a [`Lane`], which is a `KeyValue` itself: one lane for each workflow, whose order is kept far
//! whatever fails. [`Externalize::externalize`](ports::Externalize::externalize) is the barrier.
//!
//! Promises
//! - **E1** The far store never has what the durable near store has not (rule W-2).
//! - **E2** What is far of a lane is a prefix of what it wrote, and never without what the lane had read or overwritten of other lanes.
//!   One call's changes are there whole or not at all.
//! - **E3** A barrier that returned `Ok` covers everything that its lane had written and read up to the point, and what that rests on:
//!   it survives the loss of the near store.
//! - **E4** What was written once is applied far once, whatever is repeated, late, or answered never.
//! - **E5** A read sees the last write that was acknowledged, whether the key is near, far, being sent, being fetched or evicted.
//! - **E6** A far error that waiting may help is waited for, in order, for ever, and [`Synchrony::health`] says so; one that it cannot
//!   poisons its lane from there on, and every lane that depends on it: barriers and later writes are refused with it.
//! - **E7** Writers wait while more is pending than the bounds of bytes and age say; nothing is dropped.
//! - **E8** What the far store would refuse for its size is refused at the near write.
//! - **E9** After a start the unsent tail is in place before the first call is served, and later writes come behind it.
//! - **E10** A range has one owner. After a successor's claim, no write of the predecessor becomes far, and no barrier of it returns `Ok`.
//!   Who gives signs of life (barriers; over a shared near store writes, too) keeps the range until it gives it up.
//! - **E11** A barrier with nothing pending makes no far call while the lease holds; with nobody waiting, nothing is called at all.
//! - **E12** The near store holds no more than its bound of clean items, besides what is pending.
//!
//! Not promised: that somebody who reads the far store directly sees the last write (it sees a causal prefix), or, if the near store
//! is lost for good, anything that no barrier covered.
//!
//! Reading order: `layout` (what lies where), `stream` (what is sent when, without I/O), `writer`, `reader`, `sender`, `opening`.
//! `docs/design/0004-synchrony.md` says what a death between two lines leaves.
//!
//! From `external-synchrony.txt`, sections 3.1 to 3.5; ours differs in the stream at rest, batches under way together, and owners.

mod broken;
mod engine;
mod evaluation;
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
