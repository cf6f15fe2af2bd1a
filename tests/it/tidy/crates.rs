//! Rules about the manifests: the direction of imports, the graph's licences and duplicates,
//! descriptions.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
    sync::LazyLock,
};

use serde::Deserialize;

use super::{assert_tidy, from_root, read, root};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    description: Option<String>,
    license: Option<String>,
    manifest_path: String,
    dependencies: Vec<Dependency>,
    features: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
    features: Vec<String>,
}

#[derive(Deserialize)]
struct Deny {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
struct Skip {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

/// The graph for the platform the tests run on: others' crates may not even be downloaded.
static METADATA: LazyLock<Metadata> = LazyLock::new(|| {
    let rustc = Command::new("rustc")
        .arg("-vV")
        .output()
        .expect("rustc is there");
    let version = String::from_utf8(rustc.stdout).expect("text");
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("a host");
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--offline",
            "--filter-platform",
            host,
        ])
        .current_dir(root())
        .output()
        .expect("cargo is there");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo's JSON")
});

static DENY: LazyLock<Deny> =
    LazyLock::new(|| toml::from_str(&read("deny.toml")).expect("deny.toml"));

fn ours() -> impl Iterator<Item = &'static Package> {
    METADATA
        .packages
        .iter()
        .filter(|package| METADATA.workspace_members.contains(&package.id))
}

/// Where a crate of ours lives, as its layer and its name: `("services", "coordination")`.
fn room(folder: &Path) -> (String, String) {
    let inside = from_root(folder);
    let (layer, name) = inside.split_once('/').unwrap_or((inside.as_str(), ""));
    (layer.to_owned(), name.to_owned())
}

/// The dependency rule. Empty layer: the program.
fn may_import(from: (&str, &str), to: (&str, &str)) -> bool {
    let place = |name: &str| match name {
        "coordination" => 0,
        "transactions" => 1,
        "functions" => 2,
        "memory_replay" => 4,
        _ => 3,
    };
    match (from, to) {
        // Both are for development; a run on a real store is held to the simulations' checks.
        (("benches", _), ("simulation", _)) => true,
        (_, ("" | "simulation" | "benches" | "fuzz" | "examples", _)) => false,
        (("services", this), ("services", earlier)) => place(earlier) < place(this),
        (("" | "simulation" | "benches" | "fuzz" | "examples", _), _)
        | (("providers" | "foundations" | "services" | "frontends", _), ("ports", _))
        | (("foundations", "synchrony"), ("foundations", "primitives"))
        // Both sides of one protocol: the library is loaded into other programs.
        | (("frontends", "preload/library"), ("frontends", "preload"))
        | (("services", _), ("foundations", _))
        | (("frontends", _), ("foundations" | "services", _)) => true,
        _ => false,
    }
}

#[test]
fn imports_point_downwards_only() {
    let mut complaints = Vec::new();
    for package in ours() {
        let from = room(
            Path::new(&package.manifest_path)
                .parent()
                .expect("a folder"),
        );
        let normal = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind.as_deref() != Some("dev"));
        for dependency in normal {
            let Some(path) = &dependency.path else {
                continue;
            };
            let to = room(Path::new(path));
            if !may_import((&from.0, &from.1), (&to.0, &to.1)) {
                complaints.push(format!(
                    "{} may not import {}",
                    package.name, dependency.name
                ));
            }
        }
    }
    assert_tidy(&complaints);
}

#[test]
fn the_rule_itself_refuses_what_points_up_or_sideways() {
    for (from, to) in [
        (("ports", ""), ("providers", "embedded")),
        (("providers", "embedded"), ("foundations", "primitives")),
        (("providers", "aws"), ("providers", "embedded")),
        (("foundations", "primitives"), ("foundations", "synchrony")),
        (("services", "coordination"), ("services", "transactions")),
        (("services", "files"), ("services", "memory")),
        (("services", "coordination"), ("providers", "simulated")),
        (("frontends", "http"), ("frontends", "zookeeper")),
        (("frontends", "http"), ("frontends", "preload/library")),
        (("foundations", "listener"), ("services", "transactions")),
        (("foundations", "http_client"), ("foundations", "listener")),
        (("frontends", "http"), ("providers", "embedded")),
        (("services", "coordination"), ("simulation", "")),
        (("benches", ""), ("", "")),
    ] {
        assert!(!may_import(from, to), "{from:?} {to:?}");
    }
    for (from, to) in [
        (("", ""), ("providers", "embedded")),
        (("foundations", "synchrony"), ("foundations", "primitives")),
        (("benches", ""), ("simulation", "")),
        (("services", "files"), ("services", "transactions")),
        (("services", "memory"), ("services", "coordination")),
        (("frontends", "http"), ("foundations", "listener")),
    ] {
        assert!(may_import(from, to), "{from:?} {to:?}");
    }
}

#[test]
fn features_exist_in_the_program_alone() {
    let mut complaints = Vec::new();
    for package in ours() {
        let (layer, _) = room(
            Path::new(&package.manifest_path)
                .parent()
                .expect("a folder"),
        );
        for feature in package
            .features
            .keys()
            .filter(|feature| !layer.is_empty() && *feature != "default")
        {
            if !TEST_FEATURES.contains(&(&package.name, feature)) {
                complaints.push(format!("{} has a feature: {feature}", package.name));
            }
        }
    }
    assert_tidy(&complaints);
}

/// The features that compile suites and deliberately broken variants, each with its crate.
const TEST_FEATURES: [(&str, &str); 3] = [
    ("landfast-ports", "contract"),
    ("landfast-transactions", "contract"),
    ("landfast-primitives", "mutants"),
];

#[test]
fn no_crate_of_the_program_turns_a_test_feature_on() {
    assert_tidy(&test_features_in("landfast", &METADATA.packages));
}

/// Where a crate that `program` is built from turns on a test feature.
fn test_features_in(program: &str, packages: &[Package]) -> Vec<String> {
    let by_name = |name: &str| packages.iter().find(|package| package.name == name);
    let (mut complaints, mut seen) = (Vec::new(), BTreeSet::new());
    let mut next: Vec<&Package> = by_name(program).into_iter().collect();
    while let Some(package) = next.pop() {
        if !seen.insert(&package.name) {
            continue;
        }
        let shipped = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind.as_deref() != Some("dev"));
        for dependency in shipped.filter(|dependency| dependency.path.is_some()) {
            next.extend(by_name(&dependency.name));
            for feature in &dependency.features {
                if TEST_FEATURES.contains(&(&dependency.name, feature)) {
                    complaints.push(format!(
                        "{} turns on {}/{feature}",
                        package.name, dependency.name
                    ));
                }
            }
        }
        for (feature, implied) in &package.features {
            let turns_on = |implied: &String| {
                TEST_FEATURES.iter().any(|(owner, test)| {
                    implied.rsplit_once('/').map(|(_, feature)| feature) == Some(test)
                        || (package.name == *owner && implied == test)
                })
            };
            let implied = implied.iter().filter(|implied| turns_on(implied));
            complaints.extend(
                implied.map(|implied| format!("{}'s {feature} implies {implied}", package.name)),
            );
        }
    }
    complaints
}

#[test]
fn a_test_feature_is_found_wherever_it_is_turned_on() {
    let package = |name: &str, dependencies: &str, features: &str| -> Package {
        let text = format!(
            r#"{{"id": "", "name": "{name}", "version": "1", "manifest_path": "",
            "dependencies": [{dependencies}], "features": {{{features}}}}}"#
        );
        serde_json::from_str(&text).expect("a package")
    };
    let on = |name: &str, kind: &str, features: &str| {
        format!(r#"{{"name": "{name}", "kind": {kind}, "path": "", "features": [{features}]}}"#)
    };
    let ports = |features| package("landfast-ports", "", features);
    let found = |service: &str, features: &str, ports: Package| {
        let program = package("landfast", &on("service", "null", ""), "");
        test_features_in(
            "landfast",
            &[program, package("service", service, features), ports],
        )
    };
    let contract = r#""contract""#;
    let in_tests = on("landfast-ports", r#""dev""#, contract);
    assert_eq!(found(&in_tests, "", ports(r#""contract": []"#)), [""; 0]);
    let shipped = on("landfast-ports", "null", contract);
    assert_eq!(
        found(&shipped, "", ports("")),
        ["service turns on landfast-ports/contract"]
    );
    let plain = on("landfast-ports", "null", "");
    assert_eq!(
        found(&plain, r#""x": ["ports?/contract"]"#, ports("")),
        ["service's x implies ports?/contract"]
    );
    assert_eq!(
        found(&plain, "", ports(r#""default": ["contract"]"#)),
        ["landfast-ports's default implies contract"]
    );
}

#[test]
fn every_crate_takes_the_workspaces_lints() {
    let folders = ours().map(|package| from_root(Path::new(&package.manifest_path)));
    let without = folders.filter(|manifest| !takes_the_workspaces_lints(&read(manifest)));
    assert_tidy(
        &without
            .map(|manifest| format!("{manifest}: [lints] workspace = true"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn a_manifest_without_the_workspaces_lints_is_found() {
    assert!(takes_the_workspaces_lints(
        "[package]\nname = \"a\"\n[lints]\nworkspace = true\n"
    ));
    assert!(takes_the_workspaces_lints(
        "lints.workspace = true\n[package]\nname = \"a\"\n"
    ));
    for manifest in [
        "[package]\nname = \"a\"\n",
        "# [lints]\n# workspace = true",
        "[lints.rust]\nunsafe_code = \"deny\"\n",
    ] {
        assert!(!takes_the_workspaces_lints(manifest), "{manifest}");
    }
}

fn takes_the_workspaces_lints(manifest: &str) -> bool {
    let manifest: toml::Table = toml::from_str(manifest).expect("a manifest");
    let lints = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"));
    lints.and_then(toml::Value::as_bool) == Some(true)
}

#[test]
fn every_licence_is_allowed() {
    let mut complaints = Vec::new();
    for package in &METADATA.packages {
        let licence = package.license.as_deref().unwrap_or("none");
        if !is_allowed(licence) {
            complaints.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    assert_tidy(&complaints);
}

/// Whether an SPDX expression can be met with allowed licences. `A/B` is the old way to write `A OR B`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    any_of(&mut rest) && rest.is_empty()
}

fn any_of(tokens: &mut &[&str]) -> bool {
    let mut allowed = all_of(tokens);
    while let [first, rest @ ..] = tokens
        && *first == "OR"
    {
        *tokens = rest;
        allowed |= all_of(tokens);
    }
    allowed
}

fn all_of(tokens: &mut &[&str]) -> bool {
    let mut allowed = one(tokens);
    while let [first, rest @ ..] = tokens
        && *first == "AND"
    {
        *tokens = rest;
        allowed &= one(tokens);
    }
    allowed
}

fn one(tokens: &mut &[&str]) -> bool {
    let Some((&first, rest)) = tokens.split_first() else {
        return false;
    };
    *tokens = rest;
    if first == "(" {
        let allowed = any_of(tokens);
        let closes = tokens.split_first().is_some_and(|(token, _)| *token == ")");
        *tokens = tokens.get(1..).unwrap_or_default();
        return closes && allowed;
    }
    // An exception only widens what a licence permits.
    if let ["WITH", _, rest @ ..] = tokens {
        *tokens = rest;
    }
    DENY.licenses.allow.contains(first)
}

#[test]
fn licence_expressions_are_read_as_written() {
    for yes in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "(GPL-3.0 OR MIT) AND Zlib",
        "Apache-2.0 WITH X",
    ] {
        assert!(is_allowed(yes), "{yes}");
    }
    for no in [
        "none",
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT",
        "MIT MIT",
        "MIT AND (GPL-3.0 OR X)",
    ] {
        assert!(!is_allowed(no), "{no}");
    }
}

#[test]
fn no_crate_is_there_twice_without_a_reason() {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &METADATA.packages {
        versions
            .entry(&package.name)
            .or_default()
            .insert(&package.version);
    }
    let named = |skip: &Skip| skip.name.split('@').next().unwrap_or_default().to_owned();
    let excused: BTreeSet<String> = DENY.bans.skip.iter().map(named).collect();
    let mut complaints = Vec::new();
    for (name, versions) in &versions {
        if versions.len() > 1 && !excused.contains(*name) {
            complaints.push(format!("{name}: {versions:?}"));
        }
    }
    for skip in &DENY.bans.skip {
        if skip.reason.len() < 10 {
            complaints.push(format!("{}: say why in deny.toml", skip.name));
        }
        if versions
            .get(named(skip).as_str())
            .is_none_or(|versions| versions.len() < 2)
        {
            complaints.push(format!(
                "{}: no longer there twice; remove it from deny.toml",
                skip.name
            ));
        }
    }
    assert_tidy(&complaints);
}

#[test]
fn every_crate_says_in_its_first_line_what_its_manifest_says() {
    let mut complaints = Vec::new();
    for package in ours() {
        let folder = from_root(
            Path::new(&package.manifest_path)
                .parent()
                .expect("a folder"),
        );
        let source = ["src/lib.rs", "src/main.rs"].map(|file| Path::new(&folder).join(file));
        let source = source
            .iter()
            .find(|file| root().join(file).exists())
            .expect("a crate has a source");
        let text = read(&source.to_string_lossy());
        let first = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("//! "))
            .unwrap_or_default();
        let described = package.description.as_deref().unwrap_or_default();
        if described.is_empty() || first != described {
            complaints.push(format!(
                "{}: {first:?}, but its manifest says {described:?}",
                source.display()
            ));
        }
    }
    assert_tidy(&complaints);
}
