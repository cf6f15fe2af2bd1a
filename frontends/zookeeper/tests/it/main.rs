//! The front end's promises, tested from the outside.

mod bounds;
mod connecting;
mod counting_allocator;
mod drive;
mod endings;
mod fixture;
mod fuzz;
mod requests;
mod round_trips;
mod tls;
mod wire;
mod wire_authentication;
mod wire_watches;
