//! Integration tests of the embedded provider.

mod contract;
mod fall_back;
mod faulty;
mod format;
mod group_commit;
mod recovery;
mod room;
mod world;
