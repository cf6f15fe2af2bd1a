//! Runs of the workflows service on a near store and, for some workflows, a far one. Processes die
//! at any call of either store, the near store is lost and another server takes over, and the far
//! store is slow, unavailable, or answers twice.
//!
//! A [`cluster`] starts processes that run the functions in [`code`] by the workflows in
//! [`definitions`]. The messages of steps go to
//! [`receivers`], which check at once whether the far store holds everything that they depend on.
//! [`checks`] read that store directly. [`far`] is the path to it, and [`lateness`] delays begins.

pub mod checks;
pub mod cluster;
pub mod code;
pub mod definitions;
pub mod far;
pub mod lateness;
pub mod receivers;
