//! Integration tests of the embedded provider.

#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on real threads, in real time"
)]

use embedded::storage::{Storage, StorageFile};

mod backup;
mod ballast;
mod child;
mod contract;
mod crash;
mod damage;
mod disk;
mod failed_removals;
mod failures;
mod fairness;
mod fall_back;
mod faulty;
mod first_segment;
mod format;
mod group_commit;
mod intercepted;
mod many_starts;
mod message_ids;
mod nearly_full;
mod object_names;
mod object_root;
mod opening;
mod page_cache;
mod power_loss;
mod recovery;
mod removal;
mod reserve;
mod reused_segments;
mod room;
mod staged;
mod transient;
mod unreadable;
mod whole_pages;
mod world;
