//! ZooKeeper's tree, sessions and watches, made of functions on the ports.
