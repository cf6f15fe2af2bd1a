//! The synchronisation primitives that functions share, one storage round trip each.
