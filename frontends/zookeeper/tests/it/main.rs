//! The front end's promises, from the outside.

mod bounds;
mod connecting;
mod counting_allocator;
mod drive;
mod endings;
mod fuzz;
mod house;
mod requests;
mod round_trips;
mod wire;
