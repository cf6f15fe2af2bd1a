//! The functions that people deploy: their manifests, deployments, routes, events and timers.
//!
//! ```text
//!  service   the calls of front ends and other services ([port]: as the Functions port)
//!  manifest  an application's manifest, with the [cors] settings of its routes
//!  deploy    the stored rows and archives ([deployment]), changes to them ([deployer]), and what
//!            puts them in place ([reconciler], [watcher])
//!  lookup    what callers find: functions, workflows and [routes] ([catalogue]), and applications
//!            that are not in place yet ([pending])
//!  events    a deployed function as a handler of events and queue batches ([handler]), in Lambda's
//!            format ([format]); [timers], [queues] of clients, [dead_letters], and the stored reason of
//!            a [failure]
//!  figures   the service in numbers
//!  stop      its end, also that of workflows
//! ```
//!
//! Promises
//! - **A1** A deployment whose caller got an answer is there, whole, after a crash at any moment. A
//!   deployment without an answer is there whole or not at all. The row decides: the archive is put
//!   before it, and the replaced archive is removed after it.
//! - **A2** An invocation whose caller waits runs at most once. The service never repeats it.
//! - **A3** An event runs until it succeeds, under one request id, at most `retries` further times.
//!   Then the function named by `on_failure` gets a failure notice, however long that takes, or the
//!   event stays as a dead letter. It never vanishes, unless a caller removes it or 10,000 later
//!   dead letters of its queue push it out. A timer tick is an event. On the embedded store, an
//!   attempt that ends with the server's death does not count; on Redis it does.
//! - **A4** A queue's messages reach its function in the order of their groups. A message that a
//!   batch reports as failed, and every later one of its group, is delivered again, at most 16
//!   times in all. Then the function named by `on_failure` gets a failure notice, however long that
//!   takes, or the message stays as a dead letter. It never vanishes. Attempts count as in A3.
//! - **A5** A timer that was armed or disarmed stays so over restarts, and over deployments whose
//!   manifest keeps its period. It fires when it would have fired. Among several processes, it
//!   fires in one of them.
//! - **A6** An HTTP request runs the function whose route matches it, as an invocation whose caller
//!   waits (A2).
//! - **A7** A route belongs to one application, and changes with it as a whole. No caller sees a
//!   route of one deployment with the functions of another.
//! - **A8** An event or a message that waits for a free instance has not been tried. It is taken
//!   once an instance is free.
//!
//! From `faaskeeper.txt`, sections 2.2 and 3 (classes of functions; requirements R2 to R4).

mod config;
mod cors;
mod deploy;
mod error;
mod events;
mod figures;
mod ids;
mod lenient_json;
mod lookup;
pub mod manifest;
mod port;
mod routes;
mod service;
#[doc(hidden)]
pub mod stop;

pub use config::Parts;
pub use cors::Cors;
pub use error::{Error, Result};
pub use events::{
    dead_letters::{DeadLetter, DeadLetterPage},
    failure::beginning,
    object::ObjectEvent,
    queues::{ListedQueue, QueuePage, WaitingMessage},
};
pub use figures::Figures;
pub use ids::uuid;
pub use lenient_json::{Members, Text};
pub use lookup::catalogue::Summary;
pub use routes::{METHODS, RouteMatch, Routed};
pub use service::{PAYLOAD_BYTES_MAX, Service};
