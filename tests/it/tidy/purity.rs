//! Below the front ends, time, randomness and order come from outside, and a lint is switched off
//! only with a reason.
//!
//! `clippy.toml` resolves calls, but one line switches it off for a whole crate, and it cannot
//! limit a rule to some layers. This module checks both, as text.

use super::{
    assert_tidy, files, read,
    source::{code, numbered},
};

/// Layers whose time, randomness and order come from outside.
const PURE: [&str; 3] = ["ports/src/", "foundations/", "services/"];
/// Crates among them where sockets and real time enter. They say so at their top.
const EDGES: [&str; 2] = ["foundations/http_client/", "foundations/listener/"];
/// Files among them that use instructions of the processor. They alone switch `unsafe_code` off, at
/// their top and with a reason.
const KERNELS: [&str; 2] = [
    "services/memory/src/erasure/kernel/x86.rs",
    "services/memory/src/md5_lanes/x86.rs",
];
/// Paths that never appear in their sources, and that none of their imports leads into.
const IMPURE: [&str; 14] = [
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::sync::mpsc",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio::fs",
    "tokio::net",
    "tokio::process",
    "tokio::runtime",
    "tokio::time",
    "getrandom",
];
/// Words that never appear in their sources, after any prefix.
const IMPURE_WORDS: [&str; 9] = [
    "thread::spawn",
    "SystemTime::now",
    "Instant::now",
    "spawn_blocking",
    "unbounded_channel",
    "HashMap",
    "HashSet",
    "RandomState",
    "Rng::default",
];
/// Lints that are switched off only with a reason, and in a pure layer not at all.
const GUARDED: [&str; 3] = [
    "clippy::disallowed_methods",
    "clippy::disallowed_types",
    "unsafe_code",
];

#[test]
fn time_chance_and_order_come_from_outside_below_the_front_ends() {
    assert_tidy(&of_all(|path, text| {
        if is_pure(path) {
            impurities(text)
        } else {
            Vec::new()
        }
    }));
}

#[test]
fn every_choice_between_events_has_an_order_below_the_front_ends() {
    let is_below = |path: &str| PURE.iter().any(|layer| path.starts_with(layer));
    assert_tidy(&of_all(|path, text| {
        if is_below(path) {
            unordered(text)
        } else {
            Vec::new()
        }
    }));
}

#[test]
fn a_lint_that_keeps_a_rule_is_switched_off_at_the_top_with_a_reason_or_not_at_all() {
    assert_tidy(&of_all(|path, text| {
        let found = switched_off(text, is_pure(path) && !KERNELS.contains(&path));
        let is_kernel = KERNELS.contains(&path) && text.contains("clippy::disallowed");
        let breach = is_kernel.then(|| (1, "a kernel switches off `unsafe_code` alone".to_owned()));
        found.into_iter().chain(breach).collect()
    }));
}

#[test]
fn each_way_to_time_chance_and_disorder_is_found() {
    for breach in [
        "fn f() { std::fs::read(\"x\"); }",
        "use std::{\n    fs,\n    sync::Arc,\n};",
        "use std::fs as files;",
        "    use std::net::TcpStream;",
        "use std::{io, net::{SocketAddr, TcpStream}};",
        "fn f() { std::net::TcpStream::connect(\"x\"); }",
        "use std::sync::mpsc::channel;",
        "pub(crate) use std::sync::{Arc, mpsc};",
        "use std::{thread, time::Duration};",
        "use std::time::{Duration, Instant};",
        "use tokio::{sync::mpsc, time};",
        "let map = std::collections::HashMap::new();",
        "let set: HashSet<u8> = Default::default();",
        "let state = std::hash::RandomState::new();",
        "let chance = fastrand::Rng::default();",
        "let now = clock::Instant::now();",
        "handle.spawn_blocking(work);",
    ] {
        assert_eq!(
            impurities(breach).len(),
            1,
            "{breach}: {:?}",
            impurities(breach)
        );
    }
    for fine in [
        "use tokio::sync::{mpsc, oneshot};",
        "use std::{collections::BTreeMap, sync::Arc, time::Duration};",
        "let map = BTreeMap::new(); // not a HashMap",
        "//! Nothing here knows std::thread.",
        "use std::fmt;",
    ] {
        assert_eq!(impurities(fine), Vec::<(usize, String)>::new(), "{fine}");
    }
}

#[test]
fn a_choice_without_an_order_is_found() {
    assert_eq!(
        unordered("tokio::select! {\n    // Why.\n    biased;\n    _ = a() => {}\n}"),
        Vec::new()
    );
    assert_eq!(
        unordered("futures_util::select_biased! {\n    _ = a() => {}\n}"),
        Vec::new()
    );
    assert_eq!(
        unordered("tokio::select! {\n    _ = a() => {}\n    biased;\n}").len(),
        1
    );
}

#[test]
fn a_lint_switched_off_is_found_unless_it_may_be() {
    for fine in [
        "#![allow(clippy::disallowed_methods, reason = \"real time\")]",
        "#![allow(\n    clippy::disallowed_methods,\n    reason = \"real time\"\n)]",
        "#![allow(unsafe_code)] // Two calls.",
        "// Why: it is the program.\n#![allow(clippy::disallowed_types)]",
        "#[allow(clippy::ptr_arg)]",
        "let words = \"unsafe_code\";",
    ] {
        assert_eq!(switched_off(fine, false), Vec::new(), "{fine}");
    }
    for breach in [
        "#![allow(unsafe_code)]",
        "//! What it is.\n#![allow(clippy::disallowed_methods)]",
        "// Why.\n\n#![allow(clippy::disallowed_methods)]",
        "#![cfg_attr(test, allow(clippy::disallowed_methods))]",
        "#![expect(\n    clippy::disallowed_types,\n)]",
        "#[allow(clippy::disallowed_methods)] // Why: only here.\nmod clock;",
    ] {
        assert_eq!(switched_off(breach, false).len(), 1, "{breach}");
    }
    assert_eq!(
        switched_off("#![allow(unsafe_code)] // Two calls.", true).len(),
        1,
        "not in a pure layer"
    );
}

/// The findings of `rule` in each of our sources, as complaints with their places.
fn of_all(rule: impl Fn(&str, &str) -> Vec<(usize, String)>) -> Vec<String> {
    let sources = files(&[".rs"]).into_iter().map(|path| (read(&path), path));
    let found = sources.flat_map(|(text, path)| {
        let found = rule(&path, &text).into_iter();
        found
            .map(move |(line, what)| format!("{path}:{line}: {what}"))
            .collect::<Vec<_>>()
    });
    found.collect()
}

fn is_pure(path: &str) -> bool {
    let is_below = |folder: &&str| path.starts_with(*folder);
    PURE.iter().any(&is_below) && !EDGES.iter().any(is_below) && path.contains("src/")
}

fn impurities(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    for (line, text) in numbered(text) {
        let words = IMPURE.iter().chain(&IMPURE_WORDS);
        found.extend(
            words
                .filter(|word| code(text).contains(**word))
                .map(|word| (line, (*word).to_owned())),
        );
    }
    for (line, path) in imports(text) {
        let leads_into = |place: &&&str| path == **place || path.starts_with(&format!("{place}::"));
        found.extend(
            IMPURE
                .iter()
                .find(leads_into)
                .map(|place| (line, (*place).to_owned())),
        );
    }
    // A line reports each finding once, however it is found, and the longest word for it is enough.
    found.sort_unstable();
    found.dedup_by_key(|(line, _)| *line);
    found
}

/// Every path that is imported, in full, with the line its `use` begins at.
fn imports(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().map(code).collect();
    let begins = |line: &str| {
        let line = line.trim_start();
        let rest = if line.starts_with("pub") {
            line.split_once(' ').map_or("", |(_, rest)| rest)
        } else {
            line
        };
        rest.strip_prefix("use ").map(str::to_owned)
    };
    let mut imported = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(first) = begins(line) else { continue };
        let statement = lines[index + 1..]
            .iter()
            .fold(first, |said, line| said + " " + line.trim());
        let tree = statement.split(';').next().unwrap_or_default();
        imported.extend(paths(tree).into_iter().map(|path| (index + 1, path)));
    }
    imported
}

/// `a::{b, c::d as e}` is `a::b` and `a::c::d`.
fn paths(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let (Some(open), Some(close)) = (tree.find('{'), tree.rfind('}')) else {
        return tree
            .split(" as ")
            .next()
            .map(|path| path.trim().to_owned())
            .into_iter()
            .collect();
    };
    let mut depth = 0;
    let branches = tree[open + 1..close].split(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    });
    let prefix = &tree[..open];
    branches
        .flat_map(paths)
        .filter(|path| !path.is_empty())
        .map(|path| prefix.to_owned() + &path)
        .collect()
}

fn unordered(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let choices = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| code(line).contains("select! {"));
    let unordered = choices.filter(|(index, line)| {
        let mut body = lines[index + 1..].iter().map(|line| line.trim());
        let first = body.find(|line| !line.is_empty() && !line.starts_with("//"));
        first != Some("biased;") && !code(line).contains("select_biased! {")
    });
    unordered
        .map(|(index, _)| (index + 1, "begin with `biased;`".to_owned()))
        .collect()
}

/// Attributes that switch off a guarded lint and may not.
fn switched_off(text: &str, is_pure: bool) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.trim_start().starts_with('#'))
    {
        let length = lines[index..]
            .iter()
            .position(|line| code(line).contains(']'))
            .map_or(1, |last| last + 1);
        let attribute = &lines[index..index + length];
        let Some(lint) = GUARDED
            .iter()
            .find(|lint| attribute.iter().any(|line| code(line).contains(**lint)))
        else {
            continue;
        };
        let above = index
            .checked_sub(1)
            .map_or("", |above| lines[above].trim_start());
        let is_explained = attribute
            .iter()
            .any(|line| line.contains("reason = ") || line.contains("// "))
            || above.starts_with("// ");
        if is_pure {
            found.push((
                index + 1,
                format!("{lint} is not switched off in this layer"),
            ));
        } else if !line.trim_start().starts_with("#!") {
            found.push((
                index + 1,
                format!("switch {lint} off at the top, for all, or not at all"),
            ));
        } else if !is_explained {
            found.push((index + 1, format!("say why {lint} is switched off")));
        }
    }
    found
}
