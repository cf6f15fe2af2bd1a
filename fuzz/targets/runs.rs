//! Rows of runs and steps, and the JSON on which a run's decisions depend.
#![no_main]

use libfuzzer_sys::fuzz_target;
use workflows::fuzz;

const NAMES: [&str; 10] =
    ["status", "input", "output", "error", "began", "ended", "definition", "attempt", "function", "tries"];

fuzz_target!(|parts: Vec<Vec<u8>>| {
    let named = NAMES.into_iter().zip(parts.iter().cloned());
    fuzz::row(named.filter(|(_, bytes)| !bytes.is_empty()).collect());
    let outputs: Vec<_> = parts.iter().cloned().map(Into::into).collect();
    let list = fuzz::listed(&outputs);
    if outputs.len() <= 10_000 {
        assert_eq!(fuzz::elements(&list), Some(outputs.len()));
    }
    for pair in parts.windows(2) {
        fuzz::chosen(&pair[0], &pair[1]);
        fuzz::elements(&pair[1]);
    }
});
