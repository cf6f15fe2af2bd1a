//! The functions that people deploy: what they are, when they run, what becomes of events that they fail.
//!
//! ```text
//!  manifest      what an application's file says of its functions
//!  deployment    an application at rest: a row that names an archive
//!  catalogue     what is deployed, as calls find it; a request over HTTP by its route ([routes])
//!  service       deploying, removing, invoking; puts everything back in place at a start
//!  pending       what is deployed and not in place, as something failed on the way; [following] does that again
//!  port          what other services may have run: effects of transactions
//!  handler       a deployed function as the Functions port runs it: events and queue batches ([batch]) in Lambda's words ([event]);
//!                what is kept of why it failed ([failure])
//!  members       JSON that functions say, read as far as somebody looks at it
//!  timer         what a timer gives; when it goes off next is a row ([schedule])
//!  letters       what was given up and nobody was told of: looked at, sent again, removed
//!  tries         what is tried again for a moment
//! ```
//!
//! Promises
//! - **A1** A deployment that was answered is there after a crash at any moment, whole; one that was not is there whole or
//!   not at all. The row decides: the archive is put before it, and what it replaced is removed after.
//! - **A2** An invocation that waits for its result is run once at most, never repeated by us.
//! - **A3** An event is run until it succeeds, under one request id, `retries` times more at most; then the function named
//!   by `on_failure` is told, however long that takes, or the event stays as a dead letter. It never vanishes,
//!   but where somebody removes it or 10,000 later ones of its queue are kept. What a timer gives
//!   is one. On the embedded store an attempt that ended with the server's death is not counted; on Redis it is.
//! - **A4** A queue's messages reach its function in the order of their groups; what a batch reports as failed, and all
//!   behind it in its group, is delivered again, 16 times in all at most; then the function named by `on_failure` is told, however long
//!   that takes, or the message stays as a dead letter. It never vanishes. Attempts are counted as in A3.
//! - **A5** A timer that was armed or disarmed stays so over restarts and deployments that say of it what was said before, and goes off
//!   when it would have; among processes, in one of them.
//! - **A6** A request over HTTP is for one function, whose route it is of, and runs as an invocation that waits does (A2).
//! - **A7** A route is of one application, and changes with it as a whole: nobody finds the route of one deployment and the
//!   functions of another.
//! - **A8** An event or a message that waits for a free instance has not been tried: it is taken once one is free.
//!
//! From `faaskeeper.txt`, sections 2.2 and 3 (classes of functions; requirements R2 to R4).

mod batch;
mod catalogue;
mod deployment;
mod event;
mod failure;
mod figures;
mod following;
mod handler;
mod letters;
pub mod manifest;
mod members;
mod pending;
mod port;
mod routes;
mod schedule;
mod service;
mod timer;
mod tries;

pub use catalogue::Summary;
pub use failure::beginning;
pub use figures::Figures;
pub use letters::{Letter, Letters};
pub use members::{Members, Text};
pub use routes::{Found, METHODS, Routed};
pub use service::{Error, PAYLOAD_BYTES_MAX, Parts, Result, Service, uuid};
