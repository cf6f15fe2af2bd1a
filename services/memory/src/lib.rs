//! Elastic object storage in the memory of functions, durable in an object store.
//!
//! ```text
//!  body ──▶ stripes ──▶ erasure code ──┬──▶ a unit into the memory of each of 12 instances
//!                                      └──▶ one stored object per fragment (durable)
//!                                                   │ both are complete
//!                                                   ▼
//!                              one conditional write of the object's row decides the PUT
//! ```
//!
//! An object is a list of immutable *segments*, one per PUT or uploaded part. A segment is cut into
//! *fragments*. A fragment is coded into *chunks*, one per instance. A chunk is a sequence of
//! *units*, each with its checksum. The units of one index form a *stripe* ([`mod@fragment`]).
//!
//! Promises
//! - **M1** One conditional write of the object's row decides a PUT, copy, DELETE or completed
//!   upload. Its conditions are checked there.
//! - **M2** A segment is immutable, and its id is never used again. A row never names a segment that
//!   is not durable.
//! - **M3** The daemon issues each instance an epoch. A reply of another epoch is void.
//! - **M4** Each unit has a checksum over its content and its place. It is verified before the unit
//!   is decoded or sent. A unit is sent from the shared region, in which an instance writes no byte.
//! - **M5** A fragment leaves the buffer before a distant store once that store has confirmed it, or to
//!   be deleted. A delete comes after the put of its name ([`mod@buffer`]).
//! - **M6** A read that began with a version ends with that version, or with an error.
//! - **M7** Memory holds copies alone. The death of every instance at any moment loses nothing.
//!
//! Several servers may share the stores ([`mod@members`], [`mod@adoption`]). Each has its own function
//! memory.
//!
//! From `infinistore.txt`. The durable copy of a fragment is one object with all of its chunks, so
//! that a PUT costs one request and one sync.

mod adoption;
pub mod broken;
mod buffer;
mod buffers;
mod collector;
mod durable;
pub mod erasure;
pub mod error;
pub mod events;
mod fragment;
pub mod function;
pub mod fuzzing;
mod groups;
mod holds;
pub mod instance;
pub mod least_recently_used;
mod lost;
pub mod md5_lanes;
mod members;
mod migration;
pub mod model;
mod reader;
mod recovery;
mod residency;
mod resident_changes;
mod restarts;
mod resumption;
pub mod service;
mod sliding;
mod storage;
mod stored_name;
mod warming;
pub mod window;
mod writer;

pub use error::{Error, Result};
pub use service::{Config, Opened, Parts, Service, Stored};
pub use warming::WarmUps;
