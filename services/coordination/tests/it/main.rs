//! The service on the embedded provider, in a directory of its own. All other tests are in
//! `simulation`.

#![allow(clippy::disallowed_methods)] // Why: a real disk takes real time.

mod disk;
mod fall_back;
