//! The cases of [`KeyValue`](crate::KeyValue), one module per promise or few.

mod operations;
mod room;
mod scans;
mod single;
mod transactions;
mod transient;

use std::{fmt::Debug, sync::Arc};

use super::{Case, Spawn, in_place, together};
use crate::{
    Clock, ErrorKind, Item, Key, Update,
    key_value::{Outcome, Scan, SharedKeyValue, Transacted},
};

/// The disk of a store, if a test can fill it.
pub trait Disk: Debug + Send + Sync {
    /// Gives the store no more bytes than it has already taken.
    fn fill(&self);

    /// Removes that limit.
    fn empty(&self);
}

/// A fresh store, and further parts that the cases need.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The store under test.
    pub store: SharedKeyValue,
    /// The clock that the cases wait on.
    pub clock: Arc<dyn Clock>,
    /// How they run writers concurrently.
    pub spawn: Spawn,
    /// Its disk, if the provider's tests can fill it.
    pub disk: Option<Arc<dyn Disk>>,
}

impl Subject {
    /// A subject whose concurrent writers run on one thread.
    pub fn new(store: SharedKeyValue, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            spawn: in_place,
            disk: None,
        }
    }

    /// The same with concurrent writers run by `spawn`.
    pub fn spawning(mut self, spawn: Spawn) -> Self {
        self.spawn = spawn;
        self
    }

    /// The same on a disk that the cases may fill.
    pub fn on(mut self, disk: Arc<dyn Disk>) -> Self {
        self.disk = Some(disk);
        self
    }

    async fn get(&self, key: &Key) -> Option<Arc<Item>> {
        self.store.get(key).await.expect("get answers").value
    }

    async fn integer(&self, key: &Key, name: &str) -> Option<i64> {
        self.get(key).await.and_then(|item| item.integer(name))
    }

    async fn update(&self, update: Update) -> Outcome {
        self.store
            .update(update)
            .await
            .expect("update answers")
            .outcome
    }

    /// Updates and expects it to be done.
    async fn done(&self, update: Update) -> Option<Arc<Item>> {
        let asked = format!("{update:?}");
        match self.update(update).await {
            Outcome::Done(item) => item,
            Outcome::Conflict(item) => panic!("{asked} conflicts with {item:?}"),
        }
    }

    /// Updates and expects the item to be there afterwards.
    async fn kept(&self, update: Update) -> Arc<Item> {
        self.done(update)
            .await
            .expect("the item is there after the update")
    }

    /// Updates and expects the condition not to hold.
    async fn conflict(&self, update: Update) -> Option<Arc<Item>> {
        let asked = format!("{update:?}");
        match self.update(update).await {
            Outcome::Conflict(item) => item,
            Outcome::Done(item) => panic!("{asked} was done, giving {item:?}"),
        }
    }

    async fn transact(&self, updates: Vec<Update>) -> Transacted {
        self.store
            .transact(updates)
            .await
            .expect("transact answers")
    }

    /// Every page of a scan, in turn.
    async fn pages(&self, scan: Scan) -> Vec<Vec<(bytes::Bytes, Arc<Item>)>> {
        let mut scan = scan;
        let mut pages = Vec::new();
        loop {
            let page = self.store.scan(&scan).await.expect("scan answers").value;
            pages.push(page.items);
            match page.next {
                Some(next) => scan.from = next,
                None => return pages,
            }
            assert!(pages.len() < 10_000, "the scan does not end");
        }
    }

    async fn together<T, F>(&self, tasks: impl IntoIterator<Item = F>) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        together(self.spawn, tasks).await
    }
}

fn key(partition: &str, sort: &str) -> Key {
    Key::new(partition, sort)
}

/// The kind of the error that a call ended with.
fn refusal<T: std::fmt::Debug>(result: crate::Result<T>) -> ErrorKind {
    result.expect_err("the call is refused").kind()
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::key_value_contract!(@list);

/// One test per case of the key-value contract; `run` takes a
/// [`Case<contract::key_value::Subject>`](crate::contract::Case) and runs it on a fresh store.
#[macro_export]
macro_rules! key_value_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] key_value {
            single {
                "K1" written_values_are_read_back,
                "K1" every_condition_means_what_evaluate_says,
                "K1" a_long_run_of_updates_leaves_what_evaluate_says,
                "K1" a_read_stands_at_or_after_the_updates_it_saw,
                "K2" the_loser_receives_the_present_item,
                "K2" only_one_of_many_conditional_creates_wins,
                "K2" only_one_of_many_updates_of_one_version_wins,
                "K3" an_update_beyond_a_limit_is_refused_and_changes_nothing,
                "K3" an_action_that_does_not_fit_is_refused_and_changes_nothing,
                "K4" sixty_four_writers_count_exactly,
                "K4" a_counter_with_a_ceiling_is_never_pushed_past_it,
                "K4" appends_and_removals_of_concurrent_writers_all_count,
                "K4" concurrent_removals_of_the_first_take_one_each,
            }
            transactions {
                "K5" a_transaction_applies_all_its_updates_or_none,
                "K5" a_transaction_with_an_action_that_does_not_fit_changes_nothing,
                "K5" a_transaction_beyond_the_limits_is_refused_and_changes_nothing,
                "K5" money_moved_by_concurrent_transactions_is_neither_made_nor_lost,
                "K5" concurrent_transactions_over_the_same_items_take_turns,
                "K5" a_transaction_spans_partitions_where_limits_say_so,
            }
            scans {
                "K6" a_partition_is_scanned_in_order_each_item_once,
                "K6" a_scan_keeps_within_its_bounds,
                "K6" a_page_holds_no_more_than_the_limit,
                "K6" deleted_items_leave_the_scan,
                "K6" a_page_never_shows_half_a_transaction,
            }
            operations {
                "K8" a_repeat_is_recognised_as_done_and_changes_nothing,
                "K8" a_repeat_is_recognised_after_as_many_others_as_are_remembered,
                "K8" a_repeat_older_than_the_memory_stays_unknown_and_changes_nothing,
                "K8" a_repeated_delete_spares_what_was_made_since,
                "K8" racing_attempts_of_one_operation_apply_once,
                "K8" a_refused_operation_is_not_remembered,
                "K8" a_repeated_transaction_is_recognised_as_done,
                "K9" a_version_grows_with_every_change,
                "K9" a_version_does_not_go_back_when_the_item_is_made_again,
            }
            transient {
                "K10" a_transient_update_is_visible_and_counts_like_any_other,
                "K10" a_transient_delete_is_visible_and_so_is_a_new_item,
                "K10" a_repeated_transient_operation_is_recognised_as_done,
                "K10" transient_and_durable_updates_of_concurrent_writers_all_count,
                "K10" the_point_of_a_transient_update_covers_the_updates_before_it,
            }
            room {
                "K11" there_is_room_while_nothing_is_refused,
                "K11" a_full_store_says_so_and_takes_updates_that_need_no_room,
                "K11" a_full_store_refuses_every_kind_of_update,
            }
        } }
    };
}
