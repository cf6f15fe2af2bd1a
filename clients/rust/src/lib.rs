//! A client of Landfast's transactions and state, over HTTP.
//!
//! ```no_run
//! # async fn example() -> landfast_client::Result<()> {
//! use landfast_client::Client;
//!
//! let client = Client::connect(["http://127.0.0.1:7600"])?;
//! client
//!     .transaction()
//!     .id("pay/4711")
//!     .transact(|t| async move {
//!         t.put("paid", "30").await?;
//!         t.put("open", "0").await
//!     })
//!     .await?;
//! assert_eq!(client.state().get("paid").await?.as_deref(), Some(&b"30"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! Structure: requests are data (`call`), and one table gives the meaning of a response
//! (`problem`). Functions without I/O decide when a request is repeated (`exchange`), and which
//! calls an attempt may still send (`attempt`). Around them are thin shells: sockets
//! (`connections`), [`Transaction`], [`State`], [`Client`]. The client decides as the Python client
//! does, and knows only Landfast's HTTP interface.
//!
//! The client needs a tokio runtime with its timer and its I/O enabled.
// Time and randomness enter here: a client stands outside of the layers, and nothing in it is
// simulated.
#![allow(clippy::disallowed_methods)]

mod after;
mod attempt;
mod begin;
mod call;
mod client;
mod connections;
mod error;
mod exchange;
mod limits;
mod nodes;
mod pace;
mod problem;
mod state;
mod transaction;
mod trust;
mod unanswered;

pub use begin::{Begin, RUNS_MAX};
pub use call::{Condition, Isolation};
pub use client::Client;
pub use error::{Error, ErrorKind, Outcome, Result};
pub use nodes::{NODES_MAX, URL_DEFAULT};
pub use state::{Page, State};
pub use transaction::Transaction;

/// The examples of the page compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
