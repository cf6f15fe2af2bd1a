//! The library that routes the file calls of a program to the local server of a volume.
//!
//! The dynamic linker loads it into each program whose `LD_PRELOAD` names it. It then binds the
//! program's calls of `open`, `read`, ... to the functions of `hooks` instead of those of the C
//! library. A function routes a call by its path or its descriptor: to the server, or on to the
//! C library.
//!
//! ```text
//! hooks ──▶ route (paths), table (descriptors) ──▶ client ──▶ shared buffer of the server
//!       ──▶ the C library, for all that is outside of the volume
//! ```
//!
//! - `connection` is the shared memory; `start` finds the state that the program has inherited.
//! - `reserve` opens the empty file that stands for an open inode. The kernel's description of it
//!   has the position, the flags and the locks, so dup, fork and exec share them as they must.
//! - The kernel's working directory is a mirror of the one in the volume, in the server's folder.
//!   So it too survives fork and exec.
//!
//! The library cannot see system calls that a program makes without the C library. Static programs
//! make such calls, and `execve` refuses them by name. Other programs may make direct calls. The
//! library is for x86-64 and glibc.
//!
//! Invariants
//! - A hook allocates nothing, but where the function that it replaces does so too (stdio).
//! - A hook holds no lock of the process. The lock of a position is in shared memory, and the death
//!   of its holder frees it.
//! - A hook changes `errno` only if it fails.

// Why: the functions have the C library's names and take its pointers, call it and the kernel, and
// share memory with the server. No part of this can be had without `unsafe`.
#![allow(unsafe_code)]
#![allow(unreachable_pub, missing_docs)] // The dynamic linker reaches the functions, by name.
#![allow(clippy::missing_safety_doc)]
// Each exported function has the contract of its manual page.
// An error carries a path, since nothing is allocated.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]
// `Reader::get` itself is no function for readers of any lifetime.
#![allow(clippy::redundant_closure_for_method_calls)]
// Bytes become entries of directories and streams of the C library, at places that are aligned.
#![allow(clippy::cast_ptr_alignment)]

mod client;
mod connection;
mod hooks;
mod reserve;
mod route;
mod start;
mod sys;
mod table;
