//! The files that may hold a function's handler: they are always deployed, and a deployment without
//! them is refused.
//!
//! Only the interpreter can import a module. But a module that is in none of these files cannot be
//! imported, unless the function looks for modules elsewhere too.

use std::{collections::BTreeSet, fmt, path::Path};

use ports::runtime::{Function, Language};

/// The files of which a code folder must have one, relative to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerFiles {
    handler: String,
    folder: String,
    names: Vec<String>,
    /// The beginnings of extension modules, whose names end with [`NATIVE`].
    native: Vec<String>,
    may_be_elsewhere: bool,
    /// How many of the names a message shows.
    shown: usize,
}

/// The end of the name of a compiled Python module.
const NATIVE: &str = ".so";

/// The files for the handler of `function`.
pub fn handler_files(function: &Function) -> HandlerFiles {
    let handler = function.handler.as_str();
    let is_set = |variable: &str| function.environment.contains_key(variable);
    let (names, native, may_be_elsewhere) = match &function.language {
        Language::Executable => (vec![handler.to_owned()], Vec::new(), false),
        Language::Python(own) => {
            let (names, native) = python_names(handler);
            // An interpreter with packages of its own may have the module.
            (names, native, own.is_some() || is_set("PYTHONPATH"))
        }
        Language::Node(_) => (node_names(handler), Vec::new(), is_set("NODE_PATH")),
    };
    HandlerFiles {
        handler: handler.to_owned(),
        folder: function.folder.clone(),
        names,
        native,
        may_be_elsewhere,
        shown: match &function.language {
            Language::Node(_) => 3,
            Language::Python(_) | Language::Executable => 2,
        },
    }
}

/// The files of a Python handler, and the beginnings of its compiled ones. A package may be
/// compiled too.
fn python_names(handler: &str) -> (Vec<String>, Vec<String>) {
    let module = handler
        .rsplit_once('.')
        .map_or(handler, |(module, _)| module);
    let path = plain(&module.replace('.', "/"));
    let names = [".py", "/__init__.py", ".pyc", "/__init__.pyc"];
    let native = [".", "/__init__."];
    (
        names.map(|end| format!("{path}{end}")).into(),
        native.map(|end| format!("{path}{end}")).into(),
    )
}

/// The files of a Node handler. Its module ends at the first dot of the last segment, or, for
/// clients that read it so, at the last dot.
fn node_names(handler: &str) -> Vec<String> {
    let (folder, last) = match handler.rsplit_once('/') {
        Some((folder, last)) => (format!("{folder}/"), last),
        None => (String::new(), handler),
    };
    let first = last.split_once('.').map_or(last, |(module, _)| module);
    let whole = last.rsplit_once('.').map_or(last, |(module, _)| module);
    let mut modules = vec![plain(&format!("{folder}{first}"))];
    if whole != first {
        modules.push(plain(&format!("{folder}{whole}")));
    }
    let endings = [".js", ".mjs", ".cjs", "", "/index.js", "/package.json"];
    let beside = modules.iter().flat_map(|module| {
        let names = endings
            .iter()
            .map(move |ending| format!("{module}{ending}"));
        names.collect::<Vec<_>>()
    });
    // An installed package is looked for by its name alone, in the code folder and in the handler's.
    let homes = BTreeSet::from([String::new(), plain(&folder)]);
    let packages = BTreeSet::from([first, whole]);
    let installed = homes.iter().flat_map(|home| {
        let of_home = packages.iter().flat_map(move |package| {
            let ends = ["/package.json", "/index.js", ".js"];
            ends.map(|end| plain(&format!("{home}/node_modules/{package}{end}")))
        });
        of_home.collect::<Vec<_>>()
    });
    beside.chain(installed).collect()
}

/// A path without its `.` segments.
fn plain(path: &str) -> String {
    let segments = path.split('/').filter(|part| !matches!(*part, "" | "."));
    segments.collect::<Vec<_>>().join("/")
}

impl HandlerFiles {
    /// Whether the function may find its handler outside of its code: it looks for modules there
    /// too.
    pub fn may_be_elsewhere(&self) -> bool {
        self.may_be_elsewhere
    }

    /// Whether `file`, relative to the code folder, may hold the handler.
    pub fn has(&self, file: &str) -> bool {
        let is_native = |begin: &String| file.starts_with(begin) && file.ends_with(NATIVE);
        self.names.iter().any(|name| name == file) || self.native.iter().any(is_native)
    }

    /// Those that the code folder at `code` has, also below links to folders.
    pub fn found_in(&self, code: &Path) -> Vec<String> {
        let names = self.names.iter();
        let mut found: Vec<_> = names
            .filter(|name| code.join(name).is_file())
            .cloned()
            .collect();
        for begin in &self.native {
            let folder = begin.rsplit_once('/').map_or("", |(folder, _)| folder);
            let entries = code.join(folder).read_dir();
            let entries = entries.into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            let files = names.map(|name| plain(&format!("{folder}/{name}")));
            found.extend(
                files.filter(|file| file.starts_with(begin.as_str()) && file.ends_with(NATIVE)),
            );
        }
        found
    }

    /// Whether the handler leads out of the code folder.
    pub fn leads_outside(&self) -> bool {
        let mut all = self.names.iter().flat_map(|name| name.split('/'));
        all.any(|part| part == "..")
    }
}

impl fmt::Display for HandlerFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (handler, folder) = (&self.handler, &self.folder);
        write!(f, "handler = {handler:?}: ")?;
        match &self.names[..] {
            [only] => write!(f, "there is no file {only} in the code folder {folder:?}"),
            names => {
                let shown = &names[..names.len().min(self.shown)];
                write!(
                    f,
                    "the code folder {folder:?} has neither {}",
                    shown.join(" nor ")
                )
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeMap, fs, time::Duration};

    use super::*;

    pub(crate) fn function(language: Language, handler: &str) -> Function {
        Function {
            name: "f".to_owned(),
            revision: String::new(),
            language,
            runtime_version: None,
            handler: handler.to_owned(),
            archive: String::new(),
            folder: "code".to_owned(),
            memory_bytes: 1,
            timeout: Duration::from_secs(1),
            concurrency: 1,
            processes_max: 1,
            scratch_bytes: 1,
            environment: BTreeMap::new(),
            network: false,
            buckets: Vec::new(),
            volume: None,
            incarnation: 0,
        }
    }

    fn files(language: Language, handler: &str) -> HandlerFiles {
        handler_files(&function(language, handler))
    }

    #[test]
    fn a_python_module_is_a_file_a_package_or_native() {
        for handler in ["lib.app.run", "lib/app.run"] {
            let files = files(Language::Python(None), handler);
            for file in [
                "lib/app.py",
                "lib/app/__init__.py",
                "lib/app/__init__.pyc",
                "lib/app/__init__.cpython-311-x86_64-linux-gnu.so",
                "lib/app/__init__.so",
                "lib/app.cpython-311.so",
                "lib/app.so",
            ] {
                assert!(files.has(file), "{file}");
            }
            for file in [
                "app.py",
                "lib/app",
                "lib/application.so",
                "lib/app.txt",
                "lib/app/more.so",
            ] {
                assert!(!files.has(file), "{file}");
            }
        }
        assert_eq!(
            files(Language::Python(None), "app.run").to_string(),
            "handler = \"app.run\": the code folder \"code\" has neither app.py nor app/__init__.py"
        );
    }

    #[test]
    fn a_node_module_ends_at_a_dot_of_the_last_segment() {
        let files = files(Language::Node(None), "./src.d/index.api.handler");
        for file in [
            "src.d/index.js",
            "src.d/index.mjs",
            "src.d/index.api.cjs",
            "src.d/index/index.js",
        ] {
            assert!(files.has(file), "{file}");
        }
        assert!(!files.has("index.js") && !files.has("src.d/index.json"));
    }

    #[test]
    fn a_node_module_may_be_an_installed_package() {
        let of_root = files(Language::Node(None), "dep.handler");
        for file in ["dep/index.js", "dep/package.json", "dep.js"] {
            assert!(of_root.has(&format!("node_modules/{file}")), "{file}");
        }
        for file in ["dep/main.js", "other/index.js", "dep.mjs"] {
            assert!(!of_root.has(&format!("node_modules/{file}")), "{file}");
        }
        assert_eq!(
            of_root.to_string(),
            "handler = \"dep.handler\": the code folder \"code\" has neither dep.js nor dep.mjs nor dep.cjs"
        );
        let deeper = files(Language::Node(None), "./lib/dep.handler");
        assert!(deeper.has("node_modules/dep/index.js"));
        assert!(deeper.has("lib/node_modules/dep/index.js"));
        assert!(!deeper.has("node_modules/lib/dep/index.js"));
    }

    #[test]
    fn a_function_may_look_for_modules_elsewhere() {
        let is_elsewhere = |function| handler_files(&function).may_be_elsewhere();
        let own = Some("/opt/python".into());
        assert!(is_elsewhere(function(Language::Python(own), "a.b")));
        for (language, variable, is_read) in [
            (Language::Python(None), "PYTHONPATH", true),
            (Language::Node(None), "NODE_PATH", true),
            (Language::Executable, "PYTHONPATH", false),
        ] {
            let mut elsewhere = function(language, "a.b");
            assert!(!is_elsewhere(elsewhere.clone()));
            elsewhere
                .environment
                .insert(variable.to_owned(), "/var/task/src".to_owned());
            assert_eq!(is_elsewhere(elsewhere), is_read, "{variable}");
        }
    }

    #[test]
    fn files_are_found_in_a_folder_and_below_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let code = folder.path();
        let native = files(Language::Python(None), "lib.app.run");
        assert!(native.found_in(code).is_empty());
        fs::create_dir_all(code.join("src/app")).expect("made");
        std::os::unix::fs::symlink("src", code.join("lib")).expect("linked");
        for (place, found) in [
            ("src/app.py", "lib/app.py"),
            ("src/app.abi3.so", "lib/app.abi3.so"),
            ("src/app/__init__.abi3.so", "lib/app/__init__.abi3.so"),
        ] {
            fs::write(code.join(place), "").expect("written");
            assert_eq!(native.found_in(code), [found]);
            fs::remove_file(code.join(place)).expect("removed");
        }
        assert!(files(Language::Node(None), "../x.run").leads_outside());
    }

    #[test]
    fn an_executable_is_one_file() {
        let files = files(Language::Executable, "bootstrap");
        assert!(files.has("bootstrap") && !files.has("lib/bootstrap"));
        assert_eq!(
            files.to_string(),
            "handler = \"bootstrap\": there is no file bootstrap in the code folder \"code\""
        );
    }
}
