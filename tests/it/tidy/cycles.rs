//! Modules of a crate form no import cycle.
//!
//! At each level of a crate's module tree, sibling modules (each with all that lies below it) must form no cycle of `use`
//! declarations.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    assert_tidy, files, read,
    source::{code, shipped},
};

/// The path of a module within its crate.
type Module = Vec<String>;

#[test]
fn modules_form_no_import_cycle() {
    let found = all_cycles();
    let complaints: Vec<String> = found
        .iter()
        .map(|cycle| format!("an import cycle, {cycle}: break it"))
        .collect();
    assert_tidy(&complaints);
}

#[test]
fn a_cycle_is_found_at_each_level_and_a_child_may_name_its_parent() {
    let crate_of = |texts: &[(&str, &str)]| -> BTreeMap<Module, String> {
        let module = |path: &str| module_of(path);
        texts
            .iter()
            .map(|(path, text)| (module(path), (*text).to_owned()))
            .collect()
    };
    let found = crate_of(&[
        ("lib.rs", "mod a;\nuse a::A;"),
        ("a.rs", "use crate::{\n    Error,\n    b::{self, B},\n};"),
        ("b.rs", "use super::c::C;"),
        ("c.rs", "use crate::a::deep::D;"),
        ("a/deep.rs", "use super::A;\nuse self::deeper::E;"),
        ("a/deep/deeper.rs", ""),
    ]);
    assert_eq!(cycles(&found), [(String::new(), "a b c".to_owned())]);
    let below = crate_of(&[
        ("a.rs", ""),
        ("a/x.rs", "use super::y::Y;"),
        ("a/y.rs", "use crate::a::x::X;"),
    ]);
    assert_eq!(cycles(&below), [("a".to_owned(), "x y".to_owned())]);
    let none = crate_of(&[
        ("a.rs", "use crate::b::B;"),
        ("b.rs", ""),
        ("b/tests.rs", "use crate::a::A;"),
    ]);
    assert_eq!(cycles(&none), []);
    let in_tests = "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n";
    let tests = crate_of(&[("a.rs", in_tests), ("b.rs", "use crate::a::A;")]);
    assert_eq!(cycles(&tests), []);
}

/// Every cycle of every crate, as its line in the list.
fn all_cycles() -> BTreeSet<String> {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for path in files(&[".rs"]) {
        let Some((folder, file)) = path
            .strip_prefix("src/")
            .map(|file| ("program", file))
            .or_else(|| path.split_once("/src/"))
        else {
            continue;
        };
        if file.starts_with("bin/") {
            continue;
        }
        crates
            .entry(folder.to_owned())
            .or_default()
            .insert(module_of(file), read(&path));
    }
    let line = |folder: &str, level: &str, modules: &str| match level {
        "" => format!("{folder}: {modules}"),
        level => format!("{folder}/{level}: {modules}"),
    };
    crates
        .iter()
        .flat_map(|(folder, modules)| {
            cycles(modules)
                .into_iter()
                .map(move |(level, cycle)| line(folder, &level, &cycle))
        })
        .collect()
}

fn module_of(file: &str) -> Module {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    match path {
        "lib" | "main" => Vec::new(),
        path => path.split('/').map(str::to_owned).collect(),
    }
}

/// The cycles of one crate: the path of the level, and its modules in order.
fn cycles(modules: &BTreeMap<Module, String>) -> Vec<(String, String)> {
    let mut levels: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (from, text) in modules {
        if from.is_empty() || from.last().is_some_and(|name| name == "tests") {
            continue;
        }
        for to in imports(from, &code_of(text), modules) {
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if common < from.len() && common < to.len() {
                levels
                    .entry(from[..common].to_vec())
                    .or_default()
                    .entry(from[common].clone())
                    .or_default()
                    .insert(to[common].clone());
            }
        }
    }
    levels
        .iter()
        .flat_map(|(level, graph)| {
            components(graph)
                .into_iter()
                .map(|cycle| (level.join("/"), cycle))
        })
        .collect()
}

/// The shipped code of a file, without comments.
fn code_of(text: &str) -> String {
    let lines = shipped(text).lines().map(code);
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that a file imports from.
fn imports(from: &Module, text: &str, modules: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let declarations = text.split(';').filter_map(|statement| {
        let start = statement.rfind("use ")?;
        let is_word = start == 0 || statement[..start].ends_with([' ', '\n', ')']);
        is_word.then(|| statement[start + 4..].trim())
    });
    let mut found = BTreeSet::new();
    for declaration in declarations {
        for path in flat(declaration) {
            let Some(absolute) = absolute(from, &path) else {
                continue;
            };
            // The item at the end belongs to the longest path that is a file.
            let owner = (0..=absolute.len())
                .rev()
                .map(|length| &absolute[..length])
                .find(|path| modules.contains_key(*path) && !path.is_empty());
            found.extend(owner.filter(|owner| *owner != &from[..]).map(<[_]>::to_vec));
        }
    }
    found
}

/// A path as it stands from the crate's root; none: it is another crate's.
fn absolute(from: &Module, path: &[String]) -> Option<Module> {
    let (first, mut rest) = path.split_first()?;
    let mut base = match first.as_str() {
        "crate" => Vec::new(),
        "self" => from.clone(),
        "super" => from[..from.len() - 1].to_vec(),
        _ => return None,
    };
    while let Some((next, after)) = rest.split_first()
        && next == "super"
    {
        base.pop();
        rest = after;
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The paths of a tree of imports.
fn flat(tree: &str) -> Vec<Vec<String>> {
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![segments(path)];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (at, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let head = segments(head);
    parts
        .into_iter()
        .filter(|part| !part.trim().is_empty())
        .flat_map(flat)
        .map(|path| [head.clone(), path].concat())
        .collect()
}

fn segments(path: &str) -> Vec<String> {
    path.split("::")
        .map(str::trim)
        .filter(|segment| !segment.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The strongly connected components of more than one module, each as its names in order.
fn components(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let reachable = |from: &String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(next) = left.pop() {
            for to in graph.get(next).into_iter().flatten() {
                if seen.insert(to) {
                    left.push(to);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|from| (from, reachable(from))).collect();
    let is_mutual = |one: &String, other: &String| {
        reach
            .get(one)
            .is_some_and(|reached| reached.contains(other))
            && reach
                .get(other)
                .is_some_and(|reached| reached.contains(one))
    };
    let mut found = BTreeSet::new();
    for from in graph.keys() {
        let members: Vec<&str> = graph
            .keys()
            .filter(|other| *other == from || is_mutual(from, other))
            .map(String::as_str)
            .collect();
        if members.len() > 1 {
            found.insert(members.join(" "));
        }
    }
    found
}
