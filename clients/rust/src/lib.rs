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
//! How it is built: what is sent is data (`call`), what an answer means stands in one table (`problem`), when a
//! request is sent again is decided in functions without I/O (`exchange`), and so is what an attempt may still
//! do (`attempt`). Around them are thin shells: sockets (`connections`), [`Transaction`], [`State`], [`Client`].
//! It decides as the Python client does, and knows nothing of Landfast but its HTTP interface.
//!
//! The client needs a tokio runtime with its timer and its I/O enabled.
// Time and chance enter here: a client stands outside of the house, and nothing in it is simulated.
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

pub use begin::{Begin, Isolation, RUNS_MAX};
pub use client::Client;
pub use error::{Error, ErrorKind, Outcome, Result};
pub use nodes::{NODES_MAX, URL_DEFAULT};
pub use state::{Page, State};
pub use transaction::Transaction;

/// The examples of the page compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
