//! The shipped program contains no deliberately broken variants.
//!
//! Cargo unifies features over the packages of one call. This test is therefore right only about a
//! program that was built without `simulation`, as `cargo test --package landfast` does.

use std::fs;

/// The counterpart in `simulation` shows that the mark is found in a program with mutants.
#[test]
fn the_program_contains_no_mutants() {
    let program = fs::read(env!("CARGO_BIN_EXE_landfast")).expect("the program is there");
    let mark = ["landfast:", "compiled", "with", "mutants"].join(" ");
    let is_marked = program
        .windows(mark.len())
        .any(|bytes| bytes == mark.as_bytes());
    assert!(!is_marked, "a dependency turns on `primitives/mutants`");
}
