//! The front end's promises, from the outside.

mod connecting;
mod counting_allocator;
mod drive;
mod fuzz;
mod requests;
mod round_trips;
mod wire;
