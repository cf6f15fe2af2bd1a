//! The versions of Python distributions, as pip describes them beside their packages.
//!
//! The folder's own files win over installed ones. With another version of a distribution in the
//! folder, the result would have some files of each, which no release ever had.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::bail;

/// The end of the name of a folder that describes a distribution: `urllib3-2.0.7.dist-info`.
const DESCRIPTION: &str = ".dist-info";

/// The versions of each distribution.
type Versions<'p> = BTreeMap<String, BTreeSet<&'p str>>;

/// Errors: the code folder `folder` has another version of a distribution that is installed into it.
pub(super) fn check<'p>(
    folder: &str,
    own: impl Iterator<Item = &'p PathBuf>,
    installed: impl Iterator<Item = &'p PathBuf>,
) -> anyhow::Result<()> {
    let own = versions(folder, own);
    for (name, installed) in versions(folder, installed) {
        let own = own.get(&name).into_iter().flatten();
        let own: Vec<_> = own.copied().collect();
        let is_the_same = own.iter().any(|version| installed.contains(version));
        if let (false, Some(own), Some(installed)) = (is_the_same, own.last(), installed.last()) {
            bail!(
                "the code folder {folder:?} has {name} {own}, and its requirements.txt installs {name} {installed}: the \
                 files of both would be mixed. Remove {name} from the folder, or write {name}=={own} in requirements.txt"
            );
        }
    }
    Ok(())
}

/// Those that are described directly in `folder`, beside their packages.
fn versions<'p>(folder: &str, places: impl Iterator<Item = &'p PathBuf>) -> Versions<'p> {
    let mut all = Versions::new();
    for place in places {
        let inside = match folder {
            "." => Some(place.as_path()),
            folder => place.strip_prefix(folder).ok(),
        };
        let first = inside.and_then(|inside| inside.components().next());
        let first = first.and_then(|first| first.as_os_str().to_str());
        let described = first.and_then(|first| first.strip_suffix(DESCRIPTION));
        if let Some((name, version)) = described.and_then(|named| named.rsplit_once('-')) {
            all.entry(normalised(name)).or_default().insert(version);
        }
    }
    all
}

/// A name as package indexes compare it: `Foo.Bar__baz` is `foo-bar-baz`.
fn normalised(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    let parts: Vec<_> = parts.map(str::to_lowercase).collect();
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn checked(folder: &str, own: &[&str], installed: &[&str]) -> Result<(), String> {
        let places = |names: &[&str]| -> Vec<PathBuf> {
            let names = names.iter();
            names.map(|name| Path::new(name).join("RECORD")).collect()
        };
        let (own, installed) = (places(own), places(installed));
        check(folder, own.iter(), installed.iter()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn two_versions_of_one_distribution_are_refused() {
        let said = checked(
            "code",
            &["code/Foo.Bar-1.26.dist-info", "code/six-1.0.dist-info"],
            &["code/foo_bar-2.0.dist-info", "code/six-1.0.dist-info"],
        );
        let said = said.expect_err("they would be mixed");
        assert!(
            said.contains("has foo-bar 1.26") && said.contains("installs foo-bar 2.0"),
            "{said}"
        );
        assert!(checked(".", &["a-1.dist-info"], &["a-2.dist-info"]).is_err());
    }

    #[test]
    fn equal_versions_and_those_of_other_folders_are_no_mixture() {
        for (own, installed) in [
            ("code/a-1.dist-info", "code/a-1.dist-info"),
            ("code/vendor/a-1.dist-info", "code/a-2.dist-info"),
            ("other/a-1.dist-info", "code/a-2.dist-info"),
            ("code/a_b-1.dist-info", "code/a-2.dist-info"),
        ] {
            assert_eq!(checked("code", &[own], &[installed]), Ok(()), "{own}");
        }
        // pip leaves the description of the version that it has replaced in a folder.
        let own = ["code/a-1.dist-info", "code/a-2.dist-info"];
        assert_eq!(checked("code", &own, &["code/a-2.dist-info"]), Ok(()));
    }
}
