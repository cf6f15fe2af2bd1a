//! The sender: executes the decisions of the stream, all independent calls at the same time.

use std::sync::Arc;

use futures_util::{
    FutureExt,
    future::{BoxFuture, OptionFuture},
    stream::{FuturesUnordered, StreamExt},
};
use ports::{
    Condition, DurabilityPoint, Error, ErrorKind, Key, Result, Update,
    key_value::{Change, Test, Transacted, Value},
};

use super::Engine;
use crate::{
    broken::Broken,
    health::Ended,
    layout::{OWNER, SEQUENCE, VERSION, cursor_of, cursor_sort, far_change},
    owner::epoch_is,
    stream::{Outgoing, Verdict},
};

type Landed = (Outgoing, Verdict);

/// The index of the first item among the updates of a batch: after owner row and cursor.
const ITEMS_FROM: usize = 2;

impl Engine {
    pub(crate) async fn send(self: Arc<Self>) -> Result<()> {
        let mut under_way: FuturesUnordered<BoxFuture<'static, Landed>> = FuturesUnordered::new();
        let mut near: Option<BoxFuture<'static, Result<u64>>> = None;
        loop {
            let work = self.work.notified();
            tokio::pin!(work);
            work.as_mut().enable();
            let now = self.clock.monotonic();
            let (batches, wanted, wakes_at) = {
                let stream = &mut self.state().stream;
                let batches = stream.take_batches(now);
                (batches, stream.near_wanted(), stream.wakes_at(now))
            };
            let flights = batches.into_iter();
            under_way.extend(flights.map(|batch| Arc::clone(&self).fly(batch).boxed()));
            if near.is_none() {
                near = wanted.map(|(position, point)| {
                    Arc::clone(&self).make_near_durable(position, point).boxed()
                });
            }
            let wake = OptionFuture::from(wakes_at.map(|at| self.clock.sleep(at.since(now))));
            tokio::select! {
                biased;
                Some((batch, verdict)) = under_way.next(), if !under_way.is_empty() => self.land(&batch, verdict),
                Some(durable) = OptionFuture::from(near.as_mut()), if near.is_some() => {
                    near = None;
                    self.state().stream.near_is_durable(durable?);
                }
                () = &mut work => {}
                Some(()) = wake, if wakes_at.is_some() => {}
            }
        }
    }

    /// Makes the near store durable up to a position, before any of it is sent (E1).
    async fn make_near_durable(
        self: Arc<Self>,
        position: u64,
        point: DurabilityPoint,
    ) -> Result<u64> {
        loop {
            match self.stores.near.externalize(point).await {
                Ok(()) => return Ok(position),
                Err(error) if error.kind() == ErrorKind::Lost => {
                    self.end(Ended::NearLost);
                    return Err(error);
                }
                Err(error) if error.is_retryable() => self.clock.sleep(self.pause()).await,
                Err(error) => return Err(error),
            }
        }
    }

    fn land(&self, batch: &Outgoing, verdict: Verdict) {
        let now = self.clock.monotonic();
        let done = {
            let mut state = self.state();
            if matches!(verdict, Verdict::AppliedUntil(_)) {
                state.failing = None;
            }
            state.stream.settle(batch, verdict, now, &*self.entropy)
        };
        self.have_cleaned(done);
        self.changed.notify_waiters();
    }

    async fn fly(self: Arc<Self>, batch: Outgoing) -> Landed {
        let sent = self.clock.monotonic();
        let answer = self.stores.far.transact(self.far_updates(&batch)).await;
        let verdict = self.verdict_of_answer(&batch, answer).await;
        let mut verdict = verdict.unwrap_or_else(|error| self.verdict_of(error));
        if matches!(verdict, Verdict::AppliedUntil(_) | Verdict::Early) {
            let mut state = self.state();
            state.lease.proven = state.lease.proven.max(Some(sent));
        }
        if self.state().ended.is_some() {
            verdict = Verdict::Failed;
        }
        (batch, verdict)
    }

    /// The far transaction of a batch. Its conditions: the epoch is ours, the lane's cursor is just
    /// before the batch, and each key's far version is lower.
    fn far_updates(&self, batch: &Outgoing) -> Vec<Update> {
        let shard = &self.stores.shard;
        let (first, last) = (*batch.sequences.start(), *batch.sequences.end());
        let mutant = self.options.mutant;
        let unless_broken = |rule, condition| {
            if mutant.breaks(rule) {
                Condition::Always
            } else {
                condition
            }
        };
        let skips =
            mutant.breaks(Broken::SendsPastAFailure) || mutant.breaks(Broken::SkipsWhatFails);
        let is_absent_or_below = |name: &'static str, value: i64| {
            Condition::Any(vec![
                Condition::Absent,
                Condition::attribute(name, Test::Below(value)),
            ])
        };
        let cursor = match first {
            _ if skips => is_absent_or_below(SEQUENCE, last as i64),
            1 => Condition::Absent,
            _ => Condition::attribute(SEQUENCE, Test::is_integer(first as i64 - 1)),
        };
        let moved = Change::Put(vec![(SEQUENCE.into(), Value::Integer(last as i64))]);
        let mut updates = vec![
            Update::check(
                Key::new(shard, OWNER),
                unless_broken(Broken::DeposedWritesOn, epoch_is(self.epoch)),
            ),
            Update::of(Key::new(shard, cursor_sort(batch.lane)), moved).when(cursor),
        ];
        for (key, (written, payload)) in &batch.changes {
            let change = far_change(written.version, written.memory.as_deref(), payload.as_ref());
            let is_newer = is_absent_or_below(VERSION, written.version.0 as i64);
            let condition = unless_broken(Broken::OldOverwritesNewer, is_newer);
            updates.push(Update::of(Key::new(shard, key), change).when(condition));
        }
        updates
    }

    async fn verdict_of_answer(
        &self,
        batch: &Outgoing,
        answer: Result<Transacted>,
    ) -> Result<Verdict> {
        let (index, item, point) = match answer? {
            Transacted::Done { receipt, .. } => {
                self.stores.far.externalize(receipt.point).await?;
                return Ok(Verdict::AppliedUntil(*batch.sequences.end()));
            }
            Transacted::Conflict {
                index,
                item,
                receipt,
            } => (index, item, receipt.point),
        };
        match index {
            0 => {
                self.end(Ended::Deposed);
                Ok(Verdict::Failed)
            }
            1 => {
                let cursor = item.as_deref().and_then(cursor_of).unwrap_or(0);
                if cursor < *batch.sequences.start() {
                    return Ok(Verdict::Early);
                }
                // An earlier attempt arrived, perhaps with fewer records, and its response was
                // lost.
                self.stores.far.externalize(point).await?;
                Ok(Verdict::AppliedUntil(cursor.min(*batch.sequences.end())))
            }
            index => {
                let key = batch.changes.keys().nth(index - ITEMS_FROM);
                let key = key.map_or(&b""[..], |key| key).escape_ascii();
                let why = format!("write {key} far, where another process has written");
                Err(Error::corrupt(why))
            }
        }
    }

    /// The verdict for an error. `Lost`: the far store restarted and lost the batch.
    fn verdict_of(&self, error: Error) -> Verdict {
        if error.is_retryable() || error.kind() == ErrorKind::Lost {
            self.far_failed(&error);
            return Verdict::Failed;
        }
        Verdict::Refused(error)
    }
}
