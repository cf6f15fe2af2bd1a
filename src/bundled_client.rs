//! The Python client that the program bundles, so that functions need no installation.

/// The files of a folder by their import paths.
macro_rules! bundled {
    ($($file:literal)*) => {
        [$((
            concat!("landfast/", $file),
            include_str!(concat!("../clients/python/landfast/", $file)),
        )),*]
    };
}

/// The files of the client by their import paths.
pub(crate) const PYTHON_CLIENT: [(&str, &str); 27] = bundled! {
    "__init__.py"
    "_after.py"
    "_attempt.py"
    "_attempts.py"
    "_client.py"
    "_connection.py"
    "_fsspec.py"
    "_ids.py"
    "_nodes.py"
    "_pace.py"
    "_problems.py"
    "_repeat.py"
    "_requests.py"
    "_state.py"
    "_transact.py"
    "_transaction.py"
    "_volumes.py"
    "_workflow.py"
    "aio/__init__.py"
    "aio/_client.py"
    "aio/_connection.py"
    "aio/_places.py"
    "aio/_state.py"
    "aio/_transaction.py"
    "aio/_volumes.py"
    "aio/_workflow.py"
    "py.typed"
};

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn no_file_of_the_python_client_is_left_behind() {
        let mut folders =
            vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/landfast")];
        let mut found = 0;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("listed").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path
                    .extension()
                    .is_some_and(|ending| ending == "py" || ending == "typed")
                {
                    found += 1;
                }
            }
        }
        assert_eq!(found, PYTHON_CLIENT.len());
    }
}
