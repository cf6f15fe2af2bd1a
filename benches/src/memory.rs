//! GETs and PUTs of whole objects, beside Redis and beside other S3 servers.
//!
//! The content of an object is a slice of one random block, so that a PUT sends it from there and a
//! verifying GET compares with it. A measured GET counts bytes and reads them into one small buffer
//! that is used again. The generator shares the processors with the servers, so its own work must
//! stay small.
//!
//! Reading order: [`signing`] (requests as bytes), [`client`] (a connection), [`servers`] (the
//! processes under test, with [`tree`]), [`load`] (connections and their measurements), [`limits`]
//! (the rates of memory, loopback and disk), [`report`] (presentation).

pub mod client;
pub mod limits;
pub mod load;
pub mod objects;
pub mod report;
pub mod servers;
pub mod signing;
pub mod tree;
