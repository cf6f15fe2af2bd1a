//! The `landfast` program.
fn main() {}
