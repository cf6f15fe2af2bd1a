//! Stores and queues that return the always durable point with answers of one kind (D6).

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;

use super::{Crashed, Twisting, around};
use crate::{
    DurabilityPoint, Item, Key, KeyValue, Queue, Receipt, Result, Update,
    contract::durability::Subject,
    decorate::{KeyValueDecorator, QueueDecorator},
    decorates,
    key_value::{Outcome, Page, Read, Scan, SharedKeyValue, Transacted, Updated},
    queue::{Handle, QueueOptions, SharedQueue},
};

/// A kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// To `get`, with an item.
    Item,
    /// To `get`, without an item.
    NoItem,
    /// To `scan`, with items.
    Page,
    /// To `scan`, without items.
    EmptyPage,
    /// To an update whose condition did not hold.
    Conflict,
    /// To an operation that was done before.
    Repeat,
    /// To an update that changed nothing.
    Unchanged,
    /// To a transaction with a condition that did not hold.
    TransactionsConflict,
    /// To a transaction of operations that were done before.
    RepeatedTransaction,
    /// To a transaction that changed nothing.
    UnchangedTransaction,
}

/// Returns the point that needs no waiting with answers of one kind.
#[derive(Debug)]
struct CoversNothing {
    honest: SharedKeyValue,
    of: Answer,
}

macro_rules! covering_nothing {
    ($($name:ident, $answer:ident;)*) => {
        $(pub(super) fn $name(honest: Subject) -> Subject {
            around(honest, |honest| CoversNothing { honest, of: Answer::$answer })
        })*
    };
}

covering_nothing! {
    of_an_item, Item;
    of_no_item, NoItem;
    of_a_page, Page;
    of_an_empty_page, EmptyPage;
    of_a_conflict, Conflict;
    of_a_repeat, Repeat;
    of_an_unchanged_item, Unchanged;
    of_a_repeated_transaction, RepeatedTransaction;
    of_an_unchanged_transaction, UnchangedTransaction;
    of_a_transactions_conflict, TransactionsConflict;
}

impl CoversNothing {
    fn spoil(&self, answer: Answer, point: &mut DurabilityPoint) {
        if answer == self.of {
            *point = DurabilityPoint::DURABLE;
        }
    }
}

decorates!(CoversNothing, dyn KeyValue, honest);

impl KeyValueDecorator for CoversNothing {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        let mut read = self.honest.get(key).await?;
        let answer = if read.value.is_some() {
            Answer::Item
        } else {
            Answer::NoItem
        };
        self.spoil(answer, &mut read.point);
        Ok(read)
    }
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        let mut read = self.honest.scan(scan).await?;
        let answer = if read.value.items.is_empty() {
            Answer::EmptyPage
        } else {
            Answer::Page
        };
        self.spoil(answer, &mut read.point);
        Ok(read)
    }
    async fn update(&self, update: Update) -> Result<Updated> {
        let (before, is_operation) = (self.honest.point(), update.operation.is_some());
        let mut updated = self.honest.update(update).await?;
        match &updated.outcome {
            Outcome::Conflict(_) => self.spoil(Answer::Conflict, &mut updated.receipt.point),
            Outcome::Done(_) if self.honest.point() > before => {}
            Outcome::Done(_) if is_operation => {
                self.spoil(Answer::Repeat, &mut updated.receipt.point);
            }
            Outcome::Done(_) => self.spoil(Answer::Unchanged, &mut updated.receipt.point),
        }
        Ok(updated)
    }
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let (before, are_operations) = (
            self.honest.point(),
            updates.iter().all(|update| update.operation.is_some()),
        );
        let mut transacted = self.honest.transact(updates).await?;
        match &mut transacted {
            Transacted::Conflict { receipt, .. } => {
                self.spoil(Answer::TransactionsConflict, &mut receipt.point);
            }
            Transacted::Done { .. } if self.honest.point() > before => {}
            Transacted::Done { receipt, .. } => {
                let answer = if are_operations {
                    Answer::RepeatedTransaction
                } else {
                    Answer::UnchangedTransaction
                };
                self.spoil(answer, &mut receipt.point);
            }
        }
        Ok(transacted)
    }
}

/// A kind of receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// For making a queue.
    Creation,
    /// For making a queue that existed already.
    RepeatedCreation,
    /// For acknowledging messages again.
    RepeatedAcknowledgement,
    /// For releasing a message.
    Release,
}

pub(super) fn of_queues(honest: Subject, of: Given) -> Subject {
    Box::new(Crashed(WithQueues {
        honest,
        of,
        done: Arc::default(),
    }))
}

/// A provider whose queues return the always durable point with receipts of one kind.
#[derive(Debug)]
struct WithQueues {
    honest: Subject,
    of: Given,
    done: Arc<Mutex<Done>>,
}

#[async_trait]
impl Twisting for WithQueues {
    fn honest(&self) -> &Subject {
        &self.honest
    }
    fn key_value(&self) -> SharedKeyValue {
        self.honest.key_value()
    }
    fn queue(&self) -> Option<SharedQueue> {
        let honest = self.honest.queue()?;
        Some(Arc::new(QueueCoversNothing {
            honest,
            of: self.of,
            done: Arc::clone(&self.done),
        }))
    }
    async fn crash_and_reopen(self) -> Self {
        Self {
            honest: self.honest.crash_and_reopen().await,
            ..self
        }
    }
}

/// Earlier calls of the queues.
#[derive(Debug, Default)]
struct Done {
    created: BTreeSet<String>,
    acknowledged: Vec<(String, Handle)>,
}

#[derive(Debug)]
struct QueueCoversNothing {
    honest: SharedQueue,
    of: Given,
    done: Arc<Mutex<Done>>,
}

impl QueueCoversNothing {
    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spoiled(&self, given: Given, receipt: Receipt) -> Receipt {
        if given == self.of {
            Receipt {
                point: DurabilityPoint::DURABLE,
            }
        } else {
            receipt
        }
    }
}

decorates!(QueueCoversNothing, dyn Queue, honest);

impl QueueDecorator for QueueCoversNothing {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        let receipt = self.honest.create(queue, options).await?;
        let is_first = self.done().created.insert(queue.to_owned());
        Ok(self.spoiled(
            if is_first {
                Given::Creation
            } else {
                Given::RepeatedCreation
            },
            receipt,
        ))
    }
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        let receipt = self.honest.acknowledge(queue, handles).await?;
        let asked: Vec<_> = handles
            .iter()
            .map(|handle| (queue.to_owned(), handle.clone()))
            .collect();
        let mut done = self.done();
        if asked.iter().all(|asked| done.acknowledged.contains(asked)) {
            return Ok(self.spoiled(Given::RepeatedAcknowledgement, receipt));
        }
        done.acknowledged.extend(asked);
        Ok(receipt)
    }
    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        let receipt = self.honest.release(queue, handle, delay_ms, reason).await?;
        Ok(self.spoiled(Given::Release, receipt))
    }
}
