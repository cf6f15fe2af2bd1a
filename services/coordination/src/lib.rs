//! ZooKeeper's tree, sessions and watches, made of functions on the ports.

pub mod error;
pub mod gateway;
pub mod model;

pub use error::{ConnectError, Ended, Error};
pub use gateway::{Client, Gateway};
