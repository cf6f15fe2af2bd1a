//! The ZooKeeper wire protocol in front of the coordination service.
