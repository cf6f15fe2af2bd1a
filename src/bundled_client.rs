//! The Python client that the program bundles, so that functions need no installation.

/// The files of the client by their import paths.
pub(crate) const PYTHON_CLIENT: [(&str, &str); 24] = [
    (
        "landfast/__init__.py",
        include_str!("../clients/python/landfast/__init__.py"),
    ),
    (
        "landfast/_after.py",
        include_str!("../clients/python/landfast/_after.py"),
    ),
    (
        "landfast/_attempt.py",
        include_str!("../clients/python/landfast/_attempt.py"),
    ),
    (
        "landfast/_attempts.py",
        include_str!("../clients/python/landfast/_attempts.py"),
    ),
    (
        "landfast/_client.py",
        include_str!("../clients/python/landfast/_client.py"),
    ),
    (
        "landfast/_connection.py",
        include_str!("../clients/python/landfast/_connection.py"),
    ),
    (
        "landfast/_ids.py",
        include_str!("../clients/python/landfast/_ids.py"),
    ),
    (
        "landfast/_nodes.py",
        include_str!("../clients/python/landfast/_nodes.py"),
    ),
    (
        "landfast/_pace.py",
        include_str!("../clients/python/landfast/_pace.py"),
    ),
    (
        "landfast/_problems.py",
        include_str!("../clients/python/landfast/_problems.py"),
    ),
    (
        "landfast/_repeat.py",
        include_str!("../clients/python/landfast/_repeat.py"),
    ),
    (
        "landfast/_requests.py",
        include_str!("../clients/python/landfast/_requests.py"),
    ),
    (
        "landfast/_state.py",
        include_str!("../clients/python/landfast/_state.py"),
    ),
    (
        "landfast/_transact.py",
        include_str!("../clients/python/landfast/_transact.py"),
    ),
    (
        "landfast/_transaction.py",
        include_str!("../clients/python/landfast/_transaction.py"),
    ),
    (
        "landfast/_workflow.py",
        include_str!("../clients/python/landfast/_workflow.py"),
    ),
    (
        "landfast/aio/__init__.py",
        include_str!("../clients/python/landfast/aio/__init__.py"),
    ),
    (
        "landfast/aio/_client.py",
        include_str!("../clients/python/landfast/aio/_client.py"),
    ),
    (
        "landfast/aio/_connection.py",
        include_str!("../clients/python/landfast/aio/_connection.py"),
    ),
    (
        "landfast/aio/_places.py",
        include_str!("../clients/python/landfast/aio/_places.py"),
    ),
    (
        "landfast/aio/_state.py",
        include_str!("../clients/python/landfast/aio/_state.py"),
    ),
    (
        "landfast/aio/_transaction.py",
        include_str!("../clients/python/landfast/aio/_transaction.py"),
    ),
    (
        "landfast/aio/_workflow.py",
        include_str!("../clients/python/landfast/aio/_workflow.py"),
    ),
    (
        "landfast/py.typed",
        include_str!("../clients/python/landfast/py.typed"),
    ),
];

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
