//! Messages of a daemon to an instance of function memory: it answers each, and keeps its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|messages: Vec<Vec<u8>>| {
    // The version is right.
    let messages: Vec<_> = messages.iter().map(|message| [&[1], &message[..]].concat()).collect();
    memory::fuzzing::requests(&messages);
});
