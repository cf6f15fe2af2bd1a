//! Runs of the workflows service over a near store and, where its workflows say so, a far one: processes that die at any call of
//! either, a near store that is lost with another server taking over, a far store that is slow, away, or answers twice.
//!
//! A [`house`] starts processes that run the functions in [`code`]; what they send goes [`outside`], which knows at once whether
//! it rests on what the far store has; [`checks`] look at that store beside everybody. The way to it is [`far`]'s, and begins that
//! are late [`lateness`]'s.

pub mod checks;
pub mod code;
pub mod far;
pub mod house;
pub mod lateness;
pub mod outside;
