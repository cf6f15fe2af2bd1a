//! The S3 protocol in front of the memory service.
//!
//! ```text
//!  listener ──▶ ingress ──▶ s3s ──────────────▶ handler ──▶ memory::Service
//!               (framing)   (signatures, XML)   (a module per topic)
//!                              ▲
//!  client ◀── response ◀───────┘  (request ids, true reasons)
//! ```
//!
//! `s3s` parses requests, verifies signatures, and writes XML. This crate serves its operations, and
//! surrounds it where its answers differ from S3's:
//!
//! - [`mod@ingress`] and [`mod@chunks`] bound the memory that it takes.
//! - [`mod@access`] demands that signatures cover all headers that matter.
//! - [`mod@repair`] drops headers that S3 ignores.
//! - [`mod@response`] completes and corrects its errors.
//!
//! Invariants
//! - Content reaches the service's last byte only after its length, payload hash, chunk signatures
//!   and checksum are verified ([`mod@content`]). No object comes of wrong content.
//! - Conditions of writes are decided by the service when it commits, never here.
//! - No request without a valid signature reaches the service.
//! - A request takes bounded memory: XML up to 4 MiB, a form's file up to 32 MiB for 4 forms at
//!   once, a signed chunk up to 16 MiB.

// Why: real sockets enter here, as in every front end.
#![allow(clippy::disallowed_methods)]

mod access;
mod acl;
mod attributes;
mod buckets;
mod checksums;
mod chunks;
mod conditions;
mod content;
mod copy;
mod crc;
mod errors;
mod forward;
pub mod fuzzing;
mod get;
mod handler;
mod ingress;
mod lists;
mod objects;
mod range;
mod repair;
mod response;
mod server;
mod tags;
mod upload_lists;
mod uploads;

pub use access::{Credentials, Functions, Grant};
pub use listener::FilesInMemory;
pub use server::{Config, InProcess, Server, bind};
