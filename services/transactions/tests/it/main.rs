//! The service on real ports: the embedded provider in a temporary directory, and the simulated one
//! in virtual time.

#![allow(
    clippy::disallowed_methods,
    reason = "tests run on the runtime's clock, which virtual time moves"
)]

mod atomicity;
mod attempts;
mod calls;
mod collection;
mod conditional;
mod effects;
mod gate;
mod groups;
mod house;
mod leaving;
mod limits;
mod listing;
mod names;
mod packing;
mod packing_failures;
mod packing_objects;
mod restarts;
mod results;
mod room;
mod serializable;
mod storm;
mod values;
