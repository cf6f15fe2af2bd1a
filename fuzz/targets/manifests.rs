//! The bytes of a deployed manifest: they are parsed or refused, and an accepted workflow is read
//! back unchanged.
#![no_main]

use functions::manifest::{Manifest, workflow::Workflow};
use libfuzzer_sys::fuzz_target;

const FUNCTION: &str = "[functions.f]\nruntime = \"executable\"\ncode = \"c\"\nhandler = \"f\"\n";

fuzz_target!(|text: &str| {
    for text in [text.to_owned(), format!("{FUNCTION}{text}"), format!("{FUNCTION}[workflows.w]\nsteps = [{text}]")] {
        let Ok(manifest) = Manifest::parse(&text) else { continue };
        for workflow in manifest.workflows.values() {
            let kept = serde_json::to_vec(workflow).expect("it serialises");
            let read: Workflow = serde_json::from_slice(&kept).expect("it reads back");
            assert_eq!(read, *workflow);
        }
    }
});
