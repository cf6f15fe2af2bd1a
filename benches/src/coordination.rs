//! What `bench-zookeeper` measures beside its rows: the disk, many watchers, memory, and the limit
//! that the generator and the sockets set.

pub mod disk;
pub mod echo;
pub mod sessions;
