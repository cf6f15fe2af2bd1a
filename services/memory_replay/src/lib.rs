//! Replays traces of object requests against the placement of function memory, in virtual time.
//!
//! ```text
//!  workload ──▶ trace ──▶ replay ──▶ windowed ──▶ memory::window   (the service's decisions)
//!                            │  └──▶ fixed                         (a static cluster, to compare)
//!                            └─────▶ outcome ──▶ cost, picture
//!  clients ──▶ scale_out ──▶ windowed                             (reads that overload functions)
//! ```
//!
//! The service's own code decides where each chunk goes, what a read moves, when groups are added,
//! age and are released, and whether a failed function is replaced. It runs over lengths instead
//! of bytes. The replay models everything else:
//!
//! - which fragments are in memory. It follows the service: a fragment is read, moved and released
//!   as a whole, and a missed fragment is cached in the newest bucket ([`mod@windowed`]);
//! - failures, their recovery by 20 functions, and the function time of each request
//!   ([`mod@replay`]). Loads and moves take no virtual time;
//! - the requests of each function, while it measures the scale-out ([`mod@scale_out`]);
//! - prices ([`mod@cost`]) and static clusters ([`mod@fixed`]).
//!
//! The figures of `infinistore.txt`, sections 6.1 to 6.5, are the point of comparison.

pub mod chance;
pub mod cost;
pub mod fixed;
pub mod picture;
pub mod replay;
pub mod report;
pub mod scale_out;
pub mod statistics;
pub mod trace;
pub mod windowed;
pub mod workload;
