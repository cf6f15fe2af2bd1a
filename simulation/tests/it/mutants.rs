//! A program with mutants is recognised, so that the test of the shipped program means something.

use std::{env, fs};

#[test]
fn a_program_with_mutants_has_their_mark() {
    let program = fs::read(env::current_exe().expect("a path")).expect("this program");
    // Put together here, so that this file does not contain the mark itself.
    let mark = ["landfast:", "compiled", "with", "mutants"].join(" ");
    let is_marked = program
        .windows(mark.len())
        .any(|bytes| bytes == mark.as_bytes());
    assert!(is_marked);
}
