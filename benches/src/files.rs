//! Files: the same load on ext4, on GlusterFS with two mounts, and on Landfast with two mounts.
//!
//! Each target is a pair of directories that show the same files; those of ext4 are one directory.
//! All targets keep their data on the same disk. The parts:
//!
//! - [`operations`]: latency of single calls of 1 KiB, cached and uncached;
//! - [`personalities`]: the six loads of Filebench that the FaaSFS paper used;
//! - [`tpcc`]: TPC-C on SQLite, one database file for each warehouse;
//! - [`sequential`]: one long file, written and read;
//! - [`directory`]: one directory with many files.
//!
//! The web application over SQLite (part iv of the plan) is left out.

pub mod content;
pub mod directory;
pub mod functions;
pub mod operations;
pub mod personalities;
pub mod report;
pub mod sequential;
pub mod targets;
pub mod tpcc;
mod volume_files;
pub mod web;
