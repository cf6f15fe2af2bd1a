//! The start of a program: its server, its descriptors, its working directory and its streams.

use crate::{connection, hooks::streams, reserve, route};

/// Runs before `main`. Constructors of other libraries may run earlier. Their calls are routed by
/// path, but not by a descriptor that the program has inherited.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn construct() {
        if connection::get().is_some() {
            reserve::find_inherited();
            route::note_cwd();
            streams::route_standard_streams();
        }
    }
    construct
};
