//! The files that may hold a function's handler, so that a deployment without them is refused.
//!
//! Only the interpreter can import a module. But a module that is in none of these files cannot be
//! imported, unless the function looks for modules elsewhere too. For such functions there is no
//! list.

use std::{fmt, path::Path};

use ports::runtime::{Function, Language};

/// The files of which a code folder must have one, relative to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerFiles {
    handler: String,
    folder: String,
    names: Vec<String>,
    /// Any file with this beginning and end.
    native: Option<(String, &'static str)>,
}

/// The files for the handler of `function`; none: any file may hold it.
pub fn handler_files(function: &Function) -> Option<HandlerFiles> {
    let handler = function.handler.as_str();
    let is_set = |variable: &str| function.environment.contains_key(variable);
    let (names, native) = match &function.language {
        // An interpreter with packages of its own may have the module.
        Language::Executable | Language::Python(Some(_)) => return None,
        Language::Python(None) if is_set("PYTHONPATH") => return None,
        Language::Node(_) if is_set("NODE_PATH") => return None,
        Language::Python(None) => {
            let module = handler
                .rsplit_once('.')
                .map_or(handler, |(module, _)| module);
            let path = plain(&module.replace('.', "/"));
            let names = ["py", "pyc"].map(|kind| format!("{path}.{kind}"));
            let package = format!("{path}/__init__.py");
            let names = [&names[..1], &[package], &names[1..]].concat();
            (names, Some((format!("{path}."), ".so")))
        }
        Language::Node(_) => (node_names(handler), None),
    };
    Some(HandlerFiles {
        handler: handler.to_owned(),
        folder: function.folder.clone(),
        names,
        native,
    })
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
    let installed = modules
        .iter()
        .map(|module| format!("node_modules/{module}/package.json"));
    beside.chain(installed).collect()
}

/// A path without its `.` segments.
fn plain(path: &str) -> String {
    let segments = path.split('/').filter(|part| !matches!(*part, "" | "."));
    segments.collect::<Vec<_>>().join("/")
}

impl HandlerFiles {
    /// Whether `file`, relative to the code folder, may hold the handler.
    pub fn has(&self, file: &str) -> bool {
        let is_native =
            |(begin, end): &(String, &str)| file.starts_with(begin) && file.ends_with(end);
        self.names.iter().any(|name| name == file) || self.native.as_ref().is_some_and(is_native)
    }

    /// Whether the code folder at `code` has one of them.
    pub(crate) fn are_in(&self, code: &Path) -> bool {
        if self.names.iter().any(|name| code.join(name).is_file()) {
            return true;
        }
        let Some((begin, _)) = &self.native else {
            return false;
        };
        let folder = begin.rsplit_once('/').map_or("", |(folder, _)| folder);
        let Ok(entries) = code.join(folder).read_dir() else {
            return false;
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names = names.filter_map(|name| name.into_string().ok());
        names.any(|name| self.has(&plain(&format!("{folder}/{name}"))))
    }

    /// Whether the handler leads out of the code folder.
    pub(crate) fn leads_outside(&self) -> bool {
        let mut all = self.names.iter().flat_map(|name| name.split('/'));
        all.any(|part| part == "..")
    }
}

impl fmt::Display for HandlerFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (handler, folder) = (&self.handler, &self.folder);
        let (first, second) = (&self.names[0], &self.names[1]);
        write!(
            f,
            "handler = {handler:?}: the code folder {folder:?} has neither {first} nor {second}"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, time::Duration};

    use super::*;

    fn function(language: Language, handler: &str) -> Function {
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
        }
    }

    fn files(language: Language, handler: &str) -> HandlerFiles {
        handler_files(&function(language, handler)).expect("there is a list")
    }

    #[test]
    fn a_python_module_is_a_file_a_package_or_native() {
        for handler in ["lib.app.run", "lib/app.run"] {
            let files = files(Language::Python(None), handler);
            for file in [
                "lib/app.py",
                "lib/app/__init__.py",
                "lib/app.cpython-311.so",
                "lib/app.so",
            ] {
                assert!(files.has(file), "{file}");
            }
            for file in ["app.py", "lib/app", "lib/application.so", "lib/app.txt"] {
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
    fn a_function_that_looks_for_modules_elsewhere_has_no_list() {
        let own = Some("/opt/python".into());
        assert_eq!(handler_files(&function(Language::Python(own), "a.b")), None);
        let mut elsewhere = function(Language::Python(None), "a.b");
        elsewhere
            .environment
            .insert("PYTHONPATH".to_owned(), "/var/task/src".to_owned());
        assert_eq!(handler_files(&elsewhere), None);
    }

    #[test]
    fn files_are_found_in_a_folder() {
        let code = tempfile::tempdir().expect("a folder");
        let native = files(Language::Python(None), "lib.app.run");
        assert!(!native.are_in(code.path()));
        fs::create_dir(code.path().join("lib")).expect("made");
        fs::write(code.path().join("lib/app.abi3.so"), "").expect("written");
        assert!(native.are_in(code.path()));
        assert!(files(Language::Node(None), "../x.run").leads_outside());
    }
}
