//! The cases of [`durability`](crate::durability): which data a crash may take, and which not.
//!
//! The provider says how to crash: lose all memory, keep the data that a crash of its kind would
//! keep, and open the same store again. Before each crash a case has dropped every port of the
//! subject, so that a store with a directory lock can be opened again in the same process.

mod answers;
mod points;
mod survival;
mod transient;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;

use super::{Case, eventually};
use crate::{
    Clock,
    key_value::SharedKeyValue,
    objects::ObjectStore,
    queue::{SharedQueue, SharedQueueAdmin},
};

/// A store that can be crashed, as a provider's tests implement it.
#[async_trait]
pub trait Crashable: Debug + Send + Sync {
    /// The key-value store.
    fn key_value(&self) -> SharedKeyValue;

    /// The queues, where the provider has any.
    fn queue(&self) -> Option<SharedQueue>;

    /// The queues' administration, where the provider has queues.
    fn queue_admin(&self) -> Option<SharedQueueAdmin> {
        None
    }

    /// The objects, where the provider has any.
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    /// Whether those objects can be put in parts (O5).
    fn takes_parts(&self) -> bool {
        self.objects().is_some()
    }

    /// The clock that the cases wait on.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Ends this start of the store as a crash would, and starts it again.
    async fn crash_and_reopen(self: Box<Self>) -> Box<dyn Crashable>;
}

/// A fresh store that can be crashed.
pub type Subject = Box<dyn Crashable>;

/// The suite.
pub const CASES: &[Case<Subject>] = crate::durability_contract!(@list);

/// One test per case of the durability contract; `run` takes a
/// [`Case<contract::durability::Subject>`](crate::contract::Case) and runs it on a fresh store.
#[macro_export]
macro_rules! durability_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] durability {
            survival {
                "D1" externalized_changes_survive_a_crash,
                "D1" each_of_many_concurrent_waiters_finds_its_own_write,
                "D1" externalized_deletes_and_transactions_stay_done,
                "D1" sent_messages_come_back_and_acknowledged_ones_do_not,
                "D1" dead_letters_and_queue_options_survive_with_their_reasons,
                "D1" remembered_operations_survive,
                "D1" a_put_object_survives,
                "D1" a_completed_upload_survives_and_no_other_is_shown,
                "D1" an_object_that_a_create_found_survives,
            }
            points {
                "D1" an_externalized_point_is_durable_and_so_are_all_before_it,
                "D1" changes_reported_as_durable_survive_a_crash,
                "D2" the_surviving_changes_are_a_prefix,
                "D2" no_transaction_survives_by_half,
                "D2" queue_and_store_survive_as_one_prefix_where_they_share_a_journal,
                "D3" an_old_point_is_lost_exactly_if_its_changes_are,
                "D3" no_crash_loses_a_point_of_changes_that_undo_each_other,
                "D3" points_of_a_later_start_are_greater,
                "D4" an_update_that_depends_on_a_lost_point_changes_nothing,
                "D4" a_transaction_depends_on_the_points_of_all_its_updates,
                "D4" an_update_that_depends_on_an_unknown_start_changes_nothing,
            }
            answers {
                "D6" the_point_of_a_read_covers_what_it_saw,
                "D6" the_point_of_a_read_that_finds_nothing_covers_the_deletion,
                "D6" the_point_of_a_conflict_covers_the_item_it_shows,
                "D6" the_point_of_a_repeat_covers_the_first_attempt,
                "D6" the_point_of_a_repeated_transaction_covers_the_first_attempt,
                "D6" the_point_of_an_update_that_changes_nothing_covers_what_it_saw,
                "D6" the_point_of_a_transaction_that_changes_nothing_covers_what_it_saw,
                "D6" the_point_of_a_transactions_conflict_covers_the_item_it_shows,
                "D6" the_point_of_a_queues_creation_covers_it,
                "D6" the_point_of_a_repeated_creation_covers_the_first_one,
                "D6" the_point_of_a_repeated_acknowledgement_covers_the_first_one,
                "D6" the_point_of_a_release_covers_the_dead_letter_it_made,
            }
            transient {
                "D5" a_crash_takes_nothing_but_transient_updates,
                "D5" a_durable_change_makes_transient_ones_before_it_durable,
                "D5" an_item_made_by_a_transient_update_is_whole_or_gone,
                "D5" a_transient_update_in_a_transaction_survives_with_it,
                "D5" a_transient_operation_is_forgotten_with_what_it_did,
                "D5" a_transient_message_is_forgotten_with_its_id,
            }
        } }
    };
}
