//! The runtime clients that this program bundles, on disk for instances.

use std::{fs, io, path::Path};

/// The clients of the Runtime API, by file name.
const CLIENTS: [(&str, &str); 2] = [
    (
        "landfast_runtime.py",
        include_str!("../clients/landfast_runtime.py"),
    ),
    (
        "landfast_runtime.mjs",
        include_str!("../clients/landfast_runtime.mjs"),
    ),
];

/// Writes the clients, and the `additional` files beside them, into `directory`.
pub(crate) fn write(directory: &Path, additional: &[(&str, &str)]) -> io::Result<()> {
    for (name, text) in CLIENTS.iter().chain(additional) {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        // An unchanged file keeps its compiled form valid.
        if fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        fs::write(path, text)?;
    }
    Ok(())
}
