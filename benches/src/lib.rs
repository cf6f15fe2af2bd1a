//! Load generators and charts that put Landfast beside its peers.
