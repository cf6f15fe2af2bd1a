//! The files of the application's handlers: they are deployed even if git leaves them out.
//!
//! A built handler (`bootstrap`, `dist/index.js`) is left out of git in most projects. An executable
//! is packed alone. A module brings the files of its folder, because it imports them: a rule that
//! leaves out that folder as a whole has no say.
//!
//! A handler may be a link, or lie below one. Then the file at the end of the link is a handler too.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use functions::manifest::{Kind, Manifest, Table};
use sandbox::{HandlerFiles, handler_files};

/// The present files of handlers, as paths below the canonical folder of the manifest.
#[derive(Debug, Default)]
pub(super) struct Handlers {
    files: BTreeSet<PathBuf>,
    /// The folders on the way to modules.
    of_modules: BTreeSet<PathBuf>,
    /// The folders on the way to executables.
    of_executables: BTreeSet<PathBuf>,
}

impl Handlers {
    /// Those of the application whose manifest lies in `home`.
    pub(super) fn find(home: &Path, manifest: &Manifest) -> anyhow::Result<Self> {
        let home = home.canonicalize()?;
        let mut all = Self::default();
        for table in manifest.functions.values() {
            let code = code_folder(&home, &table.code);
            let expected = expected(table);
            if expected.leads_outside() {
                continue;
            }
            for file in expected.found_in(&code) {
                let linked = linked(&home, &code, &file);
                for file in [Some(code.join(file)), linked].into_iter().flatten() {
                    let folders = match table.runtime.kind {
                        Kind::Executable => &mut all.of_executables,
                        Kind::Python3 | Kind::Node => &mut all.of_modules,
                    };
                    folders.extend(file.ancestors().skip(1).map(Path::to_owned));
                    all.files.insert(file);
                }
            }
        }
        Ok(all)
    }

    pub(super) fn has(&self, file: &Path) -> bool {
        self.files.contains(file)
    }

    /// Whether a module lies in or below `folder`.
    pub(super) fn have_module_below(&self, folder: &Path) -> bool {
        self.of_modules.contains(folder)
    }

    /// Whether any handler lies in or below `folder`.
    pub(super) fn are_below(&self, folder: &Path) -> bool {
        self.have_module_below(folder) || self.of_executables.contains(folder)
    }
}

/// The code folder `folder` of a manifest in `home`.
pub(super) fn code_folder(home: &Path, folder: &str) -> PathBuf {
    match folder {
        "." => home.to_owned(),
        folder => home.join(folder),
    }
}

/// The files of which the code folder of a function must have one.
pub(super) fn expected(table: &Table) -> HandlerFiles {
    handler_files(&table.function("", "", "", 0))
}

/// The file at the end of the links on the way to `file` of `code`, if it is another one in `home`.
pub(super) fn linked(home: &Path, code: &Path, file: &str) -> Option<PathBuf> {
    let given = code.join(file);
    let real = given.canonicalize().ok()?;
    // The code folder itself may be a link.
    let in_code = code.canonicalize().ok().and_then(|folder| {
        let inside = real.strip_prefix(folder).ok()?;
        Some(code.join(inside))
    });
    let in_home = || real.strip_prefix(home).ok().map(|inside| home.join(inside));
    in_code.or_else(in_home).filter(|real| *real != given)
}
